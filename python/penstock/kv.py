"""A key-value store in a folder: for caches whose blocks leave GPU or host memory for a disk, and come back.

    import numpy
    from penstock import kv

    layers = [numpy.ones(4096, numpy.float32) for _ in range(32)]
    with kv.Store("/tmp/kv-cache", capacity_bytes=1 << 30) as store:
        store.put({"block-17": layers})              # many keys at once, each in as many pieces as it has
        found = store.get({"block-17": layers, "block-18": layers})    # [True, False]

Pieces are what penstock takes as memory anywhere: arrays of NumPy and CuPy, tensors of PyTorch, DeviceBuffers, buffers. Of a GPU's memory
the caller waits for the work that makes the bytes, as for penstock.File. docs/guides/kv-cache.md says what is kept when a process or a machine dies.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from . import _native
from ._errors import Closed
from ._native import Future

__all__ = ["Key", "Stats", "Store"]

Key = str | bytes
# For each key one buffer, or a list or tuple of them.
Items = Mapping[str, Any] | Mapping[bytes, Any] | Mapping[Key, Any] | Iterable[tuple[Key, Any]]


class Stats(NamedTuple):
    """What a store has, in bytes where it says so, and what was asked of it since it was opened."""

    keys: int
    bytes: int
    capacity_bytes: int
    wasted_bytes: int  # by values that fill their last block of 4096 bytes in part
    hits: int
    misses: int
    evicted: int  # values dropped to make room
    damaged: int  # values whose checksum did not fit
    put_bytes_under_way: int
    put_bytes_waiting: int


class Store:
    """A store in a folder. Any thread may use it; close() when it is otherwise unused.

    folder: made where it is missing, and otherwise a store's or empty; it and its files must belong to this user. capacity_bytes: of all
    values; None takes what the folder has, and a larger one makes it grow. read_only: another process may be writing; one process writes at
    a time. checksums: kept of values that the CPU can reach, and compared when they are fetched to where it can. durable: each put is on the
    disk when it ends. direct: values are written past the page cache where the file system can. max_put_bytes: so many bytes of puts are
    being written at a time; others wait.

    Raises InvalidArgument, NotFound, PermissionDenied, and penstock.Error with code "would_block" where another process writes, or "no_space".
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

    def put(self, items: Items, *, return_exceptions: bool = False) -> list[Any]:
        """Stores values under keys, in place of those that are there. Blocks. items: a dict, or pairs, of key and buffers.

        A value is its buffers one behind the other. Where there is no room, values that were used least recently are dropped. Returns True for
        each key. A key that fails raises its penstock.Error, and leaves the others stored and its old value in place; with return_exceptions
        the error is in the list instead.
        """
        return self.put_async(items, return_exceptions=return_exceptions).result()

    def get(self, items: Items, *, return_exceptions: bool = False) -> list[Any]:
        """Fetches values into buffers, which are as long as the value together. Blocks.

        Returns for each key whether it was there; buffers of others have any bytes. Errors as for put(): InvalidArgument for buffers of
        another length, penstock.Error with code "io" for a value that does not fit its checksum, which is dropped.
        """
        return self.get_async(items, return_exceptions=return_exceptions).result()

    def put_async(self, items: Items, *, return_exceptions: bool = False) -> Future[list[Any]]:
        """As put(), without waiting: buffers stay as they are until the future is done. cancel() stops the keys whose turn has not come."""
        return self._native.put(*_keys_and_buffers(items), return_exceptions)

    def get_async(self, items: Items, *, return_exceptions: bool = False) -> Future[list[Any]]:
        """As get(), without waiting. Gets do not wait for puts."""
        return self._native.get(*_keys_and_buffers(items), return_exceptions)

    def exists(self, keys: Iterable[Key]) -> list[bool]:
        """Whether each key has a value. Of a store that is read only: as the one who writes has it now. Raises penstock.Error."""
        return [size is not None for size in self.sizes(keys)]

    def sizes(self, keys: Iterable[Key]) -> list[int | None]:
        """The bytes of each value; None: there is none. Nothing counts as used by it. Raises penstock.Error."""
        return self._native.sizes(_all_keys(keys))

    def drop(self, keys: Iterable[Key]) -> list[bool]:
        """Drops values. Returns for each key whether it had one. Raises penstock.Error."""
        return self._native.drop(_all_keys(keys))

    def sync(self) -> None:
        """What puts and drops that have ended did outlasts a power cut when it returns. Blocks. Raises penstock.Error."""
        self._native.sync()

    def stats(self) -> Stats:
        return Stats(*self._native.stats())

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Waits for calls under way, syncs, and lets others write. Twice is nothing. Raises penstock.Error where syncing fails."""
        if not self._closed:
            self._closed = True
            self._native.close()

    def __contains__(self, key: Key) -> bool:
        return self.exists([key])[0]

    def __enter__(self) -> Store:
        if self._closed:
            raise Closed(f"the store {self.folder} is closed", code="closed", filename=self.folder)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.kv.Store {self.folder!r}{' closed' if self._closed else ''}>"


def _all_keys(keys: Iterable[Key]) -> list[Key]:
    if isinstance(keys, (str, bytes)):
        raise TypeError("keys is an iterable of keys; of one key ask [key]")
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
