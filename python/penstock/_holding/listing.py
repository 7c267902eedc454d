"""The message that a server of held weights sends to a reader. It comes with descriptors; one of them contains the list of tensors.

The server sends this message as soon as it has accepted a connection from a process of its user. After that, it only answers the question whether it
is alive. A reader that has copied GPU memory asks this: an answer proves that the memory was still valid during the copy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import socket
import struct
from typing import Any, NamedTuple

from .. import _native
from .._core.devices import is_gpu
from .._core.errors import Error, InvalidArgument, make_error
from .._core.packing import ALIGNMENT
from .._core.peer_words import malformed
from .._tensors.types import BITS
from .source_files import SourceFile

__all__ = [
    "ANSWER",
    "MOST_MESSAGE",
    "PROTOCOL",
    "QUESTION",
    "Listing",
    "Tensor",
    "default_address",
    "default_device",
    "door_of",
    "error_of",
    "is_sealed",
    "message_of",
    "process_and_user",
    "seal",
    "sealed_memory",
]

PROTOCOL = 1
QUESTION, ANSWER = b"?", b"!"
MOST_MESSAGE = 8192
_most_listing = 256 << 20  # bytes
_most_tensors = 1 << 20
_most_dims = 32
_future_write = getattr(fcntl, "F_SEAL_FUTURE_WRITE", 0x10)  # Linux 5.1
_fixed_size = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def default_device() -> str:
    """Returns the first GPU, or "host"."""
    first = _native.devices()[0].name
    return first if is_gpu(first) else "host"


def default_address(device: str) -> str:
    """Returns the address of this user's server for a device, such as "host", "host:0" or "cuda:1". It contains the UUID of a GPU, because
    CUDA_VISIBLE_DEVICES changes the number.
    """
    uuid = _native.device(device).uuid if is_gpu(device) else ""
    return f"unix:@penstock-weights-{os.geteuid()}-{uuid or device}"


def door_of(address: str) -> str:
    """Returns the name of the socket for readers, as socket.bind() expects it. Raises InvalidArgument."""
    name = address.removeprefix("unix:") if isinstance(address, str) else ""
    if not isinstance(address, str):
        raise TypeError(f"address must be a str, not {type(address).__name__}")
    if not address.startswith("unix:") or name in ("", "@") or not name.startswith(("@", "/")):
        raise InvalidArgument(f"{address!r} is not an address for held weights: it must be unix:@NAME or unix:/PATH", code="invalid_argument")
    name += ".attach"
    if "\0" in name or len(os.fsencode(name)) > 107:
        raise InvalidArgument(f"{address!r} is not an address for held weights: it has a zero byte or is longer than 100 bytes", code="invalid_argument")
    return "\0" + name[1:] if name[0] == "@" else name


def process_and_user(connection: socket.socket) -> tuple[int, int]:
    """Returns the PID and the user of the process at the other end."""
    process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return process, user


def error_of(problem: OSError, what: str) -> Error:
    """Returns the Error for a failed system call. `what`: the object that the call was for."""
    if isinstance(problem, Error):
        return problem
    if problem.errno == errno.EMFILE:
        return make_error("io", f"{what}: this process cannot open more files: raise its limit (ulimit -n)", "os", errno.EMFILE, None, None, 0)
    code = {errno.ENOMEM: "out_of_memory", errno.EACCES: "permission_denied", errno.EPERM: "permission_denied"}.get(problem.errno or 0, "io")
    return make_error(code, f"{what}: {problem.strerror} (os {problem.errno})", "os", problem.errno or 0, None, None, 0)


# --- memory that nobody can change


def seal(descriptor: int) -> None:
    """Forbids further writes and changes of size. Before Linux 5.1, no writable mapping may exist."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _fixed_size | _future_write)
    except OSError:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _fixed_size | fcntl.F_SEAL_WRITE)


def is_sealed(descriptor: int, nbytes: int) -> bool:
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        return False
    is_fixed = bool(seals & fcntl.F_SEAL_SHRINK and seals & (_future_write | fcntl.F_SEAL_WRITE))
    return is_fixed and os.fstat(descriptor).st_size >= nbytes


def sealed_memory(content: bytes) -> int:
    """Returns the descriptor of memory with this content."""
    descriptor = os.memfd_create("penstock-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        seal(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


# --- the list of tensors


class Tensor(NamedTuple):
    """`dtype` is a safetensors type. `file` is an index in `Listing.files`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    file: int


class Listing(NamedTuple):
    """`nbytes`: the size of the memory, a multiple of the alignment. `files` contains None for a file that cannot be compared: one on a server, or one
    with tensors that are not held.
    """

    nbytes: int
    files: list[SourceFile | None]
    tensors: list[Tensor]

    def encode(self) -> bytes:
        """Raises InvalidArgument if read() would reject the result."""
        problem = _problem_of(self.nbytes, self.files, self.tensors)
        content = b"" if problem else json.dumps({"nbytes": self.nbytes, "files": self.files, "tensors": self.tensors}).encode()
        if problem or len(content) > _most_listing:
            raise InvalidArgument(f"penstock serve cannot serve this model: readers would reject {problem or 'its long list of tensors'}", code="invalid_argument")
        return content

    @staticmethod
    def read(descriptor: int, size: int) -> Listing:
        """Raises Error (io)."""
        if not 0 < size <= _most_listing or not is_sealed(descriptor, size):
            raise malformed(f"a list of tensors that is not sealed, or has {size} bytes")
        with contextlib.closing(mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ)) as content:
            try:
                found = json.loads(content[:])
                nbytes, tensors = found["nbytes"], [Tensor(name, dtype, tuple(shape), *rest) for name, dtype, shape, *rest in found["tensors"]]
                files = [None if each is None else SourceFile(*each) for each in found["files"]]
                problem = _problem_of(nbytes, files, tensors)
            except (ValueError, TypeError, KeyError, RecursionError):
                problem = "a list of tensors that is not valid"
        if problem is not None:
            raise malformed(problem)
        return Listing(nbytes, files, tensors)


def _problem_of(nbytes: Any, files: list[SourceFile | None], tensors: list[Tensor]) -> str | None:
    if not _is_count(nbytes) or nbytes < 1 or nbytes % ALIGNMENT or len(tensors) > _most_tensors or len({each.name for each in tensors}) != len(tensors):
        return "a list with too many tensors, a duplicate tensor or an invalid size"
    for each in tensors:
        counts = (each.start, each.nbytes, each.file, *each.shape)
        if not isinstance(each.name, str) or each.dtype not in BITS or len(each.shape) > _most_dims or not all(map(_is_count, counts)):
            return "a list with an invalid tensor"
        elements = 1
        for extent in each.shape:
            elements *= extent
        if elements * BITS[each.dtype] != each.nbytes * 8 or each.start % ALIGNMENT or each.start + each.nbytes > nbytes or each.file >= len(files):
            return f'the invalid size or place of "{each.name[:200]}"'
    return None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def message_of(facts: dict[str, Any]) -> bytes:
    packed = json.dumps({"held_weights": PROTOCOL, **facts}).encode()
    if len(packed) > MOST_MESSAGE:
        raise Error("the message for readers is too long", code="internal")
    return packed
