"""Refuses sub-interpreters before the native module is imported; python/native/module.cc checks for them before Python 3.13."""

from __future__ import annotations

import importlib
from typing import Any


def _interpreters() -> Any:
    """Returns the module, or None before Python 3.13."""
    try:
        return importlib.import_module("_interpreters")
    except ImportError:
        return None


_found = _interpreters()
if _found is not None and _found.get_current()[0] != _found.get_main()[0]:
    raise ImportError("penstock works only in the main interpreter of a process, not in a sub-interpreter")
