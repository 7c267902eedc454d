"""The native module. Import penstock instead."""

import concurrent.futures
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from typing_extensions import Buffer

from ._plan import Plan
from ._requests import Request

_T = TypeVar("_T")

# "C", or "A": also Fortran's, and the bytes go as they lie in memory.
_Order = Literal["C", "A"]
_Path = Literal["posix", "staged", "mapped", "direct", "dma_buf"]
_Prefer = Literal["speed", "cpu"]
_Cache = Literal["auto", "keep", "bypass"]
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

# Anything that is memory: see penstock's documentation.
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
    """Memory at an address: of the host or of a device.

    owner, if given, is kept alive as long as the Pointer and every request on it. readonly memory can be written
    from, not read into. Nothing checks that the address is right."""
    def __init__(self, address: int, nbytes: int, owner: object = None, readonly: bool = False) -> None: ...
    @property
    def address(self) -> int:
        """Where it begins."""
    @property
    def nbytes(self) -> int:
        """Its length in bytes."""
    @property
    def owner(self) -> Any:
        """What keeps the memory alive, or None."""
    @property
    def readonly(self) -> bool:
        """Whether it can only be written from."""

class Device:
    """A device whose memory files can be read into: a GPU, or the host device "host:0"."""
    @property
    def name(self) -> str:
        """"cuda:0" or "host:0"."""
    @property
    def description(self) -> str:
        """The maker's name of it."""
    @property
    def pci_bus_id(self) -> str:
        """"0000:3b:00.0"; empty for the host device."""
    @property
    def memory_bytes(self) -> int:
        """Its memory in bytes."""
    @property
    def numa_node(self) -> int:
        """The NUMA node that it is attached to; -1: not known."""
    @property
    def window_bytes(self) -> int:
        """Its largest PCI memory window (BAR1) in bytes; 0: not known."""
    @property
    def shares_host_memory(self) -> bool:
        """It has no memory but the host's (DGX Spark, Jetson): of memory_bytes, what programs and the page cache hold is not free."""
    @property
    def uuid(self) -> str:
        """"GPU-...", as nvidia-smi writes it; empty: not known."""
    def empty(self, nbytes: int) -> DeviceBuffer:
        """Allocates nbytes of its memory, uninitialized. Raises penstock.Error."""

class DeviceBuffer:
    """Memory of one device, from Device.empty(), or a slice of it. Freed when the last reference to any of it is
    gone; a request under way holds one. CuPy and PyTorch take it by __cuda_array_interface__ and DLPack; that of
    the host device has the buffer protocol, so NumPy takes it. The CPU cannot touch that of a GPU."""
    @property
    def ptr(self) -> int:
        """Its address."""
    @property
    def nbytes(self) -> int:
        """Its length in bytes."""
    @property
    def device(self) -> str:
        """The name of its device."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def to_host(self) -> bytes:
        """A copy of its bytes. Blocks. Raises penstock.Error."""
    def copy_from(self, source: _Buffer, *, order: _Order = "C") -> None:
        """Copies all bytes of source, which may be any memory, to its start. Blocks. Raises ValueError where they do not fit."""
    def copy_to(self, target: _Buffer, *, order: _Order = "C") -> None:
        """Copies all its bytes to the start of target, which may be any memory. Blocks. Raises ValueError where they do not fit."""
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

# Not really derived: it says so to isinstance(), and has what concurrent.futures and asyncio need.
class Future(concurrent.futures.Future[_T]):
    """A request under way, or a batch. Keeps its memory and its file alive until it has ended; may be dropped at any time,
    which stops nothing. Can be awaited, and is taken by wait() and as_completed() of concurrent.futures, and by
    asyncio.wrap_future()."""
    def result(self, timeout: float | None = None) -> _T:
        """Blocks until it has ended. Returns the bytes moved: fewer than asked for at the end of the file, and only there. A batch
        returns a list of them. timeout in seconds. Raises penstock.Error as the request ended with, TimeoutError when it has not."""
    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As result(), but returns the error, or None."""
    def done(self) -> bool:
        """Whether it has ended. Does not block."""
    def running(self) -> bool:
        """Whether it has not ended. Does not block."""
    def cancelled(self) -> bool:
        """Whether it has ended with penstock.Cancelled. Does not block."""
    def cancel(self) -> bool:
        """Asks it to stop; False when it has ended before. It ends soon: with penstock.Cancelled, or well when that came too late. Until
        then its memory is in use."""
    def add_done_callback(self, fn: Callable[[Future[_T]], object]) -> None:
        """Calls fn(future) once it has ended: on a thread of Penstock, or at once where it has ended before. fn must not block. What it
        raises goes to sys.unraisablehook."""
    def _forget_callback(self, fn: Callable[[Future[Any]], object]) -> None: ...
    def __await__(self) -> Generator[Any, None, _T]: ...

