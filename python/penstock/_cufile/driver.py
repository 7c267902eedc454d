"""The driver behind penstock.cufile, with its registered files and its error mapping.

Only the C library keeps the driver's use count, the registered buffers and the statistics, because penstock.cuda_bindings, which also uses the C
library, changes them too. Each time the driver opens, it gets a new number, and this module stores its own state under that number.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import penstock
from penstock import _native
from penstock._core.file_facts import direct_io_alignment, mode_of, mount_of, nvidia_fs_version
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
    """A registered file. Uses a duplicate of the caller's descriptor, so that closing the original has no effect."""

    def __init__(self, descriptor: int, opening: int) -> None:
        self.told = descriptor
        self.opening = opening
        self.path: Path | None = None
        self.priority: Literal["speed", "cpu"] | None = None
        self._lock = forkable_lock()
        self._access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        self.direct = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)
        # Key: True with O_DIRECT. Once used, both files stay open, because another thread may be about to start a request on either.
        self._opened = {self.direct: penstock.open(descriptor, mode_of(self._access))}
        self._descriptor = self._opened[self.direct].fileno()
        self._for_library: dict[bool, _LibraryFile] = {}
        self._closed = False

    @property
    def file(self) -> penstock.File:
        return self._opened[self.direct]

    def is_of(self, descriptor: int) -> bool:
        """Returns True if the caller's descriptor still refers to the registered open file, not to one that was opened later."""
        return self.told == descriptor and _native._cufile_same_open_file(self._descriptor, descriptor)

    @property
    def readable(self) -> bool:
        return self._access != os.O_WRONLY

    @property
    def writable(self) -> bool:
        return self._access != os.O_RDONLY

    def library_handle(self) -> int:
        """Returns the C library's handle for the current descriptor, for functions that only the C library provides. Blocks. Raises OSError if the
        process has run out of descriptors.
        """
        with self._lock:
            direct = self.direct
            known = self._for_library.get(direct)
            if known is not None:
                return known.handle
            self._require_open()
            made = _LibraryFile(self._opened[direct].fileno())
        with self._lock:
            kept = None if self._closed else self._for_library.setdefault(direct, made)
        if kept is not made:
            made.close()
        if kept is None:
            raise _deregistered()
        return kept.handle

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for_library, self._for_library = self._for_library, {}
        for each in for_library.values():
            each.close()
        for file in self._opened.values():
            file.close()

    def _require_open(self) -> None:
        if self._closed:
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
        """Opens the file with or without O_DIRECT if necessary. Does not hold the lock, because opening can be slow on some mounts."""
        with self._lock:
            self._require_open()
            if direct in self._opened:
                return
            known = attempt(lambda: fcntl.fcntl(self._descriptor, fcntl.F_DUPFD_CLOEXEC, 0))
        try:
            descriptor = self._open_anew(known, direct)
        finally:
            os.close(known)
        try:
            file = attempt(lambda: penstock.open(descriptor, mode_of(self._access)), self)
        finally:
            os.close(descriptor)
        with self._lock:
            if not self._closed and direct not in self._opened:
                self._opened[direct] = file
                return
        file.close()

    def _open_anew(self, descriptor: int, direct: bool) -> int:
        try:
            return os.open(f"/proc/self/fd/{descriptor}", self._access | os.O_CLOEXEC | (os.O_DIRECT if direct else 0))
        except OSError as error:
            number = CODE_NUMBERS["out_of_memory"] if error.errno in _no_room else Status.CU_FILE_IO_NOT_SUPPORTED
            raise cuFileError(number, f"direct_io: {self.name}: {error.strerror}") from error

    @property
    def name(self) -> str:
        """The path of the file, or its descriptor number if another thread has deregistered it."""
        with contextlib.suppress(OSError):
            if not self._closed:
                return os.readlink(f"/proc/self/fd/{self._descriptor}")
        return f"descriptor {self.told}"

    def properties(self) -> dict[str, Any]:
        size = attempt(self.file.size, self)
        file_system, mount = attempt(lambda: mount_of(self._descriptor), self)
        told: dict[str, Any] = {
            "name": self.name,
            "size": size,
            "file_system": file_system,
            "mount": mount,
            "direct_io_alignment": direct_io_alignment(self._descriptor),
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
        try:
            self.file.explain(4096, 0, memory="device", write=not self.readable, path="direct")
        except penstock.Error as error:
            if error.code == "unsupported":
                return False
            raise
        return True

    def _plan(self, size: int, is_write: bool) -> penstock.Plan:
        memory: Literal["host", "device"] = "host" if self.path == "posix" else "device"
        return self.file.explain(size, 0, memory=memory, write=is_write, path=self.path, prefer=self.priority)


class _LibraryFile:
    """A file that is registered with the C library, through its own duplicate of the descriptor."""

    def __init__(self, descriptor: int) -> None:
        status, cuda_error, self.handle = _native._cufile_register_file(descriptor)
        check(Answer(status, cuda_error), "handle_register")

    def close(self) -> None:
        _native._cufile_release_file(self.handle)  # does nothing if the driver has been closed since


class Driver:
    """The files registered through penstock.cufile, and the settings of the C library's driver."""

    def __init__(self) -> None:
        self._lock = forkable_lock()
        self._known: tuple[int, Settings] | None = None  # the opening's number and settings
        self._files: dict[int, RegisteredFile] = {}
        self._queued: dict[int, list[penstock.StreamResult]] = {}  # by stream
        self._handles = itertools.count(1)  # never reused, so that stale handles are detected

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
        found = _open_library()
        self._known = found
        self._forget_stale()
        return found

    def close(self) -> Answer | int:
        """Decrements the use count. When it reaches zero, waits until no file has running operations. Returns cuFile's status."""
        status = calls.driver_close()
        self._forget_stale()
        return status

    def _forget_stale(self) -> None:
        """Drops files that were registered before the driver was closed."""
        opening = _native._cufile_opening()
        with self._lock:
            stale = {handle: file for handle, file in self._files.items() if file.opening != opening}
            for handle in stale:
                del self._files[handle]
        for file in stale.values():
            attempt(file.close)
        with self._lock:
            self._forget_ended()

    def add_file(self, descriptor: int) -> int:
        opening, settings = self._opened()
        made = attempt(lambda: RegisteredFile(descriptor, opening))
        refusal = settings.refusal(made.file)
        if refusal is not None:
            made.close()
            raise cuFileError(Status.CU_FILE_IO_NOT_SUPPORTED, f"handle_register: {refusal}")
        with self._lock:
            of_now = [file for file in self._files.values() if file.opening == opening]
            twice = any(file.is_of(descriptor) for file in of_now)
            if not twice:
                handle = next(self._handles)
                self._files[handle] = made
                return handle
        made.close()
        raise cuFileError(OpError.CU_FILE_HANDLE_ALREADY_REGISTERED, f"handle_register: descriptor {descriptor}")

    def find_file(self, handle: int) -> RegisteredFile:
        found = self._files.get(handle)
        if found is None or found.opening != _native._cufile_opening():
            raise cuFileError(Status.CU_FILE_INVALID_HANDLE, f"{handle} is not the handle of a registered file")
        return found

    def remove_file(self, handle: int) -> None:
        with self._lock:
            found = self.find_file(handle)
            del self._files[handle]
        attempt(found.close)
        with self._lock:
            self._forget_ended()

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


def _deregistered() -> cuFileError:
    return cuFileError(Status.CU_FILE_INVALID_HANDLE, "the file was deregistered during the call")


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
