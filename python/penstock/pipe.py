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
read and written after the work that its current stream holds when the call is made (PyTorch's current stream, CuPy's, the default stream
for others; stream= names another), and neither that stream nor the caller waits. Descriptor.receive_on_stream() is for work that is queued behind. All operations return a penstock.Future: result(), await, add_done_callback().
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from . import _native
from ._converters import memory_of, register_converter
from ._native import Future
from ._plan import size_words
from ._tensors import Room, TensorFacts, array_of, buffers_of, bytes_of, describe, facts_of, seconds_of, streams_for, targets_of

__all__ = [
    "ChannelChoice",
    "ChannelStats",
    "Descriptor",
    "Listener",
    "Message",
    "Pipe",
    "PipePlan",
    "PipeStats",
    "Route",
    "StreamedMessage",
    "Tls",
    "TensorFacts",
    "connect",
    "listen",
    "register_converter",
]


class ChannelChoice(NamedTuple):
    """A channel, and whether it carries tensors."""

    name: str
    chosen: bool
    refusal: str  # why it cannot be used; empty where it could

    def __str__(self) -> str:
        if self.refusal:
            return f"{self.name}: refused: {self.refusal}"
        return f"{self.name}: {'chosen' if self.chosen else 'could be used'}"


class Route(NamedTuple):
    """How tensors were received from one kind of memory into another, best channel first."""

    source: str  # a device, as the sender calls it, or "host"
    target: str  # a device of this process, or "host"
    channels: list[ChannelChoice]

    def __str__(self) -> str:
        return "\n".join([f"from {self.source} to {self.target}", *_indented(self.channels)])


class PipePlan(NamedTuple):
    """How tensors travel, best channel first as the receiver has them. In sending and receiving the channel that is chosen is the one
    between host memory."""

    transport: str  # "unix" or "tcp"
    peer: str
    sending: list[ChannelChoice]
    receiving: list[ChannelChoice]
    received: list[Route]  # of the tensors that have come so far
    connections: int  # between the ends, now

    def __str__(self) -> str:
        several = f", {self.connections} connections" if self.connections > 1 else ""
        lines = [f"over {self.transport} to {self.peer}{several}"]
        lines += ["sending, between host memory", *_indented(self.sending), "receiving, between host memory", *_indented(self.receiving)]
        return "\n".join(lines + [f"received {each}" for each in self.received])


def _indented(each_of: Sequence[object]) -> list[str]:
    return [f"  {each}" for each in each_of]


class ChannelStats(NamedTuple):
    name: str
    sent_tensors: int
    sent_bytes: int
    received_tensors: int
    received_bytes: int
    pushed_tensors: int  # of both: those that the sender's GPU wrote into the buffer of a receive that was posted before

    def __str__(self) -> str:
        sent = f"{self.sent_tensors} tensors ({size_words(self.sent_bytes)}) sent"
        received = f"{self.received_tensors} ({size_words(self.received_bytes)}) received"
        return f"{self.name}: {sent}, {received}" + (f", {self.pushed_tensors} of them pushed" if self.pushed_tensors else "")


class PipeStats(list[ChannelStats]):
    """The counters of each channel that has carried tensors."""

    def __str__(self) -> str:
        return "\n".join(str(each) for each in self) or "no tensors yet"


# A device: its name ("cuda:0", "host:0", "host"), the number of a GPU, or a torch.device.
_Device = Any
# Of PyTorch or CuPy, an object with __cuda_stream__, or a handle.
_Stream = Any


class Message:
    """A message whose tensors have come: metadata and payloads are bytes, tensors arrays, or the buffers that they were received into."""

    def __init__(
        self,
        metadata: bytes,
        payloads: list[bytes],
        tensors: list[Any],
        told: Sequence[tuple[int, bytes, str, str]] = (),
    ) -> None:
        self.metadata = metadata
        self.payloads = payloads
        self.tensors = tensors
        self._told = told

    @property
    def facts(self) -> list[TensorFacts]:
        """The sender's description of each tensor: dtype and shape, its device, and the one that it is for (target_device)."""
        return [facts_of(*each) for each in self._told]

    def __repr__(self) -> str:
        return f"<penstock.pipe.Message of {len(self.payloads)} payloads and {len(self.tensors)} tensors>"


class StreamedMessage(Message):
    """A message whose tensors come in the order of a stream: what the stream is given from now on finds the bytes. ended tells how it went."""

    def __init__(self, metadata: bytes, payloads: list[bytes], tensors: list[Any], told: Sequence[tuple[int, bytes, str, str]], ended: Future[None]) -> None:
        super().__init__(metadata, payloads, tensors, told)
        self.ended = ended


