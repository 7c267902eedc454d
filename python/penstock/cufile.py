"""The documented cufile module of cuda-python, over Penstock: files by descriptor, memory by address.

Pointers, streams and handles are plain integers. A pointer may be to host memory, to memory of a GPU, or to memory of the host device.
As in C, nothing keeps alive what an address points to: it must stay allocated until the call, or what was queued, has ended.
Registering memory is never required. The first call of any kind opens the driver. Thread-safe.

What fails raises cuFileError, whose status is one of cuFile's numbers (docs.nvidia.com/gpudirect-storage, API reference). Programs
written for cuda.bindings.cufile 13.x, of whose functions some take other arguments, import penstock.cuda_bindings.cufile, or run unchanged
on Penstock's C library (`penstock run`).

Batches (batch_io_...), statistics (stats_..., get_stats_...), parameters (get_parameter_..., set_parameter_...), the driver's settings
(driver_set_...), streams (stream_register) and their structs and enumerations are those of penstock.cuda_bindings.cufile, which are imported
when first asked for and need NumPy. Operations of a batch name files by the handles of this module. Statistics count what this module does.

Settings are read when the driver opens, as the C library reads them: what set_parameter_...() said, the CUFILE_ variables, then cufile.json
(CUFILE_ENV_PATH_JSON, else /etc/cufile.json). Obeyed are properties.allow_compat_mode, force_compat_mode and allow_system_memory,
execution.parallel_io and max_io_threads, profile.cufile_stats and those of the log; docs/CUFILE.md says what they do.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import functools
import itertools
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import penstock
from penstock._cufile_codes import CODE_NUMBERS, FeatureFlags, FileHandleType, OpError, Status, cuFileError
from penstock._cufile_library import calls, words
from penstock._cufile_settings import Settings, read_settings
from penstock._file_facts import direct_io_alignment, mode_of, mount_of, nvidia_fs_version
from penstock._forks import forkable_lock
from penstock._lazy import lazily

__all__ = [
    "CU_FILE_BUF_REGISTER_FLAGS_NONE",
    "CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY",
    "CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY",
    "FeatureFlags",
    "FileHandleType",
    "IOVec",
    "OpError",
    "Status",
    "batch_io_submit",
    "buf_deregister",
    "buf_register",
    "cuFileError",
    "driver_close",
    "driver_get_properties",
    "driver_open",
    "get_file_properties",
    "get_version",
    "handle_deregister",
    "handle_register",
    "pread",
    "pwrite",
    "read",
    "read_async",
    "readv",
    "set_file_properties",
    "set_stats_level",
    "stats_start",
    "stats_stop",
    "synchronize",
    "use_count",
    "write",
    "write_async",
    "writev",
]

CU_FILE_BUF_REGISTER_FLAGS_NONE = 0
CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY = 1
CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY = 2

Outcome = TypeVar("Outcome")
_Path = Literal["posix", "staged", "mapped", "direct"]


@dataclasses.dataclass
class IOVec:
    """One piece of a scattered read or write.

    ptr: address. size: bytes. file_offset: added to that of the call. buf_offset: added to ptr.
    """

    ptr: int = 0
    size: int = 0
    file_offset: int = 0
    buf_offset: int = 0


def driver_open() -> None:
    """Opens the driver, as cuFileDriverOpen does. May be nested: each call wants a driver_close(). Never required.

    cuFileError: CU_FILE_DRIVER_INVALID_PROPS, where cufile.json cannot be read or is not one; so does the first use.
    """
    _driver.open()


def driver_close() -> None:
    """Undoes one driver_open(), or the opening that the first use did by itself.

    The last one deregisters every file and buffer, waiting for what runs on them. cuFileError: CU_FILE_DRIVER_NOT_INITIALIZED, not open.
    """
    _driver.close()


def use_count() -> int:
    """How often the driver is open: by this module, penstock.gds, penstock.kvikio and penstock.cuda_bindings together."""
    return calls.use_count()


def driver_get_properties(props: int = 0) -> dict[str, Any]:
    """What the driver goes by. Does not open it.

    props: an address where the same is stored as a CUfileDrvProps_t, 56 bytes; 0: nowhere. Sizes are in KiB.
    nvfs: the version of the kernel module nvidia-fs, as (major, minor), (0, 0) where it is not loaded; poll_thresh_size, max_direct_io_size,
    max_device_cache_size, per_buffer_cache_size, max_device_pinned_mem_size; max_batch_io_size, in operations; max_batch_io_timeout_msecs;
    dstatusflags, dcontrolflags and fflags, as cuFile's bits; features: what there is, as FeatureFlags.
    """
    stored = ctypes.create_string_buffer(_properties_struct.size)
    _check(calls.driver_get_properties(ctypes.addressof(stored)), "driver_get_properties")
    if props:
        ctypes.memmove(props, stored, _properties_struct.size)
    told = dict(zip(_property_names, _properties_struct.unpack(stored.raw)))
    nvfs = (told.pop("major_version"), told.pop("minor_version"))
    return {"nvfs": nvfs, **told, "features": _features(nvfs, told["fflags"])}


def get_version() -> int:
    """The version of cuFile that this stands in for: 1000 x major + 10 x minor."""
    return 1170


def handle_register(descr: int) -> int:
    """Registers an open file and returns its handle.

    descr: a file descriptor, opened with or without O_DIRECT, or the address of a cuFile descriptor struct (CUfileDescr_t) that holds
    one. The descriptor may be closed afterwards: the handle has its own. cuFileError: CU_FILE_INVALID_VALUE (no open descriptor),
    CU_FILE_IO_NOT_SUPPORTED (another kind of struct), CU_FILE_INVALID_FILE_TYPE (not a regular file or block device),
    CU_FILE_INVALID_FILE_OPEN_FLAG (O_APPEND), CU_FILE_HANDLE_ALREADY_REGISTERED, CU_FILE_IO_NOT_SUPPORTED (allow_compat_mode is false,
    and the file cannot be GPU-direct).
    """
    _driver.use()
    return _driver.add_file(_descriptor_in(descr))


def handle_deregister(fh: int) -> None:
    """Forgets a handle, after what still runs on it. The caller's descriptor stays open. cuFileError: CU_FILE_INVALID_HANDLE."""
    _driver.remove_file(fh)


