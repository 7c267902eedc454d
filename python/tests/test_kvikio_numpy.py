"""penstock.kvikio.numpy: arrays by file name."""

from __future__ import annotations

import errno
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest

from penstock.kvikio import numpy as kvikio_numpy


class TaggedArray(np.ndarray[Any, Any]):
    """An array type of its own, as CuPy's is."""


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">f4", "f8", "c16"])
def test_arrays_come_back_as_numpy_wrote_them(tmp_path: pathlib.Path, dtype: str) -> None:
    array = np.arange(1000).astype(dtype)
    path = tmp_path / "array"
    kvikio_numpy.tofile(array, path)
    np.testing.assert_array_equal(np.fromfile(path, dtype), array)
    read = kvikio_numpy.fromfile(path, dtype)
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("count", [-1, 0, 1, 7, 100, 1000])
@pytest.mark.parametrize("offset", [0, 1, 8, 796, 800, 801, 5000])
def test_count_and_offset_are_numpys(tmp_path: pathlib.Path, count: int, offset: int) -> None:
    path = tmp_path / "array"
    np.arange(100, dtype="f8").tofile(path)
    content = path.read_bytes()[offset:]
    there = len(content) // 8 if count == -1 else min(count, len(content) // 8)
    expected = np.frombuffer(content[: there * 8], "f8")
    np.testing.assert_array_equal(kvikio_numpy.fromfile(path, "f8", count, offset=offset), expected)


def test_the_default_type_is_float(tmp_path: pathlib.Path) -> None:
    np.arange(10.0).tofile(tmp_path / "array")
    assert kvikio_numpy.fromfile(tmp_path / "array").dtype == np.float64


def test_file_objects_stand_for_their_names(tmp_path: pathlib.Path) -> None:
    array = np.arange(10)
    with open(tmp_path / "array", "wb") as target:
        assert isinstance(target, kvikio_numpy.FileLike)
        kvikio_numpy.tofile(array, target)
    with open(tmp_path / "array", "rb") as source:
        source.seek(16)
        np.testing.assert_array_equal(kvikio_numpy.fromfile(source, int), array)
    np.testing.assert_array_equal(kvikio_numpy.fromfile(str(tmp_path / "array"), int), array)


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_written_in_c_order(tmp_path: pathlib.Path, order: Any) -> None:
    array = np.asarray(np.arange(24).reshape(2, 3, 4), order=order)
    kvikio_numpy.tofile(array, tmp_path / "array")
    kvikio_numpy.tofile(array[:, ::2], tmp_path / "part")
    assert (tmp_path / "array").read_bytes() == array.tobytes("C")
    assert (tmp_path / "part").read_bytes() == array[:, ::2].tobytes("C")


def test_lists_and_empty_arrays_are_written(tmp_path: pathlib.Path) -> None:
    kvikio_numpy.tofile([1, 2, 3], tmp_path / "list")
    np.testing.assert_array_equal(kvikio_numpy.fromfile(tmp_path / "list", int), [1, 2, 3])
    kvikio_numpy.tofile(np.empty(0), tmp_path / "empty")
    assert kvikio_numpy.fromfile(tmp_path / "empty").shape == (0,)


def test_like_decides_the_type_of_the_array(tmp_path: pathlib.Path) -> None:
    np.arange(10).tofile(tmp_path / "array")
    like = np.empty(()).view(TaggedArray)
    read = kvikio_numpy.fromfile(tmp_path / "array", int, like=like)
    assert type(read) is TaggedArray
    np.testing.assert_array_equal(read, np.arange(10))


def test_numpys_own_fromfile_reads_through_the_wrapper(tmp_path: pathlib.Path) -> None:
    np.arange(10).tofile(tmp_path / "array")
    like = kvikio_numpy.LikeWrapper(np.empty(()).view(TaggedArray))
    read = np.fromfile(tmp_path / "array", dtype=int, count=4, offset=8, like=like)
    assert type(read) is TaggedArray
    np.testing.assert_array_equal(read, [1, 2, 3, 4])


def test_text_files_are_not_implemented(tmp_path: pathlib.Path) -> None:
    with pytest.raises(NotImplementedError, match="sep"):
        kvikio_numpy.fromfile(tmp_path / "array", sep=",")


def test_wrong_numbers_and_missing_files_are_errors(tmp_path: pathlib.Path) -> None:
    (tmp_path / "array").write_bytes(bytes(80))
    for count, offset in ((-1, -1), (-2, 0)):
        with pytest.raises(ValueError):
            kvikio_numpy.fromfile(tmp_path / "array", float, count, offset=offset)
    for kind in (RuntimeError, FileNotFoundError):
        with pytest.raises(kind, match="Unable to open file.*No such file or directory") as caught:
            kvikio_numpy.fromfile(tmp_path / "missing")
        assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(tmp_path / "missing"))
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.filename) == (str(caught.value), caught.value.filename)
    with pytest.raises(RuntimeError, match="Unable to open file") as caught_other:
        kvikio_numpy.fromfile(tmp_path)
    assert not isinstance(caught_other.value, FileNotFoundError)


def test_a_negative_count_is_refused_in_numpys_words(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(bytes(8))
    with pytest.raises(ValueError, match="negative dimensions are not allowed"):
        kvikio_numpy.fromfile(tmp_path / "file", count=-42)
    with pytest.raises(ValueError, match="offset must be 0 or more"):
        kvikio_numpy.fromfile(tmp_path / "file", offset=-1)
