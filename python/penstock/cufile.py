"""The cufile module in cuda-python's documentation, implemented on Penstock: files by descriptor, memory by address.

Pointers, streams and handles are integers. A pointer may point to host memory, GPU memory, or memory of the host device. As in C, a pointer does not
keep memory alive: it must stay allocated until the call, or the queued operation, is complete. Registering memory is never required. The first call
that needs the driver opens it. Thread-safe.

A call that fails raises cuFileError, whose status is one of cuFile's error codes (docs.nvidia.com/gpudirect-storage, API reference). Some functions
in cuda.bindings.cufile 13.x take different arguments: programs written for that module can import penstock.cuda_bindings.cufile, or run unchanged
under `penstock run`.

Batches (batch_io_...), statistics (stats_..., get_stats_...), parameters (get_parameter_..., set_parameter_...), the driver's settings
(driver_set_...), streams (stream_register), and their structs and enumerations come from penstock.cuda_bindings.cufile. They are imported on first
use and need NumPy. Both modules have the same file handles.

Settings are read when the driver opens: first set_parameter_...(), then the CUFILE_ variables, then cufile.json (CUFILE_ENV_PATH_JSON, else
/etc/cufile.json). This module obeys properties.allow_compat_mode, force_compat_mode and allow_system_memory, execution.parallel_io and
max_io_threads, profile.cufile_stats, the deny lists, and the log settings. The page "cufile.json and variables" describes them.
"""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import functools
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import penstock
from penstock import _native
from penstock._core.lazy import lazily
from penstock._cufile.codes import FeatureFlags, FileHandleType, OpError, Status, cuFileError
from penstock._cufile.driver import (
    CU_FILE_BUF_REGISTER_FLAGS_NONE,
    CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY,
    CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY,
    Path,
    RegisteredFile,
    attempt,
    check,
    counted,
    descriptor_struct_bytes,
)
from penstock._cufile.driver import driver as _driver
from penstock._cufile.library import calls, is_reachable, lowest_address

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


@dataclasses.dataclass
class IOVec:
    """A piece of a scattered read or write.

    - `ptr`: an address.
    - `size`: in bytes.
    - `file_offset`: in bytes, added to the call's file_offset.
    - `buf_offset`: in bytes, added to ptr.
    """

    ptr: int = 0
    size: int = 0
    file_offset: int = 0
    buf_offset: int = 0


def driver_open() -> None:
    """Opens the driver, as cuFileDriverOpen does. Never required. Calls may be nested: each needs a driver_close().

    Raises cuFileError with CU_FILE_DRIVER_INVALID_PROPS if cufile.json is unreadable or invalid, as does the first use of the driver.
    """
    _driver.open()


def driver_close() -> None:
    """Undoes one driver_open(), or the automatic opening on first use.

    When the use count reaches zero, waits for all operations and deregisters every file and buffer. Raises cuFileError with CU_FILE_DRIVER_NOT_INITIALIZED if
    the driver is not open.
    """
    check(_driver.close(), "driver_close")


def use_count() -> int:
    """Returns the driver's use count, which includes uses by penstock.gds, penstock.kvikio and penstock.cuda_bindings."""
    return calls.use_count()


def driver_get_properties(props: int = 0) -> dict[str, Any]:
    """Returns the driver's properties as a dict. Opens the driver if it is not open.

    - `props`: an address to which the properties are also written as a CUfileDrvProps_t (56 bytes); 0 writes nothing.

    The dict has these entries; sizes are in KiB:

    - `nvfs`: the version of the nvidia-fs kernel module as (major, minor), or (0, 0) if it is not loaded.
    - `poll_thresh_size`, `max_direct_io_size`, `max_device_cache_size`, `per_buffer_cache_size`, `max_device_pinned_mem_size`.
    - `max_batch_io_size`, in operations; `max_batch_io_timeout_msecs`.
    - `dstatusflags`, `dcontrolflags`, `fflags`: cuFile's bits. `features`: the available features, as FeatureFlags.
    """
    stored = ctypes.create_string_buffer(_properties_struct.size)
    check(calls.driver_get_properties(ctypes.addressof(stored)), "driver_get_properties")
    if props:
        _require_memory(props, _properties_struct.size, "driver_get_properties")
        ctypes.memmove(props, stored, _properties_struct.size)
    told = dict(zip(_property_names, _properties_struct.unpack(stored.raw)))
    nvfs = (told.pop("major_version"), told.pop("minor_version"))
    return {"nvfs": nvfs, **told, "features": _features(nvfs, told["fflags"])}


