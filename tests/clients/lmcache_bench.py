"""How fast LMCache's GDS L1 stores and retrieves over libcufile, beside the same byte ranges as Penstock's futures and as one batch.

Every chunk of the slab is queued on one stream, then one wait. Each row is the median of its repeats, and its bytes were compared.
"""

import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any, Callable

from client import check, check_library, mapped_libraries, skip, why_no_gpu

MIB = 1 << 20
CHUNKS = (16 * MIB, 2 * MIB, MIB, 64 << 10)
COLUMNS = ("LMCache store", "retrieve", "futures store", "retrieve", "batch store", "retrieve")


def start_over_penstock() -> None:
    """Starts this program again under `penstock run`, unless it runs under it. The package penstock must be installed."""
    if not mapped_libraries():
        os.execv(sys.executable, [sys.executable, "-m", "penstock", "run", "--", sys.executable, *sys.argv])


def rate(work: Callable[[], None], before: Callable[[], None], size: int, repeats: int) -> float:
    """GB/s, the median. before is not counted."""
    seconds = []
    for _ in range(repeats):
        before()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return size / statistics.median(seconds) / 1e9


def file_equals(path: pathlib.Path, tensor: Any) -> bool:
    import torch

    with open(path, "rb", buffering=0) as file:
        for at in range(0, tensor.numel(), 256 * MIB):
            part = tensor[at : at + 256 * MIB].cpu()
            if not torch.equal(torch.frombuffer(bytearray(file.read(part.numel())), dtype=torch.uint8), part):
                return False
    return True


def measure(path: pathlib.Path, buffer: Any, store: Callable[[], None], retrieve: Callable[[], None], repeats: int, what: str) -> list[float]:
    """Both ways, with fresh bytes in the file each time."""
    import torch

    def refill() -> None:
        buffer.random_(0, 256)
        torch.cuda.synchronize()

    def empty() -> None:
        buffer.zero_()
        torch.cuda.synchronize()

    stored = rate(store, refill, buffer.numel(), repeats)
    check(file_equals(path, buffer), f"{what}: the file differs from what was stored")
    wanted = buffer.clone()
    retrieved = rate(retrieve, empty, buffer.numel(), repeats)
    check(torch.equal(buffer, wanted), f"{what}: memory differs from the file")
    return [stored, retrieved]


def through_lmcache(slab: Any, chunks: list[Any], stream: Any, is_write: bool) -> Callable[[], None]:
    def work() -> None:
        slab.queue(chunks, is_write)
        stream.synchronize()

    return work


def as_futures(call: Callable[..., Any], buffer: Any, ranges: list[tuple[int, int]]) -> Callable[[], None]:
    def work() -> None:
        for future in [call(buffer, at, size, at) for at, size in ranges]:
            future.result()

    return work


def as_batch(call: Callable[..., Any], buffer: Any, ranges: list[tuple[int, int]]) -> Callable[[], None]:
    offsets, sizes = [at for at, _ in ranges], [size for _, size in ranges]
    return lambda: call(buffer, offsets, sizes, offsets)


def write_once(slab: Any, stream: Any) -> None:
    """So that no row is the one that pays for the slab's first blocks."""
    chunks = slab.allocate(CHUNKS[0], slab.buffer.numel() // CHUNKS[0])
    through_lmcache(slab, chunks, stream, True)()
    slab.manager.free(chunks)


def row(slab: Any, stream: Any, file: Any, chunk_bytes: int, repeats: int) -> list[float]:
    buffer = slab.buffer
    path = pathlib.Path(slab.context._slab_path)
    chunks = slab.allocate(chunk_bytes, buffer.numel() // chunk_bytes)
    ranges = [(chunk.slab_offset, chunk_bytes) for chunk in chunks]
    ways = {
        "LMCache": (through_lmcache(slab, chunks, stream, True), through_lmcache(slab, chunks, stream, False)),
        "futures": (as_futures(file.pwrite, buffer, ranges), as_futures(file.pread, buffer, ranges)),
        "batch": (as_batch(file.write_ranges, buffer, ranges), as_batch(file.read_ranges, buffer, ranges)),
    }
    found: list[float] = []
    for name, (store, retrieve) in ways.items():
        found += measure(path, buffer, store, retrieve, repeats, f"{name}, chunks of {chunk_bytes}")
    slab.manager.free(chunks)
    return found


def run(scratch: pathlib.Path, slab_bytes: int, repeats: int) -> None:
    """Prints a table for each way to open the slab. scratch: a folder on the disk to measure. slab_bytes: a multiple of 16 MiB."""
    missing = why_no_gpu()
    if missing:
        skip(f"the slab's calls follow a CUDA stream: {missing}")
    import penstock
    import torch
    from lmcache_client import Slab

    check_library(None)
    print(f"{torch.cuda.get_device_name(0)}; slab of {slab_bytes // MIB} MiB; GB/s, medians of {repeats}")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        buffer = torch.empty(slab_bytes, dtype=torch.uint8, device="cuda")
        for direct_io in (False, True):
            print(f"\n{'O_DIRECT' if direct_io else 'page cache'}\n{'chunk':>10}" + "".join(f"{each:>15}" for each in COLUMNS))
            folder = pathlib.Path(tempfile.mkdtemp(dir=scratch))
            slab = Slab(folder, slab_bytes, buffer, direct_io)
            write_once(slab, stream)
            with penstock.open(slab.context._slab_path, "r+", direct=direct_io) as file:
                for chunk_bytes in CHUNKS:
                    figures = row(slab, stream, file, chunk_bytes, repeats)
                    print(f"{chunk_bytes // 1024:>6} KiB" + "".join(f"{figure:>15.2f}" for figure in figures), flush=True)
            slab.close()
            os.unlink(slab.context._slab_path)
