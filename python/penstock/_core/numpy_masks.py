"""Checks whether a numpy.ma array has masked values, which files and messages cannot represent."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["mask_problem_of"]


def mask_problem_of(array: Any) -> str | None:
    """Returns why an array cannot be saved or filled, phrased to follow the array's name. None if no value is masked."""
    masked = sys.modules.get("numpy.ma")
    if masked is None or not isinstance(array, masked.MaskedArray) or not masked.is_masked(array):
        return None
    return "has masked values, which files cannot represent: pass its filled() or its data"
