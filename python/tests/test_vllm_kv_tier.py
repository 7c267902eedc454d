"""The secondary tier for vLLM's KV offloading: with vLLM's own classes if they are available, otherwise with stand-ins that have the same interface."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import enum
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

import penstock
from penstock import kv

sys.path.insert(0, str(Path(__file__).parent))
import engines_files

OFFLOAD = "vllm.v1.kv_offload"
REAL = [f"{OFFLOAD}.{name}" for name in ("base", "config", "tiering.base", "tiering.backpressure", "tiering.metrics", "tiering.factory", "tiering.manager")]
REAL += [f"{OFFLOAD}.cpu.{name}" for name in ("common", "manager", "policies.base", "policies.lru", "policies.factory")]
REAL += ["vllm.v1.metrics.cache_hit_source"]
IN_FOLDER = (Path(engines_files.FOLDER) / "vllm").is_dir() if engines_files.FOLDER else False
INSTALLED = not IN_FOLDER and importlib.util.find_spec("vllm") is not None
ROW = 64 << 10
ROWS = 16


def stand_ins(version: str) -> dict[str, dict[str, Any]]:
    """Returns vLLM's modules and names that the tier uses. vLLM 0.29 calls chunks blocks, and has no backpressure."""
    is_new = version != "0.29"

    class SecondaryTierManager:
        def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, *detector: Any) -> None:
            assert len(detector) <= is_new
            self.tier_type = tier_type

    class SecondaryTierFactory:
        registry: dict[str, tuple[str, str]] = {}

        @classmethod
        def register_tier(cls, tier_type: str, module_path: str, class_name: str) -> None:
            if tier_type in cls.registry:
                raise ValueError("registered already")
            cls.registry[tier_type] = (module_path, class_name)

        @classmethod
        def create_secondary_tier(cls, tier_config: dict[str, Any], primary_kv_view: memoryview, offloading_spec: Any) -> Any:
            settings = {name: value for name, value in tier_config.items() if name not in ("type", "module_path")}
            module, name = cls.registry.get(tier_config["type"]) or (tier_config["module_path"], tier_config["type"])
            if is_new:
                settings["backpressure_detector"] = settings.pop("backpressure", None)
            return getattr(importlib.import_module(module), name)(offloading_spec, primary_kv_view, tier_config["type"], **settings)

    def made(name: str, fields: list[str], **defaults: Any) -> type:
        return dataclasses.make_dataclass(name, [*fields, *((each, Any, dataclasses.field(default=value)) for each, value in defaults.items())])

    rows = "chunk_ids" if is_new else "block_ids"
    new_results = {"transfer_bytes": None} if is_new else {}
    base = {
        "LookupResult": enum.Enum("LookupResult", ["MISS", "HIT", "HIT_PENDING", "RETRY"]),
        "Medium": enum.Enum("Medium", {"CPU": "CPU", "STORAGE": "STORAGE"}),
        "Locality": enum.Enum("Locality", {"LOCAL": "LOCAL", "REMOTE": "REMOTE"}),
        "ReqContext": made("ReqContext", ["req_id"]),
        "RequestOffloadingContext": made("RequestOffloadingContext", [], policy="chunk_level"),
    }
    config = {
        "OffloadingGroupConfig": made("OffloadingGroupConfig", ["tokens_per_block", "layer_names"]),
        "OffloadingModelConfig": made("OffloadingModelConfig", ["name", "dtype"], max_model_len=0),
        "OffloadingCacheConfig": made("OffloadingCacheConfig", ["tokens_per_hash", "blocks_per_chunk"]),
        "OffloadingParallelConfig": made("OffloadingParallelConfig", ["rank", "world_size", "tp_size", "pp_size", "data_parallel_index", "data_parallel_size"]),
        "OffloadingConfig": made("OffloadingConfig", ["groups", "extra_config", "engine_id", "model", "cache", "parallel"], kv_cache_layout=None),
    }
    tiering = {
        "SecondaryTierManager": SecondaryTierManager,
        "JobResult": made("JobResult", ["job_id", "success"], successful_keys=None, transfer_time=None, **new_results),
        "TransferJob": made("TransferJob", ["job_id", "keys", rows, "is_promotion", "req_context"]),
    }
    parents: dict[str, dict[str, Any]] = {"vllm": {"__version__": version}, "vllm.v1": {}, OFFLOAD: {}, f"{OFFLOAD}.tiering": {}}
    factory = {"SecondaryTierFactory": SecondaryTierFactory}
    return {**parents, f"{OFFLOAD}.base": base, f"{OFFLOAD}.config": config, f"{OFFLOAD}.tiering.base": tiering, f"{OFFLOAD}.tiering.factory": factory}


