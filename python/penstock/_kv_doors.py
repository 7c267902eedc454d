"""What engines that keep their caches in a penstock.kv.Store have in common: their settings, keys of any length, and one warning of many errors."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from ._errors import Error

__all__ = ["LOG", "check_settings", "key_of", "warn_of_errors"]

LOG = logging.getLogger("penstock")
_SETTINGS = ("folder", "capacity_bytes", "durable", "checksums")
_KEY_BYTES = 512  # of a key of penstock.kv at most


def check_settings(settings: dict[str, Any], where: str) -> None:
    """ValueError: they have others than those of a store. where: the engine's name for them."""
    unknown = sorted(set(settings) - set(_SETTINGS))
    if unknown:
        raise ValueError(f"{where} has {', '.join(unknown)}, and Penstock takes {', '.join(_SETTINGS)}")


def key_of(name: str) -> bytes:
    """The same for the same name, and of another name another."""
    key = name.encode("utf-8", "surrogatepass")
    return key if len(key) <= _KEY_BYTES else hashlib.sha256(key).digest()


def warn_of_errors(doing: str, results: list[Any], what: str) -> None:
    """Of all errors among the results in one line. what: things that the results are of."""
    errors = [each for each in results if isinstance(each, Error)]
    if errors:
        LOG.warning("%s %d of %d %s failed: %s", doing, len(errors), len(results), what, errors[0])
