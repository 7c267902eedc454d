"""The tensors of messages: their descriptions, their devices, and the arrays created for them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from .arrays import library_named, library_of
from .converters import Converter, converter_of, memory_of
from .devices import device_name, is_gpu, is_torch_device, known_device
from .errors import InvalidArgument
from .libraries import choose_library
from .numpy_types import dtype_of

if TYPE_CHECKING:
    from .arrays.library import Library  # adapters are imported on first use

_Told = tuple[int, bytes, str, str]  # from the native module: bytes, metadata, device, target device


class TensorFacts(NamedTuple):
    """The sender's description of a tensor.

    - `nbytes`: the length in bytes.
    - `dtype`: NumPy's dtype, such as "<f4"; None if NumPy lacks the type.
    - `shape`: None if unknown; the tensor is then received as bytes.
    - `device`: the sender's name for the tensor's device, such as "cuda:0" or "host".
    - `target_device`: the device that the sender requested, under the receiver's name for it; empty if it requested none.
    """

    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None
    device: str
    target_device: str = ""


TensorFacts.__module__ = "penstock.pipe"  # its public module, which pickles name


# Describes a tensor so that the peer can create one like it. JSON, because its size is negligible next to the tensor's.
def describe(tensor: Any) -> bytes:
    interface = getattr(tensor, "__array_interface__", None)
    if isinstance(interface, dict) and "descr" in interface:
        if len(interface["descr"]) == 1 and interface["descr"][0][0] == "":
            return _described(interface["typestr"], tuple(interface["shape"]))
        return b""
    try:
        dtype, shape = getattr(tensor, "dtype", None), getattr(tensor, "shape", None)
        if dtype is None or shape is None:
            return b""
        lengths = tuple(map(int, shape))
    except Exception:  # PyTorch's nested and uninitialized tensors, which fail later, when they are sent
        return b""
    return _described(str(dtype).removeprefix("torch."), lengths)


@functools.lru_cache(4096)
def _described(word: str, shape: tuple[int, ...]) -> bytes:
    """Encodes a description. Cached, because models have many tensors but few shapes."""
    return json.dumps({"dtype": word, "shape": list(shape)}).encode()


def _word_and_shape(metadata: bytes) -> tuple[str, tuple[int, ...]] | None:
    """Decodes a description. Returns None if the peer sent an inconsistent one."""
    try:
        told = json.loads(metadata) if metadata else {}
        shape = tuple(int(each) for each in told["shape"])
        word = str(told["dtype"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return None if any(each < 0 for each in shape) else (word, shape)


def facts_of(nbytes: int, metadata: bytes, device: str, target_device: str) -> TensorFacts:
    """Returns a tensor's facts. Caches those with a short description, because the peer chooses its length."""
    found = _facts_of if len(metadata) <= 256 else _facts_of.__wrapped__
    return found(nbytes, metadata, device, target_device)


@functools.lru_cache(1024)
def _facts_of(nbytes: int, metadata: bytes, device: str, target_device: str) -> TensorFacts:
    told = _word_and_shape(metadata)
    if told is not None:
        word, shape = told
        dtype = dtype_of(word)
        if dtype is not None and math.prod(shape) * dtype.itemsize == nbytes:
            return TensorFacts(nbytes, dtype.str, shape, device, target_device)
    return TensorFacts(nbytes, None, None, device, target_device)


def array_of(memory: Any, facts: TensorFacts) -> Any:
    if facts.dtype is None or facts.shape is None:
        return memory
    return memory.view(facts.dtype).reshape(facts.shape)


# --- arguments


def buffers_of(value: Any, argument: str) -> list[Any]:
    """Returns a list of buffers. Raises TypeError for anything else, including a single buffer, whose rows would otherwise be taken for buffers."""
    if type(value) in (list, tuple):
        return list(value)
    memory = (str, bytes, bytearray, memoryview, _native.DeviceBuffer, _native.Pointer)
    if isinstance(value, memory) or hasattr(value, "__dlpack__") or not hasattr(value, "__iter__"):
        raise TypeError(f"{argument} must be a list of buffers, not {type(value).__name__}")
    return list(value)


