"""A key-value store in a folder, for caches whose blocks move between GPU or host memory and a disk.

    import numpy
    from penstock import kv

    layers = [numpy.ones(4096, numpy.float32) for _ in range(32)]
    with kv.Store("/tmp/kv-cache", capacity_bytes=1 << 30) as store:
        store.put({"block-17": layers})              # many keys per call, several buffers per key
        found = store.get({"block-17": layers, "block-18": layers})    # [True, False]

Buffers are NumPy and CuPy arrays, PyTorch tensors, `DeviceBuffer`s and objects with the buffer protocol. Wait for the GPU work that fills a buffer
before you call `put()`, or pass its `stream`. The guide docs/guides/kv-cache.md describes what survives the failure of a process or machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from . import _native
from ._core.errors import Closed
from ._native import Future

__all__ = ["Key", "Stats", "Store"]

Key = str | bytes
# Maps each key to a buffer, or to a list or tuple of buffers.
Items = Mapping[str, Any] | Mapping[bytes, Any] | Mapping[Key, Any] | Iterable[tuple[Key, Any]]


class Stats(NamedTuple):
    """The contents of a store, and its counters since it was opened.

    - `keys`: number of keys.
    - `bytes`: total bytes of all values.
    - `capacity_bytes`: the store's total capacity in bytes.
    - `wasted_bytes`: unused bytes in the values' last 4096-byte blocks.
    - `hits`, `misses`: keys that `get()` found, and keys that it did not.
    - `evicted`: values dropped to free space.
    - `damaged`: values that did not match their checksum.
    - `put_bytes_under_way`: bytes in puts in progress.
    - `put_bytes_waiting`: bytes in queued puts.
    """

    keys: int
    bytes: int
    capacity_bytes: int
    wasted_bytes: int
    hits: int
    misses: int
    evicted: int
    damaged: int
    put_bytes_under_way: int
    put_bytes_waiting: int


class Store:
    """A key-value store in a folder. Thread-safe, except that nothing else may use the store during `close()`.

    Arguments:

    - `folder`: created if missing; otherwise it must be empty or contain a store. Your user must own the folder and its files.
    - `capacity_bytes`: the capacity for all values together. None keeps an existing store's capacity. A larger number grows the store.
    - `read_only`: opens a store that another process may be writing to. Only one process can write to the store at a time.
    - `checksums`: stores checksums for values put from host memory, and verifies them when values are read into host memory.
    - `durable`: each put is on disk when it completes.
    - `direct`: writes bypass the page cache if the file system supports it.
    - `max_put_bytes`: the maximum number of bytes that puts write at the same time; further puts wait.

    Raises: InvalidArgument, NotFound, PermissionDenied; `penstock.Error` with code "would_block" if another process writes to the store, or
    "no_space".
    """

    def __init__(
        self,
        folder: str | bytes | os.PathLike[str] | os.PathLike[bytes],
        capacity_bytes: int | None = None,
        *,
        read_only: bool = False,
        checksums: bool = True,
        durable: bool = False,
        direct: bool = False,
        max_put_bytes: int = 256 << 20,
    ) -> None:
        self.folder = os.fsdecode(folder)
        self._closed = False
        self._native = _native.open_kv(folder, capacity_bytes or 0, read_only, checksums, durable, direct, max_put_bytes)

    def put(self, items: Items, *, stream: Any = None, return_exceptions: bool = False) -> list[Any]:
        """Stores values under keys, replacing existing ones. Blocks.

        `items` is a dict that maps keys to buffers, or an iterable of such pairs. A key is a str or bytes, 1 to 512 bytes long. A value is one
        buffer, or a list of buffers that are concatenated. If the store is full, the least recently used values are dropped. `stream` is as for
        `put_async()`.

        Returns a list with True for each key. A key that fails keeps its old value. The other keys are still stored, and the call raises the failed
        key's `penstock.Error`; with `return_exceptions=True`, the list contains the error instead.
        """
        return self.put_async(items, stream=stream, return_exceptions=return_exceptions).result()

    def get(self, items: Items, *, stream: Any = None, return_exceptions: bool = False) -> list[Any]:
        """Reads values into buffers. Blocks.

        `items` is as for `put()`. The total length of a key's buffers must equal the length of its value; they may split the value differently than
        the put did. `stream` is as for `get_async()`.

        Returns a list that says whether each key was found. The buffers of missing keys have undefined contents. Errors are raised as in `put()`:
        InvalidArgument if the buffers have a different length; `penstock.Error` with code "io" if a value does not match its checksum, which also
        drops it.
        """
        if stream is not None:
            return self.get_async(items, stream=stream, return_exceptions=return_exceptions).result()
        return self._native.get(*_keys_and_buffers(items), return_exceptions)

    def put_async(self, items: Items, *, stream: Any = None, return_exceptions: bool = False) -> Future[list[Any]]:
        """Starts `put()` and returns a future. Do not change the buffers until it is done. `cancel()` skips keys that are not being written yet.

        With `stream`, the buffers are read in stream order: after the work queued on the stream before this call, and before the work queued later,
        which may change them. `stream` is a stream of PyTorch, CuPy or cuda-python, or its address (0: the default stream). All buffers must be on
        its GPU. Such a put cannot be cancelled, stores no checksum, and does not delay Python's exit. Until the future is done, only gets on the
        same stream find the values. If a key is put several times, the last put takes effect. A key fails with "no_space" if the calls in progress
        leave no room for it.
        """
        return self._native.put(*_keys_and_buffers(items), return_exceptions, stream)

    def get_async(self, items: Items, *, stream: Any = None, return_exceptions: bool = False) -> Future[list[Any]]:
        """Starts `get()` and returns a future. Gets do not wait for puts.

        With `stream`, as for `put_async()`, the buffers are filled in stream order. The keys are looked up during this call, which finds the values in
        the store and those of puts queued earlier on the same stream. Errors do not stop the stream: the buffers of missing keys then keep their old
        contents, and those of keys that fail contain old contents, zeros or parts of the value. If all keys are missing, the future does not wait
        for the stream.
        """
        return self._native.get_async(*_keys_and_buffers(items), return_exceptions, stream)

    def exists(self, keys: Iterable[Key]) -> list[bool]:
        """Returns a list that says whether each key has a value. This counts as a use. A read-only store sees the writer's current state. Raises
        `penstock.Error`.
        """
        return [size is not None for size in self.sizes(keys)]

    def sizes(self, keys: Iterable[Key]) -> list[int | None]:
        """Returns a list with the length of each key's value in bytes, or None if the key has no value. This counts as a use. Raises
        `penstock.Error`."""
        return self._native.sizes(_all_keys(keys))

    def drop(self, keys: Iterable[Key]) -> list[bool]:
        """Drops values. Returns a list that says whether each key had a value. Raises `penstock.Error`."""
        return self._native.drop(_all_keys(keys))

    def sync(self) -> None:
        """Makes all completed puts and drops survive a power failure. Blocks. Raises `penstock.Error`."""
        self._native.sync()

    def stats(self) -> Stats:
        """Returns the store's contents and counters."""
        return Stats(*self._native.stats())

    @property
    def closed(self) -> bool:
        """True after `close()`."""
        return self._closed

    def close(self) -> None:
        """Waits for calls in progress, syncs, and unlocks the store for other writers. A second call does nothing. Raises `penstock.Error` if syncing
        fails.
        """
        if not self._closed:
            self._closed = True
            self._native.close()

    def __contains__(self, key: Key) -> bool:
        return self.exists([key])[0]

    def __enter__(self) -> Store:
        if self._closed:
            raise Closed(f"the store {self.folder} is closed", code="closed", filename=self.folder)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.kv.Store {self.folder!r}{' closed' if self._closed else ''}>"


def _all_keys(keys: Iterable[Key]) -> list[Key]:
    if isinstance(keys, (str, bytes)):
        raise TypeError("keys must be an iterable of keys; pass a single key as [key]")
    return list(keys)


def _keys_and_buffers(items: Items) -> tuple[list[Key], list[Any]]:
    if type(items) is dict:
        return list(items), list(items.values())
    pairs = items.items() if isinstance(items, Mapping) else items
    keys: list[Key] = []
    buffers: list[Any] = []
    for key, value in pairs:
        keys.append(key)
        buffers.append(value)
    return keys, buffers


def __dir__() -> list[str]:
    return sorted(__all__)
