"""load_rank() over a torch.distributed process group.

Each rank reads a share of the common tensors, by piece number, and the pieces are broadcast in order. A rank that cannot read a piece keeps
participating and reports its error at the end, because otherwise the other ranks would wait for its broadcasts.
"""

from __future__ import annotations

import collections
import contextlib
from typing import Any

import torch.distributed as dist

from .._core.arrays import library_named
from .._core.errors import Closed, InvalidArgument
from .node_ranks import node_ranks
from .rank_pieces import Failed, Piece, failure_of, unlike, word_of_failure
from .reads import Reads

__all__ = ["Group"]

_most_under_way = 16  # pieces


class Group:
    """Implements ranks.Ranks with a process group."""

    reads = True

    def __init__(self, group: Any) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidArgument("group: torch.distributed.init_process_group() has not been called", code="invalid_argument")
        self._group = group
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.node = node_ranks()
        self._met = False
        if self.rank < 0:
            raise InvalidArgument("group: this process is not a member", code="invalid_argument")

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not self._met:
            with contextlib.suppress(Closed):
                self._told_by_all(word_of_failure(self.rank, error))

    def meet(self, digest: str) -> None:
        words = self._told_by_all({"digest": digest})
        self._raise_failure(words)
        for first, (one, other) in enumerate(zip(words, words[1:])):
            if one.get("digest") != other.get("digest"):
                raise unlike(first, first + 1)

    def carry(self, pieces: list[Piece], own: Reads) -> None:
        mine = _Mine(pieces[self.rank :: self.world])
        going: collections.deque[Any] = collections.deque()
        try:
            for number, piece in enumerate(pieces):
                if number % self.world == self.rank:
                    mine.wait_for_next()
                going.append(self._begin(piece, number % self.world))
                if len(going) == _most_under_way:
                    going.popleft().wait()
            while going:
                going.popleft().wait()
        except RuntimeError as problem:
            raise self._gone(problem) from None
        finally:
            mine.stop()
        if pieces:
            library_named("torch").settle(str(_bytes_of(pieces[0]).device))
        self._end(mine.error or _failure_of(own))

    def _begin(self, piece: Piece, source: int) -> Any:
        return dist.broadcast(_bytes_of(piece), src=dist.get_global_rank(self._group, source), group=self._group, async_op=True)

    def _end(self, error: Exception | None) -> None:
        """Exchanges the outcomes of all ranks, and raises an error if a rank failed."""
        words = self._told_by_all({} if error is None else word_of_failure(self.rank, error))
        if error is not None:
            raise error
        self._raise_failure(words)

    def _told_by_all(self, word: dict[str, Any]) -> list[dict[str, Any]]:
        self._met = True
        words: list[Any] = [None] * self.world
        try:
            dist.all_gather_object(words, word, group=self._group)
        except RuntimeError as problem:
            raise self._gone(problem) from None
        return [each if isinstance(each, dict) else {} for each in words]

    def _gone(self, problem: RuntimeError) -> Closed:
        return Closed(f"rank {self.rank}: the process group failed, or another rank in it exited: {problem}", code="closed")

    def _raise_failure(self, words: list[dict[str, Any]]) -> None:
        for each in words:
            if failed := failure_of(each):
                raise Failed(f"rank {self.rank}: {failed}", failed.rank, failed.reason)


class _Mine:
    """The pieces that this rank reads, several at once. `error` is the reason why no more pieces will be read."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.error: Exception | None = None
        self._left = collections.deque(pieces)
        self._under_way: collections.deque[Reads] = collections.deque()
        self._begin()

    def wait_for_next(self) -> None:
        """Waits until the next piece has been read, or its read has failed."""
        if self.error is None:
            try:
                self._under_way[0].wait()
                self._under_way.popleft()
            except Exception as problem:
                self._fail(problem)
            self._begin()

    def stop(self) -> None:
        while self._under_way:
            self._under_way.popleft().stop()

    def _begin(self) -> None:
        try:
            while self.error is None and self._left and len(self._under_way) < _most_under_way:
                reads, piece = Reads(), self._left.popleft()
                self._under_way.append(reads)
                for source, ranges in piece.reads:
                    reads.start(source, piece.memory, ranges)
        except Exception as problem:
            self._fail(problem)

    def _fail(self, problem: Exception) -> None:
        self.error = problem
        self.stop()


def _failure_of(reads: Reads) -> Exception | None:
    """Waits for the reads and returns their error."""
    try:
        reads.wait()
    except Exception as problem:
        return problem
    return None


def _bytes_of(piece: Piece) -> Any:
    """Returns the piece's bytes as a view of PyTorch's arena."""
    arena = piece.memory.owner
    start = piece.memory.address - arena.data_ptr()
    return arena[start : start + piece.memory.nbytes]
