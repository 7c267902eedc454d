"""Converters for arrays of libraries that Penstock does not support itself: they find an array's memory and create new arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Converter", "converter_of", "memory_of", "register_converter"]


class Converter(NamedTuple):
    memory: Callable[[Any], Any]
    empty: Callable[[tuple[int, ...], str, str], Any] | None
    finish: Callable[[Any], Any] | None


_lock = threading.Lock()  # for registering; lookups read an immutable tuple
_known: tuple[tuple[type, Converter], ...] = ()


def register_converter(
    kind: type,
    memory: Callable[[Any], Any],
    empty: Callable[[tuple[int, ...], str, str], Any] | None = None,
    finish: Callable[[Any], Any] | None = None,
) -> None:
    """Lets pipes send and receive objects of a type that Penstock does not support itself.

        class Grid:
            def __init__(self, values):
                self.values, self.dtype, self.shape = values, values.dtype, values.shape

        register_converter(Grid, memory=lambda grid: grid.values,
                           empty=lambda shape, dtype, device: Grid(np.empty(shape, dtype)))
        pipe.send(tensors=[grid])
        pipe.receive(kind=Grid)

    Arguments:

    - `kind`: the type. A second call for the same type replaces the first. If an object is an instance of several registered types, the last
      registration applies.
    - `memory(tensor)`: returns an object that exposes the tensor's memory and keeps it alive: one with the buffer protocol, DLPack or
      `__cuda_array_interface__`, a PyTorch tensor, or a `penstock.Pointer`. The dtype and shape come from the tensor's own attributes.
    - `empty(shape, dtype, device)`: creates a tensor for `receive(kind=...)` on a device such as "host" or "cuda:0". `dtype` is NumPy's ("<f4"), or
      the sender's name if NumPy has none ("bfloat16"); "|u1" for a tensor that has no dtype or shape.
    - `finish(tensor)`: called with the result of `empty` once the bytes have arrived, or once `receive_on_stream()` has queued them. Its result
      becomes the message's tensor.

    If the library's arrays are read-only, let `empty` return another library's buffer, and `finish` convert it. For JAX, `memory` returns the array
    itself, `empty` returns a CuPy array, and `finish` is `jax.dlpack.from_dlpack`.

    `send()` calls them on its own thread, `receive()` on any thread. Raises TypeError.
    """
    if not isinstance(kind, type):
        raise TypeError(f"kind must be a type, not {type(kind).__name__}")
    for each, name in ((memory, "memory"), (empty, "empty"), (finish, "finish")):
        if not (callable(each) or (each is None and name != "memory")):
            raise TypeError(f"{name} must be a function, not {type(each).__name__}")
    global _known
    with _lock:
        _known = ((kind, Converter(memory, empty, finish)), *(each for each in _known if each[0] is not kind))


def converter_of(kind: Any) -> Converter:
    """Returns the converter of a registered type. Raises TypeError if the type is unknown or has no `empty`."""
    for known, converter in _known:
        if known is kind:
            if converter.empty is None:
                raise TypeError(f"{kind.__name__} was registered without empty=, so its tensors cannot be created")
            return converter
    raise TypeError(f"kind must be a type registered with penstock.pipe.register_converter(), not {kind!r}")


def memory_of(tensor: Any) -> Any:
    """Returns the memory of a tensor through its converter, or the tensor itself if it has no converter."""
    for kind, converter in _known:
        if isinstance(tensor, kind):
            return converter.memory(tensor)
    return tensor