class _RemoteRetries:
    def __init__(self) -> None: ...
    def take(self) -> list[tuple[int, bool, int, int, int]]: ...

class StreamResult:
    """A request queued onto a stream. Keeps its memory and its file alive until the stream has passed it; may be
    dropped at any time."""
    @property
    def bytes(self) -> int:
        """The bytes moved, once the stream has been synchronized: fewer than asked for at the end of the file, and only there. Raises
        penstock.Error as the request ended with, ValueError when it has not ended."""
    @property
    def done(self) -> bool:
        """Whether the stream has passed it. Does not block."""
    def wait(self, timeout: float | None = None) -> int:
        """Blocks until the stream has passed it, and returns its bytes. timeout in seconds. Raises as bytes does, and TimeoutError."""

class PinnedRange:
    """The page cache of a range of a file, pinned for reads into device memory. From File.pin()."""
    @property
    def size(self) -> int:
        """Bytes that are pinned now: 0 once it was released, or given up."""
    @property
    def problem(self) -> str | None:
        """Why it is no longer pinned, as where memory ran short; None while it is."""
    def release(self) -> None:
        """Gives it back. A second time does nothing."""
    def __enter__(self) -> PinnedRange: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class File:
    """An open file, from penstock.open(). Any thread may use it. Offsets and sizes are in bytes.

    Requests take a buffer (see penstock's documentation for what is one), the offset in the file, the size
    (None: to the end of the buffer) and the offset in the buffer. An array in Fortran's order is refused, unless order is 'A': then
    its bytes go as they lie in memory. path forces one of Penstock's paths, prefer is
    'speed' or 'cpu', cache is what reads into device memory do with what is not in the page cache ('keep', 'bypass' or 'auto'; None:
    as the file was opened), timeout is in seconds. A count below size means the end of the file, and nothing else.
    Raises penstock.Error; ValueError for what the caller got wrong."""
    @property
    def name(self) -> str | bytes | os.PathLike[str] | os.PathLike[bytes] | int:
        """What it was opened by; of a URL without its query."""
    @property
    def mode(self) -> str:
        """How it was opened."""
    @property
    def closed(self) -> bool: ...
    def size(self) -> int:
        """Its size now, as the kernel tells it: 0 for files of /proc, whatever they hold."""
    def sync(self) -> None:
        """Forces written data to the disk. Blocks."""
    def close(self) -> None:
        """Waits for requests under way, then closes. A second time does nothing."""
    def __enter__(self) -> File: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    async def __aenter__(self) -> File: ...
    async def __aexit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def read(self, size: int | None = -1) -> bytes:
        """Reads size bytes from the position on, and moves it on; blocks. None or a negative number: to the end of the file. Returns
        bytes, fewer than asked for at the end. The position is one, whoever uses it: one thread at a time does."""
    def readinto(self, buffer: _Buffer) -> int:
        """Reads into buffer from the position on, and moves it on; blocks. Returns the bytes read, 0 at the end of the file."""
    def write(self, buffer: _Buffer) -> int:
        """Writes all of buffer from the position on, and moves it on; blocks. Returns the bytes written."""
    def seek(self, offset: int, whence: Literal[0, 1, 2] = 0) -> int:
        """Moves the position of read(), readinto() and write() to offset from the beginning (whence 0), itself (1) or the end (2).
        Returns it. Requests that name an offset have nothing to do with it."""
    def tell(self) -> int:
        """The position."""
    def truncate(self, size: int | None = None) -> int:
        """Cuts the file to size bytes, or lengthens it with zeros; None: to the position, which stays. Returns the size."""
    def fileno(self) -> int:
        """Its descriptor, which is closed with it; of a file that was opened by a descriptor, a duplicate of that one. What is written
        through it goes past Penstock, whose requests see it."""
    def flush(self) -> None:
        """Does nothing, for those who expect it: what was written is the kernel's already. sync() forces it to the disk."""
    def readable(self) -> bool:
        """Whether it is open for reading."""
    def writable(self) -> bool:
        """Whether it is open for writing."""
    def seekable(self) -> bool:
        """True."""
    def readline(self, size: int | None = -1) -> bytes:
        """Reads from the position on up to and with the next newline, at most size bytes; None or a negative number: however long it
        is. Returns bytes, none at the end of the file."""
    def readlines(self, hint: int | None = -1) -> list[bytes]:
        """A list of the lines from the position on; with a positive hint no more once they have so many bytes."""
    def writelines(self, lines: Iterable[_Buffer]) -> None:
        """Writes each of lines at the position, one after the other."""
    def readall(self) -> bytes:
        """Reads from the position to the end of the file."""
    def isatty(self) -> bool:
        """Whether it is a terminal."""
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
        """Reads into buffer; blocks. Returns the bytes read. links: PCIe links that one GPU may be filled over from the page cache, 1 to
        8 or 'auto': its own, and those of GPUs that copy to it straight, through 32 MiB of the memory of each. progress is told the
        bytes of each piece: a callable, or an object with update(), such as tqdm's. priority: 'background' for what nobody waits for: other
        requests go first."""
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
        """Writes from buffer; blocks. Returns the bytes written, which are all. progress as for read_into()."""
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
        """Begins to read into buffer. Returns a Future of the bytes read."""
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
        """Begins to write from buffer. Returns a Future of the bytes written."""
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
        """Reads (buffer, offset[, size[, buffer_offset]]) for each of requests, as one batch; blocks. Returns the list of counts. Raises
        as the first that failed; the others are not disturbed."""
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
        """Writes; otherwise as read_many()."""
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
        """Begins what read_many() does. Returns a Future of the list of counts."""
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
        """Begins what write_many() does. Returns a Future of the list of counts."""
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
        """Reads many ranges into one buffer, as one batch; blocks. offsets, sizes and buffer_offsets are sequences of int or arrays; a
        single size holds for all; without buffer_offsets the ranges lie one after the other. Arrays of 64-bit integers are the quick
        way. Returns the total of bytes read."""
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
        """Writes; otherwise as read_ranges()."""
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
        """Begins what read_ranges() does. Returns a Future of the list of counts.
        copies: further buffers, of other devices, that get the same ranges at the same places: the file is read once, and the bytes go on
        from each buffer to the next, where their devices reach each other. Ranges of 32 MiB and less keep all of them busy. Their counts follow."""
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
        """Begins what write_ranges() does. Returns a Future of the list of counts."""
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
        """Queues a read into device memory onto a stream: an address, or an object of CuPy, PyTorch or cuda-python. Does not block.
        result: an address, of the host or of a device, where 8 bytes are set before later work of the stream starts: to the bytes
        read, or to -1. The file may be read from the call on, but after writes onto streams that were queued before and overlap it;
        memory is written to in the order of the stream. Returns a StreamResult."""
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
        """Queues a write from device memory onto a stream; otherwise as read_on_stream()."""
    def pin(self, offset: int = 0, size: int | None = None) -> PinnedRange:
        """Brings a range (size None: to the end) into the page cache and pins it there: it is registered with the GPU's
        driver, so that reads into device memory are copied from it by the GPU, however often they come. Blocks. Returns
        a penstock.PinnedRange, which gives it back at the end of a with statement, by release(), or with its last
        reference."""
    def prepare(self, device: Any) -> None:
        """Begins to make, on the library's threads, what the first read into that device needs: pinned memory, streams, a kernel. For programs
        that know where the bytes will go before they ask for them. Raises NotFound where there is no such device."""
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
        """What a read of the range (or a write) would do, and why: a penstock.Plan. size: a number of bytes, None for the rest of the
        file, or a buffer: that many bytes with memory like it. device: a device, as for penstock.device(); memory: 'host', 'pinned' or
        'device'. Without either it is memory like that of the last request on this file, and before the first one that of the first
        of devices(). Makes no context on a GPU."""

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
    """Opens a file, or an object on a server for reading: http://, https://, s3://BUCKET/KEY, hf://. path: str, bytes, PathLike, or an open descriptor, which is duplicated and not closed. mode: r, r+, w (create or empty, write
    only), w+, x (create, fail where it is there), x+; a 'b' is ignored. direct: large aligned writes bypass the page cache. cache: what
    reads of this file into device memory do with what is not in the page cache: 'keep' it there, 'bypass' the cache, or 'auto'.
    immutable: nobody changes the bytes of the file while it is open here, so that blocking reads of up to 16 MiB into device memory
    that each begin where the last one ended find what is in the page cache in pinned memory already. For mode r.
    bytes_per_second: a limit for what requests of this file move, which are delayed where it is reached; 0 is none.
    storage_options: how a server is reached, a mapping: kind (auto, http, s3, s3_public, s3_presigned, webhdfs), size (bytes: then the
    server is not asked), headers (of http), region, endpoint, profile, access_key_id, secret_access_key, session_token, anonymous,
    allow_credential_process, requester_pays, addressing_style, use_fips, use_dualstack, and of what is written content_type,
    server_side_encryption, sse_kms_key_id, storage_class, acl, tags (of s3; what is not given is looked for where the AWS tools do; the
    usual names of fsspec and object_store mean the same), user (of webhdfs), attempts,
    retried_statuses, timeout and retry_pause in seconds (patience with the server),
    cache_dir (a folder in which what is read is kept for the next reader on this machine) and cache_bytes (that it may hold),
    ranges_only (reads of a server without ranges fail, instead of reading the whole object once).
    Raises penstock.Error, which is also FileNotFoundError, PermissionError or FileExistsError; ValueError for a wrong mode."""
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
    """Begins to read (file, buffer, offset[, size[, buffer_offset]]) for each of requests, as one batch over any number of files.
    Returns a Future of the list of counts, which raises as the first that failed; the others are not disturbed."""
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
    """Begins to write; otherwise as pread_many()."""