def buf_register(devPtr_base: int, size: int, flags: int) -> None:  # noqa: N803 - the documented name
    """Registers size bytes of memory at devPtr_base, and what may be done with them. Never required.

    Memory of a device is looked up once instead of for each request, and the first GPU-direct transfer of it registers it with NVIDIA's
    library. It must stay allocated until buf_deregister(). Host memory is checked and remembered only.
    flags: CU_FILE_BUF_REGISTER_FLAGS_NONE; _READ_ONLY takes reads of files only, _WRITE_ONLY writes only.
    cuFileError: CU_FILE_INVALID_VALUE (null, no bytes, unknown flags), CU_FILE_MEMORY_ALREADY_REGISTERED (the same base),
    CU_FILE_CUDA_POINTER_RANGE_ERROR (more than was allocated on the device), CU_FILE_CUDA_POINTER_INVALID (nothing was),
    CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED (host memory, and allow_system_memory is false).
    """
    _driver.use()
    if not 0 < devPtr_base < _addresses or not 0 < size < _most:
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"buf_register: {size} bytes at {devPtr_base:#x}")
    if flags not in _known_buffer_flags:
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"buf_register: flags {flags:#x}; known are 0, 1 and 2")
    _check_allocation(devPtr_base, size)
    _refuse_host_memory(devPtr_base)
    _driver.add_buffer(_Buffer(devPtr_base, size, flags))


