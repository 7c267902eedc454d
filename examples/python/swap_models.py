#!/usr/bin/env python3
"""Swaps models: several models take turns on one GPU, and return to it from host memory at the speed of the link.

    swap_models.py MODEL MODEL... [--device DEVICE] [--budget-gb GB] [--swaps S] [--changed]

Each MODEL is a safetensors file, or a folder of them. Its page cache is pinned, in the given order, while the budget lasts; the rest is read from the
page cache as usual. A model leaves the GPU before the next one is loaded, so the GPU holds one model at a time. Weights that are in files need not be
copied when they leave. --changed is for weights that a program has changed: they are copied to pinned memory and back. For the adapters of one model
(LoRA), see safetensors_adapters.py. DEVICE: a GPU (requires PyTorch; the default is the first one), or host:0, which simulates one.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import penstock
from penstock.safetensors import load_file


class Model:
    """A model that sleeps on the host, and wakes on a device."""

    def __init__(self, path: Path, device: str) -> None:
        self.name = path.name
        self._files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        self._device = device
        self._pins: list[penstock.PinnedRange] = []
        self._kept: dict[str, Any] = {}  # changed weights
        self.tensors: dict[str, Any] = {}

    def pin(self, budget: int) -> int:
        """Pins the files that fit into the budget. Returns the remaining budget in bytes."""
        for file in self._files:
            if file.stat().st_size <= budget:
                try:
                    with penstock.open(file) as opened:
                        self._pins.append(opened.pin())
                except penstock.Error as problem:  # for example, the file system has no page cache
                    print(f"{file} is not pinned: {problem}")
                else:
                    budget -= self._pins[-1].size
        return budget

    @property
    def pinned(self) -> int:
        return sum(each.size for each in self._pins)

    def sleep(self, changed: bool = False) -> None:
        if changed:
            for name, tensor in self.tensors.items():
                self._kept[name] = to_host(tensor, self._kept.get(name))
            settle(self._device)
        self.tensors = {}

    def wake(self) -> None:
        make_room(self._device, sum(file.stat().st_size for file in self._files))
        if self._kept:
            self.tensors = {name: to_device(kept, self._device) for name, kept in self._kept.items()}
            settle(self._device)
        else:
            self.tensors = load_file(self._files, self._device, "bytes" if self._device == "host:0" else "pt")

    def sample(self) -> bytes:
        """Returns the first bytes of each tensor."""
        parts = []
        for tensor in self.tensors.values():
            if self._device == "host:0":
                parts.append(tensor[:64].to_host() if len(tensor) else b"")
            else:
                parts.append(bytes(tensor.flatten()[:16].view(-1).cpu().untyped_storage()))
        return b"".join(parts)

    @property
    def nbytes(self) -> int:
        return sum(len(each) if self._device == "host:0" else each.nbytes for each in self.tensors.values())


# On host:0, tensors are DeviceBuffers; on a GPU, PyTorch tensors.


def to_host(tensor: Any, room: Any) -> Any:
    """Copies a tensor into the memory of an earlier copy. None allocates memory, which takes longer than the copy."""
    if not hasattr(tensor, "is_cuda"):
        return tensor.to_host() if len(tensor) else b""
    import torch

    if room is None:
        room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return room.copy_(tensor, non_blocking=True)


def to_device(kept: Any, device: str) -> Any:
    if not isinstance(kept, bytes):
        return kept.to(device, non_blocking=True)
    if not kept:
        return b""
    buffer = penstock.device(device).empty(len(kept))
    buffer.copy_from(kept)
    return buffer


def settle(device: str) -> None:
    if device != "host:0":
        import torch

        torch.cuda.synchronize(device)


def make_room(device: str, nbytes: int) -> None:
    """Frees the previous model's memory if nbytes do not fit into it. Reusing memory is faster than allocating it."""
    if device != "host:0":
        import torch

        if torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) < nbytes:
            torch.cuda.empty_cache()


def memory_of(models: list[Model], device: str) -> int:
    """Returns the device memory in use, in bytes; on a GPU, the peak."""
    if device == "host:0":
        return sum(each.nbytes for each in models)
    import torch

    return torch.cuda.max_memory_reserved(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("model", nargs="+", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--budget-gb", type=float, default=16.0)
    parser.add_argument("--swaps", type=int, default=6)
    parser.add_argument("--changed", action="store_true")
    wanted = parser.parse_args()
    device = wanted.device or penstock.devices()[0].name
    models = [Model(each, device) for each in wanted.model]
    left = int(wanted.budget_gb * 1e9)
    samples, sizes = {}, {}
    for model in models:  # the first turn pins and registers memory
        left = model.pin(left)
        model.wake()
        samples[model], sizes[model] = model.sample(), model.nbytes
        model.sleep(wanted.changed)
    awake, asleep, moved, most = 0.0, 0.0, 0, 0
    cpu = time.process_time()
    for swap in range(wanted.swaps):
        model = models[swap % len(models)]
        began = time.perf_counter()
        model.wake()
        awake += time.perf_counter() - began
        assert model.sample() == samples[model], f"{model.name} has different weights than before"
        most, moved = max(most, memory_of(models, device)), moved + sizes[model]
        began = time.perf_counter()
        model.sleep(wanted.changed)
        asleep += time.perf_counter() - began
    cpu = time.process_time() - cpu
    print(", ".join(f"{model.name} ({sizes[model] / 1e6:.1f} MB, {model.pinned / 1e6:.1f} pinned)" for model in models), "on", device)
    print(f"{wanted.swaps} swaps: wake at {moved / awake / 1e9:.1f} GB/s, sleep in {asleep / wanted.swaps * 1e3:.1f} ms, {cpu / moved * 1e9:.4f} CPU s/GB")
    print(f"the device held {most / 1e6:.1f} MB at most, and the largest model has {max(sizes.values()) / 1e6:.1f}")


if __name__ == "__main__":
    main()
