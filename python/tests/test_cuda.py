"""Memory and streams of CuPy and PyTorch on a GPU, through every face of the package. Skipped where there is no GPU, or neither of them.

The order of a stream is tested with work queued before and after a transfer: the write must take what a kernel made just before it, and a
kernel queued behind a read must find the bytes. SPIN keeps the stream busy meanwhile, so that what ignores the order is found out.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import cufile, gds, kvikio
from penstock.kv import Store

if "cuda:0" not in [device.name for device in penstock.devices()]:
    pytest.skip("no GPU", allow_module_level=True)

SIZE = 3_000_017
SPIN = 200_000_000  # clock cycles: about a tenth of a second


@pytest.fixture
def content(pattern: Callable[[int], bytes]) -> bytes:
    return pattern(SIZE)


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "file").write_bytes(content)
    return tmp_path / "file"


class Cupy:
    """Arrays and streams of CuPy."""

    name = "cupy"

    def __init__(self) -> None:
        self.module = pytest.importorskip("cupy")
        self._spin = self.module.RawKernel(
            'extern "C" __global__ void spin(long long cycles) { long long t = clock64(); while (clock64() - t < cycles) {} }', "spin"
        )

    def zeros(self, size: int) -> Any:
        array = self.module.zeros(size, dtype=self.module.uint8)
        self.module.cuda.runtime.deviceSynchronize()
        return array

    def of(self, content: bytes) -> Any:
        return self.module.asarray(np.frombuffer(content, np.uint8))

    def bytes(self, array: Any) -> bytes:
        return bytes(self.module.asnumpy(array).tobytes())

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def streams(self) -> list[Any]:
        cuda = self.module.cuda
        return [cuda.Stream.null, cuda.Stream(non_blocking=True), cuda.Stream(), cuda.Stream.ptds]

    def raw(self, stream: Any) -> int:
        return int(stream.ptr)

    def spin(self) -> None:
        self._spin((1,), (1,), (np.int64(SPIN),))

    def synchronize(self, stream: Any) -> None:
        stream.synchronize()


class Torch:
    """Tensors and streams of PyTorch."""

    name = "torch"

    def __init__(self) -> None:
        self.module = pytest.importorskip("torch")
        if not self.module.cuda.is_available():
            pytest.skip("this PyTorch has no CUDA")

    def zeros(self, size: int) -> Any:
        tensor = self.module.zeros(size, dtype=self.module.uint8, device="cuda:0")
        self.module.cuda.synchronize()
        return tensor

    def of(self, content: bytes) -> Any:
        return self.module.frombuffer(bytearray(content), dtype=self.module.uint8).to("cuda:0")

    def bytes(self, tensor: Any) -> bytes:
        return bytes(tensor.cpu().numpy().tobytes())

    def address(self, tensor: Any) -> int:
        return int(tensor.data_ptr())

    def streams(self) -> list[Any]:
        cuda = self.module.cuda
        return [cuda.default_stream(), cuda.Stream(), cuda.Stream(priority=-1)]

    def raw(self, stream: Any) -> int:
        return int(stream.cuda_stream)

    def spin(self) -> None:
        self.module.cuda._sleep(SPIN)

    def synchronize(self, stream: Any) -> None:
        stream.synchronize()


@pytest.fixture(params=[Cupy, Torch], ids=lambda kind: kind.name)
def library(request: pytest.FixtureRequest) -> Any:
    return request.param()


class OnlyDlpack:
    """Shows an array through DLPack, and in no other way."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


# --- memory


def test_an_array_is_read_into_and_written_from(library: Any, path: Path, content: bytes) -> None:
    array = library.zeros(SIZE)
    with penstock.open(path, "r+") as file:
        assert file.read_into(array) == SIZE
        assert library.bytes(array) == content
        assert file.write_from(array, 12_345, 1_000_003, 777) == 1_000_003
    assert path.read_bytes() == content[:12_345] + content[777:1_000_780] + content[12_345 + 1_000_003 :]


def test_a_part_of_an_array_is_read_into(library: Any, path: Path, content: bytes) -> None:
    array = library.zeros(10_000)
    with penstock.open(path) as file:
        assert file.read_into(array[100:9_001], 33) == 8_901
        assert file.pread(array, SIZE - 50, None, 9_500).result() == 50
    wanted = bytes(100) + content[33:8_934] + bytes(499) + content[-50:] + bytes(450)
    assert library.bytes(array) == wanted


def test_dlpack_alone_suffices(library: Any, path: Path, content: bytes) -> None:
    array = library.zeros(SIZE)
    with penstock.open(path) as file:
        assert file.read_into(OnlyDlpack(array)) == SIZE
    assert library.bytes(array) == content


def test_an_array_that_is_not_contiguous_is_refused(library: Any, path: Path) -> None:
    array = library.zeros(10_000)
    for part in (array[::2], OnlyDlpack(array[::2])):
        with penstock.open(path) as file, pytest.raises(penstock.BufferError, match="not contiguous"):
            file.read_into(part)
    assert library.bytes(array) == bytes(10_000)