def buf_deregister(devPtr_base: int) -> None:  # noqa: N803
    """Forgets a registered buffer. cuFileError: CU_FILE_MEMORY_NOT_REGISTERED; CU_FILE_INVALID_VALUE for null."""
    if devPtr_base <= 0:
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"buf_deregister: address {devPtr_base:#x}")
    _driver.remove_buffer(devPtr_base)


def read(fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int) -> None:
    """Reads size bytes at file_offset into memory at buf_ptr_base + buf_ptr_offset. Blocks.

    Short at end of file only, which is no error: pread() tells the count. cuFileError: CU_FILE_INVALID_HANDLE, CU_FILE_INVALID_VALUE
    (null or a negative number), CU_FILE_INVALID_FILE_OPEN_FLAG (open for writing only), CU_FILE_PERMISSION_DENIED (buffer registered
    for writes only), CU_FILE_INVALID_MAPPING_RANGE (past the registered buffer), CU_FILE_CUDA_POINTER_INVALID (past what is allocated,
    or not memory), CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED (host memory, and allow_system_memory is false), CU_FILE_IO_ERROR. Where it had moved some bytes, CU_FILE_OP_PARTIAL_COMPLETION, with their number in bytes_done.
    """
    pread(fh, buf_ptr_base, size, file_offset, buf_ptr_offset)


def write(fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int) -> None:
    """Writes size bytes of memory at buf_ptr_base + buf_ptr_offset at file_offset. Blocks. Errors as for read(), the other way round."""
    pwrite(fh, buf_ptr_base, size, file_offset, buf_ptr_offset)


def pread(fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int) -> int:
    """As read(), and returns the bytes really read: fewer than size at end of file, 0 past it."""
    used = _driver.find_file(fh)
    memory = _memory(used, buf_ptr_base, size, file_offset, buf_ptr_offset, False)

    def move() -> int:
        return used.file.read_into(memory, file_offset, size, path=_path(used, memory), prefer=used.priority)

    return _counted(move, used, memory, False) if _driver.counting else _attempt(move, used)


def pwrite(fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int) -> int:
    """As write(), and returns the bytes written: size."""
    used = _driver.find_file(fh)
    memory = _memory(used, buf_ptr_base, size, file_offset, buf_ptr_offset, True)

    def move() -> int:
        return used.file.write_from(memory, file_offset, size, path=_path(used, memory), prefer=used.priority)

    return _counted(move, used, memory, True) if _driver.counting else _attempt(move, used)


def read_async(
    fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int, bytes_read_ptr: int, stream: int
) -> None:
    """Queues a read on a stream of the device that owns the memory: after its earlier work, before its later work. Does not block.

    bytes_read_ptr: address, in host or device memory, of 8 bytes that are set before later work of the stream starts: the bytes read,
    or -1 for a failure. 0: not wanted. Buffer and result must stay allocated until then.
    stream: a CUstream; 0 is the default stream. cuFileError, when nothing was queued: as for read(), and
    CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED for host memory, which has no stream; CU_FILE_ASYNC_NOT_SUPPORTED where
    set_file_properties() names another path than "staged", which is that of streams, or the settings allow none.
    """
    used = _driver.find_file(fh)
    memory = _memory(used, buf_ptr_base, size, file_offset, buf_ptr_offset, False)
    _queue(used, used.file.read_on_stream, memory, file_offset, bytes_read_ptr, stream)


def write_async(
    fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int, bytes_written_ptr: int, stream: int
) -> None:
    """Queues a write on a stream, as read_async() does a read."""
    used = _driver.find_file(fh)
    memory = _memory(used, buf_ptr_base, size, file_offset, buf_ptr_offset, True)
    _queue(used, used.file.write_on_stream, memory, file_offset, bytes_written_ptr, stream)


def synchronize(stream: int = 0) -> None:
    """Waits for all that read_async() and write_async() queued on a stream. Raises nothing for what failed: the result pointers tell.

    Not in cuda-python. For streams of a GPU CUDA's own call does it too; the host device has no other.
    """
    _driver.wait_for(stream)


