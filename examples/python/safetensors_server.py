#!/usr/bin/env python3
"""The start of an inference server: a model in shards, with its index, goes from disk to where it will run, and answers.

    safetensors_server.py [FOLDER] [--device DEVICE] [--ranks N] [--mib MIB]

FOLDER: of a model with model.safetensors.index.json, or model.safetensors (default: a small one is made, of MIB, and removed again).
DEVICE: where to (default: the first GPU, else the host). On a GPU the tensors are PyTorch's where that is installed, else CuPy's.
N: of how many servers this is one, each with its part of the large tensors (tensor parallel); all N are started here, one after the other.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock.safetensors import load_file, save_file

LAYERS = 4


def make_model(folder: Path, mib: int) -> None:
    """Shards of a layer each, as a trainer would leave them."""
    width = max(16, int((mib * (1 << 20) / LAYERS / 2 / 4) ** 0.5) // 16 * 16)
    numbers = np.random.default_rng(1)
    weight_map = {}
    for layer in range(LAYERS):
        name = f"model-{layer + 1:05}-of-{LAYERS:05}.safetensors"
        tensors = {f"layers.{layer}.{part}.weight": numbers.random((width, width), "f4") for part in ("up", "down")}
        tensors[f"layers.{layer}.norm.weight"] = np.ones(width, "f4")
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def part_of(ranks: int, rank: int) -> Any:
    """Large tensors are divided by their rows, where these go to the ranks alike; everybody has the others."""

    def wanted(name: str, shape: tuple[int, ...]) -> Any:
        return (0, rank, ranks) if len(shape) == 2 and shape[0] % ranks == 0 else None

    return wanted if ranks > 1 else None


def start(folder: Path, device: str, rank: int, ranks: int) -> None:
    framework = "np" if device == "cpu" else "pt" if importlib.util.find_spec("torch") else "cupy"
    if device.startswith("host:"):
        framework = "bytes"
    began = time.perf_counter()
    weights = load_file(folder, device, framework, slices=part_of(ranks, rank))
    took = time.perf_counter() - began
    nbytes = sum(len(each) if isinstance(each, (bytes, penstock.DeviceBuffer)) else each.nbytes for each in weights.values())
    print(f"rank {rank} of {ranks}: {len(weights)} tensors, {nbytes / 1e6:.1f} MB on {device} in {took * 1e3:.1f} ms: {nbytes / took / 1e9:.2f} GB/s")
    if framework != "bytes":
        sums = [float(each.sum()) for name, each in weights.items() if name.endswith("norm.weight")]
        print(f"  ready; the norms sum up to {sum(sums):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--mib", type=int, default=64)
    told = parser.parse_args()
    names = [each.name for each in penstock.devices()]
    device = told.device or next((name for name in names if name.startswith("cuda:")), "cpu")
    with tempfile.TemporaryDirectory() as temporary:
        folder = told.folder or Path(temporary)
        if told.folder is None:
            make_model(folder, told.mib)
        for rank in range(told.ranks):
            start(folder, device, rank, told.ranks)


if __name__ == "__main__":
    main()
