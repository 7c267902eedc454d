"""Names of a package that are imported when they are first asked for: the first load of a program waits for what it uses, and for nothing else."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["lazily"]


def lazily(module: str, package: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = ()) -> Callable[[str], Any]:
    """A module's __getattr__ (PEP 562). names: by submodule of the package, those that come from it. modules: submodules themselves."""
    where = {name: submodule for submodule, every in names.items() for name in every}

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        submodule = where.get(name)
        if submodule is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{package}.{submodule}"), name)
        setattr(sys.modules[module], name, found)
        return found

    return find
