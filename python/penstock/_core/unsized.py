"""Reads files that do not report their real size: files in /proc report 0, and files in /sys report one page, whatever they contain."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["read_to_the_end"]

_PIECE_BYTES = 64 << 10


def read_to_the_end(read: Callable[[bytearray, int], int], offset: int, limit: int | None) -> bytes:
    """Returns the bytes starting at offset, at most limit. read(buffer, offset) returns a short count only at end of file."""
    content = bytearray()
    while limit is None or len(content) < limit:
        buffer = bytearray(_PIECE_BYTES if limit is None else min(_PIECE_BYTES, limit - len(content)))
        done = read(buffer, offset + len(content))
        content += memoryview(buffer)[:done]
        if done < len(buffer):
            break
    return bytes(content)
