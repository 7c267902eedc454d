"""serve_weights(): weights of a process that has them, to processes that want them."""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from .. import _native, pipe
from .._errors import Closed, Error, InvalidArgument, TimedOut
from ._deadline import left_until, until
from ._held import Holder, Parts, names_of
from ._memory import Local, handles_for, quiet_streams, streams_of
from ._versions import Snapshot, Version, Versions, check_sendable
from ._wire import GATHERED_BYTES, PROTOCOL, Piece, failure_word, malformed, number_in, unpacked_pieces, word_of

__all__ = ["Door", "WeightsServer", "secret_of", "serve_weights"]

_first_word = 10.0  # seconds that whoever connects has to ask for something
_most_under_way = 16  # messages
_most_gathered = 4 * GATHERED_BYTES  # of a receiver, at once
_most_wait = 86_400.0  # seconds that a receiver may wait for a version
_moment = 2.0  # seconds that whoever is turned away has to ask, and hear why
_most_leaving = 64  # who are turned away, and have not gone
_most_joining = 10.0  # seconds that close() waits for each thread

_log = logging.getLogger("penstock")


def secret_of(secret: str | bytes | None) -> str | bytes:
    return os.environ.get("PENSTOCK_WEIGHTS_SECRET", "") if secret is None else secret


def serve_weights(
    weights: Any,
    url: str | None = None,
    *,
    names: Iterable[str] | None = None,
    parts: Parts | None = None,
    snapshot: int = True,
    version: int = 0,
    secret: str | bytes | None = None,
    channels: Sequence[str] = (),
    connections: int = 4,
    receivers: int = 256,
    timeout: float = 300.0,
) -> WeightsServer:
    """Serves the weights of this process to those that call load_weights(). Returns at once; threads in the background serve.

    weights: a torch.nn.Module (its state_dict()), or a mapping of names to tensors of PyTorch, arrays of NumPy or CuPy, or DeviceBuffers.
    url: as for penstock.pipe.listen(): unix:@name, unix:/path, tcp://host:port; None chooses a unix socket, which WeightsServer.url names.
    names: of the tensors that are served; None is all.
    parts: for tensors that are this rank's part of larger ones: the name, and a pair of the whole shape and of slices, one for each dimension
    from the first on. Of a DTensor the part is known.
    snapshot: copies of the weights that the server has on their device: with 1 (True) the program may change the weights at once, and update()
    waits for those that still read the copy; with 2, update() waits only for those that read the version before the last. With 0 (False)
    there is no copy, and the program must not change the weights until pause() has returned.
    version: of these weights. secret: as for penstock.pipe.listen(); None takes the one in the environment variable PENSTOCK_WEIGHTS_SECRET.
    channels, connections: as for penstock.pipe.listen().
    receivers: at most as many at once; others get an error. timeout: seconds that a receiver may hold a version for.

    On a GPU, values are those of the work that the current stream holds when this is called. Raises TypeError, InvalidArgument for what cannot
    be served, and what penstock.pipe.listen() raises.
    """
    return WeightsServer(weights, url, names, parts, snapshot, version, secret, channels, connections, receivers, timeout)


