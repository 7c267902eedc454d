"""NumPy's arrays."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ... import _native
from .library import SURE_DIMENSIONS, Arena, HostArena, Library, View, is_alive

__all__ = ["LIBRARY", "PLAIN", "numpy_dtype"]

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
    def __init__(self, nbytes: int) -> None:
        import numpy

        self._room = numpy.empty(nbytes + _alignment, numpy.uint8)
        skip = -self._room.ctypes.data % _alignment
        self.memory = self._room[skip : skip + nbytes]
        self._ndarray = numpy.ndarray

    def held(self) -> Callable[[], bool]:
        return is_alive(self._room)

    def views(self, rows: Iterable[View], found: dict[str, Any]) -> None:
        memory, ndarray = self.memory, self._ndarray
        for name, dtype, shape, start, nbytes in rows:
            found[name] = ndarray(shape, dtype, memory, start if nbytes else 0)


_alignment = 64  # the size of a cache line, and of the widest registers


class Numpy(Library):
    name = "NumPy"

    def owns(self, value: Any) -> bool:
        return isinstance(value, sys.modules["numpy"].ndarray)

    def dtype(self, name: str) -> Any:
        return numpy_dtype(name)

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

    def memory(self, array: Any) -> Any:
        return _native.Pointer(array.ctypes.data, array.nbytes, array)

    def copied(self, array: Any) -> Any:
        return sys.modules["numpy"].array(array, order="C", copy=True)


LIBRARY = Numpy()
