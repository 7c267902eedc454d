"""cuda-python 13's cuda.bindings.cufile, implemented on Penstock: `from penstock.cuda_bindings import cufile` in place of `from cuda.bindings import cufile`.

Names, signatures, structs, enumerations and numbers are the same as in cuda-python, and each function does the same as its cuFile namesake. Pointers,
handles and streams are integers; a pointer does not keep its memory alive.

Files, buffers, batches, parameters, statistics and the driver's use count are shared with penstock.cufile, which provides the functions in
cuda-python's documentation.

A call that fails raises cuFileError with a cuFile status or an errno. An argument that is not an integer raises TypeError, and an integer that does
not fit the C type raises OverflowError. Thread-safe; calls release the GIL. Needs NumPy.
"""

from __future__ import annotations

import ctypes
import errno
import operator
import os
from collections.abc import Callable

from penstock._cufile import codes as _cufile_codes
from penstock._cufile.driver import driver
from penstock._cufile.library import calls, is_reachable, lowest_address, words
from penstock.cuda_bindings._enums import (
    ArrayConfigParameter,
    BatchMode,
    BoolConfigParameter,
    DriverControlFlags,
    DriverStatusFlags,
    FeatureFlags,
    FileHandleType,
    Opcode,
    OpError,
    P2PFlags,
    SizeTConfigParameter,
    Status,
    StringConfigParameter,
)
from penstock.cuda_bindings._structs import (
    Descr,
    IOEvents,
    IOParams,
    IOVec,
    OpCounter,
    PerGpuStats,
    StatsLevel1,
    StatsLevel2,
    StatsLevel3,
    Struct,
    descr_dtype,
    earlier_stats,
    fill_stats,
    io_events_dtype,
    io_params_dtype,
    io_vec_dtype,
    op_counter_dtype,
    per_gpu_stats_dtype,
    stats_level1_dtype,
    stats_level2_dtype,
    stats_level3_dtype,
)

__all__ = [
    "ArrayConfigParameter",
    "BatchMode",
    "BoolConfigParameter",
    "Descr",
    "DriverControlFlags",
    "DriverStatusFlags",
    "FeatureFlags",
    "FileHandleType",
    "IOEvents",
    "IOParams",
    "IOVec",
    "OpCounter",
    "OpError",
    "Opcode",
    "P2PFlags",
    "PerGpuStats",
    "SizeTConfigParameter",
    "StatsLevel1",
    "StatsLevel2",
    "StatsLevel3",
    "Status",
    "StringConfigParameter",
    "batch_io_cancel",
    "batch_io_destroy",
    "batch_io_get_status",
    "batch_io_set_up",
    "batch_io_submit",
    "buf_deregister",
    "buf_register",
    "cuFileError",
    "descr_dtype",
    "driver_close",
    "driver_get_properties",
    "driver_open",
    "driver_set_max_cache_size",
    "driver_set_max_direct_io_size",
    "driver_set_max_pinned_mem_size",
    "driver_set_poll_mode",
    "get_bar_size_in_kb",
    "get_parameter_bool",
    "get_parameter_min_max_value",
    "get_parameter_posix_pool_slab_array",
    "get_parameter_size_t",
    "get_parameter_string",
    "get_stats_l1",
    "get_stats_l2",
    "get_stats_l3",
    "get_stats_level",
    "get_version",
    "handle_deregister",
    "handle_register",
    "io_events_dtype",
    "io_params_dtype",
    "io_vec_dtype",
    "op_counter_dtype",
    "op_status_error",
    "per_gpu_stats_dtype",
    "read",
    "read_async",
    "readv",
    "set_parameter_bool",
    "set_parameter_posix_pool_slab_array",
    "set_parameter_size_t",
    "set_parameter_string",
    "set_stats_level",
    "stats_level1_dtype",
    "stats_level2_dtype",
    "stats_level3_dtype",
    "stats_reset",
    "stats_start",
    "stats_stop",
    "stream_deregister",
    "stream_register",
    "use_count",
    "write",
    "write_async",
    "writev",
]


