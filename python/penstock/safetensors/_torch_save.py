"""The functions in penstock.safetensors.torch that write tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from .._core.pieces import Progress
from .._core.saving import SaveFuture, save_in_background
from .._core.torch_memory import problem_of
from .._tensors.errors import listed
from .._tensors.save_file import Tensor, saved, tensor_of, write_file
from .._tensors.sources import Path
from ._shared_memory import sharing
from ._torch_image import TensorsImage

__all__ = ["save", "save_file", "save_file_async"]


def save_file(
    tensors: dict[str, torch.Tensor],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Writes PyTorch tensors to a file. See `penstock.safetensors.save_file()`.

    Raises:

    - `ValueError`: a tensor is sparse or not contiguous, or the argument is not a dict of tensors.
    - `RuntimeError`: tensors share memory.
    - the errors of `penstock.safetensors.save_file()`.

    Each error names the tensors.
    """
    write_file(_checked(tensors), filename, metadata, storage_options)


def save_file_async(
    tensors: dict[str, torch.Tensor],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    snapshot: str = "auto",
    *,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SaveFuture:
    """Saves a copy of the tensors in the background. You may change the tensors as soon as the call returns. The safetensors library lacks this
    function.

    - `tensors`, `filename`, `metadata`, `storage_options`: as for `save_file()`.
    - `snapshot`, `progress`: as for `penstock.torch.save_async()`.

    Saves to the same path run sequentially. Returns a `penstock.torch.SaveFuture`. The call itself raises `save_file()`'s errors for invalid
    arguments.
    """
    return save_in_background(os.fsdecode(filename), TensorsImage(_checked(tensors), metadata, snapshot), progress, storage_options)


def save(tensors: dict[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the content of a file with these tensors. Raises the errors of `save_file()`."""
    return saved(_checked(tensors), metadata)


def _checked(tensors: Any) -> dict[str, Tensor]:
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
    for name, tensor in tensors.items():
        if tensor.is_nested or problem_of(tensor, wrappers=True) and tensor.layout == torch.strided:
            tensor_of(name, tensor)  # raises
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ValueError(f"sparse tensors cannot be saved: {listed(sparse)}; convert them with to_dense(), which may make them much larger")
    shared = [sorted(group) for group in sharing(tensors) if len(group) > 1]
    if shared:
        groups = "; ".join(listed(group) for group in shared)
        raise RuntimeError(f"tensors that share memory would be duplicated in the file: {groups}; use save_model(), which saves one of them")
    scattered = [name for name, tensor in tensors.items() if not tensor.is_contiguous()]
    if scattered:
        raise ValueError(f"non contiguous tensors cannot be saved: {listed(scattered)}; pass contiguous(), which returns a copy")
    return {name: tensor_of(name, tensor) for name, tensor in tensors.items()}
