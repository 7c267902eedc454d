"""Stores the LMCache server's objects in a key-value store (`penstock.kv`). This is an L2 adapter of type "plugin".

    lmcache server ... --l2-adapter '{"type": "plugin", "module_path": "penstock.lmcache", "class_name": "PenstockL2Adapter",
                                      "adapter_params": {"folder": "/mnt/nvme/kv", "capacity_bytes": 1099511627776}}'

Importing this module imports LMCache and PyTorch. docs/guides/engines.md describes how LMCache uses the store.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import torch
from lmcache.lmcache_native import Bitmap  # type: ignore[import-not-found,unused-ignore]
from lmcache.v1.distributed.internal_api import L2StoreResult  # type: ignore[import-not-found,unused-ignore]
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface  # type: ignore[import-not-found,unused-ignore]
from lmcache.v1.platform import create_event_notifier  # type: ignore[import-not-found,unused-ignore]

from . import kv
from ._core.kv_adapters import check_settings, key_of, tried, warn_of_errors
from ._native import Future

__all__ = ["PenstockL2Adapter"]

_tried = functools.partial(tried, "LMCache")


class PenstockL2Adapter(L2AdapterInterface):  # type: ignore[misc,unused-ignore]
    """Stores, looks up and loads LMCache's objects, each under its own key. Thread-safe.

    `settings` contains the store's "folder", plus "capacity_bytes", "durable" and "checksums", as for `penstock.kv.Store`.

    Raises: ValueError for other settings, and the errors of `penstock.kv.Store`. Later errors are not raised: if an object cannot be stored, its task
    fails, if it cannot be loaded, it is treated as a miss, and the logger "penstock" logs a warning.
    """

    def __init__(self, settings: dict[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__(max_capacity_bytes=0)  # 0: the store evicts objects, not LMCache
        self._store = _opened(settings)
        self._numbers = itertools.count(1)
        self._stores, self._lookups, self._loads = _Tasks(), _Tasks(), _Tasks()

    def get_store_event_fd(self) -> int:
        """Returns the descriptor that signals completed store tasks."""
        return self._stores.fd

    def get_lookup_and_lock_event_fd(self) -> int:
        """Returns the descriptor that signals completed lookups."""
        return self._lookups.fd

    def get_load_event_fd(self) -> int:
        """Returns the descriptor that signals completed load tasks."""
        return self._loads.fd

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Stores each object unless its key already has a value of the same length. Returns the task number. LMCache's keys are content hashes.
        """
        new: list[tuple[Any, int]] = []

        def start() -> Future[list[Any]]:
            pieces = [(key, _memory(each)) for key, each in zip(keys, objects, strict=True)]
            there = self._store.sizes([_name(key) for key in keys])
            missing = [(key, piece) for (key, piece), size in zip(pieces, there) if size != piece.nbytes]
            new.extend((key, piece.nbytes) for key, piece in missing)
            return self._store.put_async([(_name(key), piece) for key, piece in missing], return_exceptions=True)

        return self._run(self._stores, start, lambda stored: self._after_store(new, stored), L2StoreResult(False, 0))

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        """Returns the results of completed store tasks by number."""
        return self._stores.pop_all()

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: dict[int, Any]) -> int:
        """Looks up keys in the store's in-memory index. Returns the task number. Nothing is locked: loading a value that has been dropped in between
        is a miss.
        """
        task = next(self._numbers)
        self._lookups.end(task, _tried("look up keys", lambda: _bitmap(self._store.exists([_name(key) for key in keys])), Bitmap(len(keys))))
        return task

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        """Returns the result of a lookup, or None."""
        return self._lookups.pop(task_id)

    def submit_unlock(self, keys: list[Any]) -> None:
        """Does nothing, because lookups do not lock."""

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Loads each object whose value has the object's length. Returns the task number."""

        def start() -> Future[list[Any]]:
            return self._store.get_async([(_name(key), _memory(each)) for key, each in zip(keys, objects, strict=True)], return_exceptions=True)

        return self._run(self._loads, start, lambda loaded: self._after_load(keys, loaded), Bitmap(len(keys)))

    def query_load_result(self, task_id: int) -> Any:
        """Returns the result of a load task, or None."""
        return self._loads.pop(task_id)

    def delete(self, keys: list[Any]) -> None:
        """Drops the values of keys."""

        def dropped() -> list[tuple[Any, int]]:
            names = [_name(key) for key in keys]
            sizes = self._store.sizes(names)
            return [(key, size or 0) for key, size, was_there in zip(keys, sizes, self._store.drop(names)) if was_there]

        gone = _tried("delete keys", dropped, [])
        if gone:
            self._notify_keys_deleted([key for key, _ in gone], [size for _, size in gone])

    def get_usage(self) -> Any:
        """Returns the total bytes of the store's values, without counts per cache_salt, because LMCache would not learn which values the store
        drops."""
        return AdapterUsage(_tried("query the stored bytes", lambda: self._store.stats().bytes, 0), 0)

    def report_status(self) -> dict[str, Any]:
        """Returns the store's health, folder and counters."""
        counts = {} if self._store.closed else _tried("query the counters", lambda: self._store.stats()._asdict(), {})
        return {"is_healthy": bool(counts), "type": type(self).__name__, "folder": self._store.folder, **counts}

    def close(self) -> None:
        """Waits for tasks in progress, discards results that were not retrieved, and closes the event descriptors. A second call does nothing."""
        _tried("close the store", self._store.close, None)
        for tasks in (self._stores, self._lookups, self._loads):
            tasks.close()

    def _run(self, tasks: _Tasks, start: Callable[[], Future[list[Any]]], result: Callable[[list[Any]], Any], failed: Any) -> int:
        """Starts a store operation. When it completes, the task gets its result, or `failed` if an exception is raised."""
        task = next(self._numbers)
        future = _tried("start a task", start, None)
        if future is None:
            tasks.end(task, failed)
        else:
            future.add_done_callback(lambda done: tasks.end(task, _tried("complete a task", lambda: result(done.result()), failed)))
        return task

    def _after_store(self, new: list[tuple[Any, int]], stored: list[Any]) -> Any:
        warn_of_errors("LMCache: storing", stored, "objects")
        kept = [each for each, is_stored in zip(new, stored) if is_stored is True]
        if kept:
            self._notify_keys_stored([key for key, _ in kept], [size for _, size in kept])
        return L2StoreResult(len(kept) == len(new), sum(size for _, size in kept))

    def _after_load(self, keys: list[Any], loaded: list[Any]) -> Any:
        warn_of_errors("LMCache: loading", loaded, "objects")
        found = [key for key, is_loaded in zip(keys, loaded) if is_loaded is True]
        if found:
            self._notify_keys_accessed(found)
        return _bitmap(loaded)