def get_version() -> int:
    """Returns the version of cuFile that this module replaces: 1000 x major + 10 x minor."""
    return 1170


def handle_register(descr: int) -> int:
    """Registers an open file and returns its handle.

    - `descr`: a file descriptor, opened with or without O_DIRECT, or the address of a CUfileDescr_t that contains one. You may close the descriptor
      afterwards: the handle has its own duplicate.

    Raises cuFileError with:

    - CU_FILE_INVALID_VALUE: not an open descriptor.
    - CU_FILE_IO_NOT_SUPPORTED: an unsupported struct type, or allow_compat_mode is false and the file cannot use GPU-direct I/O.
    - CU_FILE_INVALID_FILE_TYPE: not a regular file or block device.
    - CU_FILE_INVALID_FILE_OPEN_FLAG: O_APPEND.
    - CU_FILE_HANDLE_ALREADY_REGISTERED.
    """
    return counted("handle_register", lambda: _driver.add_file(_descriptor_in(descr)))


def handle_deregister(fh: int) -> None:
    """Releases a handle once its operations are complete. Your descriptor stays open. Raises cuFileError with CU_FILE_INVALID_HANDLE."""
    counted("handle_deregister", lambda: _driver.remove_file(fh))


def buf_register(devPtr_base: int, size: int, flags: int) -> None:  # noqa: N803 - the documented name
    """Registers size bytes of memory at devPtr_base for the directions in flags. Never required.

    Device memory is looked up once instead of for each request, and the first GPU-direct transfer registers it with NVIDIA's library. It must stay
    allocated until buf_deregister(). Host memory is only checked and recorded.

    - `flags`: CU_FILE_BUF_REGISTER_FLAGS_NONE, _READ_ONLY (only file reads) or _WRITE_ONLY (only file writes).

    Raises cuFileError with:

    - CU_FILE_INVALID_VALUE: null, zero size, or unknown flags.
    - CU_FILE_MEMORY_ALREADY_REGISTERED: memory with the same base is registered.
    - CU_FILE_CUDA_POINTER_RANGE_ERROR: the range exceeds the device allocation.
    - CU_FILE_CUDA_POINTER_INVALID: no memory is allocated there.
    - CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED: host memory, and allow_system_memory is false.
    """
    counted("buf_register", lambda: _register_buffer(devPtr_base, size, flags))


def buf_deregister(devPtr_base: int) -> None:  # noqa: N803
    """Releases a registered buffer. Raises cuFileError with CU_FILE_MEMORY_NOT_REGISTERED, or CU_FILE_INVALID_VALUE for null."""
    if not 0 < devPtr_base < _addresses:
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"buf_deregister: address {devPtr_base:#x}")
    _driver.remove_buffer(devPtr_base)


def read(fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int) -> None:
    """Reads size bytes at file_offset into memory at buf_ptr_base + buf_ptr_offset. Blocks.

    At end of file it reads fewer bytes without an error; pread() returns the count. Raises cuFileError with:

    - CU_FILE_INVALID_HANDLE.
    - CU_FILE_INVALID_VALUE: null or a negative number.
    - CU_FILE_INVALID_FILE_OPEN_FLAG: the file is open for writing only.
    - CU_FILE_PERMISSION_DENIED: the buffer is registered for writes only.
    - CU_FILE_INVALID_MAPPING_RANGE: the range exceeds the registered buffer.
    - CU_FILE_CUDA_POINTER_INVALID: the range extends past its allocation, or is not valid memory.
    - CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED: host memory, and allow_system_memory is false.
    - CU_FILE_IO_ERROR, or CU_FILE_OP_PARTIAL_COMPLETION if some bytes were transferred; bytes_done is their number.
    """
    pread(fh, buf_ptr_base, size, file_offset, buf_ptr_offset)


def write(fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int) -> None:
    """Writes size bytes of memory at buf_ptr_base + buf_ptr_offset to the file at file_offset. Blocks. Errors as for read(), with the directions
    reversed.
    """
    pwrite(fh, buf_ptr_base, size, file_offset, buf_ptr_offset)


