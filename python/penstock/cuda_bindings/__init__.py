"""NVIDIA's cuda.bindings on Penstock: `from penstock.cuda_bindings import cufile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.lazy import importable, lazily

_submodules = {"cufile": "numpy"}

if TYPE_CHECKING:
    from . import cufile as cufile
else:
    __getattr__ = lazily(__name__, __name__, {}, modules=_submodules)


def __dir__() -> list[str]:
    return sorted(importable(_submodules))
