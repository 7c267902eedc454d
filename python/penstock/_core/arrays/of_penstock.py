"""DeviceBuffers: plain bytes. The caller knows their types and shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from ... import _native
from .library import Arena, Facts, HostArena, Library, View, is_alive

__all__ = ["LIBRARY"]


class _BufferArena(HostArena):
    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self._held: list[Callable[[], bool]] | None = None

    def views(self, rows: Iterable[View], found: dict[str, Any]) -> None:
        for name, _, _, start, nbytes in rows:
            part = found[name] = self.memory[start : start + nbytes] if nbytes else b""  # an empty DeviceBuffer does not exist
            if self._held is not None and nbytes:
                self._held.append(is_alive(part))

    def held(self) -> Callable[[], bool]:
        """Ignores slices that outlive the buffer that they were taken from."""
        held = self._held = [is_alive(self.memory)] if self.memory else []
        return lambda: any(each() for each in held)


class Buffers(Library):
    name = "penstock"
    word = "bytes"
    indexes = False

    def owns(self, value: Any) -> bool:
        return isinstance(value, _native.DeviceBuffer)

    def dtype(self, name: str) -> Any:
        return name

    def dtype_named(self, word: str) -> Any:
        return word

    def empty(self, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
        """`dtype`: a NumPy dtype, or None for bytes."""
        return _native.device(device).empty(math.prod(shape) * (1 if dtype is None else dtype.itemsize))

    def arena(self, nbytes: int, device: str) -> Arena:
        return _BufferArena(_native.device(device).empty(nbytes) if nbytes else b"")

    def arena_over(self, memory: Any, device: str) -> Arena:
        return _BufferArena(memory)

    def to_numpy(self, array: Any) -> Any:
        """Returns a copy as bytes."""
        import numpy

        return numpy.frombuffer(array.to_host(), numpy.uint8)

    def memory(self, array: Any, readonly: bool = False) -> Any:
        return array

    def device_of(self, array: Any) -> str:
        found: str = array.device
        return found

    def plain(self, array: Any) -> Any:
        return array

    def facts(self, array: Any, *, fill: bool) -> Facts:
        return Facts(array, nbytes=array.nbytes, device=array.device, address=array.ptr)

    def put(self, target: Any, source: Any) -> None:
        if len(target):
            _native.copy(target, source)

    def copied(self, array: Any) -> Any:
        raise AssertionError("arrays that cannot be indexed are never cut")


LIBRARY = Buffers()
