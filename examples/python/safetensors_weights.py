#!/usr/bin/env python3
"""A loader as inference engines have them: it iterates over the weights of a model in shards, lazily and with bounded memory.

    safetensors_weights.py [FOLDER] [--device DEVICE] [--mib MIB]

WeightLoader.weights(folder) yields (name, tensor), as the weight iterators of vLLM do, whose load_weights() takes such an iterator: engines rename
and merge tensors as they go and copy them into their own. At most about twice MIB of weights are in memory at a time: what is being used, and what
is read meanwhile.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock.safetensors import safe_open, save_file

INDEX = "model.safetensors.index.json"


class WeightLoader:
    """framework: "pt", "cupy" or "np". group_bytes: how much is read at once; a tensor that is larger is read alone."""

    def __init__(self, framework: str, device: str, group_bytes: int = 256 << 20) -> None:
        self.framework = framework
        self.device = device
        self.group_bytes = group_bytes
        self.most_bytes = 0  # that a group had

    def weights(self, model: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
        """In the order of the files. The next ones are read while the caller works."""
        groups = self._groups(model)
        with concurrent.futures.ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(next, groups, None)
            while (group := ahead.result()) is not None:
                ahead = reader.submit(next, groups, None)
                while group:
                    name = next(iter(group))
                    yield name, group.pop(name)

    def _groups(self, model: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
        for path in shards_of(model):
            with safe_open(path, self.framework, self.device) as file:
                names: list[str] = []
                nbytes = 0
                for name in file.offset_keys():
                    size = file.get_slice(name).nbytes
                    if names and nbytes + size > self.group_bytes:
                        yield file.get_tensors(names)
                        names, nbytes = [], 0
                    names.append(name)
                    nbytes += size
                    self.most_bytes = max(self.most_bytes, nbytes)
                if names:
                    yield file.get_tensors(names)


def shards_of(model: str | os.PathLike[str]) -> list[Path]:
    folder = Path(model)
    if (folder / INDEX).exists():
        return sorted({folder / name for name in json.loads((folder / INDEX).read_text())["weight_map"].values()})
    return [folder / "model.safetensors"]


def make_model(folder: Path, shards: int, mib: int) -> None:
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        tensors = {f"layers.{shard}.{i}.weight": np.full(((mib << 20) // 16, 4), shard * 10 + i, "u1") for i in range(4)}
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--mib", type=int, default=8)
    told = parser.parse_args()
    gpus = [each.name for each in penstock.devices() if each.name.startswith("cuda:")]
    device = told.device or (gpus[0] if gpus else "cpu")
    framework = "np" if device == "cpu" else "pt" if importlib.util.find_spec("torch") else "cupy"
    loader = WeightLoader(framework, device, told.mib << 20)
    with tempfile.TemporaryDirectory() as temporary:
        folder = told.folder or Path(temporary)
        if told.folder is None:
            make_model(folder, 4, told.mib)
        began = time.perf_counter()
        count = total = 0
        for name, tensor in loader.weights(folder):  # an engine would copy it into a parameter of its own here
            count += 1
            total += tensor.nbytes
            if told.folder is None:
                _, shard, place, _ = name.split(".")
                assert int(tensor[0, 0]) == int(tensor[-1, -1]) == int(shard) * 10 + int(place)
        took = time.perf_counter() - began
    print(f"{count} weights, {total / 1e6:.1f} MB by way of {device} in {took * 1e3:.1f} ms; at most {loader.most_bytes / 1e6:.1f} MB in a group")


if __name__ == "__main__":
    main()
