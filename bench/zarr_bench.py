#!/usr/bin/env python3
"""Measures how fast zarr arrays are read, plain and compressed: by zarr from its own store, Penstock's and KvikIO's, and by penstock.zarr.load.

    bench/zarr_bench.py                          4 GiB in chunks of 1 MiB, into host memory, from a warm page cache
    bench/zarr_bench.py --device cuda:0          into GPU memory (requires cupy; nvCOMP and KvikIO's store are measured if installed)
    bench/zarr_bench.py --sets zstd,lz4          only these arrays, of plain, zstd, lz4, blosc, gzip and shards (of zstd; default plain,zstd)
    bench/zarr_bench.py --size 256M --json       one JSON object per row

Each row is the best of --repeat reads, or of as many as fit into --seconds; the data of the last read is checked. GB/s are 10^9 decoded bytes per
second; CPU is this process's user and system time per GB. Compressed arrays alternate between noise and constant bytes and shrink to about half
their size. Below each set are Penstock's speeds as multiples of zarr's own best row. In the rows "fused", zarr uses its FusedCodecPipeline (zarr 3.3
and later, which require Python 3.12), otherwise its default. Two rows are limits: zarr's cost per chunk if the store already has the memory, and
reading the chunk files into existing memory with plain readinto().
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numcodecs
import numpy as np
import zarr
from zarr.core import codec_pipeline
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, MemoryStore

import penstock.zarr
from penstock.zarr import GDSStore, _nvcomp, _on_gpu

# Settings for zarr's FusedCodecPipeline, which runs one task per chunk instead of several coroutines. Empty before zarr 3.3.
FUSED = {"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"} if hasattr(codec_pipeline, "FusedCodecPipeline") else {}
SETS = ("plain", "zstd", "lz4", "blosc", "gzip", "shards")


class Row(NamedTuple):
    name: str
    read: Callable[[], Any]
    checked: bool = True
    kind: str = ""  # "zarr" or "penstock": of rows that are compared


class UngatheredStore(GDSStore):
    """A GDSStore that makes one request per get, to show what combining them gains."""

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Buffer | None:
        return await asyncio.to_thread(self.get_sync, key, prototype=prototype, byte_range=byte_range)


class ReadyStore(MemoryStore):
    """A store with one chunk in memory, which it returns for every chunk's key."""

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
    if arguments.group:
        _on_gpu.MOST_DECODED_BYTES = arguments.group
    correct = True
    for name in arguments.sets.split(","):
        folder = tempfile.mkdtemp(prefix="penstock-zarr-bench-", dir=arguments.folder)
        try:
            correct &= run(arguments, name, folder)
        finally:
            shutil.rmtree(folder)
    return 0 if correct else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=size_of, default=4 << 30, help="size of the array in bytes, or with K, M, G (default 4G)")
    parser.add_argument("--chunk", type=size_of, default=1 << 20, help="size of a chunk, in the same form (default 1M)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, or host:0 (load only; default cpu)")
    parser.add_argument("--sets", default="plain,zstd", help=f"arrays to read, separated by commas: {', '.join(SETS)}")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.5, help="repeat a row for at most this long (default 2.5)")
    parser.add_argument("--group", type=size_of, default=0, help="decoded bytes per call of nvCOMP (default: the same as load)")
    parser.add_argument("--rows", default="", help="only rows whose names contain one of these words, separated by commas")
    parser.add_argument("--all", action="store_true", help="also measure zarr with other settings")
    parser.add_argument("--folder", help="folder for the array (default: the folder for temporary files)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def size_of(text: str) -> int:
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def run(arguments: argparse.Namespace, name: str, folder: str) -> bool:
    """Returns True if all rows of a set returned the right data."""
    rows = max(1, arguments.size // arguments.chunk)
    shape = (rows, arguments.chunk // 4)
    array, expected, stored = make(folder, name, shape)
    nbytes = int(array.nbytes)
    measured = plain_rows(arguments, folder, array) if name == "plain" else packed_rows(arguments, folder, array)
    words = arguments.rows.split(",")
    measured = [row for row in measured if any(word in row.name for word in words)]
    if not arguments.json:
        packed = "" if name == "plain" else f", {stored / nbytes:.2f} of it stored"
        print(f"{name}: zarr {zarr.__version__}, {nbytes / 1e9:.2f} GB in {rows} chunks of {arguments.chunk} bytes{packed}, into {arguments.device}")
        print(f"  {penstock.zarr.explain(array, device=arguments.device)}")
    correct = True
    best: dict[str, float] = {}
    with zarr_on(arguments.device):
        for row in measured:
            took, values = best_of(row.read, arguments.repeat, arguments.seconds)
            right = not row.checked or check(values, expected)
            del values
            correct &= right
            report(name, row.name, took, nbytes, right, arguments.json)
            speed = nbytes / 1e9 / took[0]
            key = "zarr" if row.kind == "zarr" else row.name
            if row.kind:
                best[key] = max(best.get(key, 0.0), speed)
    if not arguments.json and "zarr" in best:
        for each, speed in best.items():
            if each != "zarr":
                print(f"  {each}: {speed / best['zarr']:.2f} x zarr's own best row")
    return correct


def reader(
    store: Callable[[], Any], concurrency: int, chunks_at_once: int = 1, installed: bool = False, pipeline: dict[str, str] | None = None
) -> Callable[[], Any]:
    """Reads the whole array with zarr, into the kind of memory that zarr is configured for."""
    settings: dict[str, Any] = {"async.concurrency": concurrency, "codec_pipeline.batch_size": chunks_at_once, **(pipeline or {})}

    def read() -> Any:
        with zarr.config.set(settings):
            if not installed:
                return zarr.open_array(store(), mode="r")[...]
            with penstock.zarr.install():
                return zarr.open_array(store(), mode="r")[...]

    return read


def plain_rows(arguments: argparse.Namespace, folder: str, array: zarr.Array[Any]) -> list[Row]:
    def loaded(out: Any = None) -> Any:
        return penstock.zarr.load(array, device=arguments.device, out=out)

    ready_out = loaded()
    ready_store = ReadyStore({"zarr.json": metadata_of(folder)}, arguments.chunk)
    more = (10, 64) if arguments.all else (64,)
    rows = [Row(f"zarr, LocalStore, concurrency {n}", reader(lambda: LocalStore(folder), n), kind="zarr") for n in more]
    rows += [Row(f"zarr, GDSStore, concurrency {n}", reader(lambda: GDSStore(folder), n)) for n in more]
    rows.append(Row("zarr, GDSStore, concurrency 10, batch_size 16", reader(lambda: GDSStore(folder), 10, 16)))
    if FUSED:
        rows.append(Row("zarr, LocalStore, fused", reader(lambda: LocalStore(folder), 10, pipeline=FUSED), kind="zarr"))
        rows.append(Row("zarr, GDSStore, fused", reader(lambda: GDSStore(folder), 10, pipeline=FUSED), kind="penstock"))
    rows.append(Row("zarr, GDSStore, penstock.zarr.install()", reader(lambda: GDSStore(folder), 10, installed=True), kind="penstock"))
    if arguments.all:
        rows += [
            Row(f"zarr, GDSStore without gathering, concurrency {n}", reader(lambda: UngatheredStore(folder), n)) for n in (10, 64)
        ]
    rows += of_kvikio(folder, more) if arguments.device.startswith("cuda:") else []
    rows += [
        Row("penstock.zarr.load", loaded, kind="penstock"),
        Row("penstock.zarr.load into out", lambda: loaded(ready_out), kind="penstock"),
        Row("limit: zarr, a store with ready memory", reader(lambda: ready_store, 10), False),
        Row("limit: the same, batch_size 16", reader(lambda: ready_store, 10, 16), False),
    ]
    if arguments.device == "cpu":
        rows.append(Row("limit: readinto() of each chunk file", lambda: plain(folder, array.shape[0], ready_out)))
    return rows


def packed_rows(arguments: argparse.Namespace, folder: str, array: zarr.Array[Any]) -> list[Row]:
    on_gpu = arguments.device.startswith("cuda:")

    def loaded(decode: str) -> Callable[[], Any]:
        return lambda: penstock.zarr.load(array, device=arguments.device, decode=decode)

    def then_copied(read: Callable[[], Any]) -> Callable[[], Any]:
        def read_and_copy() -> Any:
            import cupy

            with zarr.config.set(_CPU_BUFFERS):
                values = read()
            return cupy.asarray(values)

        return read_and_copy

    rows = []
    for concurrency, chunks_at_once in [(10, 1), (64, 1), *([(10, 16)] if arguments.all else [])]:
        read = reader(lambda: LocalStore(folder), concurrency, chunks_at_once)
        words = f"concurrency {concurrency}" + (f", batch_size {chunks_at_once}" if chunks_at_once > 1 else "")
        rows.append(Row(f"zarr, LocalStore, {words}", read, kind="zarr"))
        if on_gpu:
            rows.append(Row(f"zarr into NumPy, then cupy.asarray, {words}", then_copied(read), kind="zarr"))
    if FUSED:
        rows.append(Row("zarr, LocalStore, fused", reader(lambda: LocalStore(folder), 10, pipeline=FUSED), kind="zarr"))
        rows.append(Row("zarr, GDSStore, fused", reader(lambda: GDSStore(folder), 10, pipeline=FUSED), kind="penstock"))
    rows.append(Row("zarr, GDSStore, penstock.zarr.install()", reader(lambda: GDSStore(folder), 10, installed=True), kind="penstock"))
    rows.append(Row("penstock.zarr.load, the CPU decodes", loaded("cpu"), kind="penstock"))
    if on_gpu and (why := _nvcomp.problem()):
        print(f"nvCOMP is skipped: {why}", file=sys.stderr)
    elif on_gpu and penstock.zarr.explain(array, device=arguments.device, decode="gpu").decoder == "gpu":
        rows.append(Row("penstock.zarr.load, nvCOMP decodes", loaded("gpu"), kind="penstock"))
    return rows


# Reverts zarr.config.enable_gpu().
_CPU_BUFFERS = {"buffer": "zarr.buffer.cpu.Buffer", "ndbuffer": "zarr.buffer.cpu.NDBuffer"}


def of_kvikio(folder: str, concurrencies: tuple[int, ...]) -> list[Row]:
    """Measures KvikIO's own store, if it is installed."""
    try:
        from kvikio.zarr import GDSStore as KvikioStore
    except ImportError as error:
        print(f"KvikIO's GDSStore is skipped: {error}", file=sys.stderr)
        return []
    rows = [Row(f"zarr, KvikIO's GDSStore, concurrency {n}", reader(lambda: KvikioStore(folder), n)) for n in concurrencies]
    return [*rows, Row("zarr, KvikIO's GDSStore, concurrency 10, batch_size 16", reader(lambda: KvikioStore(folder), 10, 16))]


def make(folder: str, name: str, shape: tuple[int, int]) -> tuple[zarr.Array[Any], np.ndarray[Any, Any], int]:
    """Creates an array. Returns it, a checksum for each row, and the size of its chunk files."""
    codecs: dict[str, Any] = {
        "plain": (None, None),
        "zstd": (zarr.codecs.ZstdCodec(level=1), numcodecs.Zstd(1)),
        "lz4": (None, numcodecs.LZ4()),
        "blosc": (zarr.codecs.BloscCodec(cname="zstd", clevel=1, shuffle="shuffle"), numcodecs.Blosc("zstd", 1)),
        "gzip": (zarr.codecs.GzipCodec(level=1), numcodecs.GZip(1)),
        "shards": (zarr.codecs.ZstdCodec(level=1), None),
    }
    codec, encoder = codecs[name]
    options: dict[str, Any] = {"compressors": codec}
    if name == "lz4":
        from zarr.codecs.numcodecs import LZ4

        options["compressors"] = LZ4()
    if name == "shards":
        options["shards"] = (min(64, shape[0]), shape[1])
    array = zarr.create_array(LocalStore(folder), shape=shape, chunks=(1, shape[1]), dtype="f4", **options)
    sums = np.empty(shape[0])
    stored = 0
    if name == "shards":
        for start in range(0, shape[0], options["shards"][0]):
            piece = np.concatenate([values_of(row, shape[1], True) for row in range(start, min(start + options["shards"][0], shape[0]))])
            array[start : start + len(piece)] = piece
            sums[start : start + len(piece)] = row_sums(piece)
        stored = sum(os.path.getsize(os.path.join(at, file)) for at, _, files in os.walk(folder) for file in files)
        return array, sums, stored

    def write(row: int) -> int:
        values = values_of(row, shape[1], name != "plain")
        sums[row] = row_sums(values)[0]
        data = values.tobytes() if encoder is None else encoder.encode(values)
        os.makedirs(f"{folder}/c/{row}", exist_ok=True)
        with open(f"{folder}/c/{row}/0", "wb") as file:
            return file.write(data)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        stored = sum(pool.map(write, range(shape[0])))
    return array, sums, stored


def values_of(row: int, count: int, compressible: bool) -> np.ndarray[Any, Any]:
    """One row of the array. Compressible: 128 bytes of noise in the lower 3 bytes of each number, then 128 bytes without."""
    generator = np.random.default_rng(row)
    if not compressible:
        return generator.random((1, count), dtype=np.float32)
    noise = np.frombuffer(generator.bytes(4 * count), np.uint32) & np.uint32(0x7FFFFF)
    noise[np.arange(count) % 64 >= 32] = 0
    return (noise + np.uint32(0x3F800000)).view(np.float32).reshape(1, count)


def row_sums(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    sums: np.ndarray[Any, Any] = values.view(np.uint32).sum(axis=1, dtype=np.float64)
    return sums


def check(values: Any, expected: np.ndarray[Any, Any]) -> bool:
    if isinstance(values, penstock.DeviceBuffer):
        values = np.frombuffer(values.to_host(), "f4").reshape(len(expected), -1)
    elif hasattr(values, "__cuda_array_interface__"):
        return bool(np.array_equal(values.view(np.uint32).sum(axis=1, dtype=np.uint64).get(), expected.astype(np.uint64)))
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


def best_of(read: Callable[[], Any], repeat: int, seconds: float) -> tuple[tuple[float, float], Any]:
    """Returns the seconds and CPU seconds of the fastest read, and the result of the last one."""
    best = (float("inf"), 0.0)
    values = None
    begun = time.perf_counter()
    for _ in range(repeat):
        values = None  # freed before the next is made
        cpu, start = time.process_time(), time.perf_counter()
        values = read()
        took = (time.perf_counter() - start, time.process_time() - cpu)
        best = min(best, took)
        if time.perf_counter() - begun > seconds:
            break
    return best, values


def report(set_name: str, name: str, took: tuple[float, float], nbytes: int, right: bool, as_json: bool) -> None:
    speed, cpu = nbytes / 1e9 / took[0], took[1] / (nbytes / 1e9)
    if as_json:
        print(json.dumps({"set": set_name, "name": name, "gb_per_s": round(speed, 3), "cpu_s_per_gb": round(cpu, 4), "correct": right}))
    else:
        print(f"  {name:55} {speed:8.2f} GB/s {cpu:7.3f} CPU s/GB{'' if right else '  WRONG DATA'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
