"""What Penstock requires of an array library."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol


__all__ = ["SURE_DIMENSIONS", "Arena", "Facts", "HostArena", "Library", "View", "is_alive", "only_view"]

SURE_DIMENSIONS = 32  # supported by all libraries; the limit of NumPy 1

# An array to create in an arena: name, type, shape, offset in the arena, and bytes.
View = tuple[str, Any, tuple[int, ...], int, int]


class Arena(Protocol):
    """One allocation for many arrays. Each array starts at a multiple of the alignment."""

    @property
    def memory(self) -> Any:
        """A buffer that covers the whole allocation."""

    def views(self, rows: Iterable[View], found: dict[str, Any]) -> None:
        """Adds the arrays to `found`, by name. Takes a few milliseconds for thousands of arrays."""

    def settled(self) -> bool:
        """Returns True if the memory may be written to: the work that was queued on the current stream at allocation has finished."""

    def settle(self) -> None:
        """Waits until settled() is true."""

    def use(self) -> None:
        """Notifies the library's allocator that the arrays are now used on the current stream."""

    def held(self) -> Callable[[], bool]:
        """Returns a function that returns True while the memory is referenced, and that holds no reference itself. Call this before views()."""


class HostArena:
    """Base class of arenas whose memory requires no stream order."""

    def settled(self) -> bool:
        return True

    def settle(self) -> None:
        pass

    def use(self) -> None:
        pass


def is_alive(what: Any) -> Callable[[], bool]:
    reference = weakref.ref(what)
    return lambda: reference() is not None


def only_view(arena: Arena, dtype: Any, shape: tuple[int, ...], nbytes: int) -> Any:
    """Returns the view of an arena that contains a single array."""
    found: dict[str, Any] = {}
    arena.views([("", dtype, shape, 0, nbytes)], found)
    return found[""]


class Facts(NamedTuple):
    """What a reader or writer of an array's memory must know. If there is a problem, the rest may be missing."""

    array: Any  # for reading only, detached from autograd
    problem: str | None = None  # why it cannot be read or filled, phrased to follow its name
    dtype: Any = None  # None: bytes of any type
    shape: tuple[int, ...] | None = None  # None: bytes
    strides: tuple[int, ...] = ()  # in bytes
    itemsize: int = 1  # bytes
    nbytes: int = 0
    device: str = "host"  # "host", "host:0" or "cuda:1"
    address: int = 0  # 0: there are no bytes at an address
    is_contiguous: bool = True
    is_readonly: bool = False
    flags: Any = None  # what else distinguishes arrays with the same memory

    @property
    def repeats(self) -> bool:
        """True if elements may share memory."""
        if self.is_contiguous or self.shape is None:
            return False
        from ..overlaps import may_overlap

        return may_overlap(self.shape, self.strides)

    @property
    def span(self) -> tuple[int, int]:
        """The address of the first byte, and the address past the last."""
        if not self.address:
            return (0, 0)
        if self.is_contiguous or self.shape is None:
            return (self.address, self.address + self.nbytes)
        from ..overlaps import span_of

        return span_of(self.address, self.shape, self.strides, self.itemsize)

    @property
    def key(self) -> Any:
        """Equal for arrays that share the same memory; None for those without memory."""
        return (self.device, self.address, self.nbytes, self.shape, self.strides, self.dtype, self.flags) if self.nbytes and self.address else None


