"""penstock.zarr.GDSStore under zarr 3: zarr's own tests of stores, and what only this store promises."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

zarr = pytest.importorskip("zarr", minversion="3.1", reason="zarr 3.1 is not installed")

import numpy as np
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.buffer.core import BufferPrototype
from zarr.storage import LocalStore
from zarr.testing.buffer import NDBufferUsingTestNDArrayLike
from zarr.testing.buffer import TestBuffer as OtherBuffer
from zarr.testing.store import StoreTests

from penstock.zarr import GDSStore

from .zarr_level import stays_level  # noqa: E402, F401


PROTOTYPE = default_buffer_prototype()


class TestGDSStore(StoreTests[GDSStore, cpu.Buffer]):
    """zarr's own."""

    store_cls = GDSStore
    buffer_cls = cpu.Buffer

    async def get(self, store: GDSStore, key: str) -> cpu.Buffer:
        return self.buffer_cls.from_bytes((store.root / key).read_bytes())

    async def set(self, store: GDSStore, key: str, value: cpu.Buffer) -> None:
        path = store.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.to_bytes())

    @pytest.fixture
    def store_kwargs(self, tmp_path: Path) -> dict[str, Any]:
        return {"root": str(tmp_path)}

    def test_store_repr(self, store: GDSStore) -> None:
        assert str(store) == f"file://{store.root.as_posix()}"
        assert repr(store) == f"GDSStore('{store}')"

    def test_store_supports_writes(self, store: GDSStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: GDSStore) -> None:
        assert store.supports_listing


class TestGDSStoreWithEveryOption(TestGDSStore):
    @pytest.fixture
    def store_kwargs(self, tmp_path: Path) -> dict[str, Any]:
        (tmp_path / "folder").mkdir()
        return {"root": tmp_path / "folder", "fsync": True, "max_open_files": 0}


def put(store: GDSStore, key: str, data: bytes) -> None:
    store.set_sync(key, cpu.Buffer.from_bytes(data))


def got(store: GDSStore, key: str, byte_range: Any = None) -> bytes | None:
    value = store.get_sync(key, byte_range=byte_range)
    return None if value is None else value.to_bytes()


def test_is_a_local_store(tmp_path: Path) -> None:
    assert isinstance(GDSStore(tmp_path), LocalStore)


def test_missing_root_of_a_read_only_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        asyncio.run(GDSStore.open(tmp_path / "none", read_only=True))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        asyncio.run(GDSStore.open(tmp_path / "none", mode="r+"))


def test_options_survive_opening_copying_and_pickling(tmp_path: Path) -> None:
    import pickle

    store = asyncio.run(GDSStore.open(tmp_path, fsync=True, max_open_files=7))
    for copied in (store, store.with_read_only(True), pickle.loads(pickle.dumps(store))):
        assert (copied.fsync, copied.max_open_files) == (True, 7)


def test_a_negative_bound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_open_files is -1"):
        GDSStore(tmp_path, max_open_files=-1)


def test_arguments_of_zarr_2_are_accepted_or_refused_with_what_to_do(tmp_path: Path) -> None:
    for store in (GDSStore(tmp_path, False, None), GDSStore(path=tmp_path, normalize_keys=False), GDSStore(tmp_path, dimension_separator=None)):
        assert store.root == tmp_path
    with pytest.raises(TypeError, match=r"GDSStore\(normalize_keys=True\): omit it, as zarr 3 does not change keys"):
        GDSStore(tmp_path, True)
    with pytest.raises(TypeError, match=r"GDSStore\(dimension_separator='/'\): omit it, .*chunk_key_encoding="):
        GDSStore(tmp_path, dimension_separator="/")
    for wrong in ({"fsnyc": True}, {"path": tmp_path}):
        with pytest.raises(TypeError, match="has no argument 'fsnyc'|requires one folder"):
            GDSStore(tmp_path, **wrong)
    with pytest.raises(TypeError, match="requires one folder"):
        GDSStore()


def test_ranges_are_clipped_to_the_value(tmp_path: Path) -> None:
    store = GDSStore(tmp_path)
    put(store, "k", b"0123456789")
    assert got(store, "k", RangeByteRequest(8, 100)) == b"89"
    assert got(store, "k", RangeByteRequest(20, 30)) == b""
    assert got(store, "k", OffsetByteRequest(9)) == b"9"
    assert got(store, "k", OffsetByteRequest(11)) == b""
    assert got(store, "k", SuffixByteRequest(100)) == b"0123456789"


