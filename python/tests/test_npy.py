"""load() of NumPy's own files (.npy, .npz): every dtype and order against numpy.load(), what is refused, and files that are damaged."""

from __future__ import annotations

import io
import logging
import os
import random
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock

pytestmark = pytest.mark.usefixtures("torch_not_imported")

GPUS = [device.name for device in penstock.devices() if device.name.startswith("cuda:")]
NO_GPU = pytest.mark.skipif(not GPUS, reason="no GPU that Penstock can use")

ARRAYS = {
    "plain": np.arange(24, dtype="<f4").reshape(2, 3, 4),
    "fortran": np.asfortranarray(np.arange(24, dtype="<i8").reshape(2, 3, 4)),
    "scalar": np.array(7, "<u2"),
    "none": np.zeros((0, 3), "<f8"),
    "bools": np.array([True, False]),
    "complex": np.array([1 + 2j], "<c16"),
    "half": np.ones((3, 1), "<f2"),
    "big_endian": np.arange(5, dtype=">i4"),
    "records": np.array([(1, (2.5, 3))], dtype=[("a", "<i4"), ("b", [("x", "<f8"), ("y", "u1", (1,))])]),
    "dates": np.array(["2026-11-25"], "M8[D]"),
    "text": np.array(["a", "bé"]),
}


def saved(tmp_path: Path, array: Any, name: str = "a.npy", version: Any = None) -> Path:
    with open(tmp_path / name, "wb") as file:
        np.lib.format.write_array(file, array, version=version)
    return tmp_path / name


def npy(header: bytes | str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    text = header if isinstance(header, bytes) else header.encode("latin1")
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", len(text)) + text + data


def same(found: Any, expected: Any) -> bool:
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes("A") == expected.tobytes("A")


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_that_of_numpy(tmp_path: Path, name: str, version: tuple[int, int]) -> None:
    path = saved(tmp_path, ARRAYS[name], version=version)
    found, expected = penstock.load(path), np.load(path)
    assert same(found, expected) and found.flags.writeable
    assert found.flags.f_contiguous == expected.flags.f_contiguous and found.flags.c_contiguous == expected.flags.c_contiguous


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=NO_GPU)])
def test_pytorch_has_the_same_values_or_refuses_the_dtype(tmp_path: Path, device: str) -> None:
    torch = pytest.importorskip("torch")
    if device != "cpu" and not torch.cuda.is_available():
        pytest.skip("this PyTorch has no GPU")
    for name, array in ARRAYS.items():
        path = saved(tmp_path, array)
        if name in ("big_endian", "records", "dates", "text"):
            with pytest.raises(penstock.InvalidArgument, match="a.npy: PyTorch does not support dtype"):
                penstock.load(path, device=torch.device(device))
            continue
        found = penstock.load(path, device=torch.device(device))
        assert found.device == torch.device(device) and found.shape == array.shape and np.array_equal(found.cpu().numpy(), array)


