"""Pipes send messages with tensors between processes, on one machine or over a network.

    # one process
    listener = penstock.pipe.listen("unix:@trainer")
    pipe = listener.accept().result()
    pipe.send(b"step 3", tensors=[weights]).result()

    # another process
    pipe = penstock.pipe.connect("unix:@trainer")
    message = pipe.receive().result()
    message.metadata, message.tensors[0]        # b"step 3", an array like weights

Tensors are NumPy and CuPy arrays, PyTorch tensors and other objects with memory on the host or a GPU. `Pipe.explain()` shows how their bytes are
transferred, and why Penstock does not use a faster channel.

GPU memory is read and written after the work that was queued on its current stream when you made the call: PyTorch's or CuPy's current stream, or the
default stream for other objects. `stream=` selects a different one. Neither the stream nor the caller waits. To queue GPU work behind a receive, use
`Descriptor.receive_on_stream()`.

Operations return a `penstock.Future` with `result()`, `add_done_callback()` and `await`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from . import _native
from ._core.closable import Closable
from ._core.converters import memory_of, register_converter
from ._core.plan import size_words
from ._core.tensor_facts import Room, TensorFacts, array_of, buffers_of, bytes_of, describe, facts_of, seconds_of, streams_for, targets_of
from ._native import Future

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
    """A channel, and whether Penstock uses it.

    - `name`: such as "cma".
    - `chosen`: True if Penstock uses it.
    - `refusal`: why it cannot be used; empty if it can.
    """

    name: str
    chosen: bool
    refusal: str

    def __str__(self) -> str:
        if self.refusal:
            return f"{self.name}: not usable: {self.refusal}"
        return f"{self.name}: {'chosen' if self.chosen else 'usable'}"


class Route(NamedTuple):
    """How tensors moved from one device's memory to another's.

    - `source`: the sender's name for its device, or "host".
    - `target`: one of this process's devices, or "host".
    - `channels`: in the receiver's order of preference.
    """

    source: str
    target: str
    channels: list[ChannelChoice]

    def __str__(self) -> str:
        return "\n".join([f"from {self.source} to {self.target}", *_indented(self.channels)])


class PipePlan(NamedTuple):
    """How a pipe transfers tensors. Channels are in the receiver's order of preference. `str()` formats the whole plan.

    - `transport`: "unix", "tcp" or "tls".
    - `peer`: the remote process.
    - `sending`, `receiving`: the local channels; the chosen one is used for tensors transferred from host memory to host memory.
    - `received`: one `Route` for each pair of devices that tensors have used so far.
    - `connections`: the number of connections between the two processes.
    """

    transport: str
    peer: str
    sending: list[ChannelChoice]
    receiving: list[ChannelChoice]
    received: list[Route]
    connections: int

    def __str__(self) -> str:
        several = f", {self.connections} connections" if self.connections > 1 else ""
        lines = [f"over {self.transport} to {self.peer}{several}"]
        lines += ["sending, between host memory", *_indented(self.sending), "receiving, between host memory", *_indented(self.receiving)]
        return "\n".join(lines + [f"received {each}" for each in self.received])


def _indented(each_of: Sequence[object]) -> list[str]:
    return [f"  {each}" for each in each_of]


class ChannelStats(NamedTuple):
    """Counts the tensors and bytes that this process has sent and received through one channel.

    `pushed_tensors` counts tensors, in both directions, that the sender's GPU wrote into a buffer posted by the receiver in advance.
    """

    name: str
    sent_tensors: int
    sent_bytes: int
    received_tensors: int
    received_bytes: int
    pushed_tensors: int

    def __str__(self) -> str:
        sent = f"{self.sent_tensors} tensors ({size_words(self.sent_bytes)}) sent"
        received = f"{self.received_tensors} ({size_words(self.received_bytes)}) received"
        return f"{self.name}: {sent}, {received}" + (f", {self.pushed_tensors} of them pushed" if self.pushed_tensors else "")


class PipeStats(list[ChannelStats]):
    """A list of `ChannelStats`, one for each channel that has carried tensors."""

    def __str__(self) -> str:
        return "\n".join(str(each) for each in self) or "no tensors yet"


# A device: its name ("cuda:0", "host:0", "host"), the number of a GPU, or a torch.device.
_Device = Any
# A PyTorch or CuPy stream, an object with __cuda_stream__, or a handle.
_Stream = Any


class Message:
    """A received message.

    - `metadata`: bytes.
    - `payloads`: a list of bytes.
    - `tensors`: arrays, or the buffers that you passed.
    """

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
        """The sender's description of each tensor: dtype, shape, device, and destination device (`target_device`)."""
        return [facts_of(*each) for each in self._told]

    def __repr__(self) -> str:
        return f"<penstock.pipe.Message of {len(self.payloads)} payloads and {len(self.tensors)} tensors>"