def readv(fh: int, iov: IOVec | Sequence[IOVec], iovcnt: int, file_offset: int, bytes_read_ptr: int) -> None:
    """Reads many pieces, scattered in the file and in memory, as one batch. Blocks.

    iov: the pieces, of which the first iovcnt are read: each size bytes at file_offset + its own file_offset into ptr + buf_offset.
    Pieces must not overlap in memory. bytes_read_ptr: address, in host or device memory, where the total is stored in 8 bytes; 0: not
    wanted. Pieces at end of file are short, which is no error. cuFileError: CU_FILE_INVALID_VALUE (iovcnt larger than iov), else as for
    read(), of the first piece that failed, whose bytes_done it tells; then nothing is stored.
    """
    used = _driver.find_file(fh)
    _scatter(used, _pieces(used, iov, iovcnt, file_offset, False), bytes_read_ptr, False)


def writev(fh: int, iov: IOVec | Sequence[IOVec], iovcnt: int, file_offset: int, bytes_written_ptr: int) -> None:
    """Writes many pieces, as readv() reads them. Pieces must not overlap in the file."""
    used = _driver.find_file(fh)
    _scatter(used, _pieces(used, iov, iovcnt, file_offset, True), bytes_written_ptr, True)


def batch_io_submit(batch_idp: int, nr: int, iocbp: Any, flags: int) -> None:
    """Starts nr operations of a batch from batch_io_set_up(), and does not wait for them: batch_io_get_status() does.

    iocbp: IOParams, or the address of the first; fh is a handle of this module. Memory must stay until the operation's event.
    cuFileError, when nothing was started: CU_FILE_INVALID_HANDLE; CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR (no such batch, no room in it, no
    operations); CU_FILE_INVALID_VALUE (flags other than 0). An operation whose memory or range is wrong is started, and fails by its event.
    """
    if not 0 < nr <= _most_operations:
        raise cuFileError(OpError.CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR, f"batch_io_submit: {nr} operations")
    operations = ctypes.create_string_buffer(_operations_at(getattr(iocbp, "ptr", iocbp), nr), nr * _operation_bytes)
    _check(calls.batch_io_submit(batch_idp, nr, ctypes.addressof(operations), flags), "batch_io_submit")


def set_stats_level(level: int) -> None:
    """Sets what is counted: 0 nothing, 1 operations, 2 their sizes too, 3 each GPU's too. cuFileError: CU_FILE_INVALID_VALUE."""
    _check(calls.set_stats_level(level), f"set_stats_level: {level}")
    _driver.note_counting(None)


def stats_start() -> None:
    """Begins to count, where the level is 1 or more. Counted are reads and writes that block, batches, and buffers."""
    _check(calls.stats_start(), "stats_start")
    _driver.note_counting(True)


def stats_stop() -> None:
    """Stops counting. The counters stay."""
    _check(calls.stats_stop(), "stats_stop")
    _driver.note_counting(False)


def get_file_properties(fh: int) -> dict[str, Any]:
    """What is known of a registered file. cuFileError: CU_FILE_INVALID_HANDLE.

    name; size (bytes); file_system and mount (as /proc/self/mountinfo names them); direct_io_alignment: what O_DIRECT demands of memory
    and of offset, in bytes, (0, 0) where there is none; residency: bytes in the page cache; read_paths and write_paths: how the whole
    file would move to and from device memory (host memory, with path "posix"), as (offset, length, path, reason), for what the file is
    open for; remarks: what keeps it from a faster path; nvidia_fs: the version of the kernel module nvidia-fs, "" where it is not loaded;
    gpu_direct: whether this file may be GPU-direct. And what set_file_properties() can set: path, direct_io, priority.
    """
    return _driver.find_file(fh).properties()


