"""Places many sizes in one allocation, each at a multiple of an alignment."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from .. import _native

__all__ = ["ALIGNMENT", "aligned", "packed"]

ALIGNMENT = _native.MODEL_ALIGNMENT  # of each tensor in memory


def aligned(place: int, alignment: int = ALIGNMENT) -> int:
    """Returns the first multiple of the alignment, a power of two, that is not below this offset, address or size."""
    return (place + alignment - 1) & -alignment


def packed(sizes: Iterable[int], alignment: int = ALIGNMENT, start: int = 0) -> tuple[list[int], int]:
    """Returns where each size starts, one after another from `start` on, and where the next one would start."""
    starts = list(itertools.accumulate([(size + alignment - 1) & -alignment for size in sizes], initial=start))
    end = starts.pop()
    return starts, end
