"""The native module. Import penstock instead."""

import concurrent.futures
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from typing_extensions import Buffer

from ._core.plan import Plan
from ._core.requests import Request

_T = TypeVar("_T")

# "C", or "A", which also accepts Fortran order and transfers the bytes in memory order.
_Order = Literal["C", "A"]
_Path = Literal["posix", "staged", "mapped", "direct", "dma_buf"]
_Prefer = Literal["speed", "cpu"]
_Cache = Literal["auto", "fill", "bypass"]
_Links = int | Literal["auto"]
_Priority = Literal["normal", "background"]
_Mode = Literal[
    "r", "rb", "br", "r+", "rb+", "r+b", "w", "wb", "bw", "w+", "wb+", "w+b", "x", "xb", "bx", "x+", "xb+", "x+b"
]

class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...

class _Dlpack(Protocol):
    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> Any: ...

class _DataPointer(Protocol):
    @property
    def nbytes(self) -> Any: ...
    def data_ptr(self) -> int: ...

# Any object with memory; see penstock's documentation.
_Buffer: TypeAlias = Buffer | _CudaArray | _Dlpack | _DataPointer | Pointer | DeviceBuffer
_FileRequest = (
    tuple[File, _Buffer, int] | tuple[File, _Buffer, int, int | None] | tuple[File, _Buffer, int, int | None, int]
)
_Request = tuple[_Buffer, int] | tuple[_Buffer, int, int | None] | tuple[_Buffer, int, int | None, int]

class _Updated(Protocol):
    def update(self, n: int, /) -> object: ...

_Progress = Callable[[int], object] | _Updated

__version__: str

class Pointer:
    """Host or device memory at an address.

    owner, if given, is kept alive as long as the Pointer and every request that uses it. readonly memory can be written
    from, but not read into. The address is not checked."""
    def __init__(self, address: int, nbytes: int, owner: object = None, readonly: bool = False) -> None: ...
    @property
    def address(self) -> int:
        """The start address."""
    @property
    def nbytes(self) -> int:
        """The length in bytes."""
    @property
    def owner(self) -> Any:
        """The object that keeps the memory alive, or None."""
    @property
    def readonly(self) -> bool:
        """True if the memory can be written from but not read into."""

class Device:
    """A device whose memory files can be read into: a GPU, or the host device "host:0"."""
    @property
    def name(self) -> str:
        """"cuda:0" or "host:0"."""
    @property
    def description(self) -> str:
        """The manufacturer's name for the device."""
    @property
    def pci_bus_id(self) -> str:
        """"0000:3b:00.0"; empty for the host device."""
    @property
    def memory_bytes(self) -> int:
        """The device's memory in bytes."""
    @property
    def numa_node(self) -> int:
        """The NUMA node that the device is attached to; -1 if unknown."""
    @property
    def window_bytes(self) -> int:
        """The device's largest PCI memory window (BAR1) in bytes; 0 if unknown."""
    @property
    def shares_host_memory(self) -> bool:
        """True if the device shares the host's memory (DGX Spark, Jetson), so programs and the page cache use part of
        memory_bytes."""
    @property
    def uuid(self) -> str:
        """"GPU-...", as printed by nvidia-smi; empty if unknown."""
    def empty(self, nbytes: int) -> DeviceBuffer:
        """Allocates nbytes of uninitialized device memory. Raises penstock.Error."""