@NO_GPU
def test_cupy_has_the_same_values(tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    for name in ("plain", "fortran", "scalar", "none", "bools", "complex", "half"):
        found = penstock.load(saved(tmp_path, ARRAYS[name]), device="cuda:0")
        assert isinstance(found, cupy.ndarray) and np.array_equal(found.get(), ARRAYS[name])
    with pytest.raises(penstock.InvalidArgument, match="CuPy does not support dtype"):
        penstock.load(saved(tmp_path, ARRAYS["records"]), device="cuda:0")


def test_a_device_buffer_has_the_bytes_as_they_are(tmp_path: Path) -> None:
    for name in ("plain", "fortran", "text"):
        found = penstock.load(saved(tmp_path, ARRAYS[name]), device="host:0")
        assert isinstance(found, penstock.DeviceBuffer) and bytes(found.to_host()) == ARRAYS[name].tobytes("A")


def test_the_file_is_bytes_with_a_dtype_and_its_kind_counts_not_its_name(tmp_path: Path) -> None:
    path = saved(tmp_path, ARRAYS["plain"], "without_a_suffix")
    assert penstock.load(path, "u1").tobytes() == path.read_bytes()
    assert penstock.load(path, offset=128).tobytes() == ARRAYS["plain"].tobytes()
    with open(path, "rb") as file:
        assert same(penstock.load(file.fileno()), ARRAYS["plain"])
    with open(path, "ab") as file:
        file.write(b"another array")
    assert same(penstock.load(path), ARRAYS["plain"])


# --- what is refused


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"x" * 8), "it contains pickled Python objects"),
        (npy("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,), }", b"x" * 8), "it contains pickled Python objects"),
        (npy("", version=(4, 0)), "version 4.0 of the .npy format is not supported"),
        (b"\x93NUMPY\1\0", "it is truncated within its header"),
        (npy("{'descr'")[:-2], "it is truncated within its header"),
        (npy("x" * 10_001), "its header is 10001 bytes long, but the limit is 10000"),
        (b"\x93NUMPY\2\0" + struct.pack("<I", 2**32 - 1), "its header is 4294967295 bytes long"),
        (npy("__import__('os').system('true')"), "its header is not a Python dict"),
        (npy("(" * 5000), "its header is not a Python dict"),
        (npy("-" * 9999 + "1"), "its header is not a Python dict"),
        (npy(b"\xff", version=(3, 0)), "its header cannot be decoded"),
        (npy("{'descr': '<f4', 'shape': (1,)}"), "its header must contain exactly the fields descr, fortran_order and shape"),
        (npy("[1]"), "its header must contain exactly the fields"),
        (npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", b"1234"), "fortran_order in its header must be True or False"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': [1]}", b"1234"), "the shape in its header is not a tuple of lengths"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", b"1234"), "the shape in its header is not a tuple of lengths"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}", b"1234"), "the shape in its header is not a tuple of lengths"),
        (npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {(1,) * 65}}}", b"1234"), "its shape has 65 dimensions"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 4, 0)}" % (1 << 62)), "is too large for any memory"),
        (npy("{'descr': 'what', 'fortran_order': False, 'shape': (1,)}", b"1234"), "descr in its header is not a dtype"),
        (npy("{'descr': {'a': 1}, 'fortran_order': False, 'shape': (1,)}", b"1234"), "descr in its header is not a dtype"),
        (npy("{'descr': '<U0', 'fortran_order': False, 'shape': (1,)}", b"1234"), "cannot be stored as bytes in a file"),
        (npy("{'descr': ('<f4', (3,)), 'fortran_order': True, 'shape': (2, 2)}", bytes(48)), "descr in its header describes elements that are arrays"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it_and_why(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "wrong.npy"
    path.write_bytes(content)
    with pytest.raises(penstock.InvalidArgument) as told:
        penstock.load(path)
    assert why in str(told.value) and str(told.value).startswith(f"{path}: ") and told.value.filename == str(path)


def test_a_file_that_ends_too_early_is_a_short_read(tmp_path: Path) -> None:
    path = saved(tmp_path, ARRAYS["plain"])
    os.truncate(path, 128 + 95)
    with pytest.raises(penstock.ShortRead, match="the file is truncated: it has only 95 of the array's 96 bytes, which start at offset 128") as told:
        penstock.load(path)
    assert (told.value.offset, told.value.bytes_done) == (128, 95)
    path.write_bytes(npy("{'descr': '<f8', 'fortran_order': True, 'shape': (%d,)}" % (1 << 59), b"x" * 100))
    with pytest.raises(penstock.ShortRead):
        penstock.load(path)


def test_no_damage_does_more_than_raise(tmp_path: Path) -> None:
    numbers = random.Random(3)
    path = tmp_path / "wrong.npy"
    for _ in range(150):
        content = bytearray(saved(tmp_path, ARRAYS[numbers.choice(list(ARRAYS))]).read_bytes())
        for _ in range(numbers.choice([1, 3])):
            content[numbers.randrange(10, 80)] = numbers.randrange(256)
        path.write_bytes(content[: numbers.choice([len(content), numbers.randrange(len(content))])])
        try:
            assert isinstance(penstock.load(path), np.ndarray)
        except (penstock.InvalidArgument, penstock.ShortRead) as problem:
            assert str(path) in str(problem)


# --- .npz


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_are_dicts_of_the_arrays(tmp_path: Path, save: Any, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path / "a.npz", **ARRAYS, large=np.arange(400_000))
    with caplog.at_level(logging.INFO, "penstock"):
        found = penstock.load(tmp_path / "a.npz")
    assert list(found) == [*ARRAYS, "large"]
    assert all(same(found[name], array) for name, array in ARRAYS.items()) and same(found["large"], np.arange(400_000))
    assert ("the CPU inflates 12 compressed members: plain.npy, fortran.npy" in caplog.text) == (save is np.savez_compressed)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=NO_GPU)])
