"""penstock.safetensors: files of NumPy's arrays both ways against the safetensors library; parts, indexes, device maps, load_into()."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import _native, safetensors
from penstock.safetensors import SafetensorError, load_file, load_into, load_sharded, safe_open, save_file, stream
from penstock.safetensors import numpy as ours
from penstock._tensors.slices import part_of, picks_of

pytestmark = pytest.mark.usefixtures("torch_not_imported")

reference = pytest.importorskip("safetensors", reason="the safetensors library, to compare with, is not installed")
theirs = pytest.importorskip("safetensors.numpy", reason="the safetensors library, to compare with, is not installed")

PLAIN = ["bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32", "complex64", "float64", "int64", "uint64"]
NAMES = ["weight", "", " ", "a.b.c", "é", "重み", "مرحبا", "😀", "x/y\\z", 'quo"te', "tab\there", "line\nend", "\x01\x1f\x7f", "\u2028", "{}", "null"]
ROUNDS = int(os.environ.get("PENSTOCK_TEST_ROUNDS", "60"))


def array_of(numbers: random.Random, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> Any:
    if shape is None:
        shape = tuple(numbers.choice([0, 1, 1, 2, 3, 7, 17]) for _ in range(numbers.randint(0, 4)))
    kind = np.dtype(dtype or numbers.choice(PLAIN))
    content = numbers.randbytes(math.prod(shape) * kind.itemsize)
    if kind.kind == "b":
        content = bytes(each & 1 for each in content)
    return np.frombuffer(content, kind).reshape(shape)


def tensors_of(seed: int) -> dict[str, Any]:
    numbers = random.Random(seed)
    names = [numbers.choice(NAMES) + str(i if numbers.random() < 0.8 else "") for i in range(numbers.choice([0, 1, 2, 5, 30]))]
    return {name: array_of(numbers) for name in names}


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Names in the same order, but for tensors of no bytes, which have none; types, shapes and every byte."""
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name].nbytes] == [name for name in expected if expected[name].nbytes]
    for name, array in found.items():
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape), name
        assert array.tobytes() == expected[name].tobytes(), name
    return True


def content_of(buffer: Any) -> bytes:
    """Of a DeviceBuffer, or of b"" in the place of none."""
    return buffer if isinstance(buffer, bytes) else bytes(buffer.to_host())


# --- both ways


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_files_are_the_same_both_ways(tmp_path: Path, seed: int) -> None:
    tensors = tensors_of(seed)
    metadata = [None, {}, {"format": "np"}, {"ключ": "значение \"\\\n"}][seed % 4]
    if not tensors and metadata == {}:
        metadata = None  # of which the other one makes a file that it cannot read
    our_file, their_file = tmp_path / "ours", tmp_path / "theirs"
    ours.save_file(tensors, our_file, metadata)
    theirs.save_file(tensors, their_file, metadata)
    assert our_file.read_bytes() == their_file.read_bytes() == ours.save(tensors, metadata)
    expected = theirs.load_file(our_file)
    assert same(ours.load_file(their_file), expected)
    assert same(load_file(their_file), expected)
    assert same(ours.load(their_file.read_bytes()), expected)
    on_device = load_file(their_file, device="host:0")
    assert {name: content_of(each) for name, each in on_device.items()} == {name: each.tobytes() for name, each in expected.items()}
    with safe_open(our_file, "np") as file, reference.safe_open(our_file, "np") as other:
        assert file.keys() == other.keys() and set(file.offset_keys()) == set(other.offset_keys())
        assert file.metadata() == other.metadata() == metadata
        assert same(file.get_tensors(), expected)
        assert same({name: file.get_tensor(name) for name in expected}, expected)
        for name in expected:
            assert file.get_slice(name).get_shape() == other.get_slice(name).get_shape()
            assert file.get_slice(name).get_dtype() == other.get_slice(name).get_dtype()
            assert file.get_slice(name).nbytes == expected[name].nbytes
        assert same(file.get_tensors(list(expected)[1:3]), {name: expected[name] for name in list(expected)[1:3]})


