"""What goes wrong with tensor files, beside the errors of penstock itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._errors import Error

__all__ = ["Mismatch", "SafetensorError", "listed", "of_file"]


class SafetensorError(Error):
    """A file that is not what safetensors files are, or something asked of one that it has not. A penstock.Error, so an OSError."""


class Mismatch(SafetensorError, RuntimeError):
    """What is in the files and what is to be filled do not go together. RuntimeError: as torch.nn.Module.load_state_dict() raises."""


for _kind in (SafetensorError, Mismatch):
    _kind.__module__ = "penstock.safetensors"


def of_file(filename: str, problem: str, kind: type[SafetensorError] = SafetensorError, **fields: Any) -> SafetensorError:
    return kind(f"{filename}: {problem}", code=fields.pop("code", "invalid_argument"), filename=filename, **fields)


def listed(names: Iterable[str], most: int = 20) -> str:
    """The names in quotes; of very many the first ones, and how many more there are."""
    every = list(names)
    told = ", ".join(f'"{each}"' for each in every[:most])
    return told if len(every) <= most else f"{told} and {len(every) - most} more"