class cuFileError(_cufile_codes.cuFileError):  # noqa: N801, N818 - cuda-python's name
    """A failed call. Also a penstock.cufile.cuFileError.

    - `status`: an OpError, or an errno.
    - `cuda_error`: the CUresult; 0 if CUDA reported none, None for reads and writes.
    - `detail`: what was wrong with the call, if more is known than the status alone conveys.
    """

    def __init__(self, status: int, cu_err: int | None = None, detail: str = "") -> None:
        super().__init__(status, f"{op_status_error(status)}: {detail}" if detail else op_status_error(status))
        self.status = OpError(status) if status in _known_errors else int(status)
        self.cuda_error = cu_err
        self.detail = detail
        self.args = (str(self),)

    def __str__(self) -> str:
        status = int(self.status)
        name = self.status.name if isinstance(self.status, OpError) else errno.errorcode.get(status, "")
        told = f"{name} ({status}): {self.message}"
        return told if self.cuda_error is None else f"{told}; CUDA status: {_cuda_name(self.cuda_error)} ({self.cuda_error})"

    def __reduce__(self) -> tuple[type[cuFileError], tuple[int, int | None, str]]:
        return type(self), (int(self.status), self.cuda_error, self.detail)


def op_status_error(status: int) -> str:
    """Returns the meaning of a status as text."""
    return words(status) if status == 0 or status >= _cufile_base else os.strerror(status)


def driver_open() -> None:
    """Opens the driver and increments its use count. Never required: the first registration also opens it."""
    _check(calls.driver_open())


def driver_close() -> None:
    """Decrements the use count. When it reaches zero, everything registered is released."""
    _check(driver.close())


def use_count() -> int:
    """Returns the use count. (cuda-python returns None.)"""
    return calls.use_count()


def get_version() -> int:
    """Returns the version of cuFile that this module replaces: 1000 x major + 10 x minor."""
    return _told(calls.get_version)


def driver_get_properties(props: int) -> None:
    """Writes the properties to an address (CUfileDrvProps_t, 56 bytes)."""
    _check(calls.driver_get_properties(props))


def driver_set_poll_mode(poll: bool, poll_threshold_size: int) -> None:
    """Sets whether to poll for completion, and up to which size in KiB."""
    _check(calls.driver_set_poll_mode(poll, poll_threshold_size))


def driver_set_max_direct_io_size(max_direct_io_size: int) -> None:
    """Sets the size of GPU-direct pieces, in KiB."""
    _check(calls.driver_set_max_direct_io_size(max_direct_io_size))


def driver_set_max_cache_size(max_cache_size: int) -> None:
    """Sets the amount of GPU memory for bounce buffers, in KiB."""
    _check(calls.driver_set_max_cache_size(max_cache_size))


def driver_set_max_pinned_mem_size(max_pinned_size: int) -> None:
    """Sets how much GPU memory may be registered, in KiB."""
    _check(calls.driver_set_max_pinned_mem_size(max_pinned_size))


def get_bar_size_in_kb(gpu_index: int) -> int:
    """Returns the size of a GPU's largest PCI memory window, in KiB."""
    size = ctypes.c_size_t()
    _check(calls.get_bar_size_in_kb(gpu_index, ctypes.addressof(size)))
    return size.value


def handle_register(descr: int | Descr) -> int:
    """Registers an open file and returns its handle. `descr` is a Descr, the address of one, or the file's descriptor."""
    handle = ctypes.c_void_p()
    if not isinstance(descr, Struct) and 0 < operator.index(descr) < lowest_address:
        number, descr = operator.index(descr), Descr()
        descr.type, descr.handle.fd = FileHandleType.OPAQUE_FD, number
    _check(calls.handle_register(ctypes.addressof(handle), _address(descr)))
    return handle.value or 0


def handle_deregister(fh: int) -> None:
    """Releases a handle once its running operations are complete. Does nothing for any other number."""
    calls.handle_deregister(fh)
    driver.forget_file(fh)


def buf_register(buf_ptr_base: int, length: int, flags: int) -> None:
    """Registers memory for repeated use. `flags` has no effect."""
    _check(calls.buf_register(buf_ptr_base, length, flags))


def buf_deregister(buf_ptr_base: int) -> None:
    """Releases registered memory."""
    _check(calls.buf_deregister(buf_ptr_base))


def read(fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int) -> int:
    """Reads into memory at buf_ptr_base + buf_ptr_offset and returns the number of bytes read, which is smaller than size only at end of file.
    Blocks."""
    return _count(calls.read(fh, buf_ptr_base, size, file_offset, buf_ptr_offset))


def write(fh: int, buf_ptr_base: int, size: int, file_offset: int, buf_ptr_offset: int) -> int:
    """Writes from memory at buf_ptr_base + buf_ptr_offset and returns the number of bytes written. Blocks."""
    return _count(calls.write(fh, buf_ptr_base, size, file_offset, buf_ptr_offset))


