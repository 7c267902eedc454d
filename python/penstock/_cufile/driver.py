"""The driver behind penstock.cufile: the C library's, with what set_file_properties() adds to its files, and the error mapping.

The C library keeps the driver's use count, the registered files and buffers, and the statistics, because penstock.cuda_bindings also uses it. Each
time the driver opens, it gets a new number, and this module stores the settings under that number. A handle's number is never used again, not even
in a forked process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import penstock
from penstock import _native
from penstock._core.file_facts import direct_io_alignment, direct_problem, mount_of, nvidia_fs_version
from penstock._core.forks import forkable_lock
from penstock._cufile.codes import CODE_NUMBERS, OpError, Status, cuFileError
from penstock._cufile.library import Answer, calls, words
from penstock._cufile.settings import Settings, read_settings

__all__ = [
    "CU_FILE_BUF_REGISTER_FLAGS_NONE",
    "CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY",
    "CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY",
    "Driver",
    "Path",
    "RegisteredFile",
    "attempt",
    "check",
    "counted",
    "descriptor_struct_bytes",
    "driver",
]

CU_FILE_BUF_REGISTER_FLAGS_NONE = 0
CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY = 1
CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY = 2

Outcome = TypeVar("Outcome")
Path = Literal["posix", "staged", "mapped", "direct", "dma_buf"]


class RegisteredFile:
    """A file that is registered with the C library, by any module, and its properties. The C library closes its File."""

    def __init__(self, handle: int, name: str, file: penstock.File, flags: int) -> None:
        self.handle = handle
        self.path: Path | None = None
        self.priority: Literal["speed", "cpu"] | None = None
        self.direct = bool(flags & os.O_DIRECT)
        self._access = flags & os.O_ACCMODE
        self._name_once_closed = name
        self._lock = forkable_lock()
        # Key: True with O_DIRECT. Once used, both files stay registered, because another thread may be about to start a request on either.
        self._registered = {self.direct: (handle, file)}
        self._closed = False

    @property
    def file(self) -> penstock.File:
        return self._registered[self.direct][1]

    def library_handle(self) -> int:
        """Returns the C library's handle for the file as set_file_properties() opened it."""
        return self._registered[self.direct][0]

    @property
    def readable(self) -> bool:
        return self._access != os.O_WRONLY

    @property
    def writable(self) -> bool:
        return self._access != os.O_RDONLY

    def close(self) -> None:
        """Call once the handle has been deregistered."""
        with self._lock:
            self._closed = True
            also = [handle for handle, _ in self._registered.values() if handle != self.handle]
        for handle in also:
            _native._cufile_release_file(handle)

    def _require_open(self) -> None:
        if self._closed or not _native._cufile_is_file(self.handle):
            raise _deregistered()

    def change(self, props: Mapping[str, Any]) -> None:
        if "direct_io" in props:
            self._make_ready(props["direct_io"])
        with self._lock:
            self._require_open()
            if "direct_io" in props:
                self.direct = props["direct_io"]
            if "path" in props:
                self.path = None if props["path"] == "automatic" else props["path"]
            if "priority" in props:
                self.priority = None if props["priority"] == "automatic" else props["priority"]

    def _make_ready(self, direct: bool) -> None:
        """Registers the file with or without O_DIRECT if necessary. Does not hold the lock, because opening can be slow on some mounts."""
        with self._lock:
            if direct in self._registered:
                return
        known = attempt(lambda: fcntl.fcntl(self.file.fileno(), fcntl.F_DUPFD_CLOEXEC, 0), self)
        try:
            self._require_open()  # the number was still this file's
            descriptor = self._open_anew(known, direct)
        finally:
            os.close(known)
        try:
            handle = _register(descriptor, f"direct_io: {self.name}")
        finally:
            os.close(descriptor)
        found = _native._cufile_file(handle)
        if found is None:  # the driver was closed
            raise _deregistered()
        with self._lock:
            if not self._closed and direct not in self._registered:
                self._registered[direct] = (handle, found[0])
                return
        _native._cufile_release_file(handle)

    def _open_anew(self, descriptor: int, direct: bool) -> int:
        try:
            return os.open(f"/proc/self/fd/{descriptor}", self._access | os.O_CLOEXEC | (os.O_DIRECT if direct else 0))
        except OSError as error:
            number = CODE_NUMBERS["out_of_memory"] if error.errno in _no_room else Status.CU_FILE_IO_NOT_SUPPORTED
            raise cuFileError(number, f"direct_io: {self.name}: {error.strerror}") from error

    @property
    def name(self) -> str:
        """The path of the file, or the name that it was registered under if it has been deregistered."""
        with contextlib.suppress(OSError, penstock.Error):
            return os.readlink(f"/proc/self/fd/{self.file.fileno()}")
        return self._name_once_closed

    def properties(self) -> dict[str, Any]:
        try:
            return self._facts()
        finally:
            self._require_open()  # the descriptor was this file's until now

    def _facts(self) -> dict[str, Any]:
        size = attempt(self.file.size, self)
        descriptor = attempt(self.file.fileno, self)
        file_system, mount = attempt(lambda: mount_of(descriptor), self)
        told: dict[str, Any] = {
            "name": self.name,
            "size": size,
            "file_system": file_system,
            "mount": mount,
            "direct_io_alignment": direct_io_alignment(descriptor),
            "residency": 0,
            "read_paths": [],
            "write_paths": [],
            "remarks": [],
            "nvidia_fs": nvidia_fs_version(),
            "gpu_direct": attempt(self.may_be_direct, self),
            "path": self.path or "automatic",
            "direct_io": self.direct,
            "priority": self.priority or "automatic",
        }
        for key, allowed in (("write_paths", self.writable), ("read_paths", self.readable)):
            if allowed and size > 0:
                try:
                    plan = self._plan(size, key == "write_paths")
                    told |= {key: plan.parts, "remarks": plan.remarks, "residency": plan.cached_bytes}
                except penstock.Error as error:
                    told["remarks"] = [str(error)]  # the forced path cannot serve the file
        return told

    def may_be_direct(self) -> bool:
        problem = direct_problem(self.file, not self.readable)
        if problem is not None and problem.code != "unsupported":
            raise problem
        return problem is None

    def _plan(self, size: int, is_write: bool) -> penstock.Plan:
        memory: Literal["host", "device"] = "host" if self.path == "posix" else "device"
        return self.file.explain(size, 0, memory=memory, write=is_write, path=self.path, prefer=self.priority)


