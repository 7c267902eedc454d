#!/usr/bin/env python3
"""How fast one uncompressed zarr array is read: by zarr from its own store, from penstock's and KvikIO's, and by penstock.zarr.load.

    bench/zarr_bench.py                          4 GiB in chunks of 1 MiB, into host memory, from a warm page cache
    bench/zarr_bench.py --device cuda:0          into the memory of a GPU (needs cupy; KvikIO's store is measured where installed)
    bench/zarr_bench.py --size 256M --json       one JSON object per row

Each row is the best of --repeat reads, the data of the first is checked. GB/s are 10^9 bytes per second; CPU is user and system time of
this process per GB. Two rows are no readers but limits: what zarr costs per chunk when the store has the memory ready, and the chunk
files read with plain readinto() into memory that is there already.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, MemoryStore

import penstock.zarr
from penstock.zarr import GDSStore


class UngatheredStore(GDSStore):
    """GDSStore with a request of its own for each get: what gathering gains."""

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Buffer | None:
        return await asyncio.to_thread(self.get_sync, key, prototype=prototype, byte_range=byte_range)


class ReadyStore(MemoryStore):
    """Has one chunk in memory and gives it for the key of every chunk."""

    def __init__(self, metadata: dict[str, Buffer], chunk_bytes: int) -> None:
        super().__init__(metadata, read_only=True)
        self._chunk = np.ones(chunk_bytes, dtype=np.uint8)
        self._ready: dict[type[Buffer], Buffer] = {}

    def with_read_only(self, read_only: bool = False) -> ReadyStore:
        return self

    async def get(self, key: str, prototype: BufferPrototype | None = None, byte_range: Any = None) -> Buffer | None:
        if prototype is None or not key.startswith("c/"):
            return await super().get(key, prototype, byte_range)
        if prototype.buffer not in self._ready:
            self._ready[prototype.buffer] = prototype.buffer.from_bytes(self._chunk.tobytes())
        return self._ready[prototype.buffer]


def main() -> int:
    arguments = parse_arguments()
    folder = tempfile.mkdtemp(prefix="penstock-zarr-bench-", dir=arguments.folder)
    try:
        return run(arguments, folder)
    finally:
        shutil.rmtree(folder)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=size_of, default=4 << 30, help="of the array: bytes, or with K, M, G (default 4G)")
    parser.add_argument("--chunk", type=size_of, default=1 << 20, help="of a chunk, likewise (default 1M)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, or host:0 (load only; default cpu)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", default="", help="only rows whose name holds one of these words, separated by commas")
    parser.add_argument("--folder", help="where to make the array (default: the folder for temporary files)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def size_of(text: str) -> int:
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def run(arguments: argparse.Namespace, folder: str) -> int:
    rows = max(1, arguments.size // arguments.chunk)
    shape = (rows, arguments.chunk // 4)
    array = zarr.create_array(LocalStore(folder), shape=shape, chunks=(1, shape[1]), dtype="f4", compressors=None)
    expected = write(array, shape)
    nbytes = int(array.nbytes)

    def opened(store: Any) -> zarr.Array[Any]:
        return zarr.open_array(store, mode="r")

    def of(store: Callable[[], Any], concurrency: int, chunks_at_once: int = 1) -> Callable[[], Any]:
        settings = {"async.concurrency": concurrency, "codec_pipeline.batch_size": chunks_at_once}

        def read() -> Any:
            with zarr.config.set(settings):
                return opened(store())[...]

        return read

    def loaded(out: Any = None) -> Any:
        return penstock.zarr.load(array, device=arguments.device, out=out)

    ready_out = loaded()
    ready_store = ReadyStore({"zarr.json": metadata_of(folder)}, arguments.chunk)
    measured: list[tuple[str, Callable[[], Any], bool]] = [
        (f"zarr, LocalStore, concurrency {n}", of(lambda: LocalStore(folder), n), True) for n in (10, 64)
    ]
    measured += [
        (f"zarr, GDSStore, concurrency {n}", of(lambda: GDSStore(folder), n), True) for n in (10, 64)
    ]
    measured.append(("zarr, GDSStore, concurrency 10, batch_size 16", of(lambda: GDSStore(folder), 10, 16), True))
    measured += [
        (f"zarr, GDSStore without gathering, concurrency {n}", of(lambda: UngatheredStore(folder), n), True) for n in (10, 64)
    ]
    measured += of_kvikio(folder, of) if arguments.device.startswith("cuda:") else []
    measured += [
        ("penstock.zarr.load", loaded, True),
        ("penstock.zarr.load into out", lambda: loaded(ready_out), True),
        ("limit: zarr, a store with ready memory", of(lambda: ready_store, 10), False),
        ("limit: the same, batch_size 16", of(lambda: ready_store, 10, 16), False),
    ]
    if arguments.device == "cpu":
        measured.append(("limit: readinto() of each chunk file", lambda: plain(folder, rows, ready_out), True))

    words = arguments.rows.split(",")
    measured = [row for row in measured if any(word in row[0] for word in words)]
    if not arguments.json:
        print(f"zarr {zarr.__version__}, {nbytes / 1e9:.2f} GB in {rows} chunks of {arguments.chunk} bytes, into {arguments.device}")
    correct = True
    with zarr_on(arguments.device):
        for name, read, checked in measured:
            right = not checked or check(read(), expected)
            correct &= right
            report(name, best_of(read, arguments.repeat), nbytes, right, arguments.json)
    return 0 if correct else 1


def of_kvikio(folder: str, of: Callable[..., Callable[[], Any]]) -> list[tuple[str, Callable[[], Any], bool]]:
    """The rows of KvikIO's own store, where it is installed."""
    try:
        from kvikio.zarr import GDSStore as KvikioStore
    except ImportError as error:
        print(f"KvikIO's GDSStore is left out: {error}", file=sys.stderr)
        return []
    rows = [(f"zarr, KvikIO's GDSStore, concurrency {n}", of(lambda: KvikioStore(folder), n), True) for n in (10, 64)]
    return [*rows, ("zarr, KvikIO's GDSStore, concurrency 10, batch_size 16", of(lambda: KvikioStore(folder), 10, 16), True)]