async def test_missing_keys_are_none_in_every_way_of_asking(tmp_path: Path) -> None:
    store = GDSStore(tmp_path)
    put(store, "folder/file", b"x")
    for key in ("none", "folder", "folder/file/below"):
        assert await store.get(key) is None
        assert store.get_sync(key) is None
    wanted = [("none", None), ("folder/file", None), ("folder/file/below", RangeByteRequest(0, 1))]
    values = await store.get_partial_values(PROTOTYPE, wanted)
    assert [value and value.to_bytes() for value in values] == [None, b"x", None]


async def test_many_gets_of_one_turn_each_give_their_own_value(tmp_path: Path) -> None:
    store = GDSStore(tmp_path, max_open_files=5)
    data = {f"c/{i}": os.urandom(1 + 997 * i % 70_000) for i in range(300)}
    for key, value in data.items():
        put(store, key, value)
    values = await asyncio.gather(*(store.get(key) for key in data), *(store.get(f"none/{i}") for i in range(50)))
    assert [value.to_bytes() for value in values[:300]] == list(data.values())
    assert values[300:] == [None] * 50


async def test_an_error_of_one_get_does_not_disturb_those_beside_it(tmp_path: Path) -> None:
    store = GDSStore(tmp_path)
    put(store, "good", b"value")
    too_long = "n" * 300
    good, bad, missing = await asyncio.gather(
        store.get("good"), store.get(too_long), store.get("none"), return_exceptions=True
    )
    assert good.to_bytes() == b"value"
    assert isinstance(bad, OSError)
    assert bad.errno == errno.ENAMETOOLONG
    assert missing is None


async def test_a_cancelled_get_does_not_disturb_those_beside_it(tmp_path: Path) -> None:
    store = GDSStore(tmp_path)
    put(store, "a", b"a")
    put(store, "b", b"b")
    cancelled, kept = asyncio.ensure_future(store.get("a")), asyncio.ensure_future(store.get("b"))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert (await kept).to_bytes() == b"b"
    with pytest.raises(asyncio.CancelledError):
        await cancelled


def test_two_event_loops_may_use_one_store_at_once(tmp_path: Path) -> None:
    store = GDSStore(tmp_path)
    for i in range(64):
        put(store, str(i), bytes([i]) * 1000)
    failed: list[Any] = []

    async def read_all() -> None:
        for _ in range(5):
            values = await asyncio.gather(*(store.get(str(i)) for i in range(64)))
            if [value.to_bytes() for value in values] != [bytes([i]) * 1000 for i in range(64)]:
                failed.append(values)

    def run() -> None:
        try:
            asyncio.run(read_all())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    store = GDSStore(tmp_path)
    put(store, "k", b"old")
    assert got(store, "k") == b"old"
    other = tmp_path / "other"
    other.write_bytes(b"new")
    os.replace(other, tmp_path / "k")
    assert got(store, "k") == b"new"
    (tmp_path / "k").write_bytes(b"longer than before")
    assert got(store, "k") == b"longer than before"
    os.unlink(tmp_path / "k")
    assert got(store, "k") is None


def descriptors_under(folder: Path) -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
        except FileNotFoundError:
            pass
    return count


async def test_kept_files_are_bounded_and_let_go(tmp_path: Path) -> None:
    store = GDSStore(tmp_path, max_open_files=4)
    for i in range(40):
        put(store, f"a/{i}", b"x" * 100)
    await asyncio.gather(*(store.get(f"a/{i}") for i in range(40)))
    assert 0 < len(store._files) <= 4
    assert descriptors_under(tmp_path) <= 2 * 4
    await store.delete_dir("a")
    assert descriptors_under(tmp_path) == 0
    put(store, "b", b"x")
    assert got(store, "b") == b"x"
    store.close()
    assert descriptors_under(tmp_path) == 0


