"""Finds arrays that share memory, and arrays whose own elements share memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["OVERLAP", "crossing", "may_overlap", "span_of"]

OVERLAP = "has elements that share memory, as after expand(): pass a tensor in which each element has its own memory"


def may_overlap(shape: Iterable[int], strides: Iterable[int]) -> bool:
    """Returns True if elements of an array may share memory, and False if they certainly do not."""
    lengths = list(shape)
    if 0 in lengths:
        return False
    reach = 0  # total reach of the dimensions with smaller strides, in stride units
    for stride, length in sorted((abs(stride), length) for stride, length in zip(strides, lengths) if length > 1):
        if stride <= reach:
            return True
        reach += stride * (length - 1)
    return False


def span_of(address: int, shape: Iterable[int], strides: Iterable[int], itemsize: int) -> tuple[int, int]:
    """Returns the address of an array's first byte, and the address past its last. `strides` are in bytes."""
    steps = [(length - 1) * stride for length, stride in zip(shape, strides)]
    if any(length == 0 for length in shape):
        return (address, address)
    return (address + sum(step for step in steps if step < 0), address + sum(step for step in steps if step > 0) + itemsize)


def crossing(spans: Iterable[tuple[Any, int, int, int]]) -> set[int]:
    """Returns the numbers of spans that may overlap another span. A span is (device, first address, address past the last byte, number)."""
    found: set[int] = set()
    last: tuple[Any, int, int] | None = None  # device, end, number
    for device, start, end, number in sorted(each for each in spans if each[1] < each[2]):
        if last is not None and last[0] == device and start < last[1]:
            found |= {last[2], number}
        if last is None or last[0] != device or end > last[1]:
            last = device, end, number
    return found
