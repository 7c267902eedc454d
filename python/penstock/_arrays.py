"""fromfile() and tofile(): whole arrays, as numpy.fromfile() and numpy.ndarray.tofile()."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import _native
from ._errors import InvalidArgument
from ._unsized import read_to_the_end

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = ["fromfile", "tofile"]

_Path = str | bytes | os.PathLike[str] | os.PathLike[bytes] | int


def fromfile(
    path: _Path,
    dtype: DTypeLike = float,
    count: int = -1,
    offset: int = 0,
    *,
    like: Any = None,
    device: str | None = None,
) -> Any:
    """An array of the file's items from offset (bytes) on: count of them, or all for -1; fewer where the file ends before.

    Without more a NumPy array; with device="cuda:N", or like= a CuPy array, a CuPy array on that device; with device="host:0" a
    penstock.DeviceBuffer of the bytes, which must be some. A part of an item at the end of the file is left out, as numpy.fromfile() does.
    Raises penstock.Error; ImportError where NumPy or CuPy is needed and missing.
    """
    if count < -1:
        raise InvalidArgument(f"count is {count}; -1 means all", code="invalid_argument")
    where = _target(like, device)
    item_size = _item_size(dtype, where)
    if offset < 0:
        raise InvalidArgument(f"offset is {offset}: it counts from the beginning of the file", code="invalid_argument")
    with _native.open(path) as file:
        size = file.size()
        if size == 0:
            content = read_to_the_end(file.read_into, offset, None if count == -1 else count * item_size)
            return _filled(content, len(content) // item_size, dtype, item_size, where)
        available = max(0, size - offset) // item_size
        items = available if count == -1 else min(count, available)
        array = _empty(items, dtype, item_size, where)
        done = file.read_into(array, offset, items * item_size) if items > 0 else 0
    if done == items * item_size:
        return array
    return _filled(array, done // item_size, dtype, item_size, where)  # the file ended before its size


def tofile(array: Any, path: _Path, offset: int = 0) -> int:
    """Writes an array's bytes, in C's order, to the file at offset (bytes). Returns their number.

    A file that is not there is created. At offset 0 it is emptied first, as numpy.ndarray.tofile() does; at another offset what is around
    stays. Raises penstock.Error.
    """
    array = _in_c_order(array)
    _native.resolve(array)  # what cannot be written leaves the file as it is
    if isinstance(path, int):
        mode = "r+"
    elif offset == 0 or not os.path.exists(path):
        mode = "w"
    else:
        mode = "r+"
    with _native.open(path, mode) as file:
        return file.write_from(array, offset)


def _target(like: Any, device: str | None) -> str:
    """ "numpy" or the name of a device."""
    if device is not None:
        return device
    if isinstance(like, _native.DeviceBuffer):
        return like.device
    if like is None or not hasattr(like, "__cuda_array_interface__"):
        return "numpy"
    facts = _native.describe(like)
    return facts["device"] or f"cuda:{like.device.id}"


def _item_size(dtype: DTypeLike, where: str) -> int:
    try:
        import numpy
    except ImportError:
        # Memory of a device can be filled without NumPy, by the byte.
        if where.startswith("host:") and dtype in (float, "uint8", "u1", "|u1"):
            return 8 if dtype is float else 1
        raise
    item_type = numpy.dtype(dtype)
    if item_type.hasobject or item_type.itemsize == 0:
        raise InvalidArgument(f"dtype {item_type} has no bytes in a file", code="invalid_argument")
    return item_type.itemsize


def _empty(items: int, dtype: DTypeLike, item_size: int, where: str) -> Any:
    if where == "numpy":
        import numpy

        return numpy.empty(items, dtype)
    if where.startswith("cuda:"):
        import cupy

        with cupy.cuda.Device(int(where.partition(":")[2])):
            return cupy.empty(items, dtype)
    return _native.device(where).empty(items * item_size)


def _filled(content: Any, items: int, dtype: DTypeLike, item_size: int, where: str) -> Any:
    """A new array with the first items of the content, which is memory."""
    array = _empty(items, dtype, item_size, where)
    if items > 0:
        address, _ = _native.resolve(content)
        _native.copy(array, _native.Pointer(address, items * item_size, content))
    return array


def _in_c_order(array: Any) -> Any:
    """The array, or a copy of it in C's order where it is not in that."""
    if hasattr(array, "is_contiguous") and hasattr(array, "contiguous"):  # PyTorch's
        return array.contiguous()
    flags = getattr(array, "flags", None)
    if flags is None or getattr(flags, "c_contiguous", True):
        return array
    return array.copy(order="C")
