"""Many reads of many files as one batch of penstock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import penstock

__all__ = ["Outcome", "Pending", "Read", "start_reads"]

Outcome = int | BaseException  # the count of bytes, short at end of file only, or why there are none


class Read(NamedTuple):
    """One range of a file, and where it goes: a request as penstock.pread_many() takes it."""

    file: penstock.File
    buffer: Any
    offset: int  # in the file
    size: int
    buffer_offset: int = 0


class Pending:
    """Reads under way, from start_reads(). Files and buffers are kept alive until they have ended."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self._reads = reads
        self._future = penstock.pread_many(reads)

    def wait(self) -> list[Outcome]:
        """Blocks until all have ended; one outcome per read, in order. An error of one does not disturb the others."""
        try:
            return list(self._future.result())
        except (OSError, ValueError):
            # Rare: one of them failed. Each is asked again to learn which.
            return [_read_alone(read) for read in self._reads]

    def end(self) -> None:
        """Blocks until all have ended, however."""
        with suppress(Exception):  # wait() tells of it
            self._future.result()

    def when_done(self, callback: Callable[[list[Outcome]], object]) -> None:
        """Calls back once with what wait() gives, on any thread and possibly at once. It must not block."""
        self._future.add_done_callback(lambda _: callback(self.wait()))


def start_reads(reads: Sequence[Read]) -> Pending:
    """Starts all reads and waits for none of them. Raises for what is wrong with a buffer or a range, having started none."""
    return Pending(reads)


def _read_alone(read: Read) -> Outcome:
    try:
        return read.file.read_into(read.buffer, read.offset, read.size, read.buffer_offset)
    except (OSError, ValueError) as error:
        return error
