"""Finds NumPy's dtypes by the names that other processes send."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

__all__ = ["dtype_of"]

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