class Descriptor:
    """A message that has come, and whose tensors have not. Dropped before receive(), it tells the sender that nobody wants them."""

    def __init__(self, native: _native._PipeMessage) -> None:
        self._native = native
        self.metadata: bytes = native.metadata
        self.payloads: list[bytes] = native.payloads
        self.tensors = [facts_of(*each) for each in native.tensors]

    def receive(
        self,
        into: Sequence[Any] | None = None,
        device: _Device | None = None,
        timeout: float | None = None,
        stream: _Stream | None = None,
        kind: type | None = None,
    ) -> Future[Message]:
        """Brings the tensors into buffers, or into arrays that are made for them: as Pipe.receive(). Once."""
        buffers, room = _room_of(into, device, stream, kind)
        streams: list[int] = []
        if room is not None and room.needed_for(self.tensors):
            buffers, streams = room(self._native)
        elif buffers is not None:
            streams = streams_for(stream, memory := [memory_of(each) for each in buffers])
            return self._native.receive(memory, streams, seconds_of(timeout), _finisher(buffers))
        return self._native.receive(buffers, streams, seconds_of(timeout), _finisher(buffers, room))

    def receive_on_stream(
        self,
        into: Sequence[Any] | None = None,
        device: _Device | None = None,
        timeout: float | None = None,
        stream: _Stream | None = None,
        kind: type | None = None,
    ) -> StreamedMessage:
        """Puts onto a stream what brings the tensors into memory of a GPU, and returns: kernels and copies that you queue on that stream from
        then on find the bytes, and no host waits between. Once.

        Buffers and devices are those of receive(). stream: the current one of each tensor, unless you give one for all. The tensors of the
        result are usable at once in the order of that stream; tensors in host memory, and the host itself, wait for ended.
        ended: a future. It ends when the stream has passed the tensors, and raises what went wrong: where the other end dies, takes the message
        back, or the timeout has come, the stream goes on, and the tensors hold zeros or what they held.
        Channels that cannot do this by the GPU's own copies bring the tensors into host memory first (1 GiB for each message at most), and the
        stream stands still until they have come: give such receives a timeout.
        Raises what receive() raises, and what its future would raise before anything is on the stream.
        """
        buffers, room = _room_of(into, device, stream, kind)
        if room is not None:
            memory, streams = room(self._native)
        else:
            buffers = buffers or []
            memory = [memory_of(each) for each in buffers]
            streams = streams_for(stream, memory)
        ended = self._native.receive_on_stream(memory, streams, seconds_of(timeout), _nothing)
        if ended.done():
            ended.result()
        told = self._native.tensors
        return StreamedMessage(self.metadata, self.payloads, room.arrays() if room is not None else buffers or [], told, ended)


