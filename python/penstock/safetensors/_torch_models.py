"""Saves and loads a module's state as safetensors.torch does: tensors that share memory are stored once."""

from __future__ import annotations

from typing import Any

import torch

from .._core.torch_memory import check_memory
from .._tensors.errors import listed
from .._tensors.sources import Path, Paths
from ._shared_memory import removable
from ._torch_save import save_file
from .torch import load_file

__all__ = ["load_model", "save_model"]


def save_model(model: torch.nn.Module, filename: Path, metadata: dict[str, str] | None = None, force_contiguous: bool = True) -> None:
    """Saves a module's state. If tensors share memory, one of them is written, and the metadata maps the others to it.

    - `force_contiguous`: True copies non-contiguous tensors first; False raises ValueError for them.

    Raises:

    - `RuntimeError`: none of the tensors that share memory covers all of it.
    - `BufferError`: tensors have no memory.
    - the errors of `save_file()`.
    """
    state = model.state_dict()
    check_memory({name: each for name, each in state.items() if isinstance(each, torch.Tensor) and each.device.type != "meta"})
    told = metadata
    for kept, others in removable(state).items():
        told = {} if told is None else told
        for each in others:
            told.setdefault(each, kept)
            del state[each]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(dict(state), filename, told)


def load_model(
    model: torch.nn.Module, filename: Paths, strict: bool = True, device: Any = "cpu", *, backend: str = "mmap"
) -> tuple[set[str], list[str]]:
    """Loads the result of `save_model()` into a module, with the module's own `load_state_dict()`. `load_into()` does not need a second copy.

    - `device`: where the tensors are loaded before they are copied into the module.
    - `backend`: has no effect.

    Returns the names missing from the file, and those missing from the module. With `strict`, raises RuntimeError if there are any.
    """
    loaded_state = load_file(filename, device, backend=backend)
    shared = removable(model.state_dict(), preferred=set(loaded_state))
    result = model.load_state_dict(loaded_state, strict=False)
    missing, unexpected = set(result.missing_keys), list(result.unexpected_keys)
    for others in shared.values():
        unexpected += [each for each in others if each not in missing]
        missing -= set(others)
    if strict and (missing or unexpected):
        problems = [f"Missing key(s) in state_dict: {listed(sorted(missing))}"] if missing else []
        problems += [f"Unexpected key(s) in state_dict: {listed(sorted(unexpected))}"] if unexpected else []
        raise RuntimeError("\n    ".join([f"Error(s) in loading state_dict for {type(model).__name__}:", *problems]))
    return missing, unexpected