def devices() -> list[Device]:
    """All devices, without making a context on any: the GPUs, then the host device."""
def device(name: Any) -> Device:
    """The device of that name: "host:0" (also "host" and "cpu"), "cuda:1" (also 1), "cuda" for CUDA's current one; or a
    torch.device or CuPy's Device. Raises FileNotFoundError, saying why and what there is, where there is none."""
def copy(target: _Buffer, source: _Buffer, *, order: _Order = "C") -> None:
    """Copies all bytes of source to the start of target; either may be host or device memory. Blocks. An array in Fortran's order is
    refused, unless order is 'A': then bytes go as they lie in memory. Raises penstock.Error."""
def describe(memory: _Buffer | int) -> dict[str, Any]:
    """What a buffer or an address is: {"kind": "host" | "pinned" | "device", "device": its name or None, "base" and "nbytes": of the allocation, or None}."""
def resolve(obj: _Buffer, writable: bool = False) -> tuple[int, int]: ...
def stats() -> dict[str, Any]:
    """The counters of this process: requests, bytes, and for each path under "paths" what it carried, with histograms by size (powers
    of two from 1 KiB) and time (from 1 microsecond). Under "channels" what its pipes have carried by each, under "usage" what advice
    is made from."""
def requests() -> list[Request]:
    """The requests of this process that are under way, also those of other faces: a list of penstock.Request."""
