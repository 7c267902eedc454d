"""penstock.zarr.install: `array[...]` of zarr gives what it gives without, and reads as load() does where it can."""

from __future__ import annotations

import importlib.util
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

zarr = pytest.importorskip("zarr", minversion="3")

import penstock
from penstock.zarr import CodecPipeline, GDSStore, _pipeline, install

from . import range_server
from .zarr_level import stays_level  # noqa: E402, F401

ROUNDS = int(os.environ.get("PENSTOCK_TEST_ROUNDS", "150")) // 5

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # zarr 3, of what its format 3 does not have


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each selection that penstock read: how many files of it."""
    seen: list[int] = []
    real = _pipeline._read

    def counted(layout: Any, plans: Any, *rest: Any) -> None:
        seen.append(len(plans))
        real(layout, plans, *rest)

    monkeypatch.setattr(_pipeline, "_read", counted)
    return seen


def values_of(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = np.random.default_rng(seed).integers(0, 100, shape)
    return values


def reopened(array: Any, store: Any = None) -> Any:
    with install():
        again = zarr.open_array(array.store if store is None else store, path=array.path, mode="r")
    assert isinstance(again.async_array.codec_pipeline, CodecPipeline)
    return again


def made(folder: Path, shape: tuple[int, ...] = (50, 33), chunks: tuple[int, ...] = (10, 7), dtype: str = "i4", **options: Any) -> Any:
    array = zarr.create_array(GDSStore(folder), shape=shape, chunks=chunks, dtype=dtype, fill_value=4, **options)
    array[...] = values_of(shape)
    return array


BOXES = [..., (3, slice(None)), (slice(2, 40), slice(5, 30)), (slice(None), -1), (3, 4), slice(10, 20), slice(4, 4)]


@pytest.mark.parametrize("options", [{"compressors": None}, {}, {"shards": (20, 14)}, {"zarr_format": 2}, {"dtype": ">i2", "zarr_format": 2}], ids=str)
def test_boxes_are_read_by_penstock(tmp_path: Path, reads: list[int], options: dict[str, Any]) -> None:
    array = made(tmp_path, **options)
    again = reopened(array)
    for number, selection in enumerate(BOXES[:-1]):
        expected, found = array[selection], again[selection]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)
        assert len(reads) == number + 1
    np.testing.assert_array_equal(again[BOXES[-1]], array[BOXES[-1]])


@pytest.mark.parametrize("read", [
    lambda array: array[::3, 4],
    lambda array: array.oindex[[1, 7, 30], 2:9],
    lambda array: array.vindex[[1, 7], [2, 9]],
    lambda array: array.oindex[np.arange(50) % 4 == 0],
    lambda array: array.get_basic_selection((slice(3, 30, 2), 4)),
], ids=["steps", "lists", "points", "mask", "steps and a number"])  # fmt: skip
def test_all_else_is_read_by_zarr(tmp_path: Path, reads: list[int], read: Any) -> None:
    array = made(tmp_path)
    np.testing.assert_array_equal(read(reopened(array)), read(array))
    assert reads == []


def test_blocks_and_boxes_of_oindex(tmp_path: Path, reads: list[int]) -> None:
    array = made(tmp_path)
    again = reopened(array)
    np.testing.assert_array_equal(again.blocks[1:3, 2], array.blocks[1:3, 2])
    np.testing.assert_array_equal(again.oindex[3:20, 5:9], array.oindex[3:20, 5:9])
    assert len(reads) >= 1


def test_missing_chunks_have_the_fill_value(tmp_path: Path) -> None:
    array = zarr.create_array(GDSStore(tmp_path), shape=(50, 33), chunks=(10, 7), dtype="f4", fill_value=np.nan)
    array[12:20, 3:9] = 1
    np.testing.assert_array_equal(reopened(array)[...], array[...])


def test_records_and_texts_and_numbers(tmp_path: Path) -> None:
    records = zarr.create_array(GDSStore(tmp_path / "r"), shape=(10,), chunks=(4,), dtype=[("a", "i4"), ("b", "f8")], zarr_format=2)
    records[...] = np.array([(i, i / 2) for i in range(10)], dtype=records.dtype)
    np.testing.assert_array_equal(reopened(records)[...], records[...])
    texts = zarr.create_array(GDSStore(tmp_path / "t"), shape=(4,), chunks=(2,), dtype=str)
    texts[...] = np.array(["a", "bb", "", "dddd"], dtype=object)
    assert list(reopened(texts)[...]) == ["a", "bb", "", "dddd"]
    number = zarr.create_array(GDSStore(tmp_path / "n"), shape=(), chunks=(), dtype="f8")
    number[...] = 2.5
    assert reopened(number)[...] == 2.5


def test_arrays_are_written_and_read_back(tmp_path: Path) -> None:
    with install():
        array = made(tmp_path, shards=(20, 14))
        expected = values_of((50, 33)).astype("i4")
        array[5:15, 3:20] = 7
        expected[5:15, 3:20] = 7
        array[::4] = 9
        expected[::4] = 9
        np.testing.assert_array_equal(array[...], expected)
        array.resize((60, 33))
        np.testing.assert_array_equal(array[50:], np.full((10, 33), 4))


def test_what_is_pickled_reads_too(tmp_path: Path, reads: list[int]) -> None:
    array = made(tmp_path)
    again = reopened(array)
    again[3:5]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again))[...], array[...])
    assert len(reads) == 2


def test_other_stores_are_read_by_zarr(reads: list[int]) -> None:
    array = zarr.create_array(zarr.storage.MemoryStore(), shape=(9,), chunks=(2,), dtype="i4")
    array[...] = np.arange(9)
    np.testing.assert_array_equal(reopened(array)[...], np.arange(9))
    assert reads == []


def test_arrays_of_groups_in_a_local_store_and_on_a_server(tmp_path: Path, reads: list[int]) -> None:
    with install():
        group = zarr.create_group(zarr.storage.LocalStore(tmp_path / "data.zarr")).create_group("a")
        group.create_array("b", shape=(33, 50), chunks=(10, 7), shards=(20, 14), dtype="f4")[...] = values_of((33, 50))
        np.testing.assert_array_equal(group["b"][2:30], values_of((33, 50))[2:30])
        zarr.consolidate_metadata(tmp_path / "data.zarr")
        with range_server.serving(tmp_path) as (url, _):
            far = zarr.open_group(penstock.zarr.RemoteStore(f"{url}/data.zarr"), mode="r")
            np.testing.assert_array_equal(far["a/b"][...], values_of((33, 50)))
            np.testing.assert_array_equal(far["a/b"][4, 5:20], values_of((33, 50))[4, 5:20])
    assert len(reads) == 3


def test_a_damaged_chunk_is_an_error_that_names_it(tmp_path: Path) -> None:
    array = made(tmp_path)
    file = tmp_path / "c" / "2" / "1"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ValueError, match=f"in {file}: zstd cannot decode"):
        reopened(array)[...]


def test_where_missing_chunks_are_an_error_they_stay_one(tmp_path: Path, reads: list[int]) -> None:
    if "read_missing_chunks" not in zarr.config.get("array"):
        pytest.skip(f"zarr {zarr.__version__} has no array.read_missing_chunks")
    array = zarr.create_array(GDSStore(tmp_path), shape=(9, 9), chunks=(2, 2), dtype="i4")
    with zarr.config.set({"array.read_missing_chunks": False}), pytest.raises(Exception, match="not found"):
        reopened(array)[...]
    assert reads == []


def test_the_setting_ends_with_its_block(tmp_path: Path) -> None:
    before = zarr.config.get("codec_pipeline.path")
    with install():
        assert zarr.config.get("codec_pipeline.path") != before
    assert zarr.config.get("codec_pipeline.path") == before
    assert not isinstance(made(tmp_path).async_array.codec_pipeline, CodecPipeline)


def test_who_decodes_is_set_for_arrays_that_are_opened_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = _pipeline.read_parts

    def seen(layout: Any, parts: Any, target: Any, box: Any, decode: str) -> None:
        asked.append(decode)
        real(layout, parts, target, box, decode)

    monkeypatch.setattr(_pipeline, "read_parts", seen)
    array = made(tmp_path)
    with install(decode="cpu"):
        assert zarr.config.get("penstock.decode") == "cpu"
        careful = zarr.open_array(array.store, mode="r")
    assert zarr.config.get("penstock.decode", None) is None
    for each in (careful, pickle.loads(pickle.dumps(careful)), reopened(array)):
        np.testing.assert_array_equal(each[...], array[...])
    assert asked[0] == "cpu" and asked[-1] == "auto"
    with pytest.raises(ValueError, match="decode is 'fast': it must be one of"):
        install(decode="fast")


def test_where_the_gpu_has_to_decode_all_else_is_an_error(tmp_path: Path) -> None:
    array = made(tmp_path, shards=(20, 14))
    with install(decode="gpu"):
        again = zarr.open_array(array.store, mode="r")
    with pytest.raises(ValueError, match='decode is "gpu", but nvCOMP cannot decode this array: the result is on host'):
        again[...]
    with pytest.raises(ValueError, match='decode is "gpu", but nvCOMP cannot decode this array: zarr must read .*, because the selection has a step'):
        again[::2]


def test_a_log_line_tells_once_why_zarr_reads_an_array(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "penstock")
    again = reopened(made(tmp_path))
    again[...]
    assert caplog.messages == []
    again[::2]
    again[::3]
    (line,) = caplog.messages
    assert line.startswith("penstock.zarr: zarr reads the array that contains chunk c/") and line.endswith("because the selection has a step, a mask or a list of indices")
    other = reopened(zarr.create_array(zarr.storage.MemoryStore(), shape=(9,), chunks=(2,), dtype="i4"))
    other[...]
    assert "its store is a MemoryStore" in caplog.messages[-1] and len(caplog.messages) == 2


def test_random_selections(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"PENSTOCK_TEST_SEED={seed}")
    dice = random.Random(seed)
    for turn in range(ROUNDS):
        shape = tuple(dice.randint(1, 60) for _ in range(dice.choice([1, 2, 3])))
        chunks = tuple(dice.randint(max(1, size // 5), size) for size in shape)
        options: dict[str, Any] = {"compressors": dice.choice([None, "auto"])}
        if dice.random() < 0.4:
            options["shards"] = tuple(size * dice.randint(1, 3) for size in chunks)
        array = made(tmp_path / str(turn), shape, chunks, **options)
        again = reopened(array)
        for _ in range(3):
            selection = tuple(slice(*sorted(dice.choices(range(size + 1), k=2)), dice.choice([None, None, 2])) if dice.random() < 0.7 else dice.randrange(size) for size in shape)
            np.testing.assert_array_equal(again[selection], array[selection], err_msg=f"seed {seed}, turn {turn}: {shape} in {chunks}, {selection}")


def test_cuda(tmp_path: Path, reads: list[int]) -> None:
    if "cuda:0" not in [device.name for device in penstock.devices()]:
        pytest.skip("no CUDA device (GPU)")
    cupy = pytest.importorskip("cupy", reason="cupy is not installed (GPU)")
    for number, options in enumerate(({"compressors": None}, {}, {"shards": (20, 14)})):
        array = made(tmp_path / str(number), **options)
        expected = array[...]
        with zarr.config.enable_gpu():
            again = reopened(array)
            for selection in BOXES[:-1]:
                found = again[selection]
                np.testing.assert_array_equal(cupy.asnumpy(found), expected[selection])
    assert len(reads) == 3 * len(BOXES[:-1])


def test_the_example_of_xarray_runs(tmp_path: Path) -> None:
    if importlib.util.find_spec("xarray") is None:
        pytest.skip("xarray is not installed")
    example = Path(__file__).parents[2] / "examples" / "python" / "zarr_xarray.py"
    done = subprocess.run([sys.executable, example, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "10.4 MB in the store, 0.9 MB read; as written: True" in done.stdout