def test_every_type_of_ml_dtypes_is_there(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    kinds = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", *PLAIN]
    tensors = {f"of {kind}": array_of(random.Random(kind), "u1", (6, 16)).view(getattr(ml_dtypes, kind, kind)) for kind in kinds if kind != "bool"}
    path = tmp_path / "file"
    save_file(tensors, path)
    assert path.read_bytes() == theirs.save(tensors)
    found = load_file(path)
    assert same({name: found[name] for name in tensors}, tensors)


def test_a_type_that_numpy_has_not_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "file", {"plain": ("U8", [1], 1), "packed": ("F4", [4], 2), "odd": ("F6_E3M2", [4], 3)})
    for name, word in (("packed", "F4"), ("odd", "F6_E3M2")):
        with pytest.raises(SafetensorError, match=f'"{name}" has the type {word}, which NumPy does not support'):
            load_file(path, names=[name])
        with safe_open(path, "np") as file, pytest.raises(SafetensorError, match=f'"{name}" has the type {word}'):
            file.get_tensor(name)
    with pytest.raises(SafetensorError, match="which NumPy does not support"):
        load_file(path)
    assert load_file(path, names=["plain"])["plain"].shape == (1,)
    assert {name: each.nbytes for name, each in load_file(path, "host:0").items()} == {"plain": 1, "packed": 2, "odd": 3}
    code = "import sys; sys.modules['ml_dtypes'] = None; from penstock.safetensors import load_file; load_file(sys.argv[1])"
    path = write(tmp_path / "other", {"half": ("BF16", [2], 4)})
    told = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert '"half" has the type BF16, which NumPy does not support: pip install ml_dtypes' in told.stderr


