"""Versions of the weights. One version is current, and each version stays unchanged while any receiver is reading it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from .._core.boxes import Box
from .._core.errors import Closed, InvalidArgument, TimedOut
from ._deadline import left_until
from ._held import Held
from ._local_arrays import Local, Places, copy_all, local_of, marks_of, places_of, rooms_for
from ._wire import MOST_TENSORS, Catalog, Piece, Row, problem_for_catalog

__all__ = ["Snapshot", "Version", "Versions"]


class Coming(Protocol):
    def wait_for(self, locals_: list[Local], deadline: float) -> None: ...


_MemoryFor = weakref.WeakKeyDictionary[object, tuple[list[list[Piece]], list[list[Any]]]]


class Version:
    """Tensors with a version number. Work that is queued on their devices' streams at construction is part of the version."""

    def __init__(self, number: int, held: list[Held], snapshot: Snapshot | None, before: Version | None, coming: Coming | None = None) -> None:
        """`coming` tracks tensors that have not arrived yet."""
        self.number = number
        self.held = held
        self.snapshot = snapshot
        self.readers = 0
        self._coming = coming
        same = before if before is not None and before.held is held else None
        self.locals: list[Local] = [each.local for each in held] if same is None else same.locals
        self.places: Places = places_of(self.locals) if same is None else same.places
        self.catalog: Catalog = _catalog_of(held, before) if same is None else same.catalog
        # Each receiver's messages and the memory of their pieces. The keys are weak, so a receiver does not keep old tensors alive.
        self._memory: _MemoryFor = weakref.WeakKeyDictionary() if same is None else same._memory
        self._marks = marks_of(self.places)

    def settle(self) -> None:
        """Blocks until the GPU has written the values."""
        for mark in self._marks:
            mark.synchronize()
        self._marks = []

    def wait_for(self, pieces: list[Piece], deadline: float) -> None:
        """Waits until these pieces have arrived. Raises TimedOut, and Closed if they will not arrive."""
        if self._coming is not None:
            self._coming.wait_for([self.locals[each.row] for each in pieces], deadline)

    def memory_for(self, asker: object, messages: list[list[Piece]]) -> list[list[Any]]:
        """Returns each piece's memory, or None if the piece is not contiguous and must be copied first. The result is cached for a receiver that
        sends the same request again.
        """
        found = self._memory.get(asker)
        if found is None or found[0] is not messages:
            found = self._memory[asker] = messages, [[self._memory_of(each) for each in message] for message in messages]
        return found[1]

    def _memory_of(self, piece: Piece) -> Any:
        view, local = self.view(piece)
        return local.library.memory(view) if local.library.is_contiguous(view) else None

    def view(self, piece: Piece) -> tuple[Any, Local]:
        row, local = self.catalog.rows[piece.row], self.locals[piece.row]
        return local.cut(row.box, piece.box, row.itemsize), local


def _catalog_of(held: list[Held], before: Version | None) -> Catalog:
    rows = [_row(each) for each in held]
    return before.catalog if before is not None and before.catalog.rows == rows else Catalog.of(rows)


def _row(held: Held) -> Row:
    local = held.local
    if held.whole is None or held.box is None:  # a DeviceBuffer
        whole = (local.nbytes,)
        return Row(held.name, "uint8", 1, True, whole, Box.whole(whole))
    return Row(held.name, held.dtype or "uint8", local.itemsize, local.is_contiguous, held.whole, held.box)


def check_sendable(held: list[Held]) -> None:
    """Raises InvalidArgument if a tensor cannot be served."""
    if len(held) > MOST_TENSORS:
        raise InvalidArgument(f"there are {len(held)} tensors, but at most {MOST_TENSORS} can be served", code="invalid_argument")
    for each in held:
        problem = problem_for_catalog(each.name, len(each.whole or ())) if each.local.problem is None else f"it {each.local.problem}"
        if problem is not None:
            raise InvalidArgument(f'"{each.name}" cannot be served: {problem}', code="invalid_argument")


