"""Imports a package's names and submodules on first use, so that a program imports only what it needs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

__all__ = ["importable", "lazily"]


def lazily(module: str, package: str, names: Mapping[str, Sequence[str]], modules: Collection[str] = ()) -> Callable[[str], Any]:
    """Returns a module's __getattr__ (PEP 562). `names` maps each module, written as in an import statement of the package (".save", "..other.save"), to
    the names to take from it; `modules` are the package's submodules themselves.
    """
    sources = {name: submodule for submodule, group in names.items() for name in group}

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        submodule = sources.get(name)
        if submodule is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(submodule, package), name)
        setattr(sys.modules[module], name, value)
        return value

    return find


def importable(modules: Mapping[str, str]) -> list[str]:
    """Returns the submodules whose library is installed, for a package's __dir__. `modules` maps each submodule to the library that it requires, or
    to "".
    """
    from importlib.util import find_spec

    return [name for name, library in modules.items() if not library or _is_installed(find_spec, library)]


def _is_installed(find_spec: Callable[[str], Any], library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ValueError:  # sys.modules contains None for it, or a module without a spec
        return sys.modules.get(library) is not None