class DeviceBuffer:
    """Memory on one device, from Device.empty(), or a slice of it. Freed with the last reference to any part of it; requests
    in flight hold one. CuPy and PyTorch accept it through __cuda_array_interface__ and DLPack. Memory on the host device
    also has the buffer protocol, so NumPy accepts it. The CPU cannot access GPU memory."""
    @property
    def ptr(self) -> int:
        """Its address."""
    @property
    def nbytes(self) -> int:
        """Its length in bytes."""
    @property
    def device(self) -> str:
        """The device's name."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def to_host(self) -> bytes:
        """Returns a copy of the bytes in host memory. Blocks. Raises penstock.Error."""
    def copy_from(self, source: _Buffer, *, order: _Order = "C") -> None:
        """Copies all bytes of source, which may be any memory, to its start. Blocks. Raises ValueError where they do not fit."""
    def copy_to(self, target: _Buffer, *, order: _Order = "C") -> None:
        """Copies all bytes of this buffer to the start of target, which may be any memory. Blocks. Raises ValueError if they do
        not fit."""
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice) -> DeviceBuffer: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

# Not actually derived, but isinstance() returns True, and it has everything that concurrent.futures and asyncio need.
class Future(concurrent.futures.Future[_T]):
    """A request or batch in flight. Keeps its memory and its file alive until it has completed. May be dropped at any time,
    which does not stop the request. Can be awaited, and is accepted by wait() and as_completed() in concurrent.futures
    and by asyncio.wrap_future()."""
    def result(self, timeout: float | None = None) -> _T:
        """Blocks until the request has completed. Returns the number of bytes moved, which is less than requested only at the
        end of the file. A batch returns a list of these. timeout is in seconds. Raises the request's penstock.Error, or
        TimeoutError if it has not completed in time."""
    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As result(), but returns the error, or None."""
    def done(self) -> bool:
        """Returns whether the request has completed. Does not block."""
    def running(self) -> bool:
        """Returns whether the request is still in flight. Does not block."""
    def cancelled(self) -> bool:
        """Returns whether the request was cancelled (penstock.Cancelled). Does not block."""
    def cancel(self) -> bool:
        """Requests cancellation. Returns False if the request has already completed. It completes soon: with penstock.Cancelled,
        or normally if it was too late to stop it. Until then its memory is in use."""
    def add_done_callback(self, fn: Callable[[Future[_T]], object]) -> None:
        """Calls fn(future) when the request has completed: on one of Penstock's threads, or immediately if it has already
        completed. fn must not block. Exceptions that it raises are passed to sys.unraisablehook."""
    def _forget_callback(self, fn: Callable[[Future[Any]], object]) -> None: ...
    def __await__(self) -> Generator[Any, None, _T]: ...

class _TreeBlock:
    """Memory of several files."""

class _RemoteRetries:
    def __init__(self) -> None: ...
    def take(self) -> list[tuple[int, bool, int, int, int]]: ...

class StreamResult:
    """A request queued on a stream. Keeps its memory and its file alive until the stream has passed it. May be dropped at
    any time."""
    @property
    def bytes(self) -> int:
        """The number of bytes moved, available once the stream has been synchronized. It is less than requested only at the end
        of the file. Raises the request's penstock.Error, or ValueError if it has not completed."""
    @property
    def done(self) -> bool:
        """Returns whether the stream has passed the request. Does not block."""
    def wait(self, timeout: float | None = None) -> int:
        """Blocks until the stream has passed the request, and returns the number of bytes moved. timeout is in seconds. Raises
        as bytes does, and TimeoutError."""

