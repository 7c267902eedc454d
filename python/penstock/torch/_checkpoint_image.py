"""Describes a checkpoint as pieces of a file."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from .. import _native
from .._core.pieces import Piece
from .._core.torch_storages import Memory, Snapshot
from ._crc32 import crcs32_of
from ._settings import setting
from ._zip_layout import Placed, directory_of, header_of, place

__all__ = ["CheckpointImage", "piece_of"]


class CheckpointImage:
    """The zip archive that torch.save would write, placed at an offset in a file."""

    def __init__(self, folder: str, pickled: bytes, contents: Snapshot, names: Sequence[str], crc32: bool, start: int = 0) -> None:
        """`folder` contains the archive's members, `names` are the storages' names for errors, and `start` is a multiple of the alignment."""
        alignment = setting("save", "storage_alignment") or 64
        first = {"data.pkl": pickled, ".storage_alignment": str(alignment).encode(), "byteorder": sys.byteorder.encode()}
        last = {"version": b"3\n"}
        self._contents = contents
        self._names = names
        self._crc32 = crc32
        self._start = start
        self._every: list[bytes | list[Memory]] = [*first.values(), *contents.contents, *last.values()]
        sizes = [(f"{folder}/{name}", len(content)) for name, content in first.items()]
        sizes += [(f"{folder}/data/{key}", sum(each.nbytes for each in ranges)) for key, ranges in enumerate(contents.contents)]
        sizes += [(f"{folder}/{name}", len(content)) for name, content in last.items()]
        self._placed: list[Placed] = place(sizes, alignment)
        self._end = self._placed[-1].offset + self._placed[-1].nbytes
        # The directory's length does not depend on the checksums.
        self.nbytes = self._end + len(directory_of(self._placed, [0] * len(self._placed)))

    def pieces(self) -> Sequence[Piece]:
        self._contents.wait()
        found = []
        names = iter(self._names)
        for record, content in zip(self._placed, self._every):
            if isinstance(content, bytes):
                continue
            name, offset = next(names), self._start + record.offset
            for each in content:
                found.append(Piece(name, offset, each.nbytes, each.address, each.owner, each.device))
                offset += each.nbytes
        return found

    def rest(self) -> Sequence[Piece]:
        of_storages = iter(crcs32_of(self._contents.contents) if self._crc32 else [0] * len(self._contents.contents))
        crcs = [zlib.crc32(each) if isinstance(each, bytes) else next(of_storages) for each in self._every]
        found = []
        for record, content, crc in zip(self._placed, self._every, crcs):
            header = header_of(record, crc) + (content if isinstance(content, bytes) else b"")
            found.append(piece_of(self._start + record.header_offset, header))
        found.append(piece_of(self._start + self._end, directory_of(self._placed, crcs)))
        return found


def piece_of(offset: int, content: Any, name: str = "the archive's directory") -> Piece:
    """Returns a piece for `content`: bytes, or another object with host memory."""
    address, nbytes = _native.resolve(content)
    return Piece(name, offset, nbytes, address, content, torch.device("cpu"))
