"""Names of a library that Penstock has replaced, and their original values."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

__all__ = ["Explanation", "Installed", "Replacements", "described", "loaded_modules"]

_absent = object()


class Installed:
    """The result of `install()`. As a context manager, it calls `uninstall()` at the end of the block."""

    def __init__(self, uninstall: Callable[[], None], explain: Callable[[], Explanation]) -> None:
        self._uninstall = uninstall
        self._explain = explain

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *error: object) -> None:
        self._uninstall()

    def __repr__(self) -> str:
        return str(self._explain())


@dataclass(frozen=True)
class Explanation:
    """The result of `explain()`.

    - `installed`: True if Penstock has replaced the library.
    - `library`: the library's version; None if it is not installed.
    - `replaced`: the names that were replaced ("module.name"), in order.
    - `counts`: what Penstock has done since, such as the numbers of tensors and bytes that it has read into GPU memory, and of tensors and files that
      it has left to the library, by reason.
    - `name`: the library's name.
    """

    installed: bool
    library: str | None
    replaced: list[str]
    counts: dict[str, int]
    name: str = "safetensors"

    def __str__(self) -> str:
        if not self.installed:
            return f"the {self.name} library itself is in use; penstock.{self.name}.install() replaces it with Penstock"
        lines = [f"Penstock replaces the {self.name} library {self.library}"]
        lines.append(f"  replaced: {', '.join(self.replaced)}")
        lines += [f"  {name}: {count}" for name, count in sorted(self.counts.items())]
        return "\n".join(lines)


Explanation.__module__ = "penstock.safetensors"  # its public home, which pickles name


class Replacements:
    """The names replaced in one library. Hold `lock` for all calls."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._done: list[tuple[Any, str, Any]] = []  # namespace, name and original value (_absent if there was none)

    def __bool__(self) -> bool:
        return bool(self._done)

    def names(self) -> list[str]:
        return [f"{vars(each).get('__name__')}.{name}" for each, name, _ in self._done]

    def replace(self, namespace: Any, name: str, value: Any, optional: bool = False) -> None:
        """Replaces a name. `optional`: skip a module that rejects the change, instead of raising ImportError."""
        before = vars(namespace).get(name, _absent)
        try:
            setattr(namespace, name, value)
        except Exception as problem:
            if optional:
                return
            raise ImportError(f"{described(namespace)} does not allow {name} to be replaced: {problem}") from problem
        self._done.append((namespace, name, before))

    def put_back(self) -> None:
        """Restores all names, the last replaced first."""
        while self._done:
            namespace, name, before = self._done.pop()
            with contextlib.suppress(Exception):  # a module that now rejects changes
                if before is _absent:
                    vars(namespace).pop(name, None)
                else:
                    setattr(namespace, name, before)


def loaded_modules() -> list[ModuleType]:
    """Returns the program's modules, without objects in sys.modules that are not modules or cannot be inspected."""
    found = []
    for module in list(sys.modules.values()):
        with contextlib.suppress(Exception):
            if isinstance(module, ModuleType) and isinstance(vars(module), dict):
                found.append(module)
    return found


def described(library: ModuleType) -> str:
    """Returns a library's name, version and file, for messages."""
    name = getattr(library, "__name__", "?").partition(".")[0]
    return f"the {name} library {getattr(library, '__version__', 'of unknown version')} ({getattr(library, '__file__', None)})"