class _Tasks:
    """The results of one kind of task until they are retrieved, and the descriptor that signals new ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: dict[int, Any] = {}
        self._notifier = create_event_notifier()
        self._closed = False
        self.fd: int = self._notifier.fileno()

    def end(self, task: int, result: Any) -> None:
        with self._lock:
            if not self._closed:  # once closed, the descriptor number may be reused
                self._results[task] = result
                self._notifier.notify()

    def pop(self, task: int) -> Any:
        with self._lock:
            return self._results.pop(task, None)

    def pop_all(self) -> dict[int, Any]:
        with self._lock:
            found, self._results = self._results, {}
            return found

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._results.clear()
            self._notifier.close()


def _opened(settings: dict[str, Any]) -> kv.Store:
    check_settings(settings, "adapter_params")
    if not settings.get("folder"):
        raise ValueError("adapter_params must set \"folder\", the store's directory")
    return kv.Store(**settings)


def _name(key: Any) -> bytes:
    """Returns the key for an ObjectKey, whose parts never contain an @."""
    return key_of(f"{key.model_name}@{key.kv_rank:x}@{key.object_group_id:x}@{key.chunk_hash.hex()}@{key.cache_salt}")


def _memory(each: Any) -> Any:
    """Returns the bytes of a MemoryObj in place, on the host or a GPU, without the padding at the tensor's end."""
    if not each.is_valid():
        raise ValueError("an LMCache object is no longer valid")
    if each.raw_tensor is None:
        return memoryview(each.byte_array).cast("B")
    return each.raw_tensor.view(-1).view(torch.uint8)[: each.get_size()]


def _bitmap(found: list[Any]) -> Any:
    bits = Bitmap(len(found))
    for index, is_found in enumerate(found):
        if is_found is True:
            bits.set(index)
    return bits


def __dir__() -> list[str]:
    return sorted(__all__)
