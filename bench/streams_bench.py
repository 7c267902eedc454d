#!/usr/bin/env python3
"""Measures many reads into GPU memory that are all queued onto streams before one wait: libcufile and Python's calls, compared with futures.

    bench/streams_bench.py                          a file of 1 GiB in a temporary folder, in the page cache
    bench/streams_bench.py --folder DIR --gib 4 --sizes 64KiB,1MiB --json FILE

For each size: cuFileReadAsync on one stream registered with all flags for fixed values, on four such streams, and on an unregistered stream;
File.read_on_stream; futures of File.pread; and the same ranges as one batch, which is the ceiling. GB/s are 10^9 bytes per second, for the best
of --repeat runs; CPU seconds are of the whole process, per GB; "queue" is the time per call. Bytes are compared after each row.
Requires a GPU, PyTorch and the package penstock, whose libcufile.so.0 is used.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20
FIXED = 0x7  # CU_FILE_STREAM_FIXED_BUF_OFFSET, _FILE_OFFSET and _FILE_SIZE
SIZES = "64KiB,256KiB,1MiB,4MiB,16MiB"


class CuFileError(ctypes.Structure):
    _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]


class Descr(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("fd", ctypes.c_void_p), ("fs_ops", ctypes.c_void_p)]


class CuFile:
    """The functions of libcufile.so.0 that this benchmark uses."""

    def __init__(self) -> None:
        import penstock

        found = next(Path(penstock.__file__).parent.rglob("libcufile.so.0"))
        self._library = ctypes.CDLL(str(found))
        for name in ("cuFileDriverOpen", "cuFileHandleRegister", "cuFileStreamRegister", "cuFileReadAsync"):
            getattr(self._library, name).restype = CuFileError
        self._library.cuFileReadAsync.argtypes = [ctypes.c_void_p] * 7
        self.call("cuFileDriverOpen")

    def call(self, name: str, *arguments: Any) -> None:
        told = getattr(self._library, name)(*arguments)
        if told.err:
            raise RuntimeError(f"{name}: {told.err} (cuda {told.cu_err})")

    def handle(self, path: Path) -> int:
        descr = Descr(1, os.open(path, os.O_RDONLY), None)
        handle = ctypes.c_void_p()
        self.call("cuFileHandleRegister", ctypes.byref(handle), ctypes.byref(descr))
        assert handle.value is not None
        return handle.value

    def register(self, stream: Any) -> None:
        self.call("cuFileStreamRegister", ctypes.c_void_p(stream.cuda_stream), FIXED)

    def reads(self, handle: int, base: int, streams: list[Any], size: int, total: int) -> Callable[[], float]:
        """What queues all reads, in turn onto the streams, and waits. Returns the seconds that queueing took."""
        count = total // size
        sizes = (ctypes.c_size_t * count)(*[size] * count)
        offsets = (ctypes.c_int64 * count)(*range(0, count * size, size))
        done = (ctypes.c_ssize_t * count)()
        columns = (sizes, offsets, offsets, done)
        rows = [[ctypes.addressof(each) + 8 * i for each in columns] + [streams[i % len(streams)].cuda_stream] for i in range(count)]
        read = self._library.cuFileReadAsync

        def queue_and_wait(_kept: Any = columns) -> float:
            ctypes.memset(done, 0, ctypes.sizeof(done))
            begin = time.perf_counter()
            for row in rows:
                if read(handle, base, *row).err:
                    raise RuntimeError("cuFileReadAsync failed")
            queued = time.perf_counter() - begin
            for stream in streams:
                stream.synchronize()
            assert all(each == size for each in done)
            return queued

        return queue_and_wait


def python_reads(file: Any, memory: Any, stream: Any, size: int, total: int) -> Callable[[], float]:
    def queue_and_wait() -> float:
        begin = time.perf_counter()
        results = [file.read_on_stream(memory, stream, at, size, at) for at in range(0, total, size)]
        queued = time.perf_counter() - begin
        stream.synchronize()
        assert all(each.bytes == size for each in results)
        return queued

    return queue_and_wait


def futures(file: Any, memory: Any, size: int, total: int) -> Callable[[], float]:
    def queue_and_wait() -> float:
        begin = time.perf_counter()
        begun = [file.pread(memory, at, size, at) for at in range(0, total, size)]
        queued = time.perf_counter() - begin
        assert all(each.result() == size for each in begun)
        return queued

    return queue_and_wait


def batch(file: Any, memory: Any, size: int, total: int) -> Callable[[], float]:
    offsets = list(range(0, total, size))

    def queue_and_wait() -> float:
        begin = time.perf_counter()
        begun = file.pread_ranges(memory, offsets, [size] * len(offsets), offsets)
        queued = time.perf_counter() - begin
        assert sum(begun.result()) == total
        return queued

    return queue_and_wait


def rows(path: Path, memory: Any, size: int, total: int, library: CuFile, handle: int, fixed: list[Any]) -> Iterator[tuple[str, Callable[[], float]]]:
    import penstock
    import torch

    base, other = memory.data_ptr(), torch.cuda.Stream()
    file = penstock.open(path)
    yield "cuFileReadAsync, fixed", library.reads(handle, base, fixed[:1], size, total)
    yield "the same, four streams", library.reads(handle, base, fixed, size, total)
    yield "cuFileReadAsync", library.reads(handle, base, [other], size, total)
    yield "File.read_on_stream", python_reads(file, memory, other, size, total)
    yield "futures", futures(file, memory, size, total)
    yield "one batch", batch(file, memory, size, total)


def measured(run: Callable[[], float], total: int, calls: int, repeat: int) -> dict[str, float]:
    best: dict[str, float] = {"gb_per_s": 0.0}
    for _ in range(repeat):
        cpu, begin = time.process_time(), time.perf_counter()
        queued = run()
        rate = total / (time.perf_counter() - begin) / 1e9
        if rate > best["gb_per_s"]:
            best = {"gb_per_s": rate, "cpu_s_per_gb": (time.process_time() - cpu) / total * 1e9, "queue_us": queued / calls * 1e6}
    return best


def size_of(text: str) -> int:
    number, unit = text[:-3], text[-3:]
    return int(number) * {"KiB": 1 << 10, "MiB": MIB}[unit]


def make_file(path: Path, total: int) -> None:
    if path.exists() and path.stat().st_size == total:
        return
    with open(path, "wb") as file:
        file.writelines(os.urandom(MIB) for _ in range(total // MIB))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, help="folder for the file, which is kept (default: a temporary folder)")
    parser.add_argument("--gib", type=int, default=1)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    try:
        import torch
    except ImportError as missing:
        print(f"streams_bench: {missing}")
        return 0
    if not torch.cuda.is_available():
        print("streams_bench: no GPU")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        path = (told.folder or Path(temporary)) / "streams.bin"
        total = told.gib << 30
        make_file(path, total)
        content = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)  # brings it into the page cache, too
        memory = torch.zeros(total, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        library = CuFile()
        handle = library.handle(path)
        fixed = [torch.cuda.Stream() for _ in range(4)]
        for each in fixed:
            library.register(each)
        found = []
        for text in told.sizes.split(","):
            size = size_of(text)
            for name, run in rows(path, memory, size, total, library, handle, fixed):
                best = measured(run, total, total // size, told.repeat)
                right = torch.equal(memory.cpu(), content)
                memory.zero_()
                torch.cuda.synchronize()
                found.append({"row": name, "size": size, "bytes_are_right": right, **best})
                print(
                    f"{name:24} {text:>7} {best['gb_per_s']:6.1f} GB/s  {best['cpu_s_per_gb']:.3f} CPU s/GB  queue {best['queue_us']:.1f} us"
                    + ("" if right else "  WRONG BYTES"),
                    flush=True,
                )
        if told.json:
            told.json.write_text(json.dumps(found, indent=1) + "\n")
        return 0 if all(each["bytes_are_right"] for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
