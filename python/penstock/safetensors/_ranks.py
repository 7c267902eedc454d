"""load_rank(): one model for the processes of a job, of which each calls for its part.

Rank 0 reads what everyone gets, and hands it on to rank 1 over a pipe, piece by piece; that one hands it on to rank 2, and so on. So it leaves the
file once, and each process once. What only one rank gets it reads itself.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .. import _native, pipe
from .._errors import Error, InvalidArgument, PermissionDenied, TimedOut
from .._pieces import remade
from ._frameworks import framework_on
from ._reading import Ranges, Reads
from ._sharded import Plan, Rank, Shard, dims_of, planned
from ._sources import Paths, Source, Sources, check_names

__all__ = ["load_rank"]

_piece_bytes = 32 << 20
_most_under_way = 16  # pieces, at each end


def load_rank(
    filename: Paths,
    device: Any,
    rank: int,
    world: int,
    address: str | Sequence[str],
    shard: Shard | None = None,
    framework: str | None = None,
    *,
    names: Iterable[str] | None = None,
    secret: str | bytes = b"",
    timeout: float = 300.0,
) -> dict[str, Any]:
    """The part of a model that is one rank's, in a job of several processes that all call this with the same files, shard and names. Blocks.

    filename, device, framework, names: as for load_file(); every process can open the files. shard: as for load_sharded().
    address: that the job meets at: "unix:@name" or "unix:/path", to which ".0", ".1" and so on are added; or the URLs that the ranks listen at
    (penstock.pipe.listen()), one for each but the last, such as tcp://host:port, for ranks of several hosts; these need the secret.
    timeout: seconds that a rank waits for the others to come, and for each piece.

    Raises InvalidArgument where neighbours do not load the same (files by their headers, not by what is in the tensors; shard, names, world), TimedOut,
    what load_sharded() and penstock.pipe raise; Closed where another rank has failed, which has the reason.
    """
    urls = _urls(address, rank, world)
    place = framework_on(framework, device)
    with Sources(filename, [place.device] if rank == 0 and ":" in place.device else []) as sources:
        mine = Rank(rank, place)
        plan = planned(sources, [mine], world, dims_of(shard), check_names(names))
        reads = Reads()
        try:
            own, passing = place.arena(mine.own.nbytes), place.arena(mine.passing.nbytes)
            for source, ranges in mine.own.ranges:
                reads.start(source, own.memory, ranges)
            found = mine.views(own, passing, plan.dims)
            shared = [(own.memory, plan.whole_bytes, plan.whole), (passing.memory, mine.passing.nbytes, mine.passing.ranges)]
            with _Chain(rank, world, urls, _digest(plan, mine, world, sources), secret, timeout) as chain:
                chain.carry([piece for each in shared for piece in _pieces(*each)])
        except BaseException:
            reads.stop()
            raise
        reads.wait()
        return mine.cut(*found)


def _urls(address: str | Sequence[str], rank: int, world: int) -> list[str]:
    if world < 1 or not 0 <= rank < world:
        raise InvalidArgument(f"rank {rank} of {world}", code="invalid_argument")
    if not isinstance(address, str):
        urls = list(address)
        if len(urls) < world - 1:
            raise InvalidArgument(f"address has {len(urls)} URLs for {world} ranks: each but the last listens", code="invalid_argument")
        return urls
    if not address.startswith("unix:") or len(address) < 7:
        raise InvalidArgument(f"address {address!r}: one URL for all is unix:@name or unix:/path; of others each rank has its own", code="invalid_argument")
    return [f"{address}.{each}" for each in range(world)]


def _digest(plan: Plan, mine: Rank, world: int, sources: Sources) -> bytes:
    """Of all that has to be the same everywhere."""
    headers = [[each.header.names, each.header.types, each.header.shapes, each.header.offsets] for each in sources]
    told = json.dumps([world, plan.whole_bytes, mine.passing.nbytes, list(plan.dims.items()), headers])
    return hashlib.sha256(told.encode()).digest()


class _Piece:
    """Of the memory that every rank has alike; at rank 0 with what is read into it."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.reads: list[tuple[Source, Ranges]] = []


def _pieces(memory: Any, nbytes: int, ranges: list[tuple[Source, Ranges]]) -> list[_Piece]:
    pieces = [_Piece(_part(memory, at, min(_piece_bytes, nbytes - at))) for at in range(0, nbytes, _piece_bytes)]
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


