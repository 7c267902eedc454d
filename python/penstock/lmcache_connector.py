"""A remote storage plug-in for LMCache inside vLLM or SGLang, which stores LMCache's chunks in a key-value store (`penstock.kv`).

    remote_storage_plugins: ["penstock"]
    extra_config:
      remote_storage_plugin.penstock.module_path: penstock.lmcache_connector
      remote_storage_plugin.penstock.class_name: PenstockConnector
      remote_storage_plugin.penstock.folder: /mnt/nvme/kv
      remote_storage_plugin.penstock.capacity_bytes: 1099511627776

Add these lines to the file that LMCACHE_CONFIG_FILE names. For `lmcache server`, use `penstock.lmcache`. Importing this module imports LMCache.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Sequence
from itertools import chain
from typing import Any

from lmcache.v1.protocol import RemoteMetadata  # type: ignore[import-not-found,unused-ignore]
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector  # type: ignore[import-not-found,unused-ignore]

from . import kv
from ._core.kv_adapters import check_settings, key_of, tried, warn_of_errors
from ._native import Future

__all__ = ["PenstockConnector"]

_tried = functools.partial(tried, "LMCache")


class PenstockConnector(RemoteConnector):  # type: ignore[misc,unused-ignore]
    """Stores, looks up and loads the chunks of one LMCache worker, which has its own store in the folder.

    The settings are those of the plug-in in LMCache's extra_config: "folder", plus "capacity_bytes" (per worker), "durable" and "checksums", as for
    `penstock.kv.Store`.

    Raises: ValueError for other settings, and the errors of `penstock.kv.Store`. Later errors are not raised: a chunk that cannot be loaded is a miss,
    a chunk that cannot be stored is skipped, and the logger "penstock" logs a warning.
    """

    def __init__(self, loop: Any, local_cpu_backend: Any, config: Any) -> None:
        if local_cpu_backend is None:
            raise ValueError("penstock.lmcache_connector requires LMCache's local CPU backend, which only LMCache's workers have")
        super().__init__(local_cpu_backend.config, local_cpu_backend.metadata)
        self._memory = local_cpu_backend
        self._store = _opened(_settings(config.extra_config or {}), local_cpu_backend.metadata)

    async def exists(self, key: Any) -> bool:
        """Returns True if a chunk is stored."""
        return self.batched_contains([key]) == 1

    def exists_sync(self, key: Any) -> bool:
        """As `exists()`."""
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        """Returns True."""
        return True

    def batched_contains(self, keys: Sequence[Any]) -> int:
        """Returns how many chunks are stored, counted from the first key up to the first missing one. Does not block."""
        found = _tried("look up chunks", lambda: self._store.exists(chain.from_iterable(map(_names, keys))), [False])
        return found.index(False) // 2 if False in found else len(keys)

    async def batched_async_contains(self, lookup_id: str, keys: Sequence[Any], pin: bool = False) -> int:
        """As `batched_contains()`."""
        return self.batched_contains(keys)

    async def put(self, key: Any, memory_obj: Any) -> None:
        """See `batched_put()`."""
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        """Returns True."""
        return True

    async def batched_put(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        """Stores each chunk unless it is already stored. LMCache's keys are content hashes."""
        names = [_names(key) for key in keys]
        chunks = [memoryview(each.byte_array).cast("B") for each in memory_objs]
        sizes = _tried("look up chunks", lambda: self._store.sizes(chain.from_iterable(names)), [None] * 2 * len(keys))
        missing: list[tuple[bytes, Any]] = []
        for index, (each, chunk) in enumerate(zip(memory_objs, chunks, strict=True)):
            if sizes[2 * index] is None or sizes[2 * index + 1] != len(chunk):
                header = RemoteMetadata(len(chunk), each.get_shapes(), each.get_dtypes(), each.get_memory_format()).serialize()
                missing += zip(names[index], (header, chunk))
        warn_of_errors("LMCache: storing", await self._done("store chunks", self._store.put_async, missing, memory_objs), "values")

    async def get(self, key: Any) -> Any:
        """Loads a chunk. Returns its memory object, or None."""
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        """Returns True."""
        return True

    async def batched_get(self, keys: Sequence[Any]) -> list[Any]:
        """Loads chunks into new memory objects. Returns a list with each chunk's object, or None if it is not stored or there is no memory."""
        names = [_names(key) for key in keys]
        headers = [bytearray(self.remote_metadata_bytes) for _ in keys]
        found = await self._done("load chunks", self._store.get_async, [(header, buffer) for (header, _), buffer in zip(names, headers)], ())
        objects = [self._allocated(header) if is_found is True else None for header, is_found in zip(headers, found)]
        wanted = [(index, each) for index, each in enumerate(objects) if each is not None]
        held = [each for _, each in wanted]
        try:
            items = [(names[index][1], memoryview(each.byte_array).cast("B")) for index, each in wanted]
            loaded = await self._done("load chunks", self._store.get_async, items, held)
        except BaseException:
            _release(held)
            raise
        warn_of_errors("LMCache: loading", loaded, "chunks")
        for (index, each), is_loaded in zip(wanted, loaded):
            if is_loaded is not True:
                objects[index] = None
                _release([each])
        return objects

    async def batched_get_non_blocking(self, lookup_id: str, keys: Sequence[Any]) -> list[Any]:
        """Loads chunks from the first key up to the first that cannot be loaded."""
        objects = await self.batched_get(keys)
        count = objects.index(None) if None in objects else len(objects)
        _release([each for each in objects[count:] if each is not None])
        return objects[:count]

    def remove_sync(self, key: Any) -> bool:
        """Drops a chunk. Returns True if it was stored."""
        return all(_tried("drop a chunk", lambda: self._store.drop(_names(key)), [False]))

    async def list(self) -> Any:
        """Raises NotImplementedError, because the store has no list of LMCache's keys."""
        raise NotImplementedError("penstock.lmcache_connector cannot list keys")

    async def close(self) -> None:
        """Waits for calls in progress and closes the store. A second call does nothing."""
        _tried("close the store", self._store.close, None)

    def _allocated(self, header: bytearray) -> Any:
        about = RemoteMetadata.deserialize(header)
        return self._memory.allocate(about.shapes, about.dtypes, about.fmt, busy_loop=False)  # waiting here would stop the puts that release memory

    async def _done(self, what: str, start: Any, items: Any, objects: Sequence[Any]) -> Any:
        """Starts a store operation and waits for it. Keeps the memory objects allocated until it is done, even if LMCache stops waiting."""
        failed = [False] * len(items)
        future: Future[Any] | None = _tried(what, lambda: start(items, return_exceptions=True), None)
        if future is None:
            return failed
        for each in objects:
            each.ref_count_up()
        future.add_done_callback(lambda _: _release(objects))
        await asyncio.wait([asyncio.wrap_future(future)])  # does not cancel it
        return _tried(what, future.result, failed)


