"""Whether an array of numpy.ma hides values, which files and messages have no place for."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["mask_problem_of"]


def mask_problem_of(array: Any) -> str | None:
    """Why an array cannot be saved or filled: the end of a sentence that begins with its name. None: none of its values are masked."""
    masked = sys.modules.get("numpy.ma")
    if masked is None or not isinstance(array, masked.MaskedArray) or not masked.is_masked(array):
        return None
    return "has masked values, and files have no masks: pass filled(), or its data"
