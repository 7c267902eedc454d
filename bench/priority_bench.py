#!/usr/bin/env python3
"""Measures how long reads take that a thread waits for, while other requests write.

    bench/priority_bench.py                        2 MiB reads from the page cache; into GPU memory if there is a GPU, otherwise into host memory
    bench/priority_bench.py --folder DIR --device host --cold --seconds 10 --json FILE

One thread reads random blocks and waits for each. Rows: only the reads; the reads and concurrent writes, 30 % of all blocks, started with pwrite()
without waiting; and the same with the writes in the background (priority="background"). At most --behind writes are in flight; further writes
are skipped and counted. Each row runs --rounds times in turn, and the medians of its figures are shown: the 50th and 99th percentiles of the read
times, and the bytes read and written. Requires the package penstock.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import penstock

MIB = 1 << 20
BLOCK = 2 * MIB
WRITES_PER_READ = 0.3 / 0.7
ROWS = {"alone": None, "writes beside": "normal", "writes in the background": "background"}


def memory_on(device: str, size: int) -> Any:
    if device == "host":
        memory = bytearray(size)
        memory[::4096] = b"\1" * len(memory[::4096])  # its pages are there
        return memory
    return penstock.device(device).empty(size)


def drop_from_cache(file: penstock.File) -> None:
    file.sync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Run:
    """One row, one time."""

    def __init__(self, source: penstock.File, target: penstock.File, arguments: argparse.Namespace, priority: str | None) -> None:
        self._source, self._target, self._priority = source, target, priority
        self._blocks = source.size() // BLOCK
        self._cold = arguments.cold
        self._random = random.Random(arguments.seed)
        self._read_into = memory_on(arguments.device, BLOCK)
        self._free = [memory_on(arguments.device, BLOCK) for _ in range(arguments.behind)] if priority else []
        self._under_way: list[tuple[Any, Any]] = []
        self._wanted = 0.0
        self._at = self.written = self.left_out = 0
        self.times: list[float] = []

    def go_on_for(self, seconds: float) -> dict[str, float]:
        begin = time.perf_counter()
        while (now := time.perf_counter()) - begin < seconds:
            if self._priority:
                self._write_behind()
                now = time.perf_counter()
            self._source.read_into(self._read_into, self._random.randrange(self._blocks) * BLOCK, cache="bypass" if self._cold else None)
            self.times.append(time.perf_counter() - now)
        took = time.perf_counter() - begin
        self._collect(wait=True)
        self.times.sort()
        return {
            "p50_us": self._time_of(0.5),
            "p99_us": self._time_of(0.99),
            "read_gb_per_s": len(self.times) * BLOCK / took / 1e9,
            "written_gb_per_s": self.written * BLOCK / (time.perf_counter() - begin) / 1e9,
            "writes_left_out": self.left_out / max(1, self.left_out + self.written),
        }

    def _time_of(self, share: float) -> float:
        return self.times[min(len(self.times) - 1, int(len(self.times) * share))] * 1e6

    def _write_behind(self) -> None:
        self._collect(wait=False)
        self._wanted += WRITES_PER_READ
        while self._wanted >= 1:
            self._wanted -= 1
            if not self._free:
                self.left_out += 1
                continue
            memory = self._free.pop()
            future = self._target.pwrite(memory, self._at % self._blocks * BLOCK, priority=self._priority)  # type: ignore[arg-type]
            self._at += 1
            self._under_way.append((future, memory))

    def _collect(self, wait: bool) -> None:
        left = []
        for future, memory in self._under_way:
            if wait or future.done():
                future.result()
                self.written += 1
                self._free.append(memory)
            else:
                left.append((future, memory))
        self._under_way = left


def measure(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    size = arguments.blocks * BLOCK
    found: dict[str, list[dict[str, float]]] = {row: [] for row in ROWS}
    with penstock.open(folder / "read", "w+") as source, penstock.open(folder / "written", "w+", direct=arguments.direct) as target:
        content = os.urandom(BLOCK)
        for file in (source, target):
            for at in range(0, size, BLOCK):
                file.write_from(content, at)
            file.sync()
        for _ in range(arguments.rounds):
            for row, priority in ROWS.items():
                if arguments.cold:
                    drop_from_cache(source)
                found[row].append(Run(source, target, arguments, priority).go_on_for(arguments.seconds))
                target.sync()
    return [{"row": row, **{name: statistics.median(each[name] for each in runs) for name in runs[0]}} for row, runs in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    gpu = next((each.name for each in penstock.devices() if each.name.startswith("cuda")), "host")
    parser.add_argument("--folder", type=Path, help="parent of the folder for the files (default: the folder for temporary files)")
    parser.add_argument("--device", default=gpu, help="'host', 'host:0' or 'cuda:0' (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=256, help="2 MiB blocks per file (default: %(default)s)")
    parser.add_argument("--behind", type=int, default=16, help="most writes in flight (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per row (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="drop the file from the page cache before reading, and bypass the cache")
    parser.add_argument("--direct", action="store_true", help="bypass the page cache when writing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        rows = measure(Path(folder), arguments)
    alone = rows[0]["p99_us"]
    for each in rows:
        print(
            f"{each['row']:25} half {each['p50_us']:8.0f} us  99 % {each['p99_us']:8.0f} us ({each['p99_us'] / alone:5.1f} of alone)  "
            f"read {each['read_gb_per_s']:5.2f} GB/s  written {each['written_gb_per_s']:5.2f} GB/s, {each['writes_left_out']:4.0%} left out"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"device": arguments.device, "block_bytes": BLOCK, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
