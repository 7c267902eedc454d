#!/usr/bin/env python3
"""cuCIM's CuFileDriver: device, managed and pinned memory, unaligned pieces, and each way to open a file, compared byte for byte.

Needs cuCIM, CuPy and a GPU.

Usage: penstock run -- python3 cucim_client.py FOLDER [LIBRARY]
FOLDER is written to. LIBRARY: the library file that must be in use.
"""

import itertools
import os
import pathlib
import sys
from typing import Any

from client import check, check_library, equal, ok, skip, why_no_gpu

SIZE = (4 << 20) + 321
# (bytes, offset in the file, offset in the buffer)
PIECES = ((8, 0, 2), (10, 3, 0), (4096, 4096, 0), (4096, 4096, 4096), (100_001, 77, 4095), (1 << 20, 511, 1), ((2 << 20) + 1, 1 << 20, 4096))


def kinds_of_memory(cupy: Any, numpy: Any) -> dict[str, Any]:
    """Returns an array of SIZE bytes for each kind of memory."""
    managed = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)
    with cupy.cuda.using_allocator(managed.malloc):
        in_managed = cupy.zeros(SIZE, dtype="u1")
    pinned = numpy.frombuffer(cupy.cuda.alloc_pinned_memory(SIZE), dtype="u1", count=SIZE)
    return {"device": cupy.zeros(SIZE, dtype="u1"), "managed": in_managed, "pinned": pinned, "host": numpy.zeros(SIZE, dtype="u1")}


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: cucim_client.py FOLDER [LIBRARY]")
    missing = why_no_gpu()
    if missing:
        skip(f"cuCIM needs a GPU: {missing}")
    try:
        import cucim
        import cucim.clara.filesystem as filesystem
        import cupy
        import numpy
    except ImportError as problem:
        skip(f"cucim or cupy cannot be imported: {problem}")
    content = numpy.random.default_rng(1).integers(0, 256, SIZE, dtype="u1")
    source, target = pathlib.Path(sys.argv[1]) / "source", pathlib.Path(sys.argv[1]) / "target"
    content.tofile(source)
    bytes_of = {"device": cupy.asnumpy, "managed": cupy.asnumpy, "pinned": numpy.array, "host": numpy.array}
    memories = kinds_of_memory(cupy, numpy)

    for (kind, memory), mode in itertools.product(memories.items(), ("r", "rn")):
        with filesystem.open(str(source), mode) as file:
            for size, offset, start in PIECES:
                memory[:] = 255
                cupy.cuda.Device().synchronize()
                equal(file.pread(memory, size, offset, start), size, f"{kind}, {mode}: pread of {size} bytes at {offset}")
                wanted = numpy.full(SIZE, 255, dtype="u1")
                wanted[start : start + size] = content[offset : offset + size]
                same = numpy.array_equal(bytes_of[kind](memory), wanted)
                check(same, f"{kind}, {mode}: pread of {size} bytes at {offset} to {start}: bytes differ")
    check_library(sys.argv[2] if len(sys.argv) == 3 else None)
    ok(f"cuCIM {cucim.__version__}: {len(memories) * 2 * len(PIECES)} reads into {', '.join(memories)} memory")

    for (kind, memory), mode in itertools.product(memories.items(), ("w", "wn")):
        memory[:] = cupy.asarray(content) if kind in ("device", "managed") else content
        cupy.cuda.Device().synchronize()
        wanted = numpy.zeros(0, dtype="u1")
        with filesystem.open(str(target), mode) as file:
            for size, offset, start in PIECES:
                equal(file.pwrite(memory, size, offset, start), size, f"{kind}, {mode}: pwrite of {size} bytes at {offset}")
                wanted = numpy.concatenate([wanted, numpy.zeros(max(0, offset + size - len(wanted)), dtype="u1")])
                wanted[offset : offset + size] = content[start : start + size]
        check(numpy.array_equal(numpy.fromfile(target, dtype="u1"), wanted), f"{kind}, {mode}: the written file differs")
    ok(f"{len(memories) * 2 * len(PIECES)} writes")

    descriptor = os.open(source, os.O_RDONLY)
    with filesystem.CuFileDriver(descriptor) as file:
        equal(file.pread(memories["device"], 600, SIZE - 600, 0), 600, "pread up to the end of the file")  # a read across it never returns in cuCIM
    os.close(descriptor)
    ok("a descriptor of the caller")
    print(f"{4 * len(memories) * len(PIECES) + 1} transfers of {', '.join(memories)} memory")


if __name__ == "__main__":
    main()
