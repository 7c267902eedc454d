"""penstock.load() and penstock.save(), fromfile() and tofile(): files of every kind. Uses the modules for each format."""
