"""LMCache's remote storage plug-in over a key-value store of Penstock, under LMCache's own RemoteBackend, with its configuration, keys and memory."""

from __future__ import annotations

import asyncio
import bisect
import concurrent.futures
import importlib.util
import logging
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from penstock import kv

sys.path.insert(0, str(Path(__file__).parent))
import engines_files

MIB = 1 << 20
BACKEND = "lmcache.v1.storage_backend"
REAL = ["lmcache.utils", *(f"lmcache.v1.{name}" for name in ("protocol", "config_base", "config", "metadata", "memory_management", "exceptions"))]
REAL += [f"lmcache.v1.memory_allocators.{name}" for name in ("buffer_allocator", "tensor_memory_allocator")]
REAL += [f"{BACKEND}.{name}" for name in ("abstract_backend", "connector.base_connector", "connector", "connector.instrumented_connector")]
REAL += [f"{BACKEND}.{name}" for name in ("cache_policy", "local_cpu_backend", "naive_serde.serde", "naive_serde.naive_serde", "remote_backend")]
LAYERS, TOKENS, WIDTH = 2, 16, 64
SHAPE = (2, LAYERS, TOKENS, WIDTH)
CHUNK_BYTES = 2 * LAYERS * TOKENS * WIDTH * 2


@pytest.fixture(scope="module")
def lmcache() -> Iterator[SimpleNamespace]:
    def get_size_bytes(shapes: Any, dtypes: Any) -> int:
        return sum(shape.numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes))

    class SortedList(list):  # type: ignore[type-arg]
        def __init__(self, key: Any) -> None:
            self.key = key

        def add(self, each: Any) -> None:
            self.insert(bisect.bisect_left(self, self.key(each), key=self.key), each)

        def bisect_left(self, each: Any) -> int:
            return bisect.bisect_left(self, self.key(each), key=self.key)

    stand_ins: dict[str, dict[str, Any]] = {"lmcache": {"torch_device_type": "cpu"}, "lmcache.integration.vllm.utils": {"get_size_bytes": get_size_bytes}}
    stand_ins["lmcache.logging"] = {"init_logger": lambda *_: logging.getLogger("lmcache")}
    stand_ins["lmcache.observability"] = {"PrometheusLogger": NoMetrics(), "LMCStatsMonitor": NoMetrics()}
    if importlib.util.find_spec("sortedcontainers") is None:
        stand_ins["sortedcontainers"] = {"SortedList": SortedList}
    with engines_files.modules_of("lmcache", REAL, stand_ins) as found:
        names = {name: value for module in found.values() for name, value in vars(module).items() if not name.startswith("__")}
        serde = found[f"{BACKEND}.naive_serde.naive_serde"]
        names["RemoteBackend"].__init__.__globals__["CreateSerde"] = lambda *_: (serde.NaiveSerializer(), serde.NaiveDeserializer())
        yield SimpleNamespace(**names)


