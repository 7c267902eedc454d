"""Deadlines on time.monotonic()."""

from __future__ import annotations

import time
from typing import Any

from .._core.errors import InvalidArgument
from .._core.tensor_facts import seconds_of

__all__ = ["left_until", "until"]

_most = 1e8  # seconds: about three years, which every clock and wait accepts


def until(timeout: Any) -> float:
    """Returns the time `timeout` seconds from now. Raises TypeError if it is not a number, and InvalidArgument if it is not a valid number of
    seconds."""
    seconds = seconds_of(timeout)
    if seconds is None:
        raise TypeError("timeout must be a number of seconds, not None")
    if not seconds >= 0:
        raise InvalidArgument(f"timeout is {seconds} seconds, which is not valid", code="invalid_argument")
    return time.monotonic() + min(seconds, _most)


def left_until(deadline: float) -> float:
    """Returns the number of seconds left; 0 after the deadline."""
    return max(0.0, deadline - time.monotonic())
