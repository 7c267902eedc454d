"""Submits many reads from many files as one batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import penstock

__all__ = ["Outcome", "Pending", "Read", "Window", "run_in_order", "start_reads"]

Outcome = int | BaseException  # the number of bytes, which is short only at end of file, or the exception


class Read(NamedTuple):
    """A range of a file and its destination: a request for penstock.pread_many()."""

    file: penstock.File
    buffer: Any
    offset: int  # in the file
    size: int
    buffer_offset: int = 0


class Pending:
    """Reads in flight, from start_reads(). Keeps files and buffers alive until the reads are done."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self._reads = reads
        self._future = penstock.pread_many(reads)

    def wait(self) -> list[Outcome]:
        """Blocks until all reads are done. Returns one outcome per read, in order; an error in one read does not affect the others."""
        try:
            return list(self._future.result())
        except (OSError, ValueError):
            # Rare: at least one read failed. Repeat each read separately to find out which.
            return [_read_alone(read) for read in self._reads]

    def end(self) -> None:
        """Blocks until all reads are done. Ignores errors."""
        with suppress(Exception):  # wait() reports errors
            self._future.result()

    def when_done(self, callback: Callable[[list[Outcome]], object]) -> None:
        """Calls the callback once with the result of wait(), on any thread and possibly immediately. The callback must not block."""
        self._future.add_done_callback(lambda _: callback(self.wait()))


def start_reads(reads: Sequence[Read]) -> Pending:
    """Starts all reads without waiting for them. If a buffer or a range is invalid, raises without starting any read."""
    return Pending(reads)


class Window(Protocol):
    """A group of a load's reads, and what is done with their bytes."""

    def start(self) -> None: ...

    def finish(self) -> None:
        """Waits for the reads and stores their bytes."""

    def abandon(self) -> None:
        """Waits until nothing is in progress. The reads may not have been started, or may be finished."""


def run_in_order(windows: Iterable[Window], most: int) -> None:
    """Starts windows, and finishes the oldest one when `most` have been started. Raises the first error, and then abandons the others."""
    under_way: deque[Window] = deque()
    try:
        for window in windows:
            under_way.append(window)
            window.start()
            if len(under_way) >= most:
                under_way[0].finish()
                under_way.popleft()
        while under_way:
            under_way[0].finish()
            under_way.popleft()
    finally:
        # After an error, or Ctrl-C at any point, nothing may still be writing to the result.
        for window in under_way:
            window.abandon()


def _read_alone(read: Read) -> Outcome:
    try:
        return read.file.read_into(read.buffer, read.offset, read.size, read.buffer_offset)
    except (OSError, ValueError) as error:
        return error