def _release(objects: Sequence[Any]) -> None:
    for each in objects:
        each.ref_count_down()


def _settings(extra: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the plug-in that names this class, without those that LMCache reads itself."""
    names = [name for name, value in extra.items() if name.endswith(".class_name") and value == PenstockConnector.__name__]
    prefix = names[0].removesuffix("class_name") if names else "remote_storage_plugin.penstock."
    settings = {name.removeprefix(prefix): value for name, value in extra.items() if name.startswith(prefix)}
    settings = {name: value for name, value in settings.items() if name not in ("module_path", "class_name")}
    check_settings(settings, f"{prefix}*")
    if not settings.get("folder"):
        raise ValueError(f"extra_config must set {prefix}folder, the store's directory")
    return settings


def _opened(settings: dict[str, Any], metadata: Any) -> kv.Store:
    folder = settings.pop("folder")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return kv.Store(os.path.join(folder, f"worker{metadata.worker_id}of{metadata.world_size}"), **settings)


def _names(key: Any) -> tuple[bytes, bytes]:
    """Returns the store's keys of a chunk's header and of its bytes."""
    name = repr((key.to_string(), key.tags))  # tags may contain the separators of to_string()
    return key_of(f"{name} header"), key_of(name)


def __dir__() -> list[str]:
    return sorted(__all__)
