#!/usr/bin/env python3
"""Measures reads from a file system that answers slowly, as network and cloud mounts do: Penstock's defaults compared with the best fixed depth.

    bench/late_mount_bench.py                          1 GiB on the benchmark's own FUSE file system, whose reads take 2 and 10 ms
    bench/late_mount_bench.py --latency-ms 10 --mib 256 --at-once 4 --max-read 131072 --no-direct --json FILE
    bench/late_mount_bench.py --file FILE              a file on an existing mount

No part of the file is cached before a row. "pread N" and "direct N" are N threads that each make one 1 MiB call after another, through the page
cache or bypassing it (O_DIRECT). The other rows are Penstock's, each in its own process, so that each must measure how slowly the mount answers:
in its first read, and again in a second one. "of best" is the fraction of the fastest fixed depth in the same run. MB/s are 10^6 bytes per
second, for the best of --repeat runs. Bytes are compared after each row.
Requires NumPy, the package penstock, /dev/fuse and the program in bench/late_mount (build target penstock_late_mount; --server sets its path).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20
PERIOD = MIB + 4096  # of the content of bench/late_mount/late_mount.cc
PIECE = MIB
RAW_DEPTHS = (1, 4, 8, 16, 32, 64, 128)
SERVER = Path(__file__).resolve().parent.parent / "build/release/bench/penstock_late_mount"


def drop(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def raw(path: str, size: int, depth: int, direct: bool) -> float:
    """Returns the seconds that this many threads take to read the file."""
    drop(path)
    memory = mmap.mmap(-1, size)
    memory.write(b"\1" * size)
    view = memoryview(memory)
    descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    offsets = iter(range(0, size, PIECE))
    lock = threading.Lock()

    def read() -> None:
        while True:
            with lock:
                at = next(offsets, None)
            if at is None:
                return
            os.preadv(descriptor, [view[at : at + PIECE]], at)

    threads = [threading.Thread(target=read) for _ in range(depth)]
    began = time.perf_counter()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    took = time.perf_counter() - began
    os.close(descriptor)
    return took


def whole(file: Any, memory: Any, size: int, **options: Any) -> None:
    assert file.read_into(memory, 0, size, **options) == size


def calls(file: Any, memory: Any, size: int) -> None:
    for at in range(0, size, PIECE):
        file.read_into(memory, at, PIECE, at)


def futures(file: Any, memory: Any, size: int) -> None:
    begun = [file.pread(memory, at, PIECE, at) for at in range(0, size, PIECE)]
    assert sum(each.result() for each in begun) == size


def many(file: Any, memory: Any, size: int) -> None:
    file.read_many([(memory, at, PIECE, at) for at in range(0, size, PIECE)])


def small(file: Any, memory: Any, size: int) -> None:
    """4 KiB of each 64 KiB."""
    file.read_many([(memory, at, 4096, at) for at in range(0, size, 65536)])


# Penstock's rows: what they read into, how, and which part of the file they read.
ROWS: dict[str, tuple[str, Callable[..., None], dict[str, Any], float]] = {
    "device, one call": ("host:0", whole, {}, 1),
    "device, one call, fill": ("host:0", whole, {"cache": "fill"}, 1),
    "device, one call, bypass": ("host:0", whole, {"cache": "bypass"}, 1),
    "NumPy, one call": ("numpy", whole, {}, 1),
    "device, 1 MiB calls": ("host:0", calls, {}, 1),
    "NumPy, 1 MiB calls": ("numpy", calls, {}, 1),
    "device, 1 MiB futures": ("host:0", futures, {}, 1),
    "NumPy, 1 MiB futures": ("numpy", futures, {}, 1),
    "device, read_many of 1 MiB": ("host:0", many, {}, 1),
    "NumPy, read_many of 1 MiB": ("numpy", many, {}, 1),
    "device, read_many of 4 KiB": ("host:0", small, {}, 1 / 16),
    "NumPy, read_many of 4 KiB": ("numpy", small, {}, 1 / 16),
}


def check(got: Any, size: int, step: int, length: int) -> None:
    import numpy as np

    # The file's first period and one more piece, read without Penstock.
    period = np.frombuffer(CONTENT, "u1")
    for at in range(0, size, step):
        first = at % PERIOD
        if not np.array_equal(got[at : at + length], period[first : first + length]):
            raise SystemExit(f"wrong bytes in {length} at {at}")


CONTENT = b""


def row(name: str, path: str, size: int, compare: bool) -> dict[str, Any]:
    import numpy as np
    import penstock

    where, how, options, share = ROWS[name]
    host = np.full(size, 1, "u1")
    device = penstock.device(where).empty(size) if where != "numpy" else None
    if device is not None:
        device.copy_from(host)  # as the host's memory, it has pages
    told: dict[str, Any] = {}
    if compare:
        global CONTENT
        with open(path, "rb") as file:
            CONTENT = file.read(PERIOD + PIECE)
    for run in ("first", "again"):
        drop(path)
        with penstock.open(path) as file:
            began = time.perf_counter()
            cpu = time.process_time()
            how(file, device if device is not None else host, size, **options)
            told[run] = size * share / (time.perf_counter() - began) / 1e6
            told[run + "_cpu"] = (time.process_time() - cpu) / (size * share / 1e9)
            if run == "again":
                told["explain"] = str(file.explain(device=where) if device is not None else file.explain(device="cpu"))
        if compare:
            if device is not None:
                device.copy_to(host)
            check(host, size, 65536 if how is small else PIECE, 4096 if how is small else PIECE)
            host.fill(1)
    return told


@contextlib.contextmanager
def mounted(server: Path, mib: int, latency_ms: float, at_once: int, max_read: int, no_direct: bool) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="penstock-late-") as folder:
        words = [str(server), folder, str(mib), str(int(latency_ms * 1000)), str(at_once), str(max_read)] + ["no_direct"] * no_direct
        process = subprocess.Popen(words)
        try:
            path = os.path.join(folder, "data")
            for _ in range(500):
                if os.path.exists(path) or process.poll() is not None:
                    break
                time.sleep(0.01)
            yield path
        finally:
            subprocess.run(["umount", "-l", folder] if os.geteuid() == 0 else ["fusermount3", "-u", "-z", folder], check=False)
            process.terminate()
            process.wait()


def run_row(name: str, path: str, mib: int, compare: bool) -> dict[str, Any] | None:
    words = [sys.executable, __file__, "--row", name, "--file", path, "--mib", str(mib)] + ["--no-compare"] * (not compare)
    ended = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if ended.returncode != 0:
        print(f"{name}: failed: {ended.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


def measure(asked: argparse.Namespace, path: str, what: str) -> dict[str, Any]:
    size = asked.mib * MIB
    print(f"\n{what}, {asked.mib} MiB\n{'':34}{'MB/s':>8}{'again':>8}{'of best':>9}{'again':>8}{'CPU s/GB':>10}")
    raws: dict[str, float] = {}
    for direct in (False, True) if not asked.no_direct else (False,):
        for depth in asked.depths:
            name = f"{'direct' if direct else 'pread'} {depth}"
            raws[name] = size / min(raw(path, size, depth, direct) for _ in range(asked.repeat)) / 1e6
            print(f"{name:34}{raws[name]:8.0f}", flush=True)
    best = max(raws.values(), default=0)
    rows: dict[str, Any] = {}
    for name in ROWS:
        if asked.rows and not any(each in name for each in asked.rows.split(";")):
            continue
        told = [each for each in (run_row(name, path, asked.mib, asked.compare) for _ in range(asked.repeat)) if each]
        if not told:
            continue
        top = {key: max(each[key] for each in told) for key in ("first", "again")}
        top |= {"cpu": min(each["again_cpu"] for each in told), "explain": told[-1]["explain"]}
        top |= {key + "_of_best": top[key] / best if best else 0 for key in ("first", "again")}
        rows[name] = top
        print(
            f"{name:34}{top['first']:8.0f}{top['again']:8.0f}{top['first_of_best']:9.2f}{top['again_of_best']:8.2f}{top['cpu']:10.2f}",
            flush=True,
        )
        if asked.explain:
            print(top["explain"])
    return {"mount": what, "mib": asked.mib, "raw": raws, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency-ms", default="2,10", help="latencies of a read, in ms")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--at-once", type=int, default=0, help="reads that the file system handles at a time; 0: any number")
    parser.add_argument("--max-read", type=int, default=0, help="most bytes per read; 0: the kernel's limit")
    parser.add_argument("--no-direct", action="store_true", help="use a file system that refuses O_DIRECT")
    parser.add_argument("--file", help="read this file, on an existing mount")
    parser.add_argument("--rows", help="only rows whose names contain one of these words, separated by semicolons")
    parser.add_argument("--depths", default=",".join(map(str, RAW_DEPTHS)))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--no-compare", dest="compare", action="store_false")
    parser.add_argument("--explain", action="store_true", help="print File.explain() after each row")
    parser.add_argument("--server", type=Path, default=SERVER)
    parser.add_argument("--json")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.depths = [int(each) for each in asked.depths.split(",") if each]
    if asked.row:
        print(json.dumps(row(asked.row, asked.file, asked.mib * MIB, asked.compare)))
        return
    told = []
    if asked.file:
        asked.mib, asked.compare = min(asked.mib, os.path.getsize(asked.file) // MIB), False
        told.append(measure(asked, asked.file, asked.file))
    else:
        for latency in map(float, asked.latency_ms.split(",")):
            with mounted(asked.server, asked.mib, latency, asked.at_once, asked.max_read, asked.no_direct) as path:
                told.append(measure(asked, path, f"reads take {latency:g} ms"))
    if asked.json:
        Path(asked.json).write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
