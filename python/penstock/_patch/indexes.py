"""Indexes of tensors that all versions of the safetensors library accept."""

from __future__ import annotations

from typing import Any

__all__ = ["is_plain", "part_of_part", "takes_all"]


def takes_all(index: Any) -> bool:
    """Returns True for the indexes ..., () and [:]."""
    if isinstance(index, slice):
        return index.start is None and index.stop is None and index.step is None
    return index is Ellipsis or (isinstance(index, tuple) and not index)


def is_plain(index: Any, shape: tuple[int, ...]) -> bool:
    """Returns True for ints and slices within the tensor, which all versions of the library accept."""
    items = index if isinstance(index, tuple) else (index,)
    if len(items) > len(shape):
        return False
    return all(_is_within(each, length) for each, length in zip(items, shape))


def _is_within(each: Any, length: int) -> bool:
    if isinstance(each, slice):
        start, stop = 0 if each.start is None else each.start, length if each.stop is None else each.stop
        return each.step in (None, 1) and type(start) is int and type(stop) is int and 0 <= start <= stop <= length
    return type(each) is int and -length <= each < length


def part_of_part(shape: tuple[int, ...], outer: Any, inner: Any) -> tuple[Any, ...]:
    """Returns the index, in a tensor of this shape, of the part that inner selects within the part that outer selects. Both must be plain."""
    picks = list(inner) if isinstance(inner, tuple) else [inner]
    found: list[Any] = []
    of = outer if isinstance(outer, tuple) else (outer,)
    for each, length in zip((*of, *[slice(None)] * (len(shape) - len(of))), shape):
        if isinstance(each, slice):
            start, stop, _ = each.indices(length)
            pick = picks.pop(0) if picks else slice(None)
            taken = range(start, stop)[pick]
            each = slice(taken.start, taken.stop) if isinstance(taken, range) else taken
        found.append(each)
    return tuple(found)
