"""Parts of tensors, and their byte ranges."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Part", "part_of", "picks_of", "shard_of"]


class Pick(NamedTuple):
    """The selection in one dimension."""

    start: int
    length: int
    step: int
    drops: bool = False  # True: an int selected the dimension, which is dropped


class Part(NamedTuple):
    """Runs of equal length in a tensor's bytes, made contiguous in memory by reading."""

    shape: tuple[int, ...]  # shape of the array that the runs form
    starts: list[int]  # byte offsets from the start of the tensor
    run_bytes: int
    cut: tuple[Any, ...] | None  # index to apply to that array; None: keep all

    @property
    def nbytes(self) -> int:
        return len(self.starts) * self.run_bytes


# Gaps smaller than this are read too, because disks and the page cache read whole pages.
_page_bytes = 4096
_short_bytes = 512
_many_runs = 4096
# In host memory, a run costs as much as copying a few KiB. Whole rows are read if they are small, or not much larger than the selected part.
_near_run_bytes = 16 << 10
_few_bytes = 256 << 10
_times_wanted = 4


def picks_of(index: Any, shape: Sequence[int]) -> list[Pick] | None:
    """Returns the selection for ints, slices with positive steps and one Ellipsis, or None for any other index, which the array's library may
    support.

    Raises IndexError if an int is out of bounds or there are too many indices.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    ellipses = [i for i, each in enumerate(items) if each is Ellipsis]
    if len(ellipses) > 1 or any(isinstance(each, bool) for each in items):
        return None
    place = ellipses[0] if ellipses else len(items)
    rest = [each for each in items if each is not Ellipsis]
    if not all(isinstance(each, slice) or _is_int(each) for each in rest):
        return None
    if len(rest) > len(shape):
        raise IndexError(f"too many indices for tensor of dimension {len(shape)}")
    rest[place:place] = [slice(None)] * (len(shape) - len(rest))
    picks = []
    for axis, (each, length) in enumerate(zip(rest, shape)):
        if not isinstance(each, slice):
            number = operator.index(each)
            if not -length <= number < length:
                raise IndexError(f"index {number} is out of bounds for dimension {axis} with size {length}")
            picks.append(Pick(number % length, 1, 1, True))
            continue
        start, stop, step = each.indices(length)
        if step < 1:
            return None
        picks.append(Pick(start, len(range(start, stop, step)), step))
    return picks


def _is_int(value: Any) -> bool:
    """Returns True if an index is an int. One-item arrays, and some libraries' bools, define __index__ too."""
    return isinstance(value, int) or (hasattr(value, "__index__") and not hasattr(value, "__len__") and "bool" not in type(value).__name__)


def shard_of(shape: Sequence[int], dim: int, rank: int, world: int) -> tuple[slice, ...]:
    """Returns one rank's part. Raises ValueError if the tensor cannot be split this way."""
    if not -len(shape) <= dim < len(shape):
        raise ValueError(f"there is no dimension {dim}")
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"rank is {rank}, but world is {world}")
    length = shape[dim]
    if length % world:
        raise ValueError(f"the {length} rows of dimension {dim} cannot be divided evenly among {world} ranks")
    each = length // world
    return (*[slice(None)] * (dim % len(shape)), slice(rank * each, (rank + 1) * each))


def part_of(shape: Sequence[int], item_bytes: int, picks: Sequence[Pick], exact: bool = False, on_host: bool = False) -> Part:
    """Returns the byte ranges of a selection.

    - `exact`: read only these bytes, even if the runs are short; otherwise short gaps are read too.
    - `on_host`: the target is host memory, where cutting is cheap.
    """
    if any(each.length == 0 for each in picks):
        return Part(_kept(picks), [], 0, None)
    taken = list(picks)
    index: list[Any] = [0 if each.drops else slice(None) for each in picks]
    while True:
        axis = _last_cut(shape, taken)
        if axis < 0:
            starts, run_bytes = [0], math.prod(shape) * item_bytes
            break
        inner = math.prod(shape[axis + 1 :]) * item_bytes
        pick, asked = taken[axis], picks[axis]
        last = asked.start + (asked.length - 1) * asked.step
        if pick.step > 1 and pick.length > 1 and not exact and inner < _page_bytes:
            taken[axis] = Pick(asked.start, last + 1 - asked.start, 1)
            index[axis] = slice(None, None, asked.step)
            continue
        in_a_row = pick.step == 1 or pick.length == 1
        outer = taken[: axis if in_a_row else axis + 1]
        run_bytes = inner * (pick.length if in_a_row else 1)
        runs = math.prod(each.length for each in outer)
        if in_a_row and not exact and _reads_rows(run_bytes, inner * shape[axis], runs, on_host):
            taken[axis] = Pick(0, shape[axis], 1)
            index[axis] = asked.start if asked.drops else slice(asked.start, last + 1, asked.step)
            continue
        first = pick.start * inner if in_a_row else 0
        starts = [first + each for each in _starts(shape, outer, item_bytes)]
        break
    if taken == list(picks):
        return Part(_kept(picks), starts, run_bytes, None)
    return Part(tuple(each.length for each in taken), starts, run_bytes, tuple(index))


def _reads_rows(run_bytes: int, row_bytes: int, runs: int, on_host: bool) -> bool:
    """Returns True if whole rows should be read instead of a run in each row."""
    if run_bytes < _short_bytes and runs > _many_runs:
        return True
    return on_host and runs > 1 and run_bytes < _near_run_bytes and (row_bytes * runs <= _few_bytes or row_bytes <= _times_wanted * run_bytes)


def _last_cut(shape: Sequence[int], picks: Sequence[Pick]) -> int:
    """Returns the last dimension that is only partially selected, or -1."""
    for axis in range(len(shape) - 1, -1, -1):
        if picks[axis].length != shape[axis]:
            return axis
    return -1


def _starts(shape: Sequence[int], picks: Sequence[Pick], item_bytes: int) -> list[int]:
    starts = [0]
    for axis, pick in enumerate(picks):
        stride = math.prod(shape[axis + 1 :]) * item_bytes
        rows = [(pick.start + i * pick.step) * stride for i in range(pick.length)]
        starts = [start + row for start in starts for row in rows]
    return starts


def _kept(picks: Sequence[Pick]) -> tuple[int, ...]:
    """Returns the shape without dropped dimensions."""
    return tuple(each.length for each in picks if not each.drops)
