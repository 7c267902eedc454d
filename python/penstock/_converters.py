"""Arrays of libraries that Penstock does not know: where their memory is, and how one is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Converter", "converter_of", "memory_of", "register_converter"]


class Converter(NamedTuple):
    memory: Callable[[Any], Any]
    empty: Callable[[tuple[int, ...], str, str], Any] | None
    finish: Callable[[Any], Any] | None


_lock = threading.Lock()  # for who registers; who looks takes a tuple that does not change
_known: tuple[tuple[type, Converter], ...] = ()


def register_converter(
    kind: type,
    memory: Callable[[Any], Any],
    empty: Callable[[tuple[int, ...], str, str], Any] | None = None,
    finish: Callable[[Any], Any] | None = None,
) -> None:
    """Has pipes send and receive objects of a type, for libraries that Penstock does not know. A second call for a type replaces the first; of several
    types that an object is an instance of, the one that was registered last counts.

    memory(tensor): an object with the tensor's memory, that Penstock knows: with the buffer protocol, DLPack or __cuda_array_interface__, a tensor of
    PyTorch, a penstock.Pointer. It must keep that memory alive. Its stream counts, and the dtype and shape of the tensor itself, by its attributes
    dtype and shape.
    empty(shape, dtype, device): for receive(kind=type): a new tensor on a device such as "host" or "cuda:0". dtype is NumPy's ("<f4"), or the
    sender's word where NumPy has none ("bfloat16"); a tensor without both is bytes ("|u1"). What it gives may also be of another type, if memory
    or Penstock knows it: with libraries whose arrays cannot be written to, it gives a buffer, and finish makes the array.
    finish(tensor): is called with what empty has given once the bytes are there, or, with receive_on_stream(), are to come on the stream; its result
    is in the message.
    They are called on the thread of send(), and on any thread for receive(). Raises TypeError.
    """
    if not isinstance(kind, type):
        raise TypeError(f"kind is a type, not {type(kind).__name__}")
    for each, name in ((memory, "memory"), (empty, "empty"), (finish, "finish")):
        if not (callable(each) or (each is None and name != "memory")):
            raise TypeError(f"{name} is a function, not {type(each).__name__}")
    global _known
    with _lock:
        _known = ((kind, Converter(memory, empty, finish)), *(each for each in _known if each[0] is not kind))


def converter_of(kind: Any) -> Converter:
    """Raises TypeError where the type was not registered, or makes no tensors."""
    for known, converter in _known:
        if known is kind:
            if converter.empty is None:
                raise TypeError(f"{kind.__name__} was registered without empty=, so no tensors can be made of it")
            return converter
    raise TypeError(f"kind is a type that was given to penstock.pipe.register_converter(), not {kind!r}")


def memory_of(tensor: Any) -> Any:
    """What Penstock knows of a tensor: it, or what its converter gives."""
    for kind, converter in _known:
        if isinstance(tensor, kind):
            return converter.memory(tensor)
    return tensor
