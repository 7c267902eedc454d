"""A spec for vLLM's OffloadingConnector. It moves KV blocks between GPU memory and key-value stores (`penstock.kv`), without a CPU tier.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"spec_name": "PenstockSpec", "penstock": {"folder": "/mnt/nvme/kv", "capacity_bytes": 1099511627776}}}'

Each worker of vLLM has its own store, which contains its part of each block. vLLM's scheduler reads the indexes of these stores, and sends the workers
the names of the blocks to store and load. If vLLM does not load the plug-in penstock, also set "spec_module_path": "penstock.vllm._gpu_spec".
Importing this module imports vLLM. docs/guides/engines.md describes how vLLM uses the stores.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import base as connectors  # type: ignore[import-not-found,unused-ignore]
from vllm.v1.kv_offload.base import (  # type: ignore[import-not-found,unused-ignore]
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    PrepareStoreOutput,
    RequestOffloadingContext,
    TransferResult,
)

from .. import kv
from .._core.errors import NotFound
from .._core.kv_adapters import LOG, tried, warn_of_errors
from .._native import Future, Pointer
from ._kv_store import identity_of, open_store, options_of

__all__ = ["PenstockSpec"]

_WHERE = '"penstock" in kv_connector_extra_config'
_MAX_STORE_BYTES = 4 << 30
_BATCH = 32  # blocks per call of a store
_MAX_USED = 4096  # used blocks per message
_MAX_LOADS = 16  # loads per request; then vLLM computes the rest. A block that can neither be read nor dropped would be loaded again and again

_tried = functools.partial(tried, "vLLM")


class PenstockSpec(OffloadingSpec):  # type: ignore[misc,unused-ignore]
    """The spec. vLLM's scheduler and each of its workers create one.

    Settings, in "penstock" in kv_connector_extra_config:

    - `folder`, `capacity_bytes`, `durable`, `checksums`: as for `penstock.kv.Store`, which does not check values in GPU memory. All workers of a
      data-parallel replica share the capacity. All must see the same folder, even on several hosts.
    - `max_store_bytes`: the maximum number of bytes that wait in each worker's GPU memory to be stored; further blocks are not stored. The default is
      4 GiB. vLLM waits for stores before it reuses their memory.
    - `namespace`, `keep_on_reset`: as for `PenstockTier`.

    Raises: ValueError for other settings, and the errors of `penstock.kv.Store`. Later errors are not raised: a block that cannot be stored is
    skipped, a block that cannot be loaded is computed (or fails its request, if kv_load_failure_policy is "fail"), and the logger "penstock" logs a
    warning.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if not hasattr(config, "kv_cache_layout"):
            raise ValueError("PenstockSpec requires vLLM 0.29 or later")
        if getattr(config, "canonical_layout", False):
            raise ValueError("PenstockSpec does not support canonical_layout; remove it from kv_connector_extra_config")
        settings = config.extra_config.get("penstock")
        if not isinstance(settings, dict):
            raise ValueError(f"{_WHERE} must be an object with the store's folder and capacity_bytes")
        self.replicated_layout = getattr(config, "replicated_layout", False)  # all workers have the same bytes, so only the first one stores them
        self._ranks = 1 if self.replicated_layout else config.parallel.world_size
        self._block_bytes = max(1, config.worker_kv_bytes_per_block * config.cache.blocks_per_chunk)
        self._settings = dict(settings)
        self._options = options_of(self._settings, self._block_bytes, _WHERE)
        if self._settings.get("capacity_bytes") is not None:
            self._settings["capacity_bytes"] //= self._ranks
        self._manager: _Manager | None = None
        self._worker: _Worker | None = None

    def get_manager(self) -> Any:
        """Returns the scheduler's manager."""
        if self._manager is None:
            limit = (self._options["max_store_bytes"] or max(self._block_bytes, _MAX_STORE_BYTES)) // self._block_bytes
            prefix = identity_of(self.config, self._options["namespace"], spec="PenstockSpec")
            stores = [f"{self._settings['folder']}/{self._store_name(rank)}" for rank in range(self._ranks)]
            self._manager = _Manager(stores, prefix, limit, self._options["keep_on_reset"])
        return self._manager

    def get_worker(self, kv_caches: Any) -> Any:
        """Returns the worker's part, and opens its store."""
        if self._worker is None:
            rank = self.config.parallel.rank
            name = self._store_name(0 if self.replicated_layout else rank)
            if self.replicated_layout and rank != 0:
                folder = f"{self._settings['folder']}/{name}"
                self._worker = _Worker(kv_caches, self.blocks_per_chunk, lambda _: kv.Store(folder, read_only=True), is_writer=False)
            else:
                self._worker = _Worker(kv_caches, self.blocks_per_chunk, lambda block: open_store(self._settings, name, block, _WHERE), is_writer=True)
        return self._worker

    def _store_name(self, rank: int) -> str:
        return f"dp{self.config.parallel.data_parallel_index}-rank{rank}of{self._ranks}"


