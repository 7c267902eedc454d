"""RemoteStore for zarr 3: reads arrays on servers through penstock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

import penstock
from penstock._core.errors import without_url_secrets
from penstock.zarr._files import HandleCache
from penstock.zarr._store3 import DEFAULT_OPEN_FILES, GatheringStore, _Request, check
from penstock.zarr._threads import Pool

__all__ = ["RemoteStore"]

_MOST_OPENED_AT_ONCE = 64  # each open waits for its server's response

_openers = Pool(_MOST_OPENED_AT_ONCE, "penstock-zarr-open")


class _Objects(HandleCache):
    """Open objects. A replaced object is detected when it is read."""

    def __init__(self, limit: int, storage_options: Mapping[str, Any] | None) -> None:
        super().__init__(limit)
        self._storage_options = storage_options

    def _look(self, path: str) -> tuple[tuple[int, ...], int | None]:
        return (), None

    def _open(self, path: str) -> penstock.File:
        return penstock.open(path, storage_options=self._storage_options)


class RemoteStore(GatheringStore, Store):
    """A read-only zarr 3 store on a server: an S3 bucket, or the files below a web server's URL.

    If zarr requests GPU memory (`zarr.config.enable_gpu()`), bytes are received into pinned memory and copied to the GPU. All requests made in one
    iteration of the event loop run concurrently, so allow zarr to issue many requests: `zarr.config.set({"async.concurrency": 128})`. A web server
    cannot list files: open arrays by name, or groups with consolidated metadata.

    - `url`: s3://BUCKET/FOLDER, http:// or https://, with or without a trailing slash.
    - `storage_options`: connection options, as in penstock.open().
    - `max_open_files`: how many objects, with their sizes, the store keeps open.

    A missing key gives None. Writes raise ValueError. penstock.Error (an OSError) names the URL and the cause. If an object is replaced while it is
    being read, that read fails, and the next one reads the new object.

    You may use a store from any thread and any event loop. A pickled store opens its own objects, and contains the storage_options, including
    secrets.
    """

    supports_writes = False
    supports_deletes = False

    def __init__(
        self, url: str, *, storage_options: Mapping[str, Any] | None = None, max_open_files: int = DEFAULT_OPEN_FILES
    ) -> None:
        super().__init__(read_only=True)
        if not isinstance(url, str) or "://" not in url:
            raise ValueError(f"RemoteStore: {url if not isinstance(url, str) else penstock._native.shown_name(url)!r} is not a URL")
        scheme, _, rest = url.partition("://")
        self._by_key = scheme.lower() in ("s3", "s3a", "s3n", "gs", "gcs")
        if self._by_key:
            url = f"s3://{rest}"  # as in listings
        base, self._query = (url, "") if self._by_key else url.partition("?")[::2]
        self._base = base.rstrip("/") + "/"
        self._storage_options = None if storage_options is None else dict(storage_options)
        self.max_open_files = max_open_files
        self._start()

    def _start(self) -> None:
        self._files = _Objects(self.max_open_files, self._storage_options)
        self._start_gathering()

    @property
    def url(self) -> str:
        """The URL without the query, user name and password."""
        return without_url_secrets(self._base)

    @property
    def supports_listing(self) -> bool:
        return self._by_key

    def with_read_only(self, read_only: bool = False) -> RemoteStore:
        """Returns the same store. Raises ValueError if read_only is False."""
        if not read_only:
            raise ValueError("RemoteStore is read-only")
        return RemoteStore(
            self._base + (f"?{self._query}" if self._query else ""),
            storage_options=self._storage_options,
            max_open_files=self.max_open_files,
        )

    def __repr__(self) -> str:
        return f"RemoteStore('{self.url}')"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemoteStore):
            return False
        mine = (self._base, self._query, self._storage_options)
        return mine == (other._base, other._query, other._storage_options)

    __hash__ = None  # type: ignore[assignment]

    def close(self) -> None:
        """Closes the objects once reads in progress are done."""
        self._files.clear()
        super().close()

    def _path(self, key: str) -> str:
        if self._by_key:
            return self._base + key
        return self._base + quote(key) + (f"?{self._query}" if self._query else "")

    def _opened(
        self, open_one: Callable[[_Request], BaseException | None], requests: list[_Request]
    ) -> Iterable[BaseException | None]:
        return _openers.map(open_one, requests) if len(requests) > 1 else map(open_one, requests)

    # Reading.

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Like GDSStore.get()."""
        check(key, byte_range)
        self._is_open = True
        try:
            return await self._gatherer().get(key, prototype or default_buffer_prototype(), byte_range)
        except penstock.Error:
            self._files.forget(self._path(key))  # the object may have been replaced
            raise

    async def exists(self, key: str) -> bool:
        return await asyncio.to_thread(self._size, key) is not None

    async def getsize(self, key: str) -> int:
        """Returns the size of a value in bytes. Raises FileNotFoundError if the key does not exist."""
        size = await asyncio.to_thread(self._size, key)
        if size is None:
            raise FileNotFoundError(key)
        return size

    def _size(self, key: str) -> int | None:
        try:
            with self._files.lease(self._path(key)) as lease:
                return lease.size
        except FileNotFoundError:
            return None

    # Listing.

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for url, _ in await self._listed(self._base + prefix, False):
            yield url[len(self._base) :]

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        folder = self._base + (prefix.rstrip("/") + "/" if prefix else "")
        for url, _ in await self._listed(folder, True):
            name = url[len(folder) :].rstrip("/")
            if name:
                yield name

    async def _listed(self, beginning: str, one_level: bool) -> Iterable[tuple[str, int | None]]:
        if not self._by_key:
            raise NotImplementedError(f"{self.url}: a web server cannot list files")
        return await asyncio.to_thread(
            penstock.list_remote, beginning, storage_options=self._storage_options, one_level=one_level
        )

    # Writing.

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()

    async def delete(self, key: str) -> None:
        self._check_writable()