class NoMetrics:
    """Replaces LMCache's metrics. A mock would keep the arguments of all calls."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def get_current_retrieve_stats(self) -> None:
        pass


class Worker:
    """LMCache's remote back end with its local memory and event loop."""

    def __init__(self, lmcache: SimpleNamespace, scratch: Path, worker: int = 0, memory_bytes: int = 8 * MIB, **settings: Any) -> None:
        self._lmcache = lmcache
        prefix = "remote_storage_plugin.penstock"
        plugin = {"module_path": "penstock.lmcache_connector", "class_name": "PenstockConnector", "folder": str(scratch / "kv"), **settings}
        extra = {f"{prefix}.{name}": value for name, value in plugin.items()}
        self.config = lmcache.LMCacheEngineConfig.from_defaults(chunk_size=TOKENS, remote_storage_plugins=["penstock"], extra_config=extra, local_cpu=False)
        shape = (LAYERS, 2, TOKENS, 1, WIDTH)
        self.metadata = lmcache.LMCacheMetadata("a/model", 2, 2, worker, worker, torch.bfloat16, shape, chunk_size=TOKENS)
        allocator = lmcache.TensorMemoryAllocator(torch.zeros(memory_bytes, dtype=torch.uint8))
        self.memory = lmcache.LocalCPUBackend(self.config, self.metadata, "cpu", memory_allocator=allocator)
        self.free_bytes = lambda: memory_bytes - allocator.total_allocated_size
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.backend = lmcache.RemoteBackend(self.config, self.metadata, self.loop, self.memory, "cpu", plugin_name="penstock")

    def chunk(self, seed: int, tokens: int = TOKENS) -> Any:
        each = self.memory.allocate([torch.Size((2, LAYERS, tokens, WIDTH))], [torch.bfloat16], self._lmcache.MemoryFormat.KV_2LTD)
        each.tensor.copy_(content(seed, tokens))
        return each

    def store(self, keys: list[Any], chunks: list[Any]) -> None:
        stored: set[Any] = set()
        done = threading.Event()
        if not keys:
            done.set()

        def on_complete(key: Any) -> None:
            stored.add(key)
            if len(stored) == len(set(keys)):
                done.set()

        self.backend.batched_submit_put_task(keys, chunks, on_complete_callback=on_complete)
        for each in chunks:
            each.ref_count_down()  # the caller's reference
        assert done.wait(60)

    def close(self) -> None:
        if self.loop.is_closed():
            return
        if self.backend.connection is not None:
            self.backend.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def start(lmcache: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(logging, "logThreads", False)  # otherwise, a warning from a thread of Penstock leaves a Python thread object behind
    started: list[Worker] = []

    def new(**settings: Any) -> Worker:
        started.append(Worker(lmcache, tmp_path, **{"capacity_bytes": 4 * MIB, **settings}))
        return started[-1]

    yield new
    for each in started:
        each.close()


def content(seed: int, tokens: int = TOKENS) -> Any:
    return torch.randn((2, LAYERS, tokens, WIDTH), generator=torch.Generator().manual_seed(seed)).bfloat16()


def key(lmcache: SimpleNamespace, number: int, worker: int = 0, model: str = "a/model", **tags: str) -> Any:
    return lmcache.CacheEngineKey(model, 2, worker, number, torch.bfloat16, {f"lmcache.tag.{name}": value for name, value in tags.items()})


def released(objects: list[Any]) -> None:
    for each in objects:
        if each is not None:
            each.ref_count_down()


def test_chunks_are_loaded_also_after_a_restart_and_missing_ones_are_misses(lmcache: SimpleNamespace, start: Any) -> None:
    worker = start()
    keys = [key(lmcache, number) for number in range(5)]
    worker.store(keys[:4], [worker.chunk(number) for number in range(4)])
    assert worker.backend.contains(keys[0]) and not worker.backend.contains(keys[4])
    assert worker.backend.batched_contains(keys) == 4 and worker.backend.batched_contains(keys[4:]) == 0
    assert worker.free_bytes() == 8 * MIB
    worker.close()
    again = start()
    found = again.backend.batched_get_blocking(keys)
    assert found[4] is None and all(torch.equal(each.tensor, content(number)) for number, each in enumerate(found[:4]))
    released(found)
    one = again.backend.get_blocking(keys[2])
    assert torch.equal(one.tensor, content(2))
    released([one])
    assert again.free_bytes() == 8 * MIB
    assert again.backend.remove(keys[1]) and not again.backend.remove(keys[1])
    assert again.backend.batched_contains(keys) == 1


def test_keys_that_look_alike_are_different(lmcache: SimpleNamespace, start: Any) -> None:
    worker = start()
    keys = [key(lmcache, 1), key(lmcache, 1, worker=1), key(lmcache, 1, model="a/model/"), key(lmcache, 1, model="../../a/model"), key(lmcache, 1, model="m" * 3000)]
    keys += [key(lmcache, 1, a="1@b%2"), key(lmcache, 1, a="1", b="2"), key(lmcache, 1).get_first_layer(), key(lmcache, 1).split_layers(2)[1]]
    worker.store(keys, [worker.chunk(number) for number in range(len(keys))])
    found = worker.backend.batched_get_blocking(keys)
    assert all(torch.equal(each.tensor, content(number)) for number, each in enumerate(found))
    released(found)


def test_chunks_keep_their_shapes(lmcache: SimpleNamespace, start: Any) -> None:
    worker = start()
    keys = [key(lmcache, tokens) for tokens in (1, 7, TOKENS)]
    worker.store(keys, [worker.chunk(0, tokens) for tokens in (1, 7, TOKENS)])
    found = worker.backend.batched_get_blocking(keys)
    assert [tuple(each.get_shape()) for each in found] == [(2, LAYERS, tokens, WIDTH) for tokens in (1, 7, TOKENS)]
    assert all(torch.equal(each.tensor, content(0, tokens)) for each, tokens in zip(found, (1, 7, TOKENS)))
    released(found)
    worker.store([keys[0]], [worker.chunk(3)])  # replaced by one of another length
    found = worker.backend.batched_get_blocking(keys[:1])
    assert torch.equal(found[0].tensor, content(3))
    released(found)


def test_empty_batches(lmcache: SimpleNamespace, start: Any) -> None:
    worker = start()
    worker.store([], [])
    assert worker.backend.batched_get_blocking([]) == [] and worker.backend.batched_contains([]) == 0
    waiting = worker.backend.batched_get_non_blocking("a lookup", [])
    assert asyncio.run_coroutine_threadsafe(waiting, worker.loop).result(60) == []


def test_chunks_up_to_the_first_missing_one_are_loaded_without_blocking(lmcache: SimpleNamespace, start: Any) -> None:
    worker = start()
    keys = [key(lmcache, number) for number in range(5)]
    worker.store([keys[0], keys[1], keys[3]], [worker.chunk(number) for number in (0, 1, 3)])
    for call, expected in (("batched_async_contains", 2), ("batched_get_non_blocking", 2)):
        found = asyncio.run_coroutine_threadsafe(getattr(worker.backend, call)("a lookup", keys), worker.loop).result(60)
        assert (found if isinstance(found, int) else len(found)) == expected
    assert all(torch.equal(each.tensor, content(number)) for number, each in enumerate(found))
    released(found)
    assert worker.free_bytes() == 8 * MIB


def test_chunks_are_evicted_while_others_are_loaded(lmcache: SimpleNamespace, start: Any) -> None:
    worker = start(capacity_bytes=MIB)
    keys = [key(lmcache, number) for number in range(200)]
    for first in range(0, 200, 20):
        worker.store(keys[first : first + 20], [worker.chunk(number) for number in range(first, first + 20)])
        found = worker.backend.batched_get_blocking(keys[: first + 20])
        assert all(each is None or torch.equal(each.tensor, content(number)) for number, each in enumerate(found))
        assert found[first + 19] is not None
        released(found)
    assert found[0] is None
    assert worker.free_bytes() == 8 * MIB


def test_a_load_that_lmcache_no_longer_waits_for_keeps_its_memory_until_it_ends(
    lmcache: SimpleNamespace, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    worker.store([key(lmcache, 1)], [worker.chunk(1)])
    get_async = kv.Store.get_async
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def slow(store: Any, items: Any, return_exceptions: bool) -> Any:
        items = list(items)
        if len(items[0][1]) != CHUNK_BYTES:
            return get_async(store, items, return_exceptions=return_exceptions)
        future: Any = concurrent.futures.Future()
        ended.put(future)
        return future

    monkeypatch.setattr(kv.Store, "get_async", slow)
    waiting = asyncio.run_coroutine_threadsafe(worker.backend.connection.get(key(lmcache, 1)), worker.loop)
    future = ended.get(timeout=60)
    waiting.cancel()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), worker.loop).result(60)
    assert worker.free_bytes() < 8 * MIB
    future.set_result([True])
    assert worker.free_bytes() == 8 * MIB


