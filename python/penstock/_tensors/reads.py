"""Reads in flight, and the errors for tensors that could not be read."""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .. import _native
from .._core.errors import Error, InvalidArgument, ShortRead
from .._core.futures import FIRST_EXCEPTION, wait
from .errors import listed

if TYPE_CHECKING:
    from .slices import Part
    from .sources import Source

__all__ = ["Flow", "Links", "Ranges", "Reads", "Request", "check_bytes", "read_now"]

Links = int | Literal["auto"]


class Ranges:
    """Many ranges of one file to read into one buffer. All values are in bytes."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self.sizes = array("q")
        self.places = array("q")  # offsets in the buffer

    def add_all(self, offsets: Sequence[int], sizes: Sequence[int], places: Sequence[int]) -> None:
        """Adds ranges, except empty ones."""
        for column, values in ((self.offsets, offsets), (self.places, places), (self.sizes, sizes)):
            column.extend(values if all(sizes) else itertools.compress(values, sizes))

    def add_packed(self, packed: tuple[bytes, bytes, bytes]) -> None:
        """Adds ranges from packed 64-bit offsets, sizes and places. None of them may be empty."""
        for column, values in zip((self.offsets, self.sizes, self.places), packed):
            column.frombytes(values)

    def add_part(self, offset: int, part: Part, place: int) -> None:
        """Adds a part's runs consecutively. `offset` is the tensor's offset in the file."""
        if part.run_bytes:
            self.offsets.extend([offset + each for each in part.starts])
            self.sizes.extend([part.run_bytes] * len(part.starts))
            self.places.extend(range(place, place + part.nbytes, part.run_bytes))

    def in_turns(self, nbytes: int) -> Iterator[Ranges]:
        """Splits the ranges into groups of about `nbytes` bytes; a single range may be larger."""
        ends = list(itertools.accumulate(self.sizes))
        first = before = 0
        while first < len(ends):
            past = min(bisect.bisect_left(ends, before + nbytes, first) + 1, len(ends))
            turn = Ranges()
            turn.offsets, turn.sizes, turn.places = self.offsets[first:past], self.sizes[first:past], self.places[first:past]
            yield turn
            first, before = past, ends[past - 1]

    def cut(self, most: int) -> Ranges:
        """Splits the ranges into pieces of at most `most` bytes."""
        found = Ranges()
        for offset, size, place in zip(self.offsets, self.sizes, self.places):
            for at in range(0, size, most):
                found.offsets.append(offset + at)
                found.sizes.append(min(most, size - at))
                found.places.append(place + at)
        return found


# Piece size for copies to additional devices: completed pieces are copied while later ones are being read.
_handed_on_bytes = _native.MOST_MODEL_REQUEST_BYTES


# A lower limit would require a separate request for each piece of a tensor.
_LEAST_UNDER_WAY = 1 << 20
_PIECES = 8  # in flight, if there is a limit


def check_bytes(what: str, nbytes: Any, least: int = _LEAST_UNDER_WAY) -> int | None:
    """Returns nbytes if it is a valid limit. `what` is the name of the argument. Raises TypeError or InvalidArgument."""
    if nbytes is None:
        return None
    if isinstance(nbytes, bool) or not isinstance(nbytes, int):
        raise TypeError(f"{what} must be an int (bytes) or None, not {type(nbytes).__name__}")
    if nbytes < least:
        raise InvalidArgument(f"{what} is {nbytes}, but must be at least {least}", code="invalid_argument")
    return nbytes


class Request:
    """One batch in flight."""

    __slots__ = ("future", "offsets", "sizes", "source")

    def __init__(self, future: _native.Future[list[int]], source: Source, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        self.future, self.source, self.offsets, self.sizes = future, source, offsets, sizes

    def check(self) -> None:
        """Waits for the request, and raises its error."""
        _check(self.future, self.source, self.offsets, self.sizes)


class Flow:
    """Reads that start in the order in which they are added, while the limit on bytes in flight allows.

    - `links`: as for File.pread_ranges().
    - `most_bytes`: the limit, at least 1 MiB. None means 384 MiB, or one longer range.
    """

    def __init__(self, links: Links | None = None, most_bytes: int | None = None) -> None:
        self._flow = _native.ReadFlow(most_bytes or 0, links)
        self._piece_bytes = None if most_bytes is None else most_bytes // _PIECES

    def add(self, source: Source, memory: Any, ranges: Ranges) -> Request:
        if self._piece_bytes is not None:
            ranges = ranges.cut(self._piece_bytes)
        future = self._flow.add(source.file, memory, ranges.offsets, ranges.sizes, ranges.places)
        return Request(future, source, ranges.offsets, ranges.sizes)


class Reads:
    """Batches in flight. After wait(), nothing writes to their memory.

    - `links`: as for File.pread_ranges().
    - `most_bytes`: the limit on bytes in flight, at least 1 MiB. Batches that exceed it start later, in order. Not for copies.
    """

    def __init__(self, links: Links | None = None, most_bytes: int | None = None) -> None:
        self._links = links
        self._flow = None if most_bytes is None else Flow(links, most_bytes)
        self._batches: list[Request] = []
        self._rows: deque[tuple[Any, Source]] = deque()  # neighbouring small ranges of objects on servers

    def start(self, source: Source, memory: Any, ranges: Ranges, copies: Sequence[Any] = ()) -> None:
        """Starts a batch. `copies` are buffers on other devices, each filled from the previous one. The file is read once."""
        if not ranges.sizes:
            return
        if self._flow is not None:
            self._batches.append(self._flow.add(source, memory, ranges))
            return
        if copies:
            ranges = ranges.cut(_handed_on_bytes)
        elif _native.is_url(source.name) and _native.describe(memory)["kind"] != "device":  # the library itself merges reads into devices
            ranges = self._start_rows(source, memory, ranges)
            if not ranges.sizes:
                return
        future = source.file.pread_ranges(memory, ranges.offsets, ranges.sizes, ranges.places, copies=copies, links=self._links)
        self._batches.append(Request(future, source, ranges.offsets * (1 + len(copies)), ranges.sizes * (1 + len(copies))))

    def adopt(self, source: Source, ranges: Ranges, future: _native.Future[list[int]]) -> None:
        """Adds a batch that has already started."""
        self._batches.append(Request(future, source, ranges.offsets, ranges.sizes))

    def _start_rows(self, source: Source, memory: Any, ranges: Ranges) -> Ranges:
        """Starts reading the small ranges that have neighbours. Returns the others. Blocks while too many requests are in flight."""
        from .._core.pieces import ROWS_IN_FLIGHT, Piece, Rows, rows_of  # only for files on servers

        address = _native.resolve(memory, True)[0]
        pieces = [Piece("", offset, size, address + place, memory) for offset, size, place in zip(ranges.offsets, ranges.sizes, ranges.places)]
        pieces, together = rows_of(pieces)
        for each in together:
            if len(self._rows) == ROWS_IN_FLIGHT:
                self._end_rows()
            self._rows.append((Rows(source.file, each), source))
        left = Ranges()
        left.add_all([each.offset for each in pieces], [each.nbytes for each in pieces], [each.address - address for each in pieces])
        return left

    def _end_rows(self) -> None:
        rows, source = self._rows[0]
        try:
            counts = rows.end()
        except Error as problem:
            raise _told(problem, source) from None
        _check_counts(source, [each.offset for each in rows.pieces], [each.nbytes for each in rows.pieces], counts)
        self._rows.popleft()

    def wait(self) -> None:
        """Waits for all batches. On the first error, or an exception from a signal handler, cancels the remaining batches and raises it."""
        try:
            while self._rows:
                self._end_rows()
            wait([each.future for each in self._batches], return_when=FIRST_EXCEPTION)
            for each in self._batches:
                if each.future.done():
                    each.check()
        finally:
            self.stop()

    def stop(self) -> None:
        """Cancels the batches in flight, and waits until they are done."""
        wait(self.cancel())

    def cancel(self) -> list[Any]:
        """Cancels the batches in flight. Their memory stays in use until they are done."""
        every = [*(each.future for each in self._batches), *(rows.future for rows, _ in list(self._rows))]
        running = [each for each in every if not each.done()]
        for each in running:
            each.cancel()
        return running


def read_now(source: Source, memory: Any, offset: int, size: int) -> None:
    """Reads one range to the start of a buffer. Blocks."""
    if size == 0:
        return
    try:
        count = source.file.read_into(memory, offset, size)
    except Error as problem:
        raise _told(problem, source) from None
    _check_counts(source, [offset], [size], [count])


def _check(future: _native.Future[list[int]], source: Source, offsets: Sequence[int], sizes: Sequence[int]) -> None:
    try:
        counts = future.result()
    except Error as problem:
        raise _told(problem, source) from None
    _check_counts(source, offsets, sizes, counts)


def _check_counts(source: Source, offsets: Sequence[int], sizes: Sequence[int], counts: Sequence[int]) -> None:
    if sum(counts) == sum(sizes):
        return
    cut = [(offset + count, offset, size) for offset, size, count in zip(offsets, sizes, counts) if count < size]
    end, offset, size = cut[0]
    names = listed(dict.fromkeys(_tensor_at(source, each[0]) for each in cut))
    raise ShortRead(
        f"{source.name}: the file was truncated after it was opened: it ends at {min(end, source.file.size())}, before the end of {names}",
        code="short_read",
        filename=source.name,
        offset=offset,
        bytes_done=end - offset,
    )


def _told(problem: Error, source: Source) -> Error:
    """Returns the error with the name of the tensor added."""
    if problem.offset is None:
        return problem
    from .._core.pieces import remade  # only errors need it

    return remade(problem, f'tensor "{_tensor_at(source, problem.offset)}" was not read: {problem}')


def _tensor_at(source: Source, offset: int) -> str:
    """Returns the name of the tensor whose bytes contain the offset. Skips empty tensors."""
    header = source.header
    row = bisect.bisect_right(header.offsets, offset) - 1
    while row > 0 and header.sizes[row] == 0:
        row -= 1
    return header.names[row]
