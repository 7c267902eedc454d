"""Reads and writes arrays by file name, as numpy.fromfile() and ndarray.tofile() do, for arrays of NumPy, CuPy and similar libraries.

This module requires NumPy. The functions behave as in KvikIO.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike

from penstock import _native
from penstock._core.torch_memory import check_array
from penstock._core.unsized import read_to_the_end
from penstock.kvikio.cufile import CuFile

__all__ = ["FileLike", "LikeWrapper", "fromfile", "tofile"]


@runtime_checkable
class FileLike(Protocol):
    """A file object backed by an operating-system file."""

    def fileno(self) -> int: ...

    @property
    def name(self) -> str: ...


class LikeWrapper:
    """Wraps an array for np.fromfile()'s argument `like`: the file is read into an array of the same type as the wrapped one.

    np.fromfile("x", dtype=int, like=LikeWrapper(cupy.empty(()))) reads directly into device memory.
    """

    def __init__(self, like: Any) -> None:
        self._like = like

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if func is not np.fromfile:
            return func(*args, **kwargs)
        return fromfile(*args, like=self._like, **kwargs)


def fromfile(
    file: str | os.PathLike[str] | FileLike,
    dtype: DTypeLike = float,
    count: int = -1,
    sep: str = "",
    offset: int = 0,
    *,
    like: Any = None,
) -> Any:
    """Reads count items of dtype from a file, starting at offset (in bytes); -1 reads to the end. Blocks.

    - `file`: a path, or a file object, whose name is used.
    - `like`: an array of the type to return; None returns a NumPy array.

    Returns fewer items if the file ends first, and none if offset is past its end. Raises:

    - NotImplementedError: sep is not empty.
    - FileNotFoundError, which is also a RuntimeError here: the file does not exist.
    - RuntimeError: the file cannot be opened or read.
    - ValueError: offset is negative, or count is below -1.
    """
    if sep != "":
        raise NotImplementedError("Non-default value of the `sep` argument is not supported")
    if offset < 0:
        raise ValueError(f"fromfile: offset must be 0 or more, not {offset}")
    if count < -1:
        raise ValueError(f"fromfile: negative dimensions are not allowed: count is {count}; pass -1 to read all items")
    item = np.dtype(dtype)
    with CuFile(_path_of(file), "r") as source:
        size = os.fstat(source.fileno()).st_size
        if size == 0:
            limit = None if count == -1 else count * item.itemsize
            content = read_to_the_end(lambda buffer, at: source.read(buffer, file_offset=at), offset, limit)
            items = np.frombuffer(content, item, len(content) // max(1, item.itemsize))
            return items.copy() if like is None else np.asarray(items, like=like)
        there = max(0, size - offset) // max(1, item.itemsize)
        length = there if count == -1 else min(count, there)
        array = np.empty(length, item) if like is None else np.empty_like(like, shape=(length,), dtype=item)
        done = source.read(array, file_offset=offset) if length > 0 else 0
    # The result is shorter if the file was truncated while it was being read.
    return array if done == array.nbytes else array[: done // item.itemsize]


def tofile(ary: Any, file: str | os.PathLike[str] | FileLike) -> None:
    """Writes an array to a file in C order, replacing its contents. Blocks.

    - `file`: a path, or a file object, whose name is used.

    Raises RuntimeError if the file cannot be opened or written.
    """
    check_array("ary", ary)
    array = np.ascontiguousarray(ary, like=ary) if hasattr(ary, "__array_function__") else np.ascontiguousarray(ary)
    _native.resolve(array)  # raises if the array cannot be written, before the file changes
    with CuFile(_path_of(file), "w") as target:
        if array.nbytes > 0:
            target.write(array)


def _path_of(file: str | os.PathLike[str] | FileLike) -> str:
    return os.fsdecode(file.name if isinstance(file, FileLike) else file)


def __dir__() -> list[str]:
    return sorted(__all__)