class Pipe:
    """One end of a pipe. Thread-safe. Closed when it is dropped."""

    def __init__(self, native: _native._Pipe) -> None:
        self._native = native
        self._device_map: Mapping[_Device, _Device] | None = None

    def set_device_map(self, devices: Mapping[_Device, _Device] | None) -> None:
        """The device map of all messages sent from now on without devices=, as set_device_map() of torch.distributed.rpc has one for each worker:
        from devices of this process to the receiver's. None: no map. Raises TypeError, NotFound."""
        if devices is not None and not isinstance(devices, Mapping):
            raise TypeError(f"devices is a mapping, not {type(devices).__name__}")
        targets_of(devices, [])
        self._device_map = None if devices is None else dict(devices)

    def send(
        self,
        metadata: bytes = b"",
        payloads: Iterable[Any] = (),
        tensors: Iterable[Any] = (),
        devices: _Device | Sequence[_Device | None] | Mapping[_Device, _Device] | None = None,
        timeout: float | None = None,
        stream: _Stream | None = None,
    ) -> Future[int]:
        """Sends a message; they arrive in the order of these calls. The future gives the bytes of its tensors.

        metadata: at most 1 MiB. payloads: small buffers of host memory, 64 MiB together, there as soon as the message is. tensors: buffers
        of any size, which must not change until the future has ended: then they are in the receiver's memory. Their dtype and shape travel
        with them. timeout in seconds.
        devices: where the tensors are to be, by names of the receiver's: one for all ("cuda:1", "host:0", "host", the number of a GPU, a
        torch.device), a sequence with one for each (None: anywhere), or a mapping from a device of this process to one of the receiver's (a
        device map: tensors of devices that are not in it may go anywhere). Without devices the map of set_device_map() holds. The receiver is
        told, and decides.
        stream: tensors of a GPU are sent after the work that it holds now, instead of the current stream of each: a stream of PyTorch's or
        CuPy's, an object with __cuda_stream__, or a handle.
        Raises TypeError and BufferError for objects that have no memory or cannot be used, InvalidArgument for devices that do not fit the tensors.
        Errors of the future: InvalidArgument (a length above its limit, a wrong name of a device), Error (a payload of a device, no
        channel), Closed, Cancelled, TimedOut.
        """
        sent = buffers_of(tensors, "tensors")
        facts = [describe(each) for each in sent]
        sent = [memory_of(each) for each in sent]
        return self._native.send(
            bytes_of(metadata, "metadata"),
            buffers_of(payloads, "payloads"),
            sent,
            facts,
            targets_of(self._device_map if devices is None else devices, sent),
            streams_for(stream, sent),
            seconds_of(timeout),
        )

    def receive(
        self,
        into: Sequence[Any] | None = None,
        device: _Device | None = None,
        timeout: float | None = None,
        stream: _Stream | None = None,
        kind: type | None = None,
    ) -> Future[Message]:
        """The next message with its tensors: in writable buffers of yours, one for each and as long as it, or in arrays made for them.

        Without into, arrays of the sender's dtype and shape are made: on device, if that is given; else on the device that the sender named
        for a tensor; else on the host. device: "host" makes NumPy arrays; "cuda:N" or N CuPy arrays (where CuPy is not installed, PyTorch
        tensors if the program has imported torch, else a penstock.DeviceBuffer); "host:0" a DeviceBuffer; a torch.device PyTorch tensors. A tensor
        that was sent without dtype and shape, or with a dtype that the array's library lacks, becomes one dimension of bytes. timeout in seconds.
        stream: buffers of a GPU are written after the work that it holds now, instead of the current stream of each; see send(). To queue work
        behind a receive without waiting for it: next(), and then Descriptor.receive_on_stream().
        kind: a type that was given to register_converter(), of which the arrays are made.
        Buffers of a GPU that are given before the message is sent may be written by the sender's GPU at once: from then on it is too late to
        cancel, and the timeout does not hold.
        Raises TypeError; NotFound where there is no such device; ValueError for both into and device.
        Errors of the future: NotFound (there is no device of the name that the sender gave: pass device), InvalidArgument (into does not fit
        the message), Closed, Cancelled, TimedOut, Error (no channel leads there).
        """
        buffers, room = _room_of(into, device, stream, kind)
        if room is not None:
            return self._native.receive_anywhere(room.asks, room, seconds_of(timeout), _finisher(room=room))
        memory = [memory_of(each) for each in buffers or []]
        return self._native.receive(memory, streams_for(stream, memory), seconds_of(timeout), _finisher(buffers))

    def _send_memory(self, memory: list[Any], streams: list[int], timeout: float) -> Future[int]:
        """send() of many buffers whose types the receiver knows, with the handles of their streams (none: the default stream). Spares the time
        that finding and telling them takes."""
        return self._native.send(b"", [], memory, [], [], streams, timeout)

    def _receive_memory(self, memory: list[Any], streams: list[int], timeout: float) -> Future[None]:
        """Likewise receive(), with nothing for a result."""
        return self._native.receive(memory, streams, timeout, _nothing)

    def next(self, timeout: float | None = None) -> Future[Descriptor]:
        """Describes the next message, so that you can make room before you receive its tensors."""
        return self._native.next(seconds_of(timeout), Descriptor)

    def explain(self) -> PipePlan:
        """Blocks until the ends know each other, for 10 s at most."""
        transport, peer, sending, receiving, received, connections = self._native.explain()
        routes = [Route(source, target, _choices(channels)) for source, target, channels in received]
        return PipePlan(transport, peer, _choices(sending), _choices(receiving), routes, connections)

    def stats(self) -> PipeStats:
        """Counts the tensors and bytes that each channel has carried."""
        return PipeStats(ChannelStats(*each) for each in self._native.stats())

    def close(self) -> None:
        """Operations under way end with Closed. The other end still gets the messages that were queued, if it takes them within 10 s; then, or
        sooner if it closes too, the connection is closed."""
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

    @property
    def refused(self) -> int:
        """The number of processes that connected and gave another secret than the listener's."""
        return self._native.refused

    def accept(self, timeout: float | None = None) -> Future[Pipe]:
        """The pipe to the next process that connects and greets as a pipe does. Health checks and port scanners are dropped."""
        return self._native.accept(seconds_of(timeout), Pipe)

    def close(self) -> None:
        self._native.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _room_of(
    into: Sequence[Any] | None, device: _Device | None, stream: _Stream | None, kind: type | None
) -> tuple[list[Any] | None, Room | None]:
    """One of them."""
    if into is None:
        return None, Room(device, stream, kind)
    if kind is not None:
        raise ValueError("into and kind exclude each other: buffers have a type already")
    if device is not None:
        raise ValueError("into and device exclude each other: buffers have a device already")
    return buffers_of(into, "into"), None


