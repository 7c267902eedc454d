"""Recognizes URLs of objects on servers, opens several at once, and orders the writes of an object roughly by offset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from .. import _native

__all__ = ["in_order", "is_url", "opened_together", "place_of"]

# Bytes in flight at once. A part of an object is sent once it is complete; incomplete parts are kept in memory.
_STEP_BYTES = 64 << 20

_MOST_OPENED_AT_ONCE = 16

_T = TypeVar("_T")


def is_url(path: Any) -> bool:
    """Returns True if the library treats the path as the URL of an object on a server. A descriptor, for example, is not one."""
    return isinstance(path, (str, bytes, os.PathLike)) and _native.is_url(path)


def place_of(path: str) -> str:
    """Returns a key that is the same for all paths of a file."""
    return path if is_url(path) else os.path.realpath(path)


def opened_together(names: Sequence[str], open_one: Callable[[str], _T], close: Callable[[_T], object]) -> Iterator[_T]:
    """Yields the opened files in order. Opens files on servers concurrently, because each open waits for a response. If one cannot be opened, those
    that have not been yielded are closed."""
    if len(names) < 2 or not any(map(is_url, names)):
        yield from map(open_one, names)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(names), _MOST_OPENED_AT_ONCE), "penstock-open") as pool:
        begun = [pool.submit(open_one, name) for name in names]
        taken = 0
        try:
            for each in begun:
                taken += 1
                yield each.result()
        finally:
            for each in begun[taken:]:  # files after the one that failed
                if not each.cancel() and each.exception() is None:
                    close(each.result())


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
