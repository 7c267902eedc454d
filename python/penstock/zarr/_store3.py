"""GDSStore for zarr 3: a LocalStore that reads and writes values through penstock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore

from penstock._core.arrays import library_named
from penstock._core.arrays.library import Library
from penstock._core.forks import forkable_lock
from penstock.zarr._files import MISSING, HandleCache, Lease, write_file
from penstock.zarr._reads import Outcome, Read, start_reads
from penstock.zarr._threads import Pool

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["GDSStore"]

DEFAULT_OPEN_FILES = 128

# Requests from one iteration of the event loop are submitted in batches, which saves most of the cost per request. Two batches are in progress, so
# that zarr decodes the chunks of one while the other is being read. Small values always share a batch, and large ones get their own batches.
BATCHES_UNDER_WAY = 2
LEAST_BATCH_BYTES = 4 << 20
MOST_BATCH_BYTES = 32 << 20


@dataclass(frozen=True)
class Place:
    """Where memory for values is allocated: on the device and the stream that were current when the place was created. Thread-safe."""

    library: Library
    device: str
    handle: int
    stream: Any = field(compare=False)

    @staticmethod
    def current(library: Library) -> Place:
        device = library.current_device()
        stream = library.current_stream(device)
        return Place(library, device, library.handle_of(stream), stream)

    def empty_many(self, sizes: Sequence[int]) -> list[Any]:
        """Returns uninitialized memory that may be written to, as one-dimensional arrays of bytes."""
        library = self.library
        with library.using(self.stream, self.device):
            arrays = [library.empty((nbytes,), library.dtype("uint8"), self.device) for nbytes in sizes]
            library.settle(self.device)
        return arrays


_HOST = Place.current(library_named("numpy"))
_libraries: dict[type[Buffer], Library] = {}


def place_of(prototype: BufferPrototype) -> Place:
    """Returns the place of a prototype's buffers."""
    library = _libraries.get(prototype.buffer)
    if library is None:
        example = prototype.buffer.create_zero_length().as_array_like()
        library = _libraries[prototype.buffer] = library_named("cupy" if hasattr(example, "__cuda_array_interface__") else "numpy")
    return Place.current(library) if library.has_streams else _HOST


def check(key: str, byte_range: ByteRequest | None) -> None:
    if not isinstance(key, str):
        raise TypeError(f"a key must be a str, got {type(key).__name__}")
    if not isinstance(byte_range, (type(None), RangeByteRequest, OffsetByteRequest, SuffixByteRequest)):
        raise TypeError(f"Unexpected byte_range, got {byte_range}.")


def _clipped(byte_range: ByteRequest | None, size: int) -> tuple[int, int]:
    """Returns offset and length of a range, clipped to a value of `size` bytes."""
    if byte_range is None:
        return 0, size
    if isinstance(byte_range, RangeByteRequest):
        start, stop = byte_range.start, min(byte_range.end, size)
    elif isinstance(byte_range, OffsetByteRequest):
        start, stop = byte_range.offset, size
    else:
        start, stop = max(0, size - byte_range.suffix), size
    return start, max(0, stop - start)


# Opens files for all stores. The loop's own executor is not used, because it would wake the loop after every call.
_openers = Pool(None, "penstock-zarr")


