"""The socket at which readers attach to held weights."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import threading

from .._core.errors import Error, InvalidArgument
from .._core.peer_words import failure_word
from .._core.quiescing import add_obstacle, remove_obstacle
from .._holding.listing import ANSWER, QUESTION, door_of, error_of, process_and_user

__all__ = ["AttachDoor"]

_log = logging.getLogger("penstock")
_backlog = 128
_pause_ms = 1000  # wait after an error that may pass, such as a lack of descriptors
_passing = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class AttachDoor:
    """Sends the message and the descriptors to each process of this user, in one thread. The connection stays open while the process uses the memory.

    Answers the question whether the server is alive, and disconnects a process that sends anything else. Until `open()`, processes get an error.
    """

    def __init__(self, address: str, most: int) -> None:
        """`most`: the limit on connected processes. Raises Error if the address is in use."""
        self._address, self._most = address, most
        self._name = door_of(address)
        self._listener = _listener_at(self._name, address)
        self._identity = None if self._name[0] == "\0" else os.lstat(self._name)
        # The message and the descriptors for readers, replaced together.
        self._offer = failure_word(Error(f"{address}: the model is still being loaded", code="would_block")), list[int]()
        self._inside: dict[int, socket.socket] = {}
        self._wake, self._woken = socket.socketpair()
        self._closed = False
        add_obstacle(self, f"the weights server at {address}")
        self._thread = threading.Thread(target=self._serve, name="penstock-attach", daemon=True)
        self._thread.start()

    @property
    def connected(self) -> int:
        return len(self._inside)

    def open(self, message: bytes, descriptors: list[int]) -> None:
        """Starts sending this message. The caller closes the descriptors after close()."""
        self._offer = message, descriptors

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        is_paused = False
        while not self._closed:
            ready = poll.poll(_pause_ms if is_paused else None)
            if is_paused:
                poll.register(self._listener, select.POLLIN)
                is_paused = False
            descriptors = [descriptor for descriptor, _ in ready]
            for descriptor in self._inside.keys() & descriptors:
                if not _answer(self._inside[descriptor]):
                    poll.unregister(descriptor)
                    self._inside.pop(descriptor).close()
            if self._listener.fileno() in descriptors and not self._let_in(poll):
                poll.unregister(self._listener)
                is_paused = True

    def _let_in(self, poll: select.poll) -> bool:
        """Accepts a connection. Returns False if the system cannot accept one now."""
        try:
            come, _ = self._listener.accept()
        except OSError as problem:
            if problem.errno in _passing:
                _log.warning("penstock serve: %s cannot accept a process now: %s", self._address, problem)
            return problem.errno not in _passing
        try:
            come.setblocking(False)
            stays = self._greet(come)
        except OSError:  # the process has already ended
            stays = False
        if stays:
            self._inside[come.fileno()] = come
            poll.register(come, select.POLLIN)
        else:
            come.close()
        return True

    def _greet(self, come: socket.socket) -> bool:
        """Sends the message, or an error. Returns False after an error."""
        message, descriptors = self._offer
        if process_and_user(come)[1] != os.geteuid():
            message = failure_word(Error(f"{self._address} belongs to a different user", code="permission_denied"))
            descriptors = []
        elif descriptors and len(self._inside) >= self._most:
            problem = f"{self._address} already has {self._most} readers, the limit set by --readers"
            message, descriptors = failure_word(Error(problem, code="would_block")), []
        socket.send_fds(come, [message], descriptors, socket.MSG_NOSIGNAL)
        return bool(descriptors)

    def close(self) -> None:
        """Disconnects all processes. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._wake.send(b"x")
        self._thread.join()
        remove_obstacle(self)
        for each in (self._listener, self._wake, self._woken, *self._inside.values()):
            each.close()
        if self._identity is not None:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.lstat(self._name), self._identity):  # otherwise it belongs to a later server
                    os.unlink(self._name)


def _answer(connection: socket.socket) -> bool:
    """Answers a question. Returns False if the process has ended or does not follow the protocol."""
    try:
        if connection.recv(len(QUESTION) + 1) != QUESTION:
            return False
        connection.send(ANSWER, socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def _listener_at(name: str, address: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        made.setblocking(False)
        try:
            made.bind(name)
        except OSError as problem:
            if problem.errno != errno.EADDRINUSE or not _is_left_behind(name):
                raise
            os.unlink(name)
            made.bind(name)
        if name[0] != "\0":
            os.chmod(name, 0o600)
        made.listen(_backlog)
    except OSError as problem:
        made.close()
        if problem.errno == errno.EADDRINUSE:
            why = "a process already serves weights there: pass another --address"
            raise InvalidArgument(f"{address}: {why}", code="invalid_argument") from None
        raise error_of(problem, address) from None
    return made


def _is_left_behind(name: str) -> bool:
    """Returns True if the socket at the path is left over from a process that was killed."""
    if name[0] == "\0":
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)  # the other process may be stopped
        try:
            probe.connect(name)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
