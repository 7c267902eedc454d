#!/usr/bin/env python3
"""KvikIO over libcufile, with its own compatibility mode off: every call of kvikio.CuFile on CuPy arrays, compared byte for byte.

Needs kvikio, CuPy and a GPU.

Usage: penstock run -- python3 kvikio_client.py FOLDER [LIBRARY]
FOLDER is written to. LIBRARY: the library file that must be in use.
"""

import os
import pathlib
import sys
import tempfile

from client import check, check_library, equal, ok, skip, why_no_gpu

os.environ["KVIKIO_COMPAT_MODE"] = "OFF"  # read when kvikio is loaded

GPU_MISSING = why_no_gpu()
if GPU_MISSING is not None:
    skip(f"KvikIO needs the CUDA driver: {GPU_MISSING}")
try:
    import cupy
    import kvikio
    import kvikio.defaults
    import numpy as np
except ImportError as problem:
    skip(f"kvikio or cupy cannot be imported: {problem}")

MIB = 1 << 20


def random_array(size: int, seed: int) -> "cupy.ndarray":
    return cupy.asarray(np.frombuffer(np.random.default_rng(seed).bytes(size), dtype="u1"))


def same(array: "cupy.ndarray", data: bytes, what: str) -> None:
    check(cupy.asnumpy(array).tobytes() == data, f"{what}: bytes differ")


def settled() -> None:
    """CuFile's calls follow no stream, CuPy's do."""
    cupy.cuda.runtime.deviceSynchronize()


def check_parallel(folder: pathlib.Path) -> None:
    """pwrite and pread: cut into tasks, done by KvikIO's threads."""
    size = 64 * MIB + 4321
    source = random_array(size, 1)
    data = cupy.asnumpy(source).tobytes()
    settled()
    with kvikio.CuFile(folder / "parallel", "w+") as file:
        equal(file.pwrite(source).get(), size, "pwrite")
        check((folder / "parallel").read_bytes() == data, "pwrite: the file differs")
        target = cupy.zeros_like(source)
        settled()
        equal(file.pread(target).get(), size, "pread")
        same(target, data, "pread")
        part = cupy.zeros(1000003, dtype="u1")
        settled()
        equal(file.pread(part, size=1000003, file_offset=12345, task_size=65536).get(), 1000003, "pread of a range aligned to nothing")
        same(part, data[12345 : 12345 + 1000003], "pread of a range aligned to nothing")


def check_raw(folder: pathlib.Path) -> None:
    """raw_write and raw_read: one cuFileWrite or cuFileRead each."""
    size = 3 * MIB + 777
    source = random_array(size, 2)
    data = cupy.asnumpy(source).tobytes()
    settled()
    with kvikio.CuFile(folder / "raw", "w+") as file:
        equal(file.raw_write(source), size, "raw_write")
        check((folder / "raw").read_bytes() == data, "raw_write: the file differs")
        target = cupy.zeros(size, dtype="u1")
        settled()
        equal(file.raw_read(target), size, "raw_read")
        same(target, data, "raw_read")
        kvikio.memory_register(target)
        settled()
        equal(file.raw_read(target, size=100001, file_offset=33, dev_offset=7), 100001, "raw_read with an offset in memory")
        same(target[7 : 7 + 100001], data[33 : 33 + 100001], "raw_read with an offset in memory")
        equal(file.raw_read(target, size=4096, file_offset=size - 100), 100, "raw_read at the end of the file")
        kvikio.memory_deregister(target)


def check_stream(folder: pathlib.Path) -> None:
    """raw_write_async and raw_read_async, in the order of a stream: the bytes written are those that a kernel made just before."""
    size = 8 * MIB + 5
    stream = cupy.cuda.Stream(non_blocking=True)
    with kvikio.CuFile(folder / "stream", "w+") as file, stream:
        source = cupy.arange(size, dtype="u8").astype("u1")
        equal(file.raw_write_async(source, stream.ptr).check_bytes_done(), size, "raw_write_async")
        stream.synchronize()
        data = cupy.asnumpy(source).tobytes()
        check((folder / "stream").read_bytes() == data, "raw_write_async: the file differs")
        target = cupy.zeros(size, dtype="u1")
        future = file.raw_read_async(target, stream.ptr)
        doubled = target + target  # queued behind the read
        equal(future.check_bytes_done(), size, "raw_read_async")
        stream.synchronize()
        same(target, data, "raw_read_async")
        same(doubled, ((np.frombuffer(data, dtype="u1") * 2) & 255).astype("u1").tobytes(), "work behind raw_read_async")


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: kvikio_client.py FOLDER [LIBRARY]")
    mode = kvikio.defaults.get("compat_mode")
    equal(mode, kvikio.CompatMode.OFF, "KvikIO's compatibility mode")
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as scratch:
        folder = pathlib.Path(scratch)
        check_parallel(folder)
        ok(f"kvikio {kvikio.__version__}, cupy {cupy.__version__}: pwrite and pread")
        check_library(sys.argv[2] if len(sys.argv) == 3 else None)
        check_raw(folder)
        ok("raw_write and raw_read")
        check_stream(folder)
        ok("raw_write_async and raw_read_async")


if __name__ == "__main__":
    main()