class StreamedMessage(Message):
    """A message whose tensors arrive in stream order: work that you queue on the stream afterwards sees their bytes.

    `ended` is a future, which raises if the receive failed.
    """

    def __init__(
        self, metadata: bytes, payloads: list[bytes], tensors: list[Any], told: Sequence[tuple[int, bytes, str, str]], ended: Future[None]
    ) -> None:
        super().__init__(metadata, payloads, tensors, told)
        self.ended = ended


class Descriptor:
    """A message that has arrived without its tensors. If you drop it before receiving the tensors, the sender's operation fails.

    - `metadata`, `payloads`: as in `Message`.
    - `tensors`: a `TensorFacts` for each tensor.
    """

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
        """Receives the tensors into buffers or new arrays. Call it only once.

        The arguments, result and errors are the same as in `Pipe.receive()`.
        """
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
        """Queues the receive on a GPU stream and returns. Kernels and copies that you queue on that stream afterwards see the tensors. Call it only
        once.

        `into`, `device` and `kind` are the same as in `Pipe.receive()`. `stream` is the stream for all tensors; the default is each tensor's current
        stream. `timeout` is in seconds.

        You can use the resulting tensors immediately in stream order. The host, and users of tensors in host memory, must wait for `ended`. This
        future is done once the stream has moved past the tensors. If the peer exits or withdraws the message, or the timeout expires, the stream
        continues, the tensors contain zeros or old data, and the future raises.

        Channels that cannot copy on the GPU receive the tensors into host memory first, at most 1 GiB per message, and the stream waits for them.
        Pass a timeout.

        Raises the errors of `Pipe.receive()`, and also its future's errors if they occur before anything is queued on the stream.
        """
        buffers, room = _room_of(into, device, stream, kind)
        if room is not None:
            memory, streams = room(self._native)
        else:
            buffers = buffers or []
            memory = [memory_of(each) for each in buffers]
            streams = streams_for(stream, memory)
        ended: Future[None] = self._native.receive_on_stream(memory, streams, seconds_of(timeout), None)
        if ended.done():
            ended.result()
        told = self._native.tensors
        return StreamedMessage(self.metadata, self.payloads, room.arrays() if room is not None else buffers or [], told, ended)


