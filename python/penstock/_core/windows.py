"""Parts of files that can be used like files. Small parts, and the ends of larger ones, are already in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .. import _native
from .pieces import GAP_BYTES, merged
from .urls import is_url

__all__ = ["Part", "Window", "held_bytes", "windows_of"]

_EDGES = (4096, 4096)  # bytes to read at the start and at the end of each part
_WHOLE_BYTES_FAR = 1 << 20  # parts up to this size are read whole from a server, because each request costs a round trip
_MOST_BYTES = 64 << 20  # limit for one request


class Part(NamedTuple):
    """A range of an open file."""

    file: Any
    start: int
    nbytes: int


class Window:
    """A part of a file. Has the methods of penstock.File that zipfile and a reader of headers need."""

    def __init__(self, part: Part) -> None:
        self._file, self._start, self._nbytes = part
        self._held: list[tuple[int, memoryview]] = []  # offset in the part, and content
        self._position = 0

    def hold(self, offset: int, content: memoryview) -> None:
        self._held.append((offset, content))

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Reads ranges (offset and size) and holds them. Neighbours are read with one request."""
        groups = _grouped(self._file, [(first, nbytes) for first, nbytes in ranges if nbytes and self.held(first, nbytes) is None])
        read = _contents([(self._file, self._start + group[0][0], self._start + _end_of(group)) for group in groups])
        for group, content in zip(groups, read):
            self.hold(group[0][0], content)

    def drop(self, offset: int) -> None:
        """Undoes hold()."""
        self._held = [each for each in self._held if each[0] != offset]

    def release(self) -> None:
        """Drops everything that is held."""
        self._held = []

    def held(self, offset: int, nbytes: int) -> memoryview | None:
        """Returns these bytes if they are in memory."""
        for first, content in self._held:
            if first <= offset and offset + nbytes <= first + len(content):
                return content[offset - first : offset - first + nbytes]
        return None

    def read_into(self, buffer: Any, offset: int = 0) -> int:
        target = memoryview(buffer)
        count = max(0, min(len(target), self._nbytes - offset))
        content = self.held(offset, count)
        if content is not None:
            target[:count] = content
            return count
        return int(self._file.read_into(target[:count], self._start + offset)) if count else 0

    def read_many(self, requests: Any) -> list[int]:
        return [self.read_into(buffer, offset) for buffer, offset in requests]

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._nbytes - self._position)
        content = bytearray(left if size is None or size < 0 else min(size, left))
        done = self.read_into(content, self._position)
        self._position += done
        return bytes(content[:done])

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._nbytes)[whence]
        if base + offset < 0:
            raise OSError(f"offset {offset} is before the start of the file")  # zipfile expects this error from files
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True


def held_bytes(part: Part, edges: tuple[int, int] = _EDGES) -> int:
    """Returns how many bytes of a part windows_of() keeps in memory."""
    whole = max(sum(edges), _WHOLE_BYTES_FAR if is_url(part.file.name) else 0)
    return part.nbytes if part.nbytes <= whole else sum(edges)


def windows_of(parts: Sequence[Part], edges: tuple[int, int] = _EDGES) -> list[Window]:
    """Reads small parts, and the starts and ends of the others, from all files at once. Neighbours are read with one request."""
    windows = [Window(each) for each in parts]
    wanted: dict[int, list[tuple[int, int, Window, int]]] = {}  # by file: offset and size in the file, window, and offset in the window
    files = {id(each.file): each.file for each in parts}
    for part, window in zip(parts, windows):
        held = held_bytes(part, edges)
        ranges = [(0, held)] if held == part.nbytes else [(0, edges[0]), (part.nbytes - edges[1], edges[1])]
        wanted.setdefault(id(part.file), []).extend((part.start + first, nbytes, window, first) for first, nbytes in ranges if nbytes)
    groups = [(files[key], group) for key, places in wanted.items() for group in _grouped(files[key], places)]
    for (_, group), content in zip(groups, _contents([(file, group[0][0], _end_of(group)) for file, group in groups])):
        for place, nbytes, window, first in group:
            window.hold(first, content[place - group[0][0] :][:nbytes])
    return windows


def _grouped(file: Any, ranges: list[Any]) -> list[list[Any]]:
    """Groups tuples that begin with an offset and a size. Each group is to be read with one request."""
    return merged(sorted(ranges, key=lambda each: each[0]), lambda each: each[:2], GAP_BYTES if is_url(file.name) else 0, _MOST_BYTES)


def _end_of(group: list[Any]) -> int:
    return int(max(each[0] + each[1] for each in group))


def _contents(ranges: list[tuple[Any, int, int]]) -> list[memoryview]:
    """Reads ranges (file, start and end) at once. A result is shorter if the file ends early."""
    contents = [memoryview(bytearray(end - start)) for _, start, end in ranges]
    requests = [(file, content, start) for (file, start, _), content in zip(ranges, contents)]
    counts = _native.pread_many(requests).result() if requests else []
    return [content[:count] for content, count in zip(contents, counts)]