def test_other_types_are_refused_before_a_file_is_made(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for array in (np.zeros(2, "c16"), np.array(["a"]), np.array([None]), np.zeros(2, "M8[s]"), np.zeros(2, [("a", "i4")]), np.zeros(1, "g")):
        with pytest.raises(SafetensorError, match='tensor "x": Unknown dtype'):
            ours.save_file({"x": array}, path)
        with pytest.raises(reference.SafetensorError, match="Unknown dtype"):
            theirs.save({"x": array})
    for tensors, words in (({1: np.zeros(1)}, "the names of tensors must be str, not int"), ({"x": 1.5}, '"x" must be a PyTorch tensor'), ([1], "tensors must be a mapping")):
        with pytest.raises(TypeError, match=words):
            save_file(tensors, path)  # type: ignore[arg-type]
    for metadata in ({"a": 1}, {1: "a"}, "text"):
        with pytest.raises(TypeError, match="metadata"):
            save_file({}, path, metadata)  # type: ignore[arg-type]
    with pytest.raises(SafetensorError, match="__metadata__"):
        save_file({"__metadata__": np.zeros(1)}, path)
    with pytest.raises(UnicodeEncodeError):
        save_file({"\ud800": np.zeros(1)}, path)
    assert list(tmp_path.iterdir()) == []


def test_arrays_of_any_order_of_bytes_and_axes_are_saved_by_their_values(tmp_path: Path) -> None:
    plain = np.arange(24, dtype="f4").reshape(2, 3, 4)
    tensors = {"big": plain.astype(">f4"), "fortran": np.asfortranarray(plain), "turned": plain.T, "steps": plain[:, ::2, ::-1]}
    save_file(tensors, tmp_path / "file")
    found = load_file(tmp_path / "file")
    assert all((found[name] == array).all() for name, array in tensors.items())
    assert same(ours.load(ours.save({"big": tensors["big"]})), {"big": plain})


def test_ten_thousand_tensors(tmp_path: Path) -> None:
    numbers = random.Random(1)
    tensors = {f"model.layers.{i}.重み": array_of(numbers, "float32" if i % 2 else "uint8", (i % 5, 3)) for i in range(10_000)}
    ours.save_file(tensors, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == theirs.save(tensors)
    assert same(load_file(tmp_path / "file"), theirs.load_file(tmp_path / "file"))


def test_arrays_lie_apart_at_aligned_places_and_can_be_written(tmp_path: Path) -> None:
    save_file({str(i): np.full(i, 7, "u1") for i in range(1, 300, 7)}, tmp_path / "file")
    arrays = load_file(tmp_path / "file")
    for name, array in arrays.items():
        assert array.ctypes.data % 64 == 0 and array.flags.writeable and array.flags.c_contiguous
        array[:] = 255
    assert {name: array.size for name, array in arrays.items()} == {str(i): i for i in range(1, 300, 7)}
    assert all((array == 255).all() for array in arrays.values())


def test_the_host_device_holds_the_bytes(tmp_path: Path) -> None:
    buffer = penstock.device("host:0").empty(1000)
    buffer.copy_from(bytes(range(250)) * 4)
    save_file({"b": buffer, "a": np.arange(3.0), "none": np.zeros((0, 2), "f4")}, tmp_path / "file")
    assert same(load_file(tmp_path / "file"), {"a": np.arange(3.0), "none": np.zeros((0, 2), "f4"), "b": np.frombuffer(buffer.to_host(), "u1")})
    again = load_file(tmp_path / "file", "host:0")
    assert again["b"].device == "host:0" and again["b"].to_host() == buffer.to_host() and again["none"] == b""
    with safe_open(tmp_path / "file", None, "host:0") as file:
        part = file.get_slice("b")
        assert part.get_shape() == [1000] and part[10:20].to_host() == bytes(range(10, 20)) and part[5::100].to_host() == buffer.to_host()[5::100]
        with pytest.raises(SafetensorError, match=r'"b": reading \[1, 2\] of type U8 requires a library'):
            part[[1, 2]]


def test_loading_takes_what_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_file({"a": np.arange(3), "b": np.arange(4)}, path)
    assert list(load_file(path, names=["b"])) == ["b"] and load_file(str(path), names=[]) == {}
    with pytest.raises(SafetensorError, match='does not contain tensor "c", "d"'):
        load_file(path, names=["d", "a", "c"])
    with pytest.raises(TypeError, match="names must be an iterable of str, not str"):
        load_file(path, names="a")
    with pytest.raises(ValueError, match="names must be str, not int"):
        load_file(path, names=[1])  # type: ignore[list-item]
    for filename in (b"bytes", 3, [b"bytes"], None):
        with pytest.raises(TypeError, match="a path must be a str"):
            load_file(filename)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="missing"):
        load_file(tmp_path / "missing")
    for framework, device, words in (("tf", "cpu", "framework tf is invalid"), ("np", "cuda:0", "Device cuda:0 is not supported for framework numpy")):
        for call in (lambda: load_file(path, device, framework), lambda: safe_open(path, framework, device)):
            with pytest.raises(SafetensorError, match=words):
                call()
    with pytest.raises(penstock.NotFound):
        load_file(path, device="host:9")
    for call in (lambda: ours.load_file(path, backend="fast"), lambda: safe_open(path, "np", backend="fast")):
        with pytest.raises(SafetensorError, match="backend fast is invalid"):
            call()
    assert ours.load_file(path, backend="pread").keys() == safe_open(path, "np", backend="pread").get_tensors().keys()
    with pytest.raises(TypeError, match="filename must be a str"):
        safe_open(b"file", "np")  # type: ignore[arg-type]


def test_an_open_file_ends_and_its_slices_go_on(tmp_path: Path) -> None:
    save_file({"a": np.arange(6).reshape(2, 3)}, tmp_path / "file")
    with safe_open(tmp_path / "file", "np") as file:
        part = file.get_slice("a")
        for call in (file.get_tensor, file.get_slice):
            with pytest.raises(SafetensorError, match="File does not contain tensor b"):
                call("b")
    for closed in (file.keys, file.offset_keys, file.metadata, file.get_tensors, lambda: file.get_tensor("a"), lambda: file.get_slice("a")):
        with pytest.raises(SafetensorError, match="File is closed") as caught:
            closed()
        assert caught.value.code == "closed"
    assert part[1, 1:].tolist() == [4, 5]


def test_neither_numpy_nor_torch_is_imported_unasked() -> None:
    code = "import sys, penstock.safetensors; print(sorted({'numpy', 'torch', 'cupy', 'safetensors'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    code = "import sys, penstock.safetensors.numpy; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


# --- parts


def random_index(numbers: random.Random, shape: tuple[int, ...]) -> Any:
    def one(length: int) -> Any:
        kind = numbers.random()
        if kind < 0.3 and length:
            return numbers.randint(-length, length - 1)
        bounds = [numbers.choice([None, numbers.randint(-length - 2, length + 2)]) for _ in range(2)]
        return slice(*bounds, numbers.choice([None, 1, 1, 2, 3]))

    items = [one(length) for length in shape[: numbers.randint(0, len(shape))]]
    if numbers.random() < 0.3:
        place = numbers.randint(0, len(items))
        items[place:] = [Ellipsis, *[one(length) for length in shape[len(shape) - numbers.randint(0, len(shape) - place) :]]]
    return items[0] if len(items) == 1 and numbers.random() < 0.5 else tuple(items)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_slice_is_that_of_the_array(tmp_path: Path, seed: int) -> None:
    numbers = random.Random(seed)
    shape = tuple(numbers.choice([1, 2, 5, 40, 0, 130]) for _ in range(numbers.randint(0, 3)))
    array = array_of(numbers, None, shape)
    save_file({"before": np.zeros(3, "f8"), "x": array, "zz": np.ones(5, "u1")}, tmp_path / "file")
    with safe_open(tmp_path / "file", "np") as file, reference.safe_open(tmp_path / "file", "np") as other:
        part, expected = file.get_slice("x"), other.get_slice("x")
        for _ in range(25):
            index = random_index(numbers, shape)
            found = part[index]
            assert isinstance(found, np.ndarray) and (found.dtype, found.shape) == (array.dtype, array[index].shape), index
            assert found.tobytes() == array[index].tobytes(), index
            if found.size == 0:
                continue  # of which the other one fails in many ways
            try:
                wanted = expected[index]
            except (reference.SafetensorError, OverflowError):
                continue  # it refuses some slices: with negative bounds far out, with beginnings past the end
            assert type(found) is type(wanted) and found.shape == wanted.shape and found.tobytes() == wanted.tobytes(), index


OTHER = [[0, 2], [True, False, True, False], None, np.array([1, 0]), slice(None, None, -1), (slice(None), [5, 0]), True, (1, None), [], np.int64(2)]


@pytest.mark.parametrize("index", OTHER, ids=str)
def test_other_indexes_are_numpys(tmp_path: Path, index: Any) -> None:
    array = np.arange(24.0).reshape(4, 6)
    save_file({"x": array}, tmp_path / "file")
    with safe_open(tmp_path / "file", "np") as file:
        assert (file.get_slice("x")[index] == array[index]).all() and file.get_slice("x")[index].shape == array[index].shape


@pytest.mark.parametrize("index", [4, -5, (0, 6), (1, 2, 3), (slice(None), slice(None), slice(None)), "a", 1.5, (..., ...)], ids=str)
def test_indexes_that_are_none_are_index_errors(tmp_path: Path, index: Any) -> None:
    save_file({"x": np.zeros((4, 6))}, tmp_path / "file")
    with safe_open(tmp_path / "file", "np") as file, pytest.raises(IndexError):
        file.get_slice("x")[index]


def test_a_part_reads_its_bytes_alone(tmp_path: Path) -> None:
    """Those that it needs are in the file, and the others are a hole at whose end the file is cut."""
    rows = np.arange(4 * 100_000, dtype="f4").reshape(4, 100_000)
    save_file({"x": rows}, tmp_path / "file")
    with safe_open(tmp_path / "file", "np") as file:
        os.truncate(tmp_path / "file", (tmp_path / "file").stat().st_size - 300_000)  # within the last row
        part = file.get_slice("x")
        assert (part[:3] == rows[:3]).all() and (part[3, :20_000] == rows[3, :20_000]).all()
        assert (part[:, 1000:9000] == rows[:, 1000:9000]).all() and (part[1::2, 7:9] == rows[1::2, 7:9]).all()
        with pytest.raises(penstock.ShortRead, match='before the end of "x"'):
            part[3]


def test_parts_are_planned_in_as_few_runs_as_there_are() -> None:
    def plan(shape: tuple[int, ...], item: int, index: Any, exact: bool = False) -> Any:
        picks = picks_of(index, shape)
        assert picks is not None
        return part_of(shape, item, picks, exact)

    assert plan((8, 1000), 4, np.s_[2:6]) == ((4, 1000), [8000], 16_000, None)
    assert plan((8, 1000), 4, np.s_[:, 250:500]) == ((8, 250), [1000 + i * 4000 for i in range(8)], 1000, None)
    assert plan((8, 1000), 4, np.s_[1::4]) == ((5, 1000), [4000], 20_000, (slice(None, None, 4), slice(None)))
    assert plan((8, 2000), 4, np.s_[1::4]) == ((2, 2000), [8000, 40_000], 8000, None)
    # Single items, far too many of them: whole rows are read, of which the part is taken then.
    assert plan((10_000, 64), 4, np.s_[:, 3]) == ((10_000, 64), [0], 2_560_000, (slice(None), 3))
    assert plan((10_000, 64), 4, np.s_[:, 3:60:2]).cut == (slice(None), slice(3, 60, 2))
    few = plan((100, 64), 4, np.s_[:, 3])
    assert few.cut is None and len(few.starts) == 100 and few.run_bytes == 4
    exact = plan((10_000, 64), 4, np.s_[:, 3], exact=True)
    assert exact.cut is None and len(exact.starts) == 10_000 and exact.run_bytes == 4 and exact.shape == (10_000,)
    assert plan((10_000, 64), 4, np.s_[5:5, 3]) == ((0,), [], 0, None)


def test_for_memory_of_the_host_rows_are_read_where_that_is_little_more() -> None:
    def plan(shape: tuple[int, ...], index: Any, **options: bool) -> Any:
        picks = picks_of(index, shape)
        assert picks is not None
        return part_of(shape, 4, picks, on_host=True, **options)

    row = 4 * 2048
    assert plan((2048, 2048), np.s_[:, :1024]) == ((2048, 2048), [0], 2048 * row, (slice(None), slice(0, 1024, 1)))
    assert plan((2048, 2048), np.s_[10:26, 10:26]) == ((16, 2048), [10 * row], 16 * row, (slice(None), slice(10, 26, 1)))
    for index in (np.s_[:, :8], np.s_[3, :8], np.s_[3:5]):  # far more than is wanted, or one run
        assert plan((2048, 2048), index).cut is None
    assert plan((2048, 2048), np.s_[:, :1024], exact=True).cut is None
    assert plan((8, 1 << 20), np.s_[:, :4096]).cut is None


def test_runs_make_the_part_wherever_it_is_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    """With bounds so small that every kind of widening comes about."""
    from penstock._tensors import slices as _slices

    for name, value in (("_short_bytes", 40), ("_many_runs", 3), ("_short_row_bytes", 30)):
        monkeypatch.setattr(_slices, name, value)
    numbers = random.Random(5)
    widened = 0
    for _ in range(50 * ROUNDS):
        shape = tuple(numbers.choice([0, 1, 1, 2, 3, 5, 9]) for _ in range(numbers.randint(0, 4)))
        array = array_of(numbers, numbers.choice(["u1", "u2", "u4", "u8"]), shape)
        index = random_index(numbers, shape)
        picks = picks_of(index, shape)
        assert picks is not None
        part = part_of(shape, array.itemsize, picks, exact := numbers.random() < 0.3, numbers.random() < 0.5)
        content = array.tobytes()
        runs = b"".join(content[start : start + part.run_bytes] for start in part.starts)
        found = np.frombuffer(runs, array.dtype).reshape(part.shape)
        if part.cut is not None:
            assert not exact
            widened += 1
            found = found[part.cut]
        assert part.starts == sorted(part.starts) and found.shape == array[index].shape and (found == array[index]).all(), index
    assert widened > 10


def test_ranks_get_their_parts(tmp_path: Path) -> None:
    weight, bias = np.arange(96, dtype="f4").reshape(8, 12), np.arange(8, dtype="f2")
    save_file({"weight": weight, "bias": bias}, tmp_path / "file")
    for device in (None, "host:0"):
        for rank in range(4):
            found = load_file(tmp_path / "file", device, slices={"weight": (1, rank, 4), "bias": (-1, rank, 4)})
            parts = {"weight": weight[:, rank * 3 : rank * 3 + 3], "bias": bias[rank * 2 : rank * 2 + 2]}
            for name, part in parts.items():
                assert (found[name].tobytes() if device is None else found[name].to_host()) == part.tobytes()
    by_call = load_file(tmp_path / "file", slices=lambda name, shape: np.s_[2:, : shape[1] // 2] if name == "weight" else None)
    assert (by_call["weight"] == weight[2:, :6]).all() and (by_call["bias"] == bias).all()
    for slices, words in (
        ({"weight": (0, 0, 3)}, "the 8 rows of dimension 0 cannot be divided evenly among 3 ranks"),
        ({"weight": (2, 0, 2)}, "there is no dimension 2"),
        ({"weight": (0, 2, 2)}, "rank is 2, but world is 2"),
        ({"weight": (0, 0, 0)}, "rank is 0, but world is 0"),
        ({"weight": "first"}, "is not .dim, rank, world"),
        ({"weight": np.s_[::-1]}, "is not .dim, rank, world"),
        ({"bias": (slice(None), slice(None))}, "too many indices"),
    ):
        with pytest.raises(ValueError, match=f'slices for tensor "{next(iter(slices))}" of shape .*{words}'):
            load_file(tmp_path / "file", slices=slices)
    with pytest.raises(SafetensorError, match='does not contain tensor "other"'):
        load_file(tmp_path / "file", slices={"other": (0, 0, 2)})
    with pytest.raises(TypeError, match="slices must be a mapping or a callable"):
        load_file(tmp_path / "file", slices=[(0, 0, 2)])  # type: ignore[arg-type]


def test_a_part_in_more_runs_than_can_be_read_is_an_error_that_names_its_tensor(tmp_path: Path) -> None:
    header = _native.make_safetensors(["x"], ["U8"], [(1 << 12, 1 << 14)])[0]
    (tmp_path / "file").write_bytes(header)
    os.truncate(tmp_path / "file", len(header) + (1 << 26))
    with pytest.raises(penstock.InvalidArgument, match='slices for tensor "x" of shape .*: the part has 33554432 runs of 1 bytes in the file'):
        load_file(tmp_path / "file", "host:0", slices={"x": np.s_[:, ::2]})


@pytest.mark.parametrize("device", [None, "host:0"])
def test_many_short_pieces_come_right(tmp_path: Path, device: str | None) -> None:
    table = np.arange(20_000 * 24, dtype="u4").reshape(20_000, 24)
    save_file({"a": np.ones(3, "u1"), "table": table, "z": np.ones(3, "u1")}, tmp_path / "file")
    found = load_file(tmp_path / "file", device, slices={"table": np.s_[::2, 5:17:3]})["table"]
    content = found.tobytes() if device is None else found.to_host()
    assert content == table[::2, 5:17:3].tobytes()
    if device is None:
        assert found.flags.c_contiguous and found.base is None  # not the rows that were read for it


# --- several files


def shards(folder: Path, count: int = 3) -> dict[str, Any]:
    """A model of so many files and its index; what it holds."""
    folder.mkdir(exist_ok=True)
    everything: dict[str, Any] = {}
    weight_map: dict[str, str] = {}
    for i in range(count):
        name = f"model-{i + 1:05}-of-{count:05}.safetensors"
        tensors = {f"layers.{i}.{part}": np.full((3, i + 2), i * 10 + j, "f4") for j, part in enumerate(("weight", "bias"))}
        save_file(tensors, folder / name)
        everything |= tensors
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return everything


def test_an_index_is_one_call(tmp_path: Path) -> None:
    expected = shards(tmp_path / "model")
    files = sorted((tmp_path / "model").glob("*.safetensors"))
    for filename in (tmp_path / "model", tmp_path / "model" / "model.safetensors.index.json", files, list(map(str, files))):
        found = load_file(filename)
        assert found.keys() == expected.keys() and all((found[name] == expected[name]).all() for name in expected)
    assert list(load_file(tmp_path / "model", names=["layers.2.bias", "layers.0.bias"])) == ["layers.0.bias", "layers.2.bias"]
    (tmp_path / "single").mkdir()
    save_file({"a": np.ones(2)}, tmp_path / "single" / "model.safetensors")
    assert list(load_file([tmp_path / "single", tmp_path / "model"])) == ["a", *load_file(files)]
    assert load_file([]) == {}


def into_zeros(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"x": np.zeros(2), "z": np.zeros(2)}
    load_into(folder, found)
    return found


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "load_file": load_file,
    "names": lambda folder: load_file(folder, names=["x", "z"]),
    "list": lambda folder: load_file([folder]),
    "stream": lambda folder: dict(stream(folder)),
    "load_sharded": lambda folder: load_sharded(folder, ["host"])[0],
    "load_into": into_zeros,
}


@pytest.mark.parametrize("reader", READERS)
def test_an_index_decides_which_file_a_tensor_is_read_from(tmp_path: Path, reader: str) -> None:
    save_file({"old": np.zeros(1), "x": np.ones(2), "z": np.full(2, 9.0)}, tmp_path / "a.safetensors")
    save_file({"z": np.full(2, 3.0)}, tmp_path / "b.safetensors")
    for first, second, z in (("a", "b", 3), ("a", "a", 9)):
        weights = {"x": f"{first}.safetensors", "z": f"{second}.safetensors"}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
        found = READERS[reader](tmp_path)
        assert {name: value.tolist() for name, value in found.items()} == {"x": [1, 1], "z": [z, z]}


def test_what_an_index_lacks_is_named(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shards(model)
    index = model / "model.safetensors.index.json"
    told = json.loads(index.read_text())
    told["weight_map"] |= {"layers.9.weight": "model-00002-of-00003.safetensors", "layers.8.weight": "model-00002-of-00003.safetensors"}
    index.write_text(json.dumps(told))
    with pytest.raises(SafetensorError, match=r'model-00002-of-00003.safetensors lacks "layers.9.weight", "layers.8.weight"'):
        load_file(model)
    (model / "model-00001-of-00003.safetensors").unlink()
    (model / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match='missing shards: ".*model-00001-of-00003.safetensors", ".*model-00003-of-00003.safetensors"'):
        load_file(model)
    for text, words in (
        ("{", "the index is not valid JSON"),
        ("[]", 'has no "weight_map"'),
        ('{"weight_map": {"a": 1}}', 'has no "weight_map"'),
        ('{"weight_map": {"a": "../file"}}', 'assigns tensor "a" to "../file", which is not a file in the index.s folder'),
        ('{"weight_map": {"a": "/etc/passwd"}}', "not a file in the index's folder"),
        ('{"weight_map": {"a": ""}}', "not a file in the index's folder"),
    ):
        index.write_text(text)
        with pytest.raises(SafetensorError, match=words):
            load_file(index)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="contains neither model.safetensors.index.json nor model.safetensors"):
        load_file(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="No such file"):
        load_file(tmp_path / "none.index.json")


def test_a_tensor_in_two_files_is_an_error(tmp_path: Path) -> None:
    save_file({"a": np.ones(1), "b": np.ones(1)}, tmp_path / "one")
    save_file({"b": np.ones(1), "c": np.ones(1)}, tmp_path / "two")
    with pytest.raises(SafetensorError, match='"b" in .*one and .*two'):
        load_file([tmp_path / "one", tmp_path / "two"])
    assert list(load_file([tmp_path / "one", tmp_path / "one"])) == ["a", "b"]  # the same file is one file


def test_a_device_map_sends_tensors_where_it_says(tmp_path: Path) -> None:
    names = ["head.weight", "layers.1.weight", "layers.10.weight", "layers.2.mlp.up", "layers.2.norm"]
    save_file({name: np.full(4, i, "u1") for i, name in enumerate(names)}, tmp_path / "file")

    def places(**options: Any) -> dict[str, str]:
        found = load_file(tmp_path / "file", **options)
        for i, name in enumerate(names):
            assert (found[name].tobytes() if isinstance(found[name], np.ndarray) else found[name].to_host()) == bytes([i] * 4)
        return {name: "numpy" if isinstance(array, np.ndarray) else array.device for name, array in found.items()}

    assert places(device_map={"": "cpu", "layers.1": "host:0", "layers.2": "host:0", "layers.2.mlp.up": "cpu"}) == {
        "head.weight": "numpy",
        "layers.1.weight": "host:0",
        "layers.10.weight": "numpy",  # "layers.1" is no module that it is in
        "layers.2.mlp.up": "numpy",
        "layers.2.norm": "host:0",
    }
    assert set(places(device_map={"layers": "host:0", "head": "host"}).values()) == {"numpy", "host:0"}
    assert set(places(device="host:0", device_map={"head.weight": "cpu"}).values()) == {"numpy", "host:0"}
    by_call = places(device_map=lambda name: "host:0" if "layers" in name else "cpu")
    assert by_call["head.weight"] == "numpy" and by_call["layers.2.norm"] == "host:0"
    with pytest.raises(ValueError, match='device_map has no device for tensor "head.weight"'):
        load_file(tmp_path / "file", device_map={"layers": "cpu"})
    with pytest.raises(penstock.NotFound):
        load_file(tmp_path / "file", device_map={"": "cpu", "nothing": "host:9"})
    for wrong in ("auto", {1: "cpu"}):
        with pytest.raises(TypeError, match="device_map"):
            load_file(tmp_path / "file", device_map=wrong)  # type: ignore[arg-type]


# --- into arrays that are there


def test_arrays_are_filled_where_they_are(tmp_path: Path) -> None:
    tensors = {"a": np.arange(6, dtype="f4").reshape(2, 3), "b": np.arange(5), "empty": np.zeros((0, 3)), "c": np.array(7.0)}
    save_file(tensors, tmp_path / "file")
    target: dict[str, Any] = {name: np.zeros_like(array) for name, array in tensors.items()}
    turned = np.zeros((3, 2), "f4")
    target["a"] = turned.T  # not contiguous
    before = dict(target)
    result = load_into(tmp_path / "file", target)
    assert result == ([], []) and (result.missing_keys, result.unexpected_keys) == ([], [])
    assert all(target[name] is before[name] and (target[name] == tensors[name]).all() for name in tensors)
    assert (turned == tensors["a"].T).all()
    buffer = penstock.device("host:0").empty(24)
    assert sorted(load_into(tmp_path / "file", {"a": buffer}, strict=False).unexpected_keys) == ["b", "c", "empty"]
    assert buffer.to_host() == tensors["a"].tobytes()


def test_parts_and_other_types_go_into_arrays_too(tmp_path: Path) -> None:
    weight = np.arange(96, dtype="f4").reshape(8, 12)
    save_file({"w": weight, "n": np.arange(10)}, tmp_path / "file")
    target = {"w": np.zeros((8, 3), "f4"), "n": np.zeros(10, "f2")}
    load_into(tmp_path / "file", target, convert=True, slices={"w": (1, 2, 4)})
    assert (target["w"] == weight[:, 6:9]).all() and (target["n"] == np.arange(10)).all()
    narrow = {"w": np.zeros((8, 6), "f8"), "n": np.zeros(4, "i8")}
    load_into(tmp_path / "file", narrow, convert=True, slices={"w": np.s_[:, ::2], "n": np.s_[1:5]})
    assert (narrow["w"] == weight[:, ::2]).all() and narrow["n"].tolist() == [1, 2, 3, 4]


def test_all_that_does_not_fit_is_told_before_anything_is_touched(tmp_path: Path) -> None:
    save_file({"a": np.ones(4, "f4"), "b": np.ones((2, 3), "f4"), "c": np.ones(3, "f2"), "d": np.ones(2), "f": np.ones(4, "u1")}, tmp_path / "file")
    fixed = np.zeros(2)
    fixed.flags.writeable = False
    target: dict[str, Any] = {"a": np.zeros(4, "f4"), "b": np.zeros((3, 2), "f4"), "c": np.zeros(3, "f4"), "d": fixed, "e": np.zeros(1)}
    target["f"] = penstock.device("host:0").empty(5)
    with pytest.raises(safetensors.Mismatch) as caught:
        load_into(tmp_path / "file", {**target, "g": np.zeros(1)})
    told = str(caught.value)
    for words in (
        '"b" has the shape [2, 3] in the file but [3, 2] in memory',
        '"c" has the type F16 in the file but float32 in memory',
        '"d" is read-only in memory',
        '"f" has 4 bytes in the file but 5 in memory',
        'missing from the file: "e", "g"',
    ):
        assert words in told
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, SafetensorError)
    assert not target["a"].any()
    with pytest.raises(safetensors.Mismatch, match='unexpected in the file: .*"a"'):
        load_into(tmp_path / "file", {"c": np.zeros(3, "f2")})
    for wrong in ([1], None, "file"):
        with pytest.raises(TypeError, match="target must be a torch.nn.Module or a mapping"):
            load_into(tmp_path / "file", wrong)
    with pytest.raises(TypeError, match='target "a" must be a PyTorch tensor'):
        load_into(tmp_path / "file", {"a": 1.5}, strict=False)


def test_memory_of_two_names_is_filled_as_one_after_the_other_would(tmp_path: Path) -> None:
    save_file({"a": np.full(8, 1, "u1"), "b": np.full(8, 2, "u1"), "c": np.full(6, 3, "u1")}, tmp_path / "file")
    memory = np.zeros(12, "u1")
    load_into(tmp_path / "file", {"a": memory[:8], "b": memory[:8], "c": memory[6:]})
    assert memory.tolist() == [2] * 6 + [3] * 6
    load_into(tmp_path / "file", {"c": memory[6:], "b": memory[:8], "a": memory[:8]})
    assert memory.tolist() == [1] * 8 + [3] * 4
    assert load_into(tmp_path / "file", {"a": memory[:8], "other": memory[:8]}, strict=False).missing_keys == []


def write(path: Path, rows: dict[str, tuple[str, list[int], int]], content: bytes | None = None) -> Path:
    """A file of these types, shapes and numbers of bytes, one after the other."""
    header: dict[str, Any] = {}
    place = 0
    for name, (word, shape, nbytes) in rows.items():
        header[name] = {"dtype": word, "shape": shape, "data_offsets": [place, place + nbytes]}
        place += nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + (bytes(place) if content is None else content))
    return path


