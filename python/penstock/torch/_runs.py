"""Finds runs of bytes that are contiguous in two tensors."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

__all__ = ["Run", "runs_of"]

# If there are more runs than the first limit and they are shorter than the second, it is faster to read the bytes in between too.
_MANY = 4096
_SHORT_BYTES = 4096


class Run(NamedTuple):
    """Bytes that are contiguous in both tensors."""

    source: int  # offset in bytes from the start of the source's storage
    target: int  # offset in bytes from the target's first item
    nbytes: int


def runs_of(source: Any, target: Any) -> list[Run] | None:
    """Returns the runs of two non-empty tensors of the same shape and dtype.

    Returns None if there are many short runs, or if items of the target share memory.
    """
    sizes = [size for size in source.size() if size != 1]
    strides = [stride for size, stride in zip(source.size(), source.stride()) if size != 1]
    wanted = [stride for size, stride in zip(target.size(), target.stride()) if size != 1]
    if any(stride <= 0 for stride in wanted):
        return None
    length, dims = 1, len(sizes)
    while dims and strides[dims - 1] == wanted[dims - 1] == length:
        length *= sizes[dims - 1]
        dims -= 1
    count = 1
    for size in sizes[:dims]:
        count *= size
    item = source.element_size()
    if count > _MANY and length * item < _SHORT_BYTES:
        return None
    found = []
    for places in itertools.product(*(range(size) for size in sizes[:dims])):
        here = source.storage_offset() + sum(i * stride for i, stride in zip(places, strides))
        there = sum(i * stride for i, stride in zip(places, wanted))
        found.append(Run(here * item, there * item, length * item))
    return found
