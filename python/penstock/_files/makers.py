"""Creates arrays of a given dtype on a device with NumPy, CuPy or PyTorch, for penstock.load()."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _native
from .._core.devices import is_torch_device, name_for_torch, number_of
from .._core.errors import InvalidArgument
from .._core.libraries import choose_library
from .._core.tensor_facts import torch_dtype
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
            return _maker_of_torch(name, found)
        if name != "host" or framework is not None or is_torch_device(device):
            raise InvalidArgument(f"PyTorch does not support dtype {dtype}", code="invalid_argument")
        library = "numpy"
    item_type = item_type_of(dtype)
    if library == "cupy":
        return _maker_of_cupy(name, item_type)
    if library == "numpy":
        return Maker(item_type.itemsize, lambda shape: _twice(_numpy_empty(shape, item_type)))
    return Maker(item_type.itemsize, lambda shape: _twice(_native.device(name).empty(math.prod(shape) * item_type.itemsize)))


def _numpy_empty(shape: tuple[int, ...], item_type: Any) -> Any:
    import numpy

    return numpy.empty(shape, item_type)


def _torch_dtype_of(dtype: Any) -> Any:
    """Returns PyTorch's dtype, or None if PyTorch lacks it."""
    import torch

    if isinstance(dtype, torch.dtype):
        return dtype
    return torch_dtype(torch, dtype if isinstance(dtype, str) else item_type_of(dtype).str)


def _maker_of_torch(name: str, dtype: Any) -> Maker:
    import torch

    def make(shape: tuple[int, ...]) -> tuple[Any, Any]:
        tensor = torch.empty(shape, dtype=dtype, device=name_for_torch(name))
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()
        return tensor, _native.Pointer(tensor.data_ptr(), tensor.numel() * dtype.itemsize, tensor)

    return Maker(dtype.itemsize, make)


def _maker_of_cupy(name: str, item_type: Any) -> Maker:
    import cupy

    if item_type.kind not in "biufc" or not item_type.isnative:
        raise InvalidArgument(f"CuPy does not support dtype {item_type}", code="invalid_argument")

    def make(shape: tuple[int, ...]) -> tuple[Any, Any]:
        with cupy.cuda.Device(number_of(name)):
            array = cupy.empty(shape, item_type)
            cupy.cuda.get_current_stream().synchronize()
        return _twice(array)

    return Maker(item_type.itemsize, make)


def _twice(array: Any) -> tuple[Any, Any]:
    return array, array