def set_file_properties(fh: int, props: Mapping[str, Any]) -> None:
    """Changes how a file is used from now on; all values are checked before the first is set.

    path: "automatic", or the one path that is to be taken: "posix", "staged", "mapped" or "direct"; what it cannot serve fails.
    direct_io: True: large aligned writes bypass the page cache. priority: "automatic", "speed", or "cpu" for the fewest CPU seconds per
    byte. All three hold for read(), write(), readv(), writev() and their relatives; streams, whose path is "staged", refuse any other, and
    have no priority. cuFileError: CU_FILE_INVALID_VALUE (unknown key, or value out of range, which it names), CU_FILE_IO_NOT_SUPPORTED (direct_io
    where the file system has none), CU_FILE_INVALID_HANDLE.
    """
    used = _driver.find_file(fh)
    for key, value in props.items():
        if key not in _settable:
            known = ", ".join(sorted(_settable))
            raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"set_file_properties: unknown key {key!r}; known are {known}")
        if value not in _settable[key] or isinstance(value, bool) != (key == "direct_io"):
            known = ", ".join(repr(word) for word in _settable[key])
            raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"set_file_properties: {key} is one of {known}, not {value!r}")
    used.change(props)


class _File:
    """A registered file. Owns a duplicate of the caller's descriptor, so that closing that one redirects nothing."""

    def __init__(self, descriptor: int) -> None:
        self.told = descriptor
        self.path: _Path | None = None
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
        size = _attempt(self.file.size, self)
        file_system, mount = _attempt(lambda: mount_of(self._descriptor), self)
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
            "gpu_direct": _attempt(self.may_be_direct, self),
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
class _Buffer:
    base: int
    size: int
    flags: int

    def holds(self, address: int, size: int) -> bool:
        return self.base <= address and address + size <= self.base + self.size


class _Driver:
    """What is registered in this process, and how often the driver was opened."""

    def __init__(self) -> None:
        self._lock = forkable_lock()
        self._uses = 0
        self._settings: Settings | None = None  # while it is open
        self._files: dict[int, _File] = {}
        self._buffers: dict[int, _Buffer] = {}
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
            _attempt(file.close)
        # Another face may keep the library open.
        for base in buffers:
            calls.buf_deregister(base)
        calls.driver_close()
        with self._lock:
            self._forget_ended()

    def add_file(self, descriptor: int) -> int:
        made = _attempt(lambda: _File(descriptor))
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

    def find_file(self, handle: int) -> _File:
        found = self._files.get(handle)
        if found is None:
            raise cuFileError(Status.CU_FILE_INVALID_HANDLE, f"{handle} is no handle of a registered file")
        return found

    def remove_file(self, handle: int) -> None:
        with self._lock:
            found = self.find_file(handle)
            del self._files[handle]
        _attempt(found.close)
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

    def add_buffer(self, buffer: _Buffer) -> None:
        with self._lock:
            if buffer.base in self._buffers:
                raise cuFileError(Status.CU_FILE_MEMORY_ALREADY_REGISTERED, f"buf_register: address {buffer.base:#x}")
            _check(calls.buf_register(buffer.base, buffer.size, buffer.flags), f"buf_register: address {buffer.base:#x}")
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


_driver = _Driver()


def _open_library() -> Settings:
    """Counts one use of the C library's driver, which this module's is, and tells what it goes by."""
    status = calls.driver_open()
    if status == OpError.CU_FILE_DRIVER_INVALID_PROPS:
        read_settings()  # says what is wrong with them
    _check(status, "driver_open")
    return read_settings()


def _library_handle_of(descriptor: int) -> int:
    handle = ctypes.c_uint64()
    told = ctypes.create_string_buffer(struct.pack("=i4xi12x", FileHandleType.CU_FILE_HANDLE_TYPE_OPAQUE_FD, descriptor), _struct_bytes)
    _check(calls.handle_register(ctypes.addressof(handle), ctypes.addressof(told)), "handle_register")
    return handle.value


def _operations_at(address: int, count: int) -> bytes:
    """A copy of operations in which the C library's handles stand for those of this module."""
    found = bytearray(_read_own_memory(address, count * _operation_bytes, "batch_io_submit: no operations"))
    for at in range(_handle_in_operation, len(found), _operation_bytes):
        (handle,) = struct.unpack_from("=q", found, at)
        struct.pack_into("=Q", found, at, _driver.find_file(handle).library_handle())
    return bytes(found)