def test_a_matrix_in_either_order_is_memory(library: Any, path: Path, content: bytes) -> None:
    matrix = library.zeros(6_000).reshape(60, 100)
    for each in (matrix, matrix.T, OnlyDlpack(matrix.T)):
        with penstock.open(path) as file:
            assert file.read_into(each, 5, order="A") == 6_000
        assert library.bytes(matrix) == content[5:6_005]
    for each in (matrix.T, OnlyDlpack(matrix.T)):
        with penstock.open(path) as file, pytest.raises(penstock.BufferError, match="Fortran"):
            file.read_into(each)


def test_a_tensor_that_requires_a_gradient_is_memory(path: Path, content: bytes) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(1_000, device="cuda:0", requires_grad=True)
    with penstock.open(path) as file:
        assert file.read_into(tensor) == 4_000
    assert tensor.detach().cpu().numpy().tobytes() == content[:4_000]


def test_a_storage_is_memory(path: Path, content: bytes) -> None:
    torch = pytest.importorskip("torch")
    storage = torch.empty(SIZE, dtype=torch.uint8, device="cuda:0").untyped_storage()
    with penstock.open(path) as file:
        assert file.read_into(storage) == SIZE
    assert bytes(bytearray(storage.cpu())) == content


def test_pinned_memory_is_told_as_such(path: Path, content: bytes) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
    assert penstock.describe(tensor)["kind"] == "pinned"
    with penstock.open(path) as file:
        assert file.read_into(tensor) == SIZE
    assert tensor.numpy().tobytes() == content


def test_many_ranges_come_into_one_array(library: Any, path: Path, content: bytes) -> None:
    dice = np.random.default_rng(3)
    sizes = dice.integers(0, 5_000, 500)
    offsets = dice.integers(0, SIZE - 5_000, 500)
    places = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    array = library.zeros(int(sizes.sum()))
    with penstock.open(path) as file:
        assert file.read_ranges(array, offsets, sizes, places) == sizes.sum()
        wanted = b"".join(content[at : at + size] for at, size in zip(offsets, sizes))
        assert library.bytes(array) == wanted
        again = library.zeros(len(wanted))
        futures = [file.pread(again, int(at), int(size), int(to)) for at, size, to in zip(offsets, sizes, places)]
        assert [future.result() for future in futures] == sizes.tolist()
    assert library.bytes(again) == wanted


def test_futures_outlive_the_names_of_their_arrays(library: Any, path: Path) -> None:
    with penstock.open(path) as file:
        futures = [file.pread(library.zeros(SIZE)) for _ in range(8)]
        del futures[::2]
        assert [future.result() for future in futures] == [SIZE] * 4


def test_an_array_that_was_freed_is_refused(path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    address = cupy.cuda.runtime.malloc(1 << 20)
    cupy.cuda.runtime.free(address)
    with penstock.open(path) as file, pytest.raises(penstock.BufferError):
        file.read_into(penstock.Pointer(address, 1 << 20))


# --- streams


def work_around(
    library: Any, stream: Any, queue_write: Callable[[Any], Any], queue_read: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """A kernel, a write of what it made, a read of that, a kernel over what was read: all queued before any has run.

    Returns what the two calls returned, once all has ended.
    """
    source, target, doubled = library.zeros(SIZE), library.zeros(SIZE), library.zeros(SIZE)
    with stream if library.name == "cupy" else library.module.cuda.stream(stream):
        library.spin()
        source += 7
        written = queue_write(source)
        source += 1  # after the write took it
        library.spin()
        read = queue_read(target)
        doubled += target
        doubled += target
    library.synchronize(stream)
    assert library.bytes(source) == b"\x08" * SIZE
    assert library.bytes(target) == b"\x07" * SIZE
    assert library.bytes(doubled) == b"\x0e" * SIZE
    return written, read


def test_transfers_keep_the_order_of_a_stream(library: Any, tmp_path: Path) -> None:
    for stream in library.streams():
        with penstock.open(tmp_path / "file", "w+") as file:
            results = work_around(
                library,
                stream,
                lambda source: file.write_on_stream(source, stream),
                lambda target: file.read_on_stream(target, stream),
            )
            assert [result.wait(60) for result in results] == [SIZE, SIZE]


def test_values_keep_the_order_of_a_stream(library: Any, tmp_path: Path) -> None:
    with Store(tmp_path / "store", 4 * SIZE) as store:
        for stream in library.streams():
            results = work_around(
                library,
                stream,
                lambda source: store.put_async({"a": source}, stream=stream),
                lambda target: store.get_async({"a": target, "none": target}, stream=stream),
            )
            assert [result.result(60) for result in results] == [[True], [True, False]]


def test_kvikios_transfers_keep_the_order_of_a_stream(library: Any, tmp_path: Path) -> None:
    for stream in library.streams():
        with kvikio.CuFile(tmp_path / "file", "w+") as file:
            raw = library.raw(stream)
            results = work_around(
                library,
                stream,
                lambda source: file.raw_write_async(source, raw),
                lambda target: file.raw_read_async(target, raw),
            )
            assert [result.check_bytes_done() for result in results] == [SIZE, SIZE]


@pytest.mark.parametrize("where", ["host", "device"])
def test_cufiles_counts_come_in_the_order_of_a_stream(library: Any, tmp_path: Path, where: str) -> None:
    descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR, 0o600)
    handle = cufile.handle_register(descriptor)
    for stream in library.streams():
        raw = library.raw(stream)
        on_device = library.zeros(16)
        on_host = (ctypes.c_int64 * 2)(-5, -5)
        counts = ctypes.addressof(on_host) if where == "host" else library.address(on_device)
        work_around(
            library,
            stream,
            lambda source: cufile.write_async(handle, library.address(source), SIZE, 0, 0, counts, raw),
            lambda target: cufile.read_async(handle, library.address(target), SIZE, 0, 0, counts + 8, raw),
        )
        found = list(on_host) if where == "host" else np.frombuffer(library.bytes(on_device), np.int64).tolist()
        assert found == [SIZE, SIZE]
    cufile.handle_deregister(handle)
    os.close(descriptor)


def test_many_transfers_on_many_streams(path: Path, content: bytes) -> None:
    cupy = pytest.importorskip("cupy")
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(8)]
    piece = 100_003
    arrays = [cupy.zeros(piece, dtype="u1") for _ in range(200)]
    cupy.cuda.runtime.deviceSynchronize()
    with penstock.open(path) as file:
        results = [file.read_on_stream(each, streams[i % 8], i * 1_000) for i, each in enumerate(arrays)]
        for stream in streams:
            stream.synchronize()
        assert [result.bytes for result in results] == [piece] * 200
    for i, each in enumerate(arrays):
        assert each.get().tobytes() == content[i * 1_000 : i * 1_000 + piece]


