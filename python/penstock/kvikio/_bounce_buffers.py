"""Computes the result of bounce_buffer_free() for programs that set bounce_buffer_size: the total size of the buffers that KvikIO would keep.

KvikIO keeps a buffer of bounce_buffer_size for each of its threads that has accessed device memory, and frees all of these buffers when the size
changes. The sizes of Penstock's staging memory differ. It is freed too, but the number of its bytes is returned only if the size has its default
value.
"""

from __future__ import annotations

from typing import Any

import penstock
from penstock._core.forks import forkable_lock
from penstock.kvikio import defaults
from penstock.kvikio._buffer_checks import is_device_memory

__all__ = ["free", "note_transfer"]

_lock = forkable_lock()
_size = 0  # size of each buffer; guarded by _lock, like _count
_count = 0


def note_transfer(buf: Any, size: int | None) -> None:
    """Counts the buffers of a transfer. If `size` is None, all of buf is transferred. Ignores objects that are not buffers."""
    global _size, _count
    bytes_of_each = defaults.current("bounce_buffer_size")
    if bytes_of_each == defaults.default_of("bounce_buffer_size"):
        return
    try:
        if not is_device_memory(buf):
            return
        nbytes = penstock._native.resolve(buf)[1] if size is None else size
    except (TypeError, ValueError):
        return
    tasks = -(-nbytes // defaults.get("task_size"))
    at_work = min(tasks, defaults.get("num_threads"))
    with _lock:
        _count = max(_count, at_work) if bytes_of_each == _size else at_work
        _size = bytes_of_each


def free() -> int:
    """Frees idle staging memory. Returns the size of KvikIO's buffers if the program has set it, else the number of freed bytes."""
    global _count
    freed = penstock.trim()
    with _lock:
        counted, _count = _size * _count, 0
        told = _size if defaults.get("bounce_buffer_size") != defaults.default_of("bounce_buffer_size") else 0
    return counted if counted or told else freed