@pytest.fixture(params=["vllm"] if IN_FOLDER or INSTALLED else ["0.29", "0.33"])
def vllm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's names in one namespace, with the tier registered."""
    if IN_FOLDER:
        pytest.importorskip("torch", reason="PyTorch is not installed")
        real = [name for name in REAL if Path(engines_files.FOLDER, *name.split(".")).with_suffix(".py").exists()]
        with engines_files.modules_of("vllm", real, {"vllm": {"__version__": "of the folder"}}) as found:
            yield registered(list(found.values()))
        return
    names = [*(name for name in REAL if INSTALLED), "vllm"] if INSTALLED else list(stand_ins(request.param))
    if not INSTALLED:
        for name, contents in stand_ins(request.param).items():
            module = ModuleType(name)
            vars(module).update(contents)
            monkeypatch.setitem(sys.modules, name, module)
    yield registered([importlib.import_module(name) for name in names])
    for name in [name for name in sys.modules if f"{name}.".startswith("penstock.vllm.")]:
        del sys.modules[name]


def registered(modules: list[ModuleType]) -> Any:
    from penstock.vllm import register

    register()
    register()
    tier = importlib.import_module("penstock.vllm._kv_tier")  # and not an attribute of its package, which may be of an earlier test
    return SimpleNamespace(**{name: value for module in modules for name, value in vars(module).items() if not name.startswith("__")}, tier=tier)


def built(kind: Any, **values: Any) -> Any:
    return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind) if field.name in values})