def _counted(move: Callable[[], int], used: _File, memory: penstock.Pointer, is_write: bool) -> int:
    """As _attempt(), and for the statistics. memory: of a vector, its first piece, whose device counts for all."""
    began = time.perf_counter_ns()
    bytes_done, failed = 0, True
    try:
        bytes_done = _attempt(move, used)
        failed = False
    except cuFileError as error:
        bytes_done = error.bytes_done
        raise
    finally:
        penstock._native._cufile_count(memory.address, is_write, bytes_done, failed, time.perf_counter_ns() - began)
    return bytes_done


def _check(status: int, what: str) -> None:
    if status != 0:
        raise cuFileError(status, f"{what}: {words(status)}")


def _stats_level() -> int:
    level = ctypes.c_int()
    _check(calls.get_stats_level(ctypes.addressof(level)), "get_stats_level")
    return level.value


def _features(nvfs: tuple[int, int], flags: int) -> FeatureFlags:
    found = FeatureFlags.CU_FILE_FEATURE_VECTOR_IO_SUPPORTED
    if nvfs != (0, 0):
        found |= FeatureFlags.CU_FILE_FEATURE_GDS_SUPPORTED
    if flags & _batch_bit:
        found |= FeatureFlags.CU_FILE_FEATURE_BATCH_IO_SUPPORTED
    if flags & _streams_bit:
        found |= FeatureFlags.CU_FILE_FEATURE_ASYNC_IO_SUPPORTED
    return found


_batch_bit, _streams_bit = 1 << 1, 1 << 2  # of fflags
_most_operations = 256  # of a batch
_operation_bytes, _handle_in_operation = 64, 40  # CUfileIOParams_t, and where its fh is
_properties_struct = struct.Struct("=IIQQIIIIIIII")  # CUfileDrvProps_t
_property_names = (
    *("major_version", "minor_version", "poll_thresh_size", "max_direct_io_size", "dstatusflags", "dcontrolflags", "fflags"),
    *("max_device_cache_size", "per_buffer_cache_size", "max_device_pinned_mem_size", "max_batch_io_size", "max_batch_io_timeout_msecs"),
)

# Names that are the same in penstock.cuda_bindings.cufile. Imported when asked for: it needs NumPy.
_of_bindings = (
    *("batch_io_cancel", "batch_io_destroy", "batch_io_get_status", "batch_io_set_up", "driver_set_max_cache_size"),
    *("driver_set_max_direct_io_size", "driver_set_max_pinned_mem_size", "driver_set_poll_mode", "get_bar_size_in_kb", "get_parameter_bool"),
    *("get_parameter_min_max_value", "get_parameter_posix_pool_slab_array", "get_parameter_size_t", "get_parameter_string", "get_stats_l1"),
    *("get_stats_l2", "get_stats_l3", "get_stats_level", "op_status_error", "set_parameter_bool", "set_parameter_posix_pool_slab_array"),
    *("set_parameter_size_t", "set_parameter_string", "stats_reset", "stream_deregister", "stream_register"),
    *("ArrayConfigParameter", "BatchMode", "BoolConfigParameter", "Descr", "DriverControlFlags", "DriverStatusFlags", "IOEvents", "IOParams"),
    *("OpCounter", "Opcode", "P2PFlags", "PerGpuStats", "SizeTConfigParameter", "StatsLevel1", "StatsLevel2", "StatsLevel3"),
    *("StringConfigParameter", "descr_dtype", "io_events_dtype", "io_params_dtype", "op_counter_dtype", "per_gpu_stats_dtype"),
    *("stats_level1_dtype", "stats_level2_dtype", "stats_level3_dtype"),
)
__getattr__ = lazily(__name__, "penstock.cuda_bindings", {"cufile": _of_bindings})


