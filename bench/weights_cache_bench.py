#!/usr/bin/env python3
"""Measures a start from a cache of finished weights (penstock.weights_cache), compared with load_into() and with the link.

Usage: weights_cache_bench.py [--gb 8] [--device cuda:0] [--folder FOLDER] [--runs 5]

Each line is one figure: name, GB/s (median of the runs), and milliseconds. Needs PyTorch, Penstock, and twice the size in the folder and in memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import penstock
import penstock.safetensors
from penstock.weights_cache import WeightsCache, _digest

LARGE_BYTES = 117 << 20  # weights of a layer of an 8B model
SMALL_BYTES = 8192  # norms and scales; eight of them for each weight


def parameters(total_bytes: int, device: str) -> dict[str, Any]:
    found = {}
    for number in range(max(1, total_bytes // (LARGE_BYTES + 8 * SMALL_BYTES))):
        found[f"layers.{number}.weight"] = torch.randint(-128, 127, (LARGE_BYTES // 4096, 4096), dtype=torch.int8, device=device)
        for each in range(8):
            found[f"layers.{number}.scale{each}"] = torch.rand(SMALL_BYTES // 4, device=device)
    return found


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def measured(name: str, nbytes: int, device: str, runs: int, call: Callable[[], Any]) -> None:
    seconds = []
    for _ in range(runs):
        synchronize(device)
        began = time.perf_counter()
        call()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    print(f"{name:44} {nbytes / median / 1e9:7.2f} GB/s {median * 1e3:9.1f} ms   first {seconds[0] * 1e3:.1f}, best {min(seconds) * 1e3:.1f}", flush=True)


# A new process, as after a restart. PyTorch and CUDA are initialized before the clock starts.
FRESH = """
import sys, time, torch
folder, device = sys.argv[1:]
synchronize = torch.cuda.synchronize if device != "cpu" else lambda: None
torch.zeros(1, device=device)
synchronize()
began = time.perf_counter()
from penstock.weights_cache import WeightsCache
cache = WeightsCache(folder + "/cache")
imported = time.perf_counter()
key = cache.key({}, [folder + "/source"])
found = cache.load(key)
synchronize()
ended = time.perf_counter()
nbytes = sum(each.nbytes for each in found.values())
print(f"{nbytes / (ended - began) / 1e9:7.2f} GB/s {(ended - began) * 1e3:9.1f} ms   import {(imported - began) * 1e3:.1f}, key and load {(ended - imported) * 1e3:.1f}")
"""


def digest_of(tensors: list[Any]) -> bytes:
    found, row = _digest.Digest(), 0
    contents = []
    for each in tensors:
        contents.append((each.view(-1).view(torch.uint8), row))
        row += _digest.rows_in(each.nbytes)
    found.add(contents)
    return found.value()


def measure(folder: Path, total_bytes: int, device: str, runs: int) -> None:
    weights = parameters(total_bytes, device)
    nbytes = sum(each.nbytes for each in weights.values())
    cache = WeightsCache(folder / "cache", capacity_bytes=4 * nbytes, free_bytes=0)
    source = folder / "source"
    source.write_bytes(bytes(64 << 20))
    measured("hash of a new 64 MiB source file (CPU)", 64 << 20, "cpu", 1, lambda: cache.key({}, [source]))
    key = cache.key({}, [source])

    def save() -> None:
        assert cache.save(key, weights)

    def load() -> None:
        found = cache.load(key)
        assert found is not None
        kept[:] = [found]

    kept: list[Any] = []
    measured("store (digest, write, fsync, rename)", nbytes, device, 1, save)
    measured("second start: load with digest", nbytes, device, runs, load)
    assert all(torch.equal(kept[0][name], each) for name, each in weights.items()), "the weights differ"
    kept.clear()
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", FRESH, str(folder), device], capture_output=True, text=True, check=True)
        print(f"{'second start in a fresh process, with import':44} {ended.stdout.rstrip()}", flush=True)
    (entry,) = (folder / "cache").glob("*.safetensors")
    targets = {name: torch.empty(each.nbytes, dtype=torch.uint8, device=device) for name, each in zip((f"{i:08d}" for i in range(len(weights))), weights.values())}
    measured("load_into() of the same bytes", nbytes, device, runs, lambda: penstock.safetensors.load_into(entry, targets, strict=False))
    targets.clear()

    measured(f"digest alone on {device}", nbytes, device, runs, lambda: digest_of(list(weights.values())))
    some = list(weights.values())[:9]
    assert digest_of(some) == digest_of([each.cpu() for each in some]), "the digests of the device and of the CPU differ"
    if device.startswith("cuda"):
        host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(1 << 30, dtype=torch.uint8, device=device)
        measured("link: one copy of 1 GiB of pinned memory", 1 << 30, device, runs, lambda: target.copy_(host, non_blocking=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=8)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--folder", help="the folder of the cache (default: /dev/shm, or the folder for temporary files if /dev/shm is too small)")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print(f"penstock {penstock.__version__}, PyTorch {torch.__version__}, {torch.cuda.get_device_name() if options.device.startswith('cuda') else 'CPU'}", flush=True)
    memory = os.statvfs("/dev/shm")
    has_room = memory.f_bavail * memory.f_frsize > options.gb * 1.5e9
    folder = Path(tempfile.mkdtemp(prefix="weights-cache-", dir=options.folder or ("/dev/shm" if has_room else None)))
    print(f"folder {folder}", flush=True)
    try:
        measure(folder, int(options.gb * 1e9), options.device, options.runs)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
