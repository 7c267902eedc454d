"""What dir() and tab completion show of each public module: its public names, and nothing else."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any

import pytest

import penstock

# A name with underscores that is public.
VERSIONS = {"__git_commit__", "__version__"}
# Public names that are data, and so have no docstring of their own.
DATA = (bool, bytes, dict, float, frozenset, int, list, str, tuple)


def module_names(package: ModuleType) -> Iterator[str]:
    """The package and each public module in it, without importing them."""
    folders = [(Path(package.__path__[0]), package.__name__)]
    for folder, prefix in folders:
        yield prefix
        for entry in pkgutil.iter_modules([str(folder)]):
            if entry.name.startswith("_"):
                continue
            if entry.ispkg:
                folders.append((folder / entry.name, f"{prefix}.{entry.name}"))
            else:
                yield f"{prefix}.{entry.name}"


MODULES = list(module_names(penstock))


@pytest.fixture(name="module", params=MODULES)
def imported_module(request: Any) -> ModuleType:
    try:
        module = importlib.import_module(request.param)
        for name in getattr(module, "__all__", []):
            getattr(module, name, None)  # may import what the module needs
        return module
    except ImportError as error:
        pytest.skip(f"{request.param} cannot be imported: {error}")


def is_documented(value: Any) -> bool:
    return isinstance(value, DATA) or bool(getattr(value, "__doc__", None))


def test_dir_lists_public_names_and_each_has_a_docstring(module: ModuleType) -> None:
    names = dir(module)
    assert names == sorted(set(names))
    for name in names:
        assert not name.startswith("_") or name in VERSIONS, name
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            assert value.__name__.startswith("penstock."), f"{name} is a module of another library"
        if module.__name__.startswith("penstock.") and not module.__name__.endswith(".original") and not isinstance(value, UnionType):
            owner = getattr(value, "__module__", None) or "penstock"
            assert owner.partition(".")[0] in ("penstock", "enum", "builtins"), f"{name} comes from {owner}"
        assert is_documented(value) or module.__name__.endswith(".original"), f"{module.__name__}.{name} has no docstring"


def test_each_name_in_all_exists_and_is_listed(module: ModuleType) -> None:
    names = getattr(module, "__all__", [])
    assert len(names) == len(set(names))
    for name in names:
        assert hasattr(module, name), name
    assert set(names) <= set(dir(module))


def test_each_public_submodule_is_an_attribute_of_its_package(module: ModuleType) -> None:
    package, _, name = module.__name__.rpartition(".")
    if package:
        assert name in dir(importlib.import_module(package))
