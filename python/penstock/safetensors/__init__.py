"""The safetensors API on Penstock: reads tensor files into GPU or host memory, and writes them.

    from penstock.safetensors import load_file, load_into, safe_open, stream
    from penstock.safetensors.torch import save_file

    weights = load_file("model.safetensors", device="cuda:0", framework="pt")
    load_into("folder/of/a/model", module)                        # index and shards, into existing memory
    for name, tensor in stream("folder/of/a/model", device=0):    # one at a time, in bounded memory
        ...
    with safe_open("model.safetensors", framework="pt", device="cuda:0") as file:
        part = file.get_slice("embedding")[:, :128] # reads only this part

    install() # replaces the safetensors library

The submodules torch and numpy have the same names as safetensors.torch and safetensors.numpy; cupy provides them for CuPy. PyTorch is imported only
by the submodule torch and by calls that return PyTorch objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.lazy import importable, lazily

_submodules = {"cupy": "cupy", "numpy": "numpy", "original": "safetensors", "torch": "torch"}

if TYPE_CHECKING:
    from .._patch.replacements import Explanation
    from .._patch.safetensors_library import explain, install, uninstall
    from .._tensors.errors import Mismatch, SafetensorError
    from .._tensors.into import LoadResult, load_into
    from .._tensors.load_file import load_file
    from .._tensors.prefetch import PrefetchLoader, PrefetchPlan, TensorMeta
    from .._tensors.ranks import load_rank
    from .._tensors.safe_open import Slice, safe_open
    from .._tensors.save_file import save_file
    from .._tensors.sharded import load_sharded
    from .._tensors.stream import Stream, stream
    from . import cupy as cupy
    from . import numpy as numpy
    from . import original as original
    from . import torch as torch
    from ._serialize import TensorSpec, deserialize, serialize, serialize_file
else:
    __getattr__ = lazily(
        __name__,
        __name__,
        {
            ".._patch.replacements": ("Explanation",),
            ".._patch.safetensors_library": ("explain", "install", "uninstall"),
            ".._tensors.errors": ("Mismatch", "SafetensorError"),
            ".._tensors.into": ("LoadResult", "load_into"),
            ".._tensors.load_file": ("load_file",),
            ".._tensors.prefetch": ("PrefetchLoader", "PrefetchPlan", "TensorMeta"),
            ".._tensors.ranks": ("load_rank",),
            ".._tensors.safe_open": ("Slice", "safe_open"),
            ".._tensors.save_file": ("save_file",),
            ".._tensors.sharded": ("load_sharded",),
            ".._tensors.stream": ("Stream", "stream"),
            "._serialize": ("TensorSpec", "deserialize", "serialize", "serialize_file"),
        },
        modules=_submodules,
    )

__all__ = [
    "Explanation",
    "LoadResult",
    "Mismatch",
    "PrefetchLoader",
    "PrefetchPlan",
    "SafetensorError",
    "Slice",
    "Stream",
    "TensorMeta",
    "TensorSpec",
    "deserialize",
    "explain",
    "install",
    "load_file",
    "load_into",
    "load_rank",
    "load_sharded",
    "safe_open",
    "save_file",
    "serialize",
    "serialize_file",
    "stream",
    "uninstall",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *importable(_submodules)})
