"""Modules of inference engines, from the folder that PENSTOCK_TEST_ENGINES names, as their wheels have them, without the engines' other needs.

Only the modules that are asked for are the engine's own. Everything else of the engine, and each library that is not installed, is a module in which
every name is a mock.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

FOLDER = os.environ.get("PENSTOCK_TEST_ENGINES", "")


def has(module: str) -> bool:
    """Returns True if the folder has a module of an engine."""
    path = Path(FOLDER, *module.split("."))
    return bool(FOLDER) and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = mock.MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, found)
        return found


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The first one in sys.meta_path stands in for what is the engine's; one more, behind all others, for what nobody has."""

    def __init__(self, folder: Path, engine: str, real: Sequence[str], names: Mapping[str, Mapping[str, Any]], last: bool) -> None:
        self._folder = folder
        self._engine = engine
        self._real = real
        self._names = names
        self._last = last
        self._missing = [each for each in _LIBRARIES if importlib.util.find_spec(each) is None]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_engine = name.partition(".")[0] == self._engine
        if name in self._real or is_engine == self._last or (self._last and name.partition(".")[0] not in self._missing):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        found = _StandIn(spec.name)
        found.__path__ = [str(self._folder.joinpath(*spec.name.split(".")))]
        vars(found).update(self._names.get(spec.name, {}))
        return found

    def exec_module(self, module: types.ModuleType) -> None:
        pass


# Libraries that engines import and the tests have no use for.
_LIBRARIES = "accelerate aiofiles cachetools filelock gguf huggingface_hub msgspec orjson prometheus_client psutil pydantic regex runai_model_streamer fastsafetensors triton zmq PIL packaging sortedcontainers".split()


@contextlib.contextmanager
def modules_of(engine: str, real: Sequence[str], names: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, types.ModuleType]]:
    """real: of the engine, by their names. names: of modules that stand in, and what they have that is no mock. Skips where the engine is not there."""
    folder = Path(FOLDER)
    if not FOLDER or not (folder / engine).is_dir():
        pytest.skip(f"{engine} is not in the folder PENSTOCK_TEST_ENGINES; tools/fetch_engines fetches it")
    pytest.importorskip("tqdm", reason="tqdm, which iterators of engines go through, is not installed").tqdm.monitor_interval = 0  # no thread of its own
    before = set(sys.modules)
    finders = [_Finder(folder, engine, real, names, last) for last in (False, True)]
    sys.meta_path.insert(0, finders[0])
    sys.meta_path.append(finders[1])
    try:
        yield {name: importlib.import_module(name) for name in real}
    finally:
        for each in finders:
            sys.meta_path.remove(each)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == engine or isinstance(sys.modules[name], _StandIn) or name.startswith(f"penstock.{engine}"):
                del sys.modules[name]
        if (asked := sys.modules.get("transformers.utils.import_utils")) is not None:
            for function in vars(asked).values():
                if hasattr(function, "cache_clear"):
                    function.cache_clear()  # it kept that the stand-ins are installed
