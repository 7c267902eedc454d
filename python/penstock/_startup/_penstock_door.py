"""Handles the first `import safetensors` in a program started by `penstock run`: imports the library normally, then installs Penstock."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

__all__ = ["found", "report", "say"]


def found(door: Any) -> ModuleSpec | None:
    """Returns the spec of safetensors, or None if it is not installed. `door` is our finder, which is removed once the library has been looked up."""
    finders: list[Any] = sys.meta_path
    place = finders.index(door)
    del finders[place]
    try:
        spec = find_spec("safetensors")
    except BaseException:  # the program gets the same error as without Penstock
        finders.insert(place, door)
        raise
    if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
        finders.insert(place, door)
        return None
    loader: Any = _Loader(spec.loader)
    spec.loader = loader
    return spec


class _Loader:
    """Loads the library with its own loader, and then installs Penstock."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _install()


def _install() -> None:
    """Replaces the library that was just imported with Penstock. If that fails for any reason, the program continues without Penstock."""
    try:
        if find_spec("penstock") is None:
            _import_beside()
        import penstock.safetensors as door

        door.install()
    except Exception as problem:
        _warn(problem)


def _warn(problem: Exception) -> None:
    """Warns once, with the reason, that Penstock was not installed. Never raises, even if the program turns warnings into errors."""
    with contextlib.suppress(Exception):
        text = f"the safetensors library was not replaced with Penstock: {type(problem).__name__}: {problem}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def report() -> None:
    """Prints the safetensors line of PENSTOCK_LOG=summary when the program ends."""
    if "safetensors" not in sys.modules:
        return say("penstock: safetensors was not used")
    door = sys.modules.get("penstock._patch.install")
    found = None if door is None else door.explain()
    if found is not None and found.installed:
        what = ", ".join(f"{name}: {count}" for name, count in sorted(found.counts.items())) or "it read nothing"
        say(f"penstock: replaced safetensors {found.library}; {what}")


def say(text: str) -> None:
    """Writes a line to standard error. Ignores a closed standard error."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
    except (OSError, ValueError):
        pass


def _import_beside() -> None:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not os.path.exists(os.path.join(package, "__init__.py")):  # only the command is installed, without the package
        raise ImportError(
            f"{sys.executable} lacks the penstock package. Install it there (pip install penstock), or set PENSTOCK_SAFETENSORS=0 if you do not need it"
        )
    spec = spec_from_file_location("penstock", os.path.join(package, "__init__.py"), submodule_search_locations=[package])
    assert spec is not None and spec.loader is not None
    module = sys.modules["penstock"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["penstock"]
        raise