def test_a_reader_sees_the_old_value_or_the_new_one_never_a_part(tmp_path: Path) -> None:
    store = GDSStore(tmp_path)
    sizes = (300_000, 200_000)
    values = [bytes([i]) * size for i, size in enumerate(sizes)]
    put(store, "k", values[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for value in values:
                put(store, "k", value)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {got(store, "k") for _ in range(100)}
    finally:
        stop.set()
        writer.join()
    assert seen <= set(values)


def test_a_failed_write_leaves_the_old_value_and_no_other_file(tmp_path: Path) -> None:
    store = GDSStore(tmp_path)
    put(store, "k", b"old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"")
    with pytest.raises(OSError):
        put(store, "folder", b"cannot replace a folder")
    with pytest.raises(OSError):
        put(store, "k/below", b"cannot be below a file")
    assert sorted(os.listdir(tmp_path)) == ["folder", "k"]
    assert got(store, "k") == b"old"


async def test_of_several_exclusive_writers_one_wins(tmp_path: Path) -> None:
    store = GDSStore(tmp_path)
    values = [bytes([i]) * 10 for i in range(20)]
    await asyncio.gather(*(store.set_if_not_exists("k", cpu.Buffer.from_bytes(value)) for value in values))
    assert got(store, "k") in values
    assert os.listdir(tmp_path) == ["k"]


async def test_what_is_no_buffer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="must be a Buffer instance"):
        await GDSStore(tmp_path).set("k", b"bytes")  # type: ignore[arg-type]


async def test_values_are_buffers_of_the_prototype(tmp_path: Path) -> None:
    store = GDSStore(tmp_path)
    put(store, "k", b"0123")
    prototype = BufferPrototype(buffer=OtherBuffer, nd_buffer=NDBufferUsingTestNDArrayLike)
    value = await store.get("k", prototype, RangeByteRequest(1, 3))
    assert type(value) is OtherBuffer
    assert value.to_bytes() == b"12"


async def test_moves(tmp_path: Path) -> None:
    store = GDSStore(tmp_path / "here")
    put(store, "k", b"v")
    assert got(store, "k") == b"v"
    await store.move(tmp_path / "there")
    assert (await store.get("k")).to_bytes() == b"v"
    assert not (tmp_path / "here").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Python 3.12: this process has threads
def test_a_forked_child_reads_on(tmp_path: Path) -> None:
    store = GDSStore(tmp_path)
    put(store, "k", b"v")
    assert got(store, "k") == b"v"
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if got(store, "k") == b"v" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert got(store, "k") == b"v"


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "options", [{"compressors": None}, {}, {"compressors": None, "shards": (40, 30)}], ids=["plain", "compressed", "sharded"]
)
def test_arrays_come_back_as_written(tmp_path: Path, zarr_format: int, options: dict[str, Any]) -> None:
    if zarr_format == 2 and "shards" in options:
        pytest.skip("format 2 has no shards")
    data = np.random.default_rng(5).integers(0, 1 << 30, (77, 91), dtype=np.int32)
    group = zarr.create_group(GDSStore(tmp_path), zarr_format=zarr_format, attributes={"name": "value"})
    array = group.create_array("a", shape=data.shape, chunks=(10, 15), dtype=data.dtype, **options)
    array[...] = data
    array[3:5] = data[3:5] + 1
    expected = data.copy()
    expected[3:5] += 1
    for store in (GDSStore(tmp_path, read_only=True), LocalStore(tmp_path, read_only=True)):
        again = zarr.open_group(store, mode="r")
        assert dict(again.attrs) == {"name": "value"}
        np.testing.assert_array_equal(again["a"][...], expected)
        np.testing.assert_array_equal(again["a"][5:70:3, 40:], expected[5:70:3, 40:])


def test_gpu_prototype_reads_into_the_gpu(tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy", reason="cupy is not installed (GPU)")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        count = 0
    if count == 0:
        pytest.skip("no GPU")
    data = np.random.default_rng(6).integers(0, 1 << 30, (100, 1000), dtype=np.int32)
    zarr.create_array(GDSStore(tmp_path), shape=data.shape, chunks=(7, 1000), dtype=data.dtype, compressors=None)[...] = data
    with zarr.config.enable_gpu():
        array = zarr.open_array(GDSStore(tmp_path))
        values = array[...]
        assert isinstance(values, cupy.ndarray)
        np.testing.assert_array_equal(cupy.asnumpy(values), data)
        array[...] = cupy.asarray(data + 1)
    np.testing.assert_array_equal(zarr.open_array(LocalStore(tmp_path))[...], data + 1)
