"""The safetensors library itself, even while Penstock is installed in its place. It provides the names in the library's modules.

    from penstock.safetensors import original

    with original.safe_open("model.safetensors", framework="jax") as file: ...

Raises ImportError if the library is not installed.
"""

from __future__ import annotations

from typing import Any

from .._patch.library import library_attribute, library_names


def __dir__() -> list[str]:
    return library_names()


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return library_attribute(name)
