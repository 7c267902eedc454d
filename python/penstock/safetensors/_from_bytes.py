"""load(): reads tensors from a file's content in memory."""

from __future__ import annotations

from typing import Any

from .. import _native
from .._core.packing import packed
from .._tensors.frameworks import Framework
from .._tensors.header import header_of_bytes
from .._tensors.load_file import check_type

__all__ = ["loaded"]


def loaded(data: Any, place: Framework) -> dict[str, Any]:
    """Copies each tensor, because the content may be read-only or misaligned."""
    header = header_of_bytes(data)
    rows = []
    starts, total = packed(header.sizes)
    for name, word, shape, start, nbytes in zip(header.names, header.types, header.shapes, starts, header.sizes):
        dtype = place.dtype(word)
        rows.append((name, dtype, check_type("the data", name, word, shape, place, dtype), start, nbytes))
    arena = place.arena(total)
    if total:
        source, _ = _native.resolve(data)
        target, _ = _native.resolve(arena.memory, True)
        for (*_, start, nbytes), offset in zip(rows, header.offsets):
            if nbytes:
                _native.copy(_native.Pointer(target + start, nbytes, arena.memory), _native.Pointer(source + offset, nbytes, data, True))
    found: dict[str, Any] = {}
    arena.views(rows, found)
    return found