def test_archives_go_to_pytorch(tmp_path: Path, save: Any, device: str) -> None:
    torch = pytest.importorskip("torch")
    if device != "cpu" and not torch.cuda.is_available():
        pytest.skip("this PyTorch has no GPU")
    arrays = {"large": np.arange(400_000).reshape(400, 1000), "fortran": ARRAYS["fortran"], "none": ARRAYS["none"]}
    save(tmp_path / "a.npz", **arrays)
    found = penstock.load(tmp_path / "a.npz", device=torch.device(device))
    assert all(found[name].device == torch.device(device) and np.array_equal(found[name].cpu().numpy(), array) for name, array in arrays.items())


def test_an_archive_without_arrays_is_an_empty_dict_and_others_are_bytes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz")
    assert penstock.load(tmp_path / "a.npz") == {}
    os.rename(tmp_path / "a.npz", tmp_path / "a.zip")
    assert penstock.load(tmp_path / "a.zip").dtype == np.uint8
    archive(tmp_path / "b.zip", [("readme.txt", b"hello")])
    assert penstock.load(tmp_path / "b.zip").dtype == np.uint8


@pytest.mark.parametrize("name", ["A.NPZ", "5f2c09", "a.npz.1", "a.npz~", "a.zip", "a.npy"])
def test_the_content_says_that_it_is_an_archive_and_not_the_name(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "a.npz", x=ARRAYS["plain"])
    os.rename(tmp_path / "a.npz", tmp_path / name)
    assert same(penstock.load(tmp_path / name)["x"], ARRAYS["plain"])
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-1])
    with pytest.raises(penstock.InvalidArgument, match="the archive is truncated"):
        penstock.load(tmp_path / name)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "A.NPZ"])
@pytest.mark.parametrize("content", [b"x", b"<html>an error page</html>", b"\x93NUMPX\1\0" + bytes(100), b"QK\3\4" + bytes(100)])
def test_a_file_that_is_named_like_numpys_and_is_none_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(penstock.InvalidArgument, match="does not start like a .np[yz] file") as told:
        penstock.load(tmp_path / name)
    assert told.value.filename == str(tmp_path / name)
    assert penstock.load(tmp_path / name, "u1").tobytes() == content


def test_a_checkpoint_that_pytorch_refuses_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    archive(tmp_path / "m.pt", [("archive/data.pkl", b"x"), ("archive/data/0", b"1234")])
    for name in ("m.pt", "m.npz"):
        with pytest.raises(penstock.InvalidArgument, match=f"{name} is a torch.save checkpoint .*weights_only=False"):
            penstock.load(tmp_path / name)
        os.rename(tmp_path / name, tmp_path / "m.npz")


