"""penstock.save(): the twin of load(), as a table of endings and libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock

ARRAYS = {"weight": np.arange(12, dtype="f4").reshape(3, 4), "scalar": np.array(7, "i8"), "none": np.zeros((0, 3), "f2"), "T": np.arange(6).reshape(2, 3).T}
ENDINGS = [".safetensors", ".npz", ".pt", ".pth", ".ckpt", ".NPZ"]


def as_numpy(array: Any) -> Any:
    return array


def as_torch(array: Any) -> Any:
    return pytest.importorskip("torch").from_numpy(array.copy())


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("convert", [as_numpy, as_torch])
def test_what_is_saved_is_loaded(tmp_path: Path, ending: str, convert: Callable[[Any], Any]) -> None:
    if ending in (".pt", ".pth", ".ckpt"):
        pytest.importorskip("torch")
        convert = as_torch
    path = tmp_path / f"x{ending}"
    penstock.save(path, {name: convert(array) for name, array in ARRAYS.items()})
    found = penstock.load(path)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert np.array_equal(np.asarray(found[name]), array) and tuple(found[name].shape) == array.shape


@pytest.mark.parametrize("convert", [as_numpy, as_torch])
@pytest.mark.parametrize("name", ARRAYS)
def test_one_array_is_a_npy_file(tmp_path: Path, name: str, convert: Callable[[Any], Any]) -> None:
    penstock.save(tmp_path / "x.npy", convert(ARRAYS[name]))
    found = np.load(tmp_path / "x.npy")
    assert np.array_equal(found, ARRAYS[name]) and found.dtype == ARRAYS[name].dtype


def test_memory_of_a_device_is_saved_as_bytes(tmp_path: Path) -> None:
    buffer = penstock.device("host:0").empty(5)
    buffer.copy_from(b"hello")
    penstock.save(tmp_path / "x.npz", {"a": buffer})
    penstock.save(tmp_path / "x.npy", buffer)
    assert np.load(tmp_path / "x.npz")["a"].tobytes() == np.load(tmp_path / "x.npy").tobytes() == b"hello"


def test_numpy_itself_reads_the_archive(tmp_path: Path) -> None:
    penstock.save(tmp_path / "x.npz", {"file": ARRAYS["weight"], "a/b": [1, 2]})
    with np.load(tmp_path / "x.npz") as found:
        assert np.array_equal(found["file"], ARRAYS["weight"]) and found["a/b"].tolist() == [1, 2]


@pytest.mark.parametrize("name", ["x", "x.bin", "x.gguf", "x.npy.txt", ".npy/x"])
def test_an_unknown_ending_is_an_error_that_lists_the_known_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"must be one of \.safetensors, \.pt, \.pth, \.ckpt, \.npy, \.npz; to write plain bytes, use penstock.tofile"):
        penstock.save(tmp_path / name, ARRAYS)
    assert not any(tmp_path.iterdir())


def _bfloat16() -> Any:
    return pytest.importorskip("torch").ones(2).bfloat16()


# Ending, object, error and its words.
REFUSED: dict[str, tuple[str, Callable[[], Any], type[Exception], str]] = {
    "an array as a dict": (".safetensors", lambda: ARRAYS["T"], TypeError, "to save a .safetensors file, pass a dict of arrays by name, not ndarray"),
    "an array as an archive": (".npz", lambda: ARRAYS["T"], TypeError, "to save a .npz file, pass a dict of arrays by name, not ndarray"),
    "a dict as an array": (".npy", lambda: ARRAYS, TypeError, "a .npy file contains one array, not dict; save a dict of arrays to a .npz file"),
    "a number as a name": (".npz", lambda: {1: ARRAYS["T"]}, TypeError, "the names of arrays must be str, not int"),
    "an object": (".npz", lambda: {"a": object()}, TypeError, 'array "a" must be an array or a tensor, not object'),
    "an array of objects": (".npy", lambda: np.array([None]), penstock.InvalidArgument, "the array has the dtype object, which NumPy files cannot represent"),
    "bfloat16": (".npz", lambda: {"a": _bfloat16()}, penstock.InvalidArgument, 'array "a" has the dtype torch.bfloat16.*save it to a .safetensors or .pt file'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_saved_leaves_the_old_file(tmp_path: Path, case: str) -> None:
    ending, make, kind, words = REFUSED[case]
    (tmp_path / f"x{ending}").write_bytes(b"old")
    with pytest.raises(kind, match=words):
        penstock.save(tmp_path / f"x{ending}", make())
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [(f"x{ending}", b"old")]
