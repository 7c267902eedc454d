"""Small decorators that KvikIO's users import. Its test server for remote files is not here: remote files are not."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any, Callable, TypeVar

from penstock._forks import forkable_lock

__all__ = ["call_once", "kvikio_deprecate_module", "kvikio_deprecation_notice"]

Result = TypeVar("Result")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def call_once(func: Callable[..., Result]) -> Callable[..., Result]:
    """Makes func run on its first call only; later calls return what the first returned, whatever their arguments.

    When func raises, it counts as not called. Thread-safe: callers wait for the one that runs.
    """
    lock = forkable_lock()
    kept: list[Result] = []

    @functools.wraps(func)
    def once(*args: Any, **kwargs: Any) -> Result:
        with lock:
            if not kept:
                kept.append(func(*args, **kwargs))
        return kept[0]

    return once


def kvikio_deprecation_notice(msg: str, *, since: str) -> Callable[[Decorated], Decorated]:
    """Marks a function or class as deprecated: each call warns with FutureWarning, and its docstring says so.

    msg: what to use instead. since: the version that deprecated it.
    """

    def decorate(target: Decorated) -> Decorated:
        @functools.wraps(target)
        def warned(*args: Any, **kwargs: Any) -> Any:
            warnings.warn(f"{target.__name__} is deprecated since {since}. {msg}", FutureWarning, stacklevel=2)
            return target(*args, **kwargs)

        note = f".. deprecated:: {since}\n    {msg}"
        warned.__doc__ = f"{inspect.getdoc(target) or ''}\n\n{note}"
        return warned  # type: ignore[return-value]

    return decorate


def kvikio_deprecate_module(msg: str, *, since: str) -> None:
    """Warns with FutureWarning that the module which calls this is deprecated. For the top of that module."""
    caller = inspect.stack()[1].frame.f_globals.get("__name__", "this module")
    warnings.warn(f"{caller} is deprecated since {since}. {msg}", FutureWarning, stacklevel=3)
