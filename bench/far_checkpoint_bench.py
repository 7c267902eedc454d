#!/usr/bin/env python3
"""Measures how fast checkpoints of many small tensors are loaded from a web server with latency: seconds, and the number of requests.

    bench/far_checkpoint_bench.py                                    10 ms, 300 tensors of 64 KiB in 4 files
    bench/far_checkpoint_bench.py --latency-ms 50 --tensors 1000 --rows penstock

The server is python/tests/range_server.py on loopback, which waits before each answer to GET. Each row loads the same tensors and compares them once.
Rows of other libraries: PyTorch's FsspecReader (requires aiohttp), and NumPy after a download of the whole archive.
Requires PyTorch and the package penstock.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

import penstock.torch
from penstock.safetensors.torch import load_file, save_file
from penstock.torch import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python/tests"))
import range_server

FILES = 4


class Latency(range_server.Gate):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def pass_through(self) -> None:
        time.sleep(self._seconds)


def write(folder: Path, tensors: dict[str, Any]) -> None:
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder / "dcp"))
    torch.save(tensors, folder / "a.pt")
    (folder / "model").mkdir()
    weights = {}
    for number in range(FILES):
        names = list(tensors)[number::FILES]
        save_file({name: tensors[name] for name in names}, folder / "model" / f"{number}.safetensors")
        weights.update(dict.fromkeys(names, f"{number}.safetensors"))
    (folder / "model/model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    np.savez(folder / "a.npz", **{name: each.numpy() for name, each in tensors.items()})
    np.savez_compressed(folder / "compressed.npz", **{name: each.numpy() for name, each in tensors.items()})


def with_dcp(reader: Callable[[str], Any], url: str, tensors: dict[str, Any]) -> dict[str, Any]:
    found = {name: torch.zeros_like(each) for name, each in tensors.items()}
    dcp.load(found, storage_reader=reader(url))
    return found


def with_numpy(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url) as answer:
        return dict(np.load(io.BytesIO(answer.read())))


def rows_of(url: str, tensors: dict[str, Any]) -> dict[str, Callable[[], dict[str, Any]]]:
    rows = {
        "penstock: DCP, PyTorch's format": lambda: with_dcp(checkpoint.FileSystemReader, f"{url}/dcp", tensors),
        "penstock: DCP, safetensors": lambda: with_dcp(checkpoint.HuggingFaceStorageReader, f"{url}/model", tensors),
        "penstock: torch.load": lambda: penstock.torch.load(f"{url}/a.pt"),
        "penstock: safetensors load_file": lambda: load_file(f"{url}/model"),
        "penstock: load, .npz": lambda: penstock.load(f"{url}/a.npz"),
        "penstock: load, .npz, compressed": lambda: penstock.load(f"{url}/compressed.npz"),
        "numpy.load, .npz downloaded": lambda: with_numpy(f"{url}/a.npz"),
    }
    if importlib.util.find_spec("aiohttp") is not None:
        from torch.distributed.checkpoint.fsspec_filesystem import FsspecReader  # its name since PyTorch 2.9

        rows["FsspecReader: DCP, PyTorch's format"] = lambda: with_dcp(FsspecReader, f"{url}/dcp", tensors)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency-ms", type=float, default=10)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--kib", type=int, default=64)
    parser.add_argument("--rows", default="", help="only rows whose names contain this text")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # PyTorch's, about the missing process group
    tensors = {f"layer.{number}": torch.randn(asked.kib * 256) for number in range(asked.tensors)}
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), tensors)
        with range_server.serving(Path(name), Latency(asked.latency_ms / 1000)) as (url, requests):
            print(f"{'':40}{'seconds':>10}{'requests':>10}")
            for row, load in rows_of(url, tensors).items():
                if asked.rows not in row:
                    continue
                seconds = []
                for _ in range(3):
                    requests.clear()
                    start = time.perf_counter()
                    found = load()
                    seconds.append(time.perf_counter() - start)
                assert all(np.array_equal(np.asarray(found[name]), each.numpy()) for name, each in tensors.items()), row
                print(f"{row:40}{min(seconds):10.2f}{len(requests):10}", flush=True)


if __name__ == "__main__":
    main()
