"""Lines of a penstock.File, from its position on, as Python's file objects give them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from . import _native

__all__ = ["next_line", "readline", "readlines", "writelines"]

_FIRST_BYTES = 512  # read at once; twice as many each time that a line is longer
_MOST_BYTES = 1 << 20


def readline(file: _native.File, size: Any) -> bytes:
    """The bytes up to and with the next newline, at most size of them; negative or None: any number. Empty at the end of the file."""
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
    """All lines, or, with a positive hint, no more once they have so many bytes."""
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
    """Each, one after the other, without newlines of its own."""
    for each in lines:
        file.write(each)


def _limit_of(size: Any) -> int | None:
    if size is None:
        return None
    found = operator.index(size)
    return None if found < 0 else found
