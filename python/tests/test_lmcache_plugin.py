"""LMCache's L2 adapter of the type "plugin" over a key-value store of Penstock, made by LMCache's own factory, with LMCache's keys and memory objects."""

from __future__ import annotations

import importlib
import logging
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import penstock

sys.path.insert(0, str(Path(__file__).parent))
import engines_files

MIB = 1 << 20
ADAPTERS = "lmcache.v1.distributed.l2_adapters"
REAL = (
    "lmcache.v1.platform.event_notifier",
    "lmcache.v1.distributed.api",
    "lmcache.v1.memory_management",
    "lmcache.v1.distributed.internal_api",
    f"{ADAPTERS}.config",
    f"{ADAPTERS}.factory",
    f"{ADAPTERS}.base",
    f"{ADAPTERS}.plugin_l2_adapter",
)


NATIVE = "lmcache.lmcache_native"


class Bitmap:
    """Replaces LMCache's compiled class if that was built for another Python or PyTorch."""

    def __init__(self, size: int) -> None:
        self.bits = [False] * size

    def set(self, index: int) -> None:
        self.bits[index] = True

    def test(self, index: int) -> bool:
        return self.bits[index]


def native() -> list[str]:
    """LMCache's compiled module, if it can be imported."""
    try:
        with engines_files.modules_of("lmcache", [NATIVE], {}):
            return [NATIVE]
    except ImportError:
        return []


