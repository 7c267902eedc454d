"""What penstock.cufile stands on: its driver, with the files and buffers that are registered, and what they make of errors."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import itertools
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import penstock
from penstock._cufile_codes import CODE_NUMBERS, FileHandleType, OpError, Status, cuFileError
from penstock._cufile_library import calls, words
from penstock._cufile_settings import Settings, read_settings
from penstock._file_facts import direct_io_alignment, mode_of, mount_of, nvidia_fs_version
from penstock._forks import forkable_lock

__all__ = [
    "CU_FILE_BUF_REGISTER_FLAGS_NONE",
    "CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY",
    "CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY",
    "Driver",
    "Path",
    "RegisteredBuffer",
    "RegisteredFile",
    "attempt",
    "check",
    "descriptor_struct_bytes",
    "driver",
]

CU_FILE_BUF_REGISTER_FLAGS_NONE = 0
CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY = 1
CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY = 2

Outcome = TypeVar("Outcome")
Path = Literal["posix", "staged", "mapped", "direct"]


class RegisteredFile:
    """A registered file. Owns a duplicate of the caller's descriptor, so that closing that one redirects nothing."""

    def __init__(self, descriptor: int) -> None:
        self.told = descriptor
        self.path: Path | None = None
        self.priority: Literal["speed", "cpu"] | None = None
        self._lock = forkable_lock()
        self._access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        self.direct = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)
        self._descriptor = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)
        self._library_handle = 0  # of the C library, for what only that does
        # By whether it is O_DIRECT. Both stay open once used: a request may still be about to start on the other.
        self._opened = {self.direct: (self._descriptor, self._adopt(self._descriptor))}
        self.identity = _identity(self._descriptor)

    @property
    def file(self) -> penstock.File:
        return self._opened[self.direct][1]

    @property
    def readable(self) -> bool:
        return self._access != os.O_WRONLY

    @property
    def writable(self) -> bool:
        return self._access != os.O_RDONLY

    def library_handle(self) -> int:
        with self._lock:
            if self._library_handle == 0:
                self._library_handle = _library_handle_of(self._descriptor)
            return self._library_handle

    def close(self) -> None:
        with self._lock:
            if self._library_handle != 0:
                calls.handle_deregister(self._library_handle)
                self._library_handle = 0
            for descriptor, file in self._opened.values():
                file.close()
                os.close(descriptor)

    def change(self, props: Mapping[str, Any]) -> None:
        with self._lock:
            if "direct_io" in props:
                self._switch(props["direct_io"])
            if "path" in props:
                self.path = None if props["path"] == "automatic" else props["path"]
            if "priority" in props:
                self.priority = None if props["priority"] == "automatic" else props["priority"]

    def _switch(self, direct: bool) -> None:
        if direct not in self._opened:
            flags = self._access | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
            try:
                descriptor = os.open(f"/proc/self/fd/{self._descriptor}", flags)
            except OSError as error:
                if error.errno in _no_room:
                    raise cuFileError(CODE_NUMBERS["out_of_memory"], f"direct_io: {self.name}: {error.strerror}") from error
                raise cuFileError(Status.CU_FILE_IO_NOT_SUPPORTED, f"direct_io: {self.name}: {error.strerror}") from error
            self._opened[direct] = (descriptor, self._adopt(descriptor))
        self.direct = direct

    def _adopt(self, descriptor: int) -> penstock.File:
        """Takes over the descriptor, also where this fails."""
        try:
            return penstock.open(descriptor, mode_of(self._access))
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def name(self) -> str:
        return os.readlink(f"/proc/self/fd/{self._descriptor}")

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
                    told["remarks"] = [str(error)]  # the path that was asked for cannot serve
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


@dataclasses.dataclass(frozen=True)
class RegisteredBuffer:
    base: int
    size: int
    flags: int

    def holds(self, address: int, size: int) -> bool:
        return self.base <= address and address + size <= self.base + self.size