def summary() -> str:
    """The counters in words: what each path carried, and what kept bytes from a faster one."""
def advice() -> list[dict[str, Any]]:
    """What in this program costs it speed, the greatest loss first: a list of dicts with "code", "text", "remedy" and
    "loss_seconds" (None where that is not known). Empty where there is nothing to say."""
def trim() -> int:
    """Gives pinned staging memory that no request is using back to the system, and returns its bytes. Later requests pin it anew."""
def cuda_status() -> str | None:
    """Why no CUDA device can be used; None where one can."""
def gpu_direct_status() -> str | None:
    """Why no file of this machine can be read or written GPU-direct; None where some may be."""
def _cufile_settings() -> dict[str, int | bool | str]: ...
def _cufile_calls() -> dict[str, int]: ...
def _cufile_use() -> tuple[int, int]: ...
def _cufile_opening() -> int: ...
def _cufile_register_file(descriptor: int) -> tuple[int, int, int]: ...
def _cufile_release_file(handle: int) -> None: ...
def _cufile_register_buffer(base: int, length: int, flags: int) -> tuple[int, int]: ...
def _cufile_reachable(address: int, length: int, writable: bool) -> bool: ...
def _cufile_same_open_file(one: int, other: int) -> bool: ...
def _cufile_buffer_fault(base: int, offset: int, length: int, is_write: bool) -> int: ...
def _cufile_counts() -> bool: ...
def _cufile_count(address: int, is_write: bool, bytes_done: int, failed: bool, took_ns: int, is_vector: bool) -> None: ...
def _cufile_count_call(what: str, ok: bool) -> None: ...
def _cufile_words(status: int) -> str: ...
def _finish() -> None: ...
def _settle() -> None: ...
def _under_way() -> int: ...
def _held_memories() -> int: ...

