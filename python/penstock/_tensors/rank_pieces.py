"""What the ranks of load_rank() exchange, over pipes or a process group: pieces of the common tensors, and failures."""

from __future__ import annotations

from typing import Any

from .._core.errors import Closed, InvalidArgument
from .reads import Ranges
from .sources import Source

__all__ = ["MOST_REASON", "Failed", "Piece", "failure_of", "unlike", "word_of_failure"]

MOST_REASON = 2000  # characters of a failure's reason


class Piece:
    """A part of the memory for the common tensors, with the reads that fill it on rank 0."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.reads: list[tuple[Source, Ranges]] = []


def unlike(first: int, second: int) -> InvalidArgument:
    return InvalidArgument(f"ranks {first} and {second} do not load the same model: their files, shard, names, world or framework differ", code="invalid_argument")


class Failed(Closed):
    """Another rank failed."""

    def __init__(self, message: str, rank: int = -1, reason: str = "", **fields: Any) -> None:
        super().__init__(message, **{"code": "closed", **fields})
        self.rank = rank
        self.reason = reason


def word_of_failure(rank: int, error: BaseException) -> dict[str, Any]:
    """Returns the message that informs other ranks which rank failed, and why."""
    if isinstance(error, Failed):
        return {"failed": error.rank, "reason": error.reason}
    return {"failed": rank, "reason": f"{type(error).__name__}: {error}"[:MOST_REASON]}


def failure_of(word: dict[str, Any]) -> Failed | None:
    rank, reason = word.get("failed"), word.get("reason")
    if not isinstance(rank, int) or not isinstance(reason, str):
        return None
    shown = "".join(each if each.isprintable() else "?" for each in reason[:MOST_REASON])
    return Failed(f"rank {rank} failed: {shown}", rank, shown)
