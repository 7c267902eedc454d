"""Reads and writes lines at the current position of a penstock.File, like Python's file objects."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from .. import _native

__all__ = ["next_line", "readline", "readlines", "writelines"]

_FIRST_BYTES = 512  # size of the first read; doubled until the line ends
_MOST_BYTES = 1 << 20


def readline(file: _native.File, size: Any) -> bytes:
    """Returns the bytes up to and including the next newline, but at most `size` bytes (negative or None: no limit). Empty at end of file."""
    limit = _limit_of(size)
    begin = file.tell()
    line = bytearray()
    piece = _FIRST_BYTES
    while limit is None or len(line) < limit:
        found = file.read(piece if limit is None else min(piece, limit - len(line)))
        if not found:
            break
        end = found.find(b"\n") + 1
        if end:
            line += found[:end]
            break
        line += found
        piece = min(2 * piece, _MOST_BYTES)
    file.seek(begin + len(line))
    return bytes(line)


def readlines(file: _native.File, hint: Any) -> list[bytes]:
    """Returns all lines. With a positive hint, stops once the lines contain more bytes than that."""
    most = _limit_of(hint)
    lines: list[bytes] = []
    total = 0
    while line := readline(file, None):
        lines.append(line)
        total += len(line)
        if most and total > most:
            break
    return lines


def next_line(file: _native.File) -> bytes:
    line = readline(file, None)
    if not line:
        raise StopIteration
    return line


def writelines(file: _native.File, lines: Iterable[Any]) -> None:
    """Writes the lines in order. Does not add newlines."""
    for each in lines:
        file.write(each)


def _limit_of(size: Any) -> int | None:
    if size is None:
        return None
    found = operator.index(size)
    return None if found < 0 else found