def pread(fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int) -> int:
    """Like read(), but returns the number of bytes read: fewer than size at end of file, 0 beyond it."""
    used = _driver.find_file(fh)

    def move() -> int:
        memory = _memory(used, buf_ptr_base, size, file_offset, buf_ptr_offset, False)
        return used.file.read_into(memory, file_offset, size, path=_path(used, memory), prefer=used.priority)

    return _moved(move, used, buf_ptr_base, is_write=False)


def pwrite(fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int) -> int:
    """Like write(), but returns the number of bytes written, which is size."""
    used = _driver.find_file(fh)

    def move() -> int:
        memory = _memory(used, buf_ptr_base, size, file_offset, buf_ptr_offset, True)
        return used.file.write_from(memory, file_offset, size, path=_path(used, memory), prefer=used.priority)

    return _moved(move, used, buf_ptr_base, is_write=True)


def read_async(
    fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int, bytes_read_ptr: int, stream: int
) -> None:
    """Queues a read, in stream order, on a stream of the device that owns the memory. Does not block.

    - `bytes_read_ptr`: the address, in host or device memory, of 8 bytes that are set before later work on the stream starts: to the number of bytes
      read, or to -1 if the read failed. 0 writes nothing. The buffer and the 8 bytes must stay allocated until then.
    - `stream`: a CUstream; 0 is the default stream.

    Raises cuFileError if nothing was queued, with the codes of read() and:

    - CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED: host memory, which does not belong to a stream.
    - CU_FILE_ASYNC_NOT_SUPPORTED: the settings disable stream-ordered calls, or set_file_properties() selected a path other than "staged".
    """
    used = _driver.find_file(fh)
    memory = _memory(used, buf_ptr_base, size, file_offset, buf_ptr_offset, False)
    _queue(used, used.file.read_on_stream, memory, file_offset, bytes_read_ptr, stream)


def write_async(
    fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int, bytes_written_ptr: int, stream: int
) -> None:
    """Queues a write on a stream, as read_async() queues a read."""
    used = _driver.find_file(fh)
    memory = _memory(used, buf_ptr_base, size, file_offset, buf_ptr_offset, True)
    _queue(used, used.file.write_on_stream, memory, file_offset, bytes_written_ptr, stream)


def synchronize(stream: int = 0) -> None:
    """Waits for everything that read_async() and write_async() queued on a stream. Raises nothing for failed operations: see their result pointers.

    cuda-python lacks this function. For GPU streams, you may call CUDA's own function; for the host device, there is no alternative.
    """
    _driver.wait_for(stream)


def readv(fh: int, iov: IOVec | Sequence[IOVec], iovcnt: int, file_offset: int, bytes_read_ptr: int) -> None:
    """Reads many pieces, scattered across the file and memory, as one batch. Blocks.

    - `iov`: the pieces. The first iovcnt pieces are read: for each, size bytes at file_offset + its own file_offset, into ptr + buf_offset. They must
      not overlap in memory.
    - `bytes_read_ptr`: the address, in host or device memory, of 8 bytes for the total; 0 writes nothing.

    A piece at end of file may be short without an error. Raises cuFileError with CU_FILE_INVALID_VALUE if iovcnt exceeds the length of iov; otherwise
    as read() does for the first piece that failed, with its bytes_done, and without writing the total.
    """
    used = _driver.find_file(fh)
    _scatter(used, iov, iovcnt, file_offset, bytes_read_ptr, False)


def writev(fh: int, iov: IOVec | Sequence[IOVec], iovcnt: int, file_offset: int, bytes_written_ptr: int) -> None:
    """Writes many pieces, like readv(). Pieces must not overlap in the file."""
    used = _driver.find_file(fh)
    _scatter(used, iov, iovcnt, file_offset, bytes_written_ptr, True)


def batch_io_submit(batch_idp: int, nr: int, iocbp: Any, flags: int) -> None:
    """Starts nr operations of a batch from batch_io_set_up() without waiting for them; batch_io_get_status() waits.

    - `iocbp`: IOParams, or the address of the first; fh is a file's handle. Memory must stay allocated until the operation's event.

    An operation with invalid memory, range or direction is started, and its event reports the failure. If no operation was started, raises
    cuFileError with:

    - CU_FILE_INVALID_HANDLE.
    - CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR: no such batch, too many operations for it, or no operations.
    - CU_FILE_INVALID_VALUE: flags other than 0.
    - CU_FILE_IO_NOT_SUPPORTED: set_file_properties() selected a path for a file.
    """
    if not 0 < nr <= _most_operations:
        raise cuFileError(OpError.CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR, f"batch_io_submit: {nr} operations")
    operations = ctypes.create_string_buffer(_operations_at(getattr(iocbp, "ptr", iocbp), nr), nr * _operation_bytes)
    check(calls.batch_io_submit(batch_idp, nr, ctypes.addressof(operations), flags), "batch_io_submit")


