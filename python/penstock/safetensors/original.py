"""The safetensors library itself, even while Penstock is installed in its place. It provides the names in the library's modules.

    from penstock.safetensors import original

    with original.safe_open("model.safetensors", framework="jax") as file: ...

Raises ImportError if the library is not installed.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


def __dir__() -> list[str]:
    try:
        library = importlib.import_module("safetensors")
    except ImportError:
        return []
    return [name for name, value in sorted(vars(library).items()) if not name.startswith("_") and not isinstance(value, ModuleType)]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    library = importlib.import_module("safetensors")
    made = importlib.import_module("safetensors._safetensors_rust")  # the library's compiled module, which is never replaced
    return getattr(made, name) if hasattr(made, name) else getattr(library, name)
