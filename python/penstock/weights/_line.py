"""A receiver's connection to one weights server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from .. import _native, pipe
from .._core.errors import Closed, Error
from .._core.pieces import remade
from ._deadline import left_until
from ._transfer_plan import Batch
from ._wire import PROTOCOL, Catalog, failure_of, malformed, number_in, word_of

__all__ = ["GRACE", "Line"]

GRACE = 1.0  # seconds after the deadline for the server to report the cause of the delay


class Line:
    """The connection to one server, and the information about its tensors."""

    def __init__(self, url: str, secret: str | bytes, channels: list[str], connections: int) -> None:
        self.url = url
        self._settings = channels, secret, connections
        self._pipe: pipe.Pipe | None = None
        self.version: int | None = None  # leased for this receiver, or the latest version if it is not newer
        self.catalog: Catalog | None = None
        self.digest = ""
        self.asked: list[Batch] | None = None  # the batches whose pieces have been sent to the server

    def _open(self) -> pipe.Pipe:
        if self._pipe is None:
            self._pipe = pipe.connect(self.url, *self._settings)
        return self._pipe

    def explain(self) -> pipe.PipePlan:
        return self._open().explain()

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        self._pipe, self.asked = None, None

    def ask_catalog(self, at_least: int, newer_than: int, deadline: float) -> None:
        wait_ms = int(left_until(deadline) * 1000)
        word = {"weights": PROTOCOL, "ask": "catalog", "at_least": at_least, "newer_than": newer_than, "wait_ms": wait_ms, "known": self.digest}
        self.say(word, [], deadline)

    def take_catalog(self, at_least: int, newer_than: int, deadline: float) -> None:
        word, payloads = self.hear(deadline)
        with self._errors_named():
            unchanged = "unchanged" in word
            self.version = number_in(word, "unchanged" if unchanged else "version")
            if self.version < max(0, at_least) or unchanged is not (self.version <= newer_than):
                raise malformed(f"version {self.version}, which was not requested")
            if unchanged:
                return
            if payloads:
                catalog = Catalog.read(payloads)
                self.catalog, self.digest, self.asked = catalog, catalog.digest, None
            elif self.catalog is None or word.get("digest") != self.digest:
                raise malformed("no catalog")

    def done(self) -> None:
        """Lets the server release the version."""
        if self._pipe is not None:
            self._pipe.send(json.dumps({"ask": "done"}).encode())

    def say(self, word: dict[str, Any], payloads: list[bytes], deadline: float) -> None:
        with self._errors_named():
            with_ = self._open()
            try:
                with_.send(json.dumps(word).encode(), payloads, timeout=left_until(deadline)).result()
            except Closed as problem:
                raise _last_word_of(with_) or problem from None

    def hear(self, deadline: float) -> tuple[dict[str, Any], list[bytes]]:
        with self._errors_named():
            message = self._open().next(left_until(deadline) + GRACE).result()
            word = word_of(message)
            if failed := failure_of(word):
                raise failed
            return word, message.payloads

    def hear_failure(self) -> Error | None:
        """Returns the server's error if it has sent one instead of a response."""
        said = _last_word_of(self._open())
        return None if said is None else self.named(said)

    def receive(self, into: list[Any], streams: list[int], deadline: float) -> _native.Future[None]:
        return self._open()._receive_memory(into, streams, left_until(deadline))

    def outcome(self, future: _native.Future[Any]) -> None:
        with self._errors_named():
            future.result()

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except Error as problem:
            raise self.named(problem) from None

    def named(self, problem: Error) -> Error:
        return remade(problem, f"{self.url}: {problem}")


def _last_word_of(ended: pipe.Pipe) -> Error | None:
    """Returns the error that the server sent before it closed the connection, or None."""
    try:
        return failure_of(word_of(ended.next(GRACE).result()))
    except Error:
        return None
