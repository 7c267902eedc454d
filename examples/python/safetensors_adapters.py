#!/usr/bin/env python3
"""Swapping adapters: a base model stays where it is, and its small adapters (LoRA) are read over each other, into the same memory.

    safetensors_adapters.py [--device DEVICE] [--adapters N] [--rank R] [--swaps S]

Nothing is allocated for a swap, so the addresses stay (CUDA graphs go on working) and memory does not break into pieces. DEVICE: the first GPU
(with PyTorch, else CuPy), or the host with NumPy.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock.safetensors import load_file, load_into, save_file

WIDTH, LAYERS = 1024, 8


def make_adapter(path: Path, number: int, rank: int) -> None:
    tensors = {}
    for layer in range(LAYERS):
        tensors[f"layers.{layer}.lora_A.weight"] = np.full((rank, WIDTH), number, "f4")
        tensors[f"layers.{layer}.lora_B.weight"] = np.full((WIDTH, rank), -number, "f4")
    save_file(tensors, path, {"adapter": str(number)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device")
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--swaps", type=int, default=20)
    told = parser.parse_args()
    gpus = [each.name for each in penstock.devices() if each.name.startswith("cuda:")]
    device = told.device or (gpus[0] if gpus else "cpu")
    framework = "np" if device == "cpu" else "pt" if importlib.util.find_spec("torch") else "cupy"
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"adapter-{number}.safetensors" for number in range(told.adapters)]
        for number, path in enumerate(paths):
            make_adapter(path, number, told.rank)
        active: dict[str, Any] = load_file(paths[0], device, framework)  # of a shape that all of them have
        began = time.perf_counter()
        for swap in range(told.swaps):
            number = swap % told.adapters
            load_into(paths[number], active)
            assert all(float(each[0, 0]) == (number if "lora_A" in name else -number) for name, each in active.items())
        took = (time.perf_counter() - began) / told.swaps
        nbytes = sum(each.nbytes for each in active.values())
    print(f"{told.swaps} swaps of {len(active)} tensors ({nbytes / 1e6:.1f} MB) on {device}: {took * 1e3:.2f} ms each, at the same addresses")


if __name__ == "__main__":
    main()
