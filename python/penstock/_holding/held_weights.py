"""A reader's connection to a process that holds weights: the list of its tensors, and its memory."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import mmap
import os
import socket
import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from .. import _native
from .._core.arrays.library import View
from .._core.closable import Closable
from .._core.devices import is_gpu
from .._core.errors import Closed, Error, InvalidArgument, NotFound, PermissionDenied, TimedOut
from .._core.packing import packed
from .._core.peer_words import failure_of, malformed, number_in
from .._core.quiescing import add_obstacle, remove_obstacle
from .._tensors.errors import listed, meant
from .._tensors.frameworks import Framework
from .._tensors.load_file import check_type
from .listing import ANSWER, MOST_MESSAGE, PROTOCOL, QUESTION, Listing, Tensor, default_address, door_of, error_of, is_sealed, process_and_user
from .source_files import SourceFile, describe_path

__all__ = ["HeldWeights", "find_held"]

_log = logging.getLogger("penstock")
_most_silence = 30.0  # seconds that a running server may take to answer
_moment = 2.0  # seconds that a loader waits for a server
_close_on_exec = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)


class HeldWeights(Closable):
    """A connection to a server, its list of tensors, and its memory. `device`: "host", "host:0", or the local name of the server's GPU."""

    def __init__(self, address: str, seconds: float) -> None:
        """`seconds`: the time to wait for the server. Raises as attach_weights() does."""
        self.address = address
        self._asking = threading.Lock()
        self._memory: Any = None
        self._file: _native.File | None = None
        self._socket = _connected(address, seconds)
        add_obstacle(self, f"the connection to the weights server at {address}")
        descriptors: list[int] = []
        try:
            process, user = process_and_user(self._socket)
            if user != os.geteuid():
                raise PermissionDenied(f"{address}: the server is a process of user {user}", code="permission_denied")
            facts = self._receive(descriptors)
            self._socket.setblocking(False)
            self.listing = Listing.read(descriptors[0], number_in(facts, "listing_bytes"))
            self.device = self._device_of(facts)
            self._map(facts, process, descriptors[1] if len(descriptors) > 1 else -1)
        except OSError as problem:
            self.close()
            raise error_of(problem, address) from None
        except BaseException:
            self.close()
            raise
        finally:
            for each in descriptors:
                os.close(each)

    def _receive(self, descriptors: list[int]) -> dict[str, Any]:
        try:
            content, received, flags, _ = socket.recv_fds(self._socket, MOST_MESSAGE, 2, _close_on_exec)
        except TimeoutError:
            raise TimedOut(f"{self.address}: the server did not answer in time", code="timed_out") from None
        descriptors += received
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "there are more descriptors than this process can open")
        if not content:
            raise Closed(f"{self.address}: the server has ended", code="closed")
        try:
            facts = json.loads(content)
        except (ValueError, RecursionError):
            facts = None
        if not isinstance(facts, dict):
            raise malformed("a message that is not a JSON object")
        if failed := failure_of(facts):
            raise failed
        if facts.get("held_weights") != PROTOCOL or not descriptors:
            raise malformed(f"protocol version {str(facts.get('held_weights'))[:100]!r}, but only version {PROTOCOL} is supported")
        return facts

    def _device_of(self, facts: dict[str, Any]) -> str:
        device, uuid = facts.get("device"), facts.get("uuid")
        if device in ("host", "host:0"):
            return str(device)
        for each in _native.devices():
            if is_gpu(each.name) and each.uuid == uuid:
                return each.name
        raise Error(f"{self.address}: the server's GPU {str(uuid)[:100]} is not visible in this process (CUDA_VISIBLE_DEVICES)", code="unsupported")

    def _map(self, facts: dict[str, Any], process: int, descriptor: int) -> None:
        nbytes = self.listing.nbytes
        if self.device != "host":
            handle = facts.get("handle")
            if not isinstance(handle, str) or len(handle) > 2048 or len(handle) % 2 or not set(handle) <= set("0123456789abcdef"):
                raise malformed("no handle for its memory")
            self._memory = _native.open_shared_memory(self.device, bytes.fromhex(handle), number_in(facts, "offset"), nbytes, descriptor, process)
            return
        if descriptor < 0 or not is_sealed(descriptor, nbytes):
            raise malformed("memory that is not sealed, or too small")
        self._memory = mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_COPY)  # private: a write affects only this process
        self._file = _native.open(descriptor)  # of a duplicate

    def chosen(self, names: set[str] | None) -> list[Tensor]:
        """Returns the tensors with these names; None means all."""
        tensors = [each for each in self.listing.tensors if names is None or each.name in names]
        if names is not None and len(tensors) < len(names):
            missing = sorted(names - {each.name for each in tensors})
            there = [each.name for each in self.listing.tensors]
            raise NotFound(f"{self.address} does not have {listed(missing)}{meant(missing, there)}", code="not_found")
        return tensors

    def mapped(self, tensors: list[Tensor], place: Framework) -> dict[str, Any]:
        """Returns tensors in the server's memory. Raises InvalidArgument for a place on another device."""
        on_gpu = is_gpu(place.device)
        if on_gpu is not is_gpu(self.device) or (on_gpu and place.device != self.device):
            raise InvalidArgument(f"{self.address} holds its weights on {self.device}, not on {place.device}: pass copy=True", code="invalid_argument")
        if not place.indexes and self.device == "host":
            raise InvalidArgument(f'{self.address}: framework="bytes" cannot map host memory: pass copy=True', code="invalid_argument")
        found: dict[str, Any] = {}
        place.library.arena_over(self._memory, self.device).views(self._rows(tensors, place, [each.start for each in tensors]), found)
        return found

    def copied(self, tensors: Sequence[Tensor], place: Framework) -> dict[str, Any]:
        """Returns copies. Blocks. Raises Closed if the server has ended before the copies were complete."""
        starts, total = packed([each.nbytes for each in tensors])
        rows = self._rows(tensors, place, starts)
        arena = place.arena(total)
        runs = _runs(tensors, starts)
        if runs and self._file is not None:
            self._file.read_ranges(arena.memory, *zip(*runs))
        elif runs:
            address = _native.resolve(arena.memory, True)[0]
            for offset, nbytes, start in runs:
                _native.copy(_native.Pointer(address + start, nbytes, arena), self._memory[offset : offset + nbytes])
        self.check()
        found: dict[str, Any] = {}
        arena.views(rows, found)
        return found

    def _rows(self, tensors: Iterable[Tensor], place: Framework, starts: Iterable[int]) -> list[View]:
        rows: list[View] = []
        for each, start in zip(tensors, starts):
            dtype = place.dtype(each.dtype)
            rows.append((each.name, dtype, check_type(self.address, each.name, each.dtype, each.shape, place, dtype), start, each.nbytes))
        return rows

    def tensors_of(self, files: Sequence[SourceFile]) -> list[Tensor] | None:
        """Returns the tensors of these files, in the order of the files. None if the server lacks a file, or read it with other contents."""
        by_file: dict[SourceFile, list[Tensor]] = {each: [] for each in self.listing.files if each is not None}
        if not by_file.keys() >= set(files):
            return None
        for tensor in self.listing.tensors:
            of = self.listing.files[tensor.file]
            if of is not None:
                by_file[of].append(tensor)
        return [tensor for each in files for tensor in by_file[each]]

    @property
    def connected(self) -> bool:
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def check(self) -> None:
        """Raises Closed unless the server's memory is still valid. Asks the server: if a process is killed, its memory may be freed before its
        connections are closed.
        """
        if self.device != "host" and not self._is_answered():
            raise Closed(f"{self.address}: the server has ended, so its weights on {self.device} are no longer valid", code="closed")

    def _is_answered(self) -> bool:
        with self._asking:
            try:
                self._socket.settimeout(_most_silence)
                self._socket.send(QUESTION, socket.MSG_NOSIGNAL)
                if self._socket.recv(len(ANSWER)) == ANSWER:
                    self._socket.setblocking(False)
                    return True
            except OSError:
                pass
            self._socket.close()  # a late answer must not count for a later question
            return False

    def close(self) -> None:
        self._socket.close()
        remove_obstacle(self)
        self._memory = None
        if self._file is not None:
            with contextlib.suppress(Error):
                self._file.close()