class WeightsServer:
    """What serve_weights() returns. Thread-safe; a context manager. Closed when it is dropped."""

    def __init__(
        self,
        weights: Any,
        url: str | None,
        names: Iterable[str] | None,
        parts: Parts | None,
        snapshot: int,
        version: int,
        secret: str | bytes | None,
        channels: Sequence[str],
        connections: int,
        receivers: int,
        timeout: float,
    ) -> None:
        if not isinstance(snapshot, int) or not 0 <= snapshot <= 16:
            raise InvalidArgument(f"snapshot is {snapshot!r}: the number of copies, 0 (False) to 16", code="invalid_argument")
        self._weights, self._holder = weights, Holder("weights", names_of(names), parts)
        self._timeout = timeout
        self._snapshots = [Snapshot() for _ in range(snapshot)]
        self._updating = threading.Lock()
        self._versions = Versions()
        self._versions.publish(self._made(version, weights, self._holder, until(timeout)))
        listener = pipe.listen("unix:" if url is None else url, channels, secret_of(secret), connections)
        self.url: str = listener.url
        self._door = Door(listener, self._versions, receivers, timeout)
        self._close = weakref.finalize(self, Door.close, self._door)  # at the end of the interpreter too

    @property
    def version(self) -> int:
        """That receivers get, or got last where pause() keeps them waiting."""
        return self._versions.latest

    @property
    def receivers(self) -> int:
        """How many are connected."""
        return self._door.connected

    @property
    def refused(self) -> int:
        """The number of processes that connected and gave another secret."""
        return self._door.refused

    def update(self, weights: Any = None, *, parts: Parts | None = None, version: int | None = None, timeout: float | None = None) -> int:
        """Makes a new version of the weights as they are now, which receivers get from then on; those under way get the one that they began
        with. Returns its number: version, which must be higher than the last, or one more than the last.

        weights, parts: others instead, which may differ in everything; those of before may still be read, and must not change until receivers
        have ended (see pause()), unless there are snapshots. With snapshots this waits for receivers as serve_weights() says, for timeout seconds
        at most (None: the server's). Without them it takes the same weights only after pause(). On a GPU, values are those of the work that the
        current stream holds.
        Raises TimedOut, and the version of before goes on; InvalidArgument; Closed; OutOfMemory for a snapshot, and nothing is served until an update().
        """
        deadline = until(self._timeout if timeout is None else timeout)
        with self._updating:
            number = self._versions.latest + 1 if version is None else version
            if not self._versions.latest < number < 1 << 53:
                raise InvalidArgument(f"version {number} is not higher than {self._versions.latest}, the last", code="invalid_argument")
            if weights is None and not self._snapshots and self._versions.current is not None:
                raise InvalidArgument("without a snapshot, weights change only between pause() and update()", code="invalid_argument")
            holder = self._holder
            if weights is not None or parts is not None:
                holder = Holder("weights", holder.names, parts)
            weights = self._weights if weights is None else weights
            self._versions.publish(self._made(number, weights, holder, deadline))
            self._weights, self._holder = weights, holder
        return number

    def pause(self, timeout: float | None = None) -> None:
        """Waits until nobody reads the weights, and keeps those who come waiting for the next update(). Then the weights may change.

        timeout: seconds; None: the server's. Raises TimedOut, and all is as before; Closed.
        """
        with self._updating:
            self._versions.withdraw(until(self._timeout if timeout is None else timeout))

    def close(self) -> None:
        """Ends it: receivers under way get an error. pause() before lets them finish."""
        self._close()

    def _made(self, number: int, weights: Any, holder: Holder, deadline: float) -> Version:
        held = holder.held(weights)
        check_sendable(held)
        before = self._versions.last
        if not self._snapshots:
            return Version(number, held, None, before)
        snapshot = self._versions.free_snapshot(self._snapshots, deadline)
        return Version(number, snapshot.take(held), snapshot, before)

    def __enter__(self) -> WeightsServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.weights.WeightsServer of version {self.version} at {self.url}>"


class Door:
    """Where receivers connect, with a thread that lets them in and one for each. It knows nothing of the server, which may be dropped."""

    def __init__(self, listener: pipe.Listener, versions: Versions, most: int, timeout: float) -> None:
        self._listener = listener
        self.url = listener.url
        self._versions = versions
        self._most = most
        self._timeout = timeout
        self._process = os.getpid()
        self._lock = threading.RLock()  # close() may come amid it: where a server is garbage, any thread collects it
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
                    _log.warning("serve_weights: nobody else can connect to %s: %s", self._listener.url, problem)
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
        except RuntimeError as problem:  # the system has no thread left
            _log.warning("serve_weights: a receiver of %s is turned away: %s", self._listener.url, problem)
            with self._lock:
                self._inside.pop(come, None)
            come.close()

    def _turn_away(self, come: pipe.Pipe) -> None:
        """With a word, for which it has to have spoken: it is closed once it has, or after a moment."""
        problem = Error(f"{self._most} receivers are connected to {self._listener.url}, and more may not be", code="would_block")
        come.send(failure_word(problem))
        leaving = self._leaving
        leaving.append(come)
        if len(leaving) > _most_leaving:
            leaving.popleft().close()
        come.next(_moment).add_done_callback(lambda _: come.close())

    def _serve(self, come: pipe.Pipe) -> None:
        talk = _Talk(come, self._versions, self._timeout)
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
            return  # a forked child inherits neither the threads nor the connections
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