class _Gatherer:
    """Collects the requests in one iteration of an event loop and reads them in batches."""

    def __init__(self, store: GatheringStore) -> None:
        self._store = store
        self._waiting: dict[Place, list[_Request]] = {}
        self._under_way = 0

    def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None
    ) -> asyncio.Future[Buffer | None]:
        loop = asyncio.get_running_loop()
        request = _Request(key, prototype, byte_range, loop.create_future())
        if not self._waiting:
            loop.call_soon(self._flush, loop)
        self._waiting.setdefault(place_of(prototype), []).append(request)
        self._under_way += 1
        return request.future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, {}
        for place, requests in waiting.items():
            # Opening files may wait for a disk or a server, so it does not run on the loop's own thread.
            try:
                _openers.submit(self._start, loop, place, requests, self._under_way // BATCHES_UNDER_WAY)
            except RuntimeError as error:  # a thread could not be started
                self._end(requests, [error] * len(requests))

    def _start(self, loop: asyncio.AbstractEventLoop, place: Place, requests: list[_Request], share: int) -> None:
        """Opens the files and starts reading them."""
        try:
            errors = list(self._store._opened(lambda request: request.open(self._store), requests))
        except BaseException as error:  # a thread could not be started: the requests get the error, because this future is never examined
            self._tell(loop, requests, [error] * len(requests))
            return
        failed = {request: error for request, error in zip(requests, errors) if error is not None}
        if failed:
            self._tell(loop, list(failed), list(failed.values()))
        for batch in _batches([request for request in requests if request not in failed], share):
            self._read(loop, place, batch)

    def _read(self, loop: asyncio.AbstractEventLoop, place: Place, batch: list[_Request]) -> None:
        try:
            arrays = place.empty_many([request.size for request in batch])
            reads = [request.read_into(array) for request, array in zip(batch, arrays)]
            start_reads(reads).when_done(lambda outcomes: self._tell(loop, batch, outcomes))
        except BaseException as error:
            self._tell(loop, batch, [error] * len(batch))

    def _tell(self, loop: asyncio.AbstractEventLoop, batch: list[_Request], outcomes: list[Outcome]) -> None:
        """Passes all outcomes to the loop in one call, because each call wakes the loop. They are processed on the loop's thread, so no other thread
        waits."""
        try:
            loop.call_soon_threadsafe(self._end, batch, outcomes)
        except RuntimeError:  # the loop has been closed, so no task is waiting
            for request in batch:
                request.close()

    def _end(self, batch: list[_Request], outcomes: list[Outcome]) -> None:
        for request, outcome in zip(batch, outcomes):
            if not request.closed:  # an executor that could not start a thread may still run the rejected call
                self._under_way -= 1
                request.end(outcome)


def _batches(requests: list[_Request], share: int) -> Iterator[list[_Request]]:
    """Splits requests into groups of about `share` bytes."""
    batch: list[_Request] = []
    nbytes = 0
    for request in requests:
        batch.append(request)
        nbytes += request.size
        if nbytes >= MOST_BATCH_BYTES or (nbytes >= LEAST_BATCH_BYTES and len(batch) >= share):
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


class _Request:
    """A get() call until its bytes arrive."""

    __slots__ = ("_array", "_byte_range", "_key", "_leases", "_offset", "_prototype", "_store", "closed", "future", "size")

    def __init__(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None, future: asyncio.Future[Buffer | None]
    ) -> None:
        self._key = key
        self._prototype = prototype
        self._byte_range = byte_range
        self._leases: list[Lease] = []  # at most one; concurrent openers and closers take it with pop(), so only one of them closes it
        self.closed = False
        self.future = future

    def open(self, store: GatheringStore) -> BaseException | None:
        """Opens the file, or records the error. Blocks."""
        self._store = store
        try:
            lease = store._files.acquire(store._path(self._key))
        except BaseException as error:
            return error
        self._offset, self.size = _clipped(self._byte_range, lease.size)
        self._leases.append(lease)
        if self.closed:  # close() may have run concurrently and missed the lease
            self._let_go()
            return RuntimeError("the request is closed")
        return None

    def read_into(self, array: Any) -> Read:
        """Returns the read into an array of the same size as the range. Call it after open()."""
        self._array = array
        return Read(self._leases[0].file, array, self._offset, self.size)

    def close(self) -> None:
        """Releases the file."""
        self.closed = True
        self._let_go()

    def _let_go(self) -> None:
        with contextlib.suppress(IndexError):
            lease = self._leases.pop()
            self._store._files.release(lease)

    def end(self, outcome: Outcome) -> None:
        """Completes the request. Called once, on the loop's thread, when the bytes or an error arrive."""
        self.close()
        if self.future.done():  # the waiting task was cancelled
            return
        try:
            self.future.set_result(self._value(outcome))
        except BaseException as error:
            self.future.set_exception(error)

    def _value(self, outcome: Outcome) -> Buffer | None:
        if isinstance(outcome, MISSING):
            return None
        if isinstance(outcome, BaseException):
            raise outcome
        return _value(self._prototype, self._array, outcome)


class GatheringStore:
    """Base class for stores that read through one gatherer per event loop."""

    _files: HandleCache

    def _start_gathering(self) -> None:
        self._gatherers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Gatherer]
        self._gatherers = weakref.WeakKeyDictionary()
        self._gatherers_lock = forkable_lock()

    def _start(self) -> None:
        """Creates the state that is not pickled."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        ours = ("_files", "_gatherers", "_gatherers_lock")
        return {key: value for key, value in self.__dict__.items() if key not in ours}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def _gatherer(self) -> _Gatherer:
        loop = asyncio.get_running_loop()
        gatherer = self._gatherers.get(loop)
        if gatherer is None:
            with self._gatherers_lock:
                gatherer = self._gatherers.setdefault(loop, _Gatherer(self))
        return gatherer

    async def get(self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None) -> Buffer | None:
        raise NotImplementedError

    async def get_partial_values(self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]) -> list[Buffer | None]:
        """Returns the values of several keys or ranges, in order, read as one batch; None for each key that does not exist."""
        gets = [self.get(key, prototype, byte_range) for key, byte_range in key_ranges]
        return list(await asyncio.gather(*gets))

    def _path(self, key: str) -> str:
        """Returns the path of a key's value."""
        raise NotImplementedError

    def _opened(
        self, open_one: Callable[[_Request], BaseException | None], requests: list[_Request]
    ) -> Iterable[BaseException | None]:
        """Opens all requests and returns their errors, in order."""
        return map(open_one, requests)


