"""load(): files as arrays of a dtype, a shape and a device; and what a file that ends too early is told as."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock

pytestmark = pytest.mark.usefixtures("torch_not_imported")

HAS_GPU = any(device.name.startswith("cuda:") for device in penstock.devices())
NBYTES = 96_000


@pytest.fixture
def path(tmp_path: Path, pattern: Any) -> Path:
    name = tmp_path / "file"
    name.write_bytes(pattern(NBYTES))
    return name


@pytest.mark.parametrize("dtype", ["u1", "<f4", ">i2", "c16", "?", "M8[s]", np.int64, [("a", "<i2"), ("b", "<f4")]], ids=str)
@pytest.mark.parametrize("shape", [None, -1, 100, (10, 20), (-1, 10), (5, -1, 4), (), (0, 3), [2, 3]], ids=str)
def test_an_array_is_that_of_numpy(path: Path, dtype: Any, shape: Any) -> None:
    array = penstock.load(path, dtype, shape)
    everything = np.fromfile(path, dtype)
    wanted = (-1,) if shape is None else np.empty(()).shape if shape == () else tuple(np.atleast_1d(shape))
    expected = everything.reshape(wanted) if -1 in wanted else everything[: np.prod(wanted, dtype=int)].reshape(wanted)
    assert isinstance(array, np.ndarray) and array.flags.c_contiguous and array.flags.writeable
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert array.tobytes() == expected.tobytes()


def test_bytes_are_the_default_and_offset_skips(path: Path, pattern: Any) -> None:
    assert penstock.load(path).dtype == np.uint8
    assert penstock.load(path, offset=7).tobytes() == pattern(NBYTES)[7:]
    assert penstock.load(path, "<u2", (3, 2), offset=5).tobytes() == pattern(NBYTES)[5:17]
    assert penstock.load(path, offset=NBYTES).shape == penstock.load(path, offset=NBYTES + 5).shape == (0,)
    with open(path, "rb") as plain:
        assert penstock.load(plain.fileno(), shape=4).tobytes() == pattern(4)


@pytest.mark.parametrize(
    ("dtype", "shape", "offset", "there", "wanted"),
    [
        ("u1", NBYTES + 1, 0, NBYTES, NBYTES + 1),
        ("<f8", (3, 5000), 0, NBYTES, 120_000),
        ("<f8", None, 1, NBYTES - 1, NBYTES),
        ("<f4", (-1, 7), 0, NBYTES, 3429 * 28),
        ("u1", 10, NBYTES, 0, 10),
        ("u1", 10, NBYTES + 100, 0, 10),
        ("<f8", (), NBYTES - 3, 3, 8),
    ],
)
def test_a_short_read_says_how_many_bytes_there_were(
    path: Path, dtype: str, shape: Any, offset: int, there: int, wanted: int
) -> None:
    with pytest.raises(penstock.ShortRead, match=f"read {there} of {wanted} bytes at offset {offset}: .*exact=False") as caught:
        penstock.load(path, dtype, shape, offset=offset)
    error = caught.value
    assert isinstance(error, EOFError) and isinstance(error, OSError)
    assert (error.filename, error.offset, error.bytes_done, error.code) == (str(path), offset, there, "short_read")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is penstock.ShortRead and str(again) == str(error)


def test_fewer_rows_come_where_that_will_do(path: Path, pattern: Any) -> None:
    content = pattern(NBYTES)
    cut = penstock.load(path, "<f4", (1000, 70), exact=False)
    assert cut.shape == (342, 70) and cut.tobytes() == content[: 342 * 280]
    assert penstock.load(path, "<f8", offset=3, exact=False).tobytes() == content[3 : 3 + 11_999 * 8]
    assert penstock.load(path, "<f4", (-1, 7), exact=False).shape == (3428, 7)
    assert penstock.load(path, "u1", 10, offset=NBYTES + 5, exact=False).shape == (0,)
    with pytest.raises(penstock.ShortRead):  # which has no rows to leave out
        penstock.load(path, "<f8", (), offset=NBYTES - 3, exact=False)


def test_fromfile_is_exact_too(path: Path, pattern: Any) -> None:
    for device in (None, "host", "host:0"):
        with pytest.raises(penstock.ShortRead, match=f"read {NBYTES} of 800000 bytes at offset 0"):
            penstock.fromfile(path, "<f8", 100_000, device=device)
        with pytest.raises(penstock.ShortRead, match=f"read {NBYTES - 3} of {NBYTES} bytes at offset 3"):
            penstock.fromfile(path, "<f8", offset=3, device=device)
    assert penstock.fromfile(path, "<f8", 100_000, exact=False).size == 12_000
    assert isinstance(penstock.fromfile(path, device="host"), np.ndarray)
    with pytest.raises(penstock.ShortRead, match=r"/proc/version: read \d+ of 1000000 bytes at offset 2"):
        penstock.fromfile("/proc/version", "u1", 1_000_000, 2)


def test_a_file_that_does_not_tell_its_size_is_read_to_its_end() -> None:
    expected = Path("/proc/version").read_bytes()
    for device in ("host", "host:0"):
        assert bytes(memoryview(penstock.load("/proc/version", device=device))) == expected
        assert bytes(memoryview(penstock.load("/proc/version", shape=(2, 3), offset=1, device=device))) == expected[1:7]
    with pytest.raises(penstock.ShortRead, match=f"/proc/version: read {len(expected)} of 1000000 bytes"):
        penstock.load("/proc/version", shape=1_000_000)


def test_a_file_that_is_cut_meanwhile_is_a_short_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_it = penstock._native.open

    class Told:
        """As File, with a size that was right a moment ago."""

        def __init__(self, name: Any, **options: Any) -> None:
            self._file = open_it(name, **options)
            self.read_into = self._file.read_into

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            self._file.close()

        def size(self) -> int:
            return NBYTES + 50_000

    monkeypatch.setattr("penstock._native.open", Told)
    for call in (lambda: penstock.load(path, shape=NBYTES + 10), lambda: penstock.fromfile(path, "u1", NBYTES + 10)):
        with pytest.raises(penstock.ShortRead, match=f"read {NBYTES} of {NBYTES + 10} bytes"):
            call()
    assert penstock.load(path, shape=NBYTES + 10, exact=False).nbytes == NBYTES
    assert penstock.fromfile(path, "u1", NBYTES + 10, exact=False).nbytes == NBYTES


def test_the_host_device_gives_its_bytes(path: Path, pattern: Any) -> None:
    buffer = penstock.load(path, "<f4", (10, 20), device="host:0", offset=3)
    assert isinstance(buffer, penstock.DeviceBuffer)
    assert buffer.to_host() == pattern(NBYTES)[3:803]


def test_what_cannot_be_is_refused_in_words(path: Path) -> None:
    for words, wrong in {
        "offset is -1": {"offset": -1},
        "shape is \\(-2,\\)": {"shape": -2},
        "one of them may be -1": {"shape": (-1, -1)},
        "ambiguous if another length is 0": {"shape": (-1, 0)},
        "dtype object cannot be stored as bytes": {"dtype": object},
        "dtype .*U0.* cannot be stored as bytes": {"dtype": "U0"},
    }.items():
        with pytest.raises(ValueError, match=words):
            penstock.load(path, **wrong)
    for words, wrong in {
        "shape must be an int, a sequence of int or None, not str": {"shape": "3"},
        "shape must be an int, a sequence of int or None, not float": {"shape": 1.5},
        "the lengths in shape must be int, not str": {"shape": (1, "2")},
        "device must be a str, an int, a torch.device or a CuPy Device, not float": {"device": 1.5},
    }.items():
        with pytest.raises(TypeError, match=words):
            penstock.load(path, **wrong)
    with pytest.raises(FileNotFoundError):
        penstock.load(f"{path}.missing")
    for device in ("host:7", "cuda:99", 99):
        with pytest.raises(penstock.NotFound):
            penstock.load(path, device=device)
    assert path.stat().st_size == NBYTES


def test_a_device_of_pytorch_gives_a_tensor(path: Path) -> None:
    torch = pytest.importorskip("torch")
    expected = np.fromfile(path, "<f4").reshape(-1, 10)
    devices = ["cpu", "cuda:0", "cuda"] if HAS_GPU else ["cpu"]
    for device in map(torch.device, devices):
        for dtype in ("<f4", np.float32, torch.float32, "float32"):
            tensor = penstock.load(path, dtype, (-1, 10), device=device)
            assert isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32
            assert tensor.device.type == device.type and tuple(tensor.shape) == expected.shape
            assert bytes(tensor.cpu().numpy().tobytes()) == expected.tobytes()
        assert penstock.load(path, torch.bfloat16, 7, device=device).dtype == torch.bfloat16
        assert penstock.load(path, "bfloat16", (), device=device).shape == ()
        with pytest.raises(ValueError, match="PyTorch does not support dtype >f4"):
            penstock.load(path, ">f4", device=device)
    assert penstock.load(path, torch.int16).dtype == torch.int16
    assert penstock.load(path, torch.int16, device="host:0").device.type == "cpu"  # to PyTorch


@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
def test_a_gpu_gives_an_array_of_cupy(path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    expected = np.fromfile(path, "<f4").reshape(-1, 10)
    for device in ("cuda:0", 0):
        array = penstock.load(path, "<f4", (-1, 10), device=device)
        assert isinstance(array, cupy.ndarray) and array.device.id == 0
        assert array.get().tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match="CuPy does not support dtype"):
        penstock.load(path, "M8[s]", device=0)


def slow_fill(cupy: Any, value: int) -> Any:
    """A kernel (to, n) that waits a tenth of a second and then fills n bytes."""
    return cupy.RawKernel(
        'extern "C" __global__ void spin(char* to, long long n) { long long t = clock64(); while (clock64() - t < 200000000) {}'
        f" for (long long i = 0; i < n; ++i) to[i] = {value}; }}",
        "spin",
    )


@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
def test_memory_that_a_stream_is_at_work_in_is_waited_for(path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    spin = slow_fill(cupy, 0)
    expected = np.fromfile(path, "u1")
    for load in (lambda: penstock.load(path, device=0), lambda: penstock.fromfile(path, "u1", device="cuda:0")):
        with cupy.cuda.Stream(non_blocking=True):
            before = cupy.empty(NBYTES, "u1")
            spin((1,), (1,), (before, np.int64(NBYTES)))
            del before  # back to CuPy, which gives it to whoever comes next
            array = load()
            assert array.get().tobytes() == expected.tobytes()


@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
def test_what_a_stream_is_to_write_is_waited_for_before_it_is_written_to_a_file(tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    spin = slow_fill(cupy, 7)
    array = cupy.zeros((100, 60), "u1")
    cupy.cuda.Stream.null.synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        for each in (array, array.T):
            array[...] = 0
            spin((1,), (1,), (array, np.int64(array.size)))
            penstock.tofile(each, tmp_path / "file")
            assert (tmp_path / "file").read_bytes() == b"\7" * 6_000


def test_a_safetensors_file_is_bytes_only_when_asked(tmp_path: Path) -> None:
    from penstock.safetensors.numpy import save_file

    for tensors in ({"weight": np.ones(3, "f4")}, {}):
        save_file(tensors, tmp_path / "model")
        content = (tmp_path / "model").read_bytes()
        assert penstock.load(tmp_path / "model").keys() == tensors.keys()
        for array in (penstock.load(tmp_path / "model", np.uint8), penstock.load(tmp_path / "model", shape=-1)):
            assert array.tobytes() == content
        assert penstock.load(tmp_path / "model", offset=1).tobytes() == content[1:]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        (2).to_bytes(8, "little") + b"{",
        (3).to_bytes(8, "little") + b"{}",  # the header is longer than the file
        (8).to_bytes(8, "little") + b"[1, 2]  ",
        (8).to_bytes(8, "little") + b'{"a": 1]',
        (1 << 62).to_bytes(8, "little") + b'{"a": 1}',
    ],
)
def test_what_only_resembles_one_is_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert penstock.load(tmp_path / "file").tobytes() == content
