"""Makes new arrays of a dtype on a device, by NumPy, CuPy or PyTorch, as penstock.load() gives them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _native
from ._arrays import item_type_of
from ._devices import name_for_torch, number_of
from ._errors import InvalidArgument
from ._tensors import Room, torch_dtype

__all__ = ["Maker", "maker_of"]


class Maker(NamedTuple):
    """Makes arrays of a dtype on a device."""

    item_bytes: int
    make: Callable[[tuple[int, ...]], tuple[Any, Any]]  # (shape) -> the array, and its memory as a buffer


def maker_of(dtype: Any, device: Any) -> Maker:
    room = Room(device)
    name = room.device
    torch = sys.modules.get("torch")
    if torch is not None and (room.library is torch or isinstance(dtype, torch.dtype)):
        return _maker_of_torch(torch, name, dtype)
    item_type = item_type_of(dtype)
    if room.library is not None:
        return _maker_of_cupy(room.library, name, item_type)
    if name == "host":
        return Maker(item_type.itemsize, lambda shape: _twice(_numpy_empty(shape, item_type)))
    return Maker(item_type.itemsize, lambda shape: _twice(_native.device(name).empty(math.prod(shape) * item_type.itemsize)))


def _numpy_empty(shape: tuple[int, ...], item_type: Any) -> Any:
    import numpy

    return numpy.empty(shape, item_type)


def _maker_of_torch(torch: Any, name: str, dtype: Any) -> Maker:
    found = dtype
    if not isinstance(dtype, torch.dtype):
        found = torch_dtype(torch, dtype if isinstance(dtype, str) else item_type_of(dtype).str)
    if found is None:
        raise InvalidArgument(f"dtype {dtype} is none of PyTorch's", code="invalid_argument")

    def make(shape: tuple[int, ...]) -> tuple[Any, Any]:
        tensor = torch.empty(shape, dtype=found, device=name_for_torch(name))
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()
        return tensor, _native.Pointer(tensor.data_ptr(), tensor.numel() * found.itemsize, tensor)

    return Maker(found.itemsize, make)


def _maker_of_cupy(cupy: Any, name: str, item_type: Any) -> Maker:
    if item_type.kind not in "biufc" or not item_type.isnative:
        raise InvalidArgument(f"dtype {item_type} is none of CuPy's", code="invalid_argument")

    def make(shape: tuple[int, ...]) -> tuple[Any, Any]:
        with cupy.cuda.Device(number_of(name)):
            array = cupy.empty(shape, item_type)
            cupy.cuda.get_current_stream().synchronize()
        return _twice(array)

    return Maker(item_type.itemsize, make)


def _twice(array: Any) -> tuple[Any, Any]:
    return array, array
