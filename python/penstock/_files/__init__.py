"""penstock.load() and penstock.save(), fromfile() and tofile(): files of every kind. Stands on the modules for each format."""