def test_damaged_chunks_are_misses(lmcache: SimpleNamespace, start: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = start()
    keys = [key(lmcache, number) for number in range(3)]
    worker.store(keys, [worker.chunk(number) for number in range(3)])
    data = tmp_path / "kv" / "worker0of2" / "data"
    at = data.read_bytes().index(content(1).view(torch.uint8).numpy().tobytes())
    with open(data, "r+b") as file:
        file.seek(at + 100)
        file.write(b"damaged")
    with caplog.at_level(logging.WARNING, "penstock"):
        found = worker.backend.batched_get_blocking(keys)
    assert [each is None for each in found] == [False, True, False]
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING].count("penstock") == 1
    released(found)
    assert worker.backend.batched_contains(keys) == 1
    assert worker.free_bytes() == 8 * MIB


def test_workers_have_stores_of_their_own(lmcache: SimpleNamespace, start: Any, tmp_path: Path) -> None:
    first, second = start(), start(worker=1)
    first.store([key(lmcache, 1)], [first.chunk(1)])
    assert first.backend.contains(key(lmcache, 1)) and not second.backend.contains(key(lmcache, 1))
    assert sorted(each.name for each in (tmp_path / "kv").iterdir()) == ["worker0of2", "worker1of2"]
    assert start().backend.connection is None  # the store of worker 0 is in use


def test_calls_after_the_end_are_misses(lmcache: SimpleNamespace, start: Any) -> None:
    worker = start()
    worker.store([key(lmcache, 1)], [worker.chunk(1)])
    worker.backend.close()
    worker.backend.close()
    assert not worker.backend.contains(key(lmcache, 1))
    assert worker.backend.batched_get_blocking([key(lmcache, 1)]) == [None]
    worker.store([key(lmcache, 2)], [worker.chunk(2)])
    assert worker.free_bytes() == 8 * MIB


@pytest.mark.parametrize("settings", [{"capacity": 5}, {"folder": ""}, {"folder": None}], ids=lambda settings: next(iter(settings)))
def test_wrong_settings_disable_the_connector(lmcache: SimpleNamespace, start: Any, settings: dict[str, Any]) -> None:
    assert start(**settings).backend.connection is None
