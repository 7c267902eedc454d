"""Handles the first `import` of safetensors, kvikio or fastsafetensors in a program started by `penstock run`: imports the library, then installs Penstock."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

__all__ = ["find_and_follow", "found", "report", "say", "warn"]

# By library: the module whose explain() reports what Penstock replaced.
_LIBRARIES = {
    "safetensors": "penstock._patch.safetensors_library",
    "kvikio": "penstock._patch.kvikio_library",
    "fastsafetensors": "penstock.fastsafetensors",
}


def found(door: Any, name: str, path: Any, target: Any) -> ModuleSpec | None:
    """Returns the library's spec, or None if it is not installed. `door` is our finder. An error is the one that the program gets without Penstock."""

    def install(_: ModuleType) -> None:
        if name in door.names:  # once: from then on, the library's modules are looked up as usual
            door.names.remove(name)
        _install(name)

    return find_and_follow(door, name, path, target, install)


def find_and_follow(finder: Any, name: str, path: Any, target: Any, follow: Callable[[ModuleType], None]) -> ModuleSpec | None:
    """Returns the spec that the finders other than `finder` find, or None. Once the module has been executed, `follow` is called with it."""
    for each in list(sys.meta_path):
        spec = each.find_spec(name, path, target) if each is not finder and hasattr(each, "find_spec") else None
        if spec is not None:
            if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                loader: Any = _Loader(spec.loader, follow)
                spec.loader = loader
            return spec
    return None


class _Loader:
    """Loads a module with its own loader, and then calls a function."""

    def __init__(self, loader: Loader, follow: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._follow = follow

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":  # as copy asks, before there is a loader
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._follow(module)


def _install(name: str) -> None:
    """Replaces the library that was just imported with Penstock. If that fails for any reason, the program continues without Penstock."""
    try:
        if find_spec("penstock") is None:
            _import_beside(name)
        import_module(f"penstock.{name}").install()
    except Exception as problem:
        warn(f"the {name} library was not replaced with Penstock: {type(problem).__name__}: {problem}")


def warn(text: str) -> None:
    """Issues a RuntimeWarning. Never raises, even if the program turns warnings into errors."""
    with contextlib.suppress(Exception):
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def report() -> None:
    """Prints what was replaced, for PENSTOCK_LOG=summary, when the program ends."""
    if not any(name in sys.modules for name in _LIBRARIES):
        return say("penstock: safetensors was not used")
    for name, module in _LIBRARIES.items():
        door = sys.modules.get(module)
        found = None if door is None else door.explain()
        if found is not None and found.installed:
            what = ", ".join(f"{word}: {count}" for word, count in sorted(found.counts.items())) or "it read nothing"
            say(f"penstock: replaced {name} {found.library}; {what}")


def say(text: str) -> None:
    """Writes a line to standard error. Ignores a closed standard error."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
    except (OSError, ValueError):
        pass


def _import_beside(name: str) -> None:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not os.path.exists(os.path.join(package, "__init__.py")):  # only the command is installed, without the package
        raise ImportError(
            f"{sys.executable} lacks the penstock package. Install it there (pip install penstock), or set PENSTOCK_{name.upper()}=0 if you "
            "do not need it"
        )
    spec = spec_from_file_location("penstock", os.path.join(package, "__init__.py"), submodule_search_locations=[package])
    assert spec is not None and spec.loader is not None
    module = sys.modules["penstock"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["penstock"]
        raise
