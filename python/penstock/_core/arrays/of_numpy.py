"""NumPy's arrays."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ... import _native
from ..numpy_types import dtype_of, mask_problem_of
from ..overlaps import OVERLAP, may_overlap
from .library import SURE_DIMENSIONS, Arena, Facts, HostArena, Library, View, is_alive

__all__ = ["LIBRARY", "PLAIN", "facts_of", "numpy_dtype", "overlap_of", "size_problem_of"]

# NumPy's own types. ml_dtypes provides the others, but stores each 4-bit element in its own byte, unlike files.
PLAIN = {"bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32", "complex64", "float64", "int64", "uint64"}


@functools.cache
def numpy_dtype(name: str) -> Any:
    import numpy

    if name in PLAIN:
        return numpy.dtype(name)
    if not name.startswith(("bfloat", "float")):
        return None
    try:
        import ml_dtypes  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return None
    found = getattr(ml_dtypes, name, None)
    return None if found is None else numpy.dtype(found)


class NumpyArena(HostArena):
    def __init__(self, nbytes: int, room: Any = None) -> None:
        """`room` is an existing array of the bytes; None allocates one."""
        import numpy

        self._room = numpy.empty(nbytes + _alignment, numpy.uint8) if room is None else room
        skip = -self._room.ctypes.data % _alignment if room is None else 0
        self.memory = self._room[skip : skip + nbytes]
        self._ndarray = numpy.ndarray

    def held(self) -> Callable[[], bool]:
        return is_alive(self._room)

    def views(self, rows: Iterable[View], found: dict[str, Any]) -> None:
        memory, ndarray = self.memory, self._ndarray
        for name, dtype, shape, start, nbytes in rows:
            found[name] = ndarray(shape, dtype, memory, start if nbytes else 0)


_alignment = 64  # the size of a cache line, and of the widest registers


# For NumPy's arrays and those with the same attributes.


def overlap_of(array: Any) -> str | None:
    return OVERLAP if not array.flags.c_contiguous and may_overlap(array.shape, array.strides) else None


def size_problem_of(array: Any) -> str | None:
    return None if array.dtype.itemsize else "has zero-byte elements"


def facts_of(array: Any, problem: str | None, address: int, device: str, is_readonly: bool) -> Facts:
    contiguous = array.flags.c_contiguous
    return Facts(array, problem, array.dtype, array.shape, array.strides, array.itemsize, array.nbytes, device, address, contiguous, is_readonly)


class Numpy(Library):
    name = "NumPy"
    word = "np"

    def owns(self, value: Any) -> bool:
        return isinstance(value, sys.modules["numpy"].ndarray)

    def dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def dtype_named(self, word: str) -> Any:
        return dtype_of(word)

    def shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) > SURE_DIMENSIONS:
            import numpy

            numpy.empty((0,) * len(shape))  # raises for more dimensions than this NumPy supports
        return shape

    def empty(self, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
        import numpy

        return numpy.empty(shape, dtype)

    def arena(self, nbytes: int, device: str) -> Arena:
        return NumpyArena(nbytes)

    def arena_over(self, memory: Any, device: str) -> Arena:
        import numpy

        room = numpy.frombuffer(memory, numpy.uint8)
        return NumpyArena(room.nbytes, room)

    def over(self, address: int, owner: Any, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
        import numpy

        memory: Any = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(address)
        memory.owner = owner
        return numpy.ndarray(shape, dtype, memory)

    def to_numpy(self, array: Any) -> Any:
        return array

    def memory(self, array: Any, readonly: bool = False) -> Any:
        return _native.Pointer(array.ctypes.data, array.nbytes, array, readonly)

    def problem_of(self, array: Any, wrappers: bool = False) -> str | None:
        return mask_problem_of(array)

    def plain(self, array: Any) -> Any:
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        return array if array.flags.c_contiguous else array.copy(order="C")

    def facts(self, array: Any, *, fill: bool) -> Facts:
        if fill:
            problem = overlap_of(array) if array.flags.writeable else "is read-only in memory"
        else:
            problem = "has elements that are Python objects" if array.dtype.hasobject else size_problem_of(array)
        return facts_of(array, problem or mask_problem_of(array), array.ctypes.data, "host", not array.flags.writeable)

    def is_contiguous(self, array: Any) -> bool:
        return bool(array.flags.c_contiguous)

    def put(self, target: Any, source: Any) -> None:
        sys.modules["numpy"].copyto(target, source, casting="unsafe")

    def copied(self, array: Any) -> Any:
        return sys.modules["numpy"].array(array, order="C", copy=True)


LIBRARY = Numpy()
