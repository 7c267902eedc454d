"""The cuFile library as Python calls it: for penstock.cufile, gds, cuda_bindings and kvikio."""
