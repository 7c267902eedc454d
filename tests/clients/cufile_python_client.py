#!/usr/bin/env python3
"""cufile-python (PyPI) over libcufile, which it opens as libcufile.so: every call that the package has, and the bytes.

LMCache reads and writes by this package. A function of the package that nothing here calls is a failure. Memory is a GPU's where there is one (by
PyTorch), else the host's.

Usage: penstock run -- python3 cufile_python_client.py FOLDER [LIBRARY]
FOLDER is written to. LIBRARY: the library file that must be in use.
"""

import ctypes
import os
import pathlib
import sys
import tempfile

from client import check, check_library, equal, fail, ok, refused, skip

try:
    import cufile
    from cufile import bindings
except ImportError as problem:
    skip(f"cufile-python cannot be imported: {problem}")
except OSError as problem:
    fail(f"cufile-python found no libcufile.so: {problem}")

from memory import Memory

MIB = 1 << 20
FAILED = (1 << 64) - 1  # the package takes the result of a transfer for a size_t, so -1 is this
CALLED = {"cuFileDriverOpen", "cuFileDriverClose", "cuFileHandleRegister", "cuFileHandleDeregister", "cuFileBufRegister", "cuFileBufDeregister",
          "cuFileRead", "cuFileWrite"}


def check_bindings(folder: pathlib.Path) -> None:
    """The functions of cufile.bindings, one after the other."""
    offered = {name for name in dir(bindings) if name.startswith("cuFile")}
    check(offered <= CALLED, f"functions that nothing here calls: {', '.join(sorted(offered - CALLED))}")
    bindings.cuFileDriverOpen()
    bindings.cuFileDriverClose()
    bindings.cuFileDriverOpen()
    data = os.urandom(3 * MIB + 777)
    path = folder / "bindings"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    handle = bindings.cuFileHandleRegister(descriptor)
    refused(lambda: bindings.cuFileHandleRegister(descriptor), 5028, "a descriptor twice")
    memory = Memory(len(data) + 8192)
    memory.put(data, 4096)
    base = ctypes.c_void_p(memory.address)
    bindings.cuFileBufRegister(base, memory.size, 0)
    refused(lambda: bindings.cuFileBufRegister(base, memory.size, 0), 5023, "memory twice")
    equal(bindings.cuFileWrite(handle, base, len(data), 4096, 4096), len(data), "cuFileWrite")
    check(path.read_bytes() == bytes(4096) + data, "cuFileWrite: the file differs")
    memory.put(bytes(memory.size))
    equal(bindings.cuFileRead(handle, base, 100_001, 4096 + 12_345, 7), 100_001, "cuFileRead of a range aligned to nothing")
    check(memory.get(100_001, 7) == data[12_345 : 12_345 + 100_001], "cuFileRead: memory differs")
    equal(bindings.cuFileRead(handle, base, 8192, 4096 + len(data) - 1000, 0), 1000, "cuFileRead across the end of the file")
    equal(bindings.cuFileRead(handle, base, memory.size, 0, 1), FAILED, "cuFileRead past the registered memory")
    bindings.cuFileBufDeregister(base)
    refused(lambda: bindings.cuFileBufDeregister(base), 5024, "memory that is not registered")
    bindings.cuFileHandleDeregister(handle)
    equal(bindings.cuFileRead(handle, base, 1, 0, 0), FAILED, "cuFileRead with a handle that was deregistered")
    os.close(descriptor)
    bindings.cuFileDriverClose()


def check_modes(folder: pathlib.Path) -> None:
    """CuFile of each mode that it knows."""
    data = os.urandom(MIB)
    memory = Memory(MIB)
    path = str(folder / "modes")
    for mode in ("w", "w+", "r+"):
        memory.put(data)
        with cufile.CuFile(path, mode) as file:
            equal(file.write(ctypes.c_void_p(memory.address), MIB), MIB, f"write, mode {mode}")
        check(pathlib.Path(path).read_bytes() == data, f"write, mode {mode}: the file differs")
    for mode in ("r", "r+"):
        memory.put(bytes(MIB))
        with cufile.CuFile(path, mode) as file:
            equal(file.read(ctypes.c_void_p(memory.address), MIB), MIB, f"read, mode {mode}")
        check(memory.get(MIB) == data, f"read, mode {mode}: memory differs")
    for mode, call in (("r", cufile.CuFile.write), ("w", cufile.CuFile.read)):
        with cufile.CuFile(path, mode) as file:
            equal(call(file, ctypes.c_void_p(memory.address), MIB), FAILED, f"{call.__name__}, mode {mode}")
    for mode in ("a", "a+"):
        refused(cufile.CuFile(path, mode).open, 5019, f"mode {mode}")


def check_direct_io(folder: pathlib.Path) -> str:
    """As LMCache stores a chunk: 4096 bytes in front of it by write(2), and the chunk by cuFile, with O_DIRECT."""
    header, data = os.urandom(4096), os.urandom(2 * MIB)
    path = folder / "direct"
    path.write_bytes(header)
    memory = Memory(8 * MIB)
    memory.put(data, 4 * MIB)
    base = ctypes.c_void_p(memory.address)
    bindings.cuFileBufRegister(base, memory.size, 0)
    try:
        with cufile.CuFile(str(path), "r+", use_direct_io=True) as file:
            equal(file.write(base, len(data), file_offset=4096, dev_offset=4 * MIB), len(data), "write with O_DIRECT")
    except OSError as problem:
        return f"left out: {problem.strerror}"
    check(path.read_bytes() == header + data, "write with O_DIRECT: the file differs")
    with cufile.CuFile(str(path), "r", use_direct_io=True) as file:
        equal(file.read(base, len(data), file_offset=4096, dev_offset=MIB), len(data), "read with O_DIRECT")
    check(memory.get(len(data), MIB) == data, "read with O_DIRECT: memory differs")
    bindings.cuFileBufDeregister(base)
    return "4 KiB of metadata and a chunk"


def check_object(folder: pathlib.Path) -> None:
    """What CuFile tells of itself, and closing."""
    file = cufile.CuFile(str(folder / "object"), "w+")
    check(not file.is_open and file.get_handle() is None, "a file that was not opened")
    file.open()
    file.open()
    check(file.is_open and file.get_handle() >= 0, "an open file")
    file.close()
    file.close()
    check(not file.is_open, "a closed file")
    check(cufile.CuFileDriver() is cufile.CuFileDriver(), "one driver")


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: cufile_python_client.py FOLDER [LIBRARY]")
    check_library(sys.argv[2] if len(sys.argv) == 3 else None)
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as scratch:
        folder = pathlib.Path(scratch)
        check_bindings(folder)
        ok(f"all {len(CALLED)} functions of cufile.bindings, {Memory.kind}")
        check_modes(folder)
        ok("CuFile: the modes r, r+, w, w+; a and a+ are refused")
        ok(f"CuFile with O_DIRECT: {check_direct_io(folder)}")
        check_object(folder)
        ok("CuFile: opening and closing")


if __name__ == "__main__":
    main()