class PinnedRange:
    """The page cache of a file range, pinned for reads into device memory. Returned by File.pin()."""
    @property
    def size(self) -> int:
        """The number of bytes currently pinned; 0 after the pin was released or dropped."""
    @property
    def problem(self) -> str | None:
        """Why the range is no longer pinned, for example because memory ran short; None while it is pinned."""
    def release(self) -> None:
        """Releases the pin. A second call does nothing."""
    def __enter__(self) -> PinnedRange: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class File:
    """An open file, from penstock.open(). Any thread may use it. Offsets and sizes are in bytes.

    Requests take a buffer (penstock's documentation describes which objects are accepted), an offset in the file, a size
    (None: to the end of the buffer) and an offset in the buffer. An array in Fortran order is rejected unless order is
    'A', which moves the bytes in memory order. path forces one of Penstock's paths, prefer is 'speed' or 'cpu', cache
    selects how reads into device memory treat bytes that are not in the page cache ('fill', 'bypass' or 'auto'; None: as
    set when the file was opened), timeout is in seconds. A count below size always means the end of the file. Raises
    penstock.Error, and ValueError for invalid arguments."""
    @property
    def name(self) -> str | bytes | os.PathLike[str] | os.PathLike[bytes] | int:
        """The path, URL (without its query) or descriptor that the file was opened with."""
    @property
    def mode(self) -> str:
        """The mode that the file was opened with."""
    @property
    def closed(self) -> bool: ...
    def size(self) -> int:
        """Returns the current size as reported by the kernel: 0 for files in /proc, regardless of their contents."""
    def sync(self) -> None:
        """Forces written data to the disk. Blocks."""
    def close(self) -> None:
        """Waits for requests in flight, then closes the file. A second call does nothing."""
    def __enter__(self) -> File: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    async def __aenter__(self) -> File: ...
    async def __aexit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def read(self, size: int | None = -1) -> bytes:
        """Reads size bytes at the position and advances it; blocks. None or a negative number: to the end of the file. Returns
        bytes, fewer than requested at the end. All users share one position: use it from one thread at a time."""
    def readinto(self, buffer: _Buffer) -> int:
        """Reads into buffer at the position and advances it; blocks. Returns the number of bytes read, 0 at the end of the file."""
    def write(self, buffer: _Buffer) -> int:
        """Writes all of buffer at the position and advances it; blocks. Returns the number of bytes written."""
    def seek(self, offset: int, whence: Literal[0, 1, 2] = 0) -> int:
        """Moves the position used by read(), readinto() and write() to offset from the start (whence 0), the position (1) or the
        end (2). Returns the position. Requests with an explicit offset do not use it."""
    def tell(self) -> int:
        """The position."""
    def truncate(self, size: int | None = None) -> int:
        """Truncates the file to size bytes, or extends it with zeros; None: to the position, which does not change. Returns the
        size."""
    def fileno(self) -> int:
        """Returns the descriptor, which is closed with the file; for a file opened by descriptor, a duplicate of it. Writes
        through it bypass Penstock, but its requests see them."""
    def flush(self) -> None:
        """Does nothing; exists for compatibility: written data is already in the kernel. sync() forces it to the disk."""
    def readable(self) -> bool:
        """Returns whether the file is open for reading."""
    def writable(self) -> bool:
        """Returns whether the file is open for writing."""
    def seekable(self) -> bool:
        """True."""
    def readline(self, size: int | None = -1) -> bytes:
        """Reads from the position up to and including the next newline, at most size bytes; None or a negative number means no
        limit. Returns bytes, empty at the end of the file."""
    def readlines(self, hint: int | None = -1) -> list[bytes]:
        """Returns a list of the lines from the position to the end. With a positive hint, stops after that many bytes."""
    def writelines(self, lines: Iterable[_Buffer]) -> None:
        """Writes the lines at the position, one after the other."""
    def readall(self) -> bytes:
        """Reads from the position to the end of the file."""
    def isatty(self) -> bool:
        """Returns whether the file is a terminal."""
    def __iter__(self) -> File: ...
    def __next__(self) -> bytes: ...
    def read_into(
        self,
        buffer: _Buffer,
        offset: int = 0,
        size: int | None = None,
        buffer_offset: int = 0,
        *,
        order: _Order = "C",
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        timeout: float | None = None,
        progress: _Progress | None = None,
    ) -> int:
        """Reads into buffer; blocks. Returns the number of bytes read. links: the number of PCIe links over which one GPU may be
        filled from the page cache, 1 to 8 or 'auto': its own, and those of GPUs that can copy to it directly, through 32 MiB
        of memory on each. progress: a callable that is called with the bytes of each piece, or an object with update(), such
        as tqdm's. priority: 'background' for requests whose results are not needed soon: other requests run first."""
    def write_from(
        self,
        buffer: _Buffer,
        offset: int = 0,
        size: int | None = None,
        buffer_offset: int = 0,
        *,
        order: _Order = "C",
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        timeout: float | None = None,
        progress: _Progress | None = None,
    ) -> int:
        """Writes from buffer; blocks. Returns the number of bytes written, which is always all of them. progress as for
        read_into()."""
    def pread(
        self,
        buffer: _Buffer,
        offset: int = 0,
        size: int | None = None,
        buffer_offset: int = 0,
        *,
        order: _Order = "C",
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        timeout: float | None = None,
    ) -> Future[int]:
        """Starts reading into buffer. Returns a Future for the number of bytes read."""
    def pwrite(
        self,
        buffer: _Buffer,
        offset: int = 0,
        size: int | None = None,
        buffer_offset: int = 0,
        *,
        order: _Order = "C",
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        timeout: float | None = None,
    ) -> Future[int]:
        """Starts writing from buffer. Returns a Future for the number of bytes written."""
    def read_many(
        self,
        requests: Iterable[_Request],
        *,
        order: _Order = "C",
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """Reads (buffer, offset[, size[, buffer_offset]]) for each of requests, as one batch; blocks. Returns the list of
        counts. Raises the error of the first request that failed; the others are not affected."""
    def write_many(
        self,
        requests: Iterable[_Request],
        *,
        order: _Order = "C",
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """Like read_many(), but writes."""
    def pread_many(
        self,
        requests: Iterable[_Request],
        *,
        order: _Order = "C",
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        timeout: float | None = None,
    ) -> Future[list[int]]:
        """Starts the same as read_many(). Returns a Future for the list of counts."""
    def pwrite_many(
        self,
        requests: Iterable[_Request],
        *,
        order: _Order = "C",
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        timeout: float | None = None,
    ) -> Future[list[int]]:
        """Starts the same as write_many(). Returns a Future for the list of counts."""
    def read_ranges(
        self,
        buffer: _Buffer,
        offsets: Any,
        sizes: Any,
        buffer_offsets: Any = None,
        *,
        order: _Order = "C",
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        timeout: float | None = None,
    ) -> int:
        """Reads many ranges into one buffer, as one batch; blocks. offsets, sizes and buffer_offsets are sequences of int or
        arrays; a single size applies to all ranges; without buffer_offsets the ranges are placed one after the other. Arrays
        of 64-bit integers are fastest. Returns the total number of bytes read."""
    def write_ranges(
        self,
        buffer: _Buffer,
        offsets: Any,
        sizes: Any,
        buffer_offsets: Any = None,
        *,
        order: _Order = "C",
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        timeout: float | None = None,
    ) -> int:
        """Like read_ranges(), but writes."""
    def pread_ranges(
        self,
        buffer: _Buffer,
        offsets: Any,
        sizes: Any,
        buffer_offsets: Any = None,
        *,
        copies: Iterable[_Buffer] = (),
        order: _Order = "C",
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        timeout: float | None = None,
    ) -> Future[list[int]]:
        """Starts the same as read_ranges(). Returns a Future for the list of counts. copies: further buffers, on other devices,
        that receive the same ranges at the same places. The file is read once, and the bytes are copied from each buffer to
        the next if their devices can access each other. Ranges up to 32 MiB keep all devices busy. The counts of the copies
        follow those of buffer."""
    def pwrite_ranges(
        self,
        buffer: _Buffer,
        offsets: Any,
        sizes: Any,
        buffer_offsets: Any = None,
        *,
        order: _Order = "C",
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        timeout: float | None = None,
    ) -> Future[list[int]]:
        """Starts the same as write_ranges(). Returns a Future for the list of counts."""
    def read_on_stream(
        self,
        buffer: _Buffer,
        stream: Any,
        offset: int = 0,
        size: int | None = None,
        buffer_offset: int = 0,
        *,
        order: _Order = "C",
        result: int = 0,
    ) -> StreamResult:
        """Queues a read into device memory on a stream, which is an address or an object from CuPy, PyTorch or cuda-python. Does
        not block. result: the address, in host or device memory, of 8 bytes that are set before later work on the stream
        starts: to the number of bytes read, or to -1. The file may be read immediately, but not before overlapping writes
        that were queued earlier on any stream; memory is written in stream order. Returns a StreamResult."""
    def write_on_stream(
        self,
        buffer: _Buffer,
        stream: Any,
        offset: int = 0,
        size: int | None = None,
        buffer_offset: int = 0,
        *,
        order: _Order = "C",
        result: int = 0,
    ) -> StreamResult:
        """Like read_on_stream(), but queues a write from device memory."""
    def pin(self, offset: int = 0, size: int | None = None) -> PinnedRange:
        """Reads a range (size None: to the end of the file) into the page cache and pins it there: it is registered with the GPU
        driver, so that the GPU itself copies all later reads of it into device memory. Blocks. Returns a
        penstock.PinnedRange, which releases the pin at the end of a with statement, by release(), or with its last reference."""
    def prepare(self, device: Any) -> None:
        """Prepares the first read into this device on the library's threads: pinned memory, streams, a kernel. For programs that
        know the target device early. Raises NotFound if there is no such device."""
    def explain(
        self,
        size: int | _Buffer | None = None,
        offset: int = 0,
        *,
        memory: Literal["host", "pinned", "device"] | None = None,
        write: bool = False,
        path: _Path | None = None,
        prefer: _Prefer | None = None,
        cache: _Cache | None = None,
        links: _Links | None = None,
        priority: _Priority | None = None,
        device: Any = None,
    ) -> Plan:
        """Returns a penstock.Plan that says what a read (or write) of the range would do, and why. size: a number of bytes, None
        for the rest of the file, or a buffer: that many bytes, in memory like the buffer's. device: as for penstock.device().
        memory: 'host', 'pinned' or 'device'. Without either, the memory is like that of the last request on this file or,
        before the first request, that of the first of devices(). Does not create a context on a GPU."""

def open(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes] | int,
    mode: _Mode = "r",
    *,
    direct: bool = False,
    cache: _Cache | None = None,
    immutable: bool = False,
    bytes_per_second: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> File:
    """Opens a file, or (for reading) an object on a server: http://, https://, s3://BUCKET/KEY, hf://. path: str, bytes,
    PathLike, or an open descriptor, which is duplicated and not closed. mode: r, r+, w (create or truncate, write-only),
    w+, x (create, fail if it exists), x+; a 'b' is ignored. direct: large aligned writes bypass the page cache. cache:
    how reads of this file into device memory treat bytes that are not in the page cache: 'fill' it with them, 'bypass' the
    cache, or 'auto'. immutable: you guarantee that the file's bytes do not change while it is open here, so that for
    sequential blocking reads up to 16 MiB into device memory, the following bytes are read ahead from the page cache into
    pinned memory. For mode r. bytes_per_second: a limit for requests on this file, which are delayed when it is reached;
    0 means no limit. storage_options: a mapping that says how to reach a server: kind (auto, http, s3, s3_public,
    s3_presigned, webhdfs), size (in bytes: it is then not requested from the server), headers (for http), region,
    endpoint, profile, access_key_id, secret_access_key, session_token, anonymous, allow_credential_process,
    requester_pays, addressing_style, use_fips, use_dualstack, and for writing content_type, server_side_encryption,
    sse_kms_key_id, storage_class, acl, tags (for s3; values that are not given are looked up as the AWS tools do; the
    usual names of fsspec and object_store are also accepted), user (for webhdfs), attempts, retried_statuses, timeout and
    retry_pause in seconds (retries and waiting), cache_dir (a folder that caches what is read for later readers on this
    machine) and cache_bytes (its size limit), ranges_only (reads fail on a server without ranges, instead of reading the
    whole object once). Raises penstock.Error, which is also FileNotFoundError, PermissionError or FileExistsError, and
    ValueError for an invalid mode."""
def open_many(paths: list[str] | list[bytes] | list[os.PathLike[str]]) -> list[File | Exception]: ...
def close_many(files: list[File]) -> None: ...
def pread_many(
    requests: Iterable[_FileRequest],
    *,
    order: _Order = "C",
    path: _Path | None = None,
    prefer: _Prefer | None = None,
    cache: _Cache | None = None,
    links: _Links | None = None,
    priority: _Priority | None = None,
    timeout: float | None = None,
) -> Future[list[int]]:
    """Starts reading (file, buffer, offset[, size[, buffer_offset]]) for each of requests, as one batch over any number of
    files. Returns a Future for the list of counts, which raises the error of the first request that failed; the others
    are not affected."""
def pwrite_many(
    requests: Iterable[_FileRequest],
    *,
    order: _Order = "C",
    path: _Path | None = None,
    prefer: _Prefer | None = None,
    cache: _Cache | None = None,
    links: _Links | None = None,
    priority: _Priority | None = None,
    timeout: float | None = None,
) -> Future[list[int]]:
    """Like pread_many(), but writes."""
def read_tree(
    folder: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    *,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int = 17179869184,
    max_files: int = 1000000,
) -> dict[str, memoryview]:
    """Reads all files of a folder and its subfolders into memory, with as many threads as the file system can use. Blocks.
    Returns a dict of read-only memoryviews by path, relative to the folder with "/" between names, sorted. The views of small
    files share blocks of 8 MiB, so copy the few that you keep for long. Follows links to files inside the folder. Raises an
    error that names the file if it vanishes, changes while it is read, cannot be read, or is a link that leads elsewhere,
    a socket or a device; InvalidArgument if there are more than max_bytes or max_files. folder may be s3://BUCKET/FOLDER or
    gs://BUCKET/FOLDER: each object takes one request, and an object that changed since it was listed is an error.
    storage_options: as for penstock.open()."""
def devices() -> list[Device]:
    """Returns all devices, the GPUs first and then the host device. Does not create a context on any of them."""
def device(name: Any) -> Device:
    """Returns a device by name: "host:0" (also "host" and "cpu"), "cuda:1" (also 1) or "cuda" for CUDA's current one; or by
    a torch.device or CuPy Device. Raises FileNotFoundError if there is no such device; the message says why and lists the
    devices."""
def copy(target: _Buffer, source: _Buffer, *, order: _Order = "C") -> None:
    """Copies all bytes of source to the start of target; either may be host or device memory. Blocks. An array in Fortran
    order is rejected unless order is 'A', which copies the bytes in memory order. Raises penstock.Error."""
def share_memory(memory: _Buffer) -> tuple[bytes, int, int, int]:
    """Returns what open_shared_memory() in another process needs to map device memory: handle, offset, length and a descriptor,
    which the caller closes; -1 if none is needed. Raises penstock.Error."""
def open_shared_memory(device: str, handle: bytes, offset: int, nbytes: int, descriptor: int, process: int) -> DeviceBuffer:
    """Maps device memory of another process, whose PID here is process, as a DeviceBuffer. Writes change that process's memory.
    Raises penstock.Error."""
def digest_of(parts: list[tuple[int, int, int]]) -> tuple[int, int, int, int]:
    """Returns the four sums of the digest (weights_cache/_digest.py) of host memory. parts: tuples of address, nbytes and first row."""
def add_to_digest(parts: list[tuple[int, int, int]], sums: int, stream: int) -> None:
    """Queues an operation on a stream: adds the digest of device memory to the four 64-bit integers at address sums on the same
    device. The first call loads a kernel, even if parts is empty, and may wait for the device. Raises penstock.Error."""
def describe(memory: _Buffer | int) -> dict[str, Any]:
    """Describes the memory of a buffer or address: {"kind": "host" | "pinned" | "device", "device": its name or None, "base"
    and "nbytes": of the allocation, or None}."""
def resolve(obj: _Buffer, writable: bool = False) -> tuple[int, int]: ...
def stats() -> dict[str, Any]:
    """Returns this process's counters: requests, bytes, and under "paths" what each path moved, with histograms by size
    (powers of two from 1 KiB) and time (from 1 microsecond). "channels" lists what its pipes moved over each channel,
    "usage" the counters from which advice is derived."""
def requests() -> list[Request]:
    """Returns this process's requests in flight, including those made through other interfaces: a list of penstock.Request."""
def summary() -> str:
    """Returns the counters as text: what each path moved, and why a faster one was not used."""
def advice() -> list[dict[str, Any]]:
    """Returns usage patterns that cost this program speed, greatest loss first: a list of dicts with "code", "text",
    "remedy" and "loss_seconds" (None if unknown). Empty if there is no advice."""
def trim() -> int:
    """Returns idle pinned staging memory to the system. Returns the number of bytes released. Later requests pin memory
    again."""
def quiesce(timeout: float | None = None) -> None:
    """Does the part of penstock.quiesce() that concerns no Python objects. timeout: seconds. Raises TimedOut, which names a
    request in flight, and Error, which names what cannot be frozen."""
def cuda_status() -> str | None:
    """Returns why no CUDA device can be used; None if one can."""
def gpu_direct_status() -> str | None:
    """Returns why no file on this machine can be read or written GPU-direct; None if some can."""
def _cufile_settings() -> dict[str, int | bool | str]: ...
def _cufile_calls() -> dict[str, int]: ...
def _cufile_use() -> tuple[int, int]: ...
def _cufile_opening() -> int: ...
def _cufile_register_file(descriptor: int) -> tuple[int, int, int, Exception | None]: ...
def _cufile_release_file(handle: int) -> bool: ...
def _cufile_is_file(handle: int) -> bool: ...
def _cufile_file(handle: int) -> tuple[File, int] | None: ...
def _cufile_register_buffer(base: int, length: int, flags: int) -> tuple[int, int]: ...
def _cufile_reachable(address: int, length: int, writable: bool) -> bool: ...
def _cufile_buffer_fault(base: int, offset: int, length: int, is_write: bool) -> int: ...
def _cufile_counts() -> bool: ...
def _cufile_count(address: int, is_write: bool, bytes_done: int, failed: bool, took_ns: int, is_vector: bool) -> None: ...
def _cufile_count_call(what: str, ok: bool) -> None: ...
def _cufile_words(status: int) -> str: ...
def _finish() -> None: ...
def _settle() -> None: ...
def _under_way() -> int: ...
def _held_memories() -> int: ...

_Told = tuple[int, bytes, str, str]  # a tensor of a message

class _PipeMessage:
    @property
    def metadata(self) -> bytes: ...
    @property
    def payloads(self) -> list[bytes]: ...
    @property
    def tensors(self) -> list[_Told]: ...
    def receive(
        self,
        into: Sequence[_Buffer] | None,
        streams: Sequence[int],
        timeout: float | None,
        finish: Callable[[bytes, list[bytes], list[_Told], list[Any] | None], _T] | None,
    ) -> Future[_T]: ...
    def receive_on_stream(
        self,
        into: Sequence[_Buffer],
        streams: Sequence[int],
        timeout: float | None,
        finish: Callable[[bytes, list[bytes], list[_Told], list[Any] | None], _T] | None,
    ) -> Future[_T]: ...

class _Pipe:
    def send(
        self,
        metadata: bytes,
        payloads: Sequence[_Buffer],
        tensors: Sequence[_Buffer],
        facts: Sequence[bytes],
        devices: Sequence[str],
        streams: Sequence[int],
        timeout: float | None,
    ) -> Future[int]: ...
    def next(self, timeout: float | None, finish: Callable[[_PipeMessage], _T]) -> Future[_T]: ...
    def receive(
        self,
        into: Sequence[_Buffer],
        streams: Sequence[int],
        timeout: float | None,
        finish: Callable[[bytes, list[bytes], list[_Told], list[Any] | None], _T] | None,
    ) -> Future[_T]: ...
    def receive_anywhere(
        self,
        asks: bool | None,
        make: Callable[[_PipeMessage], tuple[list[_Buffer], list[int]]],
        timeout: float | None,
        finish: Callable[[bytes, list[bytes], list[_Told], list[Any] | None], _T] | None,
    ) -> Future[_T]: ...
    def explain(
        self,
    ) -> tuple[
        str, str, list[tuple[str, bool, str]], list[tuple[str, bool, str]], list[tuple[str, str, list[tuple[str, bool, str]]]], int
    ]: ...
    def stats(self) -> list[tuple[str, int, int, int, int, int]]: ...
    def close(self) -> None: ...

class _PipeListener:
    @property
    def url(self) -> str: ...
    @property
    def refused(self) -> int: ...
    def accept(self, timeout: float | None, finish: Callable[[_Pipe], _T]) -> Future[_T]: ...
    def close(self) -> None: ...

def _pipe_listen(url: str, channels: Sequence[str], secret: bytes, connections: int, tls: Sequence[str] | None = None) -> _PipeListener: ...
def _pipe_connect(url: str, channels: Sequence[str], secret: bytes, connections: int, tls: Sequence[str] | None = None) -> _Pipe: ...

# (name, dtype, shape, offset, nbytes)
_Tensor = tuple[str, str, tuple[int, ...], int, int]

# Offsets, sizes and places of non-empty ranges, as packed 64-bit integers.
_Packed = tuple[bytes, bytes, bytes]

class TensorHeader:
    def __len__(self) -> int: ...
    def __contains__(self, name: object) -> bool: ...
    def names(self) -> list[str]: ...
    def dtypes(self) -> list[str]: ...
    def kinds(self) -> set[str]: ...
    def shapes(self) -> list[tuple[int, ...]]: ...
    def offsets(self) -> list[int]: ...
    def sizes(self) -> list[int]: ...
    # Returns the end, the starts, and the packed offsets, sizes and places.
    def place(self, alignment: int, start: int = 0) -> tuple[int, bytes, _Packed]: ...
    def find(self, name: str) -> _Tensor | None: ...
    def only(self, names: list[str]) -> TensorHeader: ...
    @property
    def metadata(self) -> dict[str, str] | None: ...
    @property
    def data_offset(self) -> int: ...

# Name, type, shape in elements, elements per block, bytes per block, offset, nbytes.
_GGUFRow = tuple[str, str, tuple[int, ...], int, int, int, int]

class GGUFHeader:
    @property
    def version(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def tensors(self) -> TensorHeader: ...
    def rows(self) -> list[_GGUFRow]: ...
    def unknown_rows(self) -> list[tuple[str, int, tuple[int, ...], int]]: ...

def read_gguf(file: File) -> GGUFHeader: ...
def gguf_files(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> list[str]: ...
def check_gguf_files(files: list[str], headers: list[GGUFHeader]) -> None: ...
class KVStore:
    def put(self, keys: list[str | bytes], buffers: list[_Buffer | list[_Buffer] | tuple[_Buffer, ...]], return_exceptions: bool = False, stream: Any = None) -> Future[list[Any]]: ...
    def get(self, keys: list[str | bytes], buffers: list[_Buffer | list[_Buffer] | tuple[_Buffer, ...]], return_exceptions: bool = False) -> list[Any]: ...
    def get_async(self, keys: list[str | bytes], buffers: list[_Buffer | list[_Buffer] | tuple[_Buffer, ...]], return_exceptions: bool = False, stream: Any = None) -> Future[list[Any]]: ...
    def sizes(self, keys: list[str | bytes]) -> list[int | None]: ...
    def drop(self, keys: list[str | bytes]) -> list[bool]: ...
    def sync(self) -> None: ...
    def stats(self) -> tuple[int, int, int, int, int, int, int, int, int, int]: ...
    def close(self) -> None: ...

def open_kv(
    folder: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    capacity_bytes: int,
    read_only: bool,
    checksums: bool,
    durable: bool,
    direct: bool,
    max_put_bytes: int,
) -> KVStore: ...

def read_safetensors(file: File | str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> TensorHeader: ...
def parse_safetensors(beginning: Buffer, file_bytes: int | None = None) -> TensorHeader: ...
def part_of(
    shape: Sequence[int], item_bytes: int, index: Sequence[int | slice], gaps: tuple[int, int, int, bool] | None
) -> tuple[tuple[int, ...], list[int], int, tuple[Any, ...] | None]: ...

MODEL_ALIGNMENT: int  # of each tensor in memory: sufficient for a GPU's widest accesses, like cudaMalloc's
MOST_MODEL_INDEX_BYTES: int
MOST_MODEL_REQUEST_BYTES: int

def is_url(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> bool: ...
def file_path(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str: ...

# For s3://BUCKET/BEGINNING. The size is None for a common prefix of objects' URLs.
def list_remote(
    url: str, *, storage_options: Mapping[str, Any] | None = None, one_level: bool = False
) -> list[tuple[str, int | None]]:
    """Lists the objects whose URLs start with s3://BUCKET/PREFIX, sorted, each as (URL, bytes). one_level: URLs with a "/"
    after the prefix are truncated there and listed once, as (URL, None). Blocks. Raises penstock.Error; Unsupported for
    other servers, which cannot be listed."""
def shown_name(name: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str: ...
def find_model(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes], storage_options: Mapping[str, Any] | None = None
) -> str: ...

class FileKind:
    @property
    def word(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def reader(self) -> str: ...
    @property
    def endings(self) -> tuple[str, ...]: ...

def file_kinds() -> list[FileKind]: ...
def find_file_kind(file: File) -> FileKind | None: ...
def _add_file_kind(word: str, name: str, magic: str, reader: str) -> None: ...

# Returns the files, and for each tensor the file listed in the index.
def shards_of_index(json: bytes, path: str) -> tuple[list[str], dict[str, str]]: ...
def check_model(files: list[str], headers: list[TensorHeader], promised: dict[str, str]) -> None: ...

class ReadFlow:
    def __init__(self, most_bytes: int = 0, links: _Links | None = None) -> None: ...
    def add(self, file: File, buffer: _Buffer, offsets: Any, sizes: Any, buffer_offsets: Any) -> Future[list[int]]: ...

# Returns the start and end of the tensors' memory, and for each header its tensors and their ranges.
def find_plain_tensors(
    headers: list[TensorHeader], targets: dict[str, Any], classes: tuple[type, ...]
) -> tuple[int, int, list[tuple[list[Any], _Packed]]] | None: ...

# Returns the first bytes of the file, then, in file order, indexes into names, offsets and nbytes.
def make_safetensors(
    names: Iterable[str], dtypes: Iterable[str], shapes: Iterable[Iterable[int]], metadata: dict[str, str] | None = None
) -> tuple[bytes, list[int], list[int], list[int]]: ...

class PendingFile:
    def __init__(
        self,
        path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
        mode: int | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None: ...
    @property
    def is_object(self) -> bool: ...
    def fileno(self) -> int: ...
    def open(self, *, direct: bool = False) -> File: ...
    @property
    def path(self) -> str: ...
    def publish(self, *, replace: bool = True, durable: bool = True) -> None: ...
    def drop(self) -> None: ...
    def __enter__(self) -> PendingFile: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
