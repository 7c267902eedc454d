"""Handles one receiver's requests."""

from __future__ import annotations

import collections
import contextlib
import json
from typing import Any

from .. import _native, pipe
from .._core.errors import Closed, Error, TimedOut
from ._deadline import left_until, until
from ._local_arrays import handles_for, quiet_streams, streams_of
from ._versions import Version, Versions
from ._wire import GATHERED_BYTES, PROTOCOL, Piece, failure_word, malformed, number_in, unpacked_pieces, word_of

__all__ = ["Talk"]

_first_word = 10.0 # seconds to wait for the first request
_most_under_way = 16  # messages
_most_gathered = 4 * GATHERED_BYTES  # bytes of temporary buffers at once
_last_words = 1.0  # seconds after the deadline to report the result of the transfer
_most_wait = 86_400.0  # seconds that a receiver may wait for a version


class Talk:
    """The conversation with one receiver."""

    def __init__(self, with_: pipe.Pipe, versions: Versions, timeout: float) -> None:
        self._pipe = with_
        self._versions = versions
        self._timeout = timeout
        self._leased: Version | None = None
        self._deadline = 0.0  # when the lease expires
        self._digest = ""  # digest of the catalog that the pieces refer to
        self._batches: list[list[Piece]] = []

    def go_on(self) -> None:
        """Handles requests until the receiver disconnects."""
        asked = self._pipe.next()
        deadline: float | None = until(_first_word)
        while True:
            try:
                message = asked.result(timeout=None if deadline is None else left_until(deadline))
            except Closed:
                return
            except TimeoutError:
                raise TimedOut("the receiver did not continue in time", code="timed_out") from None
            asked = self._pipe.next()  # is done when the receiver disconnects
            self._answer(word_of(message), message.payloads, asked)
            deadline = self._deadline if self._leased is not None else None

    def _answer(self, word: dict[str, Any], payloads: list[bytes], coming: _native.Future[pipe.Descriptor]) -> None:
        ask = word.get("ask")
        if ask == "catalog":
            self._tell_catalog(word, coming)
        elif ask == "send" and self._leased is not None:
            self._send(self._leased, payloads)
        elif ask == "done":
            self.release()
        else:
            raise malformed(f"the request {str(ask)[:100]!r}, which is not valid now")

    def _tell_catalog(self, word: dict[str, Any], coming: _native.Future[pipe.Descriptor]) -> None:
        if word.get("weights") != PROTOCOL:
            raise malformed(f"protocol version {str(word.get('weights'))[:100]!r}, but only version {PROTOCOL} is supported")
        self.release()
        deadline = until(min(max(0, number_in(word, "wait_ms", 0)) / 1000, _most_wait))
        coming.add_done_callback(lambda _: self._versions.wake())
        try:
            found = self._versions.lease(number_in(word, "at_least", -1), number_in(word, "newer_than", -1), deadline, coming.done)
        except TimedOut as problem:
            self._pipe.send(failure_word(problem), timeout=self._timeout).result()
            return
        if isinstance(found, int):
            self._pipe.send(json.dumps({"unchanged": found}).encode(), timeout=self._timeout).result()
            return
        self._leased, self._deadline = found, until(self._timeout)
        known = word.get("known") == found.catalog.digest
        told = json.dumps({"version": found.number, "digest": found.catalog.digest}).encode()
        self._pipe.send(told, [] if known else found.catalog.payloads, timeout=self._timeout).result()

    def _send(self, version: Version, payloads: list[bytes]) -> None:
        """Sends the requested pieces, or without a list, the pieces of the last request."""
        if payloads:
            self._batches, self._digest = unpacked_pieces(payloads, version.catalog.rows), version.catalog.digest
        elif self._digest != version.catalog.digest:
            raise malformed("a request without pieces, but there is no previous request")
        sending = _Sending(self._pipe, version, self._deadline)
        last = self._deadline + _last_words
        try:
            sending.send(self._batches, version.memory_for(self, self._batches))
            end = json.dumps({"sent": version.number}).encode()
        except Exception as problem:
            end = failure_word(problem)
            for _ in self._batches[sending.begun :]:  # the receiver waits for each of them
                self._pipe.send(end, timeout=left_until(last)).result()
        finally:
            sending.end()
        self._pipe.send(end, timeout=left_until(last)).result()

    def release(self) -> None:
        if self._leased is not None:
            self._versions.release(self._leased)
            self._leased = None

    def tell(self, problem: Exception) -> None:
        """Sends the reason why the server is closing the connection."""
        with contextlib.suppress(Error):
            self._pipe.send(failure_word(problem), timeout=1.0).result()


class _Sending:
    """The messages in flight, and their temporary buffers."""

    def __init__(self, to: pipe.Pipe, version: Version, deadline: float) -> None:
        self._pipe = to
        self._version = version
        self._deadline = deadline
        self._going: collections.deque[tuple[_native.Future[int], int]] = collections.deque()
        self._gathered = 0  # bytes of temporary buffers
        self.begun = 0  # messages sent or in flight

    def send(self, batches: list[list[Piece]], memory: list[list[Any]]) -> None:
        """Sends the batches. `memory` contains the memory of each piece, or None if the piece is not contiguous."""
        self._version.settle()
        with quiet_streams(self._version.places):
            streams = streams_of(self._version.places)
            for batch, there in zip(batches, memory):
                self._version.wait_for(batch, self._deadline)
                gathered = self._wait_for_room(batch, there)
                sent = [self._copied(piece) if found is None else found for piece, found in zip(batch, there)]
                handles = handles_for((self._version.locals[each.row] for each in batch), streams)
                self._gathered += gathered
                self._going.append((self._pipe._send_memory(sent, handles, left_until(self._deadline)), gathered))
                self.begun += 1
        while self._going:
            self._finish_one()

    def _wait_for_room(self, batch: list[Piece], memory: list[Any]) -> int:
        """Waits until the limits allow another message and its temporary buffers. Returns the size of these buffers in bytes."""
        rows = self._version.catalog.rows
        gathered = sum(each.box.size * rows[each.row].itemsize for each, found in zip(batch, memory) if found is None)
        if gathered > GATHERED_BYTES:
            raise malformed(f"a request for a message with {gathered} non-contiguous bytes")
        while self._going and (len(self._going) == _most_under_way or self._gathered + gathered > _most_gathered):
            self._finish_one()
        return gathered

    def _copied(self, piece: Piece) -> Any:
        view, local = self._version.view(piece)
        return local.library.memory(local.library.copied(view))

    def _finish_one(self) -> None:
        future, gathered = self._going[0]
        future.result()
        self._going.popleft()
        self._gathered -= gathered

    def end(self) -> None:
        """Cancels the messages in flight. Once it returns, nothing reads the memory."""
        for future, _ in self._going:
            future.cancel()
            future.exception()
        self._going.clear()
