"""KvikIO's file handle and futures, implemented on Penstock.

Names, arguments, defaults, exception types and the message texts that programs match on are KvikIO's (rapidsai/kvikio, 26.x). Penstock is safer in
these ways:

- A future keeps its buffer and file alive, and get() may be called any number of times.
- Every offset is checked against the buffer.
- Reading into a read-only buffer is an error.
- A read at end of file returns the bytes up to the end, in every mode.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
from typing import Any, Callable, Literal, TypeVar

import penstock
from penstock import _native
from penstock._core.closable import Closable
from penstock._core.file_facts import direct_problem, mode_of
from penstock._core.forks import forkable_lock
from penstock._core.small_files import open_file
from penstock.kvikio import _log, defaults, statistics
from penstock.kvikio._buffer_checks import check_not_negative, is_device_memory, require_device_memory, settle
from penstock.kvikio.buffer import note_transfer
from penstock.kvikio._page_cache import clear_page_cache, drop_file_page_cache, drop_system_page_cache, get_page_cache_info

__all__ = [
    "CuFile",
    "IOFuture",
    "IOFutureStream",
    "clear_page_cache",
    "drop_file_page_cache",
    "drop_system_page_cache",
    "get_page_cache_info",
]

Outcome = TypeVar("Outcome")


class MissingFile(RuntimeError, FileNotFoundError):
    """The file does not exist: both KvikIO's RuntimeError and Python's FileNotFoundError."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.errno = errno.ENOENT
        self.strerror = os.strerror(errno.ENOENT)
        self.filename = name
        self._message = message

    def __str__(self) -> str:
        return self._message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._message, self.filename)


class IOFuture:
    """A running read or write, started by pread() or pwrite(). Thread-safe. Dropping it is safe and does not stop the operation."""

    __slots__ = ("_counted", "_future", "_keep", "_name")

    def __init__(self, future: "penstock.Future[int]", name: str, keep: object = None, counted: Any = None) -> None:
        self._future = future
        self._name = name
        self._keep = keep
        self._counted = counted
        if counted is not None:
            future.add_done_callback(functools.partial(_end_of, counted))

    def get(self) -> int:
        """Waits for the operation and returns the number of bytes transferred, which is smaller than requested only at end of file. May be called any
        number of times.

        Raises RuntimeError if the operation failed, with the penstock.Error as its cause; the buffer is then no longer in use.
        """
        if self._counted is not None:
            return _attempt(self._name, lambda: _count(self._counted, self._future.result, True))
        return _attempt(self._name, self._future.result)

    def done(self) -> bool:
        """Returns True if the operation is done. Does not block."""
        return self._future.done()


class IOFutureStream:
    """A stream-ordered read or write, queued by raw_read_async() or raw_write_async(). It keeps the buffer and file alive; dropping it is safe."""

    __slots__ = ("_counted", "_keep", "_name", "_result")

    def __init__(self, result: "penstock.StreamResult", name: str, keep: object = None, counted: Any = None) -> None:
        self._counted = counted
        self._result = result
        self._name = name
        self._keep = keep

    def check_bytes_done(self) -> int:
        """Waits until the stream has completed the operation and returns the number of bytes transferred. May be called any number of times. Raises
        RuntimeError if the operation failed.
        """
        return _attempt(self._name, lambda: _count(self._counted, self._result.wait, True))


