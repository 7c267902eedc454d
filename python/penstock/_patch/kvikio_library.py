"""install(): replaces KvikIO's Python interface with Penstock in a whole process, without changing any file."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .._startup._penstock_door import find_and_follow, warn
from .replacements import Explanation, Installed, Replacements, loaded_modules

__all__ = ["explain", "install", "uninstall"]

# The modules of KvikIO in which names are replaced: "" is the package. Each has the same path in penstock.kvikio.
_MODULES = ("", "buffer", "cufile", "cufile_driver", "defaults", "mmap", "numpy", "remote_file", "statistics", "stream", "utils", "zarr")

_replacements = Replacements()


def install() -> Installed:
    """Replaces the functions and classes of KvikIO with those of `penstock.kvikio`, in all modules of this process.

    Names that `penstock.kvikio` lacks stay KvikIO's own. Modules of KvikIO that the program imports later are changed too. A second call
    does nothing. `uninstall()` or the end of a `with install():` block undoes the replacement; what the program has created until then stays valid.

    Raises `ImportError`, and replaces nothing, if KvikIO is missing or rejects the change.
    """
    importlib.import_module("kvikio")
    with _replacements.lock:
        if not _replacements:
            try:
                for name in _MODULES:
                    if _path("kvikio", name) in sys.modules:
                        _replace_in(name)
            except BaseException:
                _replacements.put_back()
                raise
            sys.meta_path.insert(0, _LateModules)
            importlib.import_module("penstock.kvikio.defaults").leave_threads_to_the_library()
    return Installed(uninstall, explain)


def uninstall() -> None:
    """Restores KvikIO."""
    with _replacements.lock:
        if _LateModules in sys.meta_path:
            sys.meta_path.remove(_LateModules)
        _replacements.put_back()


def explain() -> Explanation:
    """Reports what `install()` has replaced in this process."""
    with _replacements.lock:
        library = sys.modules.get("kvikio")
        version = None if library is None else str(getattr(library, "__version__", "of unknown version"))
        names = _replacements.names()
        return Explanation(bool(_replacements), version, names, {"names": len(names)} if names else {}, "kvikio")


def _path(package: str, name: str) -> str:
    return f"{package}.{name}" if name else package


def _replace_in(name: str) -> None:
    """Replaces a module's functions and classes, also in other modules that have imported them."""
    theirs, ours = sys.modules[_path("kvikio", name)], importlib.import_module(_path("penstock.kvikio", name))
    elsewhere = {}
    for each in _public_names(ours):
        before, value = vars(theirs).get(each), vars(ours).get(each)
        if not callable(before) or not callable(value):
            continue
        _replacements.replace(theirs, each, value)
        if str(getattr(before, "__module__", "")).partition(".")[0] == "kvikio":
            elsewhere[id(before)] = (before, value)
    for module in loaded_modules():
        if str(vars(module).get("__name__", "")).partition(".")[0] in ("kvikio", "penstock"):
            continue
        for each, present in list(vars(module).items()):
            before, value = elsewhere.get(id(present), (None, None))
            if before is not None and before is present:
                _replacements.replace(module, each, value, optional=True)


def _public_names(module: ModuleType) -> list[str]:
    return [name for name in getattr(module, "__all__", vars(module)) if not name.startswith("_")]


class _LateModules:
    """A finder on sys.meta_path: replaces names in modules of KvikIO that are imported after install()."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package != "kvikio" or rest not in _MODULES:
            return None
        return find_and_follow(cls, name, path, target, lambda module: _replace_late(module, rest))


def _replace_late(module: ModuleType, name: str) -> None:
    with _replacements.lock:
        if not _replacements:
            return
        try:
            _replace_in(name)
        except Exception as problem:  # such as a zarr that Penstock does not support: the program keeps KvikIO's module
            warn(f"{module.__name__} was not replaced with Penstock: {problem}")