class Driver:
    """The C library's driver, its settings, and the properties of its files."""

    def __init__(self) -> None:
        self._lock = forkable_lock()
        self._known: tuple[int, Settings] | None = None  # the opening's number and settings
        self._files: dict[int, RegisteredFile] = {}  # by handle, from its first use here on
        self._queued: dict[int, list[penstock.StreamResult]] = {}  # by stream

    def open(self) -> None:
        _check_opening(calls.driver_open())
        self._opened()

    def use(self) -> None:
        """Opens the driver if it is closed."""
        self._opened()

    def settings(self) -> Settings:
        """Returns the settings that the driver was opened with. Opens it if it is closed."""
        return self._opened()[1]

    def _opened(self) -> tuple[int, Settings]:
        known = self._known
        if known is not None and known[0] == _native._cufile_opening():
            return known
        self._known = found = _open_library()
        return found

    def close(self) -> Answer | int:
        """Decrements the use count. When it reaches zero, waits until no file has running operations. Returns cuFile's status."""
        status = calls.driver_close()
        for handle in list(self._files):
            if not _native._cufile_is_file(handle):
                self.forget_file(handle)
        with self._lock:
            self._forget_ended()
        return status

    def add_file(self, descriptor: int) -> int:
        self.use()
        handle = _register(descriptor, f"handle_register: descriptor {descriptor}")
        self._learn(handle, f"descriptor {descriptor}")
        return handle

    def find_file(self, handle: int) -> RegisteredFile:
        found = self._files.get(handle) or self._learn(_as_handle(handle), f"handle {handle}")
        if found is None or not _native._cufile_is_file(found.handle):
            self.forget_file(handle)
            raise _unknown(handle)
        return found

    def _learn(self, handle: int, name: str) -> RegisteredFile | None:
        found = _native._cufile_file(handle)
        return None if found is None else self._files.setdefault(handle, RegisteredFile(handle, name, *found))

    def remove_file(self, handle: int) -> None:
        released = _native._cufile_release_file(_as_handle(handle))
        self.forget_file(handle)
        if not released:
            raise _unknown(handle)
        with self._lock:
            self._forget_ended()

    def forget_file(self, handle: int) -> None:
        """Drops the properties of a handle that has been deregistered."""
        gone = self._files.pop(handle, None)
        if gone is not None:
            gone.close()

    def _forget_ended(self) -> None:
        for stream, queued in list(self._queued.items()):
            self._queued[stream] = [each for each in queued if not each.done]
            if not self._queued[stream]:
                del self._queued[stream]

    def remember(self, stream: int, queued: penstock.StreamResult) -> None:
        with self._lock:
            self._forget_ended()
            self._queued.setdefault(stream, []).append(queued)

    def wait_for(self, stream: int) -> None:
        with self._lock:
            queued = self._queued.pop(stream, [])
        for each in queued:
            with contextlib.suppress(penstock.Error):
                each.wait()

    def add_buffer(self, base: int, size: int, flags: int) -> None:
        self.use()
        check(Answer(*_native._cufile_register_buffer(base, size, flags)), f"buf_register: address {base:#x}")

    def remove_buffer(self, base: int) -> None:
        status = calls.buf_deregister(base)  # waits for GPU-direct transfers
        if status in (OpError.CU_FILE_DRIVER_CLOSING, OpError.CU_FILE_DRIVER_NOT_INITIALIZED):
            status = int(Status.CU_FILE_MEMORY_NOT_REGISTERED)  # a closed driver has no buffers
        check(status, f"buf_deregister: address {base:#x}")

    def check_buffer(self, base: int, offset: int, size: int, is_write: bool) -> None:
        """Checks that a range lies within its buffer if the base is registered, and that no registered buffer that contains the range forbids the
        direction.
        """
        fault = _native._cufile_buffer_fault(base, offset, size, is_write)
        if fault == 0:
            return
        if fault == Status.CU_FILE_PERMISSION_DENIED:
            words = ("writes", "READ_ONLY") if is_write else ("reads", "WRITE_ONLY")
            raise cuFileError(fault, f"the buffer cannot be used for {words[0]}: it was registered {words[1]}")
        raise cuFileError(fault, f"{size} bytes at offset {offset} exceed the buffer registered at {base:#x}")


