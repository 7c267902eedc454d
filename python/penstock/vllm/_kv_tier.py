"""A secondary tier for vLLM's OffloadingConnector, which stores KV blocks in a key-value store (`penstock.kv`).

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config":
        {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 68719476736,
         "secondary_tiers": [{"type": "penstock", "folder": "/mnt/nvme/kv", "capacity_bytes": 1099511627776}]}}'

vLLM copies blocks between GPUs and its CPU tier. This tier copies them between the CPU tier, in place, and the store.
Importing this module imports vLLM. docs/guides/engines.md describes how vLLM uses the store.
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, RequestOffloadingContext  # type: ignore[import-not-found,unused-ignore]
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager  # type: ignore[import-not-found,unused-ignore]

from .._core.kv_adapters import tried, warn_of_errors
from .._native import Future
from ._kv_store import identity_of, open_store, options_of

__all__ = ["PenstockTier"]

_WHERE = "the secondary tier penstock"
_RESULT_FIELDS = {field.name for field in dataclasses.fields(JobResult)}  # vLLM 0.31 added transfer_bytes

_tried = functools.partial(tried, "vLLM")


class PenstockTier(SecondaryTierManager):  # type: ignore[misc,unused-ignore]
    """Stores, looks up and loads blocks for one vLLM scheduler. Calls do not block, except `drain_jobs()` and `shutdown()`.

    Settings, in addition to vLLM's "locality" and "backpressure":

    - `folder`, `capacity_bytes`, `durable`, `checksums`: as for `penstock.kv.Store`. Each data-parallel replica has its own store in the folder.
    - `max_store_bytes`: the maximum number of bytes in the CPU tier that wait to be stored; further blocks are not stored. The default is half of the
      CPU tier.
    - `namespace`: a string that is part of each key. Change it if the weights, revision or quantization of a model change but its name does not,
      because vLLM does not report such changes to the tier.
    - `keep_on_reset`: if true, blocks stay valid when vLLM resets its caches, which it also does when weights change.

    Raises: ValueError for other settings, and the errors of `penstock.kv.Store`. Later errors are not raised: a block that cannot be loaded is a
    miss, a block that cannot be stored is skipped, and the logger "penstock" logs a warning.
    """

    medium = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        locality: str | None = None,
        **settings: Any,
    ) -> None:
        detectors = [] if backpressure_detector is None else [backpressure_detector]  # vLLM 0.31 added this argument
        super().__init__(offloading_spec, primary_kv_view, tier_type, *detectors)
        self.locality = None if locality is None else Locality(locality)
        config: Any = getattr(offloading_spec, "config", None)
        if not hasattr(config, "kv_cache_layout"):
            raise ValueError(f"{_WHERE} requires vLLM 0.29 or later")
        self._rows = primary_kv_view.cast("B")
        self._row_bytes = len(self._rows) // len(primary_kv_view)
        options = options_of(settings, self._row_bytes, _WHERE)
        self._max_store_bytes: int = options["max_store_bytes"] or max(self._row_bytes, len(self._rows) // 2)
        self._keep_on_reset: bool = options["keep_on_reset"]
        self._prefix = identity_of(config, options["namespace"], row_bytes=self._row_bytes)
        self._jobs: list[_Job] = []
        self._store_bytes = 0  # bytes in the puts of these jobs
        self._unreadable: set[bytes] = set()  # keys that could not be read: vLLM would look them up and load them again and again
        self._store = open_store(settings, f"dp{config.parallel.data_parallel_index}", self._row_bytes, _WHERE)

    def on_new_request(self, req_context: Any) -> Any:
        """Returns vLLM's default policy: each block is stored when it is computed."""
        return RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """Looks up a block in the store's in-memory index. The index contains only blocks that are completely written."""
        name = self._prefix + key
        is_hit = name not in self._unreadable and self._sizes([name]) == [self._row_bytes]
        return LookupResult.HIT if is_hit else LookupResult.MISS

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        """Marks blocks as recently used."""
        self._sizes([self._prefix + key for key in keys])

    def submit_store(self, job_metadata: Any) -> None:
        """Starts storing the blocks that are not in the store. If too many bytes are waiting, skips the last blocks."""

        def start(job: _Job) -> Future[list[Any]]:
            sizes = self._sizes(job.names)
            new = [item for item, size in zip(self._items(job), sizes) if size != self._row_bytes or item[0] in self._unreadable]
            room = max(0, self._max_store_bytes - self._store_bytes) // self._row_bytes
            job.names, job.is_complete = [name for name, _ in new[:room]], len(new) <= room
            return self._store.put_async(new[:room], return_exceptions=True)

        self._submit(_Job(job_metadata, self._prefix, is_load=False), start)

    def submit_load(self, job_metadata: Any) -> None:
        """Starts loading blocks into their rows of the CPU tier."""

        def start(job: _Job) -> Future[list[Any]]:
            return self._store.get_async(self._items(job), return_exceptions=True)

        self._submit(_Job(job_metadata, self._prefix, is_load=True), start)

    def get_finished_jobs(self) -> Iterable[Any]:
        """Returns the results of the jobs that completed since the last call."""
        running = [job for job in self._jobs if job.future is not None and not job.future.done()]
        completed = [job for job in self._jobs if job not in running]
        self._jobs = running
        return [self._result(job) for job in completed]

    def drain_jobs(self) -> None:
        """Waits for the jobs in progress. vLLM calls this only when it resets its caches. Unless `keep_on_reset` is set, earlier blocks are not
        used again until vLLM restarts, because they may belong to old weights.
        """
        self._wait()
        if not self._keep_on_reset:
            self._prefix = secrets.token_bytes(len(self._prefix))
            self._unreadable.clear()

    def shutdown(self) -> None:
        """Waits for the jobs in progress, releases vLLM's memory and closes the store. A second call does nothing."""
        self._wait()
        self._jobs.clear()
        self._rows.release()
        self._store.close()

    def _sizes(self, names: list[bytes]) -> list[int | None]:
        sizes: list[int | None] = _tried("look up blocks", lambda: self._store.sizes(names), [None] * len(names))
        return sizes

    def _items(self, job: _Job) -> list[tuple[bytes, memoryview]]:
        starts = [int(row) * self._row_bytes for row in job.rows]
        return [(name, self._rows[start : start + self._row_bytes]) for name, start in zip(job.names, starts, strict=True)]

    def _submit(self, job: _Job, start: Callable[[_Job], Future[list[Any]]]) -> None:
        """Starts a job. If that fails, `get_finished_jobs()` reports that all its blocks failed."""
        job.future = _tried("start a job", lambda: start(job), None)
        self._store_bytes += self._put_bytes(job)
        self._jobs.append(job)

    def _put_bytes(self, job: _Job) -> int:
        return 0 if job.is_load else len(job.names) * self._row_bytes

    def _wait(self) -> None:
        for job in self._jobs:
            if job.future is not None:
                job.future.exception()

    def _result(self, job: _Job) -> Any:
        failed = [False] * len(job.names)
        results = failed if job.future is None else _tried("complete a job", job.future.result, failed)
        warn_of_errors(f"vLLM: {'loading' if job.is_load else 'storing'}", results, "blocks")
        self._store_bytes -= self._put_bytes(job)
        moved = {name for name, result in zip(job.names, results) if result is True}
        success = job.future is not None and job.is_complete and len(moved) == len(job.names)
        fields: dict[str, Any] = {"transfer_time": time.monotonic() - job.started, "transfer_bytes": len(job.keys) * self._row_bytes}
        if job.is_load:
            self._unreadable.update(name for name in job.names if name not in moved)
            if not success:
                fields["successful_keys"] = [key for key, name in zip(job.keys, job.names) if name in moved] or None
        else:
            self._unreadable -= moved
        return JobResult(job_id=job.number, success=success, **{name: value for name, value in fields.items() if name in _RESULT_FIELDS})


class _Job:
    """A store or load of blocks. `names` are the store's keys of the blocks that it moves."""

    def __init__(self, metadata: Any, prefix: bytes, is_load: bool) -> None:
        self.number = metadata.job_id
        self.keys = list(metadata.keys)
        self.rows = metadata.chunk_ids if hasattr(metadata, "chunk_ids") else metadata.block_ids  # vLLM 0.29 has block_ids
        self.names = [prefix + key for key in self.keys]
        self.is_load = is_load
        self.is_complete = True
        self.started = time.monotonic()
        self.future: Future[list[Any]] | None = None


def __dir__() -> list[str]:
    return sorted(__all__)
