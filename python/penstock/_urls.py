"""What is meant as the URL of an object on a server, and how such an object is written: in about the order of its bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from . import _native

__all__ = ["in_order", "is_url", "place_of"]

# What is under way at once. A part of an object is sent when all of its bytes are there, and parts that lack some are held.
_STEP_BYTES = 64 << 20

_T = TypeVar("_T")


def is_url(path: Any) -> bool:
    """Whether the library takes it for the URL of an object on a server. A descriptor, for example, is not one."""
    return isinstance(path, (str, bytes, os.PathLike)) and _native.is_url(path)


def place_of(path: str) -> str:
    """By which two names of one file are the same."""
    return path if is_url(path) else os.path.realpath(path)


def in_order(requests: Iterable[_T], nbytes_of: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Requests that follow each other in a file, in groups to be written one after the other."""
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