class Pipe(Closable):
    """One end of a pipe. Thread-safe. Dropping the object closes the pipe."""

    def __init__(self, native: _native._Pipe) -> None:
        self._native = native
        self._device_map: Mapping[_Device, _Device] | None = None

    def set_device_map(self, devices: Mapping[_Device, _Device] | None) -> None:
        """Sets the device map for messages that you send without `devices=`.

        It maps this process's devices to the receiver's, like `set_device_map()` in `torch.distributed.rpc`. None removes the map.

        Raises: TypeError, NotFound.
        """
        if devices is not None and not isinstance(devices, Mapping):
            raise TypeError(f"devices must be a mapping, not {type(devices).__name__}")
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
        """Sends a message. Messages arrive in call order. Returns a future of the tensors' total bytes.

        Arguments:

        - `metadata`: at most 1 MiB.
        - `payloads`: small buffers in host memory, at most 64 MiB in total. They arrive with the message.
        - `tensors`: buffers of any size. They must not change until the future is done, which means that they are in the receiver's memory. Tensors
          that total at most 16 KiB are done as soon as they have been sent. Each tensor's dtype and shape are sent too.
        - `devices`: the receiver's device for each tensor, using the receiver's device names; see below. The receiver may choose others.
        - `timeout`: in seconds.
        - `stream`: sends GPU memory after the work queued on this stream, instead of on each tensor's current stream. A PyTorch or CuPy stream, an
          object with `__cuda_stream__`, or a handle.

        Values of `devices`:

        - one device for all tensors: "cuda:1", "host:0", "host", a GPU number or a `torch.device`.
        - a sequence with one device for each tensor. None allows any device.
        - a mapping from this process's devices to the receiver's. Tensors on unmapped devices may be placed on any device.
        - None: uses the map from `set_device_map()`.

        Raises: TypeError and BufferError for objects without usable memory, InvalidArgument for devices that do not match the tensors.

        The future raises: InvalidArgument (a length above its limit, or a malformed device name), Error (a payload in GPU memory, no channel),
        Closed, Cancelled, TimedOut.
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
        """Receives the next message and its tensors. Returns a future of a `Message`.

        Arguments:

        - `into`: writable buffers, one for each tensor and of the same length. They become the message's tensors.
        - `device`: the device for new arrays: "host", "cuda:N" or N, "host:0", or a `torch.device`. The default is the device that the sender
          requested, else the host.
        - `timeout`: in seconds.
        - `stream`: writes GPU memory after the work queued on this stream, instead of on each buffer's current stream. See `send()`.
        - `kind`: the type of the new arrays, registered with `register_converter()`.

        New arrays have the sender's dtype and shape. On the host they are NumPy arrays. "cuda:N" gives CuPy arrays; without CuPy, PyTorch tensors if
        the program has imported torch, else `penstock.DeviceBuffer`s. "host:0" gives DeviceBuffers, and a `torch.device` gives PyTorch tensors. A
        tensor sent without a dtype and shape, or with a dtype that the library lacks, becomes a one-dimensional array of bytes.

        If you pass GPU buffers before the message is sent, the sender's GPU may write to them directly. Once it starts, you cannot cancel the
        receive, and the timeout does not apply.

        Raises: TypeError, NotFound for an unknown device, ValueError if you pass both `into` and `device`.

        The future raises: NotFound (the sender requested a device that does not exist: pass `device`), InvalidArgument (`into` does not match the
        message), Closed, Cancelled, TimedOut, Error (no channel supports that memory).
        """
        buffers, room = _room_of(into, device, stream, kind)
        if room is not None:
            return self._native.receive_anywhere(room.asks, room, seconds_of(timeout), _finisher(room=room))
        memory = [memory_of(each) for each in buffers or []]
        return self._native.receive(memory, streams_for(stream, memory), seconds_of(timeout), _finisher(buffers))

    def _send_memory(self, memory: list[Any], streams: list[int], timeout: float) -> Future[int]:
        """Sends buffers whose types the receiver already knows, without describing the tensors. `streams` are handles; empty: the default stream.
        """
        return self._native.send(b"", [], memory, [], [], streams, timeout)

    def _receive_memory(self, memory: list[Any], streams: list[int], timeout: float) -> Future[None]:
        """Receives into buffers and returns nothing. The counterpart of `_send_memory()`."""
        return self._native.receive(memory, streams, timeout, None)

    def next(self, timeout: float | None = None) -> Future[Descriptor]:
        """Returns a future of the next message's `Descriptor`, so that you can allocate memory before you receive the tensors. `timeout` is in
        seconds.
        """
        return self._native.next(seconds_of(timeout), Descriptor)

    def explain(self) -> PipePlan:
        """Returns which channels carry tensors, and why others do not. Waits up to 10 s for the handshake to finish."""
        transport, peer, sending, receiving, received, connections = self._native.explain()
        routes = [Route(source, target, _choices(channels)) for source, target, channels in received]
        return PipePlan(transport, peer, _choices(sending), _choices(receiving), routes, connections)

    def stats(self) -> PipeStats:
        """Returns the number of tensors and bytes that each channel has carried."""
        return PipeStats(ChannelStats(*each) for each in self._native.stats())

    def close(self) -> None:
        """Closes the pipe. Operations in progress fail with Closed. Queued messages are still sent if the peer receives them within 10 s."""
        self._native.close()


class Listener(Closable):
    """Accepts connections. Thread-safe. Dropping the listener closes it; its pipes stay open.

    `url` is the address that other processes connect to.
    """

    def __init__(self, native: _native._PipeListener) -> None:
        self._native = native
        self.url: str = native.url

    @property
    def refused(self) -> int:
        """The number of processes that connected with the wrong secret."""
        return self._native.refused

    def accept(self, timeout: float | None = None) -> Future[Pipe]:
        """Returns a future of the `Pipe` to the next process that connects. `timeout` is in seconds. Health checks and port scanners are ignored."""
        return self._native.accept(seconds_of(timeout), Pipe)

    def close(self) -> None:
        """Stops listening. Accepted pipes stay open."""
        self._native.close()


def _room_of(
    into: Sequence[Any] | None, device: _Device | None, stream: _Stream | None, kind: type | None
) -> tuple[list[Any] | None, Room | None]:
    """Returns the caller's buffers, or the `Room` that creates arrays."""
    if into is None:
        return None, Room(device, stream, kind)
    if kind is not None:
        raise ValueError("into and kind are mutually exclusive: buffers already have a type")
    if device is not None:
        raise ValueError("into and device are mutually exclusive: buffers already have a device")
    return buffers_of(into, "into"), None


