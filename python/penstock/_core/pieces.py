"""Transfers many ranges of files at once to or from the memory of several devices, with progress, cancellation, and errors that name the range."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from .. import _native
from .batches import in_batches
from .errors import Cancelled, Error, ShortRead
from .futures import as_completed, wait
from .urls import is_url

__all__ = ["Batch", "Control", "GAP_BYTES", "Piece", "Progress", "ROWS_IN_FLIGHT", "Rows", "merged", "move_batches", "move_pieces", "remade", "rows_of"]

_T = TypeVar("_T")
Progress = Callable[[int, int], object]  # called with the bytes done and the total bytes

# The minimum number of bytes between two calls of progress.
_STEP_BYTES = 64 << 20

# From a server, neighbouring small pieces in host memory are read with one request, because each request costs a round trip.
_SMALL_BYTES = 1 << 20  # larger pieces are read directly
GAP_BYTES = 64 << 10  # a longer gap between ranges on a server is not worth reading
_ROW_BYTES = 8 << 20  # limit for one request
_ROWS_BYTES = 64 << 20  # limit for rows that are started together
ROWS_IN_FLIGHT = 4  # limit for groups of rows that are read at the same time


class Piece(NamedTuple):
    """A range of the file, and its source or target memory."""

    name: str  # for errors, such as "storage data/0"
    offset: int
    nbytes: int
    address: int
    owner: Any  # keeps the memory alive
    device: Any = "host"  # the memory's device: any hashable value that identifies it


class Batch(NamedTuple):
    """Pieces of one file."""

    file: _native.File
    pieces: Sequence[Piece]
    label: str  # the file's name for errors


class Control:
    """Lets another thread stop the running requests. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[Any] = set()
        self._stopped = False
        self._committed = False

    def stop(self) -> bool:
        """Stops the requests. Returns False if it is too late."""
        with self._lock:
            if self._committed:
                return False
            self._stopped = True
            futures = list(self._under_way)
        for future in futures:
            future.cancel()
        return True

    def check(self) -> None:
        """Raises Cancelled after stop()."""
        if self._stopped:
            raise Cancelled("the operation was cancelled", code="cancelled")

    def commit(self) -> None:
        """Makes later calls of stop() fail. Raises Cancelled if stop() has already been called."""
        with self._lock:
            self.check()
            self._committed = True

    def _add(self, future: Any) -> None:
        with self._lock:
            self._under_way.add(future)
            stopped = self._stopped
        if stopped:
            future.cancel()

    def _discard(self, futures: Iterable[Any]) -> None:
        with self._lock:
            self._under_way.difference_update(futures)