# --- the other faces


def test_kvikio_reads_and_writes_arrays(library: Any, tmp_path: Path, content: bytes) -> None:
    source, target = library.of(content), library.zeros(SIZE)
    with kvikio.CuFile(tmp_path / "file", "w+") as file:
        assert file.write(source) == SIZE
        assert file.read(target) == SIZE
        assert library.bytes(target) == content
        kvikio.memory_register(target)
        assert file.raw_read(target, size=1_001, file_offset=33, dev_offset=7) == 1_001
        kvikio.memory_deregister(target)
        assert file.pread(target, size=5, file_offset=SIZE - 3).get() == 3
    assert (tmp_path / "file").read_bytes() == content


def test_kvikio_waits_for_the_default_stream(library: Any, tmp_path: Path, content: bytes) -> None:
    source, target = library.zeros(SIZE), library.zeros(SIZE)
    target += 1
    library.synchronize(library.streams()[0])
    with kvikio.CuFile(tmp_path / "file", "w+") as file:
        library.spin()
        source += 5
        assert file.write(source) == SIZE
        library.spin()
        target += 1  # before the read, which it would spoil
        assert file.pread(target).get() == SIZE
    assert (tmp_path / "file").read_bytes() == b"\x05" * SIZE
    assert library.bytes(target) == b"\x05" * SIZE


def test_cufile_reads_and_writes_registered_arrays(library: Any, path: Path, content: bytes) -> None:
    array = library.zeros(SIZE)
    descriptor = os.open(path, os.O_RDWR)
    handle = cufile.handle_register(descriptor)
    address = library.address(array)
    cufile.buf_register(address, SIZE, 0)
    cufile.read(handle, address, SIZE - 10, 3, 10)
    assert library.bytes(array)[10:] == content[3 : SIZE - 7]
    cufile.write(handle, address, 1_000, SIZE, 10)
    count = library.zeros(8)
    cufile.readv(handle, [cufile.IOVec(address, 50, 100, 0), cufile.IOVec(address, 60, 300, 1_000)], 2, 0, library.address(count))
    assert np.frombuffer(library.bytes(count), np.int64)[0] == 110
    assert library.bytes(array)[:50] == content[100:150] and library.bytes(array)[1_000:1_060] == content[300:360]
    cufile.buf_deregister(address)
    cufile.handle_deregister(handle)
    os.close(descriptor)
    assert path.read_bytes() == content + content[3:1_003]


def test_a_large_storage_is_saved_and_loaded(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    source = torch.randint(0, 256, ((256 << 20) + 4_321,), dtype=torch.uint8, device="cuda:0")
    target = torch.zeros_like(source)
    torch.cuda.synchronize()
    gds.gds_register_buffer(source.untyped_storage())
    file = gds.GdsFile(str(tmp_path / "file"), os.O_CREAT | os.O_RDWR)
    file.save_storage(source.untyped_storage(), offset=777)
    file.load_storage(target.untyped_storage(), offset=777)
    gds.gds_deregister_buffer(source.untyped_storage())
    assert torch.equal(source, target)
