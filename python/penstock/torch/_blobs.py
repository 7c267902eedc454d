"""Finds tensors that torch.save has written to parts of a file, as torch.distributed.checkpoint does."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any, NamedTuple

import torch

from .._core.windows import Window
from ._archive import Archive
from ._load_checkpoint import unpickler_of, weights_only_unpickler
from ._scan import wanted_of

__all__ = ["Blob", "blob_of"]


class Blob(NamedTuple):
    """A tensor, and the place of its storage."""

    tensor: Any  # on the meta device
    offset: int  # where the tensor's storage starts in the file
    nbytes: int  # size of the tensor's storage


def blob_of(window: Window, path: str, start: int) -> Blob | None:
    """Describes the tensor in a part of a file that starts at `start`. Returns None if it cannot be read directly. Raises penstock.Error."""
    archive = Archive(window, f"{path}, at offset {start}")
    if not all(each.stored for each in archive.records.values()):
        return None
    if "byteorder" in archive.records and archive.read("byteorder").decode(errors="replace") != sys.byteorder:
        return None
    storages = []

    def persistent_load(persistent_id: Any) -> Any:
        wanted = wanted_of(persistent_id)
        storages.append(wanted)
        storage = torch.UntypedStorage(wanted.nbytes, device="meta")
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=wanted.dtype, _internal=True)

    unpickler = unpickler_of(weights_only_unpickler())(io.BytesIO(archive.read("data.pkl")), encoding="utf-8")
    unpickler.persistent_load = persistent_load
    try:
        tensor = unpickler.load()
    except (pickle.UnpicklingError, RuntimeError, NotImplementedError, TypeError):
        return None  # PyTorch's reader reads it, or reports the error
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or len(storages) != 1 or tensor.layout is not torch.strided:
        return None
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return None
    record = archive.record(f"data/{storages[0].key}")
    (offset,) = archive.offsets([record])
    return Blob(tensor, start + offset, min(record.nbytes, storages[0].nbytes))
