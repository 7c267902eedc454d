"""Locks that a forked child finds free."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

__all__ = ["forkable_lock"]


def forkable_lock() -> threading.Lock:
    """A lock that is free in a forked child, also where another thread of the parent held it: that thread is not there to let go of it.

    What it guards may be half changed then; so much only that the next change makes it right.
    """
    lock = threading.Lock()
    _locks.add(lock)
    return lock


_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def _free_in_child() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()


os.register_at_fork(after_in_child=_free_in_child)
