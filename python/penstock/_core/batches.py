"""Groups items by their sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["in_batches"]

Item = TypeVar("Item")


def in_batches(items: Iterable[Item], most_bytes: int, size_of: Callable[[Item], int], most_items: int = sys.maxsize) -> Iterator[list[Item]]:
    """Yields lists of items, in order. Only a list with a single item may exceed most_bytes."""
    batch: list[Item] = []
    total = 0
    for each in items:
        nbytes = size_of(each)
        if batch and (total + nbytes > most_bytes or len(batch) >= most_items):
            yield batch
            batch, total = [], 0
        batch.append(each)
        total += nbytes
    if batch:
        yield batch