class _PipeMessage:
    @property
    def metadata(self) -> bytes: ...
    @property
    def payloads(self) -> list[bytes]: ...
    @property
    def tensors(self) -> list[tuple[int, bytes, str, str]]: ...
    def receive(
        self,
        into: Sequence[_Buffer] | None,
        streams: Sequence[int],
        timeout: float | None,
        finish: Callable[[_PipeMessage, list[Any] | None], _T],
    ) -> Future[_T]: ...
    def receive_on_stream(
        self,
        into: Sequence[_Buffer],
        streams: Sequence[int],
        timeout: float | None,
        finish: Callable[[_PipeMessage, list[Any] | None], _T],
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
        finish: Callable[[_PipeMessage, list[Any] | None], _T],
    ) -> Future[_T]: ...
    def receive_anywhere(
        self,
        asks: bool | None,
        make: Callable[[_PipeMessage], tuple[list[_Buffer], list[int]]],
        timeout: float | None,
        finish: Callable[[_PipeMessage, list[Any] | None], _T],
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

# Offsets, sizes and places of ranges that have bytes, as 64-bit integers.
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
    # The end; starts; offsets, nbytes and places.
    def place(self, alignment: int, start: int = 0) -> tuple[int, bytes, _Packed]: ...
    def find(self, name: str) -> _Tensor | None: ...
    def only(self, names: list[str]) -> TensorHeader: ...
    @property
    def metadata(self) -> dict[str, str] | None: ...
    @property
    def data_offset(self) -> int: ...

# Name, type, shape of elements, elements and bytes of a block, offset, nbytes.
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
    def put(self, keys: list[str | bytes], buffers: list[_Buffer | list[_Buffer] | tuple[_Buffer, ...]], return_exceptions: bool = False) -> Future[list[Any]]: ...
    def get(self, keys: list[str | bytes], buffers: list[_Buffer | list[_Buffer] | tuple[_Buffer, ...]], return_exceptions: bool = False) -> Future[list[Any]]: ...
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

MODEL_ALIGNMENT: int  # of every tensor in memory: that of a GPU's widest accesses, as cudaMalloc has it
MOST_MODEL_INDEX_BYTES: int
MOST_MODEL_REQUEST_BYTES: int

def is_url(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> bool: ...
def file_path(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str: ...

# Of s3://BUCKET/BEGINNING. The size is None of what other objects' URLs begin with.
def list_remote(
    url: str, *, storage_options: Mapping[str, Any] | None = None, one_level: bool = False
) -> list[tuple[str, int | None]]:
    """The objects whose URLs begin with s3://BUCKET/BEGINNING, sorted, each as (URL, bytes). one_level: where they have a "/" behind
    that, (URL up to it, None) instead, once. Blocks. Raises penstock.Error; Unsupported for other servers, which list nothing."""
def shown_name(name: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str: ...
def find_model(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes], storage_options: Mapping[str, Any] | None = None
) -> str: ...

# The files; and each tensor with the file that it is promised in.
def shards_of_index(json: bytes, path: str) -> tuple[list[str], dict[str, str]]: ...
def check_model(files: list[str], headers: list[TensorHeader], promised: dict[str, str]) -> None: ...

# Where their memory begins and ends; and of each header its tensors, and their ranges.
def find_plain_tensors(
    headers: list[TensorHeader], targets: dict[str, Any], classes: tuple[type, ...]
) -> tuple[int, int, list[tuple[list[Any], _Packed]]] | None: ...

# The beginning; then, in the order of the file: places in names, offsets, nbytes.
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