def _value(prototype: BufferPrototype, array: Any, count: int) -> Buffer:
    # Fewer bytes than requested: the file was truncated after it was opened.
    value: Buffer = prototype.buffer.from_array_like(array if count == len(array) else array[:count])
    return value


_ARGUMENTS_OF_ZARR2 = {
    "normalize_keys": "as zarr 3 does not change keys; pass lower-case keys",
    "dimension_separator": 'as it is a property of the array in zarr 3: zarr.create_array(..., chunk_key_encoding={"name": "default", "separator": "/"}), '
    "and existing arrays keep their separator",
}


def _check_arguments_of_zarr2(positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Accepts GDSStore's zarr 2 arguments if they have no effect. Raises TypeError for others, with what to use instead."""
    if len(positional) > len(_ARGUMENTS_OF_ZARR2):
        raise TypeError(f"GDSStore() does not accept {len(positional) + 1} positional arguments")
    given = {**dict(zip(_ARGUMENTS_OF_ZARR2, positional)), **named}
    for name, value in given.items():
        if name not in _ARGUMENTS_OF_ZARR2:
            raise TypeError(f"GDSStore() has no argument {name!r}")
        if value not in (None, False):
            raise TypeError(f"GDSStore({name}={value!r}): omit it, {_ARGUMENTS_OF_ZARR2[name]}")


class GDSStore(GatheringStore, LocalStore):
    """A zarr 3 store in a local folder, read and written by Penstock.

    If zarr requests GPU memory (`zarr.config.enable_gpu()`), chunks are read directly into it. All requests made in one iteration of the event loop
    are submitted together, so allow zarr more chunks in progress:

    - `zarr.config.set({"async.concurrency": 64})`: 64 chunks.
    - `zarr.config.set({"codec_pipeline.batch_size": 16})` before you open an array: up to the square of "async.concurrency" (10), with half of zarr's
      own work per chunk.
    - `penstock.zarr.install()` or `penstock.zarr.load` avoids most of that work.

    Arguments:

    - `root`: the folder. It is created unless read_only is set. `path` is an alias.
    - `read_only`: writes raise ValueError.
    - `fsync`: True makes a write return only once the value and its directory entry are on disk. Otherwise, a system crash may lose the latest
      values, but a value is never incomplete, because it is written under a temporary name and then renamed.
    - `max_open_files`: how many files stay open for the next read; 0 closes each file after use. Replaced files are detected.

    A missing key gives None. penstock.Error (an OSError) names the file, the offset and the cause. You may use a store from any thread and any event
    loop; a pickled store opens its own files.
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *of_zarr2: Any,
        read_only: bool = False,
        fsync: bool = False,
        max_open_files: int = DEFAULT_OPEN_FILES,
        path: Path | str | None = None,
        **more: Any,
    ) -> None:
        _check_arguments_of_zarr2(of_zarr2, more)
        folder = path if root is None else root
        if folder is None or (root is not None and path is not None):
            raise TypeError("GDSStore() requires one folder, as either root or path")
        super().__init__(folder, read_only=read_only)
        self.fsync = fsync
        self.max_open_files = max_open_files
        self._start()

    def _start(self) -> None:
        self._files = HandleCache(self.max_open_files)
        self._start_gathering()

    @classmethod
    async def open(
        cls,
        root: Path | str,
        *,
        read_only: bool = False,
        mode: Any = None,
        fsync: bool = False,
        max_open_files: int = DEFAULT_OPEN_FILES,
    ) -> Self:
        """Creates a store and opens it. The arguments are the same as for the class; mode is as for LocalStore.open().

        Raises FileNotFoundError if the folder does not exist and read_only is set or mode is "r" or "r+".
        """
        must_exist = read_only if mode is None else mode in ("r", "r+")
        store = cls(root, read_only=must_exist, fsync=fsync, max_open_files=max_open_files)
        if must_exist and not store.root.exists():
            raise FileNotFoundError(f"{store.root} does not exist")
        await store._open()
        if must_exist != read_only:
            store = store.with_read_only(read_only)
            await store._open()
        return store

    def with_read_only(self, read_only: bool = False) -> Self:
        """Returns a store with the same folder and options, read-only or not."""
        return type(self)(self.root, read_only=read_only, fsync=self.fsync, max_open_files=self.max_open_files)

    def __repr__(self) -> str:
        return f"GDSStore('{self}')"

    def close(self) -> None:
        """Closes the store and its open files once reads in progress are done."""
        self._files.clear()
        super().close()

    # Reads

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Returns a key's value, or a range of it, in the prototype's kind of memory; None if the key does not exist.

        A range is clipped to the value. Raises TypeError for any other type of byte range, and penstock.Error if the file cannot be read.
        """
        check(key, byte_range)
        if not self._is_open:
            await self._open_once()
        return await self._gatherer().get(key, prototype or default_buffer_prototype(), byte_range)

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Like get(), but blocks and requires no event loop."""
        check(key, byte_range)
        if not self._is_open:
            self._make_root()
        wanted = prototype or default_buffer_prototype()
        place = place_of(wanted)
        try:
            with self._files.lease(self._path(key)) as lease:
                offset, length = _clipped(byte_range, lease.size)
                array = place.empty_many([length])[0]
                return _value(wanted, array, lease.file.read_into(array, offset) if length else 0)
        except MISSING:
            return None

    def _path(self, key: str) -> str:
        return os.path.join(self.root, key)

    async def _open_once(self) -> None:
        # Not _open(), which raises if a concurrent request has already opened the store.
        await asyncio.to_thread(self._make_root)

    def _make_root(self) -> None:
        if not self.read_only:
            self.root.mkdir(parents=True, exist_ok=True)
        if not self.root.exists():
            raise FileNotFoundError(f"{self.root} does not exist")
        self._is_open = True

    # Writes

    async def set(self, key: str, value: Buffer) -> None:
        """Writes a value. A value in GPU memory is written directly from there. Readers see the old value until the new one is complete.

        Raises ValueError if the store is read-only, TypeError if value is not a Buffer, and penstock.Error or OSError if it cannot be written.
        """
        await self._set(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Like set(), but does nothing if the key already has a value. If several writers try at the same time, only one succeeds."""
        with contextlib.suppress(FileExistsError):
            await self._set(key, value, exclusive=True)

    async def _set(self, key: str, value: Buffer, exclusive: bool = False) -> None:
        if not self._is_open:
            await self._open_once()
        path = self._path_for_write(key, value)
        await asyncio.to_thread(self._write, path, value, exclusive)

    def set_sync(self, key: str, value: Buffer) -> None:
        """Like set(), but blocks and requires no event loop."""
        if not self._is_open:
            self._make_root()
        self._write(self._path_for_write(key, value), value, False)

    def _path_for_write(self, key: str, value: Buffer) -> str:
        self._check_writable()
        check(key, None)
        if not isinstance(value, Buffer):
            raise TypeError(f"GDSStore.set(): `value` must be a Buffer instance. Got an instance of {type(value)} instead.")
        return self._path(key)

    def _write(self, path: str, value: Buffer, exclusive: bool) -> None:
        write_file(path, value.as_array_like(), exclusive=exclusive, fsync=self.fsync)
        self._files.forget(path)

    # Deletes also close cached files, so that their space is freed.

    async def delete(self, key: str) -> None:
        """Removes a key, or a folder with its contents. Does nothing if it does not exist. Raises ValueError if the store is read-only."""
        self._check_writable()
        await asyncio.to_thread(self._delete, key)

    def delete_sync(self, key: str) -> None:
        """Like delete(), but blocks and requires no event loop."""
        if not self._is_open:
            self._make_root()
        self._check_writable()
        self._delete(key)

    def _delete(self, key: str) -> None:
        path = self._path(key)
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
        self._files.forget(path)

    async def delete_dir(self, prefix: str) -> None:
        await super().delete_dir(prefix)
        self._files.forget(self._path(prefix))

    async def clear(self) -> None:
        await super().clear()
        self._files.clear()

    async def move(self, dest_root: Path | str) -> None:
        """Moves the folder. The store then uses the new location."""
        self._files.clear()
        await super().move(dest_root)
