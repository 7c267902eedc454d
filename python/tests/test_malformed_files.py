"""Files with random damage, of every kind that Penstock parses: what comes out is the content or one of Penstock's errors, and nothing else."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import gguf
from penstock.safetensors import load_file, safe_open, stream

from . import gguf_files

pytestmark = pytest.mark.usefixtures("torch_not_imported")

ROUNDS = 120
RECORD = np.zeros(3, [("a", "i4"), ("b", "M8[s]"), ("c", [("d", "f8", (2,))])])
ARRAYS: dict[str, Any] = {"x": np.arange(6.0).reshape(2, 3), "y": np.arange(3, dtype="i2"), "z": RECORD}
# Bytes that parsers tend to trip over.
WORDS = [b"\0", b"\xff" * 4, b"\xff" * 8, b"\0" * 8, b"9" * 20, b"-1", b"1e999", b"'", b'"', b"(", b"]", b"{", b",", b"\xed\xa0\x80", b"PK\1\2", b"None", b"3L", b"|O", b"../"]


def content_of(save: Callable[[Any], object]) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()


def safetensors_bytes() -> bytes:
    header = json.dumps({"__metadata__": {"k": "v"}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def index_bytes() -> bytes:
    return json.dumps({"metadata": {"total_size": 8}, "weight_map": {"a": "m.safetensors"}}).encode()


def gguf_bytes() -> bytes:
    pairs = [gguf_files.pair("general.name", "string", "small"), gguf_files.pair("list", "array", gguf_files.array("i32", [1, 2]))]
    return gguf_files.gguf(pairs, [gguf_files.Tensor("a", "F32", (2, 4), bytes(32)), gguf_files.Tensor("b", "Q8_0", (32,), bytes(34))])


def load_gguf(path: Path) -> None:
    with gguf.open(path) as file:
        assert isinstance(file.metadata, dict) and isinstance(file.load(), dict)


def load_slices(path: Path) -> None:
    with safe_open(path, framework="np") as file:
        for name in file.keys():
            file.get_slice(name)[...]
        file.metadata()


# What a whole file has, its ending, and what loads it.
KINDS: dict[str, tuple[Callable[[], bytes], str, Callable[[Path], object]]] = {
    "npy": (lambda: content_of(lambda file: np.save(file, ARRAYS["x"])), ".npy", penstock.load),
    "npy of records": (lambda: content_of(lambda file: np.save(file, RECORD)), ".npy", penstock.load),
    "npz": (lambda: content_of(lambda file: np.savez(file, **ARRAYS)), ".npz", lambda path: list(penstock.load(path).items())),
    "npz, compressed": (lambda: content_of(lambda file: np.savez_compressed(file, **ARRAYS)), ".npz", lambda path: list(penstock.load(path).items())),
    "gguf": (gguf_bytes, ".gguf", load_gguf),
    "safetensors": (safetensors_bytes, ".safetensors", lambda path: load_file(path, framework="np")),
    "safetensors, slices": (safetensors_bytes, ".safetensors", load_slices),
    "safetensors, streamed": (safetensors_bytes, ".safetensors", lambda path: list(stream(path, framework="np"))),
    "index": (index_bytes, ".json", lambda path: load_file(path, framework="np")),
}


def damaged(content: bytes, numbers: random.Random) -> bytes:
    made = bytearray(content)
    for _ in range(numbers.choice((1, 1, 2, 4))):
        if not made:
            break
        at = numbers.choice((numbers.randrange(len(made)), numbers.randrange(min(len(made), 300)), len(made) - 1 - numbers.randrange(min(len(made), 400))))
        word = numbers.choice(WORDS)
        way = numbers.randrange(6)
        if way == 0:
            made[at] = numbers.randrange(256)
        elif way == 1:
            made[at] ^= 1 << numbers.randrange(8)
        elif way == 2:
            del made[at : at + numbers.randrange(1, 9)]
        elif way == 3:
            made[at:at] = word
        elif way == 4:
            made[at : at + len(word)] = word
        else:
            del made[at:]
    return bytes(made)


def try_all(tmp_path: Path, content: bytes, ending: str, load: Callable[[Path], object], allowed: tuple[type[BaseException], ...]) -> None:
    path = tmp_path / f"f{ending}"
    numbers = random.Random(20)
    for number in range(ROUNDS):
        path.write_bytes(damaged(content, numbers))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load(path)
        except allowed:
            pass
        except Exception as problem:
            raise AssertionError(f"round {number}: {type(problem).__name__}: {problem}") from problem


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_one_of_penstocks_errors(tmp_path: Path, kind: str) -> None:
    content, ending, load = KINDS[kind]
    (tmp_path / "m.safetensors").write_bytes(safetensors_bytes())
    (tmp_path / f"f{ending}").write_bytes(content())
    load(tmp_path / f"f{ending}")
    try_all(tmp_path, content(), ending, load, (penstock.Error,))


@pytest.mark.parametrize("ending", [".npy", ".npz", ".NPY"])
def test_an_empty_file_is_no_array(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"f{ending}"
    path.write_bytes(b"")
    with pytest.raises(penstock.InvalidArgument, match="does not start like a"):
        penstock.load(path)
    assert penstock.load(path, dtype="u1").shape == (0,)


def test_a_member_without_a_name_is_loaded(tmp_path: Path) -> None:
    content = bytearray(content_of(lambda file: np.savez(file, x=np.arange(3))))
    entry = content.index(b"PK\1\2")
    content[entry + 28 : entry + 34] = struct.pack("<3H", 0, 0, 5)  # the name counts as a comment
    (tmp_path / "f.npz").write_bytes(content)
    assert penstock.load(tmp_path / "f.npz")[""].tolist() == [0, 1, 2]


@pytest.mark.parametrize("put", [b"r\xff\xff\xff\x7f", b"r\x00\x00\x00\x10"], ids=["2^31", "2^28"])
def test_a_pickle_that_gives_an_object_a_huge_number_takes_no_memory(tmp_path: Path, put: bytes) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import penstock.torch

    torch.save({"w": torch.arange(3)}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content[:-1] + put + b"." if name.endswith("data.pkl") else content)
    tracemalloc.start()
    try:
        assert penstock.torch.load(tmp_path / "m.pt")["w"].tolist() == [0, 1, 2]
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before PyTorch 1.6"])
def test_a_damaged_checkpoint_is_penstocks_error_or_one_that_pytorch_documents(tmp_path: Path, is_zip: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import penstock.torch

    state = {"w": torch.ones(2, 3), "nested": {"lr": 0.1, "v": [torch.zeros(2, dtype=torch.bfloat16)], "t": (1, "x")}}
    content = content_of(lambda file: torch.save(state, file, _use_new_zipfile_serialization=is_zip))
    allowed = (penstock.Error, pickle.UnpicklingError, RuntimeError, EOFError)
    try_all(tmp_path, content, ".pt", penstock.torch.load, allowed)


def test_errors_of_the_callers_own_code_come_out_as_they_are(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import penstock.torch

    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")

    def map_location(storage: Any, location: str) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        penstock.torch.load(tmp_path / "m.pt", map_location=map_location)
