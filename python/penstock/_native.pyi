"""The native module. Import penstock instead."""

import concurrent.futures
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

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
_Buffer = Buffer | _CudaArray | _Dlpack | _DataPointer | Pointer | DeviceBuffer
_FileRequest = (
    tuple[File, _Buffer, int] | tuple[File, _Buffer, int, int | None] | tuple[File, _Buffer, int, int | None, int]
)
_Request = tuple[_Buffer, int] | tuple[_Buffer, int, int | None] | tuple[_Buffer, int, int | None, int]

class _Updated(Protocol):
    def update(self, n: int, /) -> object: ...

_Progress = Callable[[int], object] | _Updated

__version__: str

class Pointer:
    def __init__(self, address: int, nbytes: int, owner: object = None, readonly: bool = False) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def owner(self) -> Any: ...
    @property
    def readonly(self) -> bool: ...

class Device:
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def pci_bus_id(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def numa_node(self) -> int: ...
    @property
    def window_bytes(self) -> int: ...
    @property
    def shares_host_memory(self) -> bool: ...
    @property
    def uuid(self) -> str: ...
    def empty(self, nbytes: int) -> DeviceBuffer: ...

class DeviceBuffer:
    @property
    def ptr(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def to_host(self) -> bytes: ...
    def copy_from(self, source: _Buffer, *, order: _Order = "C") -> None: ...
    def copy_to(self, target: _Buffer, *, order: _Order = "C") -> None: ...
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
    def result(self, timeout: float | None = None) -> _T: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...
    def done(self) -> bool: ...
    def running(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> bool: ...
    def add_done_callback(self, fn: Callable[[Future[_T]], object]) -> None: ...
    def _forget_callback(self, fn: Callable[[Future[Any]], object]) -> None: ...
    def __await__(self) -> Generator[Any, None, _T]: ...

class _RemoteRetries:
    def __init__(self) -> None: ...
    def take(self) -> list[tuple[int, bool, int, int, int]]: ...

class StreamResult:
    @property
    def bytes(self) -> int: ...
    @property
    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> int: ...

class PinnedRange:
    @property
    def size(self) -> int: ...
    @property
    def problem(self) -> str | None: ...
    def release(self) -> None: ...
    def __enter__(self) -> PinnedRange: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class File:
    @property
    def name(self) -> str | bytes | os.PathLike[str] | os.PathLike[bytes] | int: ...
    @property
    def mode(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def size(self) -> int: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> File: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    async def __aenter__(self) -> File: ...
    async def __aexit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def read(self, size: int | None = -1) -> bytes: ...
    def readinto(self, buffer: _Buffer) -> int: ...
    def write(self, buffer: _Buffer) -> int: ...
    def seek(self, offset: int, whence: Literal[0, 1, 2] = 0) -> int: ...
    def tell(self) -> int: ...
    def truncate(self, size: int | None = None) -> int: ...
    def fileno(self) -> int: ...
    def flush(self) -> None: ...
    def readable(self) -> bool: ...
    def writable(self) -> bool: ...
    def seekable(self) -> bool: ...
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
    ) -> int: ...
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
    ) -> int: ...
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
    ) -> Future[int]: ...
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
    ) -> Future[int]: ...
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
    ) -> list[int]: ...
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
    ) -> list[int]: ...
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
    ) -> Future[list[int]]: ...
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
    ) -> Future[list[int]]: ...
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
    ) -> int: ...
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
    ) -> int: ...
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
    ) -> Future[list[int]]: ...
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
    ) -> Future[list[int]]: ...
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
    ) -> StreamResult: ...
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
    ) -> StreamResult: ...
    def pin(self, offset: int = 0, size: int | None = None) -> PinnedRange: ...
    def prepare(self, device: Any) -> None: ...
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
    ) -> Plan: ...

def open(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes] | int,
    mode: _Mode = "r",
    *,
    direct: bool = False,
    cache: _Cache | None = None,
    immutable: bool = False,
    bytes_per_second: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> File: ...
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
) -> Future[list[int]]: ...
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
) -> Future[list[int]]: ...
def devices() -> list[Device]: ...
def device(name: Any) -> Device: ...
def copy(target: _Buffer, source: _Buffer, *, order: _Order = "C") -> None: ...
def describe(memory: _Buffer | int) -> dict[str, Any]: ...
def resolve(obj: _Buffer, writable: bool = False) -> tuple[int, int]: ...
def stats() -> dict[str, Any]: ...
def requests() -> list[Request]: ...
def summary() -> str: ...
def advice() -> list[dict[str, Any]]: ...
def trim() -> int: ...
def cuda_status() -> str | None: ...
def gpu_direct_status() -> str | None: ...
def _cufile_settings() -> dict[str, int | bool | str]: ...
def _cufile_calls() -> dict[str, int]: ...
def _cufile_use() -> tuple[int, int]: ...
def _cufile_opening() -> int: ...
def _cufile_register_file(descriptor: int) -> tuple[int, int, int]: ...
def _cufile_release_file(handle: int) -> None: ...
def _cufile_register_buffer(base: int, length: int, flags: int) -> tuple[int, int]: ...
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

# Of s3://BUCKET/BEGINNING. The size is None of what other objects' URLs begin with.
def list_remote(
    url: str, *, storage_options: Mapping[str, Any] | None = None, one_level: bool = False
) -> list[tuple[str, int | None]]: ...
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
