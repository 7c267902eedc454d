"""Stores the KV pages of SGLang's HiCache in a key-value store (`penstock.kv`). This is a storage backend of type "dynamic".

    python3 -m sglang.launch_server --model-path MODEL --enable-hierarchical-cache --hicache-mem-layout page_first --hicache-storage-backend dynamic
        --hicache-storage-backend-extra-config '{"backend_name": "penstock", "module_path": "penstock.sglang", "class_name": "PenstockHiCache",
            "interface_v1": 1, "store": {"folder": "/mnt/nvme/kv", "capacity_bytes": 1099511627776}}'

Importing this module imports SGLang and PyTorch. docs/guides/engines.md describes how SGLang uses the store.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage  # type: ignore[import-not-found,unused-ignore]

from . import kv
from ._core.errors import Closed, NotFound
from ._core.kv_adapters import LOG, check_settings, key_of, warn_of_errors

__all__ = ["PenstockHiCache"]


class PenstockHiCache(HiCacheStorage):  # type: ignore[misc,unused-ignore]
    """Stores, looks up and fetches one rank's pages. Each rank has its own store inside the folder. Thread-safe. Calls block.

    The settings are under "store" in SGLang's extra config: "folder", plus "capacity_bytes" (per rank), "durable" and "checksums", as for
    `penstock.kv.Store`. Ranks that hold the same pages (MLA) share the writing rank's store.

    Raises: ValueError for other settings, and the errors of `penstock.kv.Store`. Later errors are not raised: calls return False or None, and the
    logger "penstock" logs a warning.
    """

    def __init__(self, storage_config: Any, options: Any = None) -> None:
        extra = storage_config.extra_config or {}
        self._settings = _checked(extra.get("store"))
        self._folder = os.path.join(self._settings.pop("folder"), _rank(storage_config))
        # SGLang's two interfaces order the pieces of a page differently.
        self._kind = f"{storage_config.model_name}@{'v1' if extra.get('interface_v1') else 'flat'}"
        self._writes = bool(storage_config.is_storage_writer)
        self._lock = threading.Lock()  # guards _store and _closed
        self._store: kv.Store | None = None
        self._closed = False
        if self._writes:
            os.makedirs(os.path.dirname(self._folder), mode=0o700, exist_ok=True)
            self._opened()

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Adds the host pool's layout, dtype and page size to the keys, so that pages with a different layout are not found."""
        super().register_mem_pool_host(mem_pool_host)
        self._kind += f"@{mem_pool_host.layout}@{mem_pool_host.dtype}@{mem_pool_host.page_size}"

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Registers the pool "kv". Raises NotImplementedError for any other pool."""
        if getattr(host_pool_name, "value", host_pool_name) != "kv":
            raise NotImplementedError(f"penstock.sglang supports only the pool kv, and this model also has the pool {host_pool_name}")
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Fetches each page into its place in the host pool. Returns a list that says whether each key was found."""
        return self._fetched(keys, lambda: self._pages(keys, host_indices))

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores each page from its place in the host pool, except pages that are already stored. SGLang's keys are content hashes. Returns a list
        that says whether each key is stored.
        """
        return self._stored(keys, lambda: self._pages(keys, host_indices))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Fetches one page. See `batch_get()`."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Fetches each page into its contiguous tensor. Returns a list with each page's tensor, or None if the page was not found."""
        found = self._fetched(keys, lambda: [[_bytes_of(each)] for each in target_locations])
        return [target if is_found else None for target, is_found in zip(target_locations, found)] if any(found) else [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores one page. See `batch_set()`."""
        return self.batch_set([key], [value])

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        """Stores contiguous tensors, skipping those that are already stored. Returns True if all are stored."""
        return all(self._stored(keys, lambda: [[_bytes_of(each)] for each in values]))

    def exists(self, key: str) -> bool:
        """Returns True if a page is stored."""
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Returns how many keys are stored, counted from the first key up to the first missing one."""
        found = self._tried("look up pages", lambda store: store.exists(self._names(keys)), [])
        return next((index for index, is_there in enumerate(found) if not is_there), len(found))

    def clear(self) -> bool:
        """Drops all pages in the store, and returns True if they were dropped. On a rank that only reads, does nothing and returns False."""
        return self._writes and bool(self._tried("drop all pages", self._emptied, False))

    def close(self) -> None:
        """Waits for calls in progress and closes the store. A second call does nothing."""
        with self._lock:
            self._closed = True
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def _fetched(self, keys: list[str], pieces: Callable[[], list[Any]]) -> list[bool]:
        def get(store: kv.Store) -> list[Any]:
            return store.get(zip(self._names(keys), pieces(), strict=True), return_exceptions=True)

        return _only_true("fetching", self._tried("fetch pages", get, [False] * len(keys)))

    def _stored(self, keys: list[str], pieces: Callable[[], list[Any]]) -> list[bool]:
        def put(store: kv.Store) -> list[Any]:
            items = list(zip(self._names(keys), pieces(), strict=True))
            sizes = [sum(memory.nbytes for memory in page) for _, page in items]
            missing = [index for index, size in enumerate(store.sizes(name for name, _ in items)) if size != sizes[index]]
            results: list[Any] = [True] * len(keys)
            for index, result in zip(missing, store.put([items[index] for index in missing], return_exceptions=True)):
                results[index] = result
            return results

        return _only_true("storing", self._tried("store pages", put, [False] * len(keys)))

    def _pages(self, keys: list[str], host_indices: Any) -> list[list[memoryview]]:
        """Returns each page's pieces of memory in the host pool."""
        if len(host_indices) != len(keys) * self.mem_pool_host.page_size:
            raise ValueError(f"got {len(host_indices)} slots for {len(keys)} pages of {self.mem_pool_host.page_size} slots")
        addresses, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        lengths = [sizes] * len(addresses) if isinstance(sizes, int) else sizes
        pieces = [memoryview((ctypes.c_ubyte * length).from_address(address)).cast("B") for address, length in zip(addresses, lengths)]
        count = len(pieces) // max(len(keys), 1)
        return [pieces[index * count : (index + 1) * count] for index in range(len(keys))]

    def _names(self, keys: list[str]) -> list[bytes]:
        return [key_of(f"{key}@{self._kind}") for key in keys]

    def _emptied(self, store: kv.Store) -> bool:
        """Deletes the files once calls in progress are done. The next call recreates the store."""
        with self._lock:
            if self._store is not store:
                return False
            self._settings.setdefault("capacity_bytes", store.stats().capacity_bytes)
            self._store = None
            store.close()
            for name in ("index", "data"):
                os.unlink(os.path.join(self._folder, name))
        return True

    def _opened(self) -> kv.Store:
        with self._lock:
            if self._closed:
                raise Closed(f"the storage in {self._folder} is closed", code="closed", filename=self._folder)
            if self._store is None:
                self._store = kv.Store(self._folder, **self._settings) if self._writes else kv.Store(self._folder, read_only=True)
            return self._store

    def _tried(self, what: str, call: Callable[[kv.Store], Any], failed: Any) -> Any:
        """Returns the result of a call, or `failed`. Catches every exception, because any exception would end SGLang's thread."""
        try:
            return call(self._opened())
        except Exception as problem:
            if self._writes or not isinstance(problem, NotFound):  # otherwise, the writing rank has not created the store yet
                LOG.warning("SGLang: Penstock could not %s: %s", what, problem)
            if not self._writes:
                self._forget()  # its files may have been recreated
            return failed

    def _forget(self) -> None:
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()


def _checked(settings: Any) -> dict[str, Any]:
    if not isinstance(settings, dict) or not settings.get("folder"):
        raise ValueError('the extra config must contain "store": {"folder": ...} for Penstock')
    check_settings(settings, '"store" in the extra config')
    return dict(settings)


def _rank(config: Any) -> str:
    """Returns the folder name for ranks that hold the same bytes. Only one of them writes."""
    parts = [("dcp", config.dcp_rank, config.dcp_size)] if config.is_mla_model else [("tp", config.tp_rank, config.tp_size)]
    parts += [("pp", config.pp_rank, config.pp_size), ("cp", config.attn_cp_rank, config.attn_cp_size)]
    return "-".join([f"{name}{rank}of{size}" for name, rank, size in parts] + [f"dp{config.dp_rank}"])


def _bytes_of(tensor: Any) -> Any:
    return tensor.view(-1).view(torch.uint8)


def _only_true(doing: str, results: list[Any]) -> list[bool]:
    """Maps results to bools, and logs one warning for all errors."""
    warn_of_errors(f"SGLang: {doing}", results, "pages")
    return [each is True for each in results]


def __dir__() -> list[str]:
    return sorted(__all__)
