"""Reads a file into the memory of a GPU: penstock.cufile's functions, in the order of a first program.

    python cufile_basic_read.py FILE [--device cuda:0]

Without --device, the first one is taken: a GPU, or the host device "host:0" where there is none.
"""

from __future__ import annotations

import argparse
import os

import penstock
from penstock import cufile


def read_into_device(path: str, device: str) -> penstock.DeviceBuffer:
    """The whole file in memory of the device."""
    size = os.path.getsize(path)
    buffer = penstock.device(device).empty(max(1, size))  # in a program with CUDA: cudaMalloc
    cufile.driver_open()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        handle = cufile.handle_register(descriptor)
        cufile.buf_register(buffer.ptr, buffer.nbytes, cufile.CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY)
        cufile.read(handle, buffer.ptr, size, 0, 0)
        cufile.buf_deregister(buffer.ptr)
        cufile.handle_deregister(handle)
    finally:
        os.close(descriptor)
        cufile.driver_close()
    return buffer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--device", default=penstock.devices()[0].name)
    asked = parser.parse_args()
    try:
        buffer = read_into_device(asked.file, asked.device)
    except (OSError, cufile.cuFileError) as error:
        raise SystemExit(f"{asked.file}: {error}") from error
    size = os.path.getsize(asked.file)
    with open(asked.file, "rb") as file:
        same = buffer.to_host()[:size] == file.read()
    print(f"{size} bytes of {asked.file} are in the memory of {asked.device}: {'as in the file' if same else 'NOT as in the file'}")
    raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    main()