_Coming = collections.deque[tuple[_Piece, "Reads | _native.Future[pipe.Message]"]]
_Going = collections.deque["_native.Future[int]"]


class _Chain:
    """The pipes to the ranks before and behind this one. A context manager."""

    def __init__(self, rank: int, world: int, urls: list[str], digest: bytes, secret: str | bytes, timeout: float) -> None:
        self._rank = rank
        self._timeout = timeout
        self._stack = contextlib.ExitStack()
        self._before: pipe.Pipe | None = None
        self._behind: pipe.Pipe | None = None
        try:
            listener = None
            if rank + 1 < world:
                listener = self._stack.enter_context(pipe.listen(urls[rank], secret=secret))
            if rank > 0:
                self._before = self._stack.enter_context(self._meet(urls[rank - 1], secret, digest))
            if listener is not None:
                with self._told(rank + 1):
                    self._behind = self._stack.enter_context(listener.accept(timeout=timeout).result())
                    self._behind.send(digest, timeout=timeout).result()
                    theirs = self._behind.receive(timeout=timeout).result().metadata
                self._compare(rank, digest, theirs)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> _Chain:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def carry(self, pieces: list[_Piece]) -> None:
        """Until all have come, and been taken."""
        coming: _Coming = collections.deque()
        going: _Going = collections.deque()
        try:
            for piece in pieces:
                coming.append((piece, self._begin(piece)))
                if len(coming) == _most_under_way:
                    self._hand_on(coming, going)
            while coming:
                self._hand_on(coming, going)
            with self._told(self._rank + 1):
                while going:
                    going[0].result()
                    going.popleft()
        except BaseException:
            self._stack.close()  # the others hear of it, and what is under way ends
            raise
        finally:
            # Nothing touches the memory any more.
            for _, each in coming:
                each.stop() if isinstance(each, Reads) else _ended(each)
            for sent in going:
                _ended(sent)

    def _begin(self, piece: _Piece) -> Reads | _native.Future[pipe.Message]:
        if self._before is not None:
            return self._before.receive(into=[piece.memory], timeout=self._timeout)
        reads = Reads()
        for source, ranges in piece.reads:
            reads.start(source, piece.memory, ranges)
        return reads

    def _hand_on(self, coming: _Coming, going: _Going) -> None:
        """The first that comes. What this waits for stays in its deque until it has ended, so that nothing is forgotten on an interrupt."""
        piece, come = coming[0]
        if isinstance(come, Reads):
            come.wait()
        else:
            with self._told(self._rank - 1):
                come.result()
        coming.popleft()
        if self._behind is not None:
            with self._told(self._rank + 1):
                if len(going) == _most_under_way:
                    going[0].result()
                    going.popleft()
                going.append(self._behind.send(tensors=[piece.memory], timeout=self._timeout))

    def _meet(self, url: str, secret: str | bytes, digest: bytes) -> pipe.Pipe:
        """The rank before, as soon as it listens."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                found = pipe.connect(url, secret=secret)
                theirs = found.receive(timeout=max(0.001, deadline - time.monotonic())).result().metadata
                found.send(digest, timeout=self._timeout).result()
                break
            except (InvalidArgument, PermissionDenied):
                raise
            except Error as problem:
                if time.monotonic() >= deadline:
                    late = f"rank {self._rank}: rank {self._rank - 1} has not come to {url} within {self._timeout:g} s: {problem}"
                    raise TimedOut(late, code="timed_out") from None
            time.sleep(0.01)
        self._compare(self._rank - 1, digest, theirs)
        return found

    @staticmethod
    def _compare(first: int, digest: bytes, theirs: bytes) -> None:
        """Of two neighbours, the first of which has that number."""
        if theirs != digest:
            raise InvalidArgument(f"ranks {first} and {first + 1} do not load the same: other files, shard, names, world or framework", code="invalid_argument")

    @contextlib.contextmanager
    def _told(self, other: int) -> Iterator[None]:
        """Errors say which rank they are about."""
        try:
            yield
        except Error as problem:
            raise remade(problem, f"rank {self._rank}: of rank {other}: {problem}") from None


def _ended(future: Any) -> None:
    future.cancel()
    future.exception()