@dataclasses.dataclass
class PenstockBlocks(LoadStoreSpec):  # type: ignore[misc,unused-ignore]
    """The scheduler's message to the workers. `names`: the store's keys of the blocks to move. `used`: keys of other blocks that were used,
    most recently used first."""

    names: list[bytes]
    used: list[bytes]


class _Manager(OffloadingManager):  # type: ignore[misc,unused-ignore]
    """The scheduler's part. A block exists if it is in the indexes of all stores, which contain only completely written blocks."""

    def __init__(self, folders: list[str], prefix: bytes, max_storing: int, keep_on_reset: bool) -> None:
        self._stores: dict[str, kv.Store | None] = dict.fromkeys(folders)
        self._prefix = prefix
        self._max_storing = max_storing
        self._keep_on_reset = keep_on_reset
        self._storing: set[bytes] = set()
        self._found: dict[bytes, bool] = {}  # lookups in the scheduler's current step
        self._used: dict[bytes, None] = {}  # most recently used last
        self._loads: dict[str, int] = {}  # loads of each request
        if not self._open():
            LOG.warning("vLLM: no blocks can be loaded, because %s is missing; all hosts must see the same folder", folders[-1])

    def on_new_request(self, req_context: Any) -> Any:
        """Returns vLLM's default policy: each block is stored when it is computed."""
        self._open()
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        self._loads.pop(req_context.req_id, None)

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """Looks up a block. After a hit, looks up all other blocks of the request in one call."""
        name = self._prefix + key
        if name not in self._found:
            self._found[name] = self._exist([name])[0]
            if self._found[name]:
                keys = getattr(req_context, "_offload_key_positions", ())  # vLLM 0.31 added this
                others = [other for other in (self._prefix + each for each in keys) if other not in self._found]
                self._found.update(zip(others, self._exist(others)))
        is_hit = self._found[name] and self._loads.get(req_context.req_id, 0) < _MAX_LOADS
        return LookupResult.HIT if is_hit else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        self._found.clear()

    def get_load_source(self, key: bytes, req_context: Any) -> Any:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource  # type: ignore[import-not-found,unused-ignore]  # vLLM 0.32 added this

        return CacheHitSource.DISK

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        """Records that blocks were used, the first one most recently. The next message passes this to the workers."""
        for key in reversed(list(keys)):
            self._used.pop(self._prefix + key, None)
            self._used[self._prefix + key] = None
        while len(self._used) > _MAX_USED:
            del self._used[next(iter(self._used))]

    def prepare_load(self, keys: Collection[bytes], req_context: Any) -> Any:
        self._loads[req_context.req_id] = self._loads.get(req_context.req_id, 0) + 1
        return self._message(keys)

    def prepare_store(self, keys: Collection[bytes], req_context: Any) -> Any:
        """Accepts new blocks in order, up to the limit on waiting blocks. Returns None if there is room for none; vLLM then tries again."""
        others = [key for key in keys if self._prefix + key not in self._storing]
        exist = self._exist([self._prefix + key for key in others])
        self.touch([key for key, found in zip(others, exist) if found], req_context)
        new = [key for key, found in zip(others, exist) if not found]
        accepted = new[: max(0, self._max_storing - len(self._storing))]
        if new and not accepted:
            return None
        self._storing.update(self._prefix + key for key in accepted)
        return PrepareStoreOutput(keys_to_store=accepted, store_spec=self._message(accepted), evicted_keys=[])

    def complete_store(self, keys: Collection[bytes], req_context: Any, success: bool = True) -> None:
        self._storing.difference_update(self._prefix + key for key in keys)

    def reset_cache(self) -> None:
        """Unless `keep_on_reset` is set, hides earlier blocks until vLLM restarts, because they may belong to old weights."""
        if not self._keep_on_reset:
            self._prefix = secrets.token_bytes(len(self._prefix))
        self._storing.clear()
        self._found.clear()
        self._used.clear()

    def shutdown(self) -> None:
        for folder, store in self._stores.items():
            if store is not None:
                store.close()
            self._stores[folder] = None

    def _message(self, keys: Collection[bytes]) -> PenstockBlocks:
        used, self._used = (list(reversed(self._used)), {}) if keys else ([], self._used)
        return PenstockBlocks([self._prefix + key for key in keys], used)

    def _open(self) -> bool:
        """Opens the stores that the workers created since the last call. Returns False if some are missing."""
        for folder, store in self._stores.items():
            if store is None:
                self._stores[folder] = _tried("open the store of a worker", functools.partial(_existing, folder), None)
        return None not in self._stores.values()

    def _exist(self, names: list[bytes]) -> list[bool]:
        """Returns whether each block is in all stores."""
        exist = [None not in self._stores.values()] * len(names)
        for store in self._stores.values():
            if any(exist) and store is not None:
                found = _tried("look up blocks", functools.partial(store.exists, names), [False] * len(names))
                exist = [one and other for one, other in zip(exist, found)]
        return exist


