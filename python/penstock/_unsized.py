"""Files that do not tell their size: those of /proc say 0, those of /sys a page, whatever they hold."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["read_to_the_end"]

_PIECE_BYTES = 64 << 10


def read_to_the_end(read: Callable[[bytearray, int], int], offset: int, limit: int | None) -> bytes:
    """The bytes from offset on, at most limit of them. read(buffer, offset) gives a short count at the end of the file, and only there."""
    content = bytearray()
    while limit is None or len(content) < limit:
        buffer = bytearray(_PIECE_BYTES if limit is None else min(_PIECE_BYTES, limit - len(content)))
        done = read(buffer, offset + len(content))
        content += memoryview(buffer)[:done]
        if done < len(buffer):
            break
    return bytes(content)