class Driver:
    """What is registered in this process, and how often the driver was opened."""

    def __init__(self) -> None:
        self._lock = forkable_lock()
        self._uses = 0
        self._settings: Settings | None = None  # while it is open
        self._files: dict[int, RegisteredFile] = {}
        self._buffers: dict[int, RegisteredBuffer] = {}
        self._queued: dict[int, list[penstock.StreamResult]] = {}  # by stream
        self._handles = itertools.count(1)  # never given twice: a stale one is found out
        self._started = False
        self.counting = False

    def open(self) -> None:
        with self._lock:
            known = _open_library()
            if self._settings is None:
                self._take(known)
            self._uses += 1

    def _take(self, known: Settings) -> None:
        self._settings = known
        if int(known.values["profile.cufile_stats"]) > 0:
            self._started = self.counting = True

    def note_counting(self, started: bool | None) -> None:
        """started: None, as before. The C library counts by itself what goes through it."""
        with self._lock:
            self._started = self._started if started is None else started
            self.counting = self._started and _stats_level() > 0

    def use(self) -> None:
        """Opens it, where it is not open."""
        self.settings()

    def settings(self) -> Settings:
        """What it was opened with. Opens it, where it is not open."""
        known = self._settings
        if known is not None:
            return known
        with self._lock:
            if self._settings is None:
                self._take(_open_library())
                self._uses = 1
            assert self._settings is not None
            return self._settings

    def close(self) -> None:
        with self._lock:
            if self._uses == 0:
                raise cuFileError(OpError.CU_FILE_DRIVER_NOT_INITIALIZED, "driver_close: the driver is not open")
            self._uses -= 1
            if self._uses > 0:
                calls.driver_close()
                return
            files = list(self._files.values())
            buffers = list(self._buffers)
            self._files.clear()
            self._buffers.clear()
            self._settings = None
        for file in files:
            attempt(file.close)
        # Another face may keep the library open.
        for base in buffers:
            calls.buf_deregister(base)
        calls.driver_close()
        with self._lock:
            self._forget_ended()

    def add_file(self, descriptor: int) -> int:
        made = attempt(lambda: RegisteredFile(descriptor))
        refusal = self.settings().refusal(made.file)
        if refusal is not None:
            made.close()
            raise cuFileError(Status.CU_FILE_IO_NOT_SUPPORTED, f"handle_register: {refusal}")
        with self._lock:
            twice = any(file.told == descriptor and file.identity == made.identity for file in self._files.values())
            if not twice:
                handle = next(self._handles)
                self._files[handle] = made
                return handle
        made.close()
        raise cuFileError(OpError.CU_FILE_HANDLE_ALREADY_REGISTERED, f"handle_register: descriptor {descriptor}")

    def find_file(self, handle: int) -> RegisteredFile:
        found = self._files.get(handle)
        if found is None:
            raise cuFileError(Status.CU_FILE_INVALID_HANDLE, f"{handle} is no handle of a registered file")
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

    def add_buffer(self, buffer: RegisteredBuffer) -> None:
        with self._lock:
            if buffer.base in self._buffers:
                raise cuFileError(Status.CU_FILE_MEMORY_ALREADY_REGISTERED, f"buf_register: address {buffer.base:#x}")
            check(calls.buf_register(buffer.base, buffer.size, buffer.flags), f"buf_register: address {buffer.base:#x}")
            self._buffers[buffer.base] = buffer

    def remove_buffer(self, base: int) -> None:
        with self._lock:
            if self._buffers.pop(base, None) is None:
                raise cuFileError(Status.CU_FILE_MEMORY_NOT_REGISTERED, f"buf_deregister: address {base:#x}")
        calls.buf_deregister(base)  # waits for GPU-direct transfers

    def check_buffer(self, base: int, offset: int, size: int, is_write: bool) -> None:
        """A base that is registered bounds its range; and no registered buffer that holds the range may forbid the direction."""
        if not self._buffers:
            return
        with self._lock:
            named = self._buffers.get(base)
            holding = [known for known in self._buffers.values() if known.holds(base + offset, size)]
        if named is not None and not named.holds(base + offset, size):
            reason = f"{size} bytes at {offset} of a buffer registered with {named.size}"
            raise cuFileError(OpError.CU_FILE_INVALID_MAPPING_RANGE, reason)
        forbidding = CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY if is_write else CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY
        if any(known.flags == forbidding for known in holding):
            words = ("writes", "READ_ONLY") if is_write else ("reads", "WRITE_ONLY")
            raise cuFileError(Status.CU_FILE_PERMISSION_DENIED, f"the buffer takes no {words[0]}: it is registered {words[1]}")


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
        raise cuFileError(status, f"{what}: {words(status)}")


def _open_library() -> Settings:
    """Counts one use of the C library's driver, which this module's is, and tells what it goes by."""
    status = calls.driver_open()
    if status == OpError.CU_FILE_DRIVER_INVALID_PROPS:
        read_settings()  # says what is wrong with them
    check(status, "driver_open")
    return read_settings()


def _library_handle_of(descriptor: int) -> int:
    handle = ctypes.c_uint64()
    told = ctypes.create_string_buffer(struct.pack("=i4xi12x", FileHandleType.CU_FILE_HANDLE_TYPE_OPAQUE_FD, descriptor), descriptor_struct_bytes)
    check(calls.handle_register(ctypes.addressof(handle), ctypes.addressof(told)), "handle_register")
    return handle.value


def _stats_level() -> int:
    level = ctypes.c_int()
    check(calls.get_stats_level(ctypes.addressof(level)), "get_stats_level")
    return level.value


def _identity(descriptor: int) -> tuple[int, int]:
    told = os.fstat(descriptor)
    return told.st_dev, told.st_ino


_no_room = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # for a further open file
descriptor_struct_bytes = 24  # CUfileDescr_t: int type, 4 unused, union {int fd, void *handle}, pointer