class Listener:
    """Hears what LMCache's listeners do."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def on_l2_keys_stored(self, keys: list[Any], sizes: list[int]) -> None:
        self.heard.append(("stored", keys, sizes))

    def on_l2_keys_accessed(self, keys: list[Any]) -> None:
        self.heard.append(("accessed", keys))

    def on_l2_keys_deleted(self, keys: list[Any]) -> None:
        self.heard.append(("deleted", keys))


@pytest.fixture(scope="module")
def lmcache() -> Iterator[SimpleNamespace]:
    def notifier() -> Any:
        return importlib.import_module("lmcache.v1.platform.event_notifier").create_event_notifier()

    stand_ins = {NATIVE: {"Bitmap": Bitmap}, "lmcache.v1.platform": {"create_event_notifier": notifier}}
    with engines_files.modules_of("lmcache", [*REAL, *native()], stand_ins) as found:
        yield SimpleNamespace(plugin=found[REAL[-1]], api=found[REAL[1]], memory=found[REAL[2]])


@pytest.fixture
def open_adapter(lmcache: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(logging, "logThreads", False)  # else a thread of Penstock that warns gets an object of Python's, which counts as left behind
    made = []

    def opened(**settings: Any) -> Any:
        spec = {"module_path": "penstock.lmcache", "class_name": "PenstockL2Adapter", "adapter_params": {"folder": str(tmp_path / "kv"), **settings}}
        made.append(lmcache.plugin._create_plugin_adapter(lmcache.plugin.PluginL2AdapterConfig.from_dict(spec), SimpleNamespace()))
        return made[-1]

    yield opened
    for each in made:
        each.close()


@pytest.fixture
def adapter(open_adapter: Any) -> Any:
    return open_adapter(capacity_bytes=4 * MIB)


def key(lmcache: SimpleNamespace, number: int, **parts: Any) -> Any:
    return lmcache.api.ObjectKey(number.to_bytes(8, "big"), parts.pop("model_name", "a/model"), 0x01000100, **parts)


def memory(lmcache: SimpleNamespace, content: Any) -> Any:
    """A memory object of the content's bytes, with more memory behind them, as LMCache's allocators leave it to align the next one."""
    size = content.nbytes
    raw = torch.zeros(size + 512, dtype=torch.uint8)
    raw[:size] = content.reshape(-1).view(torch.uint8)
    about = lmcache.memory.MemoryObjMetadata(content.shape, content.dtype, 0, size + 512, 1, shapes=[content.shape], dtypes=[content.dtype])
    return lmcache.memory.TensorMemoryObj(raw, about, None)


def content(seed: int, count: int = 10_000) -> Any:
    return torch.randn(2, count, generator=torch.Generator().manual_seed(seed)).bfloat16()


def wait(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(60_000), "no task has ended for a minute"
    os.eventfd_read(fd)


def store(adapter: Any, keys: list[Any], objects: list[Any]) -> Any:
    task = adapter.submit_store_task(keys, objects)
    wait(adapter.get_store_event_fd())
    found = adapter.pop_completed_store_tasks()
    assert list(found) == [task]
    return found[task]


def look_up(adapter: Any, keys: list[Any]) -> Any:
    task = adapter.submit_lookup_and_lock_task(keys, {})
    wait(adapter.get_lookup_and_lock_event_fd())
    found = adapter.query_lookup_and_lock_result(task)
    assert adapter.query_lookup_and_lock_result(task) is None
    return [found.test(index) for index in range(len(keys))]


def load(adapter: Any, keys: list[Any], objects: list[Any]) -> Any:
    task = adapter.submit_load_task(keys, objects)
    wait(adapter.get_load_event_fd())
    found = adapter.query_load_result(task)
    assert adapter.query_load_result(task) is None
    return [found.test(index) for index in range(len(keys))]


def test_objects_come_back_and_absent_ones_are_missed(lmcache: SimpleNamespace, adapter: Any) -> None:
    keys = [key(lmcache, i) for i in range(4)] + [key(lmcache, 0, cache_salt="another user"), key(lmcache, 0, object_group_id=1)]
    values = [content(i) for i in range(6)]
    listener = Listener()
    adapter.register_listener(listener)
    result = store(adapter, keys, [memory(lmcache, each) for each in values])
    assert (result.is_successful(), result.bytes_transferred()) == (True, 6 * 40_000)
    absent = key(lmcache, 99)
    assert look_up(adapter, [*keys, absent]) == [True] * 6 + [False]
    back = [memory(lmcache, torch.zeros_like(values[0])) for _ in range(7)]
    assert load(adapter, [*keys, absent], back) == [True] * 6 + [False]
    assert all(torch.equal(one.tensor, two) for one, two in zip(back, values))
    assert not any(each.raw_data[each.get_size() :].any() for each in back)
    adapter.submit_unlock(keys)
    adapter.delete([keys[1], absent])
    assert look_up(adapter, keys[:3]) == [True, False, True]
    assert listener.heard == [("stored", keys, [40_000] * 6), ("accessed", keys), ("deleted", [keys[1]])]
    assert adapter.get_usage().total_bytes_used == 5 * 40_000
    assert adapter.report_status()["keys"] == 5


def test_keys_that_look_alike_are_different_and_batches_may_be_empty(lmcache: SimpleNamespace, adapter: Any) -> None:
    keys = [key(lmcache, 1, model_name=name) for name in ("a/model", "a/model/", "../../etc/model", "a%model", "m" * 600)]
    keys += [key(lmcache, 1, cache_salt=salt) for salt in ("a b", "a")]
    assert store(adapter, keys, [memory(lmcache, content(i)) for i in range(len(keys))]).is_successful()
    back = [memory(lmcache, torch.zeros_like(content(0))) for _ in keys]
    assert load(adapter, keys, back) == [True] * len(keys)
    assert all(torch.equal(each.tensor, content(i)) for i, each in enumerate(back))
    assert store(adapter, [], []).is_successful()
    assert look_up(adapter, []) == [] and load(adapter, [], []) == []
    adapter.delete([])


def test_values_are_evicted_while_others_are_loaded(lmcache: SimpleNamespace, open_adapter: Any) -> None:
    adapter = open_adapter(capacity_bytes=MIB)
    keys = [key(lmcache, i) for i in range(100)]
    for first in range(0, 100, 10):
        adapter.submit_store_task(keys[first : first + 10], [memory(lmcache, content(i)) for i in range(first, first + 10)])
        back = [memory(lmcache, torch.zeros_like(content(0))) for _ in range(first + 10)]
        found = load(adapter, keys[: first + 10], back)
        assert all(not is_found or torch.equal(each.tensor, content(i)) for i, (each, is_found) in enumerate(zip(back, found)))
        wait(adapter.get_store_event_fd())
        assert all(result.is_successful() for result in adapter.pop_completed_store_tasks().values())
    there = look_up(adapter, keys)
    assert 0 < sum(there) <= MIB // 40_960 and all(there[90:])


def test_a_value_that_is_there_is_not_written_again_unless_its_length_differs(lmcache: SimpleNamespace, adapter: Any) -> None:
    one = key(lmcache, 1)
    assert store(adapter, [one], [memory(lmcache, content(1))]).bytes_transferred() == 40_000
    assert store(adapter, [one], [memory(lmcache, content(1))]) == 0
    longer = content(2, 11_000)
    assert store(adapter, [one], [memory(lmcache, longer)]).bytes_transferred() == 44_000
    back = memory(lmcache, torch.zeros_like(longer))
    assert load(adapter, [one], [back]) == [True]
    assert torch.equal(back.tensor, longer)


def test_values_used_least_recently_make_room(lmcache: SimpleNamespace, open_adapter: Any) -> None:
    adapter = open_adapter(capacity_bytes=MIB)
    assert not adapter.supports_global_eviction
    keys = [key(lmcache, i) for i in range(60)]
    for i, each in enumerate(keys):
        assert store(adapter, [each], [memory(lmcache, content(i))]).is_successful()
    there = look_up(adapter, keys)
    assert not there[0] and there[-1]
    assert adapter.get_usage().total_bytes_used == sum(there) * 40_000 <= MIB
    assert adapter.get_usage().usage_fraction == -1


def test_objects_are_found_after_a_restart(lmcache: SimpleNamespace, open_adapter: Any) -> None:
    long = key(lmcache, 7, model_name="m" * 2000)
    first = open_adapter(capacity_bytes=4 * MIB, durable=True, checksums=False)
    assert store(first, [long], [memory(lmcache, content(7))]).is_successful()
    first.close()
    first.close()
    back = memory(lmcache, torch.zeros_like(content(7)))
    assert load(open_adapter(), [long], [back]) == [True]
    assert torch.equal(back.tensor, content(7))


def test_an_object_that_fails_does_not_take_others_with_it(lmcache: SimpleNamespace, adapter: Any, caplog: pytest.LogCaptureFixture) -> None:
    keys = [key(lmcache, i) for i in range(2)]
    too_large = content(1, 2 * MIB)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert not store(adapter, keys, [memory(lmcache, content(0)), memory(lmcache, too_large)]).is_successful()
        assert look_up(adapter, keys) == [True, False]
        wrong = memory(lmcache, torch.zeros(2, 77))
        assert load(adapter, [keys[0]], [wrong]) == [False]
        gone = memory(lmcache, content(3))
        gone.invalidate()
        assert not store(adapter, [keys[1]], [gone]).is_successful()
        assert load(adapter, keys, [wrong]) == [False, False]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 4
    assert "storing 1 of 2 objects failed" in caplog.messages[0]


def test_closing_with_tasks_under_way_stores_them_and_later_calls_fail_quietly(lmcache: SimpleNamespace, open_adapter: Any) -> None:
    adapter = open_adapter(capacity_bytes=16 * MIB)
    keys = [key(lmcache, i) for i in range(50)]
    for i, each in enumerate(keys):
        adapter.submit_store_task([each], [memory(lmcache, content(i, 50_000))])
    descriptor = adapter.get_load_event_fd()
    adapter.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    adapter.submit_store_task([keys[0]], [memory(lmcache, content(0))])
    assert adapter.query_load_result(adapter.submit_load_task([keys[0]], [memory(lmcache, content(0))])) is None
    assert adapter.query_lookup_and_lock_result(adapter.submit_lookup_and_lock_task(keys, {})) is None
    adapter.delete(keys)
    assert adapter.report_status()["is_healthy"] is False
    assert look_up(open_adapter(), keys) == [True] * 50


def test_settings_and_folders_that_cannot_be_are_errors_at_the_start(open_adapter: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown settings: capacity; valid settings are folder"):
        open_adapter(capacity=5)
    with pytest.raises(ValueError, match=r"must set \"folder\""):
        open_adapter(folder="")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        open_adapter(folder=str(tmp_path / "file" / "kv"), capacity_bytes=MIB)
    open_adapter(capacity_bytes=MIB)
    with pytest.raises(penstock.Error, match=str(os.getpid())):
        open_adapter()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
def test_objects_in_a_gpu(lmcache: SimpleNamespace, adapter: Any) -> None:
    value, one = content(5), key(lmcache, 5)
    object_, back = memory(lmcache, value), memory(lmcache, torch.zeros_like(value))
    object_.raw_data, back.raw_data = object_.raw_data.cuda(), back.raw_data.cuda()
    torch.cuda.synchronize()
    assert store(adapter, [one], [object_]).is_successful()
    assert load(adapter, [one], [back]) == [True]
    assert torch.equal(back.tensor.cpu(), value)
