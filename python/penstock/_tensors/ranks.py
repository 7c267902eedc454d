"""load_rank(): loads one model across the processes of a job; each process calls it for its part.

Rank 0 reads the common tensors and sends them to rank 1 over a pipe, piece by piece; rank 1 sends them to rank 2, and so on. Each byte is read once
and sent at most once by each process. Each rank reads its own tensors and parts. With a PyTorch process group, each rank reads a share of the common
tensors, and the group broadcasts it (rank_group.py).
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from .. import _native, pipe
from .._core.errors import Closed, Error, InvalidArgument, PermissionDenied, TimedOut
from .._core.pieces import remade
from .frameworks import framework_on
from .node_ranks import NodeRanks, node_ranks
from .rank_pieces import MOST_REASON, Failed, Piece, failure_of, unlike, word_of_failure
from .reads import Ranges, Reads
from .sharded import OwnReads, Plan, Rank, Shard, dims_of, planned
from .sources import Paths, Source, Sources, StorageOptions, check_names

__all__ = ["load_rank"]

_piece_bytes = 32 << 20
_most_under_way = 16  # pieces in flight, in each direction
_most_telling = 10.0  # seconds that a failed rank waits for its neighbors, to send them the reason
_most_telling_late = 1.0  # the same, if it failed because they did not connect
_silent = 5.0  # seconds to wait for another rank before logging a message
_look = 0.05  # seconds between checks of the neighbors' messages during other waits

_log = logging.getLogger("penstock")
_T = TypeVar("_T")


def load_rank(
    filename: Paths,
    device: Any,
    rank: int | None = None,
    world: int | None = None,
    address: str | Sequence[str] | None = None,
    shard: Shard | None = None,
    framework: str | None = None,
    *,
    names: Iterable[str] | None = None,
    secret: str | bytes = b"",
    timeout: float = 300.0,
    group: Any = None,
    storage_options: StorageOptions | None = None,
) -> dict[str, Any]:
    """Loads one rank's part of a model. All processes in the job call this with the same files, `shard` and `names`. Blocks.

    Arguments:

    - `filename`, `device`, `framework`, `names`, `storage_options`: as for `load_file()`. Each process must be able to open the files.
    - `rank`, `world`: this process's number, starting at 0, and the number of processes.
    - `address`: the rendezvous address. On one host: "unix:@name" or "unix:/path". On several hosts: a list of URLs such as "tcp://host:port", one
      for each rank except the last, on which that rank listens.
    - `shard`: as for `load_sharded()`.
    - `secret`: the shared secret for `penstock.pipe`, required for tcp.
    - `timeout`: seconds to wait for the other ranks, and for each piece. After 5 s, the logger "penstock" logs which rank is being waited for.
    - `group`: a `torch.distributed` process group, in place of `rank`, `world` and `address`. Its backend must support the device. The result
      contains PyTorch tensors, the group's own timeout applies, and `secret` is not used.

    With `address`, rank 0 reads the tensors that all ranks need, and each rank forwards them to the next. With `group`, each rank reads a share of
    them and broadcasts it. Each rank reads its own parts itself.

    Returns a dict of tensors by name.

    Raises:

    - `InvalidArgument`: the ranks differ in files (only headers are compared, not the tensors' content), `shard`, `names` or `world`.
    - `Closed`: another rank failed; the message contains the rank and the reason. A rank that fails waits up to 10 s to inform its neighbors. With
      `address`, ranks that already have the common tensors are not informed if another rank fails to read its own part.
    - `TimedOut`: a rank did not connect, had the wrong secret, or stopped.
    - the errors of `load_sharded()` and `penstock.pipe`.
    """
    try:
        with _ranks(rank, world, address, secret, timeout, group) as ranks:
            place = framework_on(framework if group is None else _of_group(framework), device)
            return _load(filename, place, ranks, shard, names, storage_options)
    except Failed as problem:
        raise Closed(str(problem), code="closed") from None


class Ranks(Protocol):
    """The ranks in a job, as seen by one of them. A context manager: an exception inside the block is reported to the other ranks."""

    rank: int
    world: int

    @property
    def node(self) -> NodeRanks:
        """The ranks of this node."""

    @property
    def reads(self) -> bool:
        """True if this rank reads some of the common tensors."""

    def meet(self, digest: str) -> None:
        """Connects to the other ranks. Raises InvalidArgument if their digest differs."""

    def carry(self, pieces: list[Piece], own: Reads) -> None:
        """Forwards all pieces, and waits for `own`, this rank's own reads. The pieces have the same layout in each rank."""

    def __enter__(self) -> Ranks: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None: ...


def _ranks(rank: int | None, world: int | None, address: str | Sequence[str] | None, secret: str | bytes, timeout: float, group: Any) -> Ranks:
    told = (rank, world, address)
    if group is not None:
        if told != (None, None, None):
            raise TypeError("group= cannot be combined with rank, world or address, which the group provides")
        from .rank_group import Group

        return Group(group)
    if rank is None or world is None or address is None:
        raise TypeError("pass either rank, world and address, or group=")
    return _Chain(rank, world, _urls(address, rank, world), secret, timeout)


def _of_group(framework: str | None) -> str:
    if framework not in (None, "pt"):
        raise InvalidArgument(f"framework {framework!r}: load_rank(group=) returns PyTorch tensors; omit framework, or pass 'pt'", code="invalid_argument")
    return "pt"


def _load(
    filename: Paths,
    place: Any,
    ranks: Ranks,
    shard: Shard | None,
    names: Iterable[str] | None,
    storage_options: StorageOptions | None,
) -> dict[str, Any]:
    rank, world = ranks.rank, ranks.world
    with Sources(filename, [place.device] if ranks.reads and ":" in place.device else [], storage_options) as sources:
        mine = Rank(rank, place)
        plan = planned(sources, [mine], world, dims_of(shard), check_names(names), ranks.node)
        own, passing = place.arena(mine.own.nbytes), place.arena(mine.passing.nbytes)
        reads = OwnReads([mine], [own])
        try:
            for source, ranges in mine.own.ranges:
                reads.start(source, own.memory, ranges)
            found = mine.views(own, passing, plan.dims)
            shared = [(own.memory, plan.whole_bytes, plan.whole), (passing.memory, mine.passing.nbytes, mine.passing.ranges)]
            ranks.meet(_digest(plan, mine, world, sources))
            ranks.carry([piece for each in shared for piece in _pieces(*each)], reads)
        except BaseException:
            reads.stop()
            raise
        return mine.cut(*found)


def _urls(address: str | Sequence[str], rank: int, world: int) -> list[str]:
    if world < 1 or not 0 <= rank < world:
        raise InvalidArgument(f"rank is {rank}, but world is {world}", code="invalid_argument")
    if not isinstance(address, str):
        urls = list(address)
        if len(urls) < world - 1:
            raise InvalidArgument(f"address has {len(urls)} URLs for {world} ranks: pass one for each rank except the last", code="invalid_argument")
        return urls
    if not address.startswith("unix:") or len(address) < 7:
        raise InvalidArgument(f"address is {address!r}: a single URL must be unix:@name or unix:/path; otherwise, pass a list", code="invalid_argument")
    return [f"{address}.{each}" for each in range(world)]


def _digest(plan: Plan, mine: Rank, world: int, sources: Sources) -> str:
    """Returns a hash of everything that must be the same on all ranks."""
    headers = [[each.header.names, each.header.types, each.header.shapes, each.header.offsets] for each in sources]
    told = json.dumps([world, plan.whole_bytes, mine.passing.nbytes, list(plan.dims.items()), headers])
    return hashlib.sha256(told.encode()).hexdigest()


def _pieces(memory: Any, nbytes: int, ranges: list[tuple[Source, Ranges]]) -> list[Piece]:
    pieces = [Piece(_part(memory, at, min(_piece_bytes, nbytes - at))) for at in range(0, nbytes, _piece_bytes)]
    for source, each in ranges:
        for offset, size, place in zip(each.offsets, each.sizes, each.places):
            while size:
                number, start = divmod(place, _piece_bytes)
                length = min(size, _piece_bytes - start)
                reads = pieces[number].reads
                if not reads or reads[-1][0] is not source:
                    reads.append((source, Ranges()))
                reads[-1][1].add_all([offset], [length], [start])
                offset, place, size = offset + length, place + length, size - length
    return pieces


def _part(memory: Any, at: int, nbytes: int) -> Any:
    if isinstance(memory, _native.Pointer):
        return _native.Pointer(memory.address + at, nbytes, memory.owner)
    return memory[at : at + nbytes]


_Coming = collections.deque[tuple[Piece, "Reads | _native.Future[pipe.Message]"]]
_Going = collections.deque["_native.Future[int]"]


class _Neighbour:
    """A neighboring rank, previous or next: one pipe for messages and one for the pieces. Each side first sends a message with its digest.

    The next rank sends a second, empty message once it and all later ranks have received everything. A rank that fails sends the reason instead.
    """

    def __init__(self, rank: int, words: pipe.Pipe) -> None:
        self.rank = rank
        self.words = words
        self.pieces: pipe.Pipe | None = None
        self.digest: Any = None
        self.heard = words.receive()  # the next message from it

    def failure(self, within: float = 0.0) -> Failed | None:
        """Returns the neighbor's failure if it has sent one."""
        try:
            return failure_of(_word_of(self.heard.result(timeout=within)))
        except (Error, TimeoutError):
            return None

    def close(self) -> None:
        for each in (self.pieces, self.words):
            if each is not None:
                each.close()


def _word_of(message: pipe.Message) -> dict[str, Any]:
    try:
        word = json.loads(message.metadata)
    except ValueError:
        word = None
    return word if isinstance(word, dict) else {}


class _Chain:
    """The previous and the next rank. A context manager: an exception in the block is reported to both, after connecting to them if necessary."""

    def __init__(self, rank: int, world: int, urls: list[str], secret: str | bytes, timeout: float) -> None:
        self.rank = rank
        self.world = world
        self._urls = urls
        self._secret = secret
        self._timeout = timeout
        self._listener: pipe.Listener | None = None
        self._accepted: _native.Future[pipe.Pipe] | None = None  # the next connection
        self._before: _Neighbour | None = None
        self._behind: _Neighbour | None = None
        self._telling = False  # True while this rank reports its failure

    @property
    def node(self) -> NodeRanks:
        return NodeRanks(self.rank, self.world) if all(each.startswith("unix:") for each in self._urls) else node_ranks()

    @property
    def reads(self) -> bool:
        return self.rank == 0

    def __enter__(self) -> _Chain:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if error is not None:
                self._tell(error)
        finally:
            self.close()

    def close(self) -> None:
        for each in (self._before, self._behind, self._listener):
            if each is not None:
                each.close()

    def meet(self, digest: str) -> None:
        """Connects to both neighbors."""
        deadline = time.monotonic() + self._timeout
        word = {"digest": digest}
        if self.rank + 1 < self.world:
            self._listen()
        if self.rank > 0:
            self._meet_before(lambda other: self._exchange(other, word, deadline), deadline)
            assert self._before is not None
            self._compare(self.rank - 1, digest, self._before)
            with self._told(self.rank - 1):
                self._before.pieces = pipe.connect(self._urls[self.rank - 1], secret=self._secret)
        if self._listener is not None:
            with self._told(self.rank + 1):
                behind = self._meet_behind(deadline)
                self._exchange(behind, word, deadline)
            self._compare(self.rank, digest, behind)
            with self._told(self.rank + 1):
                assert self._accepted is not None
                behind.pieces = self._outcome(self._accepted, behind.rank, deadline)

    def _listen(self) -> None:
        self._listener = pipe.listen(self._urls[self.rank], secret=self._secret)
        self._accepted = self._listener.accept()

    def _exchange(self, other: _Neighbour, word: dict[str, Any], deadline: float) -> None:
        """Exchanges the first messages."""
        self._outcome(other.words.send(json.dumps(word).encode()), other.rank, deadline)
        theirs = _word_of(self._outcome(other.heard, other.rank, deadline))
        if failed := failure_of(theirs):
            raise failed
        other.digest = theirs.get("digest")
        other.heard = other.words.receive()

    def _outcome(self, future: _native.Future[_T], other: int, deadline: float) -> _T:
        """Waits for another rank's result. Raises if a neighbor reports a failure, or at the deadline."""
        began, said = time.monotonic(), False
        while not future.done():
            with contextlib.suppress(TimeoutError):
                return future.result(timeout=_look)
            self._look_behind()
            for each in (self._before, self._behind):
                if each is not None and (failed := each.failure()):
                    raise failed
            now = time.monotonic()
            if now >= deadline:
                raise TimedOut(f"nothing arrived within {self._timeout:g} s{self._of_strangers()}", code="timed_out")
            if not said and now - began > _silent:
                said = True
                _log.warning("load_rank: rank %d is waiting for rank %d%s", self.rank, other, self._of_strangers())
        return future.result()

    def _of_strangers(self) -> str:
        refused = self._listener.refused if self._listener is not None else 0
        return f" (connections to {self._urls[self.rank]} with the wrong secret: {refused})" if refused else ""

    def _look_behind(self) -> None:
        """Accepts the next rank if it has connected, so that its messages are received while this rank waits for the previous one."""
        if self._telling or self._accepted is None or self._listener is None:
            return
        if self._behind is None and self._accepted.done():
            words = self._accepted.result()
            self._accepted = self._listener.accept()
            self._behind = _Neighbour(self.rank + 1, words)

    def _meet_behind(self, deadline: float) -> _Neighbour:
        if self._behind is None:
            assert self._accepted is not None
            self._outcome(self._accepted, self.rank + 1, deadline)
            self._look_behind()
        assert self._behind is not None
        return self._behind

    def _meet_before(self, talk: Callable[[_Neighbour], None], deadline: float) -> None:
        """Connects to the previous rank as soon as it is listening."""
        url, began, said = self._urls[self.rank - 1], time.monotonic(), False
        while True:
            try:
                self._before = _Neighbour(self.rank - 1, pipe.connect(url, secret=self._secret))
                return talk(self._before)
            except (InvalidArgument, PermissionDenied, Failed) as problem:
                with self._told(self.rank - 1):
                    raise problem
            except Error as problem:
                self._forget_before()
                if time.monotonic() >= deadline:
                    late = f"rank {self.rank}: rank {self.rank - 1} did not connect to {url} within {self._timeout:g} s: {problem}"
                    raise TimedOut(late, code="timed_out") from None
            self._look_behind()
            if not self._telling and self._behind is not None and (failed := self._behind.failure()):
                raise Failed(f"rank {self.rank}: {failed}", failed.rank, failed.reason)
            if not said and time.monotonic() - began > _silent:
                said = True
                _log.warning("load_rank: rank %d is waiting for rank %d to listen at %s", self.rank, self.rank - 1, url)
            time.sleep(0.01)

    def _forget_before(self) -> None:
        if self._before is not None:
            self._before.close()
            self._before = None

    def _tell(self, error: BaseException) -> None:
        """Informs the neighbors why this rank failed."""
        self._telling = True
        reason = f"{type(error).__name__}: {error}"
        word = json.dumps(word_of_failure(self.rank, error)).encode()
        for each in (self._before, self._behind):
            if each is not None:
                with contextlib.suppress(Error):
                    each.words.send(word, timeout=1.0).result()
        if not isinstance(error, Exception):
            return  # an interrupted rank does not wait
        # A rank that failed because a neighbor did not connect waits for a shorter time now.
        deadline = time.monotonic() + min(self._timeout, _most_telling_late if isinstance(error, TimedOut) else _most_telling)
        unmet = []
        if self._before is None and self.rank > 0 and not isinstance(error, PermissionDenied):
            unmet.append(threading.Thread(target=self._tell_before, args=(word, deadline), daemon=True))
        if self._behind is None and self.rank + 1 < self.world:
            unmet.append(threading.Thread(target=self._tell_behind, args=(word, deadline), daemon=True))
        if unmet:
            _log.warning("load_rank: rank %d failed, and is waiting to inform its neighbors: %s", self.rank, reason[:MOST_REASON])
        for each_of in unmet:
            each_of.start()
        for each_of in unmet:
            each_of.join()

    def _tell_before(self, word: bytes, deadline: float) -> None:
        with contextlib.suppress(Error):
            self._meet_before(lambda other: self._part(other, word, deadline), deadline)

    def _tell_behind(self, word: bytes, deadline: float) -> None:
        with contextlib.suppress(Error, TimeoutError):
            if self._accepted is None:
                self._listen()
            assert self._accepted is not None
            words = self._accepted.result(timeout=max(0.0, deadline - time.monotonic()))
            self._part(_Neighbour(self.rank + 1, words), word, deadline)

    @staticmethod
    def _part(other: _Neighbour, word: bytes, deadline: float) -> None:
        """Sends the failure, and waits until the neighbor has sent its own message or disconnected."""
        other.words.send(word, timeout=max(0.001, deadline - time.monotonic())).result()
        with contextlib.suppress(TimeoutError):
            other.heard.result(timeout=max(0.0, deadline - time.monotonic()))
        other.close()

    def carry(self, pieces: list[Piece], own: Reads) -> None:
        """Forwards all pieces. Other ranks do not wait for `own`, which may take longer than their timeout."""
        coming: _Coming = collections.deque()
        going: _Going = collections.deque()
        try:
            for piece in pieces:
                coming.append((piece, self._begin(piece)))
                if len(coming) == _most_under_way:
                    self._hand_on(coming, going)
            while coming:
                self._hand_on(coming, going)
            with self._told(self.rank + 1):
                while going:
                    going[0].result()
                    going.popleft()
            self._end()
        except BaseException as error:
            self._tell(error)
            self.close()  # stops the transfers in flight
            raise
        finally:
            # From here on, nothing accesses the memory.
            for _, each in coming:
                each.stop() if isinstance(each, Reads) else _ended(each)
            for sent in going:
                _ended(sent)
        self.close()
        own.wait()

    def _begin(self, piece: Piece) -> Reads | _native.Future[pipe.Message]:
        if self._before is not None:
            assert self._before.pieces is not None
            return self._before.pieces.receive(into=[piece.memory], timeout=self._timeout)
        reads = Reads()
        for source, ranges in piece.reads:
            reads.start(source, piece.memory, ranges)
        return reads

    def _hand_on(self, coming: _Coming, going: _Going) -> None:
        """Forwards the first piece. Each operation stays in its deque until it is complete, so that an interrupt loses none."""
        piece, come = coming[0]
        if isinstance(come, Reads):
            come.wait()
        else:
            with self._told(self.rank - 1):
                come.result()
        coming.popleft()
        if self._behind is not None:
            with self._told(self.rank + 1):
                if len(going) == _most_under_way:
                    going[0].result()
                    going.popleft()
                assert self._behind.pieces is not None
                going.append(self._behind.pieces.send(tensors=[piece.memory], timeout=self._timeout))

    def _end(self) -> None:
        """Waits until all later ranks have received everything, because otherwise a rank would not notice the failure of a rank to which it has
        sent."""
        if self._behind is not None:
            with self._told(self.rank + 1):
                if failed := failure_of(_word_of(self._outcome(self._behind.heard, self.rank + 1, time.monotonic() + self._timeout))):
                    raise failed
        if self._before is not None:
            with self._told(self.rank - 1):
                self._before.words.send(b"", timeout=self._timeout).result()

    @staticmethod
    def _compare(first: int, digest: str, other: _Neighbour) -> None:
        """Compares the digests of two neighbors; `first` is the number of the first one."""
        if other.digest != digest:
            raise unlike(first, first + 1)

    @contextlib.contextmanager
    def _told(self, other: int) -> Iterator[None]:
        """Adds to errors the rank that they concern, and the reason if that rank has reported one."""
        try:
            yield
        except Failed as problem:
            raise Failed(f"rank {self.rank}: {problem}", problem.rank, problem.reason) from None
        except Error as problem:
            for each in (self._before, self._behind):
                if each is not None and (failed := each.failure(1.0 if each.rank == other else 0.0)):
                    raise Failed(f"rank {self.rank}: {failed}", failed.rank, failed.reason) from None
            raise remade(problem, f"rank {self.rank}: receiving from rank {other}: {problem}") from None


def _ended(future: Any) -> None:
    future.cancel()
    future.exception()
