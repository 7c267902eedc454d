"""penstock.zarr.load: the same values as zarr gives, for every array and selection, by the fast way or through zarr."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

zarr = pytest.importorskip("zarr", minversion="3.1", reason="zarr 3.1 is not installed")

import penstock
from penstock.zarr import GDSStore, explain, load

from .zarr_level import stays_level  # noqa: E402, F401


FORMATS = [2, 3]
ROUNDS = int(os.environ.get("PENSTOCK_TEST_ROUNDS", "150"))

pytestmark = pytest.mark.filterwarnings("ignore:The data type:Warning")  # zarr 3, of dtypes that its format 3 lacks


def make(
    folder: Path,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: Any = "i4",
    fill_value: Any = 0,
    zarr_format: int = FORMATS[-1],
    compressed: bool = False,
    **options: Any,
) -> Any:
    """An empty array."""
    store = GDSStore(str(folder))
    common = {"shape": shape, "chunks": chunks, "dtype": dtype, "fill_value": fill_value}
    compressors = "auto" if compressed else None
    return zarr.create_array(store, compressors=compressors, zarr_format=zarr_format, **common, **options)


def values_of(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "SU":
        return np.array([f"{n:x}" for n in generator.integers(0, 255, count)], dtype=dtype).reshape(shape)
    return generator.integers(0, 100, shape).astype(dtype)


def filled(folder: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any = "i4", **options: Any) -> Any:
    array = make(folder, shape, chunks, dtype, **options)
    array[...] = values_of(shape, dtype)
    return array


def check(array: Any, selection: Any = ..., direct: bool = True, **where: Any) -> None:
    told = explain(array, selection)
    assert told.direct == direct, str(told)
    expected = np.asarray(array[selection])
    result = load(array, selection, **where)
    assert isinstance(result, np.ndarray)
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, expected)


@pytest.fixture(params=FORMATS)
def zarr_format(request: pytest.FixtureRequest) -> int:
    return int(request.param)


SHAPES = [
    ((), ()),
    ((1,), (1,)),
    ((10,), (3,)),
    ((5000,), (1000,)),
    ((12, 10), (4, 5)),
    ((13, 11), (4, 5)),
    ((3, 4000), (2, 1500)),
    ((64, 2048), (16, 2048)),
    ((7, 9, 11), (3, 9, 4)),
    ((7, 9, 11), (3, 4, 11)),
    ((20, 30, 64), (1, 30, 64)),
    ((4, 5, 6, 7), (2, 2, 3, 7)),
    ((3, 3), (10, 10)),
    ((0, 5), (1, 5)),
]


@pytest.mark.parametrize(("shape", "chunks"), SHAPES)
def test_whole_arrays(tmp_path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], zarr_format: int) -> None:
    check(filled(tmp_path, shape, chunks, zarr_format=zarr_format))


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i8", "f2", "f4", "f8", "c8", "c16", "M8[s]", "m8[ms]", "S5", "U3"])
def test_dtypes(tmp_path: Path, dtype: str, zarr_format: int) -> None:
    fill_value = "" if dtype[0] in "SU" else 0
    check(filled(tmp_path, (37, 23), (10, 23), dtype, fill_value=fill_value, zarr_format=zarr_format))


SELECTIONS = [
    (),
    ...,
    slice(None),
    slice(3, 9),
    slice(-5, None),
    slice(9, 3),
    slice(0, 0),
    7,
    -1,
    (slice(2, 30), slice(5, 6)),
    (slice(None), 4),
    (3, 4),
    (..., 2),
    (..., slice(1, 19)),
    (slice(8, 16), ...),
    (np.int64(5), slice(None)),
    (2, 3, 5),
    (slice(4, 5), slice(4, 5), slice(4, 5)),
    (slice(None, 1000), slice(None), slice(0, 64)),
]


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
@pytest.mark.parametrize("chunks", [(8, 20, 64), (8, 7, 64), (5, 20, 33), (33, 1, 64)], ids=str)
def test_selections_of_numbers_and_slices(tmp_path: Path, selection: Any, chunks: tuple[int, ...]) -> None:
    check(filled(tmp_path, (33, 20, 64), chunks, "f8"), selection)


@pytest.mark.parametrize("selection", [slice(None, None, 2), (slice(None), slice(9, 2, 1), slice(0, 60, 7))], ids=str)
def test_steps_are_left_to_zarr(tmp_path: Path, selection: Any) -> None:
    array = filled(tmp_path, (33, 20, 64), (8, 20, 64), "f8")
    assert "step" in explain(array, selection).reason
    check(array, selection, direct=False)


@pytest.mark.parametrize("selection", [33, -34, (1, 2, 3, 4), (..., ...)], ids=str)
def test_a_wrong_selection_is_zarrs_error(tmp_path: Path, selection: Any) -> None:
    array = filled(tmp_path, (33, 20, 64), (8, 20, 64), "f8")
    with pytest.raises(IndexError):
        array[selection]
    with pytest.raises(IndexError):
        load(array, selection)


@pytest.mark.parametrize("chunks", [(10, 1024), (10, 7)], ids=["runs", "copies"])
@pytest.mark.parametrize("device", [None, "host:0"])
def test_missing_chunks_have_the_fill_value(
    tmp_path: Path, chunks: tuple[int, ...], device: str | None, zarr_format: int
) -> None:
    array = make(tmp_path, (100, 1024), chunks, "i4", fill_value=-7, zarr_format=zarr_format)
    array[25:45, :700] = 3
    for selection in (..., (slice(5, 95), slice(1, 1023)), slice(0, 5)):
        expected = array[selection]
        assert explain(array, selection).direct
        result = load(array, selection, device=device)
        if device is not None:
            result = np.frombuffer(result.to_host(), "i4").reshape(expected.shape)
        np.testing.assert_array_equal(result, expected)


def test_an_array_without_any_chunk_is_all_fill_value(tmp_path: Path) -> None:
    check(make(tmp_path, (9, 9), (2, 2), "f4", fill_value=np.nan))


def test_no_fill_value_means_zeros(tmp_path: Path) -> None:
    array = make(tmp_path, (9, 9), (2, 2), "i4", fill_value=None, zarr_format=2)
    np.testing.assert_array_equal(load(array), np.zeros((9, 9), "i4"))


RECORD = [("a", "<i4"), ("b", "<M8[s]"), ("c", "S2")]
DTYPES_WITH_FILLS = ["?", "i1", ">i4", "<u8", "<f2", "f8", "c16", "S3", "U2", "V4", "M8[s]", ">M8[ns]", "M8[D]", "m8[ms]", ">m8[ns]", RECORD]


@pytest.mark.parametrize("device", [None, "host:0"])
@pytest.mark.parametrize("fill_value", ["null", "default"])
@pytest.mark.parametrize("dtype", DTYPES_WITH_FILLS, ids=str)
def test_a_missing_chunk_without_a_fill_value_is_what_zarr_has(
    tmp_path: Path, dtype: Any, fill_value: str, device: str | None, zarr_format: int
) -> None:
    wanted = {} if fill_value == "default" else {"fill_value": None}
    array = zarr.create_array(str(tmp_path), shape=(5,), chunks=(2,), dtype=np.dtype(dtype), zarr_format=zarr_format, **wanted)
    if fill_value == "null" and zarr_format == 2:
        assert json.loads((tmp_path / ".zarray").read_text())["fill_value"] is None
    assert explain(array).direct
    result = load(array, device=device)
    expected = array[...]
    if device is not None:
        expected = expected.astype(expected.dtype.newbyteorder("="))  # as devices have it
    assert (result.tobytes() if device is None else result.to_host()) == expected.tobytes()


def test_chunks_larger_than_any_memory_are_left_to_zarr(tmp_path: Path) -> None:
    array = zarr.create_array(str(tmp_path), shape=(4, 4), chunks=(2, 2), dtype="f8", zarr_format=2)
    described = json.loads((tmp_path / ".zarray").read_text())
    (tmp_path / ".zarray").write_text(json.dumps(described | {"chunks": [2**62, 2**62]}))
    array = zarr.open_array(str(tmp_path), mode="r")
    assert not explain(array).direct


def test_records_are_read_like_numbers(tmp_path: Path) -> None:
    array = make(tmp_path, (10,), (4,), [("a", "i4"), ("b", "f8")], fill_value=None, zarr_format=2)
    values = np.array([(i, i / 2) for i in range(10)], dtype=array.dtype)
    array[...] = values
    check(array)
    assert load(array, device="host:0").to_host() == values.tobytes()


def test_other_stores_are_left_to_zarr() -> None:
    array = zarr.create_array(zarr.storage.MemoryStore(), shape=(9,), chunks=(2,), dtype="i4", compressors=None)
    array[...] = np.arange(9)
    assert "MemoryStore" in explain(array).reason
    check(array, direct=False)


class TestPlacesOfZarr3:
    @pytest.mark.parametrize("encoding", [("default", "."), ("v2", "/"), ("v2", ".")], ids=str)
    def test_chunk_keys_of_every_encoding(self, tmp_path: Path, encoding: tuple[str, str]) -> None:
        name, separator = encoding
        key_encoding = {"name": name, "separator": separator}
        check(filled(tmp_path, (32, 20), (8, 7), chunk_key_encoding=key_encoding))

    def test_arrays_inside_groups_of_a_plain_local_store(self, tmp_path: Path) -> None:
        group = zarr.create_group(zarr.storage.LocalStore(tmp_path)).create_group("a").create_group("b")
        array = group.create_array("c", shape=(100, 10), chunks=(9, 10), dtype="f4", compressors=None)
        array[...] = values_of((100, 10), "f4")
        check(array)
        check(array, (slice(5, 50), 3))

    def test_a_store_that_reads_in_its_own_way_is_left_to_zarr(self, tmp_path: Path) -> None:
        class Upside(zarr.storage.LocalStore):  # type: ignore[name-defined,misc]
            async def get(self, *args: Any, **options: Any) -> Any:
                return await super().get(*args, **options)

        filled(tmp_path, (10,), (3,))
        array = zarr.open_array(Upside(tmp_path))
        assert "Upside" in explain(array).reason
        check(array, direct=False)

    def test_where_missing_chunks_are_an_error_they_stay_one(self, tmp_path: Path) -> None:
        if not hasattr(zarr.config.get("array"), "get") or "read_missing_chunks" not in zarr.config.get("array"):
            pytest.skip(f"zarr {zarr.__version__} has no array.read_missing_chunks")
        with zarr.config.set({"array.read_missing_chunks": False}):
            array = make(tmp_path, (9, 9), (2, 2))
            with pytest.raises(Exception, match="not found"):
                load(array)


def test_a_cut_chunk_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    array = filled(tmp_path, (100,), (10,), zarr_format=2)
    os.truncate(tmp_path / "4", 39)
    with pytest.raises(ValueError, match=r"chunk file .*/4 has 39 bytes, but a chunk of this array has 40"):
        load(array)
    np.testing.assert_array_equal(load(array, slice(0, 40)), array[:40])


def test_what_is_no_array_is_refused(tmp_path: Path) -> None:
    for wrong in (np.zeros(3), str(tmp_path), None):
        with pytest.raises(TypeError, match=r"must be a zarr\.Array"):
            load(wrong)
        with pytest.raises(TypeError, match=r"must be a zarr\.Array"):
            explain(wrong)


def test_explains_in_words(tmp_path: Path) -> None:
    array = filled(tmp_path, (64, 4096), (8, 4096), "f4")
    told = explain(array)
    assert (told.direct, told.nbytes, told.chunks, told.ranges, told.staged_chunks) == (True, 1 << 20, 8, 8, 0)
    assert str(told) == "1048576 bytes from 8 ranges of 8 chunk files: its chunks are plain bytes in local files"
    columns = explain(array, (slice(4, 60), slice(0, 2048)))
    assert (columns.chunks, columns.ranges, columns.staged_chunks) == (8, 56, 0)
    narrow = explain(array, (slice(4, 60), slice(0, 100)))
    assert (narrow.chunks, narrow.ranges, narrow.staged_chunks) == (8, 8, 8)
    assert "8 of them through a copy" in str(narrow)
    assert str(explain(array, slice(None, None, 2))).startswith("zarr's own pipeline reads it, because ")


class TestOut:
    @pytest.fixture
    def array(self, tmp_path: Path) -> Any:
        return filled(tmp_path, (100, 300), (30, 300), "f4")

    @pytest.mark.parametrize("selection", [..., (slice(None), slice(0, 7)), slice(None, None, 3)], ids=["runs", "copies", "zarr"])
    def test_is_filled_and_returned(self, array: Any, selection: Any) -> None:
        expected = array[selection]
        out = np.empty(expected.shape, "f4")
        assert load(array, selection, out=out) is out
        np.testing.assert_array_equal(out, expected)

    @pytest.mark.parametrize("selection", [..., (slice(None), slice(0, 7)), slice(None, None, 3)], ids=["runs", "copies", "zarr"])
    @pytest.mark.parametrize("kind", ["bytearray", "device"])
    def test_may_be_any_buffer(self, array: Any, selection: Any, kind: str) -> None:
        expected = array[selection]
        device = penstock.device("host:0")
        out = device.empty(expected.nbytes) if kind == "device" else bytearray(expected.nbytes)
        assert load(array, selection, out=out) is out
        read = out.to_host() if kind == "device" else bytes(out)
        np.testing.assert_array_equal(np.frombuffer(read, "f4").reshape(expected.shape), expected)

    def test_of_another_shape_dtype_or_size_is_refused(self, array: Any) -> None:
        with pytest.raises(ValueError, match=r"out has shape \(100, 299\), but the result has \(100, 300\)"):
            load(array, out=np.empty((100, 299), "f4"))
        with pytest.raises(TypeError, match="out has dtype float64, but the result has float32"):
            load(array, out=np.empty((100, 300), "f8"))
        with pytest.raises(ValueError, match="out has 119999 bytes, but the result has 120000"):
            load(array, out=bytearray(119999))
        with pytest.raises(ValueError, match="not C-contiguous"):
            load(array, out=np.empty((100, 300), "f4", order="F"))
        with pytest.raises(ValueError, match="read-only"):
            load(array, out=np.frombuffer(bytes(120000), "f4").reshape(100, 300))

    def test_has_to_fit_device(self, array: Any) -> None:
        with pytest.raises(ValueError, match='out is on host, but device is "host:0"'):
            load(array, device="host:0", out=np.empty((100, 300), "f4"))
        out = penstock.device("host:0").empty(120000)
        assert load(array, device="host:0", out=out) is out


@pytest.mark.parametrize("selection", [..., (slice(3, 90), slice(1, 299)), (slice(None), 5), slice(0, 50, 3)], ids=str)
def test_host_device(tmp_path: Path, selection: Any) -> None:
    array = filled(tmp_path, (100, 2000), (30, 1500), "f4")
    expected = array[selection]
    result = load(array, selection, device="host:0")
    assert isinstance(result, penstock.DeviceBuffer)
    assert result.nbytes == expected.nbytes
    np.testing.assert_array_equal(np.frombuffer(result.to_host(), "f4").reshape(expected.shape), expected)


def test_an_empty_result_is_refused_by_the_host_device(tmp_path: Path) -> None:
    array = filled(tmp_path, (10,), (3,))
    with pytest.raises(ValueError, match="at least one byte"):
        load(array, slice(0, 0), device="host:0")
    assert load(array, slice(0, 0), out=bytearray()) == b""


def test_an_unknown_device_is_an_error(tmp_path: Path) -> None:
    array = filled(tmp_path, (10,), (3,))
    with pytest.raises((ValueError, ImportError, OSError)):
        load(array, device="tpu:0")


def test_more_chunks_than_one_batch_holds(tmp_path: Path) -> None:
    array = filled(tmp_path, (3000,), (2,), zarr_format=2)
    check(array)
    check(array, slice(1, 2999))


def test_no_file_stays_open(tmp_path: Path) -> None:
    array = filled(tmp_path, (100, 300), (30, 300), "f4")
    load(array)
    load(array, (slice(None), slice(0, 7)))
    links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    chunks = [link for link in links if link.startswith(str(tmp_path)) and os.path.isfile(link)]
    # What the store itself keeps is bounded by the store.
    if hasattr(array.store, "_files"):
        array.store._files.clear()
        links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        chunks = [link for link in links if link.startswith(str(tmp_path)) and os.path.isfile(link)]
    assert chunks == []


def random_selection(dice: random.Random, shape: tuple[int, ...]) -> Any:
    items: list[Any] = []
    for size in shape:
        kind = dice.random()
        if kind < 0.3:
            items.append(slice(None))
        elif kind < 0.45 and size:
            items.append(dice.randrange(-size, size))
        else:
            low = dice.randint(-size - 2, size + 2)
            items.append(slice(low, dice.choice([None, dice.randint(-size - 2, size + 2), low + dice.randint(0, size)])))
    keep = dice.randint(0, len(items))
    if dice.random() < 0.3:
        return (*items[:keep], ...)
    return tuple(items[:keep]) if dice.random() < 0.3 else tuple(items)


def test_random_arrays_and_selections(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"PENSTOCK_TEST_SEED={seed}")
    dice = random.Random(seed)
    for turn in range(ROUNDS):
        ndim = dice.choice([0, 1, 1, 2, 2, 3, 3, 4])
        largest = {0: 1, 1: 20_000, 2: 300, 3: 50, 4: 15}[ndim]
        shape = tuple(dice.randint(1, largest) for _ in range(ndim))
        chunks = tuple(
            dice.choice([size, size, dice.randint(max(1, size // 6), size), size + dice.randint(0, 5)]) for size in shape
        )
        dtype = dice.choice(["u1", "i2", "f4", "f8", "c16", "?"])
        fill_value = dice.choice([0, 1, 3]) if dtype != "?" else False
        array = make(tmp_path / str(turn), shape, chunks, dtype, fill_value, zarr_format=dice.choice(FORMATS))
        for _ in range(dice.randint(0, 2)):
            array[random_selection(dice, shape)] = dice.randint(0, 1)
        if dice.random() < 0.7:
            array[...] = values_of(shape, dtype, dice.randrange(1 << 30))
        for _ in range(4):
            selection = random_selection(dice, shape)
            context = f"seed {seed}: {shape} in {chunks} of {dtype}, {selection}"
            expected = np.asarray(array[selection])
            assert explain(array, selection).direct, context
            np.testing.assert_array_equal(load(array, selection), expected, err_msg=context)
            if expected.nbytes:
                on_device = load(array, selection, device="host:0").to_host()
                assert on_device == expected.tobytes(), context


def test_cuda(tmp_path: Path) -> None:
    names = [device.name for device in penstock.devices()]
    if "cuda:0" not in names:
        pytest.skip("no CUDA device (GPU)")
    cupy = pytest.importorskip("cupy", reason="cupy is not installed (GPU)")
    array = make(tmp_path, (100, 3000), (30, 1700), "f4", fill_value=2)
    array[20:80] = values_of((60, 3000), "f4")
    for selection in (..., (slice(3, 90), slice(1, 2999)), (slice(None), 5), (slice(None), slice(3, 40)), slice(0, 50, 3)):
        result = load(array, selection, device="cuda:0")
        assert isinstance(result, cupy.ndarray)
        np.testing.assert_array_equal(cupy.asnumpy(result), array[selection])
        out = cupy.empty(result.shape, "f4")
        assert load(array, selection, out=out) is out
        np.testing.assert_array_equal(cupy.asnumpy(out), array[selection])


def test_the_example_runs(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "python" / "zarr_on_gpu.py"
    done = subprocess.run([sys.executable, example, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("as written: True") == 3
    assert "zarr's own pipeline reads it, because the selection has a step of 2" in done.stdout
    assert "zarr reads the same through the store: True" in done.stdout


def test_kvikio_has_the_store_too() -> None:
    import penstock.kvikio.zarr

    assert penstock.kvikio.zarr.GDSStore is GDSStore


def test_without_zarr_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "zarr.py").write_text("raise ImportError('none here')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import penstock.zarr"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert 'ImportError: penstock.zarr requires zarr: pip install "penstock[zarr]"' in done.stderr


def test_an_older_zarr_is_an_import_error() -> None:
    script = "import zarr; zarr.__version__ = '2.18.7'; import penstock.zarr"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1 and "ImportError: penstock.zarr requires zarr 3.1 or newer, but zarr 2.18.7 is installed" in done.stderr
