"""fromfile() and tofile(), beside those of NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
import penstock.kvikio.numpy
from penstock import kvikio

HAS_GPU = any(device.name.startswith("cuda:") for device in penstock.devices())


@pytest.fixture
def path(tmp_path: Path, pattern: Any) -> Path:
    name = tmp_path / "file"
    name.write_bytes(pattern(100_003))
    return name


@pytest.mark.parametrize("dtype", [float, "u1", "<u2", ">i4", "c16", "M8[s]", "S7", [("a", "<i2"), ("b", "<f4")]], ids=str)
@pytest.mark.parametrize(("count", "offset"), [(-1, 0), (-1, 13), (100, 0), (17, 999), (1_000_000, 5), (0, 0), (-1, 100_003)])
def test_an_array_is_that_of_numpy(path: Path, dtype: Any, count: int, offset: int) -> None:
    ours = penstock.fromfile(path, dtype, count, offset, exact=False)
    numpys = np.fromfile(path, dtype, count, offset=offset)
    assert ours.dtype == numpys.dtype
    assert ours.tobytes() == numpys.tobytes()
    assert ours.shape == numpys.shape


def test_a_descriptor_and_bytes_name_a_file_too(path: Path) -> None:
    expected = np.fromfile(path, "u1")
    assert (penstock.fromfile(os.fsencode(path), "u1") == expected).all()
    with open(path, "rb") as plain:
        assert (penstock.fromfile(plain.fileno(), "u1") == expected).all()


def test_the_bytes_come_into_memory_of_the_host_device(path: Path, pattern: Any) -> None:
    buffer = penstock.fromfile(path, "<u4", 1000, 7, device="host:0")
    assert isinstance(buffer, penstock.DeviceBuffer)
    assert buffer.to_host() == pattern(100_003)[7:4007]
    assert penstock.fromfile(path, "u1", like=buffer).to_host() == pattern(100_003)


def test_like_numpy_is_numpy(path: Path) -> None:
    assert isinstance(penstock.fromfile(path, "u1", like=np.zeros(1)), np.ndarray)


@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
def test_the_bytes_come_into_an_array_of_cupy(path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    expected = np.fromfile(path, "<f4", 25_000)
    for array in (penstock.fromfile(path, "<f4", 25_000, device="cuda:0"), penstock.fromfile(path, "<f4", 25_000, like=cupy.empty(1))):
        assert isinstance(array, cupy.ndarray) and array.dtype == expected.dtype
        assert array.get().tobytes() == expected.tobytes()


def test_what_cannot_be_is_refused(path: Path) -> None:
    with pytest.raises(ValueError):
        penstock.fromfile(path, offset=-1)
    with pytest.raises(ValueError):
        penstock.fromfile(path, count=-2)
    with pytest.raises(ValueError):
        penstock.fromfile(path, object)
    with pytest.raises(FileNotFoundError):
        penstock.fromfile(f"{path}.missing")
    with pytest.raises(FileNotFoundError):
        penstock.fromfile(path, "u1", device="host:7")


def test_an_array_is_written_as_numpy_does(tmp_path: Path) -> None:
    array = np.arange(100_000, dtype="<i4")
    for i, each in enumerate((array, array[::3], array.reshape(1000, 100).T, array.astype("M8[s]"), np.float64(3.5), array[:0])):
        ours, numpys = tmp_path / "ours", tmp_path / "numpys"
        ours.write_bytes(b"longer than what is written " * 20_000)
        each.tofile(numpys)
        assert penstock.tofile(each, ours) == numpys.stat().st_size, i
        assert ours.read_bytes() == numpys.read_bytes(), i


def test_an_array_is_written_into_a_file(tmp_path: Path, path: Path, pattern: Any) -> None:
    assert penstock.tofile(np.zeros(5, "u1"), path, 10) == 5
    expected = bytearray(pattern(100_003))
    expected[10:15] = bytes(5)
    assert path.read_bytes() == expected
    assert penstock.tofile(np.ones(2, "u1"), tmp_path / "new", 3) == 2
    assert (tmp_path / "new").read_bytes() == b"\0\0\0\1\1"
    with open(path, "r+b") as plain:
        penstock.tofile(np.full(3, 7, "u1"), plain.fileno())
    assert path.read_bytes()[:4] == b"\7\7\7" + expected[3:4]


def test_memory_of_a_device_is_written(device_memory: Any, tmp_path: Path, pattern: Any) -> None:
    assert penstock.tofile(device_memory.of(pattern(10_001)), tmp_path / "file") == 10_001
    assert (tmp_path / "file").read_bytes() == pattern(10_001)


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
import penstock
print(len(penstock.fromfile(sys.argv[1], "u1", device="host:0").to_host()))
try:
    penstock.fromfile(sys.argv[1])
except ImportError:
    print("ImportError")
"""


def test_numpy_is_needed_only_for_its_arrays(path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_NUMPY, path], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("100003\nImportError\n", "")


# Their size is said to be 0, or a page, whatever they hold.
UNSIZED = ["/proc/version", "/proc/filesystems", "/proc/kallsyms", "/sys/kernel/mm/transparent_hugepage/enabled"]


@pytest.mark.parametrize("name", UNSIZED)
def test_a_file_that_does_not_tell_its_size_is_read_to_its_end(name: str) -> None:
    if not os.path.exists(name):
        pytest.skip(f"no {name}")
    expected = Path(name).read_bytes()
    assert expected and len(expected) != os.stat(name).st_size
    for offset in (0, 5, len(expected), len(expected) + 100):
        assert penstock.fromfile(name, "u1", offset=offset).tobytes() == expected[offset:]
        assert penstock.fromfile(name, "<u2", 3, offset, exact=False).tobytes() == expected[offset : offset + 6][: len(expected[offset:]) // 2 * 2]
        assert penstock.fromfile(name, "u1", 1_000_000_000, offset, exact=False).tobytes() == expected[offset:]
        assert kvikio.numpy.fromfile(name, "u1", offset=offset).tobytes() == expected[offset:]
        assert kvikio.numpy.fromfile(name, "u1", 4, offset=offset).tobytes() == expected[offset:][:4]
        assert kvikio.numpy.fromfile(name, "u1", offset=offset, like=np.empty(0)).tobytes() == expected[offset:]
    assert penstock.fromfile(name, "u1", device="host:0").to_host() == expected


@pytest.mark.parametrize("name", UNSIZED)
def test_the_end_of_a_request_is_the_engines_to_find(memory: Any, name: str) -> None:
    if not os.path.exists(name):
        pytest.skip(f"no {name}")
    expected = Path(name).read_bytes()
    with penstock.open(name) as file:
        for read in (
            lambda buffer: file.read_into(buffer),
            lambda buffer: file.read_into(buffer, progress=lambda _: None),
            lambda buffer: file.pread(buffer).result(),
            lambda buffer: file.read_many([(buffer, 0)])[0],
            lambda buffer: file.pread_many([(buffer, 0)]).result()[0],
            lambda buffer: file.read_ranges(buffer, [0], [len(expected) + 10]),
        ):
            buffer = memory.empty(len(expected) + 10)
            assert read(buffer) == len(expected)
            assert memory.bytes(buffer)[: len(expected)] == expected
        short = memory.empty(10)
        assert file.read_into(short) == 10
        assert memory.bytes(short) == expected[:10]


def test_a_negative_offset_says_so(path: Path) -> None:
    for call in (penstock.fromfile, kvikio.numpy.fromfile):
        with pytest.raises(ValueError, match="-1"):
            call(path, offset=-1)