def __dir__() -> list[str]:
    return sorted({*globals(), *_of_bindings})


_known_buffer_flags = (
    CU_FILE_BUF_REGISTER_FLAGS_NONE,
    CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY,
    CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY,
)
_settable: dict[str, tuple[Any, ...]] = {
    "path": ("automatic", "posix", "staged", "mapped", "direct"),
    "direct_io": (False, True),
    "priority": ("automatic", "speed", "cpu"),
}


def _attempt(call: Callable[[], Outcome], used: _File | None = None) -> Outcome:
    try:
        return call()
    except penstock.Error as error:
        place = f"{used.name}: " if used is not None else ""
        number = CODE_NUMBERS.get(error.code, OpError.CU_FILE_INTERNAL_ERROR)
        raise cuFileError(number, f"{place}{error}", error.bytes_done) from error
    except OSError as error:
        number = CODE_NUMBERS["out_of_memory" if error.errno in _no_room else "io"]
        raise cuFileError(number, str(error)) from error


_no_room = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # for a further open file

_most = 1 << 63  # sizes and offsets are 64-bit and signed
_addresses = 1 << 64

_struct_bytes = 24  # CUfileDescr_t: int type, 4 unused, union {int fd, void *handle}, pointer
_lowest_address = 1 << 16  # of memory: Linux maps nothing below (vm.mmap_min_addr), and an address is no open descriptor


def _descriptor_in(descr: int) -> int:
    if _is_descriptor(descr):
        return _plain(descr)
    if descr < _lowest_address:
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"handle_register: descriptor {descr} is not open")
    kind, descriptor = struct.unpack_from("=i4xi", _attempt(lambda: _read_own_memory(descr, _struct_bytes, "handle_register: neither a descriptor nor an address")))
    if kind != FileHandleType.CU_FILE_HANDLE_TYPE_OPAQUE_FD:
        raise cuFileError(Status.CU_FILE_IO_NOT_SUPPORTED, f"handle_register: a descriptor struct of type {kind}")
    if not _is_descriptor(descriptor):
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"handle_register: descriptor {descriptor} is not open")
    return _plain(descriptor)


def _is_descriptor(number: int) -> bool:
    try:
        fcntl.fcntl(number, fcntl.F_GETFD)
    except (OSError, OverflowError, ValueError):
        return False
    return True


def _plain(descriptor: int) -> int:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if flags & os.O_APPEND and flags & os.O_ACCMODE != os.O_RDONLY:
        reason = f"handle_register: descriptor {descriptor} is O_APPEND, which ignores offsets"
        raise cuFileError(Status.CU_FILE_INVALID_FILE_OPEN_FLAG, reason)
    return descriptor


def _read_own_memory(address: int, size: int, refusal: str) -> bytes:
    """As the kernel reads it: an address that is none is an error instead of a crash."""
    try:
        descriptor = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return ctypes.string_at(address, size)  # no /proc
    try:
        content = os.pread(descriptor, size, address)
    except (OSError, OverflowError):
        content = b""
    finally:
        os.close(descriptor)
    if len(content) < size:
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"{refusal}: {address:#x}")
    return content


def _identity(descriptor: int) -> tuple[int, int]:
    told = os.fstat(descriptor)
    return told.st_dev, told.st_ino


def _check_allocation(base: int, size: int) -> None:
    """Device memory has to be allocated. Host memory is taken as it is, as cuFile does: whether it may be touched shows when it is."""
    facts = _attempt(lambda: penstock.describe(base))
    if facts["kind"] != "device" or facts["base"] is None:
        return
    end = facts["base"] + facts["nbytes"]
    if base + size > end:
        reason = f"buf_register: {size} bytes at {base:#x}, of memory that ends at {end:#x}"
        raise cuFileError(OpError.CU_FILE_CUDA_POINTER_RANGE_ERROR, reason)


def _refuse_host_memory(address: int) -> None:
    if _attempt(lambda: _driver.settings().refuses(address)):
        reason = f"{address:#x} is host memory, and allow_system_memory is false"
        raise cuFileError(Status.CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED, reason)


