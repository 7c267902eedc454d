"""fromfile() and tofile(): read and write whole arrays, like numpy.fromfile() and numpy.ndarray.tofile()."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from .. import _native
from .._core.arrays import library_named, settle
from .._core.devices import Place, is_gpu, known_device
from .._core.errors import InvalidArgument, ShortRead
from .._core.unsized import read_to_the_end
from .._core.urls import is_url

if TYPE_CHECKING:
    import numpy
    from numpy.typing import DTypeLike

__all__ = ["Path", "fromfile", "item_type_of", "short_read", "tofile"]

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes] | int


def fromfile(
    path: Path,
    dtype: DTypeLike = float,
    count: int = -1,
    offset: int = 0,
    *,
    like: Any = None,
    device: Place = None,
    exact: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Returns an array of the items in a file, starting at offset (in bytes). Blocks.

    - `count`: the number of items; -1 reads to the end of the file.
    - `device`: None, "host" or "cpu" returns a NumPy array. "cuda:N", N, "cuda" or a torch.device returns a CuPy array on that GPU. "host:0" returns
      a penstock.DeviceBuffer, which must have at least one byte.
    - `like`: a CuPy array returns a CuPy array.
    - `exact`: if the file ends before count items, or within an item, True raises ShortRead. False returns the complete items, as numpy.fromfile()
      does.
    - `storage_options`: connection options for a URL, as for penstock.open().

    On a GPU, this waits for CuPy's current stream, which may still be using the memory.

    Raises penstock.Error, or ImportError if NumPy or CuPy is required but not installed.
    """
    if count < -1:
        raise InvalidArgument(f"count is {count}; -1 means all", code="invalid_argument")
    where = _target(like, device)
    item_size = _item_size(dtype, where)
    if offset < 0:
        raise InvalidArgument(f"offset is {offset}: it must be 0 or more", code="invalid_argument")
    with _native.open(path, storage_options=storage_options) as file:
        size = file.size()
        if size == 0:
            content = read_to_the_end(file.read_into, offset, None if count == -1 else count * item_size)
            items = _items_of(len(content), count, item_size, exact, path, offset)
            return _filled(content, items, dtype, item_size, where)
        items = _items_of(max(0, size - offset), count, item_size, exact, path, offset)
        array = _empty(items, dtype, item_size, where)
        done = file.read_into(array, offset, items * item_size) if items > 0 else 0
    if done == items * item_size:
        return array
    items = _items_of(done, count, item_size, exact, path, offset)  # the file was truncated while it was being read
    return _filled(array, items, dtype, item_size, where)


def short_read(path: Path, offset: int, there: int, wanted: int) -> ShortRead:
    name = path if isinstance(path, int) else _native.shown_name(path)
    message = f"{name}: read {there} of {wanted} bytes at offset {offset}: the file ends there; pass exact=False to accept a shorter array"
    return ShortRead(message, code="short_read", filename=str(name), offset=offset, bytes_done=there)


def _items_of(there: int, count: int, item_size: int, exact: bool, path: Path, offset: int) -> int:
    """Returns the number of items in this many bytes, but at most count."""
    items, rest = divmod(there, item_size)
    if count != -1 and items >= count:
        return count
    if exact and (count != -1 or rest):
        raise short_read(path, offset, there, (items + 1 if count == -1 else count) * item_size)
    return items


def tofile(
    array: Any,
    path: Path,
    offset: int = 0,
    *,
    priority: Literal["normal", "background"] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Writes the bytes of an array, in C order, to a file at offset (in bytes), and returns the number of bytes. Blocks.

    The file is created if it does not exist. At offset 0, it is truncated first, as by numpy.ndarray.tofile(); at any other offset, the rest of the
    file is unchanged.

    - `path`: a file, or the URL of an S3 object (s3://BUCKET/KEY), which has been stored when this returns.
    - `priority`: as for File.pwrite().
    - `storage_options`: as for penstock.open().

    For an array on a GPU, this waits for the current stream of the array's library. Raises penstock.Error.
    """
    array = _in_c_order(array)
    _native.resolve(array)  # raises if the array cannot be written, before the file changes
    settle(array)  # also waits for a copy to C order
    if is_url(path):
        return _to_object(array, path, offset, priority, storage_options)
    if storage_options is not None:
        raise InvalidArgument(f"storage_options applies only to URLs, and {path!r:.200} is not a URL", code="invalid_argument")
    anew = not isinstance(path, int) and (offset == 0 or not os.path.exists(path))
    with _native.open(path, "w" if anew else "r+") as file:
        return file.write_from(array, offset, priority=priority)


def _to_object(array: Any, url: Any, offset: int, priority: Any, storage_options: Mapping[str, Any] | None) -> int:
    if offset != 0:
        raise InvalidArgument(f"offset is {offset}: an object can only be written at offset 0", code="invalid_argument")
    _, nbytes = _native.resolve(array)
    with _native.PendingFile(url, storage_options={"size": nbytes, **(storage_options or {})}) as pending:
        with pending.open() as file:
            done: int = file.write_from(array, priority=priority) if nbytes else 0
        pending.publish()
    return done


def _target(like: Any, device: Place) -> str:
    """Returns the name of a device."""
    if device is not None:
        return known_device(device)
    if like is None or not (isinstance(like, _native.DeviceBuffer) or hasattr(like, "__cuda_array_interface__")):
        return "host"
    return _native.describe(like)["device"] or f"cuda:{like.device.id}"


def _item_size(dtype: DTypeLike, where: str) -> int:
    try:
        return item_type_of(dtype).itemsize
    except ImportError:
        # Device memory can be filled byte by byte without NumPy.
        if where.startswith("host:") and dtype in (float, "uint8", "u1", "|u1"):
            return 8 if dtype is float else 1
        raise


def item_type_of(dtype: DTypeLike) -> numpy.dtype[Any]:
    """Returns the item type. Raises InvalidArgument for items that cannot be stored as bytes."""
    import numpy

    item_type = numpy.dtype(dtype)
    if item_type.hasobject or item_type.itemsize == 0:
        raise InvalidArgument(f"dtype {item_type} cannot be stored as bytes in a file", code="invalid_argument")
    return item_type


def _empty(items: int, dtype: DTypeLike, item_size: int, where: str) -> Any:
    library = library_named("numpy" if where == "host" else "cupy" if is_gpu(where) else "penstock")
    array = library.empty((items,), dtype, where) if library.indexes else library.empty((items * item_size,), None, where)
    library.settle(where)
    return array


def _filled(content: Any, items: int, dtype: DTypeLike, item_size: int, where: str) -> Any:
    """Returns a new array with the first items of the memory `content`."""
    array = _empty(items, dtype, item_size, where)
    if items > 0:
        address, _ = _native.resolve(content)
        _native.copy(array, _native.Pointer(address, items * item_size, content))
    return array


def _in_c_order(array: Any) -> Any:
    """Returns the array, or a copy of it in C order."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        from .._core.torch_memory import check_array, plain_copy

        check_array("array", array)
        plain = plain_copy(array)
        check_array("array", plain, wrappers=False)
        return plain
    if hasattr(array, "is_contiguous") and hasattr(array, "contiguous"):  # such as PyTorch's
        return array.contiguous()
    if "numpy.ma" in sys.modules:
        from .._core.numpy_types import mask_problem_of

        problem = mask_problem_of(array)
        if problem is not None:
            raise InvalidArgument(f"array: this {type(array).__name__} {problem}", code="invalid_argument")
    flags = getattr(array, "flags", None)
    if flags is None or getattr(flags, "c_contiguous", True):
        return array
    return array.copy(order="C")
