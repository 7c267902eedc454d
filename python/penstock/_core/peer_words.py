"""Checks messages from another process, and passes errors between processes."""

from __future__ import annotations

import json
from typing import Any

from .errors import Error, make_error

__all__ = ["failure_of", "failure_word", "malformed", "number_in"]

_most_reason = 2000
_codes = {"closed", "timed_out", "invalid_argument", "permission_denied", "out_of_memory", "unsupported", "io", "would_block", "internal"}


def malformed(problem: str) -> Error:
    return Error(f"the peer sent {problem}", code="io")


def number_in(word: dict[str, Any], name: str, otherwise: int | None = None) -> int:
    """Returns a count in a word. Raises Error (io) if the value is not a count."""
    value = word.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 1 << 53:
        raise malformed(f"the invalid value {str(value)[:100]!r} for {name}")
    return value


def failure_word(error: BaseException) -> bytes:
    code = error.code if isinstance(error, Error) and error.code in _codes else "internal"
    text = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    return json.dumps({"failed": code, "reason": text[:_most_reason]}).encode()


def failure_of(word: dict[str, Any]) -> Error | None:
    """Returns the error that a word reports, or None."""
    code, reason = word.get("failed"), word.get("reason")
    if not isinstance(code, str) or not isinstance(reason, str):
        return None
    return make_error(code if code in _codes else "internal", reason[:_most_reason], "penstock", 0, None, None, 0)
