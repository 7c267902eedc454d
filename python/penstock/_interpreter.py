"""Refuses to be imported by a sub-interpreter, before the native module is: see python/native/module.cc, which asks before Python 3.13."""

from __future__ import annotations

from typing import Any

_interpreters: Any
try:
    import _interpreters  # of Python 3.13 and newer
except ImportError:
    _interpreters = None

if _interpreters is not None and _interpreters.get_current()[0] != _interpreters.get_main()[0]:
    raise ImportError("penstock works in the main interpreter of a process only, and this is a sub-interpreter")
