"""penstock.zarr.GDSStore under zarr 2."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
if int(zarr.__version__.split(".")[0]) != 2:
    pytest.skip(f"zarr {zarr.__version__} is installed, these tests are for zarr 2", allow_module_level=True)

import penstock
from penstock.zarr import GDSStore, explain, load

from .zarr_level import stays_level  # noqa: E402, F401


DATA = np.random.default_rng(3).integers(0, 1 << 30, (77, 91), dtype=np.int32)


def test_is_a_directory_store_with_its_arguments(tmp_path: Path) -> None:
    store = GDSStore(str(tmp_path), False, "/")
    assert isinstance(store, zarr.storage.DirectoryStore)
    assert (store.normalize_keys, store._dimension_separator) == (False, "/")
    assert store == GDSStore(str(tmp_path))


def test_values_of_keys(tmp_path: Path) -> None:
    store = GDSStore(str(tmp_path))
    store["a/b"] = b"value"
    store[".zattrs"] = b"{}"
    store["empty"] = b""
    assert bytes(store["a/b"]) == b"value"
    assert store[".zattrs"] == b"{}"
    assert bytes(store["empty"]) == b""
    assert sorted(store) == [".zattrs", "a/b", "empty"]
    assert "a/b" in store
    assert "a" not in store
    for missing in ("none", "a", "a/b/c"):
        with pytest.raises(KeyError, match=missing):
            store[missing]
    del store["a/b"]
    assert "a/b" not in store


def test_keys_are_normalized(tmp_path: Path) -> None:
    store = GDSStore(str(tmp_path), normalize_keys=True)
    store["FOO"] = b"value"
    assert bytes(store["foo"]) == b"value"
    assert os.listdir(tmp_path) == ["foo"]


def test_many_items_at_once_leave_out_what_is_missing(tmp_path: Path) -> None:
    store = GDSStore(str(tmp_path))
    expected = {str(i): os.urandom(i) for i in range(700)}
    for key, value in expected.items():
        store[key] = value
    values = store.getitems(["none", *expected, "nothing"], contexts={})
    assert {key: bytes(value) for key, value in values.items()} == expected


@pytest.mark.parametrize("separator", [None, ".", "/"])
@pytest.mark.parametrize("compressor", [None, "default"])
@pytest.mark.parametrize("fsync", [False, True])
def test_arrays_come_back_as_written(tmp_path: Path, separator: str | None, compressor: Any, fsync: bool) -> None:
    group = zarr.group(GDSStore(str(tmp_path), dimension_separator=separator, fsync=fsync))
    array = group.create_dataset("a", shape=DATA.shape, chunks=(10, 15), dtype=DATA.dtype, compressor=compressor)
    array[...] = DATA
    array.attrs["name"] = "value"
    for kind in (GDSStore, zarr.DirectoryStore):
        store = kind(str(tmp_path), dimension_separator=separator)
        again = zarr.open_group(store, mode="r")["a"]
        assert dict(again.attrs) == {"name": "value"}
        np.testing.assert_array_equal(again[...], DATA)
        np.testing.assert_array_equal(again[5:70:3, 40:], DATA[5:70:3, 40:])
        assert explain(again).direct
        np.testing.assert_array_equal(load(again), DATA)
        np.testing.assert_array_equal(load(again, (slice(3, 50), 7)), DATA[3:50, 7])


def test_nested_stores_and_consolidated_metadata_load(tmp_path: Path) -> None:
    store = zarr.NestedDirectoryStore(str(tmp_path))
    zarr.group(store).create_dataset("a", data=DATA, chunks=(10, 15), compressor=None)
    zarr.consolidate_metadata(store)
    for array in (zarr.open_group(store)["a"], zarr.open_consolidated(store)["a"]):
        np.testing.assert_array_equal(load(array), DATA)
    assert explain(zarr.open_group(store)["a"]).direct


def test_filters_are_undone(tmp_path: Path) -> None:
    import numcodecs

    array = zarr.create(
        DATA.shape, chunks=(10, 15), dtype="i4", compressor=None, filters=[numcodecs.Delta("i4")], store=GDSStore(str(tmp_path))
    )
    array[...] = DATA
    assert "decoded (delta)" in explain(array).reason
    np.testing.assert_array_equal(load(array), DATA)


def test_open_cupy_array_makes_uncompressed_arrays_and_opens_others(tmp_path: Path) -> None:
    import penstock.kvikio.zarr
    from penstock.zarr import open_cupy_array

    assert penstock.kvikio.zarr.open_cupy_array is open_cupy_array
    like = np.empty(())
    made = open_cupy_array(tmp_path / "a", "w", meta_array=like, shape=DATA.shape, chunks=(10, 15), dtype="i4")
    made[...] = DATA
    assert made.compressor is None and isinstance(made.store, GDSStore)
    np.testing.assert_array_equal(open_cupy_array(str(tmp_path / "a"), "r", meta_array=like)[...], DATA)
    zarr.open_array(str(tmp_path / "b"), "w", shape=DATA.shape, dtype="i4")[...] = DATA
    np.testing.assert_array_equal(open_cupy_array(tmp_path / "b", "r+", meta_array=like)[...], DATA)
    with pytest.raises(TypeError):
        open_cupy_array(made.store, meta_array=like)


def test_chunks_are_in_memory_like_the_meta_array(tmp_path: Path) -> None:
    class Kind(np.ndarray[Any, Any]):
        pass

    store = GDSStore(str(tmp_path))
    array = zarr.create(DATA.shape, chunks=(10, 91), dtype="i4", compressor=None, store=store)
    array[...] = DATA
    array = zarr.open_array(store, meta_array=np.empty(()).view(Kind))
    np.testing.assert_array_equal(np.asarray(array[...]), DATA)


def test_values_are_in_memory_of_a_gpu_where_that_is_asked_for(tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if penstock.cuda_status() is not None:
        pytest.skip(f"no GPU: {penstock.cuda_status()}")
    store = GDSStore(str(tmp_path))
    source = cupy.asarray(DATA)
    array = zarr.create(DATA.shape, chunks=(10, 91), dtype="i4", compressor=None, store=store, meta_array=cupy.empty(()))
    array[...] = source
    back = zarr.open_array(store, meta_array=cupy.empty(()))[...]
    assert isinstance(back, cupy.ndarray) and bool((back == source).all())
    key = "0.0"
    (value,) = store.getitems([key], contexts={key: {"meta_array": cupy.empty(())}}).values()
    assert isinstance(value, cupy.ndarray) and value.dtype == "u1"
    assert bytes(cupy.asnumpy(value)) == DATA[:10].tobytes()
    assert isinstance(store.getitems([key])[key], np.ndarray)
    store.default_meta_array = cupy.empty(())
    assert isinstance(store.getitems([key])[key], cupy.ndarray)


def test_items_need_no_context_and_the_store_has_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = GDSStore(str(tmp_path))
    store["a"] = b"value"
    assert bytes(store.getitems(["a", "none"])["a"]) == b"value"
    asked = []

    class Example(np.ndarray[Any, Any]):
        pass

    from penstock.zarr import _store2

    real = _store2.place_like
    monkeypatch.setattr(_store2, "place_like", lambda example: asked.append(type(example)) or real(example))
    store.default_meta_array = np.empty(()).view(Example)
    store.getitems(["a"])
    store.getitems(["a"], contexts={"a": {}})
    store.getitems(["a"], contexts={"a": {"meta_array": np.empty(())}})
    assert asked == [Example, Example, np.ndarray]


def test_the_metadata_may_name_another_compressor(tmp_path: Path) -> None:
    import numcodecs

    zlib, gzip = numcodecs.Zlib(1).get_config(), numcodecs.GZip(1).get_config()
    store = GDSStore(str(tmp_path / "named"), compressor_config_overwrite=gzip, decompressor_config_overwrite=zlib)
    array = zarr.create(DATA.shape, chunks=(10, 91), dtype="i4", compressor=numcodecs.Zlib(1), store=store)
    array[...] = DATA
    assert zarr.open_array(GDSStore(str(tmp_path / "named"))).compressor == numcodecs.GZip(1)
    mended = zarr.open_array(GDSStore(str(tmp_path / "named"), decompressor_config_overwrite=zlib), mode="r")
    np.testing.assert_array_equal(mended[...], DATA)
    uncompressed = GDSStore(str(tmp_path / "plain"), compressor_config_overwrite=gzip, decompressor_config_overwrite=gzip)
    zarr.create(DATA.shape, chunks=(10, 91), dtype="i4", compressor=None, store=uncompressed)[...] = DATA
    assert zarr.open_array(uncompressed).compressor is None


def test_a_failed_write_leaves_the_old_value_and_no_other_file(tmp_path: Path) -> None:
    store = GDSStore(str(tmp_path))
    store["k"] = b"old"
    with pytest.raises((OSError, KeyError)):
        store["k/below"] = b"new"
    assert bytes(store["k"]) == b"old"
    assert os.listdir(tmp_path) == ["k"]


def test_may_be_used_by_many_threads(tmp_path: Path) -> None:
    store = GDSStore(str(tmp_path))
    for i in range(64):
        store[str(i)] = bytes([i]) * 5000
    failed = []

    def read() -> None:
        try:
            for i in range(64):
                if bytes(store[str(i)]) != bytes([i]) * 5000:
                    failed.append(i)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