def move_pieces(
    file: _native.File,
    pieces: Sequence[Piece],
    *,
    label: str,
    write: bool = False,
    progress: Progress | None = None,
    control: Control | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> None:
    """Reads or writes all pieces of one file. See `move_batches()`."""
    move_batches([Batch(file, pieces, label)], write=write, progress=progress, control=control, meanwhile=meanwhile)


def move_batches(
    batches: Sequence[Batch],
    *,
    write: bool = False,
    progress: Progress | None = None,
    control: Control | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> None:
    """Reads or writes all pieces of all files at once, those of each file in file order. Blocks. Each device's pieces form one request to the
    library, or several if there is a progress callback. Neighbouring small pieces of an object on a server are requested together.

    - `meanwhile`: called once all pieces are in flight.
    - `progress`: called on this thread.

    An interruption, including an exception from `progress` or `meanwhile`, cancels the requests and waits for them before it propagates. Raises
    penstock.Error, which names the piece; ShortRead if the file ends too early; Cancelled if `control` was stopped.
    """
    control = control or Control()
    total, done = sum(piece.nbytes for each in batches for piece in each.pieces), 0
    futures: dict[Any, Batch] = {}
    rows: deque[tuple[Rows, str]] = deque()  # in flight, with the label of the file

    def report(pieces: Sequence[Piece]) -> None:
        nonlocal done
        done += sum(each.nbytes for each in pieces)
        if progress is not None:
            progress(done, total)

    def end_rows() -> None:
        ended, label = rows[0]
        try:
            counts = ended.end()
        except Error as error:
            raise _named(error, label, ended.pieces) from error
        for piece, count in zip(ended.pieces, counts):
            _check_count(label, piece, count, False)
        rows.popleft()
        control._discard([ended.future])
        report(ended.pieces)

    try:
        waiting = []
        for batch in batches:
            pieces = batch.pieces
            if not write and is_url(batch.file.name):
                pieces, together = rows_of(pieces)
                waiting += [(batch, each) for each in together]
            for own in _of_each_device(pieces):
                for step in _steps(own) if progress else [own]:
                    control.check()
                    start = batch.file.pwrite_many if write else batch.file.pread_many
                    future = start([(_native.Pointer(each.address, each.nbytes, each.owner), each.offset) for each in step])
                    futures[future] = batch._replace(pieces=step)
                    control._add(future)
        for batch, each in waiting:
            if len(rows) == ROWS_IN_FLIGHT:
                end_rows()
            control.check()
            rows.append((Rows(batch.file, each), batch.label))
            control._add(rows[-1][0].future)
        if meanwhile is not None:
            meanwhile()
        while rows:
            end_rows()
        for future in as_completed(futures):
            _check(futures[future].label, futures[future].pieces, future, write)
            report(futures[future].pieces)
    except BaseException:
        running = [*futures, *(each.future for each, _ in rows)]
        for future in running:
            future.cancel()
        wait(running)
        raise
    finally:
        control._discard([*futures, *(each.future for each, _ in rows)])


class Rows:
    """Reads in flight of rows: neighbouring small pieces of one object on a server. Each row is one request, if necessary into temporary memory."""

    def __init__(self, file: _native.File, rows: Sequence[list[Piece]]) -> None:
        self._rows = rows
        self._content = [None if _is_together(row) else memoryview(bytearray(_span(row))) for row in rows]
        targets = [_native.Pointer(row[0].address, _span(row), row) if content is None else content for content, row in zip(self._content, rows)]
        self.future = file.pread_many([(target, row[0].offset) for target, row in zip(targets, rows)])

    @property
    def pieces(self) -> list[Piece]:
        return [piece for row in self._rows for piece in row]

    def end(self) -> list[int]:
        """Waits, copies the bytes to their places, and returns the number of bytes read for each piece. Raises penstock.Error."""
        found = []
        for row, content, count in zip(self._rows, self._content, self.future.result()):
            for each in row:
                first = each.offset - row[0].offset
                found.append(min(max(count - first, 0), each.nbytes))
                if content is not None and found[-1]:
                    _native.copy(_native.Pointer(each.address, found[-1], each.owner), content[first : first + found[-1]])
        return found


def rows_of(pieces: Sequence[Piece]) -> tuple[list[Piece], Iterator[list[list[Piece]]]]:
    """Returns the pieces to read directly, and groups of rows. A row is small pieces to read with one request; the rows of a group start together."""
    small = sorted((each for each in pieces if _is_small(each)), key=lambda each: each.offset)
    rows = merged(small, lambda each: (each.offset, each.nbytes), GAP_BYTES, _ROW_BYTES)
    alone = [row[0] for row in rows if len(row) == 1]
    together = in_batches((row for row in rows if len(row) > 1), _ROWS_BYTES, _span)
    return [*(each for each in pieces if not _is_small(each)), *alone], together


def _is_small(piece: Piece) -> bool:
    """Returns True for a small piece in host memory. The library itself merges reads into the memory of devices."""
    return 0 < piece.nbytes < _SMALL_BYTES and str(piece.device) in ("host", "cpu")


def merged(items: Iterable[_T], range_of: Callable[[_T], tuple[int, int]], gap: int, most_bytes: int) -> list[list[_T]]:
    """Groups items, sorted by offset, whose ranges (offset and size) lie at most `gap` bytes apart. Only a single item may exceed `most_bytes`."""
    groups: list[list[_T]] = []
    first = end = 0
    for each in items:
        offset, nbytes = range_of(each)
        if groups and offset - end <= gap and max(end, offset + nbytes) - first <= most_bytes:
            groups[-1].append(each)
            end = max(end, offset + nbytes)
        else:
            groups.append([each])
            first, end = offset, offset + nbytes
    return groups


def _is_together(row: Sequence[Piece]) -> bool:
    """Returns True if the pieces lie in memory as they do in the file, without gaps."""
    return all(b.offset - a.offset == b.address - a.address == a.nbytes for a, b in zip(row, row[1:]))


def _span(row: Sequence[Piece]) -> int:
    return max(each.offset + each.nbytes for each in row) - row[0].offset


def remade(error: Error, message: str) -> Error:
    """Returns an error like this one, with another message."""
    fields = {name: getattr(error, name) for name in ("code", "domain", "native", "filename", "offset", "bytes_done")}
    return type(error)(message, **fields)


def _of_each_device(pieces: Sequence[Piece]) -> list[list[Piece]]:
    found: dict[Any, list[Piece]] = {}
    for each in sorted(pieces, key=lambda piece: piece.offset):
        if each.nbytes:
            found.setdefault(each.device, []).append(each)
    return list(found.values())


def _steps(pieces: Sequence[Piece]) -> list[list[Piece]]:
    found: list[list[Piece]] = []
    room = 0
    for each in pieces:
        for start in range(0, each.nbytes, _STEP_BYTES):
            nbytes = min(_STEP_BYTES, each.nbytes - start)
            if room <= 0:
                found.append([])
                room = _STEP_BYTES
            found[-1].append(each._replace(offset=each.offset + start, nbytes=nbytes, address=each.address + start))
            room -= nbytes
    return found


def _check(label: str, pieces: Sequence[Piece], future: Any, write: bool) -> None:
    try:
        counts = future.result()
    except Error as error:
        raise _named(error, label, pieces) from error
    for each, count in zip(pieces, counts):
        _check_count(label, each, count, write)


def _named(error: Error, label: str, pieces: Sequence[Piece]) -> Error:
    names = [each.name for each in pieces if error.offset is not None and each.offset <= error.offset < each.offset + each.nbytes]
    return remade(error, f"{label}: {names[0] + ': ' if names else ''}{error}")


def _check_count(label: str, piece: Piece, count: int, write: bool) -> None:
    if count != piece.nbytes:
        verb, why = ("wrote", "the file cannot grow") if write else ("read", "the file ends there")
        message = f"{label}: {piece.name}: {verb} {count} of {piece.nbytes} bytes at offset {piece.offset}: {why}"
        raise ShortRead(message, code="short_read", filename=label, offset=piece.offset, bytes_done=count)
