"""Code shared by the two kinds of settings: the argument forms of set(), and the context manager that it returns."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any


class ConfigContextManager:
    """The result of set(). At the end of a with block, it restores the earlier values. Created by set() only."""

    def __init__(self, apply: Callable[[dict[str, Any]], object], earlier: dict[str, Any]) -> None:
        self._apply = apply
        self._earlier = earlier

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._apply(self._earlier)


def wanted_values(config: tuple[Any, ...]) -> dict[str, Any]:
    """Returns the settings that the arguments of set() request: set(name, value) or set({name: value}). Raises ValueError for other arguments."""
    if len(config) == 1 and isinstance(config[0], dict):
        return dict(config[0])
    if len(config) == 2 and isinstance(config[0], str):
        return {config[0]: config[1]}
    raise ValueError("Valid arguments are set(config: dict) or set(key: str, value: Any)")
