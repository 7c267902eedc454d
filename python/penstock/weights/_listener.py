"""Accepts connections from receivers."""

from __future__ import annotations

import collections
import logging
import os
import threading

from .. import pipe
from .._core.errors import Closed, Error
from ._talk import Talk
from ._versions import Versions
from ._wire import failure_word

__all__ = ["Door"]

_moment = 2.0  # seconds for a rejected receiver to send its request and read the reason
_most_leaving = 64  # limit on rejected receivers that are still connected
_most_joining = 10.0  # the longest time that close() waits for each thread, in seconds

_log = logging.getLogger("penstock")


class Door:
    """Accepts receivers in one thread, and serves each in its own thread. Does not refer to the server, so that the server can be dropped.
    """

    def __init__(self, listener: pipe.Listener, versions: Versions, most: int, timeout: float) -> None:
        self._listener = listener
        self.url = listener.url
        self._versions = versions
        self._most = most
        self._timeout = timeout
        self._process = os.getpid()
        self._lock = threading.RLock()  # reentrant: the garbage collector may call close() in any thread
        self._inside: dict[pipe.Pipe, threading.Thread] = {}
        self._leaving: collections.deque[pipe.Pipe] = collections.deque()
        self._closed = False
        self._thread = threading.Thread(target=self._let_in, name="penstock-weights", daemon=True)
        self._thread.start()

    @property
    def connected(self) -> int:
        return len(self._inside)

    @property
    def refused(self) -> int:
        return self._listener.refused

    def _let_in(self) -> None:
        while not self._closed:
            try:
                come = self._listener.accept().result()
            except Error as problem:
                if not self._closed:
                    _log.warning("serve_weights: %s no longer accepts receivers: %s", self._listener.url, str(problem))
                return
            thread = threading.Thread(target=self._serve, args=(come,), name="penstock-weights", daemon=True)
            with self._lock:
                room = len(self._inside) < self._most and not self._closed
                if room:
                    self._inside[come] = thread
            if room:
                self._start(thread, come)
            else:
                self._turn_away(come)

    def _start(self, thread: threading.Thread, come: pipe.Pipe) -> None:
        try:
            thread.start()
        except RuntimeError as problem:  # the system cannot start another thread
            _log.warning("serve_weights: %s rejected a receiver: %s", self._listener.url, str(problem))
            with self._lock:
                self._inside.pop(come, None)
            come.close()

    def _turn_away(self, come: pipe.Pipe) -> None:
        """Sends the reason, and closes the connection once the receiver has sent its first message, or after a moment."""
        come.send(failure_word(self._why_not()))
        leaving = self._leaving
        leaving.append(come)
        if len(leaving) > _most_leaving:
            leaving.popleft().close()
        come.next(_moment).add_done_callback(lambda _: come.close())

    def _why_not(self) -> Error:
        if self._closed:
            return Closed("the weights server is closed", code="closed")
        return Error(f"{self._listener.url} already has {self._most} receivers, the limit set by receivers=", code="would_block")

    def _serve(self, come: pipe.Pipe) -> None:
        talk = Talk(come, self._versions, self._timeout)
        try:
            talk.go_on()
        except Exception as problem:
            talk.tell(problem)
        finally:
            talk.release()
            come.close()
            with self._lock:
                self._inside.pop(come, None)

    def close(self) -> None:
        if os.getpid() != self._process:
            return  # a forked child does not inherit the threads or the connections
        self._closed = True
        self._versions.close()
        self._listener.close()
        with self._lock:
            inside = dict(self._inside)
        for each in (*inside, *self._leaving):
            each.close()
        for thread in (self._thread, *inside.values()):
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(_most_joining)