def write(array: zarr.Array[Any], shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Fills the array a piece at a time; returns a sum per row to check by."""
    generator = np.random.default_rng(1)
    sums = np.empty(shape[0])
    step = max(1, (64 << 20) // (shape[1] * 4))
    for start in range(0, shape[0], step):
        piece = generator.random((min(step, shape[0] - start), shape[1]), dtype=np.float32)
        array[start : start + step] = piece
        sums[start : start + step] = row_sums(piece)
    return sums


def row_sums(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    sums: np.ndarray[Any, Any] = values.view(np.uint32).sum(axis=1, dtype=np.float64)
    return sums


def check(values: Any, expected: np.ndarray[Any, Any]) -> bool:
    if isinstance(values, penstock.DeviceBuffer):
        values = np.frombuffer(values.to_host(), "f4").reshape(len(expected), -1)
    elif hasattr(values, "__cuda_array_interface__"):
        values = values.get()
    return bool(np.array_equal(row_sums(values), expected))


def metadata_of(folder: str) -> Buffer:
    from zarr.core.buffer import cpu

    with open(os.path.join(folder, "zarr.json"), "rb") as file:
        return cpu.Buffer.from_bytes(file.read())


def plain(folder: str, rows: int, out: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    for row in range(rows):
        with open(f"{folder}/c/{row}/0", "rb", buffering=0) as file:
            file.readinto(memoryview(out[row]).cast("B"))
    return out


@contextmanager
def zarr_on(device: str) -> Iterator[None]:
    """Makes zarr read into the memory of a CUDA device."""
    if not device.startswith("cuda:"):
        yield
        return
    import cupy

    with cupy.cuda.Device(int(device.removeprefix("cuda:"))), zarr.config.enable_gpu():
        yield


def best_of(read: Callable[[], Any], repeat: int) -> tuple[float, float]:
    """Seconds and CPU seconds of the fastest read."""
    best = (float("inf"), 0.0)
    for _ in range(repeat):
        cpu, start = time.process_time(), time.perf_counter()
        values = read()
        took = (time.perf_counter() - start, time.process_time() - cpu)
        del values
        best = min(best, took)
    return best


def report(name: str, took: tuple[float, float], nbytes: int, right: bool, as_json: bool) -> None:
    speed, cpu = nbytes / 1e9 / took[0], took[1] / (nbytes / 1e9)
    if as_json:
        print(json.dumps({"name": name, "gb_per_s": round(speed, 3), "cpu_s_per_gb": round(cpu, 4), "correct": right}))
    else:
        print(f"{name:55} {speed:8.2f} GB/s {cpu:7.3f} CPU s/GB{'' if right else '  WRONG DATA'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