def set_stats_level(level: int) -> None:
    """Sets the level of the statistics: 0 nothing, 1 operations, 2 also their sizes, 3 also per GPU. Raises cuFileError with CU_FILE_INVALID_VALUE.
    """
    check(calls.set_stats_level(level), f"set_stats_level: {level}")


def stats_start() -> None:
    """Starts counting if the level is 1 or higher: blocking reads and writes, batches, and buffers."""
    check(calls.stats_start(), "stats_start")


def stats_stop() -> None:
    """Stops counting. The counters keep their values."""
    check(calls.stats_stop(), "stats_stop")


def get_file_properties(fh: int) -> dict[str, Any]:
    """Returns the properties of a registered file as a dict. Raises cuFileError with CU_FILE_INVALID_HANDLE.

    - `name`; `size` in bytes; `file_system` and `mount`, as in /proc/self/mountinfo.
    - `direct_io_alignment`: the alignment in bytes that O_DIRECT requires of memory and of offsets; (0, 0) if O_DIRECT is not supported.
    - `residency`: the bytes in the page cache.
    - `read_paths`, `write_paths`: how the whole file would be transferred to and from device memory, as (offset, length, path, reason), for the
      directions that the file is open for. With path "posix": to and from host memory.
    - `remarks`: why the file cannot use a faster path.
    - `nvidia_fs`: the version of the kernel module, or "" if it is not loaded. `gpu_direct`: True if this file may use GPU-direct I/O.
    - `path`, `direct_io`, `priority`: as set by set_file_properties().
    """
    return _driver.find_file(fh).properties()


def set_file_properties(fh: int, props: Mapping[str, Any]) -> None:
    """Changes how subsequent calls use a file. All values are checked before any is set.

    - `path`: "automatic", or one of "posix", "staged", "mapped", "direct" and "dma_buf". A request that a forced path cannot serve fails.
    - `direct_io`: True lets large aligned writes bypass the page cache.
    - `priority`: "automatic", "speed", or "cpu" for the least CPU time per byte.

    These properties apply to read(), write(), readv(), writev() and their variants. Stream-ordered calls accept only the paths "automatic" and
    "staged", and batches only "automatic"; neither uses the priority.

    Raises cuFileError with CU_FILE_INVALID_VALUE (an unknown key or an out-of-range value, which the message contains), CU_FILE_IO_NOT_SUPPORTED (the
    file system does not support direct_io), or CU_FILE_INVALID_HANDLE.
    """
    used = _driver.find_file(fh)
    for key, value in props.items():
        if key not in _settable:
            known = ", ".join(sorted(_settable))
            raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"set_file_properties: unknown key {key!r}; valid keys are {known}")
        if value not in _settable[key] or isinstance(value, bool) != (key == "direct_io"):
            known = ", ".join(repr(word) for word in _settable[key])
            raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"set_file_properties: {key} must be one of {known}, not {value!r}")
    used.change(props)


def _operations_at(address: int, count: int) -> bytes:
    """Copies operations and replaces each file's handle with the one for the descriptor that set_file_properties() selected."""
    found = bytearray(attempt(lambda: _read_own_memory(address, count * _operation_bytes, "batch_io_submit: no operations")))
    for at in range(_handle_in_operation, len(found), _operation_bytes):
        (handle,) = struct.unpack_from("=q", found, at)
        struct.pack_into("=Q", found, at, _handle_for_batch(_driver.find_file(handle)))
    return bytes(found)


def _handle_for_batch(used: RegisteredFile) -> int:
    if used.path is not None:
        reason = f"batch_io_submit: {used.name} has the path {used.path} set, but batches choose their own path"
        raise cuFileError(Status.CU_FILE_IO_NOT_SUPPORTED, reason)
    return used.library_handle()


def _register_buffer(base: int, size: int, flags: int) -> None:
    if not 0 < base < _addresses or not 0 < size < _most:
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"buf_register: {size} bytes at {base:#x}")
    if flags not in _known_buffer_flags:
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"buf_register: flags must be 0, 1 or 2, not {flags:#x}")
    _check_allocation(base, size)
    _refuse_host_memory(base)
    _driver.add_buffer(base, size, flags)


