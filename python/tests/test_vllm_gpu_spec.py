"""PenstockSpec under vLLM's own OffloadingConnector, scheduler and workers, with the KV cache in host memory. Each worker has its own tensors."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import importlib
import json
import logging
import pickle
import re
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import penstock
from penstock import kv

sys.path.insert(0, str(Path(__file__).parent))
import engines_files
import test_vllm_kv_tier as tiers

OFFLOAD = "vllm.v1.kv_offload"
CONNECTORS = "vllm.distributed.kv_transfer.kv_connector"
REAL = [f"{CONNECTORS}.v1", f"{OFFLOAD}.base", f"{OFFLOAD}.config", f"{OFFLOAD}.factory", "vllm.v1.metrics.cache_hit_source", "vllm.utils.math_utils"]
REAL += ["vllm.v1.kv_cache_interface", "vllm.v1.kv_cache_layout", f"{CONNECTORS}.utils", f"{CONNECTORS}.v1.base", f"{CONNECTORS}.v1.metrics"]
REAL += [f"{CONNECTORS}.v1.offloading.{name}" for name in ("common", "metrics", "events", "config", "scheduler", "worker")]
REAL += [f"{CONNECTORS}.v1.offloading_connector", "vllm.v1.core.sched.interface", "vllm.v1.core.sched.scheduler"]
TOKENS = 16
PAGE = 4096
LAYERS = 3
GPU_BLOCKS = 64


@contextlib.contextmanager
def names_of_vllm() -> Iterator[Any]:
    """vLLM's names in one namespace, with the spec registered."""
    real = [name for name in REAL if engines_files.has(name)]
    with engines_files.modules_of("vllm", real, {"vllm": {"__version__": "of the folder"}}) as found:
        names = {name: value for module in found.values() for name, value in vars(module).items() if not name.startswith("__")}
        importlib.import_module("penstock.vllm").register()
        yield SimpleNamespace(**names, spec=importlib.import_module("penstock.vllm._gpu_spec"))


@pytest.fixture(scope="module")
def vllm() -> Iterator[Any]:
    with names_of_vllm() as found:
        yield found


class Request:
    """A request of `length` blocks. Requests with the same `text` have the same blocks, up to the first that differs."""

    numbers = iter(range(1 << 30))

    def __init__(self, text: str) -> None:
        self.request_id = f"request {next(self.numbers)}"
        self.block_hashes = [f"{text[: number + 1]:>32}".encode()[-32:] for number in range(len(text))]
        self.num_tokens = self.num_prompt_tokens = TOKENS * len(text) + 1  # vLLM computes at least one token
        self.num_computed_tokens = 0
        self.kv_transfer_params = self.kv_hints = self.status = None
        self.skip_reading_prefix_cache = False
        self.finished = False

    def is_finished(self) -> bool:
        return self.finished