def seconds_of(timeout: Any) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, (int, float)) or hasattr(timeout, "__float__") or hasattr(timeout, "__index__"):
        return float(timeout)
    raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")


def bytes_of(value: Any, argument: str) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{argument} must be bytes, not {type(value).__name__}")


def _name_of_device_of(tensor: Any) -> str:
    """Returns the device of a tensor. Objects without memory give "host", and fail when they are sent."""
    library = library_of(tensor)
    if library is not None:
        return library.device_of(tensor)
    if hasattr(tensor, "__array_interface__") or isinstance(tensor, (bytes, bytearray, memoryview)):
        return "host"
    number = getattr(getattr(tensor, "device", None), "id", None)
    if hasattr(tensor, "__cuda_array_interface__") and isinstance(number, int):
        return f"cuda:{number}"
    try:
        return _native.describe(tensor)["device"] or "host"
    except TypeError:
        return "host"


def targets_of(devices: Any, tensors: list[Any]) -> list[str]:
    """Returns the name of the receiver's device for each tensor; an empty name allows any device."""
    if devices is None:
        return []
    if isinstance(devices, Mapping):
        names = {device_name(here, "a key of devices"): _name_there(there, f"devices[{here!r}]") for here, there in devices.items()}
        return [names.get(_name_of_device_of(each), "") for each in tensors]
    if isinstance(devices, Sequence) and not isinstance(devices, (str, bytes, bytearray, memoryview)):
        if len(devices) != len(tensors):
            raise InvalidArgument(f"devices lists {len(devices)} devices for {len(tensors)} tensors", code="invalid_argument")
        return ["" if each is None else _name_there(each, f"devices[{i}]") for i, each in enumerate(devices)]
    return [_name_there(devices, "devices")] * len(tensors)


def _name_there(device: Any, argument: str) -> str:
    """Returns the name of a receiver's device. Only the receiver can determine which GPU "cuda" is."""
    return "cuda" if (isinstance(device, str) or is_torch_device(device)) and str(device) == "cuda" else device_name(device, argument)


# --- streams


