"""Locks that are free in a forked child."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

__all__ = ["forkable_lock"]


def forkable_lock() -> threading.Lock:
    """Returns a lock that is free in a forked child, even if another thread of the parent held it, because that thread does not exist in the child.

    The guarded state may then be inconsistent, so use such a lock only if the next change repairs the state.
    """
    lock = threading.Lock()
    _locks.add(lock)
    return lock


_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def _free_in_child() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()


os.register_at_fork(after_in_child=_free_in_child)
