"""Finds PyTorch tensors that share memory. If they were all saved, they would be duplicated in the file and separate after loading."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .._core.torch_memory import is_wrapper, span_of_tensor
from .._tensors.errors import listed

__all__ = ["removable", "sharing"]


def sharing(tensors: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """Groups the names of tensors whose bytes overlap. Other tensors are groups of one."""
    storages: dict[tuple[torch.device, int, int], list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "meta" or tensor.layout != torch.strided or is_wrapper(tensor):
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() and storage.nbytes():
            key = tensor.device, storage.data_ptr(), storage.nbytes()
            storages.setdefault(key, []).append((*span_of_tensor(tensor), name))
    groups: list[set[str]] = []
    for spans in storages.values():
        end = 0
        for start, stop, name in sorted(spans):
            if start < end:
                groups[-1].add(name)
            else:
                groups.append({name})
            end = max(end, stop)
    return groups


def removable(state: Mapping[str, torch.Tensor], preferred: set[str] | None = None) -> dict[str, list[str]]:
    """Chooses which name to keep and which to remove in each group of tensors that share memory. `preferred`: names to keep if possible."""
    found = {}
    for group in sharing(state):
        if len(group) < 2:
            continue
        complete = sorted(name for name in group if _is_all_of_its_storage(state[name]))
        if not complete:
            raise RuntimeError(f"these tensors share memory, but none of them covers all of it, so no single tensor can be saved for all: {listed(sorted(group))}")
        kept = next((name for name in complete if preferred is not None and name in preferred), complete[0])
        found[kept] = sorted(group - {kept})
    return found


def _is_all_of_its_storage(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    return bool(tensor.data_ptr() == storage.data_ptr() and tensor.numel() * tensor.element_size() == storage.nbytes())
