#!/usr/bin/env python3
"""Tensor parallel: one model over several processes, each of which loads its part and computes with it.

    safetensors_tensor_parallel.py [--ranks N] [--device DEVICE,DEVICE,...]

N: processes (2). DEVICE: of the ranks, in turn (default: the GPUs, else the host). What every rank needs is read by rank 0 and handed on from
process to process; what only one needs it reads itself. Of the two matrices of a layer the first is cut by its rows, so that each rank has some of the
neurons, and the second by its columns: then the results of the ranks only have to be added, which is compared with what the whole model gives.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock.safetensors import load_file, load_rank, save_file

SHARD = {"*.up.weight": 0, "*.down.weight": 1}
WIDTH, NEURONS = 512, 2048


def make_model(path: Path, ranks: int) -> None:
    neurons = NEURONS // ranks * ranks
    numbers = np.random.default_rng(1)
    tensors = {
        "embed.weight": numbers.standard_normal((4000, WIDTH)),
        "mlp.up.weight": numbers.standard_normal((neurons, WIDTH)) / WIDTH**0.5,
        "mlp.down.weight": numbers.standard_normal((WIDTH, neurons)) / neurons**0.5,
    }
    save_file({name: each.astype("f4") for name, each in tensors.items()}, path)


def layer(weights: dict[str, Any], token: int) -> Any:
    """A rank's part of the result."""
    neurons = weights["mlp.up.weight"] @ weights["embed.weight"][token]
    neurons[neurons < 0] = 0
    return weights["mlp.down.weight"] @ neurons


def on_host(array: Any) -> np.ndarray:
    return array.get() if hasattr(array, "get") else array.cpu().numpy() if hasattr(array, "cpu") else array


def serve(model: Path, rank: int, ranks: int, device: str, meet: str) -> tuple[str, np.ndarray]:
    began = time.perf_counter()
    weights = load_rank(model, device, rank, ranks, meet, SHARD)
    took = time.perf_counter() - began
    nbytes = sum(each.nbytes for each in weights.values())
    said = f"rank {rank} of {ranks}: {nbytes / 1e6:.1f} MB on {device} in {took * 1e3:.1f} ms, waiting for the others included"
    return said, on_host(layer(weights, token=7))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", help="with commas between several")
    args = parser.parse_args()
    gpus = [each.name for each in penstock.devices() if each.name.startswith("cuda:")]
    devices = args.device.split(",") if args.device else gpus or ["host"]
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.safetensors"
        make_model(model, args.ranks)
        meet = f"unix:@penstock-tensor-parallel-{os.getpid()}"
        with concurrent.futures.ProcessPoolExecutor(args.ranks, mp_context=spawn) as processes:
            ranks = [processes.submit(serve, model, rank, args.ranks, devices[rank % len(devices)], meet) for rank in range(args.ranks)]
            found = [each.result() for each in ranks]
        whole = layer(load_file(model), token=7)
    for said, _ in found:
        print(said)
    difference = float(np.abs(sum(part for _, part in found) - whole).max())
    assert difference < 1e-3, difference
    print(f"{args.ranks} ranks together compute what one does: the largest difference is {difference:.1e}")


if __name__ == "__main__":
    main()
