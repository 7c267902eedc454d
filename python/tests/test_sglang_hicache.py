"""SGLang's HiCache storage over a key-value store of Penstock, made by SGLang's own factory, under SGLang's base class."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import penstock

sys.path.insert(0, str(Path(__file__).parent))
import sglang_files

MIB = 1 << 20
PAGE, LAYERS, HEADS, WIDTH = 16, 4, 2, 16
LAYOUTS = ["page_first", "layer_first", "page_first_direct", "page_head"]
PAGE_BYTES = 2 * LAYERS * PAGE * HEADS * WIDTH * 2


@pytest.fixture(scope="module")
def sglang() -> Iterator[SimpleNamespace]:
    with sglang_files.modules() as found:
        yield found


@pytest.fixture
def new_pool(sglang: SimpleNamespace) -> Any:
    def new(pages: int, layout: str = "page_first") -> Any:
        pool = sglang_files.host_pool(sglang, pages, layout, PAGE, LAYERS, HEADS, WIDTH)
        pool.kv_buffer.zero_()
        return pool

    return new


def filled(pool: Any) -> Any:
    pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape))
    return pool


def content(pool: Any, page: int) -> Any:
    return pool.get_data_page(page * PAGE)


@pytest.fixture
def open_storage(sglang: SimpleNamespace, new_pool: Any, tmp_path: Path) -> Iterator[Any]:
    made = []

    def opened(pool: Any = None, rank: int = 0, mla: bool = False, v1: int = 1, **settings: Any) -> Any:
        store = {"folder": str(tmp_path / "kv"), "capacity_bytes": 4 * MIB, **settings}
        extra = {"backend_name": "penstock", "module_path": "penstock.sglang", "class_name": "PenstockHiCache", "interface_v1": v1, "store": store}
        config = sglang.HiCacheStorageConfig(rank, 2, 0, 1, 0, 1, mla, False, True, "a/model", extra_config=extra)
        made.append(sglang.StorageBackendFactory.create_backend("dynamic", config, None))
        made[-1].register_mem_pool_host(pool or new_pool(1))
        return made[-1]

    yield opened
    for each in made:
        each.close()


def slots(*pages: int) -> Any:
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages]) if pages else torch.arange(0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_come_back_to_other_places_of_the_pool_also_after_a_restart(open_storage: Any, new_pool: Any, layout: str) -> None:
    pool = filled(new_pool(8, layout))
    keys = [f"hash{i}" for i in range(8)]
    storage = open_storage(pool)
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys[:6], slots(*range(6))) == [True] * 6
    assert storage.batch_set_v1([keys[7]], slots(7)) == [True]
    assert (storage.batch_exists(keys), storage.batch_exists(keys[7:]), storage.exists("none")) == (6, 1, False)
    storage.close()
    storage.close()
    again = new_pool(8, layout)
    restarted = open_storage(again)
    assert restarted.batch_get_v1(keys, slots(*reversed(range(8)))) == [True] * 6 + [False, True]
    assert all(torch.equal(content(pool, page), content(again, 7 - page)) for page in (*range(6), 7))
    assert not content(again, 1).any()
    restarted.close()
    for other in LAYOUTS:  # bytes in another order
        storage = open_storage(new_pool(8, other))
        assert storage.batch_exists(keys) == (6 if other == layout else 0)
        storage.close()


def transfer_of(sglang: Any, name: str, keys: list[str], indices: Any = None, policy: str = "all_pages") -> Any:
    return sglang.PoolTransfer(sglang.PoolName(name), keys=keys, host_indices=indices, hit_policy=sglang.PoolHitPolicy(policy))


@pytest.mark.parametrize("side_pool", ["swa", "mamba", "mamba with side states"])
def test_pools_of_hybrid_models_are_stored_and_fetched(sglang: Any, open_storage: Any, new_pool: Any, side_pool: str) -> None:
    name = side_pool.partition(" ")[0]

    def new_side_pool() -> Any:
        return new_pool(8) if name == "swa" else sglang_files.mamba_pool(sglang, 8, side_pool != name)

    def bytes_of(pool: Any, number: int) -> Any:
        return pool.get_data_page(number * pool.page_size).view(torch.uint8)

    def indices_of(pool: Any, numbers: list[int]) -> Any:
        return torch.cat([torch.arange(number * pool.page_size, (number + 1) * pool.page_size) for number in numbers])

    side, keys = new_side_pool(), [f"hash{i}" for i in range(4)]
    for number in range(4):
        page = torch.randn(side.get_dummy_flat_data_page().shape).to(side.get_dummy_flat_data_page().dtype)
        side.set_from_flat_data_page(number * side.page_size, page)
    storage = open_storage(filled(new_pool(8)))
    storage.register_mem_host_pool_v2(side, sglang.PoolName(name))
    assert storage.batch_set_v2([transfer_of(sglang, name, keys[:3], indices_of(side, [0, 1, 2]))]) == {name: [True] * 3}
    assert storage.batch_exists(keys) == 0  # keys of another pool
    assert storage.batch_set_v2([transfer_of(sglang, name, keys[:3], indices_of(side, [0, 1]))]) == {name: [False] * 3}
    storage.close()
    back = new_side_pool()
    storage = open_storage(new_pool(8))
    storage.register_mem_host_pool_v2(back, sglang.PoolName(name))
    assert storage.batch_get_v2([transfer_of(sglang, name, keys, indices_of(back, [7, 6, 5, 4]))]) == {name: [True] * 3 + [False]}
    assert all(torch.equal(bytes_of(side, number), bytes_of(back, 7 - number)) for number in range(3))
    assert storage.batch_get_v2([transfer_of(sglang, name, keys, None)]) == {name: [False] * 4}


@pytest.mark.parametrize(
    "stored",
    [
        {"kv": "kkkkkkkk", "swa": "ssssssss", "draft": "dddddddd"},
        {"kv": "kkkkkkkk", "swa": "sss.ssss", "draft": "ddddd.d."},
        {"kv": "kkkkk.kk", "swa": "ssssssss", "draft": ".ddddddd"},
        {"kv": "kkkkkkkk", "swa": "s..s.sss", "draft": "dddd...."},
        {"kv": "kkkkkk..", "swa": "....s...", "draft": "dddddddd"},
        {"kv": "kkk.....", "swa": "........", "draft": "........"},
        {"kv": "........", "swa": "ssssssss", "draft": "dddddddd"},
    ],
    ids=lambda stored: " ".join(stored.values()),
)
@pytest.mark.parametrize("policies", [("all_pages", "trailing_pages"), ("trailing_pages", "all_pages")], ids=lambda policies: policies[0])
def test_usable_pages_of_hybrid_models_are_those_of_sglangs_own_store(
    sglang: Any, open_storage: Any, new_pool: Any, tmp_path: Path, stored: dict[str, str], policies: tuple[str, str]
) -> None:
    keys, pool = [f"hash{i}" for i in range(8)], new_pool(8)
    config = sglang.HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "a/model", extra_config={"file_storage_path": str(tmp_path / "own")})
    stores = [open_storage(pool), sglang.StorageBackendFactory.create_backend("file", config, pool)]
    for store in stores:
        for name, letters in stored.items():
            store.register_mem_host_pool_v2(pool, sglang.PoolName(name))
            numbers = [number for number, letter in enumerate(letters) if letter != "."]
            store.batch_set_v2([transfer_of(sglang, name, [keys[number] for number in numbers], slots(*numbers))])
    for window in (1, 2, 3):
        transfers = [transfer_of(sglang, name, keys[:window], policy=policy) for name, policy in zip(("swa", "draft"), policies)]
        ours, own = (store.batch_exists_v2(keys, transfers) for store in stores)
        if own.kv_hit_pages and own.restorable_prefix_pages is None:
            pytest.skip("SGLang's own store does not find out which prefixes can be used before 0.5.23")
        assert (ours.kv_hit_pages, ours.restorable_prefix_pages) == (own.kv_hit_pages, own.restorable_prefix_pages or [])
        assert own.extra_pool_hit_pages.items() <= ours.extra_pool_hit_pages.items()  # SGLang's store stops at the first pool that lacks everything


def test_plain_calls_and_values_of_another_length(open_storage: Any) -> None:
    storage = open_storage(v1=0)
    value = torch.randn(1000).to(torch.float8_e4m3fn)
    assert storage.set("a", value) and storage.batch_set(["a", "b"], [value, value.clone()])
    assert storage.batch_exists(["a", "b", "c"]) == 2
    back = [torch.zeros_like(value) for _ in range(3)]
    found = storage.batch_get(["a", "c", "b"], back)
    assert found[1] is None
    assert all(torch.equal(found[index].view(torch.uint8), value.view(torch.uint8)) for index in (0, 2))
    longer = torch.arange(500.0)
    assert storage.set("a", longer)
    assert torch.equal(storage.get("a", torch.zeros(500)), longer)


def test_pages_used_least_recently_make_room(open_storage: Any, new_pool: Any) -> None:
    pool = filled(new_pool(200))
    storage = open_storage(pool, capacity_bytes=MIB)
    keys = [f"hash{i}" for i in range(200)]
    for page, key in enumerate(keys):
        assert storage.batch_set_v1([key], slots(page)) == [True]
    assert not storage.exists(keys[0])
    assert storage.exists(keys[-1])
    assert 0 < sum(map(storage.exists, keys)) <= MIB // PAGE_BYTES


def test_ranks_with_parts_have_stores_of_their_own_and_ranks_with_copies_share_one(open_storage: Any, new_pool: Any, tmp_path: Path) -> None:
    pool = new_pool(1)
    first, second = open_storage(pool), open_storage(pool, rank=1)
    assert first.batch_set_v1(["a"], slots(0)) == [True]
    assert not second.exists("a")
    reader = open_storage(pool, rank=1, mla=True)
    assert reader.batch_exists(["a"]) == 0  # there is no store yet
    writer = open_storage(pool, mla=True)
    assert writer.batch_set_v1(["a"], slots(0)) == [True]
    assert reader.exists("a")
    assert reader.batch_get_v1(["a"], slots(0)) == [True]
    assert sorted(each.name for each in (tmp_path / "kv").iterdir()) == ["dcp0of1-pp0of1-cp0of1-dp0", "tp0of2-pp0of1-cp0of1-dp0", "tp1of2-pp0of1-cp0of1-dp0"]


def test_all_pages_are_dropped_for_those_who_read_them_too(open_storage: Any, new_pool: Any) -> None:
    pool = new_pool(2)
    writer, reader = open_storage(pool, mla=True), open_storage(pool, rank=1, mla=True)
    assert writer.batch_set_v1(["a", "b"], slots(0, 1)) == [True, True]
    assert reader.batch_exists(["a", "b"]) == 2
    assert (reader.clear(), writer.clear()) == (False, True)
    assert (writer.exists("a"), reader.exists("a")) == (False, False)
    assert writer.batch_set_v1(["b"], slots(1)) == [True]
    reader.exists("b")  # may find out that its files are gone
    assert reader.batch_exists(["b", "a"]) == 1


def test_pages_that_fail_are_told_and_warned_of_once(open_storage: Any, caplog: pytest.LogCaptureFixture) -> None:
    storage = open_storage(v1=0)
    small = torch.ones(10)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert storage.batch_set(["a", "large"], [small, torch.zeros(2 * MIB)]) is False
        assert storage.batch_get(["a", "large"], [torch.zeros(11), torch.zeros(5)]) == [None, None]
        assert storage.batch_get_v1(["a"], slots()) == [False]
        assert storage.set("b", torch.zeros(4, 4).t()) is False  # not contiguous
    assert len(caplog.records) == 4
    assert torch.equal(storage.get("a", torch.zeros(10)), small)


def test_closing_while_another_thread_stores_pages(open_storage: Any, new_pool: Any) -> None:
    pool = new_pool(40)
    storage = open_storage(pool)
    begun = threading.Event()
    results: list[bool] = []

    def store_pages() -> None:
        for page in range(40):
            results.extend(storage.batch_set_v1([f"hash{page}"], slots(page)))
            begun.set()

    thread = threading.Thread(target=store_pages)
    thread.start()
    assert begun.wait(60)
    storage.close()
    thread.join()
    assert len(results) == 40
    assert storage.batch_get_v1(["hash0"], slots(0)) == [False]
    assert open_storage(pool).batch_exists([f"hash{page}" for page in range(40)]) == sum(results)


def test_settings_folders_and_models_that_cannot_be_are_errors_at_the_start(sglang: SimpleNamespace, open_storage: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has unknown settings: capacity; valid settings are folder"):
        open_storage(capacity=5)
    with pytest.raises(ValueError, match="folder"):
        open_storage(folder="")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        open_storage(folder=str(tmp_path / "file" / "kv"))
    storage = open_storage()
    with pytest.raises(penstock.Error, match=str(os.getpid())):
        open_storage()
    with pytest.raises(NotImplementedError, match="MLA models with a Mamba pool"):
        open_storage(mla=True).register_mem_host_pool_v2(storage.mem_pool_host, sglang.PoolName.MAMBA)