def readv(fh: int, iov: IOVec, file_offset: int, flags: int = 0) -> int:
    """Reads one range of the file into the pieces of memory, in order, and returns the number of bytes read. Blocks."""
    return _count(calls.readv(fh, *_pieces(iov), file_offset, flags))


def writev(fh: int, iov: IOVec, file_offset: int, flags: int = 0) -> int:
    """Writes the pieces of memory, in order, to one range of the file, and returns the number of bytes written. Blocks."""
    return _count(calls.writev(fh, *_pieces(iov), file_offset, flags))


def read_async(
    fh: int, buf_ptr_base: int, size_p: int, file_offset_p: int, buf_ptr_offset_p: int, bytes_read_p: int, stream: int
) -> None:
    """Queues a read on a stream. Arguments whose names end in _p are addresses: when the stream reaches the request, their values are read and
    bytes_read_p is written.
    """
    _check(calls.read_async(fh, buf_ptr_base, size_p, file_offset_p, buf_ptr_offset_p, bytes_read_p, stream))


def write_async(
    fh: int, buf_ptr_base: int, size_p: int, file_offset_p: int, buf_ptr_offset_p: int, bytes_written_p: int, stream: int
) -> None:
    """Queues a write on a stream, as read_async() queues a read."""
    _check(calls.write_async(fh, buf_ptr_base, size_p, file_offset_p, buf_ptr_offset_p, bytes_written_p, stream))


def stream_register(stream: int, flags: int) -> None:
    """Declares which values of a stream's requests do not change: memory offset (1), file offset (2), size (4); 8 means that all are aligned."""
    _check(calls.stream_register(stream, flags))


def stream_deregister(stream: int) -> None:
    """Undoes stream_register()."""
    _check(calls.stream_deregister(stream))


def batch_io_set_up(nr: int) -> int:
    """Creates a batch of up to nr concurrent operations and returns its handle."""
    batch = ctypes.c_void_p()
    _check(calls.batch_io_set_up(ctypes.addressof(batch), nr))
    return batch.value or 0


def batch_io_submit(batch_idp: int, nr: int, iocbp: int | IOParams, flags: int) -> None:
    """Starts nr operations without waiting for them. `iocbp` is the address of the first IOParams, or the IOParams object."""
    _check(calls.batch_io_submit(batch_idp, nr, _address(iocbp), flags))


def batch_io_get_status(batch_idp: int, min_nr: int, nr: int, iocbp: int | IOEvents, timeout: int) -> None:
    """Waits until min_nr operations are complete.

    - `nr`: the address of an unsigned int: on entry, the number of events that fit at iocbp; on return, the number stored there.
    - `timeout`: the address of a struct timespec; 0 means no timeout.
    """
    _check(calls.batch_io_get_status(batch_idp, min_nr, nr, _address(iocbp), timeout))


def batch_io_cancel(batch_idp: int) -> None:
    """Cancels operations that have not started."""
    _check(calls.batch_io_cancel(batch_idp))


def batch_io_destroy(batch_idp: int) -> None:
    """Cancels operations that have not started, waits for the others, and releases the batch. Does nothing for any other number."""
    calls.batch_io_destroy(batch_idp)


def get_parameter_size_t(param: int) -> int:
    """Returns a numeric parameter."""
    value = ctypes.c_size_t()
    _check(calls.get_parameter_size_t(param, ctypes.addressof(value)))
    return value.value


def set_parameter_size_t(param: int, value: int) -> None:
    """Sets a numeric parameter for the next time the driver is opened. Raises cuFileError with OpError.DRIVER_ALREADY_OPEN if it is open."""
    _check(calls.set_parameter_size_t(param, value))


def get_parameter_bool(param: int) -> bool:
    """Returns a boolean parameter."""
    value = ctypes.c_bool()
    _check(calls.get_parameter_bool(param, ctypes.addressof(value)))
    return value.value


def set_parameter_bool(param: int, value: bool) -> None:
    """Sets a boolean parameter, as set_parameter_size_t() does for a number."""
    _check(calls.set_parameter_bool(param, value))


def get_parameter_string(param: int, len: int) -> str:  # noqa: A002 - cuda-python's name
    """Returns a string parameter that is shorter than len bytes."""
    if len <= 0:
        raise cuFileError(OpError.INVALID_VALUE)
    room = min(len, _longest_text)
    text = ctypes.create_string_buffer(room)
    _check(calls.get_parameter_string(param, ctypes.addressof(text), room))
    return text.value.decode(errors="surrogateescape")


