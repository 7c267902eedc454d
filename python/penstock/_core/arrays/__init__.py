"""The array libraries that Penstock supports, each with one adapter (a Library).

To support another library, write its adapter in a module of this folder, of_NAME, and add a line to the table in _core/libraries.py.
python/tests/test_arrays.py tests all adapters of the table in the same way.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ..libraries import LIBRARIES
from .library import Library

__all__ = ["library_for", "library_named", "library_of", "settle"]

_adapters: dict[str, Library] = {}
_owners: dict[type, Library] = {}  # the adapters for the types of arrays seen so far


def library_named(name: str) -> Library:
    """Returns the adapter of a library in LIBRARIES. Raises ImportError if the library is required but not installed."""
    found = _adapters.get(name)
    if found is None:
        found = _adapters[name] = importlib.import_module(f"{__name__}.of_{name}").LIBRARY
    return found


def library_of(value: Any) -> Library | None:
    """Returns the adapter for an array, or None if no library supports the value. Imports no library."""
    known = _owners.get(type(value))
    if known is not None:
        return known
    for name in LIBRARIES:
        if name in _adapters or sys.modules.get(name) is not None:
            library = _adapters.get(name) or library_named(name)
            if library.owns(value):
                _owners[type(value)] = library
                return library
    return None


def library_for(what: str, value: Any) -> Library:
    """Returns the adapter for an array. Raises TypeError, which starts with `what`, if no library supports the value."""
    found = library_of(value)
    if found is None:
        raise TypeError(f"{what} must be a PyTorch tensor, a NumPy or CuPy array, or a penstock.DeviceBuffer, not {type(value).__name__}")
    return found


def settle(value: Any, stream: int | None = None) -> None:
    """Waits for the current stream of the value's library on the value's GPU, or for the stream with this handle. Does nothing for other memory.
    Accepts storages, too.
    """
    name = type(value).__module__.partition(".")[0]
    known = LIBRARIES.get(name)
    if known is not None and known.on_gpus:
        library_named(name).settle_array(value, stream)
