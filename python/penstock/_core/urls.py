"""Recognizes URLs of objects on servers, and orders the writes of an object roughly by offset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from .. import _native

__all__ = ["in_order", "is_url", "place_of"]

# Bytes in flight at once. A part of an object is sent once it is complete; incomplete parts are kept in memory.
_STEP_BYTES = 64 << 20

_T = TypeVar("_T")


def is_url(path: Any) -> bool:
    """Returns True if the library treats the path as the URL of an object on a server. A descriptor, for example, is not one."""
    return isinstance(path, (str, bytes, os.PathLike)) and _native.is_url(path)


def place_of(path: str) -> str:
    """Returns a key that is the same for all paths of a file."""
    return path if is_url(path) else os.path.realpath(path)


def in_order(requests: Iterable[_T], nbytes_of: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Groups requests that are sorted by offset. The groups are written sequentially."""
    group: list[_T] = []
    total = 0
    for each in requests:
        group.append(each)
        total += nbytes_of(each)
        if total >= _STEP_BYTES:
            yield group
            group, total = [], 0
    if group:
        yield group
