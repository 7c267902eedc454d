"""Transfers many ranges of one file at once to or from the memory of several devices, with progress, cancellation, and errors that name the range."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .. import _native
from .errors import Cancelled, Error, ShortRead
from .futures import as_completed, wait

__all__ = ["Control", "Piece", "Progress", "move_pieces", "remade"]

Progress = Callable[[int, int], object]  # called with the bytes done and the total bytes

# The minimum number of bytes between two calls of progress.
_STEP_BYTES = 64 << 20


class Piece(NamedTuple):
    """A range of the file, and its source or target memory."""

    name: str  # for errors, such as "storage data/0"
    offset: int
    nbytes: int
    address: int
    owner: Any  # keeps the memory alive
    device: Any = "host"  # the memory's device: any hashable value that identifies it


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
    """Reads or writes all pieces in file order. Blocks. Each device's pieces form one batch, or several if there is a progress callback.

    - `label`: the file's name for errors.
    - `meanwhile`: called once all pieces are in flight.
    - `progress`: called on this thread.

    An interruption, including an exception from `progress` or `meanwhile`, cancels the requests and waits for them before it propagates. Raises
    penstock.Error, which names the piece; ShortRead if the file ends too early; Cancelled if `control` was stopped.
    """
    control = control or Control()
    batches = [batch for each in _of_each_device(pieces) for batch in (_steps(each) if progress else [each])]
    total, done = sum(each.nbytes for each in pieces), 0
    start = file.pwrite_many if write else file.pread_many
    futures: dict[Any, list[Piece]] = {}
    try:
        for batch in batches:
            control.check()
            future = start([(_native.Pointer(each.address, each.nbytes, each.owner), each.offset) for each in batch])
            futures[future] = batch
            control._add(future)
        if meanwhile is not None:
            meanwhile()
        for future in as_completed(futures):
            _check(label, futures[future], future, write)
            done += sum(each.nbytes for each in futures[future])
            if progress is not None:
                progress(done, total)
    except BaseException:
        for future in futures:
            future.cancel()
        wait(futures)
        raise
    finally:
        control._discard(futures)


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
        names = [each.name for each in pieces if error.offset is not None and each.offset <= error.offset < each.offset + each.nbytes]
        raise remade(error, f"{label}: {names[0] + ': ' if names else ''}{error}") from error
    for each, count in zip(pieces, counts):
        if count != each.nbytes:
            verb, why = ("wrote", "the file cannot grow") if write else ("read", "the file ends there")
            message = f"{label}: {each.name}: {verb} {count} of {each.nbytes} bytes at offset {each.offset}: {why}"
            raise ShortRead(message, code="short_read", filename=label, offset=each.offset, bytes_done=count)
