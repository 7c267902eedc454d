"""Refuses sub-interpreters before the native module is imported; python/native/module.cc checks for them before Python 3.13."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def _interpreters() -> Any:
    """Returns the module, or None if Python lacks it."""
    if sys.version_info < (3, 13):  # do not search for it: that takes as long as an import
        return None
    try:
        return importlib.import_module("_interpreters")
    except ImportError:
        return None


_found = _interpreters()
if _found is not None and _found.get_current()[0] != _found.get_main()[0]:
    raise ImportError("penstock works only in the main interpreter of a process, not in a sub-interpreter")
