"""Finds tensors that torch.save has written to parts of a file, as torch.distributed.checkpoint does."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ._archive import Archive
from ._load_checkpoint import unpickler_of, weights_only_unpickler
from ._scan import wanted_of

__all__ = ["Blob", "blobs_of"]

# Bytes to read at the start (pickle and local headers) and at the end (directory) of each part.
_EDGE_BYTES = 4096


class Blob(NamedTuple):
    """A tensor, and the place of its storage."""

    tensor: Any  # on the meta device
    offset: int  # where the tensor's storage starts in the file
    nbytes: int  # size of the tensor's storage


def blobs_of(file: Any, path: str, ranges: Sequence[tuple[int, int]]) -> list[Blob | None]:
    """Describes the tensors. `ranges` contains each part's offset and size. Returns None for a part that cannot be read directly into a tensor.

    Raises penstock.Error.
    """
    windows = _windows(file, ranges)
    return [_blob_of(window, path, offset) for window, (offset, _) in zip(windows, ranges)]


def _blob_of(window: _Window, path: str, start: int) -> Blob | None:
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


class _Window:
    """Presents a part of a file as a file of its own, with its start and end already in memory."""

    def __init__(self, file: Any, start: int, nbytes: int, edges: list[tuple[int, memoryview]]) -> None:
        self._file, self._start, self._nbytes, self._edges = file, start, nbytes, edges
        self._position = 0

    def read_into(self, buffer: Any, offset: int = 0) -> int:
        target = memoryview(buffer)
        count = max(0, min(len(target), self._nbytes - offset))
        for first, edge in self._edges:
            if first <= offset and offset + count <= first + len(edge):
                target[:count] = edge[offset - first : offset - first + count]
                return count
        return int(self._file.read_into(target[:count], self._start + offset)) if count else 0

    def read_many(self, requests: Any) -> list[int]:
        return [self.read_into(buffer, offset) for buffer, offset in requests]

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._nbytes - self._position)
        content = bytearray(left if size is None or size < 0 else min(size, left))
        done = self.read_into(content, self._position)
        self._position += done
        return bytes(content[:done])

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._nbytes)[whence]
        if base + offset < 0:
            raise OSError(f"offset {offset} is before the start of the file")  # zipfile relies on files raising this error
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True


def _windows(file: Any, ranges: Sequence[tuple[int, int]]) -> list[_Window]:
    """Reads the starts and ends of all parts at once."""
    wanted: list[tuple[int, int, int]] = []  # index of the range, offset in the range, byte count
    for i, (_, nbytes) in enumerate(ranges):
        if nbytes <= 2 * _EDGE_BYTES:
            wanted.append((i, 0, nbytes))
        else:
            wanted += [(i, 0, _EDGE_BYTES), (i, nbytes - _EDGE_BYTES, _EDGE_BYTES)]
    content = memoryview(bytearray(sum(count for _, _, count in wanted)))
    views, used = [], 0
    for _, _, count in wanted:
        views.append(content[used : used + count])
        used += count
    requests = [(view, ranges[i][0] + first) for view, (i, first, _) in zip(views, wanted) if len(view)]
    counts = iter(file.read_many(requests) if requests else [])
    edges: list[list[tuple[int, memoryview]]] = [[] for _ in ranges]
    for view, (i, first, _) in zip(views, wanted):
        edges[i].append((first, view[: next(counts)] if len(view) else view))
    return [_Window(file, start, nbytes, each) for (start, nbytes), each in zip(ranges, edges)]
