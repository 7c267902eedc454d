"""install(): replaces the safetensors library with Penstock in a whole process, without changing any file."""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType
from typing import Any

from .library import library_attribute
from .replacements import Explanation, Installed, Replacements, described, loaded_modules

__all__ = ["explain", "install", "uninstall"]

_replacements = Replacements()


def install() -> Installed:
    """Replaces `safetensors.safe_open` in all modules of this process, so that Penstock reads the tensors that are to be loaded onto a GPU.

    The library's `load_file()`, `load_model()` and everything else that opens files with `safe_open` then use Penstock too. All other names in the
    library stay the same. If the installed version lacks newer names (PrefetchPlan, PrefetchLoader, TensorMeta, PySafeSlice), they are added. A
    second call does nothing. `uninstall()` or the end of a `with install():` block undoes the replacement.

    Modules that reject the change keep the library's `safe_open`.

    Raises `ImportError`, and replaces nothing, if the safetensors library is missing, damaged or unrecognized.
    """
    library = importlib.import_module("safetensors")
    with _replacements.lock:
        if not _replacements:
            try:
                _replace_all(library)
            except BaseException:
                _replacements.put_back()
                raise
    return Installed(uninstall, explain)


def _replace_all(library: ModuleType) -> None:
    from .._tensors import prefetch
    from . import safe_open as ours

    theirs = _safe_open_of(library)
    for module in loaded_modules():
        if vars(module).get("__name__") in ("penstock.safetensors.original", "safetensors._safetensors_rust"):
            continue
        for name, value in list(vars(module).items()):
            if value is theirs:
                _replacements.replace(module, name, ours.safe_open, optional=module is not library)
    if not _replacements:
        raise ImportError(f"{described(library)} does not define safe_open itself, so it cannot be replaced")
    added = {"PrefetchPlan": prefetch.PrefetchPlan, "PrefetchLoader": prefetch.PrefetchLoader, "TensorMeta": prefetch.TensorMeta}
    for name, value in {**added, "PySafeSlice": ours.Slice}.items():
        if not hasattr(library, name):
            _replacements.replace(library, name, value)


def _safe_open_of(library: ModuleType) -> Any:
    try:
        theirs = library_attribute("safe_open")
    except AttributeError:
        theirs = None
    if not callable(theirs):
        raise ImportError(f"{described(library)} does not define safe_open: it is damaged, or its version is not supported")
    return theirs


def uninstall() -> None:
    """Restores the safetensors library. Files opened through Penstock stay open and valid."""
    with _replacements.lock:
        _replacements.put_back()
        from .safe_open import safe_open as ours

        for module in loaded_modules():  # including modules that were imported later
            if vars(module).get("__name__") != ours.__module__:
                for name, value in list(vars(module).items()):
                    if value is ours:
                        with contextlib.suppress(Exception):  # a module that rejects changes
                            setattr(module, name, library_attribute("safe_open"))


def explain() -> Explanation:
    """Reports what `install()` has replaced in this process, and what Penstock and the library have read since then."""
    from .safe_open import counts

    with _replacements.lock:
        library = sys.modules.get("safetensors")
        version = None if library is None else str(getattr(library, "__version__", "of unknown version"))
        return Explanation(bool(_replacements), version, _replacements.names(), dict(counts))
