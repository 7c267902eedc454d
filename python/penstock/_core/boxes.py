"""Boxes: the parts of tensors that ranks have, and how they overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Box", "chunk_of"]


class Box(NamedTuple):
    """A part of a tensor: its first index and its extent in each dimension, in elements."""

    starts: tuple[int, ...]
    shape: tuple[int, ...]

    @staticmethod
    def whole(shape: Sequence[int]) -> Box:
        return Box((0,) * len(shape), tuple(shape))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def common(self, other: Box) -> Box | None:
        """Returns the intersection of both boxes, or None if it is empty."""
        starts = tuple(map(max, self.starts, other.starts))
        ends = tuple(min(a + n, b + m) for a, n, b, m in zip(self.starts, self.shape, other.starts, other.shape))
        if any(start >= end for start, end in zip(starts, ends)):
            return None
        return Box(starts, tuple(end - start for start, end in zip(starts, ends)))

    def without(self, inner: Box) -> list[Box]:
        """Returns the part of this box outside an inner box, as non-overlapping boxes."""
        left = []
        starts, shape = list(self.starts), list(self.shape)
        for axis, (start, extent) in enumerate(zip(inner.starts, inner.shape)):
            end = starts[axis] + shape[axis]
            for first, last in ((starts[axis], start), (start + extent, end)):
                if first < last:
                    left.append(Box((*starts[:axis], first, *starts[axis + 1 :]), (*shape[:axis], last - first, *shape[axis + 1 :])))
            starts[axis], shape[axis] = start, extent
        return left

    def contains(self, other: Box) -> bool:
        return all(a <= b and b + m <= a + n for a, n, b, m in zip(self.starts, self.shape, other.starts, other.shape))

    def index_in(self, frame: Box) -> tuple[slice, ...]:
        """Returns the slices of this box in an array that represents the frame."""
        return tuple(slice(start - first, start - first + extent) for start, extent, first in zip(self.starts, self.shape, frame.starts))

    def offset_in(self, frame: Box) -> int:
        """Returns the index of the first element in a contiguous array that represents the frame."""
        offset = 0
        for start, first, extent in zip(self.starts, frame.starts, frame.shape):
            offset = offset * extent + start - first
        return offset

    def is_run_in(self, frame: Box) -> bool:
        """Returns True if the box is a single contiguous range in an array that represents the frame."""
        cut = False
        for extent, full in zip(reversed(self.shape), reversed(frame.shape)):
            if cut and extent != 1:
                return False
            cut = cut or extent != full
        return True

    def pieces(self, most: int) -> list[Box]:
        """Splits the box into boxes of at least one element and at most `most` elements."""
        if self.size <= most:
            return [self]
        axis = next(axis for axis, extent in enumerate(self.shape) if extent > 1)
        step = max(1, most * self.shape[axis] // self.size)
        found = []
        for at in range(0, self.shape[axis], step):
            extent = min(step, self.shape[axis] - at)
            part = Box((*self.starts[:axis], self.starts[axis] + at, *self.starts[axis + 1 :]), (*self.shape[:axis], extent, *self.shape[axis + 1 :]))
            found += part.pieces(most)
        return found

    def __str__(self) -> str:
        """Formats the box as an index: [0:4, 8:16]."""
        return "[" + ", ".join(f"{start}:{start + extent}" for start, extent in zip(self.starts, self.shape)) + "]"


def chunk_of(shape: Sequence[int], cuts: Sequence[tuple[int | None, int, int]]) -> Box:
    """Returns one rank's part.

    `cuts` contains a triple for each axis of the rank's mesh: the dimension that the axis splits (None: no dimension), the axis's extent, and the
    rank's position. Parts are the same as in `torch.chunk()`: all but the last have the same size, and the last may be smaller or empty.
    """
    starts, extents = [0] * len(shape), list(shape)
    for dim, world, rank in cuts:
        if dim is None:
            continue
        step = -(-extents[dim] // world)
        first = min(rank * step, extents[dim])
        starts[dim] += first
        extents[dim] = min(step, extents[dim] - first)
    return Box(tuple(starts), tuple(extents))