def _memory(used: _File, base: int, size: int, file_offset: int, offset: int, is_write: bool) -> penstock.Pointer:
    """The memory of a request, after every check that needs no engine."""
    for name, value in (("size", size), ("file_offset", file_offset), ("buffer offset", offset)):
        if not 0 <= value < _most:
            raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"{name} is {value}")
    if not 0 < base < _addresses - offset:
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"address {base:#x}")
    if not (used.writable if is_write else used.readable):
        reason = f"{used.name} is not open for {'writing' if is_write else 'reading'}"
        raise cuFileError(Status.CU_FILE_INVALID_FILE_OPEN_FLAG, reason)
    _refuse_host_memory(base)
    _driver.check_buffer(base, offset, size, is_write)
    return penstock.Pointer(base + offset, size)


def _pieces(
    used: _File, iov: IOVec | Sequence[IOVec], count: int, file_offset: int, is_write: bool
) -> list[tuple[penstock.Pointer, int]]:
    given = [iov] if isinstance(iov, IOVec) else list(iov)
    if not 0 <= count <= len(given):
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"iovcnt is {count}, of {len(given)} pieces")
    if not 0 <= file_offset < _most:
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"file_offset is {file_offset}")
    pieces = []
    for index, piece in enumerate(given[:count]):
        if piece.size == 0:
            continue
        at = file_offset + piece.file_offset
        try:
            pieces.append((_memory(used, piece.ptr, piece.size, at, piece.buf_offset, is_write), at))
        except cuFileError as error:
            raise cuFileError(error.status, f"piece {index}: {error.message}") from None
    return pieces


def _scatter(used: _File, pieces: list[tuple[penstock.Pointer, int]], result_ptr: int, is_write: bool) -> None:
    call = used.file.write_many if is_write else used.file.read_many

    def move() -> int:
        return sum(sum(call(group, path=path, prefer=used.priority)) for path, group in _by_path(used, pieces).items())

    counting = _driver.counting and len(pieces) > 0
    total = _counted(move, used, pieces[0][0], is_write) if counting else _attempt(move, used)
    if result_ptr:
        _store(result_ptr, total)


def _path(used: _File, memory: penstock.Pointer) -> _Path | None:
    """The path that a request insists on: the file's own, or else what the settings ask for."""
    return used.path or _driver.settings().path_for(memory.address)


def _by_path(
    used: _File, pieces: list[tuple[penstock.Pointer, int]]
) -> dict[_Path | None, list[tuple[penstock.Pointer, int]]]:
    """One batch for each path; nearly always one."""
    groups: dict[_Path | None, list[tuple[penstock.Pointer, int]]] = {}
    for piece in pieces:
        groups.setdefault(_attempt(functools.partial(_path, used, piece[0]), used), []).append(piece)
    return groups


def _queue(
    used: _File,
    call: Callable[..., penstock.StreamResult],
    memory: penstock.Pointer,
    file_offset: int,
    result_ptr: int,
    stream: int,
) -> None:
    if _attempt(lambda: penstock.describe(memory))["kind"] != "device":
        raise cuFileError(Status.CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED, "host memory has no stream")
    if used.path not in (None, "staged"):
        reason = f"{used.name} is set to the path {used.path}, and streams have none but staged"
        raise cuFileError(OpError.CU_FILE_ASYNC_NOT_SUPPORTED, reason)
    if not _driver.settings().streams:
        reason = "execution.parallel_io is false, or execution.max_io_threads is 0"
        raise cuFileError(OpError.CU_FILE_ASYNC_NOT_SUPPORTED, reason)
    _driver.remember(stream, _attempt(lambda: call(memory, stream, file_offset, result=result_ptr), used))


def _store(result_ptr: int, count: int) -> None:
    _attempt(lambda: penstock.copy(penstock.Pointer(result_ptr, 8), struct.pack("=q", count)))
