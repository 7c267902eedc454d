"""The libraries whose arrays are returned as tensors: NumPy, PyTorch, CuPy, or none (device memory).

Each library makes one allocation for many tensors (an Arena), and the tensors are views of it.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .. import _native
from .._core.devices import name_for_torch, number_of
from .._core.libraries import choose_library
from .errors import SafetensorError
from .types import NAMES

__all__ = ["SURE_DIMENSIONS", "Arena", "Framework", "View", "framework_on", "only_view", "strides_of"]


SURE_DIMENSIONS = 32  # supported by all libraries; the limit of NumPy 1

# A tensor to create: name, type, shape, offset in the arena, and bytes.
View = tuple[str, Any, tuple[int, ...], int, int]


class Arena(Protocol):
    """One allocation for many tensors. Each tensor starts at a multiple of the alignment."""

    @property
    def memory(self) -> Any:
        """A buffer that covers the whole allocation."""

    def views(self, rows: Iterable[View], found: dict[str, Any]) -> None:
        """Adds the tensors to `found`, by name. Takes a few milliseconds for thousands of tensors."""

    def settled(self) -> bool:
        """Returns True if the memory may be written to: the work that was queued on the current stream at allocation has finished."""

    def settle(self) -> None:
        """Waits until settled() is true."""

    def use(self) -> None:
        """Notifies the library's allocator that the tensors are now used on the current stream."""

    def held(self) -> Callable[[], bool]:
        """Returns a function that returns True while the memory is referenced, and that holds no reference itself. Call this before views()."""


class _Memory:
    """Base class of arenas whose memory requires no stream order."""

    def settled(self) -> bool:
        return True

    def settle(self) -> None:
        pass

    def use(self) -> None:
        pass


def _lives(what: Any) -> Callable[[], bool]:
    reference = weakref.ref(what)
    return lambda: reference() is not None


def only_view(arena: Arena, dtype: Any, shape: tuple[int, ...], nbytes: int) -> Any:
    """Returns the view of an arena that contains a single tensor."""
    found: dict[str, Any] = {}
    arena.views([("", dtype, shape, 0, nbytes)], found)
    return found[""]


class Framework(Protocol):
    """A library, and the device on which it makes arrays."""

    @property
    def name(self) -> str:
        """The library's name, for messages."""

    @property
    def device(self) -> str:
        """The device's name. Each device has its own arena."""

    @property
    def indexes(self) -> bool:
        """True if the arrays can be indexed, and so sliced after they are read."""

    def dtype(self, word: str) -> Any:
        """Returns the library's type for a safetensors type, or None if the library lacks it."""

    def shape(self, word: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the array's shape for a shape in the file. Raises ValueError if there can be no such array."""

    def arena(self, nbytes: int) -> Arena:
        """Allocates memory and waits for the current stream, which may still be using it."""

    def unsettled_arena(self, nbytes: int) -> Arena:
        """Allocates memory without waiting. Write to it only once it is settled()."""

    def copied(self, array: Any) -> Any:
        """Returns a contiguous copy in its own memory."""

    def copied_into(self, arena: Arena, array: Any) -> Any:
        """Returns a copy in an arena of the same size. On a GPU, the copy runs on the current stream, so the arena need not be settled."""


class _Library:
    """Base class of all frameworks."""

    def arena(self, nbytes: int) -> Arena:
        found = self.unsettled_arena(nbytes)
        found.settle()
        return found

    def unsettled_arena(self, nbytes: int) -> Arena:
        raise NotImplementedError

    def copied_into(self, arena: Arena, array: Any) -> Any:
        copy = only_view(arena, array.dtype, tuple(array.shape), array.nbytes)
        copy[...] = array
        return copy


# --- NumPy


class _NumpyArena(_Memory):
    def __init__(self, nbytes: int) -> None:
        import numpy

        self._room = numpy.empty(nbytes + _numpy_alignment, numpy.uint8)
        skip = -self._room.ctypes.data % _numpy_alignment
        self.memory = self._room[skip : skip + nbytes]
        self._ndarray = numpy.ndarray

    def held(self) -> Callable[[], bool]:
        return _lives(self._room)

    def views(self, rows: Iterable[View], found: dict[str, Any]) -> None:
        memory, ndarray = self.memory, self._ndarray
        for name, dtype, shape, start, nbytes in rows:
            found[name] = ndarray(shape, dtype, memory, start if nbytes else 0)


_numpy_alignment = 64  # the size of a cache line, and of the widest registers


class _Numpy(_Library):
    name = "NumPy"
    device = "host"
    indexes = True

    def dtype(self, word: str) -> Any:
        return _numpy_dtype(word)

    def shape(self, word: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) > SURE_DIMENSIONS:
            import numpy

            numpy.empty((0,) * len(shape))  # raises for more dimensions than this NumPy supports
        return shape

    def unsettled_arena(self, nbytes: int) -> Arena:
        return _NumpyArena(nbytes)

    def copied(self, array: Any) -> Any:
        import numpy

        return numpy.array(array, order="C", copy=True)


# NumPy's own types. ml_dtypes provides the others, but stores each 4-bit element in its own byte, unlike files.
_plain = {"BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"}


@functools.cache
def _numpy_dtype(word: str) -> Any:
    import numpy

    if word in _plain:
        return numpy.dtype(NAMES[word])
    if word not in NAMES or word == "F4":
        return None
    try:
        import ml_dtypes  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return None
    found = getattr(ml_dtypes, NAMES[word], None)
    return None if found is None else numpy.dtype(found)


# --- PyTorch


@functools.lru_cache(4096)
def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a contiguous array, in elements. Cached, because a model has few shapes and many tensors."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(1, shape[axis + 1])
    return tuple(strides)


def _ask_for_huge_pages(address: int, nbytes: int) -> None:
    """Requests huge pages, as NumPy does for its arrays. With small pages, a large allocation's page faults take as long as reading its bytes."""
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if length >= _huge_from:
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)  # only advice, which the kernel may ignore


