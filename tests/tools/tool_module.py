"""Imports a program of tools/, which has no suffix, as a module."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(program: Path) -> ModuleType:
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader(program.name, str(program))
    spec = importlib.util.spec_from_loader(program.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[program.name] = module
    loader.exec_module(module)
    return module
