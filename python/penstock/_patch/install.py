"""install(): replaces the safetensors library with Penstock in a whole process, without changing any file."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .library import library_attribute

__all__ = ["Explanation", "Installed", "explain", "install", "uninstall"]

_lock = threading.RLock()
_replaced: list[tuple[Any, str, Any]] = []  # namespace, name and original value (_absent if there was none)
_absent = object()


class Installed:
    """The result of `install()`. As a context manager, it calls `uninstall()` at the end of the block."""

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *error: object) -> None:
        uninstall()

    def __repr__(self) -> str:
        return str(explain())


@dataclass(frozen=True)
class Explanation:
    """The result of `explain()`.

    - `installed`: True if Penstock has replaced the safetensors library.
    - `library`: the version of the safetensors library; None if it is not installed.
    - `replaced`: the names that were replaced ("module.name"), in order.
    - `counts`: the numbers of tensors and bytes that Penstock has read into GPU memory, and of tensors and files that it has left to the library, by
      reason.
    """

    installed: bool
    library: str | None
    replaced: list[str]
    counts: dict[str, int]

    def __str__(self) -> str:
        if not self.installed:
            return "the safetensors library itself is in use; penstock.safetensors.install() replaces it with Penstock"
        lines = [f"Penstock replaces the safetensors library {self.library}"]
        lines.append(f"  replaced: {', '.join(self.replaced)}")
        lines += [f"  {name}: {count}" for name, count in sorted(self.counts.items())]
        return "\n".join(lines)


Explanation.__module__ = "penstock.safetensors"  # its public home, which pickles name


def install() -> Installed:
    """Replaces `safetensors.safe_open` in all modules of this process, so that Penstock reads the tensors that are to be loaded onto a GPU.

    The library's `load_file()`, `load_model()` and everything else that opens files with `safe_open` then use Penstock too. All other names in the
    library stay the same. If the installed version lacks newer names (PrefetchPlan, PrefetchLoader, TensorMeta, PySafeSlice), they are added. A
    second call does nothing. `uninstall()` or the end of a `with install():` block undoes the replacement.

    Modules that reject the change keep the library's `safe_open`.

    Raises `ImportError`, and replaces nothing, if the safetensors library is missing, damaged or unrecognized.
    """
    library = importlib.import_module("safetensors")
    with _lock:
        if not _replaced:
            try:
                _replace_all(library)
            except BaseException:
                _put_back()
                raise
    return Installed()


def _replace_all(library: ModuleType) -> None:
    from .._tensors import prefetch
    from . import safe_open as ours

    theirs = _safe_open_of(library)
    for module in _modules():
        if vars(module).get("__name__") in ("penstock.safetensors.original", "safetensors._safetensors_rust"):
            continue
        for name, value in list(vars(module).items()):
            if value is theirs:
                _replace(module, name, ours.safe_open, optional=module is not library)
    if not _replaced:
        raise ImportError(f"{_called(library)} does not define safe_open itself, so it cannot be replaced")
    added = {"PrefetchPlan": prefetch.PrefetchPlan, "PrefetchLoader": prefetch.PrefetchLoader, "TensorMeta": prefetch.TensorMeta}
    for name, value in {**added, "PySafeSlice": ours.Slice}.items():
        if not hasattr(library, name):
            _replace(library, name, value)


def _modules() -> list[ModuleType]:
    """Returns the program's modules, without objects in sys.modules that are not modules or cannot be inspected."""
    found = []
    for module in list(sys.modules.values()):
        with contextlib.suppress(Exception):
            if isinstance(module, ModuleType) and isinstance(vars(module), dict):
                found.append(module)
    return found


def _safe_open_of(library: ModuleType) -> Any:
    try:
        theirs = library_attribute("safe_open")
    except AttributeError:
        theirs = None
    if not callable(theirs):
        raise ImportError(f"{_called(library)} does not define safe_open: it is damaged, or its version is not supported")
    return theirs


def _called(library: ModuleType) -> str:
    return f"the safetensors library {getattr(library, '__version__', 'of unknown version')} ({getattr(library, '__file__', None)})"


def uninstall() -> None:
    """Restores the safetensors library. Files opened through Penstock stay open and valid."""
    with _lock:
        _put_back()
        from .safe_open import safe_open as ours

        for module in _modules():  # including modules that were imported later
            if vars(module).get("__name__") != ours.__module__:
                for name, value in list(vars(module).items()):
                    if value is ours:
                        with contextlib.suppress(Exception):  # a module that rejects changes
                            setattr(module, name, library_attribute("safe_open"))


def explain() -> Explanation:
    """Reports what `install()` has replaced in this process, and what Penstock and the library have read since then."""
    from .safe_open import counts

    with _lock:
        library = sys.modules.get("safetensors")
        version = None if library is None else str(getattr(library, "__version__", "of unknown version"))
        return Explanation(bool(_replaced), version, [f"{vars(each).get('__name__')}.{name}" for each, name, _ in _replaced], dict(counts))


def _replace(namespace: Any, name: str, value: Any, optional: bool = False) -> None:
    """Replaces a name. `optional`: skip a module that rejects the change, instead of raising ImportError."""
    before = vars(namespace).get(name, _absent)
    try:
        setattr(namespace, name, value)
    except Exception as problem:
        if optional:
            return
        raise ImportError(f"{_called(namespace)} does not allow {name} to be replaced: {problem}") from problem
    _replaced.append((namespace, name, before))


def _put_back() -> None:
    while _replaced:
        namespace, name, before = _replaced.pop()
        with contextlib.suppress(Exception):  # a module that now rejects changes
            if before is _absent:
                vars(namespace).pop(name, None)
            else:
                setattr(namespace, name, before)