def _moved(move: Callable[[], int], used: RegisteredFile, address: int, *, is_write: bool, is_vector: bool = False) -> int:
    """Runs attempt(), and counts the call in the statistics if they are enabled; a rejected call is counted as an error.

    `address`: for a vector, the first piece's address, whose device is used for the whole call.
    """
    if not _native._cufile_counts():
        return attempt(move, used)
    began = time.perf_counter_ns()
    bytes_done, failed = 0, True
    try:
        bytes_done = attempt(move, used)
        failed = False
    except cuFileError as error:
        bytes_done = error.bytes_done
        raise
    finally:
        known = address if 0 <= address < _addresses else 0
        _native._cufile_count(known, is_write, bytes_done, failed, time.perf_counter_ns() - began, is_vector)
    return bytes_done


def _features(nvfs: tuple[int, int], flags: int) -> FeatureFlags:
    found = FeatureFlags.CU_FILE_FEATURE_VECTOR_IO_SUPPORTED
    if nvfs != (0, 0):
        found |= FeatureFlags.CU_FILE_FEATURE_GDS_SUPPORTED
    if flags & _batch_bit:
        found |= FeatureFlags.CU_FILE_FEATURE_BATCH_IO_SUPPORTED
    if flags & _streams_bit:
        found |= FeatureFlags.CU_FILE_FEATURE_ASYNC_IO_SUPPORTED
    return found


_batch_bit, _streams_bit = 1 << 1, 1 << 2  # bits of fflags
_most_operations = 256  # in a batch
_operation_bytes, _handle_in_operation = 64, 40  # CUfileIOParams_t, and the offset of its fh
_properties_struct = struct.Struct("=IIQQIIIIIIII")  # CUfileDrvProps_t
_property_names = (
    *("major_version", "minor_version", "poll_thresh_size", "max_direct_io_size", "dstatusflags", "dcontrolflags", "fflags"),
    *("max_device_cache_size", "per_buffer_cache_size", "max_device_pinned_mem_size", "max_batch_io_size", "max_batch_io_timeout_msecs"),
)

# Names that mean the same in penstock.cuda_bindings.cufile. Imported on first use, because that module requires NumPy.
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
__getattr__ = lazily(__name__, "penstock.cuda_bindings", {".cufile": _of_bindings})


def __dir__() -> list[str]:
    return sorted({*__all__, *_of_bindings})


_known_buffer_flags = (
    CU_FILE_BUF_REGISTER_FLAGS_NONE,
    CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY,
    CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY,
)
_settable: dict[str, tuple[Any, ...]] = {
    "path": ("automatic", "posix", "staged", "mapped", "direct", "dma_buf"),
    "direct_io": (False, True),
    "priority": ("automatic", "speed", "cpu"),
}


_most = 1 << 63  # sizes and offsets are signed 64-bit numbers
_addresses = 1 << 64



def _descriptor_in(descr: int) -> int:
    if _is_descriptor(descr):
        return _plain(descr)
    if descr < lowest_address:
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"handle_register: descriptor {descr} is not open")
    kind, descriptor = struct.unpack_from("=i4xi", attempt(lambda: _read_own_memory(descr, descriptor_struct_bytes, "handle_register: neither a descriptor nor an address")))
    if kind != FileHandleType.CU_FILE_HANDLE_TYPE_OPAQUE_FD:
        raise cuFileError(Status.CU_FILE_IO_NOT_SUPPORTED, f"handle_register: unsupported descriptor struct type {kind}")
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
        reason = f"handle_register: descriptor {descriptor} was opened with O_APPEND, which ignores offsets"
        raise cuFileError(Status.CU_FILE_INVALID_FILE_OPEN_FLAG, reason)
    return descriptor


def _read_own_memory(address: int, size: int, refusal: str) -> bytes:
    if not is_reachable(address, size):
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"{refusal}: {address:#x}")
    return ctypes.string_at(address, size)


def _require_memory(address: int, size: int, call: str) -> None:
    """Checks the memory for a result. Host memory must be writable; the engine checks device memory."""
    if not 0 < address < _addresses:
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"{call}: address {address:#x}")
    if is_reachable(address, size, True):
        return
    if attempt(lambda: penstock.describe(penstock.Pointer(address, size)))["kind"] != "device":
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"{call}: {address:#x} is not the address of {size} writable bytes")