class CuFile(Closable):
    """A file that you read and write at offsets, using host or device memory. A context manager. Thread-safe, except for close()."""

    def __init__(self, file: str | os.PathLike[str], flags: str = "r") -> None:
        """Opens a file for binary I/O.

        - `flags`: "r" reads; "w" creates or truncates the file (mode 0644) and writes; "r+" and "w+" do both. Other letters after the first, such as
          "b", are ignored, as in KvikIO.

        Raises RuntimeError ("Unable to open file") with the system's reason; if the file does not exist, the error is also a FileNotFoundError.
        Raises ValueError for "a" or any other first letter.
        """
        self._backend = ""  # for the statistics; empty: determined for each request
        self._may_be_direct: bool | None = None  # None: not determined yet
        self._descriptor = -1
        self._direct_descriptor = -1
        self._closing = forkable_lock()
        access = _open_flags(flags)
        defaults.tell_of_unused_variables()
        _log.set_up()
        self._name = _native.shown_name(file)
        wants_direct_writes = defaults.get("auto_direct_io_write")
        self._tries_direct = wants_direct_writes or defaults.get("auto_direct_io_read")
        try:
            self._descriptor = open_file(file, access, 0o644)
            if wants_direct_writes and access & os.O_ACCMODE != os.O_RDONLY:
                self._direct_descriptor = _reopen_direct(self._descriptor)
            adopted = self._descriptor if self._direct_descriptor < 0 else self._direct_descriptor
            self._file = penstock.open(adopted, mode_of(access), cache="bypass" if defaults.get("auto_direct_io_read") else None)
            _log.logger.info("%s: opened with flags %s, %s O_DIRECT", self._name, flags, "with" if adopted != self._descriptor else "without")
        except OSError as error:
            self._close_descriptors()
            message = f"Unable to open file {self._name}: {error.strerror or error}"
            _log.logger.error("%s", message)
            if isinstance(error, FileNotFoundError):
                raise MissingFile(message, self._name) from error
            raise RuntimeError(message) from error

    def close(self) -> None:
        """Waits for running operations, then closes the file. Does nothing if it is already closed."""
        with self._closing:
            if self.closed:
                return
            try:
                _attempt(self._name, self._file.close)
            finally:
                self._close_descriptors()

    @property
    def closed(self) -> bool:
        """True once close() has been called."""
        return self._descriptor < 0

    def fileno(self) -> int:
        """Returns the file descriptor, opened without O_DIRECT. Raises RuntimeError if the file is closed."""
        if self.closed:
            raise RuntimeError(f"{self._name} is closed")
        return self._descriptor

    def open_flags(self) -> int:
        """Returns the open(2) flags of fileno(). Raises RuntimeError if the file is closed."""
        return fcntl.fcntl(self.fileno(), fcntl.F_GETFL)

    def is_direct_io_supported(self) -> bool:
        """Returns True if the file can be opened with O_DIRECT and was opened while auto_direct_io_read or auto_direct_io_write was on.

        Raises RuntimeError if the file is closed or the process has run out of descriptors.
        """
        if not self._tries_direct:
            return False
        try:
            probe = _reopen_direct(self.fileno())
        except OSError as error:
            raise RuntimeError(f"Unable to open file {self._name}: {error.strerror}") from error
        if probe >= 0:
            os.close(probe)
        return probe >= 0

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()

    def pread(
        self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None
    ) -> IOFuture:
        """Starts reading size bytes at file_offset into buf (host or device memory) and returns at once.

        - `size`: in bytes; None fills buf.
        - `task_size`: in bytes, for KvikIO's thread pool. Checked but otherwise ignored.

        Raises ValueError if buf is read-only, not contiguous or shorter than size, and OverflowError for a negative number. IOFuture.get() raises
        RuntimeError if the read fails.
        """
        return self._start(self._file.pread, buf, size, file_offset, task_size)

    def pwrite(
        self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None
    ) -> IOFuture:
        """Starts writing size bytes of buf at file_offset and returns at once. Otherwise like pread()."""
        return self._start(self._file.pwrite, buf, size, file_offset, task_size)

    def read(
        self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None
    ) -> int:
        """Reads size bytes at file_offset into buf and returns the number of bytes read, which is smaller than size only at end of file. Blocks.

        Returns 0 past the end of the file (KvikIO raises "EOF" in its POSIX mode). Arguments are as for pread(). Raises RuntimeError if the read
        fails; the message is "Operation not permitted" if the file is open for writing only.
        """
        _check_task_size(task_size)
        return self._run(self._file.read_into, buf, size, file_offset, 0, defaults.current("gds_threshold"))

    def write(
        self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None
    ) -> int:
        """Writes size bytes of buf at file_offset and returns the number of bytes written. Blocks. Otherwise like read()."""
        _check_task_size(task_size)
        return self._run(self._file.write_from, buf, size, file_offset, 0, defaults.current("gds_threshold"))

    def raw_read(self, buf: Any, size: int | None = None, file_offset: int = 0, dev_offset: int = 0) -> int:
        """Reads size bytes at file_offset into device memory, starting at dev_offset in buf. Blocks.

        - `size`: in bytes; None fills the rest of buf.

        Raises ValueError if the range does not fit into buf, or for host memory ("Non-CUDA buffers not supported"; the host device's memory counts as
        device memory). Otherwise like read().
        """
        require_device_memory(buf)
        return self._run(self._file.read_into, buf, size, file_offset, dev_offset)

    def raw_write(self, buf: Any, size: int | None = None, file_offset: int = 0, dev_offset: int = 0) -> int:
        """Writes size bytes of device memory, starting at dev_offset in buf, to the file at file_offset. Blocks. Otherwise like raw_read()."""
        require_device_memory(buf)
        return self._run(self._file.write_from, buf, size, file_offset, dev_offset)

    def raw_read_async(
        self, buf: Any, raw_stream: Any, size: int | None = None, file_offset: int = 0, dev_offset: int = 0
    ) -> IOFutureStream:
        """Queues a read, in stream order, on a stream of the device that owns buf. Does not block.

        - `raw_stream`: the stream as an int (0 is the default stream), or an object that wraps one.

        Otherwise like raw_read(). RuntimeError means that nothing was queued; check_bytes_done() raises if the read itself fails.
        """
        require_device_memory(buf)
        return self._queue(self._file.read_on_stream, buf, raw_stream, size, file_offset, dev_offset)

    def raw_write_async(
        self, buf: Any, raw_stream: Any, size: int | None = None, file_offset: int = 0, dev_offset: int = 0
    ) -> IOFutureStream:
        """Queues a write on a stream, as raw_read_async() queues a read."""
        require_device_memory(buf)
        return self._queue(self._file.write_on_stream, buf, raw_stream, size, file_offset, dev_offset)

    def _run(
        self, call: Callable[..., int], buf: Any, size: int | None, file_offset: int, dev_offset: int, threshold: int = 0
    ) -> int:
        """Runs a blocking call. Requests smaller than `threshold` are not GPU-direct."""
        _check_offsets(size, file_offset, dev_offset)
        settle(buf)
        note_transfer(buf, size)
        self._tell(call, size, file_offset)
        counted = self._begin(call, buf, size, dev_offset, threshold) if statistics._monitors else None
        run = functools.partial(call, buf, file_offset, size, dev_offset, order="A")
        return _attempt(self._name, lambda: _count(counted, lambda: run(path=_forced_path(buf, size, threshold)), True))

    def _start(
        self,
        call: "Callable[..., penstock.Future[int]]",
        buf: Any,
        size: int | None,
        file_offset: int,
        task_size: int | None,
    ) -> IOFuture:
        _check_task_size(task_size)
        _check_offsets(size, file_offset, 0)
        settle(buf)
        note_transfer(buf, size)
        self._tell(call, size, file_offset)
        threshold = defaults.current("gds_threshold")
        counted = self._begin(call, buf, size, 0, threshold) if statistics._monitors else None
        start = functools.partial(call, buf, file_offset, size, order="A")
        future = _attempt(self._name, lambda: _count(counted, lambda: start(path=_forced_path(buf, size, threshold))))
        return IOFuture(future, self._name, self, counted)

    def _queue(
        self,
        call: "Callable[..., penstock.StreamResult]",
        buf: Any,
        stream: Any,
        size: int | None,
        file_offset: int,
        dev_offset: int,
    ) -> IOFutureStream:
        _check_offsets(size, file_offset, dev_offset)
        self._tell(call, size, file_offset)
        counted = self._begin(call, buf, size, dev_offset, _no_request_is_direct) if statistics._monitors else None
        result = _attempt(self._name, lambda: _count(counted, lambda: call(buf, stream, file_offset, size, dev_offset, order="A")))
        return IOFutureStream(result, self._name, self, counted)

    def _tell(self, call: Callable[..., object], size: int | None, file_offset: int) -> None:
        if _log.wants_operations():
            _log.logger.debug("%s: %s of %s bytes at %s", self._name, call.__name__, "all" if size is None else size, file_offset)

    def _begin(self, call: Callable[..., object], buf: Any, size: int | None, dev_offset: int, threshold: int) -> Any:
        """Reports an operation to the monitors. Mmap has its own backend; KvikIO's CUFILE backend counts GPU-direct operations."""
        requested = size if size is not None else max(0, _nbytes(buf) - dev_offset)
        is_write = "write" in call.__name__
        is_direct = not self._backend and self._is_direct(buf, requested, threshold, is_write)
        return statistics.begin(self._backend or ("CUFILE" if is_direct else "POSIX"), is_write, requested)

    def _is_direct(self, buf: Any, requested: int, threshold: int, is_write: bool) -> bool:
        if requested <= _small_bytes or not is_device_memory(buf) or _forced_path(buf, requested, threshold) is not None:
            return False
        if self._may_be_direct is None:
            self._may_be_direct = direct_problem(self._file, is_write) is None
        return self._may_be_direct

    def _close_descriptors(self) -> None:
        for descriptor in (self._descriptor, self._direct_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._direct_descriptor = -1


def _open_flags(flags: str) -> int:
    first = flags[:1]
    if first == "a":
        raise ValueError('Open flag "a" is not supported, because appends ignore offsets')
    if first not in ("r", "w"):
        raise ValueError(f"Unknown file open flag {flags!r}")
    both = "+" in flags
    if first == "r":
        return os.O_CLOEXEC | (os.O_RDWR if both else os.O_RDONLY)
    return os.O_CLOEXEC | os.O_CREAT | os.O_TRUNC | (os.O_RDWR if both else os.O_WRONLY)


def _reopen_direct(descriptor: int) -> int:
    """Opens the same file with O_DIRECT. Returns -1 if that is not supported. Reopens the descriptor, because the file may have been renamed.

    Raises OSError if the process has run out of descriptors, which says nothing about this file.
    """
    access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    try:
        return os.open(f"/proc/self/fd/{descriptor}", access | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return -1


_small_bytes = 128 << 10  # runs on the calling thread; the page cache determines whether such a read is GPU-direct
_no_request_is_direct = 1 << 64  # used as a threshold


def _forced_path(buf: Any, size: int | None, threshold: int) -> Literal["staged"] | None:
    """Returns "staged" for device memory in KvikIO's compatibility mode, and for requests smaller than the threshold.

    Otherwise the planner decides, even if no request would be GPU-direct.
    """
    if defaults.current("compat_mode") == defaults.CompatMode.ON:
        return "staged" if is_device_memory(buf) else None
    if size is not None and size >= threshold or not is_device_memory(buf):
        return None
    nbytes = penstock._native.resolve(buf)[1] if size is None else size
    if nbytes >= threshold:
        return None
    # A small request is as fast on this path, and checking for GPU-direct I/O would take longer.
    return "staged" if nbytes <= _small_bytes or penstock.gpu_direct_status() is None else None


def _check_task_size(task_size: int | None) -> None:
    if task_size is None:
        return
    check_not_negative(task_size=task_size)
    if task_size == 0:
        raise ValueError("task_size must be a positive integer, not 0")
    defaults.tell_of_unused("task_size", task_size)


def _check_offsets(size: int | None, file_offset: int, dev_offset: int) -> None:
    for name, value in (("size", size), ("file_offset", file_offset), ("dev_offset", dev_offset)):
        if value is not None and value < 0:
            raise OverflowError(f"{name}: can't convert negative value {value}")
        if value is not None and value >= 1 << 63:
            raise OverflowError(f"{name}: {value} does not fit in 64 bits")


def _end_of(counted: Any, ended: "penstock.Future[int]") -> None:
    try:
        _count(counted, ended.result, True)
    except penstock.Error:
        pass  # get() raises the error


def _nbytes(buf: Any) -> int:
    told = getattr(buf, "nbytes", None)
    if told is None:
        return memoryview(buf).nbytes
    return int(told() if callable(told) else told)


def _count(counted: Any, call: Callable[[], Outcome], ends: bool = False) -> Outcome:
    """Runs call. A failure ends the counted operation, if there is one. Success ends it if `ends` is set."""
    if counted is None:
        return call()
    try:
        outcome = call()
    except penstock.Error as error:
        counted.end(error.bytes_done, True)
        raise
    except BaseException:
        counted.end(0, True)
        raise
    if ends and isinstance(outcome, int):
        counted.end(outcome)
    return outcome


def _attempt(name: str, call: Callable[[], Outcome]) -> Outcome:
    """Runs call. Converts Penstock's errors to KvikIO's RuntimeError, except ValueErrors (other than the one for a closed file)."""
    try:
        return call()
    except penstock.Error as error:
        if isinstance(error, ValueError) and error.code != "closed":
            raise
        reason = f"Operation not permitted: {error}" if error.code == "permission_denied" else str(error)
        _log.logger.error("%s: %s", name, reason)
        raise RuntimeError(f"{name}: {reason}") from error


def __dir__() -> list[str]:
    return sorted(__all__)
