"""Parts of tensors, and their byte ranges."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import _native

__all__ = ["Part", "part_of", "picks_of", "shard_of"]


class Part(NamedTuple):
    """Runs of equal length in a tensor's bytes, made contiguous in memory by reading."""

    shape: tuple[int, ...]  # shape of the array that the runs form
    starts: Sequence[int]  # byte offsets from the start of the tensor
    run_bytes: int
    cut: tuple[Any, ...] | None  # index to apply to that array; None: keep all

    @property
    def nbytes(self) -> int:
        return len(self.starts) * self.run_bytes

    def in_little_memory(self) -> Part:
        """Returns the same part, with evenly spaced starts as a range: a list would need 40 bytes per row of a tensor."""
        even = range(self.starts[0], self.starts[-1] + 1, self.starts[1] - self.starts[0]) if len(self.starts) > 1 else range(0)
        return self._replace(starts=even) if len(even) == len(self.starts) and list(even) == self.starts else self


# Gaps are read too if they are smaller than a page, or if there are more than this many runs and they are shorter than this.
_short_row_bytes = 4096
_short_bytes = 512
_many_runs = 4096


def picks_of(index: Any, shape: Sequence[int]) -> list[int | slice] | None:
    """Returns the int or slice for each dimension of an index of ints, slices with positive steps and one Ellipsis, or None for any other index,
    which the array's library may support.

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
    picks: list[int | slice] = []
    for axis, (each, length) in enumerate(zip(rest, shape)):
        if isinstance(each, slice):
            start, stop, step = each.indices(length)
            if step < 1:
                return None
            picks.append(slice(start, stop, step))
            continue
        number = operator.index(each)
        if not -length <= number < length:
            raise IndexError(f"index {number} is out of bounds for dimension {axis} with size {length}")
        picks.append(number)
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


def part_of(shape: Sequence[int], item_bytes: int, picks: Sequence[int | slice], exact: bool = False, on_host: bool = False) -> Part:
    """Returns the byte ranges of a selection.

    - `exact`: read only these bytes, even if the runs are short; otherwise short gaps are read too.
    - `on_host`: the target is host memory, where cutting is cheap.
    """
    return Part(*_native.part_of(shape, item_bytes, picks, None if exact else (_short_row_bytes, _short_bytes, _many_runs, on_host)))