class Engine:
    """vLLM's scheduler side, and one connector and its own KV cache for each of the ranks. Messages between them are pickled, as in vLLM."""

    def __init__(self, vllm: Any, scratch: Path, ranks: int = 1, groups: int = 1, per_chunk: int = 1, extra: Any = None, config: Any = None, **settings: Any) -> None:
        self.vllm, self.ranks, self.groups, self.per_chunk = vllm, ranks, groups, per_chunk
        given: dict[str, Any] = {"folder": str(scratch / "kv"), "capacity_bytes": 4 << 20, **settings}
        extra = {"spec_name": "PenstockSpec", "penstock": given, **(extra or {})}
        changes: dict[str, Any] = {"world_size": ranks, "tp_size": ranks, "blocks_per_chunk": per_chunk, "extra_config": extra, "canonical_layout": False}
        changes |= {"worker_kv_bytes_per_block": PAGE * LAYERS * groups, "replicated_layout": False, "sliding_window_size_in_chunks": None, **(config or {})}

        def config_of(rank: int) -> Any:
            whole = tiers.config_of(vllm, **{"tokens_per_block": TOKENS, **changes, "rank": rank})
            parts = [dataclasses.replace(whole.groups[0], **({"group_id": number} if hasattr(whole.groups[0], "group_id") else {})) for number in range(groups)]
            return dataclasses.replace(whole, groups=tuple(parts))

        self.is_replicated = changes["replicated_layout"]
        self.memory = [[torch.zeros((GPU_BLOCKS, PAGE), dtype=torch.int8) for _ in range(LAYERS * groups)] for _ in range(ranks)]
        self.connectors = []
        for rank in range(ranks):
            spec = vllm.OffloadingSpecFactory.create_spec(config_of(rank))
            connector = vllm.OffloadingConnector.__new__(vllm.OffloadingConnector)
            connector.connector_scheduler, connector._connector_metadata = None, None
            connector.connector_worker = vllm.OffloadingConnectorWorker(spec, None, None)
            connector.connector_worker.worker = spec.get_worker(self.caches(rank))
            self.connectors.append(connector)
        spec = vllm.OffloadingSpecFactory.create_spec(config_of(0))
        attention = vllm.FullAttentionSpec(block_size=TOKENS, num_kv_heads=1, head_size=PAGE // 64, dtype=torch.bfloat16)
        group = SimpleNamespace(kv_cache_spec=attention, is_eagle_group=False, layer_names=("a layer",))
        cache_config = SimpleNamespace(enable_prefix_caching=True, prefix_cache_retention_interval=None)
        parallel = SimpleNamespace(world_size=ranks, decode_context_parallel_size=1)
        configs = SimpleNamespace(cache_config=cache_config, speculative_config=None, parallel_config=parallel)
        kv_caches = SimpleNamespace(kv_cache_groups=[group] * groups, cache_hit_alignment_tokens=None, hisparse_host_num_blocks=None)
        self.scheduler = vllm.OffloadingConnectorScheduler(spec, configs, kv_caches)
        self.free = collections.deque(range(1, GPU_BLOCKS))
        self.failed_blocks: set[int] = set()
        self.failed_requests: set[str] = set()

    def caches(self, rank: int) -> Any:
        tensors = [self.vllm.CanonicalKVCacheTensor(tensor, PAGE) for tensor in self.memory[rank]]
        refs = [self.vllm.CanonicalKVCacheRef(number, PAGE) for number in range(len(tensors))]
        return self.vllm.CanonicalKVCaches(tensors, [refs[group * LAYERS : (group + 1) * LAYERS] for group in range(self.groups)])

    @property
    def workers(self) -> list[Any]:
        return [connector.connector_worker.worker for connector in self.connectors]

    def page(self, request: Request, number: int, layer: int, rank: int) -> Any:
        """Returns the KV that the model computes for a block."""
        seed = zlib.crc32(repr((request.block_hashes[number], layer, 0 if self.is_replicated else rank)).encode())
        return torch.randint(-128, 128, (PAGE,), dtype=torch.int8, generator=torch.Generator().manual_seed(seed))

    def is_right(self, request: Request, blocks: list[list[int]], numbers: Any) -> bool:
        return all(
            torch.equal(self.memory[rank][layer][blocks[layer // LAYERS][number]], self.page(request, number, layer, rank))
            for rank in range(self.ranks)
            for layer in range(LAYERS * self.groups)
            for number in numbers
        )

    def schedule(self, request: Request, cached: int = 0) -> tuple[int, list[list[int]], Any]:
        """Returns the number of blocks that are loaded, the blocks of the request, and the message to the workers. `cached`: blocks on the GPU."""
        count = len(request.block_hashes) + 1
        self.scheduler.on_new_request(request)
        loaded, _ = self.scheduler.get_num_new_matched_tokens(request, cached * TOKENS)
        blocks = [[self.free.popleft() for _ in range(count)] for _ in range(self.groups)]
        for ids in blocks:
            self.free.extend(ids)
        hashes = [b"cached" if number < cached else None for number in range(count)]
        of_vllm = [[SimpleNamespace(block_id=block, is_null=False, block_hash=each) for block, each in zip(ids, hashes)] for ids in blocks]
        self.scheduler.update_state_after_alloc(request, SimpleNamespace(blocks=of_vllm), loaded)
        return loaded // TOKENS, blocks, self.step([])

    def step(self, requests: list[Request], blocks: Any = None, finished: Any = ()) -> Any:
        """Returns the message of a step that computes the requests if `blocks` are given."""
        new = [SimpleNamespace(req_id=request.request_id, block_ids=tuple(blocks)) for request in requests if blocks]
        cached = SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set())
        output = SimpleNamespace(scheduled_new_reqs=new, scheduled_cached_reqs=cached, preempted_req_ids=set(), kv_cache_block_copies=None)
        vars(output).update(finished_req_ids={each.request_id for each in finished}, kv_connector_block_state=None)
        vars(output).update(num_scheduled_tokens={request.request_id: request.num_tokens for request in requests if blocks})
        return self.scheduler.build_connector_meta(output)

    def work(self, message: Any) -> None:
        """Lets the workers start what the message says, and passes what they completed to the scheduler."""
        reports = []
        for connector in self.connectors:
            connector.bind_connector_metadata(pickle.loads(pickle.dumps(message)))
            connector.handle_preemptions(connector._connector_metadata)
            connector.start_load_kv(None)
            connector.wait_for_save()
            results = getattr(connector, "get_transfer_results", lambda finished: SimpleNamespace(failed_recving=connector.get_finished(finished) and set()))(set())
            self.failed_requests |= results.failed_recving
            self.failed_blocks |= connector.get_block_ids_with_load_errors()
            reports.append(connector.build_connector_worker_meta())
        total = None
        for report in reports:
            total = report if total is None or report is None else total.aggregate(report)
            if report is not None:
                self.scheduler.update_connector_output(SimpleNamespace(kv_connector_worker_meta=report))

    def settle(self) -> None:
        """Steps until no job is left."""
        while self.scheduler._jobs:
            self.work(self.step([]))

    def serve(self, text: str, cached: int = 0) -> int:
        """Serves a request: loads and checks blocks, computes and stores the others. Returns the number of blocks that were loaded, as a negative number
        if that failed.
        """
        request = Request(text)
        loaded, blocks, message = self.schedule(request, cached)
        self.request, self.blocks = request, blocks
        self.work(message)
        self.settle()
        failed = bool(self.failed_blocks or self.failed_requests)
        if loaded and not failed:
            assert self.is_right(request, blocks, range(cached, cached + loaded))
        if loaded and failed:
            return -loaded
        self.compute(request, blocks, cached + loaded)
        return loaded

    def compute(self, request: Request, blocks: list[list[int]], first: int) -> None:
        for number in range(first, len(request.block_hashes)):
            for rank in range(self.ranks):
                for layer in range(LAYERS * self.groups):
                    self.memory[rank][layer][blocks[layer // LAYERS][number]] = self.page(request, number, layer, rank)
        self.work(self.step([request], blocks))
        request.finished = True
        self.scheduler.request_finished(request)
        self.work(self.step([], finished=[request]))
        self.settle()

    def hits(self, text: str) -> list[bool]:
        self.scheduler.manager.on_schedule_end(None)
        context = self.vllm.ReqContext("lookups")
        keys = [self.vllm.make_offload_key(each, 0) for each in Request(text).block_hashes[self.per_chunk - 1 :: self.per_chunk]]
        return [self.scheduler.manager.lookup(key, context) is self.vllm.LookupResult.HIT for key in keys]

    def close(self) -> None:
        self.scheduler.shutdown()
        for connector in self.connectors:
            connector.shutdown()


@pytest.fixture
def engine(vllm: Any, tmp_path: Path) -> Iterator[Any]:
    """Starts engines, and shuts them down at the end."""
    opened: list[Engine] = []

    def start(**settings: Any) -> Engine:
        opened.append(Engine(vllm, tmp_path, **settings))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


VALUE = PAGE * LAYERS  # bytes


@pytest.mark.parametrize("per_chunk", [1, 3], ids="blocks_per_chunk_{}".format)
@pytest.mark.parametrize("groups", [1, 2], ids="groups_{}".format)
@pytest.mark.parametrize("ranks", [1, 2], ids="ranks_{}".format)
def test_blocks_return_to_each_rank_also_after_a_restart(engine: Any, ranks: int, groups: int, per_chunk: int) -> None:
    first = engine(ranks=ranks, groups=groups, per_chunk=per_chunk)
    assert [first.serve(text) for text in ("abcdef", "abcdef", "abcxyz")] == [0, 6, 3]
    assert first.serve("abcdef", cached=1) == 5  # within a chunk of three blocks
    first.close()
    first.close()
    second = engine(ranks=ranks, groups=groups, per_chunk=per_chunk)
    assert [second.serve(text) for text in ("abcdef", "abcxyz", "zzz")] == [6, 6, 0]


def test_a_job_may_begin_and_end_within_chunks(vllm: Any, engine: Any) -> None:
    running = engine(per_chunk=3)
    worker, names = running.workers[0], [b"first", b"second"]
    for tensor in running.memory[0]:
        tensor.copy_(torch.arange(GPU_BLOCKS, dtype=torch.int8)[:, None].expand(-1, PAGE))
    before = [tensor.clone() for tensor in running.memory[0]]

    def moved(is_load: bool, blocks: list[int], first: int) -> None:
        message, gpu = vllm.spec.PenstockBlocks(names, []), vllm.GPULoadStoreSpec(blocks, [len(blocks)], [first])
        worker.submit_load(1, message, gpu) if is_load else worker.submit_store(1, gpu, message)
        worker.wait({1})
        assert [(each.job_id, each.success, each.transfer_size) for each in worker.get_finished()] == [(1, True, 2 * 3 * VALUE)]

    moved(False, [1, 2, 3, 4, 5], 1)  # the first block is unknown
    moved(True, [11, 12, 13], 2)
    for tensor, old in zip(running.memory[0], before):
        assert tensor[11:14, 0].tolist() == [2, 3, 4]
        assert torch.equal(torch.cat((tensor[:11], tensor[14:])), torch.cat((old[:11], old[14:])))


def tokens_after_a_failure(vllm: Any, running: Engine, request: Request, blocks: list[list[int]]) -> int:
    """Returns how many loaded tokens of a request vLLM's scheduler keeps after what the workers reported."""
    waiting = SimpleNamespace(request_id=request.request_id, num_computed_tokens=TOKENS * len(request.block_hashes))
    waiting.status = vllm.RequestStatus.WAITING_FOR_REMOTE_KVS
    pool = SimpleNamespace(null_block=SimpleNamespace(block_id=0))
    manager = SimpleNamespace(get_block_ids=lambda request_id: tuple(blocks), block_pool=pool)
    scheduler = vllm.Scheduler.__new__(vllm.Scheduler)
    vars(scheduler).update(kv_cache_config=SimpleNamespace(kv_cache_groups=blocks), kv_cache_manager=manager, block_size=TOKENS, running=[])
    vars(scheduler).update(kv_holding_waiting=[waiting], skipped_waiting=[waiting], requests={request.request_id: waiting})
    vars(scheduler).update(recompute_kv_load_failures=True, failed_recving_kv_req_ids=set())
    if running.failed_blocks:
        scheduler._handle_invalid_blocks(running.failed_blocks, {})
    else:
        scheduler._handle_failed_recving(running.failed_requests)
    assert scheduler.failed_recving_kv_req_ids == {request.request_id}
    return int(waiting.num_computed_tokens)


@pytest.mark.parametrize("groups", [1, 2], ids="groups_{}".format)
@pytest.mark.parametrize("fault", ["damaged", "evicted", "unreadable", "not started"])
def test_a_block_that_cannot_be_loaded_is_reported_and_computed_again(
    vllm: Any, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, groups: int
) -> None:
    running = engine(ranks=2, groups=groups)
    assert running.serve("abcdef") == 0
    worker, lost = running.workers[1], [2]
    request = Request("abcdef")
    loaded, blocks, message = running.schedule(request)
    assert loaded == 6
    name = running.scheduler.manager._prefix + vllm.make_offload_key(request.block_hashes[2], 0)
    if fault == "damaged":
        data = tmp_path / "kv" / "dp0-rank1of2" / "data"
        content = bytearray(data.read_bytes())
        content[content.index(running.page(request, 2, 1, rank=1).numpy().tobytes()) + 7] ^= 1
        data.write_bytes(content)
    elif fault == "evicted":
        assert worker._store().drop([name]) == [True]
    else:
        results: concurrent.futures.Future[Any] = concurrent.futures.Future()
        results.set_result([penstock.Error("the disk fails", code="io")] * 6 * groups)
        wrong = {"unreadable": lambda *_, **__: results, "not started": lambda *_, **__: 1 / 0}[fault]
        monkeypatch.setattr(worker._store(), "get_async", wrong, raising=False)
        lost = list(range(6))
    if groups > 1 and not hasattr(vllm.KVConnectorBase_V1, "get_transfer_results"):
        with pytest.raises(AssertionError):  # vLLM 0.29 stops
            while True:
                running.work(message)
                message = running.step([])
        return
    running.work(message)
    running.settle()
    monkeypatch.undo()
    assert running.failed_blocks == ({blocks[0][number] for number in lost} if groups == 1 else set())
    assert running.failed_requests == ({request.request_id} if groups == 2 else set())
    assert tokens_after_a_failure(vllm, running, request, blocks) == (TOKENS * lost[0] if groups == 1 else 0)
    assert running.hits("abcdef") == [number not in lost for number in range(6)]
    running.failed_blocks.clear()
    running.failed_requests.clear()
    assert [running.serve("abcdef") for _ in range(2)] == [lost[0], 6]


def test_vllm_stops_if_it_accepts_no_reports(vllm: Any, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm.OffloadingConnector, "get_block_ids_with_load_errors", lambda connector: set(), raising=False)
    running = engine()
    assert running.serve("ab") == 0
    monkeypatch.setattr(running.workers[0]._store(), "get_async", lambda *_, **__: 1 / 0, raising=False)
    with pytest.raises(AssertionError):
        running.serve("ab")


def test_a_request_does_not_load_blocks_forever(vllm: Any, engine: Any) -> None:
    """On a disk that fails, blocks can be neither read nor dropped."""
    running = engine()
    assert running.serve("ab") == 0
    manager, context = running.scheduler.manager, vllm.ReqContext("a request")
    key = vllm.make_offload_key(Request("ab").block_hashes[0], 0)
    loads = 0
    while manager.lookup(key, context) is vllm.LookupResult.HIT:
        manager.prepare_load([key], context)
        loads += 1
        assert loads < 100
    assert loads > 8 and running.hits("ab") == [True, True]
    manager.on_request_finished(context)
    assert manager.lookup(key, context) is vllm.LookupResult.HIT


def test_a_long_request_is_looked_up_in_few_calls(vllm: Any, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(vllm.ReqContext, "set_offload_key_position"):
        pytest.skip("this vLLM release does not list the keys of a request")
    running = engine(ranks=2)
    assert running.serve("abcdefghijklmnop") == 0
    calls: list[int] = []
    exists = kv.Store.exists
    monkeypatch.setattr(kv.Store, "exists", lambda store, names: calls.append(len(names)) or exists(store, names))
    loaded, _, message = running.schedule(Request("abcdefghijklmnop"))
    assert loaded == 16 and calls == [1, 1, 15, 15]
    running.work(message)
    running.settle()


def test_few_used_blocks_wait_for_the_next_message(vllm: Any, engine: Any) -> None:
    manager, context = engine().scheduler.manager, vllm.ReqContext("a request")
    for number in range(5000):
        manager.touch([b"%d" % number], context)
    assert len(manager._used) == 4096
    used = manager.prepare_load([b"key"], context).used
    assert len(used) == 4096 and used[0] == manager._prefix + b"4999"


def test_keys_are_the_same_in_the_scheduler_of_each_rank(vllm: Any, tmp_path: Path) -> None:
    """With vLLM's external launcher, each rank's process has a scheduler and a worker."""
    extra = {"spec_name": "PenstockSpec", "penstock": {"folder": str(tmp_path), "capacity_bytes": 4 << 20}}
    configs = [tiers.config_of(vllm, rank=rank, world_size=2, extra_config=extra, replicated_layout=False, canonical_layout=False) for rank in (0, 1)]
    first, second = (vllm.OffloadingSpecFactory.create_spec(config).get_manager()._prefix for config in configs)
    assert first == second


def test_a_full_store_drops_the_blocks_that_were_used_least_recently(engine: Any) -> None:
    running = engine(capacity_bytes=8 * VALUE)
    assert running.serve("abcdefgh") == 0
    assert running.serve("abc") == 3
    assert running.serve("xy") == 0
    assert running.hits("abc") == [True] * 3 and sum(running.hits("abcdefgh")) == 6
    assert running.serve("abc", cached=3) == 0  # used in GPU memory
    assert running.serve("uvwst") == 0
    assert running.hits("abc") == [True] * 3 and sum(running.hits("abcdefgh")) == 3


def test_too_many_waiting_blocks_are_not_stored(vllm: Any, engine: Any) -> None:
    running = engine(max_store_bytes=3 * VALUE)
    manager, context = running.scheduler.manager, vllm.ReqContext("a request")
    keys = [vllm.make_offload_key(each, 0) for each in Request("abcdefg").block_hashes]
    accepted = manager.prepare_store(keys[:5], context)
    assert accepted.keys_to_store == keys[:3] and accepted.evicted_keys == [] and len(accepted.store_spec.names) == 3
    assert manager.lookup(keys[0], context) is vllm.LookupResult.MISS  # until it is written
    assert manager.prepare_store(keys[:3], context).keys_to_store == []
    assert manager.prepare_store(keys, context) is None
    manager.complete_store(keys[:2], context)
    assert manager.prepare_store(keys[3:], context).keys_to_store == keys[3:5]


def test_stores_wait_for_the_gpu_and_calls_do_not(vllm: Any, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    running = engine()
    worker, computed, put = running.workers[0], threading.Event(), threading.Event()
    results: concurrent.futures.Future[Any] = concurrent.futures.Future()

    class Event:
        def __init__(self, blocking: bool) -> None:
            self.stream = None

        def record(self, stream: Any) -> None:
            self.stream = stream

        def synchronize(self) -> None:
            assert self.stream == "the current stream of cuda:0" and computed.wait(60)

    def put_async(items: Any, return_exceptions: bool) -> Any:
        put.set()
        return results

    cuda = SimpleNamespace(Event=Event, current_stream=lambda device: f"the current stream of {device.name}")
    monkeypatch.setattr(vllm.spec, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(worker, "_device", SimpleNamespace(type="cuda", name="cuda:0"))
    monkeypatch.setattr(worker._store(), "put_async", put_async, raising=False)
    assert worker.submit_store(5, vllm.GPULoadStoreSpec([1, 2], [2], [0]), vllm.spec.PenstockBlocks([b"a", b"b"], []))
    assert worker.get_finished() == [] and not put.is_set()
    computed.set()
    assert put.wait(60) and worker.get_finished() == []
    waits = threading.Thread(target=worker.wait, args=({4, 5},))
    waits.start()
    worker.wait({4})
    assert waits.is_alive()
    results.set_result([True, penstock.Error("the disk is full", code="no_space")])
    waits.join()
    (result,) = worker.get_finished()
    assert (result.job_id, result.success, result.transfer_size) == (5, True, VALUE)
    monkeypatch.undo()
    assert running.hits("ab") == [False, False]


@pytest.mark.parametrize("block", [-1, GPU_BLOCKS])
def test_no_memory_outside_the_kv_cache_is_used(vllm: Any, engine: Any, block: int) -> None:
    running = engine()
    assert running.serve("ab") == 0
    worker, name = running.workers[0], running.scheduler.manager._prefix + vllm.make_offload_key(Request("ab").block_hashes[0], 0)
    assert worker.submit_load(9, vllm.spec.PenstockBlocks([name], []), vllm.GPULoadStoreSpec([block], [1], [0]))
    assert worker.submit_store(10, vllm.GPULoadStoreSpec([block], [1], [0]), vllm.spec.PenstockBlocks([b"other"], []))
    worker.wait({9, 10})
    assert {each.job_id: each.transfer_size for each in worker.get_finished()} == {9: 0, 10: 0}
    assert worker.failed_blocks == {block} and worker._store().exists([b"other"]) == [False]


@pytest.mark.parametrize("keys", [39, 41])
def test_nothing_is_stored_if_the_keys_do_not_fit_the_blocks(vllm: Any, engine: Any, keys: int) -> None:
    worker, names = engine(capacity_bytes=64 * VALUE).workers[0], [b"%d" % number for number in range(keys)]
    worker.submit_store(1, vllm.GPULoadStoreSpec(list(range(40)), [40], [0]), vllm.spec.PenstockBlocks(names, []))
    worker.wait({1})
    assert [each.transfer_size for each in worker.get_finished()] == [0] and not any(worker._store().exists(names))


def test_a_warning_does_not_keep_the_store(vllm: Any, engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Log handlers may keep warnings, and an exception keeps the variables of the functions that it passed through."""
    worker = engine().workers[0]
    worker.submit_load(1, vllm.spec.PenstockBlocks([b"a"], []), vllm.GPULoadStoreSpec([GPU_BLOCKS], [1], [0]))
    worker.submit_load(2, vllm.spec.PenstockBlocks([b"a" * 600], []), vllm.GPULoadStoreSpec([1], [1], [0]))
    worker.wait({1, 2})
    assert len(worker.get_finished()) == 2
    arguments = [each for record in caplog.records for each in record.args]
    assert any("are not in the KV cache" in str(each) for each in arguments) and any("600" in str(each) for each in arguments)
    assert not any(isinstance(each, BaseException) for each in arguments)


def test_a_job_that_fails_while_its_first_blocks_are_loaded_waits_for_them(vllm: Any, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    running = engine(capacity_bytes=64 * VALUE)
    worker, names = running.workers[0], [b"%d" % number for number in range(40)]
    worker.submit_store(1, vllm.GPULoadStoreSpec(list(range(40)), [40], [0]), vllm.spec.PenstockBlocks(names, []))
    worker.wait({1})
    assert [each.transfer_size for each in worker.get_finished()] == [40 * VALUE]
    results: concurrent.futures.Future[Any] = concurrent.futures.Future()
    monkeypatch.setattr(worker._store(), "get_async", lambda items, return_exceptions: results, raising=False)
    worker.submit_load(2, vllm.spec.PenstockBlocks(names, []), vllm.GPULoadStoreSpec([*range(39), GPU_BLOCKS], [40], [0]))
    worker._jobs[0].started.result()
    assert worker.get_finished() == []
    results.set_result([True] * 32)
    assert [(each.success, each.transfer_size) for each in worker.get_finished()] == [(True, 32 * VALUE)]
    assert worker.failed_blocks == {*range(32, 39), GPU_BLOCKS}


@pytest.mark.parametrize(
    "other",
    [{"name": "another/model"}, {"dtype": "fp8"}, {"pp_size": 2}, {"tokens_per_hash": 8}, {"kv_cache_layout": "HND"}, {"layer_names": ("other",)}],
    ids=lambda other: next(iter(other)),
)
def test_blocks_of_another_model_or_layout_are_not_found(engine: Any, other: dict[str, Any]) -> None:
    first = engine()
    assert first.serve("abc") == 0
    first.close()
    second = engine(config=other)
    assert second.hits("abc") == [False] * 3
    second.close()
    third = engine(config={"max_model_len": 100}, extra={"spec_module_path": "penstock.vllm._gpu_spec"})
    assert third.hits("abc") == [True] * 3
    third.close()
    assert engine(namespace="new weights").hits("abc") == [False] * 3


def test_parallel_layouts_and_replicas_have_their_own_stores(vllm: Any, engine: Any, tmp_path: Path) -> None:
    running = [engine(), engine(ranks=2), engine(config={"data_parallel_index": 1})]
    assert [each.serve("ab") for each in running] == [0, 0, 0]
    names = ["dp0-rank0of1", "dp0-rank0of2", "dp0-rank1of2", "dp1-rank0of1"]
    assert sorted(each.name for each in (tmp_path / "kv").iterdir()) == names
    capacities = [kv.Store(tmp_path / "kv" / name, read_only=True).stats().capacity_bytes for name in names]
    assert capacities == [4 << 20, 2 << 20, 2 << 20, 4 << 20]
    with pytest.raises(penstock.Error, match="dp0-rank0of1") as caught:
        Engine(vllm, tmp_path)
    assert caught.value.code == "would_block"


def test_ranks_with_the_same_bytes_share_a_store(engine: Any, tmp_path: Path) -> None:
    if not engines_files.has(f"{OFFLOAD}.config") or "replicated_layout" not in Path(engines_files.FOLDER, "vllm/v1/kv_offload/config.py").read_text():
        pytest.skip("this vLLM release has no replicated_layout")
    running = engine(ranks=2, config={"replicated_layout": True})
    assert [running.serve(text) for text in ("abc", "abcd")] == [0, 3]
    assert [each.name for each in (tmp_path / "kv").iterdir()] == ["dp0-rank0of1"]


def test_a_reset_of_vllms_caches_hides_earlier_blocks(engine: Any) -> None:
    running = engine()
    assert running.serve("abc") == 0
    running.scheduler.reset_cache()
    running.work(running.step([]))
    assert [running.serve("abc") for _ in range(2)] == [0, 3]
    running.close()
    again = engine(keep_on_reset=True)
    again.scheduler.reset_cache()
    assert again.hits("abc") == [True] * 3


def test_without_the_stores_of_all_ranks_nothing_is_found(vllm: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    extra = {"spec_name": "PenstockSpec", "penstock": {"folder": str(tmp_path / "kv"), "capacity_bytes": 4 << 20}}
    fields = {"world_size": 2, "extra_config": extra, "replicated_layout": False, "canonical_layout": False}
    with caplog.at_level(logging.WARNING, "penstock"):
        manager = vllm.OffloadingSpecFactory.create_spec(tiers.config_of(vllm, **fields)).get_manager()
    assert "rank1of2 is missing" in caplog.text
    names, context = [manager._prefix + b"key"], vllm.ReqContext("a request")
    for rank, expected in ((0, "MISS"), (1, "HIT")):
        (tmp_path / "kv").mkdir(exist_ok=True)
        with kv.Store(tmp_path / "kv" / f"dp0-rank{rank}of2", 1 << 20) as store:
            store.put({names[0]: b"x"})
        manager.on_new_request(context)
        manager.on_schedule_end(None)
        assert manager.lookup(b"key", context).name == expected
    manager.shutdown()


CHILD = """
import sys
sys.path.insert(0, {tests!r})
import test_vllm_gpu_spec as tests
from pathlib import Path

with tests.names_of_vllm() as vllm:
    running = tests.Engine(vllm, Path({folder!r}), ranks=2, capacity_bytes=32 << 20)
    for number in range(100):
        running.serve(f"{{number:02}}abcdef")
        print(number, flush=True)
"""


def test_after_kill_9_each_block_is_complete_or_missing(engine: Any, tmp_path: Path) -> None:
    script = CHILD.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == 12:
                break
        child.kill()
    running = engine(ranks=2, capacity_bytes=32 << 20)
    assert all(running.serve(f"{number:02}abcdef") == 8 for number in range(13))  # checks the bytes
    for number in range(13, 20):
        running.serve(f"{number:02}abcdef")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"folder": ""}, "must set \"folder\""),
        ({"root_dir": "/tmp"}, "unknown settings: root_dir; valid settings are folder, capacity_bytes"),
        ({"capacity_bytes": 4096}, "capacity_bytes .* is 4096; .* at least 12,288, the size of one block"),
        ({"capacity_bytes": 1e12}, "capacity_bytes .* is 1000000000000.0; it must be a number of bytes"),
        ({"capacity_bytes": True}, "capacity_bytes .* is True"),
        ({"capacity_bytes": 16384, "ranks": 2}, "capacity_bytes .* is 8,192, which is less than the size of one block, 12,288 bytes"),
        ({"max_store_bytes": 100}, "max_store_bytes .* is 100; .* at least 12,288"),
        ({"namespace": 3}, "namespace .* is 3; it must be a string"),
        ({"keep_on_reset": 1}, "keep_on_reset .* is 1; it must be true or false"),
        ({"extra": {"penstock": "/mnt/kv"}}, "must be an object with the store's folder"),
        ({"config": {"canonical_layout": True}}, "does not support canonical_layout"),
    ],
)
def test_wrong_settings_are_rejected(vllm: Any, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Engine(vllm, tmp_path, **settings)


def test_the_guide_shows_valid_settings(vllm: Any, tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs/guides/engines.md"
    if not guide.exists():
        pytest.skip("docs is not beside the tests")
    shown = next(block for block in re.findall(r"^```json\n(.*?)^```", guide.read_text(), re.DOTALL | re.MULTILINE) if "PenstockSpec" in block)
    settings = json.loads(shown)
    assert settings["kv_load_failure_policy"] == "recompute"
    extra = settings["kv_connector_extra_config"]
    assert set(extra) == {"spec_name", "penstock"} and set(extra["penstock"]) == {"folder", "capacity_bytes"}
    Engine(vllm, tmp_path, extra=extra | {"penstock": {**extra["penstock"], "folder": str(tmp_path / "kv"), "capacity_bytes": 1 << 20}}).close()
