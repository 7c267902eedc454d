"""RemoteStore: zarr arrays on servers."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

zarr = pytest.importorskip("zarr", minversion="3")

import penstock  # noqa: E402
from penstock import _native  # noqa: E402
from penstock.zarr import RemoteStore  # noqa: E402

from . import range_server  # noqa: E402
from .test_remote_s3 import options_of, servers  # noqa: E402

VALUES = numpy.arange(40 * 30, dtype="f4").reshape(40, 30)


def make_group(folder: Path, consolidate: bool = True) -> None:
    group = zarr.open_group(folder / "data.zarr", mode="w")
    plain = group.create_array("plain", shape=VALUES.shape, chunks=(7, 30), dtype="f4", compressors=None)
    plain[:] = VALUES
    packed = group.create_array("packed", shape=VALUES.shape, chunks=(5, 6), shards=(20, 30), dtype="f4")
    packed[:] = VALUES
    group.create_array("holes", shape=(100,), chunks=(10,), dtype="i8", fill_value=7)[20:30] = 1
    if consolidate:
        zarr.consolidate_metadata(folder / "data.zarr")


@pytest.fixture(scope="module", autouse=True)
def stays_level() -> Iterator[None]:
    """In place of that in conftest.py: zarr keeps an event loop and its threads, this file leaves nothing of penstock's."""
    yield
    _native._settle()
    assert (_native._under_way(), _native._held_memories()) == (0, 0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path, Any]]:
    make_group(tmp_path)
    with range_server.serving(tmp_path) as (url, asked):
        yield url, tmp_path, asked


@pytest.mark.parametrize("slash", ["", "/"])
def test_arrays_of_a_web_server_are_read(served, slash):
    url, _, asked = served
    store = RemoteStore(f"{url}/data.zarr{slash}", storage_options={"headers": {"X-Mine": "yes"}})
    group = zarr.open_group(store, mode="r")
    assert sorted(group.array_keys()) == ["holes", "packed", "plain"]
    numpy.testing.assert_array_equal(group["plain"][:], VALUES)
    numpy.testing.assert_array_equal(group["packed"][3:33, 4:11], VALUES[3:33, 4:11])
    expected = numpy.full(100, 7)
    expected[20:30] = 1
    numpy.testing.assert_array_equal(group["holes"][:], expected)
    assert all(headers["x-mine"] == "yes" for _, headers in asked)
    numpy.testing.assert_array_equal(penstock.zarr.load(group["plain"], numpy.s_[2:9]), VALUES[2:9])
    for selection in (..., numpy.s_[3:33, 4:11], numpy.s_[7, 2:20]):
        numpy.testing.assert_array_equal(penstock.zarr.load(group["packed"], selection), VALUES[selection])
    numpy.testing.assert_array_equal(penstock.zarr.load(group["holes"]), expected)
    assert "its chunks on a server are decoded (zstd)" in penstock.zarr.explain(group["packed"]).reason
    assert "RemoteStore" in repr(store) and store == pickle.loads(pickle.dumps(store)) == store.with_read_only(True)


def test_requests_whose_files_no_thread_can_open_end_with_that_error(served, monkeypatch):
    url, _, _ = served
    store = RemoteStore(f"{url}/data.zarr")
    prototype = zarr.core.buffer.default_buffer_prototype()
    keys = ["plain/c/0/0", "plain/c/1/0", "plain/c/2/0"]

    async def outcomes() -> list[Any]:
        return await asyncio.gather(*(store.get(key, prototype) for key in keys), return_exceptions=True)

    def none_is_begun(open_one: Any, requests: Any) -> Any:
        raise RuntimeError("can't start new thread")

    def the_first_is_begun(open_one: Any, requests: Any) -> Any:
        yield open_one(requests[0])
        raise RuntimeError("can't start new thread")

    for opened in (none_is_begun, the_first_is_begun):
        with monkeypatch.context() as patched:
            patched.setattr(store, "_opened", opened)
            assert [type(each) for each in asyncio.run(outcomes())] == [RuntimeError] * 3
        assert all(entry.users == 0 for entry in store._files._entries.values())
    with monkeypatch.context() as patched:
        patched.setattr("penstock.zarr._store3._openers.submit", lambda *_: none_is_begun(None, None))
        assert [type(each) for each in asyncio.run(outcomes())] == [RuntimeError] * 3
    assert [type(each) for each in asyncio.run(outcomes())] == [prototype.buffer] * 3


def test_it_is_for_reading_and_says_what_it_cannot(served):
    url, _, _ = served
    store = RemoteStore(f"{url}/data.zarr?token=hidden")
    assert store.read_only and not store.supports_writes and not store.supports_listing
    assert "hidden" not in repr(store) + store.url
    with pytest.raises(ValueError, match="read-only"):
        asyncio.run(store.set("a", zarr.core.buffer.cpu.Buffer.from_bytes(b"x")))
    with pytest.raises(ValueError, match="read-only"):
        store.with_read_only(False)
    with pytest.raises(NotImplementedError, match="cannot list files"):
        zarr.core.sync.sync(_all(store.list()))
    with pytest.raises(ValueError, match="not a URL"):
        RemoteStore("/data")
    with pytest.raises(TypeError, match="byte_range"):
        asyncio.run(store.get("zarr.json", byte_range=(0, 1)))
    assert asyncio.run(store.get("nothing")) is None
    assert not asyncio.run(store.exists("nothing")) and asyncio.run(store.exists("zarr.json"))
    with pytest.raises(FileNotFoundError):
        asyncio.run(store.getsize("nothing"))


async def _all(keys: Any) -> list[str]:
    return [key async for key in keys]


def test_a_value_that_was_replaced_is_found_anew(served):
    url, folder, _ = served
    (folder / "key").write_bytes(b"one" * 1000)
    store = RemoteStore(url)
    assert asyncio.run(store.get("key")).to_bytes() == b"one" * 1000
    (folder / "key").write_bytes(b"other" * 1000)
    with pytest.raises(penstock.Error, match="replaced"):
        asyncio.run(store.get("key"))
    assert asyncio.run(store.get("key")).to_bytes() == b"other" * 1000


def test_a_server_that_is_gone_is_an_error(served):
    url, _, _ = served
    store = RemoteStore("http://127.0.0.1:9/data.zarr")
    with pytest.raises(penstock.Error, match="127.0.0.1:9"):
        asyncio.run(store.get("zarr.json"))


def test_a_bucket_is_listed_and_read(tmp_path):
    make_group(tmp_path, consolidate=False)
    module = servers()
    try:
        with module.Server("seaweedfs", tmp_path / "kept") as up:
            for path in (tmp_path / "data.zarr").rglob("*"):
                if path.is_file():
                    up.put(str(path.relative_to(tmp_path)), path.read_bytes())
            store = RemoteStore(f"s3://{up.facts()['bucket']}/data.zarr", storage_options=options_of(up))
            group = zarr.open_group(store, mode="r")
            assert sorted(group.array_keys()) == ["holes", "packed", "plain"]
            numpy.testing.assert_array_equal(group["plain"][12:31], VALUES[12:31])
            assert sorted(zarr.core.sync.sync(_all(store.list_prefix("holes/")))) == ["holes/c/2", "holes/zarr.json"]
            assert not zarr.core.sync.sync(store.is_empty("")) and zarr.core.sync.sync(store.is_empty("none"))
    except module.Missing as why:
        pytest.skip(str(why))