class Library:
    """One library's arrays. Devices are named "host", "host:0" and "cuda:1".

    On a GPU, allocations and copies are queued on the library's current stream of that GPU.
    """

    name: str  # for messages
    word: str  # for framework=
    indexes = True  # arrays can be indexed, and so sliced
    has_streams = False  # work on GPUs is queued on its streams

    def owns(self, value: Any) -> bool:
        """Returns True if the value is one of this library's arrays. The library has been imported."""
        raise NotImplementedError

    # --- new arrays

    def dtype(self, name: str) -> Any:
        """Returns the library's type for the name of a type in NumPy, ml_dtypes or PyTorch, or None if the library lacks it."""
        raise NotImplementedError

    def dtype_like(self, item_type: Any) -> Any:
        """Returns the library's type for a NumPy dtype, or None if the library lacks it."""
        return item_type

    def dtype_named(self, word: str) -> Any:
        """Returns the library's type for a NumPy typestr, such as "<f4", or for a name that another process sent. None if the library lacks it."""
        raise NotImplementedError

    def shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the array's shape for a shape in a file. Raises ValueError if there can be no such array."""
        return shape

    def empty(self, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
        """Allocates an array without waiting. Write to it only after settle()."""
        raise NotImplementedError

    def arena(self, nbytes: int, device: str) -> Arena:
        """Allocates memory without waiting. Write to it only once it is settled()."""
        raise NotImplementedError

    def arena_over(self, memory: Any, device: str) -> Arena:
        """Returns an arena over existing memory: a DeviceBuffer, a writable buffer on the host, or the library's own array of bytes. Its arrays keep the
        memory alive.
        """
        raise NotImplementedError

    def over(self, address: int, owner: Any, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
        """Returns an array over memory on a device, which keeps the memory's owner alive. None if the library has no such arrays."""
        return None

    # --- memory

    def facts(self, array: Any, *, fill: bool) -> Facts:
        """Describes an array. `fill`: for writing into it, not only for reading it."""
        raise NotImplementedError

    def problem_of(self, array: Any, wrappers: bool = False) -> str | None:
        """Returns why an array has no bytes to save, phrased to follow its name. `wrappers`: accept arrays that is_wrapper() finds."""
        return None

    def is_wrapper(self, array: Any) -> bool:
        """Returns True if the array consists of others, and only its own methods know its values."""
        return False

    def dtype_name(self, dtype: Any) -> str:
        """Returns the name of one of the library's types: "float32"."""
        found: str = dtype.name
        return found

    def device_of(self, array: Any) -> str:
        """Returns the name of the array's device."""
        return "host"

    def plain(self, array: Any) -> Any:
        """Returns an array with the same values as bytes in C order and in this machine's byte order: the same memory if possible, else a copy."""
        raise NotImplementedError

    def to_numpy(self, array: Any) -> Any:
        """Returns the values as a NumPy array in host memory. Raises TypeError if NumPy lacks the type."""
        raise NotImplementedError

    def is_contiguous(self, array: Any) -> bool:
        return True

    def memory(self, array: Any, readonly: bool = False) -> Any:
        """Returns the memory of a contiguous array as a buffer, in the form that is processed fastest."""
        raise NotImplementedError

    def copied(self, array: Any) -> Any:
        """Returns a contiguous copy in its own memory."""
        raise NotImplementedError

    def put(self, target: Any, source: Any) -> None:
        """Copies an array with the same shape into another one, and converts its type if necessary."""
        raise NotImplementedError

    def put_all(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        """Copies arrays on one device into others."""
        for target, source in zip(targets, sources):
            self.put(target, source)

    def have_changed(self, arrays: Sequence[Any]) -> None:
        """Tells the library that the bytes of these arrays have changed."""

    def copied_into(self, arena: Arena, array: Any) -> Any:
        """Returns a copy in an arena of the same size. On a GPU, the copy runs on the current stream, so the arena need not be settled."""
        copy = only_view(arena, array.dtype, tuple(array.shape), array.nbytes)
        copy[...] = array
        return copy

    # --- streams, of libraries that use GPUs

    def current_device(self) -> str:
        """Returns the name of the device on which the library makes arrays in this thread."""
        return "host"

    def settle(self, device: str) -> None:
        """Waits for the current stream of a GPU. Does nothing for other devices."""

    def settle_array(self, array: Any, stream: int | None = None) -> None:
        """Waits for the current stream of the array's GPU, or for the stream with this handle. Does nothing for other memory."""

    def use(self, array: Any, stream: int) -> None:
        """Notifies the library's allocator that an array, allocated on the stream with this handle, is used on the current stream from now on."""

    def current_stream(self, device: str) -> Any:
        """Returns a GPU's current stream."""
        return None

    def stream_at(self, handle: int, device: str) -> Any:
        """Returns the stream with a CUDA handle; 0 is the default stream."""
        raise NotImplementedError

    def new_stream(self, device: str) -> Any:
        """Creates a stream that does not wait for the default stream."""
        raise NotImplementedError

    def handle_of(self, stream: Any) -> int:
        """Returns a stream's CUDA handle."""
        return 0

    def current_handle(self, device: str) -> int:
        """Returns the CUDA handle of a GPU's current stream."""
        return self.handle_of(self.current_stream(device))

    def using(self, stream: Any, device: str) -> contextlib.AbstractContextManager[Any]:
        """Makes a GPU and, unless it is None, a stream on it current in this thread. Does nothing for libraries without streams."""
        return contextlib.nullcontext()

    def mark(self, device: str) -> Any:
        """Records an event on a GPU's current stream. Its synchronize() waits for the work queued so far."""
        raise NotImplementedError