_huge_from = 4 << 20
_libc = ctypes.CDLL(None)


class _TorchArena:
    def __init__(self, torch: Any, device: str, nbytes: int) -> None:
        self._as_strided = torch.as_strided
        self._current_stream = torch.cuda.current_stream
        self._storage_reference = torch.multiprocessing.reductions.StorageWeakRef
        self._bytes = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._bases: dict[Any, tuple[Any, int]] = {}
        self._stream = self._before = None
        if self._bytes.is_cuda:
            self._stream = torch.cuda.current_stream(self._bytes.device)
            self._before = self._stream.record_event()
            self._handle, self._ask_handle = self._stream.cuda_stream, getattr(torch._C, "_cuda_getCurrentRawStream", None)
        else:
            _ask_for_huge_pages(self._bytes.data_ptr(), nbytes)
        self.memory = _native.Pointer(self._bytes.data_ptr(), nbytes, self._bytes) if nbytes else b""

    def views(self, rows: Iterable[View], found: dict[str, Any]) -> None:
        as_strided, bases = self._as_strided, self._bases
        for name, dtype, shape, start, _ in rows:
            base = bases.get(dtype)
            if base is None:
                base = bases[dtype] = self._bytes.view(dtype), dtype.itemsize
            found[name] = as_strided(base[0], shape, strides_of(shape), start // base[1])

    def settled(self) -> bool:
        return self._before is None or bool(self._before.query())

    def settle(self) -> None:
        if self._before is not None:
            self._before.synchronize()

    def use(self) -> None:
        if self._stream is None:
            return
        device = self._bytes.device
        if self._ask_handle is not None and self._ask_handle(device.index) == self._handle:  # ten times faster than creating the stream object
            return
        current = self._current_stream(device)
        if current != self._stream:
            self._bytes.record_stream(current)

    def held(self) -> Callable[[], bool]:
        storage = self._storage_reference(self._bytes.untyped_storage())
        return lambda: not storage.expired()


class _Torch(_Library):
    name = "PyTorch"
    indexes = True

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self.device = name_for_torch(device)

    def dtype(self, word: str) -> Any:
        found = getattr(self._torch, NAMES.get(word, ""), None)
        return found if isinstance(found, self._torch.dtype) else None

    def shape(self, word: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        if word != "F4":
            return shape
        if not shape or shape[-1] % 2:
            raise ValueError("PyTorch packs two elements into a byte, but the last dimension is odd")
        return *shape[:-1], shape[-1] // 2

    def unsettled_arena(self, nbytes: int) -> Arena:
        return _TorchArena(self._torch, self.device, nbytes)

    def copied(self, array: Any) -> Any:
        return array.clone(memory_format=self._torch.contiguous_format)


# --- CuPy


class _CupyArena:
    def __init__(self, cupy: Any, device: str, nbytes: int) -> None:
        self._cupy = cupy
        self._device = number_of(device)
        with cupy.cuda.Device(self._device):
            self.memory = cupy.empty(nbytes, "u1")
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
        with self._cupy.cuda.Device(self._device):
            memory = self._cupy.cuda.UnownedMemory(self.memory.data.ptr, self.memory.nbytes, owner, self._device)
        self._data = self._cupy.cuda.MemoryPointer(memory, 0)
        return _lives(owner)

    def views(self, rows: Iterable[View], found: dict[str, Any]) -> None:
        data, ndarray = self._data, self._cupy.ndarray
        with self._cupy.cuda.Device(self._device):
            for name, dtype, shape, start, _ in rows:
                found[name] = ndarray(shape, dtype, data + start)


class _Owner:
    """Owns an array's memory, and supports weak references."""

    def __init__(self, array: Any) -> None:
        self._array = array


class _Cupy(_Library):
    name = "CuPy"
    indexes = True

    def __init__(self, device: str) -> None:
        import cupy

        self._cupy = cupy
        self.device = device

    def dtype(self, word: str) -> Any:
        found = _numpy_dtype(word)
        if found is None or word in _plain:
            return found
        try:
            self._cupy.empty(0, found)
        except (TypeError, ValueError):
            return None
        return found

    def shape(self, word: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def unsettled_arena(self, nbytes: int) -> Arena:
        return _CupyArena(self._cupy, self.device, nbytes)

    def copied(self, array: Any) -> Any:
        with array.device:
            return array.copy(order="C")

    def copied_into(self, arena: Arena, array: Any) -> Any:
        with array.device:
            return super().copied_into(arena, array)


# --- no library


class _BufferArena(_Memory):
    def __init__(self, device: str, nbytes: int) -> None:
        self._device = device
        self.memory: Any = _native.device(device).empty(nbytes) if nbytes else b""
        self._held: list[Callable[[], bool]] | None = None

    def views(self, rows: Iterable[View], found: dict[str, Any]) -> None:
        for name, _, _, start, nbytes in rows:
            part = found[name] = self.memory[start : start + nbytes] if nbytes else b""  # an empty DeviceBuffer does not exist
            if self._held is not None and nbytes:
                self._held.append(_lives(part))

    def held(self) -> Callable[[], bool]:
        """Ignores slices that outlive the buffer that they were taken from."""
        held = self._held = [_lives(self.memory)] if self.memory else []
        return lambda: any(each() for each in held)


class _Buffers(_Library):
    """Returns tensors as bytes; the header contains their types and shapes."""

    name = "penstock"
    indexes = False

    def __init__(self, device: str) -> None:
        self.device = device

    def dtype(self, word: str) -> Any:
        return word

    def shape(self, word: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def unsettled_arena(self, nbytes: int) -> Arena:
        return _BufferArena(self.device, nbytes)

    def copied(self, array: Any) -> Any:
        raise AssertionError("arrays that cannot be indexed are never cut")


# --- choosing a library


def framework_on(framework: str | None, device: Any) -> Framework:
    """Returns the library and device that choose_library() selects for the arguments.

    Raises SafetensorError for an unknown framework, ImportError if the library is not installed, and NotFound if the device does not exist.
    """
    library, name = choose_library(device, framework, SafetensorError)
    if library == "torch":
        return _Torch(name)
    if library == "numpy":
        return _Numpy()
    return _Cupy(name) if library == "cupy" else _Buffers(name)