def handle_of(stream: Any) -> int | None:
    """Returns the handle of a stream: an int, an object with __cuda_stream__, or a PyTorch or CuPy stream. None stays None."""
    if stream is None or isinstance(stream, bool):
        if stream is None:
            return None
        raise TypeError("stream must be an int, or an object with __cuda_stream__, cuda_stream or ptr, not bool")
    if isinstance(stream, int):
        return stream
    pair = getattr(stream, "__cuda_stream__", None)
    if pair is not None:
        return int((pair() if callable(pair) else pair)[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise TypeError(f"stream must be an int, or an object with __cuda_stream__, cuda_stream or ptr, not {type(stream).__name__}")


def streams_for(stream: Any, tensors: Sequence[Any]) -> list[int]:
    """Returns the stream handle for each tensor: the given stream's, or that of its library's current stream."""
    handle = handle_of(stream)
    return streams_of(tensors) if handle is None else [handle] * len(tensors)


def streams_of(tensors: Iterable[Any]) -> list[int]:
    """Returns the handle of each tensor's current stream; 0 for the default stream and for host memory."""
    handles: dict[tuple[Library, str], int] = {}
    found = []
    for each in tensors:
        library = library_of(each)
        if library is None or not library.has_streams:
            found.append(0 if isinstance(each, _native.DeviceBuffer) else _stream_told_by(each))
            continue
        place = library, library.device_of(each)
        if place not in handles:
            handles[place] = library.current_handle(place[1]) if is_gpu(place[1]) else 0
        found.append(handles[place])
    return found


def _stream_told_by(array: Any) -> int:
    interface = getattr(array, "__cuda_array_interface__", None)
    stream = interface.get("stream") if isinstance(interface, dict) else None
    return stream if isinstance(stream, int) and stream != 1 else 0  # 1 is the default stream


# --- memory for received tensors

def _library_for(device: Any) -> Library | None:
    """Returns the library that creates arrays on a GPU; None for DeviceBuffers."""
    library = choose_library(device)[0]
    return None if library == "penstock" else library_named(library)


class Room:
    """Creates arrays for a message's tensors, on the given device or on the ones that the sender requested.

    They are NumPy arrays on the host, DeviceBuffers on the host device, and PyTorch tensors for a `torch.device`. Otherwise, `choose_library()`
    decides. A tensor whose type the library does not support becomes bytes. GPU arrays are created on the given stream, or on the stream that was
    current in the thread that requested the device.
    """

    def __init__(self, device: Any = None, stream: Any = None, kind: Any = None) -> None:
        self._device = None
        self._converter = None if kind is None else converter_of(kind)
        self._handle = handle_of(stream)  # the stream for new arrays; None: the library's current stream
        self._library: Library | None = None
        self._stream: Any = None
        self._made: list[tuple[Any, int]] = []
        if device is None:
            return
        if is_torch_device(device):
            self._library = library_named("torch")
        self._device = known_device(device)
        if is_gpu(self._device):
            self._library = self._library or _library_for(device)
            self._stream = None if self._library is None else self._stream_of(self._library, self._device)

    @property
    def device(self) -> str:
        """The requested device's name; "host" by default."""
        return self._device or "host"

    @property
    def asks(self) -> bool | None:
        """When this object is called for an arrived message: True: always; False: never (host memory); None: if the sender requests a device."""
        if self._converter is not None:
            return True
        if self._device is None:
            return None
        return self._device != "host" or self._library is not None

    def needed_for(self, tensors: Iterable[TensorFacts]) -> bool:
        return any(each.target_device not in ("", "host") for each in tensors) if self.asks is None else self.asks

    def __call__(self, native: _native._PipeMessage) -> tuple[list[Any], list[int]]:
        """Returns buffers for the tensors, and their streams. Raises NotFound if the sender requests a device that does not exist."""
        told = native.tensors
        names = [self._device if self._device is not None else known_device(each[3] or "host") for each in told]
        if self._converter is not None:
            return self._converted(self._converter, names, told)
        self._made = [self._make(name, each) for name, each in zip(names, told)]
        return [array for array, _ in self._made], [stream for _, stream in self._made]

    def _converted(self, converter: Converter, names: list[str], told: Sequence[_Told]) -> tuple[list[Any], list[int]]:
        assert converter.empty is not None
        made = []
        for name, each in zip(names, told):
            facts = facts_of(*each)
            word, shape = _word_and_shape(each[1]) or ("|u1", (each[0],))
            made.append(converter.empty(facts.shape or shape, facts.dtype or word, name) if each[0] > 0 or facts.dtype else bytearray())
        memory = [memory_of(each) for each in made]
        streams = streams_of(memory) if self._handle is None else [self._handle] * len(memory)
        self._made = list(zip(made, streams))
        return memory, streams

    def arrays(self) -> list[Any]:
        """Returns the arrays. Notifies PyTorch's allocator of the stream that uses them."""
        for array, stream in self._made:
            library = library_of(array)
            if library is not None:
                library.use(array, stream)
        finish = self._converter.finish if self._converter is not None else None
        return [array if finish is None else finish(array) for array, _ in self._made]

    def _stream_of(self, library: Library, name: str) -> Any:
        return library.current_stream(name) if self._handle is None else library.stream_at(self._handle, name)

    def _make(self, name: str, told: _Told) -> tuple[Any, int]:
        library, nbytes = self._library, told[0]
        if library is None and is_gpu(name):
            library = _library_for(name)
        if library is None:
            if name != "host" and nbytes:  # there are no empty DeviceBuffers
                return library_named("penstock").empty((nbytes,), None, name), self._handle or 0
            name, library = "host", library_named("numpy")
        word, shape = _word_and_shape(told[1]) or ("", ())
        dtype = library.dtype_named(word) if word else None
        if dtype is None or math.prod(shape) * dtype.itemsize != nbytes:
            dtype, shape = library.dtype("uint8"), (nbytes,)
        if name == "host":
            return library.empty(shape, dtype, name), 0
        stream = self._stream if self._stream is not None else self._stream_of(library, name)
        with library.using(stream, name):
            return library.empty(shape, dtype, name), library.handle_of(stream)
