"""Penstock in place of the safetensors library, inside programs that import the library."""