class Snapshot:
    """Memory for a copy of one version. A later version of the same tensors overwrites the copy."""

    def __init__(self) -> None:
        self._of: list[Held] | None = None
        self._like: list[Any] = []
        self._copies: list[Any] = []
        self._held: list[Held] = []

    def take(self, held: list[Held]) -> list[Held]:
        """Queues the copies on the current streams. Tensors that share memory are copied once."""
        distinct = {each.local.key: each.local for each in held}
        if held is not self._of:
            self._make_room(list(distinct.values()))
        copy_all(list(distinct.values()), self._copies)
        if held is not self._of:
            copies = dict(zip(distinct, self._copies))
            self._held = [each._replace(local=_local_like(each, copies[each.local.key])) for each in held]
            self._of = held
        return self._held

    def _make_room(self, locals_: list[Local]) -> None:
        like = [(each.library, each.device, each.dtype, each.shape, each.nbytes) for each in locals_]
        self._of = None
        if like != self._like:
            self._like, self._copies, self._held = [], [], []
            self._copies = rooms_for(locals_)
            self._like = like


def _local_like(held: Held, copy: Any) -> Local:
    return held.local if isinstance(copy, bytes) else local_of(held.name, copy)  # there are no empty DeviceBuffers


class Versions:
    """The current version, and the receivers of each version. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._current: Version | None = None
        self._last: Version | None = None
        self._reading: set[Version] = set()
        self._closed = False

    @property
    def latest(self) -> int:
        """The last version's number, or -1 if there has been none."""
        return -1 if self._last is None else self._last.number

    @property
    def last(self) -> Version | None:
        """The current version, or the one before `withdraw()`."""
        return self._last

    @property
    def current(self) -> Version | None:
        return self._current

    def publish(self, version: Version) -> None:
        with self._changed:
            self._check()
            self._current = self._last = version
            self._changed.notify_all()

    def lease(self, at_least: int, newer_than: int, deadline: float, gone: Callable[[], bool]) -> Version | int:
        """Returns the current version, which stays unchanged until `release()`, or only its number if it is not newer than `newer_than`. Waits for
        version `at_least`. Raises TimedOut and Closed.
        """
        with self._changed:
            while True:
                self._check()
                found = self._current
                if found is not None and found.number >= at_least:
                    if found.number <= newer_than:
                        return found.number
                    found.readers += 1
                    self._reading.add(found)
                    return found
                left = left_until(deadline)
                if gone():
                    raise Closed("the receiver has disconnected", code="closed")
                if not left:
                    wanted = f"version {at_least}" if at_least > self.latest else "the next version"
                    raise TimedOut(f"{wanted} was not published in time: the latest is {self.latest}", code="timed_out")
                self._changed.wait(left)

    def release(self, version: Version) -> None:
        with self._changed:
            version.readers -= 1
            if not version.readers:
                self._reading.discard(version)
            self._changed.notify_all()

    def wake(self) -> None:
        """Wakes all waiting threads."""
        with self._changed:
            self._changed.notify_all()

    def withdraw(self, deadline: float) -> None:
        """Rejects new readers and waits for current ones. Raises Closed, and TimedOut, in which case nothing has changed."""
        with self._changed:
            self._check()
            withdrawn, self._current = self._current, None
            try:
                self._wait(lambda: not self._reading, deadline)
            except BaseException:
                self._current = withdrawn
                self._changed.notify_all()
                raise

    def withdraw_now(self) -> None:
        """Rejects new readers."""
        with self._changed:
            self._current = None

    def free_snapshot(self, among: list[Snapshot], deadline: float) -> Snapshot:
        """Returns a snapshot that is neither current nor being read. If there is only one, its version is withdrawn. Raises the errors of
        `withdraw()`.
        """
        if len(among) == 1:
            self.withdraw(deadline)
            return among[0]

        def free() -> Snapshot | None:
            used = {version.snapshot for version in (*self._reading, self._current) if version is not None}
            return next((each for each in among if each not in used), None)

        with self._changed:
            self._wait(lambda: free() is not None, deadline)
            found = free()
        assert found is not None
        return found

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._current = None
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool], deadline: float) -> None:
        while not condition():
            self._check()
            left = left_until(deadline)
            if not left:
                raise TimedOut(f"{sum(each.readers for each in self._reading)} receivers are still reading the weights", code="timed_out")
            self._changed.wait(left)

    def _check(self) -> None:
        if self._closed:
            raise Closed("the weights server is closed", code="closed")
