#!/usr/bin/env python3
"""Weights in half precision on a device that has no room for the model and its copy: each is cast as it comes, while more are read.

    safetensors_weights.py [FOLDER] [--device DEVICE] [--mib MIB]

At most MIB of the model are in memory at a time beside the weights that are kept. The weight iterators of inference engines are like stream(): pairs
of name and tensor, which the engine renames, merges, quantises or copies into its own.
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
from penstock.safetensors import save_file, stream


def half_weights(folder: Path, framework: str, device: str, most_bytes: int) -> dict[str, Any]:
    weights = {}
    for name, tensor in stream(folder, device=device, framework=framework, max_device_bytes=most_bytes, max_host_bytes=most_bytes):
        weights[name] = tensor.half() if framework == "pt" else tensor.astype("f2")
    return weights


def make_model(folder: Path, shards: int, mib: int) -> None:
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        tensors = {f"layers.{shard}.{i}.weight": np.full(((mib << 20) // 64, 4), shard * 10 + i, "f4") for i in range(4)}
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--mib", type=int, default=8)
    told = parser.parse_args()
    gpus = [each.name for each in penstock.devices() if each.name.startswith("cuda:")]
    device = told.device or (gpus[0] if gpus else "cpu")
    framework = "np" if device == "cpu" else "pt" if importlib.util.find_spec("torch") else "cupy"
    with tempfile.TemporaryDirectory() as temporary:
        folder = told.folder or Path(temporary)
        if told.folder is None:
            make_model(folder, 4, 4 * told.mib)
        began = time.perf_counter()
        weights = half_weights(folder, framework, device, told.mib << 20)
        took = time.perf_counter() - began
    if told.folder is None:
        for name, weight in weights.items():
            _, shard, place, _ = name.split(".")
            assert int(weight[0, 0]) == int(weight[-1, -1]) == int(shard) * 10 + int(place)
    total = sum(each.nbytes for each in weights.values())
    print(f"{len(weights)} weights, {total / 1e6:.1f} MB in half precision, on {device} in {took * 1e3:.1f} ms; {told.mib} MiB of the model at a time")


if __name__ == "__main__":
    main()
