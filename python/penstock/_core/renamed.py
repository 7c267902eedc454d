"""Old names of arguments, which keep working for one version."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["renamed"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def renamed(**names: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Lets a function accept old names of keyword arguments, with a DeprecationWarning. `names` maps each old name to the new one."""

    def decorate(call: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(call)
        def accept(*args: _P.args, **named: _P.kwargs) -> _R:
            for old in names.keys() & named.keys():
                if names[old] in named:
                    raise TypeError(f"{call.__name__}() got both {old}= and {names[old]}=, the old and the new name of the same argument")
                warnings.warn(f"{old}= of {call.__name__}() is deprecated: use {names[old]}=", DeprecationWarning, stacklevel=2)
                named[names[old]] = named.pop(old)
            return call(*args, **named)

        return accept

    return decorate
