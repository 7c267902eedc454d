"""quiesce(), and the Python objects that keep a process from being frozen."""

from __future__ import annotations

import sys
import time
import weakref
from typing import Any

from .. import _native
from .errors import Error, TimedOut

__all__ = ["add_obstacle", "quiesce", "remove_obstacle"]

_obstacles: dict[weakref.ref[Any], str] = {}  # names by holder


def add_obstacle(holder: object, name: str) -> None:
    _obstacles[weakref.ref(holder, lambda ended: _obstacles.pop(ended, None))] = name


def remove_obstacle(holder: object) -> None:
    _obstacles.pop(weakref.ref(holder), None)


def quiesce(timeout: float | None = None) -> None:
    """Prepares the process for CRIU and cuda-checkpoint.

    Waits until no request and no background save is in flight, then ends Penstock's threads, closes its io_uring rings, its connections to servers and
    NVIDIA's libcufile, frees its pinned memory and makes key-value stores durable. Files and stores stay open, and the next call restores everything.
    Meanwhile, calls on other threads wait or complete. `timeout`: seconds.

    Raises TimedOut, which names what is in flight, and Error, which names what cannot be frozen: close open pipes, listeners, weights servers and
    attached weights first. Everything then remains usable.
    """
    began = time.monotonic()
    left = timeout
    while True:
        if names := list(_obstacles.values()):  # a copy, because other threads may add and remove
            raise Error(f"quiesce: this process cannot be frozen: close {', '.join(names)} first", code="unsupported")
        _native.quiesce(left)
        saving = sys.modules.get("penstock._core.saving")
        first = saving.first_in_progress() if saving else None
        if first is None:
            return
        if timeout is not None:
            left = max(0.0, began + timeout - time.monotonic())
        if not first._wait(left):
            raise TimedOut(f"quiesce: the save of {_native.shown_name(first.path)} is still in progress", code="timed_out")
