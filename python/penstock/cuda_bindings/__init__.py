"""What programs written for NVIDIA's cuda-python import from cuda.bindings: `from penstock.cuda_bindings import cufile`."""
