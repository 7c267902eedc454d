"""Pipes: messages with tensors between processes.

    # one process
    listener = penstock.pipe.listen("unix:@trainer")
    pipe = listener.accept().result()
    pipe.send(b"step 3", tensors=[weights]).result()

    # another
    pipe = penstock.pipe.connect("unix:@trainer")
    message = pipe.receive().result()
    message.metadata, message.tensors[0]        # b"step 3", an array like weights

Tensors are NumPy and CuPy arrays, PyTorch tensors and whatever else is memory, of the host or of a GPU. A tensor goes from the sender's
memory into the receiver's with one copy where that can be, else over the connection: pipe.explain() says which, and why. Memory of a GPU is
read and written after what its current stream has when the call is made (PyTorch's current stream, CuPy's, the default stream for others),
and neither that stream nor the caller waits. All operations return a penstock.Future: result(), await, add_done_callback().
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from ._arrays import _empty
from ._native import Future

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "ChannelChoice",
    "ChannelStats",
    "Descriptor",
    "Listener",
    "Message",
    "Pipe",
    "PipePlan",
    "Route",
    "TensorFacts",
    "connect",
    "listen",
]


class TensorFacts(NamedTuple):
    """A tensor that is on its way."""

    nbytes: int
    dtype: str | None  # NumPy's, such as "<f4"; None: not known to NumPy
    shape: tuple[int, ...] | None  # None: not known; then it is bytes
    device: str  # that it comes from, as the sender calls it, such as "cuda:0"; or "host"


class ChannelChoice(NamedTuple):
    """A channel, and whether it carries tensors."""

    name: str
    chosen: bool
    refusal: str  # why it cannot be used; empty where it could


class Route(NamedTuple):
    """How tensors were received from one kind of memory into another, best channel first."""

    source: str  # a device, as the sender calls it, or "host"
    target: str  # a device of this process, or "host"
    channels: list[ChannelChoice]


class PipePlan(NamedTuple):
    """How tensors travel, best channel first as the receiver has them. Of sending and receiving the channel between host memory is the
    chosen one."""

    transport: str  # "unix" or "tcp"
    peer: str
    sending: list[ChannelChoice]
    receiving: list[ChannelChoice]
    received: list[Route]  # what has come so far


class ChannelStats(NamedTuple):
    name: str
    sent_tensors: int
    sent_bytes: int
    received_tensors: int
    received_bytes: int


class Message:
    """A message whose tensors have come: metadata and payloads are bytes, tensors arrays, or the buffers that they were received into."""

    def __init__(self, metadata: bytes, payloads: list[bytes], tensors: list[Any]) -> None:
        self.metadata = metadata
        self.payloads = payloads
        self.tensors = tensors

    def __repr__(self) -> str:
        return f"<penstock.pipe.Message of {len(self.payloads)} payloads and {len(self.tensors)} tensors>"


class Descriptor:
    """A message that has come, and whose tensors have not. Dropped before receive(), it tells the sender that nobody wants them."""

    def __init__(self, native: _native._PipeMessage) -> None:
        self._native = native
        self.metadata: bytes = native.metadata
        self.payloads: list[bytes] = native.payloads
        self.tensors = [_facts_of(*each) for each in native.tensors]

    def receive(self, into: Sequence[Any] | None = None, timeout: float | None = None, device: str | None = None) -> Future[Message]:
        """Brings the tensors into writable buffers, one for each and as long as it, or into arrays that are made for them. Once.

        device: where those are made: None or "host" for NumPy's, "cuda:N" for CuPy's. timeout in seconds.
        Errors of the future: InvalidArgument, Closed, Cancelled, TimedOut, Error (no channel leads there).
        """
        if into is not None and device is not None:
            raise ValueError("into and device exclude each other: buffers have a device already")
        if device is not None and device != "host":
            into = [_made_on(device, each) for each in self.tensors]
        return self._native.receive(into, _streams_of(into), timeout, _finisher(into))


class Pipe:
    """One end of a pipe. Thread-safe. Closed when it is dropped."""

    def __init__(self, native: _native._Pipe) -> None:
        self._native = native

    def send(
        self,
        metadata: bytes = b"",
        payloads: Iterable[Any] = (),
        tensors: Iterable[Any] = (),
        timeout: float | None = None,
    ) -> Future[int]:
        """Sends a message; they arrive in the order of these calls. The future gives the bytes of its tensors.

        metadata: at most 1 MiB. payloads: small buffers of host memory, 64 MiB together, there as soon as the message is. tensors: buffers
        of any size, which must not change until the future has ended: then they are in the receiver's memory. timeout in seconds.
        Errors of the future: InvalidArgument, Error (a payload of a device, no channel), Closed, Cancelled, TimedOut.
        """
        tensors = list(tensors)
        facts = [_describe(each) for each in tensors]
        return self._native.send(bytes(metadata), list(payloads), tensors, facts, _streams_of(tensors), timeout)

    def receive(self, into: Sequence[Any] | None = None, timeout: float | None = None) -> Future[Message]:
        """The next message with its tensors: in buffers of yours, one for each and as long as it, or in NumPy arrays made for them."""
        return self._native.receive(into, _streams_of(into), timeout, _finisher(into))

    def next(self, timeout: float | None = None) -> Future[Descriptor]:
        """What the next message is, so that room can be made before its tensors are received."""
        return self._native.next(timeout, Descriptor)

    def explain(self) -> PipePlan:
        """Blocks until the ends know each other, for 10 s at most."""
        transport, peer, sending, receiving, received = self._native.explain()
        routes = [Route(source, target, _choices(channels)) for source, target, channels in received]
        return PipePlan(transport, peer, _choices(sending), _choices(receiving), routes)

    def stats(self) -> list[ChannelStats]:
        """What each channel has carried."""
        return [ChannelStats(*each) for each in self._native.stats()]

    def close(self) -> None:
        """What is under way ends with Closed."""
        self._native.close()

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Listener:
    """Where others connect. Thread-safe. Closed when it is dropped; pipes go on."""

    def __init__(self, native: _native._PipeListener) -> None:
        self._native = native
        self.url: str = native.url

    def accept(self, timeout: float | None = None) -> Future[Pipe]:
        """The pipe to the next process that connects."""
        return self._native.accept(timeout, Pipe)

    def close(self) -> None:
        self._native.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _bytes_of(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret


def listen(url: str = "unix:", channels: Sequence[str] = (), secret: str | bytes = b"") -> Listener:
    """Listens at unix:/path, unix:@name or tcp://host:port; "unix:" and port 0 choose a name and a port, which the listener's url tells.

    Of unix sockets only processes of this user are let in. Over tcp who knows the secret (at least 16 bytes) is let in, which both ends prove
    without sending it; without one it binds to loopback addresses only, where anybody of this machine may connect. What travels over tcp
    is neither encrypted nor signed. channels: those that may be used, best first, of "xth", "cma", "cuda_xth", "cuda_ipc", "basic" and
    "cuda_basic"; none given: all, in this order. A tensor takes the receiver's first that leads from its memory to the target.
    Raises InvalidArgument, NotFound, PermissionDenied, Error.
    """
    return Listener(_native._pipe_listen(url, list(channels), _bytes_of(secret)))


def connect(url: str, channels: Sequence[str] = (), secret: str | bytes = b"") -> Pipe:
    """A pipe to who listens there. channels and secret are those of listen(), for this end.

    What fails later, the first future tells: PermissionDenied, say, of another secret.

    Raises InvalidArgument, NotFound, Error.
    """
    return Pipe(_native._pipe_connect(url, list(channels), _bytes_of(secret)))


def _choices(told: list[tuple[str, bool, str]]) -> list[ChannelChoice]:
    return [ChannelChoice(*each) for each in told]


def _stream_of(tensor: Any) -> int:
    """The handle of the stream that works on it now; 0 for the default stream, and for memory of the host."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return int(torch.cuda.current_stream(tensor.device).cuda_stream) if tensor.is_cuda else 0
    interface = getattr(tensor, "__cuda_array_interface__", None)
    stream = interface.get("stream") if isinstance(interface, dict) else None
    return stream if isinstance(stream, int) and stream != 1 else 0  # 1 names the default stream


