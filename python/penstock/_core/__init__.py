"""The lowest layer of the package: devices, errors, futures, files and memory. Imports the native module and nothing above."""
