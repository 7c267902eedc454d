"""CuPy's arrays."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cupy

from ... import _native
from ..devices import number_of
from ..numpy_types import dtype_of
from .library import Arena, Facts, Library, View, is_alive
from .of_numpy import PLAIN, facts_of, numpy_dtype, overlap_of, size_problem_of

__all__ = ["LIBRARY"]


class _CupyArena:
    def __init__(self, device: str, nbytes: int, memory: Any = None) -> None:
        """`memory` is an existing array of the bytes; None allocates one."""
        self._device = number_of(device)
        with cupy.cuda.Device(self._device):
            self.memory = cupy.empty(nbytes, "u1") if memory is None else memory
            self._before = cupy.cuda.get_current_stream().record()
        self._data = self.memory.data

    def settled(self) -> bool:
        return bool(self._before.done)

    def settle(self) -> None:
        self._before.synchronize()

    def use(self) -> None:
        pass  # CuPy's allocator does not track which other streams use memory

    def held(self) -> Callable[[], bool]:
        owner = _Owner(self.memory)  # CuPy's own memory objects support no weak references
        self._data = _pointer_to(self.memory.data.ptr, self.memory.nbytes, owner, self._device)
        return is_alive(owner)

    def views(self, rows: Iterable[View], found: dict[str, Any]) -> None:
        data, ndarray = self._data, cupy.ndarray
        with cupy.cuda.Device(self._device):
            for name, dtype, shape, start, _ in rows:
                found[name] = ndarray(shape, dtype, data + start)


class _Owner:
    """Owns an array's memory, and supports weak references."""

    def __init__(self, array: Any) -> None:
        self._array = array


def _pointer_to(address: int, nbytes: int, owner: Any, number: int) -> Any:
    with cupy.cuda.Device(number):
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, nbytes, owner, number), 0)


class Cupy(Library):
    name = "CuPy"
    word = "cupy"
    has_streams = True

    def owns(self, value: Any) -> bool:
        return isinstance(value, cupy.ndarray)

    def dtype(self, name: str) -> Any:
        found = numpy_dtype(name)
        if found is None or name in PLAIN:
            return found
        try:
            cupy.empty(0, found)
        except (TypeError, ValueError):
            return None
        return found

    def dtype_like(self, item_type: Any) -> Any:
        return item_type if item_type.kind in "biufc" and item_type.isnative else None

    def dtype_named(self, word: str) -> Any:
        item_type = dtype_of(word)
        return None if item_type is None else self.dtype_like(item_type)

    def empty(self, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
        with cupy.cuda.Device(number_of(device)):
            return cupy.empty(shape, dtype)

    def arena(self, nbytes: int, device: str) -> Arena:
        return _CupyArena(device, nbytes)

    def arena_over(self, memory: Any, device: str) -> Arena:
        return _CupyArena(device, memory.nbytes, cupy.asarray(memory))

    def over(self, address: int, owner: Any, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
        pointer = _pointer_to(address, math.prod(shape) * dtype.itemsize, owner, number_of(device))
        with pointer.device:
            return cupy.ndarray(shape, dtype, pointer)

    def to_numpy(self, array: Any) -> Any:
        with array.device:
            return array.get()

    def memory(self, array: Any, readonly: bool = False) -> Any:
        return _native.Pointer(array.data.ptr, array.nbytes, array, readonly)

    def device_of(self, array: Any) -> str:
        return f"cuda:{array.device.id}"

    def plain(self, array: Any) -> Any:
        with array.device:
            return cupy.ascontiguousarray(array)

    def facts(self, array: Any, *, fill: bool) -> Facts:
        problem = overlap_of(array) if fill else size_problem_of(array)
        return facts_of(array, problem, array.data.ptr, self.device_of(array), False)

    def is_contiguous(self, array: Any) -> bool:
        return bool(array.flags.c_contiguous)

    def put(self, target: Any, source: Any) -> None:
        with target.device:
            cupy.copyto(target, source, casting="unsafe")

    def copied(self, array: Any) -> Any:
        with array.device:
            return array.copy(order="C")

    def copied_into(self, arena: Arena, array: Any) -> Any:
        with array.device:
            return super().copied_into(arena, array)

    def current_device(self) -> str:
        return f"cuda:{cupy.cuda.Device().id}"

    def settle(self, device: str) -> None:
        with cupy.cuda.Device(number_of(device)):
            cupy.cuda.get_current_stream().synchronize()

    def settle_array(self, array: Any, stream: int | None = None) -> None:
        with array.device:
            (cupy.cuda.get_current_stream() if stream is None else cupy.cuda.ExternalStream(stream)).synchronize()

    def current_stream(self, device: str) -> Any:
        with cupy.cuda.Device(number_of(device)):
            return cupy.cuda.get_current_stream()

    def stream_at(self, handle: int, device: str) -> Any:
        return cupy.cuda.ExternalStream(handle)

    def new_stream(self, device: str) -> Any:
        with cupy.cuda.Device(number_of(device)):
            return cupy.cuda.Stream(non_blocking=True)

    def handle_of(self, stream: Any) -> int:
        return int(stream.ptr)

    @contextlib.contextmanager
    def using(self, stream: Any, device: str) -> Iterator[None]:
        with cupy.cuda.Device(number_of(device)), contextlib.nullcontext() if stream is None else stream:
            yield

    def mark(self, device: str) -> Any:
        with cupy.cuda.Device(number_of(device)):
            return cupy.cuda.get_current_stream().record()


LIBRARY = Cupy()