def _streams_of(tensors: Sequence[Any] | None) -> list[int]:
    return [_stream_of(each) for each in tensors or ()]


def _made_on(device: str, facts: TensorFacts) -> Any:
    import numpy as np

    if facts.dtype is None or facts.shape is None or not device.startswith("cuda:"):
        return _empty(facts.nbytes, "u1", 1, device)
    dtype = np.dtype(facts.dtype)
    return _empty(facts.nbytes // dtype.itemsize, dtype, dtype.itemsize, device).reshape(facts.shape)


# What the other end has to know of a tensor to make one like it: JSON, since its length is nothing beside the tensor's.
def _describe(tensor: Any) -> bytes:
    interface = getattr(tensor, "__array_interface__", None)
    if isinstance(interface, dict) and "descr" in interface:
        if len(interface["descr"]) == 1 and interface["descr"][0][0] == "":
            return json.dumps({"dtype": interface["typestr"], "shape": list(interface["shape"])}).encode()
        return b""
    dtype, shape = getattr(tensor, "dtype", None), getattr(tensor, "shape", None)
    if dtype is None or shape is None:
        return b""
    return json.dumps({"dtype": str(dtype).removeprefix("torch."), "shape": [int(each) for each in shape]}).encode()


def _dtype_of(word: str) -> np.dtype[Any] | None:
    import numpy as np

    try:
        dtype = np.dtype(word)
    except TypeError:
        return None  # such as bfloat16
    return None if dtype.hasobject else dtype


def _facts_of(nbytes: int, metadata: bytes, device: str) -> TensorFacts:
    """Whatever the other end said: what does not hold together counts as not known."""
    try:
        told = json.loads(metadata) if metadata else {}
        dtype = _dtype_of(str(told["dtype"]))
        shape = tuple(int(each) for each in told["shape"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return TensorFacts(nbytes, None, None, device)
    if dtype is None or any(each < 0 for each in shape) or math.prod(shape) * dtype.itemsize != nbytes:
        return TensorFacts(nbytes, None, None, device)
    return TensorFacts(nbytes, dtype.str, shape, device)


def _array_of(memory: Any, facts: TensorFacts) -> Any:
    if facts.dtype is None or facts.shape is None:
        return memory
    return memory.view(facts.dtype).reshape(facts.shape)


class _finisher:
    """Makes the message of what came."""

    def __init__(self, into: Sequence[Any] | None) -> None:
        self._into = into

    def __call__(self, native: _native._PipeMessage, arrays: list[Any] | None) -> Message:
        if arrays is None:
            return Message(native.metadata, native.payloads, list(self._into or ()))
        facts = [_facts_of(*each) for each in native.tensors]
        return Message(native.metadata, native.payloads, [_array_of(*each) for each in zip(arrays, facts)])
