"""Finds NumPy's dtypes by the names that other processes send, and detects masked arrays, whose values are not just their bytes."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

__all__ = ["dtype_of", "mask_problem_of"]

# numpy.dtype() accepts expressions, some of which raise SyntaxError.
_one_dtype = re.compile(r"[<>|=]?[A-Za-z?]\w{0,30}(\[\w{1,10}\])?", re.ASCII)


def dtype_of(word: str) -> numpy.dtype[Any] | None:
    """Returns the dtype with a name or typestr, such as "<f4", or None if NumPy itself lacks it."""
    import numpy

    if not _one_dtype.fullmatch(word):
        return None
    try:
        dtype = numpy.dtype(word)
    except (TypeError, ValueError):
        return None  # such as bfloat16
    if dtype.isbuiltin == 2:  # for example ml_dtypes' bfloat16, whose typestr describes only bytes
        return None
    return None if dtype.hasobject or dtype.itemsize == 0 else dtype


def mask_problem_of(array: Any) -> str | None:
    """Returns why an array cannot be saved or filled, phrased to follow the array's name. None if no value is masked."""
    masked = sys.modules.get("numpy.ma")
    if masked is None or not isinstance(array, masked.MaskedArray) or not masked.is_masked(array):
        return None
    return "has masked values, which files cannot represent: pass its filled() or its data"