def _check_allocation(base: int, size: int) -> None:
    """Checks that device memory is allocated. Host memory is accepted without a check, as in cuFile; errors are reported when it is used."""
    facts = attempt(lambda: penstock.describe(base))
    if facts["kind"] != "device" or facts["base"] is None:
        return
    end = facts["base"] + facts["nbytes"]
    if base + size > end:
        reason = f"buf_register: {size} bytes at {base:#x} exceed the allocation, which ends at {end:#x}"
        raise cuFileError(OpError.CU_FILE_CUDA_POINTER_RANGE_ERROR, reason)


def _refuse_host_memory(address: int) -> None:
    if attempt(lambda: _driver.settings().refuses(address)):
        reason = f"{address:#x} is host memory, and allow_system_memory is false"
        raise cuFileError(Status.CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED, reason)


def _memory(used: RegisteredFile, base: int, size: int, file_offset: int, offset: int, is_write: bool) -> penstock.Pointer:
    """Returns the memory of a request, after every check that does not need the engine."""
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
    used: RegisteredFile, given: Sequence[IOVec], count: int, file_offset: int, is_write: bool
) -> list[tuple[penstock.Pointer, int]]:
    if not 0 <= count <= len(given):
        raise cuFileError(Status.CU_FILE_INVALID_VALUE, f"iovcnt is {count}, but there are {len(given)} pieces")
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


def _scatter(
    used: RegisteredFile, iov: IOVec | Sequence[IOVec], count: int, file_offset: int, result_ptr: int, is_write: bool
) -> None:
    given = [iov] if isinstance(iov, IOVec) else list(iov)
    for piece in given:
        if not isinstance(piece, IOVec):
            raise TypeError(f"iov must be an IOVec or a sequence of IOVec objects, but it contains a {type(piece).__name__}")
    if result_ptr:
        _require_memory(result_ptr, 8, "writev" if is_write else "readv")
    call = used.file.write_many if is_write else used.file.read_many

    def move() -> int:
        pieces = _pieces(used, given, count, file_offset, is_write)
        return sum(sum(call(group, path=path, prefer=used.priority)) for path, group in _by_path(used, pieces).items())

    if any(piece.size != 0 for piece in given[: max(count, 0)]):
        total = _moved(move, used, given[0].ptr, is_write=is_write, is_vector=True)
    else:
        total = attempt(move, used)
    if result_ptr:
        _store(result_ptr, total)


def _path(used: RegisteredFile, memory: penstock.Pointer) -> Path | None:
    """Returns the path that a request must take: the file's own, or the one that the settings require."""
    return used.path or _driver.settings().path_for(memory.address)


def _by_path(
    used: RegisteredFile, pieces: list[tuple[penstock.Pointer, int]]
) -> dict[Path | None, list[tuple[penstock.Pointer, int]]]:
    """Groups pieces by path. There is nearly always a single group."""
    groups: dict[Path | None, list[tuple[penstock.Pointer, int]]] = {}
    for piece in pieces:
        groups.setdefault(attempt(functools.partial(_path, used, piece[0]), used), []).append(piece)
    return groups


def _queue(
    used: RegisteredFile,
    call: Callable[..., penstock.StreamResult],
    memory: penstock.Pointer,
    file_offset: int,
    result_ptr: int,
    stream: int,
) -> None:
    if attempt(lambda: penstock.describe(memory))["kind"] != "device":
        raise cuFileError(Status.CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED, "host memory does not belong to a stream")
    if used.path not in (None, "staged"):
        reason = f"{used.name} has the path {used.path} set, but stream-ordered calls support only staged"
        raise cuFileError(OpError.CU_FILE_ASYNC_NOT_SUPPORTED, reason)
    if not _driver.settings().streams:
        reason = "execution.parallel_io is false, or execution.max_io_threads is 0"
        raise cuFileError(OpError.CU_FILE_ASYNC_NOT_SUPPORTED, reason)
    if result_ptr:
        _require_memory(result_ptr, 8, "read_async or write_async")
    _driver.remember(stream, attempt(lambda: call(memory, stream, file_offset, result=result_ptr), used))


def _store(result_ptr: int, count: int) -> None:
    attempt(lambda: penstock.copy(penstock.Pointer(result_ptr, 8), struct.pack("=q", count)))