# --- names


@pytest.mark.parametrize("module", ["", ".numpy", ".torch"])
def test_every_public_name_of_the_safetensors_library_is_there(module: str) -> None:
    if module == ".torch":
        pytest.importorskip("torch")
    theirs, ours = (importlib.import_module(f"{library}safetensors{module}") for library in ("", "penstock."))
    names = {name for name, value in vars(theirs).items() if callable(value) and not name.startswith("_")}
    names -= {name for name in names if getattr(vars(theirs)[name], "__module__", "") in ("typing", "collections")}
    assert names <= set(dir(ours)), names - set(dir(ours))
    for name in names:
        if inspect.isfunction(vars(theirs)[name]):
            wanted = list(inspect.signature(vars(theirs)[name]).parameters)
            assert list(inspect.signature(getattr(ours, name)).parameters)[: len(wanted)] == wanted, name


def test_raw_tensors_are_as_the_library_has_them(tmp_path: Path) -> None:
    array = np.arange(6, dtype="f4").reshape(2, 3)

    def made(library: Any) -> dict[str, Any]:
        spec = {"dtype": "float32", "shape": [2, 3], "data_ptr": array.ctypes.data, "data_len": 24}
        half = spec | {"dtype": "float4_e2m1fn_x2", "data_len": 6}
        return {"b": library.TensorSpec(**spec), "a": library.TensorSpec(**half), "c": library.TensorSpec(**spec | {"shape": [0], "data_len": 0})}

    expected = reference.serialize(made(reference), {"x": "y"})
    assert safetensors.serialize(made(safetensors), {"x": "y"}) == expected
    safetensors.serialize_file(made(safetensors), tmp_path / "file", {"x": "y"})
    assert (tmp_path / "file").read_bytes() == expected
    assert dict(safetensors.deserialize(expected)) == dict(reference.deserialize(expected))
    assert repr(made(safetensors)["a"]) == repr(made(reference)["a"])
    with pytest.raises(SafetensorError, match='Unknown dtype "F32"'):
        safetensors.TensorSpec(dtype="F32", shape=[1], data_ptr=0, data_len=4)
    with pytest.raises(SafetensorError):
        safetensors.serialize({"x": safetensors.TensorSpec(dtype="float32", shape=[7], data_ptr=array.ctypes.data, data_len=24)})
    with pytest.raises(SafetensorError):
        safetensors.deserialize(expected[:-1])
    with pytest.raises(TypeError, match="must be a TensorSpec"):
        safetensors.serialize({"x": array})  # type: ignore[dict-item]


def test_a_name_that_is_nearly_right_is_told(tmp_path: Path) -> None:
    ours.save_file({"embed.weight": np.ones(3), "norm.weight": np.ones(3)}, tmp_path / "file")
    with safe_open(tmp_path / "file", "np") as file:
        for call in (
            lambda: file.get_tensor("embed.wieght"),
            lambda: file.get_slice("embed.wieght"),
            lambda: file.get_tensors(["embed.wieght"]),
            lambda: load_file(tmp_path / "file", names=["embed.wieght"]),
            lambda: load_file(tmp_path / "file", slices={"embed.wieght": (0, 0, 1)}),
        ):
            with pytest.raises(SafetensorError, match=r'does not contain tensor "?embed.wieght"?: did you mean embed.weight\?'):
                call()
        with pytest.raises(SafetensorError, match="does not contain tensor lm_head$"):
            file.get_tensor("lm_head")