def set_parameter_string(param: int, desc_str: int) -> None:
    """Sets a string parameter from the address of a NUL-terminated string."""
    _check(calls.set_parameter_string(param, desc_str))


def get_parameter_min_max_value(param: int) -> tuple[int, int]:
    """Returns the smallest and the largest value of a numeric parameter."""
    least, most = ctypes.c_size_t(), ctypes.c_size_t()
    _check(calls.get_parameter_min_max_value(param, ctypes.addressof(least), ctypes.addressof(most)))
    return least.value, most.value


def get_parameter_posix_pool_slab_array(size_values: int, count_values: int, len: int) -> None:  # noqa: A002
    """Writes the slab sizes and counts to two addresses, each with space for len 8-byte numbers."""
    _check(calls.get_parameter_posix_pool_slab_array(size_values, count_values, len))


def set_parameter_posix_pool_slab_array(size_values: int, count_values: int, len: int) -> None:  # noqa: A002
    """Sets the slab sizes and counts from two arrays of len 8-byte numbers."""
    _check(calls.set_parameter_posix_pool_slab_array(size_values, count_values, len))


def get_stats_level() -> int:
    """Returns the level of the statistics: 0 nothing, 1 operations, 2 also sizes, 3 also per GPU."""
    return _told(calls.get_stats_level)


def set_stats_level(level: int) -> None:
    """Sets the level of the statistics, 0 to 3."""
    _check(calls.set_stats_level(level))


def stats_start() -> None:
    """Starts counting if the level is 1 or higher."""
    _check(calls.stats_start())


def stats_stop() -> None:
    """Stops counting. The counters keep their values."""
    _check(calls.stats_stop())


def stats_reset() -> None:
    """Sets all counters to 0."""
    _check(calls.stats_reset())


def get_stats_l1(stats: int | StatsLevel1) -> None:
    """Writes the level 1 counters to a StatsLevel1 or its address."""
    _store_stats(1, _address(stats), calls.get_stats_l1)


def get_stats_l2(stats: int | StatsLevel2) -> None:
    """Writes the level 2 counters to a StatsLevel2 or its address."""
    _store_stats(2, _address(stats), calls.get_stats_l2)


def get_stats_l3(stats: int | StatsLevel3) -> None:
    """Writes the level 3 counters to a StatsLevel3 or its address."""
    _store_stats(3, _address(stats), calls.get_stats_l3)


_cufile_base = 5000
_known_errors = frozenset(int(each) for each in OpError)
_stats_grew_in = 1190
_longest_text = 1 << 20  # bytes in a string parameter


def _store_stats(level: int, target: int, call: Callable[..., int]) -> None:
    """Writes statistics in the layout of cuFile 1.19 and later, as in cuda-python, whatever version the library reports."""
    if target == 0 or get_version() >= _stats_grew_in:
        _check(call(target))
        return
    found = earlier_stats(level)
    _check(call(found.ctypes.data))
    size = (stats_level1_dtype, stats_level2_dtype, stats_level3_dtype)[level - 1].itemsize
    if not is_reachable(target, size, True):
        raise cuFileError(OpError.INVALID_VALUE, 0, f"get_stats_l{level}: {target:#x} is not the address of {size} writable bytes")
    fill_stats(level, target, found)


def _check(status: int) -> None:
    if status != 0:
        raise cuFileError(int(status), getattr(status, "cuda_error", 0), getattr(status, "reason", ""))


def _cuda_name(number: int) -> str:
    """Returns the CUDA driver's name for an error. A driver that has reported an error is already loaded."""
    if number == 0:
        return "CUDA_SUCCESS"
    name = ctypes.c_char_p()
    try:
        ctypes.CDLL("libcuda.so.1").cuGetErrorName(number, ctypes.byref(name))
    except (OSError, AttributeError):
        pass  # no driver is loaded: the error was created by hand, or came from another process
    return (name.value or b"CUresult").decode()


def _count(moved: int) -> int:
    if moved < 0:
        raise cuFileError(ctypes.get_errno())
    return moved


def _told(call: Callable[..., int]) -> int:
    value = ctypes.c_int()
    _check(call(ctypes.addressof(value)))
    return value.value


def _pieces(iov: IOVec) -> tuple[int, int]:
    if not isinstance(iov, IOVec):
        raise TypeError(f"iov must be an IOVec, not {type(iov).__name__}")
    return iov.ptr, len(iov)


def _address(of: int | Struct) -> int:
    return of.ptr if isinstance(of, Struct) else of


def __dir__() -> list[str]:
    return sorted(__all__)