def find_held(files: Sequence[str], device: str, server: str | None = None, on_host: bool = True) -> tuple[HeldWeights, list[Tensor]] | None:
    """Returns a server that holds these files with their current contents, and the files' tensors, or None. Logs why a server cannot be used.
    `server`: its address. None tries the default addresses of the device and, with `on_host`, of the host.
    """
    for address in dict.fromkeys([server] if server is not None else map(default_address, [device, "host"] if on_host else [device])):
        held = None
        try:
            held = HeldWeights(address, _moment)
            tensors = held.tensors_of([describe_path(each) for each in files])
            if tensors is not None:
                return held, tensors
            _log.info("%s holds other weights, or these files have changed", address)
        except NotFound:
            pass
        except OSError as problem:  # and Error
            _log.warning("the weights at %s are not used: %s", address, problem)
        if held is not None:
            held.close()
    return None


def _runs(tensors: Sequence[Tensor], starts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Returns the ranges to copy: offset at the server, bytes, offset in the copy. Tensors that are adjacent in both are copied together."""
    runs: list[tuple[int, int, int]] = []
    for each, start in zip(tensors, starts):
        if not each.nbytes:
            continue
        if runs and runs[-1][0] - runs[-1][2] == each.start - start and each.start >= runs[-1][0]:
            runs[-1] = (runs[-1][0], each.start + each.nbytes - runs[-1][0], runs[-1][2])
        else:
            runs.append((each.start, each.nbytes, start))
    return runs


def _connected(address: str, seconds: float) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        seconds = max(seconds, 1e-3)  # 0 would not block
        # With Python's own timeout, connect() fails at once while too many processes wait for the server.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))
        made.connect(door_of(address))
        made.settimeout(seconds)
    except BlockingIOError:
        made.close()
        raise TimedOut(f"{address}: the server did not answer in time", code="timed_out") from None
    except OSError as problem:
        made.close()
        if isinstance(problem, (FileNotFoundError, ConnectionRefusedError)):
            raise NotFound(f"{address}: no process serves weights there: start penstock serve", code="not_found") from None
        raise error_of(problem, address) from None
    except BaseException:
        made.close()
        raise
    return made