@pytest.mark.parametrize("shape", ["(3L, 4L)", "(12L,)", "(0L,)"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_headers_of_python_2_are_read_as_numpy_reads_them(tmp_path: Path, shape: str, version: tuple[int, int]) -> None:
    text = f"{{'descr': [('3L', '<f8')], 'fortran_order': False, 'shape': {shape}, }}"
    content = npy(text, np.arange(12.0).tobytes(), version)
    (tmp_path / "a.npy").write_bytes(content)
    archive(tmp_path / "a.npz", [("a.npy", content[: len(content) if "0L" not in shape else -96])])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.load(tmp_path / "a.npy")
    assert same(penstock.load(tmp_path / "a.npy"), expected)
    assert same(penstock.load(tmp_path / "a.npz")["a"], expected)


BAD_MEMBERS = {
    "objects.npy": (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"x" * 8), "it contains pickled Python objects"),
    "readme.txt": (b"hello", "it does not start with the .npy magic string"),
    "empty": (b"", "it does not start with the .npy magic string"),
}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("bad", BAD_MEMBERS)
def test_a_member_that_is_no_array_costs_only_itself(tmp_path: Path, bad: str, method: int) -> None:
    path, plain = tmp_path / "a.npz", ARRAYS["plain"]
    content, why = BAD_MEMBERS[bad]
    archive(path, [(bad, content), ("folder/", b""), ("good.npy", content_of(plain))], method)
    with pytest.warns(UserWarning, match=f"skipped: {path}: {bad}: {why}") as told:
        found = penstock.load(path)
    assert list(found) == ["good"] and same(found["good"], plain) and told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(penstock.load(path, names=["good"])) == list(penstock.load(path, names=iter(["good.npy"]))) == ["good"]
    with pytest.raises(penstock.InvalidArgument, match=why):
        penstock.load(path, names=["good", bad])


def test_names_choose_what_is_read_of_an_archive(tmp_path: Path) -> None:
    path, plain = tmp_path / "a.npz", ARRAYS["plain"]
    damaged = archive(path, [("a.npy", content_of(plain)), ("b.npy", content_of(plain)[:-1])])
    assert list(penstock.load(path, names=["a"])) == ["a"]
    assert penstock.load(path, names=[]) == {}
    with pytest.raises(penstock.InvalidArgument, match="b.npy: its header and array require"):
        penstock.load(path)
    with pytest.raises(penstock.InvalidArgument, match="it has no array called 'c'; it has ") as told:
        penstock.load(path, names=["a", "c"])
    assert told.value.code == "not_found"
    assert penstock.load(path, "u1").tobytes() == damaged
    for wrong in ({"dtype": "u1"}, {"offset": 1}, {"shape": 3}):
        with pytest.raises(penstock.InvalidArgument, match="names= works only with .npz"):
            penstock.load(path, names=["a"], **wrong)
    with pytest.raises(penstock.InvalidArgument, match="names= works only with .npz"):
        penstock.load(saved(tmp_path, plain), names=["a"])
    for several in ("a", b"a", 1, [1]):
        with pytest.raises(TypeError, match="names must be"):
            penstock.load(path, names=several)  # type: ignore[arg-type]


def archive(path: Path, members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytearray:
    with zipfile.ZipFile(path, "w", method) as made:
        for name, content in members:
            made.writestr(name, content)
    return bytearray(path.read_bytes())


def content_of(array: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array)
    return file.getvalue()


def test_members_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path, whole = tmp_path / "a.npz", content_of(ARRAYS["plain"])

    def refused(why: str) -> None:
        with pytest.raises(penstock.InvalidArgument) as told:
            penstock.load(path)
        assert why in str(told.value) and str(told.value).startswith(str(path))

    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        archive(path, [("readme.txt", b"hello")], method)
        refused("readme.txt: it does not start with the .npy magic string")
        archive(path, [("b.npy", whole[:-1])], method)
        refused("b.npy: its header and array require 224 bytes, but it contains 223")
        archive(path, [("a.npy", whole), ("a", whole)], method)
        refused("the archive contains a twice")
        archive(path, [("o.npy", npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"x" * 8))], method)
        refused("o.npy: it contains pickled Python objects")
    archive(path, [("a.npy", whole)], zipfile.ZIP_BZIP2)
    refused("a.npy: zip compression method 12 is not supported")


def test_archives_that_are_damaged_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    whole = archive(path, [("a.npy", content_of(np.zeros(5000)))], zipfile.ZIP_DEFLATED)
    entry = whole.index(b"PK\x01\x02")

    def refused(content: bytes, why: str) -> None:
        path.write_bytes(content)
        with pytest.raises(penstock.InvalidArgument) as told:
            penstock.load(path)
        assert why in str(told.value) and str(path) in str(told.value)

    def changed(at: int, value: bytes) -> bytes:
        return bytes(whole[:at] + value + whole[at + len(value) :])

    refused(bytes(whole[:-1]), "the archive is truncated")
    refused(changed(entry + 8, b"\1"), "a.npy: it is encrypted")
    refused(changed(entry + 16, b"crc!"), "a.npy: its compressed data is corrupt: Bad CRC-32")
    refused(changed(entry + 24, struct.pack("<L", 1 << 31)), "compressed bytes cannot expand to 2147483648")
    refused(changed(60, b"\xff" * 8), "a.npy: its compressed data is corrupt")
    stored = archive(path, [("a.npy", content_of(np.zeros(500)))])
    entry = stored.index(b"PK\x01\x02")
    whole = stored
    refused(changed(entry + 20, struct.pack("<2L", 1 << 20, 1 << 20)), "its members overlap: together they are larger than the file")
    refused(changed(entry + 20, struct.pack("<L", 100)), "it is stored uncompressed, but its size in the file is 100 bytes")
    refused(changed(entry + 42, struct.pack("<L", 7)), "a.npy: it is not at the offset in the zip directory")
    refused(changed(whole.index(b"PK\x05\x06") + 16, struct.pack("<L", 1 << 30)), "a.npy: it starts at offset -")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_offsets_and_names_of_members_that_cannot_be_are_told(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.npz"
    member = zipfile.ZipInfo("a.npy")
    member.extra = struct.pack("<2HQ", 1, 8, (1 << 64) - 1)  # of zip64: the offset, where the entry has none
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr(member, content_of(ARRAYS["plain"]), method)
    whole = path.read_bytes()
    entry = whole.index(b"PK\x01\x02")
    path.write_bytes(whole[: entry + 42] + b"\xff" * 4 + whole[entry + 46 :])
    with pytest.raises(penstock.InvalidArgument, match=f"{path}: a.npy: it starts at offset {(1 << 64) - 1}, but the file has only {len(whole)} bytes"):
        penstock.load(path)

    whole = archive(path, [("é.npy", content_of(ARRAYS["plain"]))], method)
    whole[30:32] = b"\xff\xff"  # beside its bytes; the list has the name, too
    path.write_bytes(whole)
    if method == zipfile.ZIP_STORED:
        assert np.array_equal(penstock.load(path)["é"], ARRAYS["plain"])
    else:
        with pytest.raises(penstock.InvalidArgument, match=f"{path}: é.npy: its compressed data is corrupt"):
            penstock.load(path)


def test_no_damage_to_an_archive_does_more_than_raise(tmp_path: Path) -> None:
    numbers = random.Random(4)
    path = tmp_path / "a.npz"
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        whole = archive(path, [(f"{name}.npy", content_of(array)) for name, array in ARRAYS.items()], method)
        for _ in range(80):
            content = bytearray(whole)
            for _ in range(numbers.choice([1, 4])):
                content[numbers.randrange(len(content))] = numbers.randrange(256)
            path.write_bytes(content)
            try:
                assert isinstance(penstock.load(path), dict)
            except penstock.Error as problem:
                assert str(path) in str(problem)
