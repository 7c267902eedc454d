"""What bounce_buffer_free() counts for programs that set bounce_buffer_size: the buffers of that size that KvikIO would hold.

KvikIO keeps a buffer of bounce_buffer_size for each of its threads that was at work on device memory, and lets go of all of them when the
size changes. Penstock's staging memory has sizes of its own: it is freed too, but counted only where the size is left at its default.
"""

from __future__ import annotations

from typing import Any

import penstock
from penstock._forks import forkable_lock
from penstock.kvikio import defaults
from penstock.kvikio._memory import is_device_memory

__all__ = ["free", "note_transfer"]

_lock = forkable_lock()
_size = 0  # of each buffer; guarded by _lock, as is
_count = 0


def note_transfer(buf: Any, size: int | None) -> None:
    """size: None, all of buf. What is no buffer counts for nothing."""
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
    """Gives idle staging memory back, and tells the bytes of KvikIO's buffers, if there would be any, else its own."""
    global _count
    freed = penstock.trim()
    with _lock:
        counted, _count = _size * _count, 0
        told = _size if defaults.get("bounce_buffer_size") != defaults.default_of("bounce_buffer_size") else 0
    return counted if counted or told else freed
