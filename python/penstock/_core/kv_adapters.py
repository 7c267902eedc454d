"""Code shared by the engine plug-ins that store caches in a `penstock.kv.Store`: settings, keys of any length, and errors as warnings."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

from .errors import Error

__all__ = ["LOG", "check_settings", "key_of", "tried", "warn_of_errors"]

LOG = logging.getLogger("penstock")
_SETTINGS = ("folder", "capacity_bytes", "durable", "checksums")
_KEY_BYTES = 512  # length limit for keys in penstock.kv


def check_settings(settings: dict[str, Any], where: str, more: tuple[str, ...] = ()) -> None:
    """Raises ValueError for unknown settings. `where` is the engine's name for the settings; `more` lists those that are not the store's."""
    valid = _SETTINGS + more
    unknown = sorted(set(settings) - set(valid))
    if unknown:
        raise ValueError(f"{where} has unknown settings: {', '.join(unknown)}; valid settings are {', '.join(valid)}")


def key_of(name: str) -> bytes:
    """Returns a key of at most 512 bytes. Different names give different keys."""
    key = name.encode("utf-8", "surrogatepass")
    return key if len(key) <= _KEY_BYTES else hashlib.sha256(key).digest()


def warn_of_errors(doing: str, results: list[Any], what: str) -> None:
    """Logs one warning for all errors among the results. `what`: the plural noun for the processed items."""
    errors = [each for each in results if isinstance(each, Error)]
    if errors:
        LOG.warning("%s %d of %d %s failed: %s", doing, len(errors), len(results), what, str(errors[0]))


def tried(engine: str, what: str, call: Callable[[], Any], failed: Any) -> Any:
    """Returns the result of a call, or `failed`. Catches every exception, because any exception would end the engine's thread and its caching."""
    try:
        return call()
    except Exception as problem:
        LOG.warning("%s: Penstock could not %s: %s", engine, what, str(problem))  # not the exception, because its traceback would keep buffers alive
        return failed