class _Talk:
    """With one receiver."""

    def __init__(self, with_: pipe.Pipe, versions: Versions, timeout: float) -> None:
        self._pipe = with_
        self._versions = versions
        self._timeout = timeout
        self._leased: Version | None = None
        self._deadline = 0.0  # when it has to be given back
        self._digest = ""  # of the catalog that the pieces are of
        self._batches: list[list[Piece]] = []
        self._memory: list[list[Any]] = []  # of the pieces, as far as they lie together
        self._memory_of: list[Local] | None = None

    def go_on(self) -> None:
        """Until it goes."""
        asked = self._pipe.next()
        deadline: float | None = until(_first_word)
        while True:
            try:
                message = asked.result(timeout=None if deadline is None else left_until(deadline))
            except Closed:
                return
            except TimeoutError:
                raise TimedOut("the receiver has not gone on in time", code="timed_out") from None
            asked = self._pipe.next()  # it ends when the receiver goes
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
            raise malformed(f"{str(ask)[:100]!r}, which cannot be asked for now")

    def _tell_catalog(self, word: dict[str, Any], coming: _native.Future[pipe.Descriptor]) -> None:
        if word.get("weights") != PROTOCOL:
            raise malformed(f"{str(word.get('weights'))[:100]!r} for its version of what is said here, which is {PROTOCOL}")
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
        """The pieces that are asked for, or without any those of the time before."""
        if payloads:
            self._batches, self._digest = unpacked_pieces(payloads, version.catalog.rows), version.catalog.digest
            self._memory_of = None
        elif self._digest != version.catalog.digest:
            raise malformed("no pieces, and there are none that it asked for before")
        sending = _Sending(self._pipe, version, self._deadline)
        try:
            if self._memory_of is not version.locals:
                self._memory = [[version.memory(each) for each in batch] for batch in self._batches]
                self._memory_of = version.locals
            sending.send(self._batches, self._memory)
            end = json.dumps({"sent": version.number}).encode()
        except Exception as problem:
            end = failure_word(problem)
            for _ in self._batches[sending.begun :]:  # each is waited for
                self._pipe.send(end, timeout=self._timeout).result()
        finally:
            sending.end()
        self._pipe.send(end, timeout=self._timeout).result()

    def release(self) -> None:
        if self._leased is not None:
            self._versions.release(self._leased)
            self._leased = None

    def tell(self, problem: Exception) -> None:
        """Why this ends."""
        with contextlib.suppress(Error):
            self._pipe.send(failure_word(problem), timeout=1.0).result()


class _Sending:
    """Messages that are under way, and what was copied together for them."""

    def __init__(self, to: pipe.Pipe, version: Version, deadline: float) -> None:
        self._pipe = to
        self._version = version
        self._deadline = deadline
        self._going: collections.deque[tuple[_native.Future[int], int]] = collections.deque()
        self._gathered = 0  # bytes
        self.begun = 0  # messages

    def send(self, batches: list[list[Piece]], memory: list[list[Any]]) -> None:
        """memory: of each piece; None: it does not lie together."""
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
        """For a message more, and for what is copied together for it: that many bytes."""
        rows = self._version.catalog.rows
        gathered = sum(each.box.size * rows[each.row].itemsize for each, found in zip(batch, memory) if found is None)
        if gathered > GATHERED_BYTES:
            raise malformed(f"a request for {gathered} bytes in a message that do not lie together")
        while self._going and (len(self._going) == _most_under_way or self._gathered + gathered > _most_gathered):
            self._finish_one()
        return gathered

    def _copied(self, piece: Piece) -> Any:
        view, local = self._version.view(piece)
        return local.memory(local.copied(view))

    def _finish_one(self) -> None:
        future, gathered = self._going[0]
        future.result()
        self._going.popleft()
        self._gathered -= gathered

    def end(self) -> None:
        """Nothing reads the memory any more."""
        for future, _ in self._going:
            future.cancel()
            future.exception()
        self._going.clear()
