"""Creates arrays of a given dtype on a device, for penstock.load()."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from .._core.arrays import library_named
from .._core.arrays.library import Library
from .._core.devices import is_torch_device
from .._core.errors import InvalidArgument
from .._core.libraries import choose_library
from .raw_arrays import item_type_of

__all__ = ["Maker", "maker_of"]


class Maker(NamedTuple):
    """Creates arrays of one dtype on one device."""

    item_bytes: int
    make: Callable[[tuple[int, ...]], tuple[Any, Any]]  # takes the shape; returns the array, and its memory as a buffer


def maker_of(dtype: Any, device: Any, framework: str | None = None) -> Maker:
    """Returns the maker for a dtype. The library is the one that choose_library() selects, or PyTorch for a PyTorch dtype. On the host, a dtype that
    only NumPy supports (strings, dates, records, non-native byte order) gives NumPy arrays, unless `framework` or `device` selects PyTorch.
    """
    library, name = choose_library(device, framework)
    torch = sys.modules.get("torch")
    if torch is not None and framework is None and isinstance(dtype, torch.dtype):
        library = "torch"
    if library == "torch":
        found = _torch_dtype_of(dtype)
        if found is not None:
            return _maker_in(library_named("torch"), found, name)
        if name != "host" or framework is not None or is_torch_device(device):
            raise InvalidArgument(f"PyTorch does not support dtype {dtype}", code="invalid_argument")
        library = "numpy"
    array_library, item_type = library_named(library), item_type_of(dtype)
    own = array_library.dtype_like(item_type)
    if own is None:
        raise InvalidArgument(f"{array_library.name} does not support dtype {item_type}", code="invalid_argument")
    return _maker_in(array_library, own, name)


def _torch_dtype_of(dtype: Any) -> Any:
    """Returns PyTorch's dtype, or None if PyTorch lacks it."""
    import torch

    if isinstance(dtype, torch.dtype):
        return dtype
    return library_named("torch").dtype_named(dtype if isinstance(dtype, str) else item_type_of(dtype).str)


def _maker_in(library: Library, dtype: Any, device: str) -> Maker:
    def make(shape: tuple[int, ...]) -> tuple[Any, Any]:
        array = library.empty(shape, dtype, device)
        library.settle(device)
        return array, library.memory(array)

    return Maker(dtype.itemsize, make)