def _existing(folder: str) -> kv.Store | None:
    with contextlib.suppress(NotFound):
        return kv.Store(folder, read_only=True)
    return None


class _Worker(OffloadingWorker):  # type: ignore[misc,unused-ignore]
    """A worker's part. One thread waits until the GPU has computed the blocks to store, or no longer uses the memory to load into, and then starts
    the put or get.
    """

    def __init__(self, kv_caches: Any, blocks_per_chunk: int, open_store: Callable[[int], kv.Store], is_writer: bool) -> None:
        tensors = [each.tensor for each in kv_caches.tensors]
        self._device = tensors[0].device
        self._per_chunk = blocks_per_chunk
        self._is_writer = is_writer
        self._groups = [_Group([(tensors[ref.tensor_idx], ref.page_size_bytes) for ref in refs]) for refs in kv_caches.group_data_refs]
        self._largest = max(group.block_bytes for group in self._groups) * blocks_per_chunk
        # For the blocks of a chunk that vLLM does not store or load: zeros to store, and memory to load into. They are allocated only once, because
        # a GPU may still be using memory from PyTorch's cache.
        self._zeros, self._unused = (torch.zeros(self._largest if blocks_per_chunk > 1 else 0, dtype=torch.int8, device=self._device) for _ in range(2))
        self._open_store = open_store
        self._opened: kv.Store | None = open_store(self._largest) if is_writer else None
        self._jobs: list[_Job] = []
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "penstock-vllm")
        self._reported = _reported_failures(len(self._groups))
        self.failed_blocks: set[int] = set()
        self.failed_jobs: set[int] = set()

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._submit(_Job(job_id, dst_spec, src_spec, is_load=False))

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        return self._submit(_Job(job_id, src_spec, dst_spec, is_load=True))

    def get_finished(self) -> list[Any]:
        """Returns the results of the jobs that completed since the last call."""
        completed = [job for job in self._jobs if job.done()]
        self._jobs = [job for job in self._jobs if job not in completed]
        return [self._result(job) for job in completed]

    def wait(self, job_ids: set[int]) -> None:
        for job in self._jobs:
            if job.number in job_ids:
                job.wait()

    def shutdown(self) -> None:
        """Waits for the jobs in progress and closes the store. A second call does nothing."""
        self._thread.shutdown()
        for job in self._jobs:
            job.wait()
        self._jobs.clear()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _store(self) -> kv.Store:
        if self._opened is None:
            self._opened = self._open_store(self._largest)
        return self._opened

    def _submit(self, job: _Job) -> bool:
        if self._device.type == "cuda":
            event = torch.cuda.Event(blocking=True)
            event.record(torch.cuda.current_stream(self._device))
            job.ready = event.synchronize
        job.started = self._thread.submit(_tried, "start a job", lambda: self._start(job), None)
        self._jobs.append(job)
        return True

    def _start(self, job: _Job) -> None:
        """Starts the puts or gets of a job in batches: the first ones run while Python lists the buffers of the others."""
        size, groups = self._per_chunk, zip(job.gpu.group_sizes, job.gpu.block_indices)
        if len(job.names) != (count := sum(-(-(blocks + first % size) // size) for blocks, first in groups if blocks)):
            raise ValueError(f"vLLM sent {len(job.names)} keys for {count} chunks")
        job.ready()
        store, chunks = self._store(), self._chunks(job)
        if not job.is_load:
            store.sizes(job.used)  # marks them as used
            exist = dict(zip(job.names, store.exists(job.names)))
            chunks = (chunk for chunk in chunks if not exist[chunk.name])
        while batch := list(itertools.islice(chunks, _BATCH)):
            items = [(chunk.name, chunk.buffers) for chunk in batch]
            call = store.get_async if job.is_load else store.put_async
            job.calls.append((call(items, return_exceptions=True), batch))

    def _chunks(self, job: _Job) -> Iterator[_Chunk]:
        """Yields the chunks of a job. A chunk's first or last blocks may be missing. vLLM counts the blocks of each group from the start of the request."""
        names, position = iter(job.names), 0
        for group, count, first in zip(self._groups, job.gpu.group_sizes, job.gpu.block_indices, strict=True):
            ids = job.gpu.block_ids[position : position + count].tolist()
            position += count
            for start in range(-(first % self._per_chunk), count, self._per_chunk) if count else ():
                end = start + self._per_chunk
                blocks = ids[max(0, start) : end]
                buffers = group.buffers(blocks)
                if len(blocks) < self._per_chunk:
                    before, after, other = max(0, -start) * group.block_bytes, max(0, end - count) * group.block_bytes, self._other(job)
                    buffers = [Pointer(other.data_ptr(), before, other), *buffers, Pointer(other.data_ptr() + before, after, other)]
                yield _Chunk(next(names), blocks, buffers, group.block_bytes * self._per_chunk)

    def _other(self, job: _Job) -> Any:
        """Returns memory for the missing blocks of a chunk. In host memory, each chunk needs its own, because the store checks what it loads."""
        if not job.is_load:
            return self._zeros
        return self._unused if self._device.type == "cuda" else torch.empty_like(self._unused)

    def _result(self, job: _Job) -> Any:
        chunks = [chunk for _, batch in job.calls for chunk in batch]
        results = [result for future, batch in job.calls for result in _tried("complete a job", future.result, [False] * len(batch))]
        warn_of_errors(f"vLLM: {'loading' if job.is_load else 'storing'}", results, "blocks")
        moved = [chunk for chunk, result in zip(chunks, results) if result is True]
        success = not job.is_load or len(moved) == len(job.names) or self._report(job, moved)  # vLLM asks the stores which blocks were stored
        seconds = time.monotonic() - job.begin
        return TransferResult(job_id=job.number, success=success, transfer_size=sum(chunk.bytes for chunk in moved), transfer_time=seconds)

    def _report(self, job: _Job, moved: list[_Chunk]) -> bool:
        """Reports the blocks that could not be loaded, and drops them, so that vLLM does not load them again. Returns False if this vLLM release accepts
        no reports: vLLM then stops, and does not use the blocks.
        """
        lost = list(set(job.names) - {chunk.name for chunk in moved})
        LOG.warning("vLLM: %d of %d blocks could not be loaded", len(lost), len(job.names))
        if self._is_writer:
            _tried("drop blocks", lambda: self._store().drop(lost), None)
        if self._reported == "blocks":
            self.failed_blocks |= set(job.gpu.block_ids.tolist()) - {block for chunk in moved for block in chunk.blocks}
        elif self._reported == "requests":
            self.failed_jobs.add(job.number)
        return self._reported is not None


class _Group:
    """vLLM's tensors of one KV cache group. Each row of a tensor is a block's page."""

    def __init__(self, tensors: list[tuple[Any, int]]) -> None:
        self.block_bytes = sum(page_bytes for _, page_bytes in tensors)
        self._pages = [(tensor.data_ptr(), tensor.stride(0) * tensor.element_size(), page_bytes, tensor) for tensor, page_bytes in tensors]
        self._count = min(len(tensor) for tensor, _ in tensors)

    def buffers(self, blocks: list[int]) -> list[Pointer]:
        if not 0 <= min(blocks) <= max(blocks) < self._count:
            raise ValueError(f"the blocks {blocks} are not in the KV cache, which has {self._count} blocks")
        return [Pointer(address + block * step, page_bytes, tensor) for block in blocks for address, step, page_bytes, tensor in self._pages]


class _Chunk(NamedTuple):
    """One value in the store, and the numbers of its GPU blocks."""

    name: bytes
    blocks: list[int]
    buffers: list[Pointer]
    bytes: int


class _Job:
    def __init__(self, number: int, message: PenstockBlocks, gpu: Any, is_load: bool) -> None:
        self.number = number
        self.names = message.names
        self.used = message.used
        self.gpu = gpu
        self.is_load = is_load
        self.begin = time.monotonic()
        self.ready: Callable[[], Any] = lambda: None
        self.calls: list[tuple[Future[list[Any]], list[_Chunk]]] = []
        self.started: concurrent.futures.Future[None]

    def done(self) -> bool:
        return self.started.done() and all(future.done() for future, _ in self.calls)

    def wait(self) -> None:
        self.started.result()
        for future, _ in self.calls:
            future.exception()


# --- failed loads: vLLM's connectors can report them, but OffloadingConnector does not


def _reported_failures(groups: int) -> str | None:
    """Makes OffloadingConnector report failed loads. Returns what it reports: "blocks", "requests", or None if this vLLM release cannot."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector  # type: ignore[import-not-found,unused-ignore]

    kind, method, hook = ("blocks", "get_block_ids_with_load_errors", _failed_blocks) if groups == 1 else ("requests", "get_transfer_results", _results)
    inherited = getattr(connectors.KVConnectorBase_V1, method, None)
    if inherited is not None and getattr(OffloadingConnector, method) is inherited:
        setattr(OffloadingConnector, method, hook)
    return kind if getattr(OffloadingConnector, method, None) is hook else None


def _worker_of(connector: Any) -> _Worker | None:
    worker = getattr(connector.connector_worker, "worker", None)
    return worker if isinstance(worker, _Worker) else None


def _failed_blocks(connector: Any) -> set[int]:
    worker = _worker_of(connector)
    if worker is None:
        return set()
    failed, worker.failed_blocks = worker.failed_blocks, set()
    return failed


def _results(connector: Any, finished_req_ids: set[str]) -> Any:
    """Reports failed requests. With several KV cache groups, vLLM does not accept reports of single blocks."""
    worker = _worker_of(connector)
    requests = dict(connector.connector_worker._load_jobs) if worker is not None else {}
    results = connectors.KVConnectorBase_V1.get_transfer_results(connector, finished_req_ids)
    if worker is not None:
        failed, worker.failed_jobs = worker.failed_jobs, set()
        if any(requests[job] is None for job in failed):
            raise RuntimeError("a load within a step failed, and vLLM cannot repeat it; set sync_load_budget_bytes to 0")
        results.failed_recving |= {requests[job] for job in failed}
    return results


def __dir__() -> list[str]:
    return sorted(__all__)
