"""Errors for tensor files, in addition to Penstock's general ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from .._core.errors import Error

__all__ = ["Mismatch", "SafetensorError", "listed", "meant", "of_file"]


class SafetensorError(Error):
    """The file is not a safetensors file, or lacks what you requested. A `penstock.Error`, and so an `OSError`."""


class Mismatch(SafetensorError, RuntimeError):
    """The tensors in the files do not match the target. Also a RuntimeError, like that of `torch.nn.Module.load_state_dict()`."""


for _kind in (SafetensorError, Mismatch):
    _kind.__module__ = "penstock.safetensors"


def of_file(filename: str, problem: str, kind: type[SafetensorError] = SafetensorError, **fields: Any) -> SafetensorError:
    return kind(f"{filename}: {problem}", code=fields.pop("code", "invalid_argument"), filename=filename, **fields)


def meant(missing: Iterable[str], there: Iterable[str]) -> str:
    """Returns ": did you mean ...?" with names that are similar to the missing ones, or "" if no name is similar."""
    import difflib  # only for this error

    names = list(there)
    close = [found for each in itertools.islice(missing, 3) for found in difflib.get_close_matches(each, _alike(each, names), 1, 0.8)]
    return f": did you mean {' and '.join(dict.fromkeys(close))}?" if close else ""


def _alike(wrong: str, names: Iterable[str]) -> list[str]:
    """Returns the few names with the same beginning or end, because comparing many thousands of names would take seconds."""
    half = max(1, len(wrong) // 2 - 1)
    found = (each for each in names if abs(len(each) - len(wrong)) <= 3 and (each.startswith(wrong[:half]) or each.endswith(wrong[-half:])))
    return list(itertools.islice(found, 500))


def listed(names: Iterable[str], most: int = 20) -> str:
    """Quotes the first names and counts the rest."""
    every = list(names)
    told = ", ".join(f'"{each}"' for each in every[:most])
    return told if len(every) <= most else f"{told} and {len(every) - most} more"
