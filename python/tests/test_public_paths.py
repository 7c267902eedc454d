"""Every import path that programs use stays: public modules, their names, and the modules that pickles and other programs' settings name.

public_paths.json lists those of version 0.2.0. Add a line when a path becomes public. Lines are only removed with a major version.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import penstock

PATHS = json.loads((Path(__file__).parent / "public_paths.json").read_text())
# Libraries that a public module may need and that tests may run without.
LIBRARIES = {"cupy", "fastsafetensors", "lmcache", "numba", "nvtx", "rmm", "safetensors", "sglang", "torch", "vllm", "zarr"}


def imported(path: str) -> Any:
    """Returns a module, or with "module:name" what the module calls so."""
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in LIBRARIES:
            raise
        pytest.skip(f"{path} needs {error.name}")


def is_private(module: str) -> bool:
    return any(part.startswith("_") for part in module.split("."))


@pytest.mark.parametrize("name", sorted(PATHS["modules"]))
def test_each_public_module_and_name_can_be_imported(name: str) -> None:
    imported(name)
    missing = [each for each in PATHS["modules"][name] if not is_found(f"{name}:{each}")]
    assert not missing


def is_found(path: str) -> bool:
    try:
        imported(path)
    except AttributeError:
        return False
    return True


@pytest.mark.parametrize("path", sorted(PATHS["classes"]))
def test_a_class_keeps_the_module_that_pickles_name(path: str) -> None:
    """A class that was defined in a private module may name a public one instead, which is then its home for good."""
    kind = imported(":".join(path.rsplit(".", 1)))
    assert kind.__module__ == PATHS["classes"][path] or not is_private(kind.__module__)
    found = importlib.import_module(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part)
    assert found is kind


@pytest.mark.parametrize("path", PATHS["settings"])
def test_paths_in_settings_of_other_programs_can_be_imported(path: str) -> None:
    found = imported(path)
    assert callable(found) or ":" not in path


@pytest.mark.parametrize("path", PATHS["files"])
def test_files_that_other_programs_name_are_in_the_package(path: str) -> None:
    assert (Path(penstock.__file__).parent / path).is_file()
