"""Checks whether a numpy.ma array hides values, which files and messages cannot represent."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["mask_problem_of"]


def mask_problem_of(array: Any) -> str | None:
    """Returns why an array cannot be saved or filled, as the end of a sentence that begins with its name. None if no value is masked."""
    masked = sys.modules.get("numpy.ma")
    if masked is None or not isinstance(array, masked.MaskedArray) or not masked.is_masked(array):
        return None
    return "has masked values, and files have no masks: pass filled(), or its data"