def config_of(vllm: Any, **changes: Any) -> Any:
    """Returns vLLM's configuration of a model with two ranks, with some fields changed."""
    fields: dict[str, Any] = {"name": "a/model", "dtype": "bfloat16", "max_model_len": 4096, "tokens_per_hash": 16, "blocks_per_chunk": 1, "rank": 0}
    fields |= {"world_size": 2, "tp_size": 2, "pp_size": 1, "pcp_size": 1, "dcp_size": 1, "data_parallel_index": 0, "data_parallel_size": 1}
    fields |= {"data_parallel_rank_local": None, "is_parallelism_agnostic": False, "tokens_per_block": 16, "layer_names": ("layers.0", "layers.1")}
    fields |= {"group_id": 0, "worker_kv_bytes_per_block": ROW // 2, "enable_kv_cache_events": False, "extra_config": {}, "engine_id": os.urandom(4).hex()}
    fields |= {"kv_cache_layout": "NHD", **changes}
    parts = {"groups": (built(vllm.OffloadingGroupConfig, **fields),), "model": built(vllm.OffloadingModelConfig, **fields)}
    parts |= {"cache": built(vllm.OffloadingCacheConfig, **fields), "parallel": built(vllm.OffloadingParallelConfig, **fields)}
    return built(vllm.OffloadingConfig, **fields, **parts)


def filled(rows: int = ROWS, row_bytes: int = ROW) -> Any:
    return numpy.random.default_rng(7).integers(0, 256, (rows, row_bytes), numpy.uint8)


class Engine:
    """A tier, the CPU tier's memory, and the calls of vLLM's scheduler."""

    def __init__(self, vllm: Any, scratch: Path, memory: Any = None, config: Any = None, **settings: Any) -> None:
        self.vllm = vllm
        self.memory = filled() if memory is None else memory
        spec = SimpleNamespace(config=config or config_of(vllm))
        options = {"type": "penstock", "folder": str(scratch / "kv"), "capacity_bytes": 4 << 20, **settings}
        self.tier = vllm.SecondaryTierFactory.create_secondary_tier(options, memoryview(self.memory), spec)
        self.request = vllm.ReqContext("a")
        self.jobs = 0

    def submit(self, keys: list[bytes], rows: list[int], load: bool) -> None:
        name = "chunk_ids" if "chunk_ids" in {field.name for field in dataclasses.fields(self.vllm.TransferJob)} else "block_ids"
        self.jobs += 1
        rows_of_job = {name: numpy.array(rows, numpy.int32)}
        job = self.vllm.TransferJob(job_id=self.jobs, keys=keys, is_promotion=load, req_context=self.request, **rows_of_job)
        (self.tier.submit_load if load else self.tier.submit_store)(job)

    def results(self, count: int = 1) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            found += self.tier.get_finished_jobs()
        return found

    def stored(self, keys: list[bytes], rows: list[int]) -> bool:
        self.submit(keys, rows, load=False)
        return bool(self.results()[0].success)

    def loaded(self, keys: list[bytes], rows: list[int]) -> Any:
        self.submit(keys, rows, load=True)
        return self.results()[0]

    def hits(self, keys: list[bytes]) -> list[bool]:
        found = [self.tier.lookup(key, self.request) for key in keys]
        assert set(found) <= {self.vllm.LookupResult.HIT, self.vllm.LookupResult.MISS}
        return [each is self.vllm.LookupResult.HIT for each in found]


@pytest.fixture
def engine(vllm: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens engines, and shuts them down at the end."""
    opened: list[Engine] = []

    def start(**settings: Any) -> Engine:
        opened.append(Engine(vllm, tmp_path, **settings))
        return opened[-1]

    yield start
    for each in opened:
        each.tier.shutdown()


def keys_of(count: int, group: int = 0) -> list[bytes]:
    return [number.to_bytes(32, "big") + group.to_bytes(4, "big") for number in range(count)]


def test_blocks_are_loaded_into_other_rows_also_after_a_restart(engine: Any) -> None:
    first, keys = engine(), keys_of(8)
    assert first.hits(keys) == [False] * 8
    assert first.stored(keys[:6], list(range(6))) and first.stored(keys[:4], [0, 1, 2, 3])
    assert first.hits(keys) == [True] * 6 + [False] * 2
    assert first.hits(keys_of(6, group=1)) == [False] * 6
    first.tier.shutdown()
    first.tier.shutdown()
    second = engine(memory=numpy.zeros((ROWS, ROW), numpy.uint8))
    result = second.loaded(keys[:6], list(range(15, 9, -1)))
    assert (result.job_id, result.success, result.successful_keys) == (1, True, None) and result.transfer_time >= 0
    assert all(numpy.array_equal(second.memory[15 - row], first.memory[row]) for row in range(6))
    assert not second.memory[:10].any()


def test_a_block_that_is_found_is_complete(engine: Any) -> None:
    """As soon as a lookup finds a block whose write was started, a load returns all its bytes."""
    memory = filled(128, 4 * ROW)
    memory[64:] = 0
    running, keys = engine(memory=memory, capacity_bytes=80 << 18, max_store_bytes=64 << 18), keys_of(64)
    running.submit(keys, list(range(64)), load=False)
    missing, results = list(range(64)), []
    while missing:
        found = [row for row in missing if running.hits([keys[row]])[0]]
        if found:
            running.submit([keys[row] for row in found], [64 + row for row in found], load=True)
            missing = [row for row in missing if row not in found]
        results += running.tier.get_finished_jobs()
    results += running.results(running.jobs - len(results))
    assert all(result.success for result in results)
    assert numpy.array_equal(memory[:64], memory[64:])


@pytest.mark.parametrize(
    "other",
    [
        {"name": "another/model"},
        {"dtype": "fp8"},
        {"tp_size": 1, "world_size": 1},
        {"pp_size": 2},
        {"layer_names": ("layers.0",)},
        {"tokens_per_hash": 32},
        {"kv_cache_layout": "HND"},
        {"namespace": "new weights"},
        {"version": "0.34.0"},
        {"row_bytes": ROW // 2},
    ],
    ids=lambda other: next(iter(other)),
)
def test_blocks_of_another_model_layout_or_release_are_not_found(vllm: Any, engine: Any, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]) -> None:
    first, keys = engine(), keys_of(3)
    assert first.stored(keys, [0, 1, 2])
    first.tier.shutdown()
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["vllm"], "__version__", other.get("version", sys.modules["vllm"].__version__))
        second = engine(memory=filled(ROWS, other.get("row_bytes", ROW)), config=config_of(vllm, **other), namespace=other.get("namespace", ""))
        assert second.hits(keys) == [False] * 3
    second.tier.shutdown()
    assert engine(config=config_of(vllm, max_model_len=100, extra_config={"cpu_bytes_to_use": 1})).hits(keys) == [True] * 3


def test_blocks_of_a_local_model_are_not_found_when_its_files_change(vllm: Any, engine: Any, tmp_path: Path) -> None:
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    keys, found = keys_of(1), []
    for content in (b"old", b"old", b"newer"):
        if not weights.exists() or weights.read_bytes() != content:
            weights.write_bytes(content)
        running = engine(config=config_of(vllm, name=str(weights.parent)))
        found += running.hits(keys)
        assert running.stored(keys, [0])
        running.tier.shutdown()
    assert found == [False, True, False]


def test_a_reset_of_vllms_caches_hides_earlier_blocks(engine: Any) -> None:
    keys = keys_of(2)
    running = engine()
    running.submit(keys[:1], [0], load=False)
    running.tier.drain_jobs()
    assert [result.success for result in running.tier.get_finished_jobs()] == [True]
    assert running.hits(keys) == [False, False]
    assert running.stored(keys, [1, 2]) and running.hits(keys) == [True, True]
    running.tier.shutdown()
    again = engine(keep_on_reset=True)
    assert again.hits(keys) == [True, False]  # the blocks of the weights that vLLM starts with
    again.tier.drain_jobs()
    assert again.hits(keys) == [True, False]
    assert again.loaded(keys[:1], [5]).success and numpy.array_equal(again.memory[5], filled()[0])


def test_a_damaged_block_is_a_miss_until_it_is_stored_again(engine: Any, tmp_path: Path) -> None:
    running, keys = engine(), keys_of(3)
    assert running.stored(keys, [0, 1, 2])
    data = tmp_path / "kv" / "dp0" / "data"
    with open(data, "r+b") as file:
        at = data.read_bytes().index(running.memory[1].tobytes())
        file.seek(at + 100)
        file.write(bytes([running.memory[1, 100] ^ 1]))
    result = running.loaded(keys, [7, 8, 9])
    assert (result.success, list(result.successful_keys)) == (False, [keys[0], keys[2]])
    assert numpy.array_equal(running.memory[[7, 9]], running.memory[[0, 2]])
    assert running.hits(keys) == [True, False, True]
    assert running.stored(keys, [0, 1, 2]) and running.hits(keys) == [True] * 3
    assert running.loaded(keys, [7, 8, 9]).success and numpy.array_equal(running.memory[8], running.memory[1])


def test_a_block_that_cannot_be_read_is_a_miss(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise vLLM would look it up and load it forever."""
    running, keys = engine(), keys_of(2)
    assert running.stored(keys, [0, 1])
    failed: Any = concurrent.futures.Future()
    failed.set_result([True, penstock.Error("the disk fails", code="io")])
    monkeypatch.setattr(kv.Store, "get_async", lambda self, items, return_exceptions: failed)
    result = running.loaded(keys, [2, 3])
    assert (result.success, list(result.successful_keys)) == (False, keys[:1])
    assert running.hits(keys) == [True, False]


def test_a_full_store_drops_the_blocks_that_were_used_least_recently(engine: Any) -> None:
    running, keys = engine(capacity_bytes=8 * ROW), keys_of(12)
    assert running.stored(keys[:8], list(range(8)))
    running.tier.touch(keys[:2], running.request)
    assert running.stored(keys[8:10], [8, 9])
    assert running.hits(keys[:2]) == [True, True] and running.hits(keys[8:10]) == [True, True]
    assert sum(running.hits(keys)) == 8
    missing = next(key for key in keys[:8] if not running.hits([key])[0])
    assert running.loaded([missing, keys[0]], [14, 15]).successful_keys == [keys[0]]


def test_calls_do_not_wait_for_a_slow_store(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    running, keys = engine(max_store_bytes=3 * ROW), keys_of(6)
    started: list[Any] = []

    def slow(store: Any, items: Any, return_exceptions: bool) -> Any:
        started.append((len(list(items)), concurrent.futures.Future()))
        return started[-1][1]

    monkeypatch.setattr(kv.Store, "put_async", slow)
    running.submit(keys[:2], [0, 1], load=False)
    running.submit(keys[2:], [2, 3, 4, 5], load=False)
    running.submit(keys[5:], [5], load=False)
    assert [count for count, _ in started] == [2, 1, 0]  # no more than max_store_bytes
    assert running.tier.get_finished_jobs() == [] and running.hits(keys) == [False] * 6
    for count, future in reversed(started):
        future.set_result([True] * count)
    assert [(result.job_id, result.success) for result in running.results(3)] == [(1, True), (2, False), (3, False)]
    running.submit(keys[3:], [3, 4, 5], load=False)
    assert started[-1][0] == 3
    started[-1][1].set_result([True] * 3)
    assert running.results()[0].success


def test_jobs_after_the_shutdown_fail_and_lookups_miss(engine: Any) -> None:
    running, keys = engine(), keys_of(2)
    assert running.stored(keys, [0, 1])
    running.tier.shutdown()
    assert running.hits(keys) == [False, False]
    assert not running.stored(keys, [0, 1])
    result = running.loaded(keys, [0, 1])
    assert (result.success, result.successful_keys) == (False, None)
    running.tier.touch(keys, running.request)
    running.tier.drain_jobs()


def test_the_memory_of_the_cpu_tier_is_released(engine: Any) -> None:
    memory = bytearray(ROWS * ROW)
    running = engine(memory=numpy.frombuffer(memory, numpy.uint8).reshape(ROWS, ROW))
    assert running.stored(keys_of(2), [0, 1]) and running.loaded(keys_of(2), [2, 3]).success
    running.submit(keys_of(4), [0, 1, 2, 3], load=False)
    running.tier.shutdown()
    del running.memory
    vars(running.tier).pop("_primary_kv_view", None)  # vLLM's own
    memory.append(0)  # raises BufferError if anything still uses it


def test_replicas_share_a_folder_and_other_engines_cannot(vllm: Any, engine: Any, tmp_path: Path) -> None:
    first, second = engine(), engine(config=config_of(vllm, data_parallel_index=1, data_parallel_size=2))
    assert first.stored(keys_of(1), [0]) and second.hits(keys_of(1)) == [False]
    assert sorted(each.name for each in (tmp_path / "kv").iterdir()) == ["dp0", "dp1"]
    with pytest.raises(penstock.Error, match="dp0") as caught:
        engine()
    assert caught.value.code == "would_block"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"folder": ""}, "must set \"folder\""),
        ({"folder": 7}, "must set \"folder\""),
        ({"root_dir": "/tmp"}, "unknown settings: root_dir; valid settings are folder, capacity_bytes"),
        ({"capacity_bytes": 4096}, "capacity_bytes .* is 4096; .* at least 65,536, the size of one block"),
        ({"capacity_bytes": 1e12}, "capacity_bytes .* is 1000000000000.0; it must be a number of bytes"),
        ({"capacity_bytes": True}, "capacity_bytes .* is True"),
        ({"max_store_bytes": 100}, "max_store_bytes .* is 100; .* at least 65,536"),
        ({"max_store_bytes": "1 GiB"}, "max_store_bytes .* is '1 GiB'"),
        ({"namespace": 3}, "namespace .* is 3; it must be a string"),
        ({"keep_on_reset": "yes"}, "keep_on_reset .* is 'yes'; it must be true or false"),
        ({"locality": "MOON"}, "'MOON' is not a valid Locality"),
    ],
)
def test_wrong_settings_are_rejected(vllm: Any, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Engine(vllm, tmp_path, **settings)


def test_older_releases_of_vllm_are_rejected(vllm: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"requires vLLM 0\.29"):
        vllm.tier.PenstockTier(SimpleNamespace(vllm_config=None), memoryview(filled()), "penstock", folder=str(tmp_path / "kv"))


def test_the_class_can_be_named_by_its_module(vllm: Any, engine: Any) -> None:
    running = engine(type="PenstockTier", module_path="penstock.vllm._kv_tier", locality="LOCAL")
    assert running.tier.locality.value == "LOCAL" and running.tier.medium.value == "STORAGE"
    assert running.stored(keys_of(1), [0])


def test_the_guide_shows_valid_settings(vllm: Any, tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs/guides/engines.md"
    if not guide.exists():
        pytest.skip("docs is not beside the tests")
    shown = next(block for block in re.findall(r"^```json\n(.*?)^```", guide.read_text(), re.DOTALL | re.MULTILINE) if "secondary_tiers" in block)
    (settings,) = json.loads(shown)["kv_connector_extra_config"]["secondary_tiers"]
    assert set(settings) == {"type", "folder", "capacity_bytes"} and settings["type"] == "penstock"
    Engine(vllm, tmp_path, **{**settings, "folder": str(tmp_path / "kv"), "capacity_bytes": 1 << 20}).tier.shutdown()


# --- under vLLM's own manager of tiers


@pytest.mark.skipif(not IN_FOLDER and not INSTALLED, reason="vllm is neither installed nor in the folder PENSTOCK_TEST_ENGINES; tools/fetch_engines fetches it")
def test_vllms_manager_stores_blocks_and_promotes_them_after_a_restart(vllm: Any, tmp_path: Path) -> None:
    keys, expected = keys_of(6), filled()
    for is_restarted in (False, True):
        memory = numpy.zeros_like(expected)
        region = SimpleNamespace(create_kv_memoryview=lambda memory=memory: memoryview(memory), cleanup=lambda: None)
        primary = vllm.CPUPrimaryTierOffloadingManager(ROWS, region)
        options = {"type": "penstock", "folder": str(tmp_path / "kv"), "capacity_bytes": 4 << 20}
        tier = vllm.SecondaryTierFactory.create_secondary_tier(options, primary.get_kv_memoryview(), SimpleNamespace(config=config_of(vllm)))
        manager = vllm.TieringOffloadingManager(primary, [tier])
        request = vllm.ReqContext("a")
        manager.on_new_request(request)
        if not is_restarted:
            assert manager.lookup(keys[0], request) is vllm.LookupResult.MISS
            rows = manager.prepare_store(keys, request).store_spec.block_ids
            memory[rows] = expected[:6]
            manager.complete_store(keys, request)
        else:
            assert [manager.lookup(key, request).name for key in (*keys, b"none")] == ["HIT_PENDING"] * 6 + ["MISS"]
        end = vllm.ScheduleEndContext([], [])
        manager.on_schedule_end(end)
        while manager.has_pending_work():
            manager.on_schedule_end(end)
        assert [manager.lookup(key, request).name for key in keys] == ["HIT"] * 6
        assert numpy.array_equal(memory[manager.prepare_load(keys, request).block_ids], expected[:6])
        manager.complete_load(keys, request)
        manager.on_request_finished(request)
        if is_restarted:
            manager.reset_cache()
            getattr(manager, "on_reset_flushed", lambda: None)()
            assert manager.lookup(keys[0], request).name == "MISS"
        manager.shutdown()
