"""Receives one server's messages into their target tensors."""

from __future__ import annotations

import collections
from typing import Any

from .. import _native
from .._core.errors import Error, InvalidArgument
from ._deadline import left_until, until
from ._line import GRACE, Line
from ._local_arrays import Place, handles_for
from ._transfer_plan import Batch, Landing
from ._wire import GATHERED_BYTES, malformed, packed_pieces

__all__ = ["Track"]

_most_posted = 16  # receives posted at once per server
_most_room = 2 * GATHERED_BYTES  # bytes of temporary buffers per server


class Track:
    """Receives from one server. Receives are posted in message order, before the server is requested to send."""

    def __init__(self, line: Line, batches: list[Batch], streams: dict[Place, int]) -> None:
        self.line = line
        self._streams = streams
        self._batches = batches
        self._next = 0  # index of the next batch to post
        self._posted: collections.deque[tuple[Batch, list[Any], _native.Future[None]]] = collections.deque()
        self._room = 0  # bytes of temporary buffers in use
        self.done: list[Batch] = []
        self.failed: list[Batch] = []  # batches that were posted but not received
        self.broken_by: BaseException | None = None

    def begin(self, deadline: float) -> None:
        self._post(deadline)
        known = self.line.asked is self._batches
        pieces = [] if known else packed_pieces([each.piece for each in batch.landings] for batch in self._batches)
        self.line.say({"ask": "send"}, pieces, deadline)
        self.line.asked = self._batches

    @property
    def is_under_way(self) -> bool:
        return bool(self._posted)

    @property
    def head(self) -> _native.Future[None]:
        return self._posted[0][2]

    @property
    def left(self) -> list[Batch]:
        """The batches whose receives have not been posted."""
        return self._batches[self._next :]

    def _post(self, deadline: float) -> None:
        while self._next < len(self._batches) and len(self._posted) < _most_posted:
            batch = self._batches[self._next]
            if self._posted and self._room + batch.room > _most_room:
                return
            rooms = [None if each.direct else _room_for(each) for each in batch.landings]
            into = [each.memory if room is None else each.local.library.memory(room) for each, room in zip(batch.landings, rooms)]
            handles = handles_for((each.local for each in batch.landings), self._streams)
            self._posted.append((batch, rooms, self.line.receive(into, handles, deadline)))
            self._room += batch.room
            self._next += 1

    def go_on(self, deadline: float) -> list[Batch]:
        """Handles the messages that have arrived, posts more receives, and returns the arrived batches."""
        before = len(self.done)
        while self._posted and self.head.done():
            batch, rooms, future = self._posted[0]
            try:
                self.line.outcome(future)
            except Error as problem:
                self.broken_by = problem
                raise
            for each, room in zip(batch.landings, rooms):
                if room is not None:
                    each.local.library.put(each.view, room)
            self._posted.popleft()
            self._room -= batch.room
            self.done.append(batch)
        self._post(deadline)
        return self.done[before:]

    def end(self, version: int, deadline: float) -> None:
        word, _ = self.line.hear(deadline)
        if word.get("sent") != version:
            raise self.line.named(malformed(f"a version other than {version}"))

    def failure(self) -> Error | None:
        """Returns the error that the server sent instead of tensors, or None."""
        if not isinstance(self.broken_by, InvalidArgument):
            return None
        deadline = until(GRACE)
        for _ in range(len(self.left) + 1):
            said = self.line.hear_failure()
            if said is not None or not left_until(deadline):
                return said
        return None

    def stop(self) -> None:
        """Waits for the receives to stop after the connection is closed. Once it returns, nothing is written any more."""
        for batch, _, future in self._posted:
            future.cancel()
            future.exception()
            self.failed.append(batch)
        self._posted.clear()


def _room_for(landing: Landing) -> Any:
    """Allocates contiguous memory like the view."""
    return landing.local.library.empty(tuple(landing.view.shape), landing.view.dtype, landing.local.device)
