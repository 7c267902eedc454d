#!/usr/bin/env python3
"""Measures how fast penstock.kv stores and fetches blocks, compared with the same bytes as one batch from a plain file.

    bench/kv_bench.py                              256 blocks of 2 MiB and 4,096 of 64 KiB, each in 32 pieces; in GPU memory if there is a GPU
    bench/kv_bench.py --folder DIR --device cpu --pieces 1 --json FILE
    bench/kv_bench.py --apart                      the pieces of a block are not adjacent, as in a cache with one tensor per layer

Rows with "stream" queue the blocks on a CUDA stream and wait for it. In "hot" rows the store is in the page cache; "cold" rows drop it before each
run. GB/s are 10^9 bytes per second, for the best of --repeat runs, with the process's CPU seconds per GB. The fetched bytes are compared. Requires
PyTorch and the package penstock.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
BLOCKS = ((2 * MIB, 256), (64 << 10, 4096))


def drop_from_cache(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def best_of(repeat: int, total: int, run: Callable[[], Any], before: Callable[[], None] = lambda: None) -> dict[str, float]:
    best = {"gb_per_s": 0.0, "cpu_s_per_gb": 0.0}
    for _ in range(repeat):
        before()
        cpu, begin = time.process_time(), time.perf_counter()
        run()
        rate = total / (time.perf_counter() - begin) / 1e9
        if rate > best["gb_per_s"]:
            best = {"gb_per_s": rate, "cpu_s_per_gb": (time.process_time() - cpu) / total * 1e9}
    return best


def places(size: int, count: int, pieces: int, apart: bool) -> list[list[int]]:
    """Returns where the pieces of each block are: adjacent, or each next to the same piece of other blocks."""
    part = size // pieces
    return [[(k * count + i if apart else i * pieces + k) * part for k in range(pieces)] for i in range(count)]


def measure(folder: Path, size: int, count: int, pieces: int, apart: bool, device: str, repeat: int) -> list[dict[str, Any]]:
    import penstock
    import torch
    from penstock import kv

    total = size * count
    content = torch.randint(0, 256, (total,), dtype=torch.uint8, device=device)
    memory = torch.zeros_like(content)
    part = size // pieces
    lie = places(size, count, pieces, apart)

    def blocks_in(memory: Any) -> dict[str, list[Any]]:
        return {f"block-{i}": [memory[at : at + part] for at in starts] for i, starts in enumerate(lie)}

    given, wanted = blocks_in(content), blocks_in(memory)
    found: list[dict[str, Any]] = []

    def tell(row: str, best: dict[str, float]) -> None:
        found.append({"row": row, "block_bytes": size, "blocks": count, "pieces": pieces, "apart": apart, "device": device, **best})
        told = f"{best['gb_per_s']:6.1f} GB/s  {best['cpu_s_per_gb']:.3f} CPU s/GB"
        print(f"{row:10} {count:5} x {size >> 10:5} KiB in {pieces:2} pieces{' apart' if apart else ''}, {device}: {told}", flush=True)

    def check() -> None:
        settle()
        assert torch.equal(memory, content), "the bytes are wrong"
        memory.zero_()
        settle()

    def settle() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    settle()
    with kv.Store(folder / f"store-{size}", 2 * total) as store:
        tell("put", best_of(repeat, total, lambda: store.put(given)))
        store.sync()
        tell("get hot", best_of(repeat, total, lambda: store.get(wanted)))
        check()
        if device != "cpu":
            stream = torch.cuda.Stream()
            tell("put stream", best_of(repeat, total, lambda: store.put(given, stream=stream)))
            tell("get stream", best_of(repeat, total, lambda: store.get(wanted, stream=stream)))
            check()
        values = folder / f"store-{size}" / "data"
        tell("get cold", best_of(repeat, total, lambda: store.get(wanted), lambda: drop_from_cache(values)))
        check()
    plain = folder / f"plain-{size}"
    penstock.tofile(content.view(pieces, count, part).transpose(0, 1).contiguous() if apart else content, plain)
    offsets, targets = list(range(0, total, part)), [at for starts in lie for at in starts]
    with penstock.open(plain) as file:
        ranges = [part] * len(offsets)
        tell("batch hot", best_of(repeat, total, lambda: file.pread_ranges(memory, offsets, ranges, targets).result()))
        check()
        tell("batch cold", best_of(repeat, total, lambda: file.pread_ranges(memory, offsets, ranges, targets).result(), lambda: drop_from_cache(plain)))
        check()
    plain.unlink()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, help="folder for the stores (default: a temporary one)")
    parser.add_argument("--device", help="PyTorch device (default: a GPU if there is one)")
    parser.add_argument("--pieces", type=int, default=32, help="pieces per block")
    parser.add_argument("--apart", action="store_true", help="the pieces of a block are not adjacent")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of blocks")
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    try:
        import torch
    except ImportError as missing:
        print(f"kv_bench: {missing}")
        return 0
    device = told.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    found = []
    with tempfile.TemporaryDirectory(dir=told.folder) as folder:
        for size, count in BLOCKS:
            found += measure(Path(folder), size, max(1, round(count * told.scale)), told.pieces, told.apart, device, told.repeat)
    if told.json:
        told.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
