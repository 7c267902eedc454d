#!/usr/bin/env python3
"""Measures how fast the Python package moves bytes from a hot file, compared with the hardware's ceiling and with the libraries that it can replace.

    bench/python_bench.py                        into the first GPU, or into the host device if there is none
    bench/python_bench.py --size 256M --json     one JSON object per row

Rows whose library (CuPy, PyTorch, KvikIO) is missing are skipped, with the reason. Each row is the best of --repeat runs, and its bytes are
compared. GB/s are 10^9 bytes per second; CPU is this process's user and system time per GB; us are per range or call.
The ceiling is a 64 MiB copy from pinned memory to the GPU, measured with CuPy; on the host device, one thread's os.preadv into existing memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock import gds, kvikio

RANGES = 10_000
RANGE_BYTES = 4096


@dataclass
class Row:
    name: str
    gb_per_s: float | None = None
    cpu_s_per_gb: float | None = None
    us: float | None = None
    fraction: float | None = None  # of the ceiling
    skipped: str | None = None


class Bench:
    def __init__(self, path: Path, content: np.ndarray[Any, Any], device: str, repeat: int) -> None:
        self.path, self.content, self.device, self.repeat = path, content, device, repeat
        self.nbytes = content.nbytes
        self.target = penstock.device(device).empty(self.nbytes)
        self.ceiling = 0.0

    def best(self, call: Callable[[], object]) -> tuple[float, float]:
        """Returns the seconds and CPU seconds of the fastest call."""
        found = (float("inf"), 0.0)
        for _ in range(self.repeat):
            cpu, began = time.process_time(), time.perf_counter()
            call()
            found = min(found, (time.perf_counter() - began, time.process_time() - cpu))
        return found

    def wipe(self) -> None:
        self.target.copy_from(np.zeros(self.nbytes, dtype=np.uint8))

    def check(self, seen: bytes, expected: np.ndarray[Any, Any], name: str) -> None:
        if not np.array_equal(np.frombuffer(seen, dtype=np.uint8), expected):
            raise SystemExit(f"{name}: the bytes are wrong")

    def large(self, name: str, call: Callable[[], object], nbytes: int | None = None) -> Row:
        size = self.nbytes if nbytes is None else nbytes
        seconds, cpu = self.best(call)
        speed = size / seconds / 1e9
        return Row(name, speed, cpu / size * 1e9, None, speed / self.ceiling if self.ceiling else None)

    def read_whole(self, name: str, call: Callable[[], object]) -> Row:
        self.wipe()
        row = self.large(name, call)
        self.check(self.target.to_host(), self.content, name)
        return row

    # --- rows

    def raw(self) -> Row:
        if not self.device.startswith("cuda"):
            memory = np.zeros(self.nbytes, dtype=np.uint8)
            with open(self.path, "rb", buffering=0) as file:
                row = self.large("ceiling: os.preadv, one thread", lambda: os.preadv(file.fileno(), [memory.data], 0))
        else:
            import cupy

            size = 64 << 20
            with cupy.cuda.Device(int(self.device.split(":")[1])):
                pinned = cupy.cuda.alloc_pinned_memory(size)
                memory = cupy.empty(size, dtype=cupy.uint8)
                stream = cupy.cuda.Stream(non_blocking=True)

                def copies() -> None:
                    for _ in range(16):
                        memory.data.copy_from_host_async(pinned.ptr, size, stream)
                    stream.synchronize()

                row = self.large("ceiling: pinned memory to the GPU, 64 MiB", copies, 16 * size)
        self.ceiling = row.gb_per_s or 0.0
        row.fraction = 1.0
        return row

    def native_read(self) -> Row:
        with penstock.open(self.path) as file:
            return self.read_whole("penstock read_into, one call", lambda: file.read_into(self.target))

    def kvikio_read(self) -> Row:
        with kvikio.CuFile(self.path) as file:
            return self.read_whole("penstock.kvikio CuFile.read, one call", lambda: file.read(self.target))

    def offsets(self) -> list[int]:
        shuffled = random.Random(1)
        blocks = self.nbytes // RANGE_BYTES
        return [shuffled.randrange(blocks) * RANGE_BYTES for _ in range(RANGES)]

    def scattered(self, name: str, call: Callable[[list[int]], object]) -> Row:
        offsets = self.offsets()
        self.wipe()
        seconds, _ = self.best(lambda: call(offsets))
        seen = self.target.to_host()
        wanted = np.concatenate([self.content[at : at + RANGE_BYTES] for at in offsets])
        self.check(seen[: RANGES * RANGE_BYTES], wanted, name)
        return Row(name, us=seconds / RANGES * 1e6)

    def futures(self) -> Row:
        with penstock.open(self.path) as file:

            def call(offsets: list[int]) -> None:
                waiting = [file.pread(self.target, at, RANGE_BYTES, i * RANGE_BYTES) for i, at in enumerate(offsets)]
                for each in waiting:
                    each.result()

            return self.scattered(f"{RANGES} random 4 KiB pread futures", call)

    def ranges(self) -> Row:
        sizes = np.full(RANGES, RANGE_BYTES, dtype=np.int64)
        into = np.arange(RANGES, dtype=np.int64) * RANGE_BYTES
        with penstock.open(self.path) as file:
            return self.scattered(
                f"{RANGES} random 4 KiB ranges, one read_ranges",
                lambda offsets: file.read_ranges(self.target, np.array(offsets, dtype=np.int64), sizes, into),
            )

    def small_call(self) -> Row:
        memory = np.zeros(RANGE_BYTES, dtype=np.uint8)
        count = 20_000
        with penstock.open(self.path) as file:

            def call() -> None:
                for _ in range(count):
                    file.read_into(memory)

            seconds, _ = self.best(call)
        return Row("4 KiB read_into host memory", us=seconds / count * 1e6)

    def raw_small_call(self) -> Row:
        memory = np.zeros(RANGE_BYTES, dtype=np.uint8)
        count = 20_000
        with open(self.path, "rb", buffering=0) as file:
            descriptor = file.fileno()

            def call() -> None:
                for _ in range(count):
                    os.preadv(descriptor, [memory.data], 0)

            seconds, _ = self.best(call)
        return Row("4 KiB os.preadv", us=seconds / count * 1e6)

    def storages(self) -> list[Row]:
        try:
            import torch
        except ImportError:
            return [Row("load_storage", skipped="PyTorch is not installed")]
        if not (self.device.startswith("cuda") and torch.cuda.is_available()):
            return [Row("load_storage", skipped="PyTorch has no CUDA GPU")]
        storage = torch.empty(self.nbytes, dtype=torch.uint8, device=self.device).untyped_storage()
        file = gds.GdsFile(str(self.path), os.O_RDONLY)
        rows = [self.large("penstock.gds load_storage", lambda: file.load_storage(storage))]
        seen = torch.tensor([], dtype=torch.uint8, device=self.device).set_(storage).cpu().numpy()
        self.check(seen.tobytes(), self.content, "load_storage")
        try:
            other = torch.cuda.gds.GdsFile(str(self.path), os.O_RDONLY)
            rows.append(self.large("torch.cuda.gds load_storage", lambda: other.load_storage(storage)))
        except RuntimeError as error:
            rows.append(Row("torch.cuda.gds load_storage", skipped=str(error).splitlines()[0]))
        return rows

    def real_kvikio(self) -> list[Row]:
        try:
            import cupy
            import kvikio as real
            import kvikio.defaults
        except ImportError as error:
            return [Row("KvikIO as installed", skipped=str(error))]
        memory = cupy.empty(self.nbytes, dtype=cupy.uint8)
        with real.CuFile(str(self.path)) as file:
            rows = [self.large("KvikIO as installed", lambda: file.read(memory))]
            with real.defaults.set({"num_threads": 8, "task_size": 16 << 20, "bounce_buffer_size": 16 << 20}):
                rows.append(self.large("KvikIO, 8 threads, 16 MiB tasks", lambda: file.read(memory)))
            places = [memory[i * RANGE_BYTES : (i + 1) * RANGE_BYTES] for i in range(RANGES)]

            def call(offsets: list[int]) -> None:
                waiting = [file.pread(place, RANGE_BYTES, at) for place, at in zip(places, offsets)]
                for each in waiting:
                    each.get()

            offsets = self.offsets()
            seconds, _ = self.best(lambda: call(offsets))
            rows.append(Row(f"KvikIO, {RANGES} random 4 KiB pread futures", us=seconds / RANGES * 1e6))
        return rows

    def rows(self) -> list[Row]:
        rows = [self.raw(), self.native_read(), self.kvikio_read(), *self.real_kvikio(), self.futures(), self.ranges()]
        return [*rows, self.raw_small_call(), self.small_call(), *self.storages()]


def size_of(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


def show(row: Row) -> str:
    if row.skipped:
        return f"{row.name:45} skipped: {row.skipped}"
    parts = []
    if row.gb_per_s is not None:
        parts.append(f"{row.gb_per_s:7.2f} GB/s  {row.cpu_s_per_gb:6.3f} CPU s/GB")
    if row.fraction is not None:
        parts.append(f"{row.fraction:5.2f} of the ceiling")
    if row.us is not None:
        parts.append(f"{row.us:7.2f} us")
    return f"{row.name:45} " + "  ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=size_of, default=4 << 30, help="size of the file in bytes, or with K, M, G (default 4G)")
    parser.add_argument("--device", help="cuda:N or host:0 (default: the first GPU, else host:0)")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", help="folder for the file (default: the folder for temporary files)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    device = arguments.device or penstock.devices()[0].name
    content = np.random.default_rng(1).integers(0, 256, arguments.size, dtype=np.uint8)
    with tempfile.TemporaryDirectory(prefix="penstock-python-bench-", dir=arguments.folder) as folder:
        path = Path(folder) / "data"
        with open(path, "wb", buffering=0) as file:
            for start in range(0, content.nbytes, 16 << 20):  # large pieces, for large folios in the page cache
                file.write(content[start : start + (16 << 20)])
        for row in Bench(path, content, device, arguments.repeat).rows():
            print(json.dumps(asdict(row)) if arguments.json else show(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