def _secret_of(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else bytes_of(secret, "secret")


def _names_of(channels: Sequence[str]) -> list[str]:
    if isinstance(channels, (str, bytes)) or not all(isinstance(each, str) for each in channels):
        raise TypeError("channels is a sequence of names")
    return list(channels)


def _count_of(connections: int) -> int:
    if not isinstance(connections, int):
        raise TypeError(f"connections is an int, not {type(connections).__name__}")
    return max(connections, 0)  # of which there cannot be either


def _text_of(url: str) -> str:
    if not isinstance(url, str):
        raise TypeError(f"url is a str, not {type(url).__name__}")
    return url


class Tls(NamedTuple):
    """TLS 1.3 for pipes over tcp: the names of files in PEM."""

    certificate: str = ""  # of this end, with those between it and the authority; a listener needs one
    key: str = ""  # to it
    ca: str = ""  # of the authorities that sign the other ends' certificates; without it see listen() and connect()
    server_name: str = ""  # of who connects: that the listener's certificate is to have; without it the host of the URL


def _words_of(tls: Tls | bool | None) -> list[str] | None:
    if tls is None or tls is False:
        return None
    if tls is True:
        return ["", "", "", ""]
    if isinstance(tls, Tls):
        return [os.fspath(each) for each in tls]
    raise TypeError(f"tls is a penstock.pipe.Tls, True or None, not {type(tls).__name__}")


def listen(
    url: str = "unix:", channels: Sequence[str] = (), secret: str | bytes = b"", connections: int = 4, tls: Tls | None = None
) -> Listener:
    """Listens at unix:/path, unix:@name or tcp://host:port; "unix:" and port 0 choose a name and a port: see Listener.url.

    Over unix sockets the listener lets in processes of this user only. Over tcp the listener lets in every process that knows the secret (at
    least 16 bytes); both ends prove that they know it without sending it. Without a secret it binds to loopback addresses only, where any
    process of this machine may connect. Messages over tcp are neither encrypted nor signed, but with TLS.
    tls: encrypts tcp; the other end must have it too. Tls(certificate, key) is what the listener shows those who connect. With ca, whoever
    connects needs a certificate of that authority, and the listener may bind to any address without a secret.
    channels: those that may be used, best first, of "xth", "cma", "cuda_xth", "cuda_ipc", "ucx", "cuda_gdr", "mpt", "basic" and
    "cuda_basic"; without it all, in this order. For each tensor Penstock takes the first channel in the receiver's list that the sender may
    use too and that connects its memory to the target.
    connections: 1 to 16, for tcp: large tensors go over that many at once (channel "mpt"). Of the two ends' numbers the smaller one holds.
    Raises InvalidArgument, NotFound, PermissionDenied, Error.
    """
    words = _words_of(tls)
    return Listener(_native._pipe_listen(_text_of(url), _names_of(channels), _secret_of(secret), _count_of(connections), words))


def connect(
    url: str, channels: Sequence[str] = (), secret: str | bytes = b"", connections: int = 4, tls: Tls | bool | None = None
) -> Pipe:
    """A pipe to the process that listens there. channels, secret and connections are those of listen(), for this end.

    tls: encrypts tcp: Tls(ca=FILE) names the authority that signs the listener's certificate, and True stands for those that the system trusts;
    certificate and key are for a listener that asks for them. The certificate has to have the host of the URL, or server_name.
    Over tcp it waits for the connection for 100 ms at most. Later errors are raised by the first future: PermissionDenied, say, for another secret.

    Raises InvalidArgument, NotFound (no such host or path; nobody listens there), Error.
    """
    return Pipe(_native._pipe_connect(_text_of(url), _names_of(channels), _secret_of(secret), _count_of(connections), _words_of(tls)))


def _choices(told: list[tuple[str, bool, str]]) -> list[ChannelChoice]:
    return [ChannelChoice(*each) for each in told]


def _nothing(native: _native._PipeMessage, arrays: list[Any] | None) -> None:
    """The message was its tensors."""


class _finisher:
    """Makes the message of what came."""

    def __init__(self, into: list[Any] | None = None, room: Room | None = None) -> None:
        self._into = into
        self._room = room

    def __call__(self, native: _native._PipeMessage, arrays: list[Any] | None) -> Message:
        told = native.tensors
        if arrays is not None:
            tensors = [array_of(array, facts_of(*each)) for array, each in zip(arrays, told)]
        elif self._room is not None:
            tensors = self._room.arrays()
        else:
            tensors = self._into or []
        return Message(native.metadata, native.payloads, tensors, told)


def __dir__() -> list[str]:
    return sorted(__all__)