def _secret_of(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else bytes_of(secret, "secret")


def _names_of(channels: Sequence[str]) -> list[str]:
    if isinstance(channels, (str, bytes)) or not all(isinstance(each, str) for each in channels):
        raise TypeError("channels must be a sequence of names")
    return list(channels)


def _count_of(connections: int) -> int:
    if not isinstance(connections, int):
        raise TypeError(f"connections must be an int, not {type(connections).__name__}")
    return max(connections, 0)  # the library rejects 0


def _text_of(url: str) -> str:
    if not isinstance(url, str):
        raise TypeError(f"url must be a str, not {type(url).__name__}")
    return url


class Tls(NamedTuple):
    """TLS 1.3 for pipes over tcp. All fields except `server_name` are paths of PEM files.

    - `certificate`: the local certificate, with any intermediate certificates. A listener must have one.
    - `key`: the certificate's key, without a passphrase.
    - `ca`: the CAs that sign the peer's certificate. A listener with `ca` accepts only processes with a certificate from these CAs. A connecting
      process trusts the system's CAs by default.
    - `server_name`: for a connecting process, the name that the listener's certificate must contain. The default is the host in the URL.
    """

    certificate: str = ""
    key: str = ""
    ca: str = ""
    server_name: str = ""


def _words_of(tls: Tls | bool | None) -> list[str] | None:
    if tls is None or tls is False:
        return None
    if tls is True:
        return ["", "", "", ""]
    if isinstance(tls, Tls):
        return [os.fspath(each) for each in tls]
    raise TypeError(f"tls must be a penstock.pipe.Tls, True or None, not {type(tls).__name__}")


def listen(
    url: str = "unix:", channels: Sequence[str] = (), secret: str | bytes = b"", connections: int = 4, tls: Tls | None = None
) -> Listener:
    """Listens for processes that connect. Returns a `Listener`.

    Arguments:

    - `url`: "unix:/path", "unix:@name" or "tcp://host:port". "unix:" chooses a name, and port 0 a free port; `Listener.url` contains the result.
    - `channels`: the channels that may be used, best first: "xth", "cma", "cuda_xth", "cuda_ipc", "ucx", "cuda_gdr", "mpt", "basic", "cuda_basic".
      The default is all channels, in this order. Each tensor uses the first channel in the receiver's list that both processes allow and that
      supports its memory.
    - `secret`: for tcp, at least 16 bytes. Both processes prove that they have it without sending it. Without a secret, tcp binds only to loopback
      addresses, to which any process on the machine may connect. Unix sockets need no secret: they accept only the same user's processes.
    - `connections`: 1 to 16. Large tensors over tcp use this many connections at once (channel "mpt"). The smaller of the two processes' numbers
      applies.
    - `tls`: encrypts tcp. `Tls(certificate, key)` identifies the listener; connecting processes must use TLS too. With `ca`, they need a certificate
      from that CA, and the listener may bind to any address without a secret.

    Without TLS, messages over tcp are neither encrypted nor signed.

    Raises: InvalidArgument, NotFound, PermissionDenied, Error.
    """
    words = _words_of(tls)
    return Listener(_native._pipe_listen(_text_of(url), _names_of(channels), _secret_of(secret), _count_of(connections), words))


def connect(
    url: str, channels: Sequence[str] = (), secret: str | bytes = b"", connections: int = 4, tls: Tls | bool | None = None
) -> Pipe:
    """Connects to a listening process. Returns a `Pipe`.

    `channels`, `secret` and `connections` are the same as in `listen()`, for this process. `tls` encrypts tcp: `Tls(ca=FILE)` selects the CA that
    signs the listener's certificate, and True the system's trusted CAs. Pass `certificate` and `key` if the listener requires them. The listener's
    certificate must match the URL's host, or `server_name`.

    Over tcp, the call waits up to 100 ms for the connection. Later errors, such as PermissionDenied for the wrong secret, are raised by the first
    future.

    Raises: InvalidArgument, NotFound (no such host or path, or no process is listening there), Error.
    """
    return Pipe(_native._pipe_connect(_text_of(url), _names_of(channels), _secret_of(secret), _count_of(connections), _words_of(tls)))


def _choices(told: list[tuple[str, bool, str]]) -> list[ChannelChoice]:
    return [ChannelChoice(*each) for each in told]


def _finisher(into: list[Any] | None = None, room: Room | None = None) -> Callable[..., Message]:
    """Returns the function that builds the `Message` after a receive."""

    def finish(metadata: bytes, payloads: list[bytes], told: list[tuple[int, bytes, str, str]], arrays: list[Any] | None) -> Message:
        if arrays is not None:
            tensors = [array_of(array, facts_of(*each)) for array, each in zip(arrays, told)]
        else:
            tensors = (into or []) if room is None else room.arrays()
        return Message(metadata, payloads, tensors, told)

    return finish


def __dir__() -> list[str]:
    return sorted(__all__)
