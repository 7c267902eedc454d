"""The image of a safetensors file with PyTorch tensors, for saving in the background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .. import _native
from .._core.pieces import Piece
from .._core.torch_storages import Snapshot, snapshot_of_bytes
from .._tensors.save_file import Tensor, beginning_of

__all__ = ["TensorsImage"]


class TensorsImage:
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
