"""Stores the KV pages of SGLang's HiCache in a key-value store (`penstock.kv`). This is a storage backend of type "dynamic".

    python3 -m sglang.launch_server --model-path MODEL --enable-hierarchical-cache --hicache-mem-layout page_first --hicache-storage-backend dynamic
        --hicache-storage-backend-extra-config '{"backend_name": "penstock", "module_path": "penstock.sglang", "class_name": "PenstockHiCache",
            "interface_v1": 1, "store": {"folder": "/mnt/nvme/kv", "capacity_bytes": 1099511627776}}'

Importing this module imports SGLang and PyTorch. docs/guides/engines.md describes how SGLang uses the store.
"""

from __future__ import annotations

import ctypes
import operator
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.mem_cache import hicache_storage  # type: ignore[import-not-found,unused-ignore]

from . import kv
from ._core.errors import Closed, NotFound
from ._core.kv_adapters import LOG, check_settings, key_of, warn_of_errors

__all__ = ["PenstockHiCache"]

_KV = "kv"  # the name of SGLang's main pool


class PenstockHiCache(hicache_storage.HiCacheStorage):  # type: ignore[misc,unused-ignore]
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
        self._model = storage_config.model_name
        self._has_copies = bool(storage_config.is_mla_model)
        # SGLang's two interfaces order the pieces of a page differently.
        self._kinds = {_KV: f"{self._model}@{'v1' if extra.get('interface_v1') else 'flat'}"}  # suffix of the keys, by pool
        self.registered_pools: dict[str, Any] = {}
        self._writes = bool(getattr(storage_config, "is_storage_writer", not self._has_copies or storage_config.tp_rank == 0))  # since SGLang 0.5.23
        self._lock = threading.Lock()  # guards _store and _closed
        self._store: kv.Store | None = None
        self._closed = False
        if self._writes:
            os.makedirs(os.path.dirname(self._folder), mode=0o700, exist_ok=True)
            self._opened()

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Adds the host pool's layout, dtype and page size to the keys, so that pages with a different layout are not found."""
        super().register_mem_pool_host(mem_pool_host)
        self._kinds[_KV] += _kind_of(mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Registers another pool of a hybrid model. Raises NotImplementedError for state that differs between ranks which share a store."""
        name = getattr(host_pool_name, "value", host_pool_name)
        if name == "mamba" and self._has_copies:
            raise NotImplementedError("penstock.sglang does not support MLA models with a Mamba pool")
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if name != _KV:
            self._kinds[name] = f"{self._model}@{name}@{'pieces' if _has_addresses(host_pool) else 'flat'}{_kind_of(host_pool)}"

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Fetches the pages of each pool. Returns lists that say whether each key was found, by pool."""
        return self._by_pool("fetch pages", self._fetched_into, transfers)

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Stores the pages of each pool, except pages that are already stored. Returns lists that say whether each key is stored, by pool."""
        return self._by_pool("store pages", self._stored_from, transfers)

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """Returns how many pages from the first key on can be used: those in the pool "kv" for which the other pools have what they need."""
        pages = self.batch_exists(keys)
        hits = {hicache_storage.PoolName.KV: pages} if pages else {}
        usable = set(range(1, pages + 1))
        for each in pool_transfers or []:
            found = self._exist(keys[:pages], each.name)
            if each.hit_policy == hicache_storage.PoolHitPolicy.ALL_PAGES:
                lengths = set(range(1, _leading(found) + 1))
            elif each.hit_policy == hicache_storage.PoolHitPolicy.TRAILING_PAGES:
                window = max(1, len(each.keys or []))
                lengths = {length for length in range(1, pages + 1) if all(found[max(0, length - window) : length])}
            else:
                raise ValueError(f"penstock.sglang does not support the hit policy {each.hit_policy}")
            if lengths:
                hits[each.name] = max(lengths)
            usable &= lengths
        result = hicache_storage.PoolTransferResult(max(usable, default=0), hits)
        result.restorable_prefix_pages = sorted(usable)  # not a field in older releases
        return result

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Fetches each page into its place in the host pool. Returns a list that says whether each key was found."""
        return self._fetched(keys, lambda: _pieces(self.mem_pool_host, len(keys), host_indices))

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores each page from its place in the host pool, except pages that are already stored. SGLang's keys are content hashes. Returns a list
        that says whether each key is stored.
        """
        return self._stored(keys, lambda: _pieces(self.mem_pool_host, len(keys), host_indices))

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
        return _leading(self._exist(keys))

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

    def _exist(self, keys: list[str], pool: str = _KV) -> list[bool]:
        found: list[bool] = self._tried("look up pages", lambda store: store.exists(self._names(keys, pool)), [False] * len(keys))
        return found

    def _fetched(self, keys: list[str], pieces: Callable[[], list[Any]], pool: str = _KV) -> list[bool]:
        def get(store: kv.Store) -> list[Any]:
            return store.get(zip(self._names(keys, pool), pieces(), strict=True), return_exceptions=True)

        return _only_true("fetching", self._tried("fetch pages", get, [False] * len(keys)))

    def _stored(self, keys: list[str], pieces: Callable[[], list[Any]], pool: str = _KV) -> list[bool]:
        def put(store: kv.Store) -> list[Any]:
            items = list(zip(self._names(keys, pool), pieces(), strict=True))
            sizes = [sum(memory.nbytes for memory in page) for _, page in items]
            missing = [index for index, size in enumerate(store.sizes(name for name, _ in items)) if size != sizes[index]]
            results: list[Any] = [True] * len(keys)
            for index, result in zip(missing, store.put([items[index] for index in missing], return_exceptions=True)):
                results[index] = result
            return results

        return _only_true("storing", self._tried("store pages", put, [False] * len(keys)))

    def _by_pool(self, what: str, move: Callable[[Any], list[bool]], transfers: list[Any]) -> dict[Any, list[bool]]:
        return {each.name: self._tried(what, lambda _: move(each), [False] * len(each.keys or [])) for each in transfers}

    def _fetched_into(self, transfer: Any) -> list[bool]:
        keys, pool, slots = self._parts(transfer)
        if _has_addresses(pool):
            return self._fetched(keys, lambda: _pieces(pool, len(keys), transfer.host_indices), transfer.name)
        pages = [pool.get_dummy_flat_data_page() for _ in keys]
        found = self._fetched(keys, lambda: [[_bytes_of(page)] for page in pages], transfer.name)
        for slot, page, is_found in zip(slots, pages, found):
            if is_found:
                pool.set_from_flat_data_page(slot, page)
        return found

    def _stored_from(self, transfer: Any) -> list[bool]:
        keys, pool, slots = self._parts(transfer)
        if _has_addresses(pool):
            return self._stored(keys, lambda: _pieces(pool, len(keys), transfer.host_indices), transfer.name)
        return self._stored(keys, lambda: [[_bytes_of(pool.get_data_page(slot))] for slot in slots], transfer.name)

    def _parts(self, transfer: Any) -> tuple[list[str], Any, list[int]]:
        pool = self.registered_pools[transfer.name]
        return transfer.keys or [], pool, _first_slots(pool, len(transfer.keys or []), transfer.host_indices)

    def _names(self, keys: list[str], pool: str = _KV) -> list[bytes]:
        return [key_of(f"{key}@{self._kinds[pool]}") for key in keys]

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
                LOG.warning("SGLang: Penstock could not %s: %s", what, str(problem))
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
    shard = "dcp" if config.is_mla_model else "tp"
    sizes = {name: (getattr(config, f"{name}_rank", 0), getattr(config, f"{name}_size", 1)) for name in (shard, "pp", "attn_cp")}  # some since SGLang 0.5.21
    parts = [f"{name.removeprefix('attn_')}{rank}of{size}" for name, (rank, size) in sizes.items()]
    return "-".join([*parts, f"dp{getattr(config, 'dp_rank', 0)}"])


def _kind_of(pool: Any) -> str:
    tag = getattr(pool, "storage_format_tag", None)
    return f"@{pool.layout}@{pool.dtype}@{pool.page_size}" + (f"@{tag}" if tag else "")


def _has_addresses(pool: Any) -> bool:
    """Returns False if the pool's pages have no addresses in its layout. SGLang then copies each page to and from a tensor."""
    try:
        pool.get_page_buffer_meta(torch.arange(0))
    except (AttributeError, NotImplementedError, ValueError):
        return False
    return True


def _first_slots(pool: Any, pages: int, indices: Any) -> list[int]:
    """Returns the index of each page's first slot in the host pool."""
    if len(indices) != pages * pool.page_size:
        raise ValueError(f"got {len(indices)} slots, but expected {pages} pages of {pool.page_size} slots each")
    return [int(slot) for slot in indices[:: pool.page_size].tolist()]


def _pieces(pool: Any, pages: int, indices: Any) -> list[list[memoryview]]:
    """Returns each page's pieces of memory in the host pool."""
    if not _first_slots(pool, pages, indices):
        return []
    addresses, sizes = pool.get_page_buffer_meta(indices)
    lengths = [sizes] * len(addresses) if isinstance(sizes, int) else sizes
    begin, end = min(addresses), max(map(operator.add, addresses, lengths))
    memory = memoryview((ctypes.c_ubyte * (end - begin)).from_address(begin)).cast("B")  # a slice of it costs less than a view of each piece
    pieces = [memory[address - begin : address - begin + length] for address, length in zip(addresses, lengths)]
    count = len(pieces) // pages
    return [pieces[index : index + count] for index in range(0, len(pieces), count)]


def _bytes_of(tensor: Any) -> Any:
    return tensor.view(-1).view(torch.uint8)


def _leading(found: list[bool]) -> int:
    """Returns how many values are true before the first false one."""
    return found.index(False) if False in found else len(found)


def _only_true(doing: str, results: list[Any]) -> list[bool]:
    """Maps results to bools, and logs one warning for all errors."""
    warn_of_errors(f"SGLang: {doing}", results, "pages")
    return [each is True for each in results]


def __dir__() -> list[str]:
    return sorted(__all__)