driver = Driver()


def attempt(call: Callable[[], Outcome], used: RegisteredFile | None = None) -> Outcome:
    try:
        return call()
    except penstock.Error as error:
        place = f"{used.name}: " if used is not None else ""
        number = CODE_NUMBERS.get(error.code, OpError.CU_FILE_INTERNAL_ERROR)
        raise cuFileError(number, f"{place}{error}", error.bytes_done) from error
    except OSError as error:
        number = CODE_NUMBERS["out_of_memory" if error.errno in _no_room else "io"]
        raise cuFileError(number, str(error)) from error


def check(status: int, what: str) -> None:
    if status != 0:
        cuda_error = getattr(status, "cuda_error", 0)
        reason = getattr(status, "reason", "")
        more = (f" (CUDA error {cuda_error})" if cuda_error else "") + (f" ({reason})" if reason else "")
        raise cuFileError(int(status), f"{what}: {words(status)}{more}")


def counted(what: str, call: Callable[[], Outcome]) -> Outcome:
    """Runs a call that bypasses the C library, and counts it in the C library's statistics."""
    try:
        outcome = call()
    except BaseException:
        _native._cufile_count_call(what, False)
        raise
    _native._cufile_count_call(what, True)
    return outcome


def _register(descriptor: int, what: str) -> int:
    """Registers a duplicate of a descriptor with the C library and returns the handle."""
    status, cuda_error, handle, reason = _native._cufile_register_file(descriptor)
    try:
        check(Answer(status, cuda_error, "" if reason is None else str(reason)), what)
    except cuFileError as error:
        raise error from reason  # which has errno
    return handle


def _as_handle(handle: int) -> int:
    """Returns the handle if it fits the C type; otherwise 0, which is never a handle."""
    try:
        number = operator.index(handle)
    except TypeError:
        return 0
    return number if 0 < number < 1 << 64 else 0


def _deregistered() -> cuFileError:
    return cuFileError(Status.CU_FILE_INVALID_HANDLE, "the file was deregistered during the call")


def _unknown(handle: int) -> cuFileError:
    return cuFileError(Status.CU_FILE_INVALID_HANDLE, f"{handle} is not the handle of a registered file")


def _check_opening(status: int) -> None:
    if status == OpError.CU_FILE_DRIVER_INVALID_PROPS:
        read_settings()  # raises the detailed error
    check(status, "driver_open")


def _open_library() -> tuple[int, Settings]:
    """Opens the C library's driver if it is closed. Returns the number of the opening, and its settings."""
    while True:
        _check_opening(Answer(*_native._cufile_use()))
        opening = _native._cufile_opening()
        settings = read_settings()
        if opening != 0 and opening == _native._cufile_opening():  # it has not been closed in between
            return opening, settings


_no_room = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # no descriptors or memory left for another open file
descriptor_struct_bytes = 24  # CUfileDescr_t: int type, 4 unused, union {int fd, void *handle}, pointer
