"""The safetensors library itself, even while Penstock is installed in its place."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

__all__ = ["library_attribute", "library_names"]


def library_names() -> list[str]:
    """Returns the library's public names; none if it is not installed."""
    try:
        library = importlib.import_module("safetensors")
    except ImportError:
        return []
    return [name for name, value in sorted(vars(library).items()) if not name.startswith("_") and not isinstance(value, ModuleType)]


def library_attribute(name: str) -> Any:
    """Raises ImportError if the library is not installed, and AttributeError if it lacks the name."""
    library = importlib.import_module("safetensors")
    made = importlib.import_module("safetensors._safetensors_rust")  # the library's compiled module, which is never replaced
    return getattr(made, name) if hasattr(made, name) else getattr(library, name)
