"""The functions in penstock.safetensors.torch that write tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .. import _native
from .._core.pieces import Piece, Progress
from .._core.saving import SaveFuture, save_in_background
from .._core.torch_memory import problem_of
from .._core.torch_storages import Snapshot, snapshot_of_bytes
from .._tensors.errors import listed
from .._tensors.save_file import Tensor, beginning_of, saved, tensor_of, write_file
from .._tensors.sources import Path
from ._shared_memory import sharing

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
    return save_in_background(os.fsdecode(filename), _TensorsImage(_checked(tensors), metadata, snapshot), progress, storage_options)


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


class _TensorsImage:
    """A file with copies of the tensors. The constructor makes the copies, and on a GPU queues them on the current stream."""

    def __init__(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None, snapshot: str) -> None:
        self._beginning, self._order = beginning_of(tensors, metadata)
        self._snapshot: Snapshot = snapshot_of_bytes([_bytes_of(tensors[name]) for name in self._order], snapshot)

    def pieces(self) -> Sequence[Piece]:
        self._snapshot.wait()
        address, nbytes = _native.resolve(self._beginning)
        found = [Piece("the header", 0, nbytes, address, self._beginning, torch.device("cpu"))]
        offset = nbytes
        for name, ranges in zip(self._order, self._snapshot.contents):
            for each in ranges:
                found.append(Piece(f'tensor "{name}"', offset, each.nbytes, each.address, each.owner, each.device))
                offset += each.nbytes
        return found

    def rest(self) -> Sequence[Piece]:
        return []


def _bytes_of(tensor: Tensor) -> Any:
    if not tensor.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    plain = tensor.memory.owner
    storage = plain.untyped_storage()
    offset = plain.data_ptr() - storage.data_ptr()
    return torch.empty(0, dtype=torch.uint8, device=plain.device).set_(storage, offset, (tensor.nbytes,), (1,))
