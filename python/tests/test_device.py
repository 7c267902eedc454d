"""Devices, their memory, copies and streams."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import _native


def test_devices_lists_the_host_device_last() -> None:
    devices = penstock.devices()
    assert devices[-1].name == "host:0"
    for device in devices:
        assert device.name in repr(device) and device.description
        assert device.memory_bytes > 0
        assert device.numa_node >= -1 and device.window_bytes >= 0
        assert device.uuid == "" or device.uuid.startswith("GPU-") and len(device.uuid) == 40
        assert penstock.device(device.name).name == device.name


def test_there_is_a_gpu_or_a_reason_why_not() -> None:
    gpus = [device for device in penstock.devices() if device.name.startswith("cuda:")]
    reason = penstock.cuda_status()
    assert (reason is None) == bool(gpus)
    if not gpus:
        with pytest.raises(penstock.NotFound) as caught:
            penstock.device("cuda:0")
        assert str(reason) in str(caught.value)
    assert penstock.gpu_direct_status() is None or isinstance(penstock.gpu_direct_status(), str)


@pytest.mark.parametrize("name", ["", "gpu", "cuda", "host:1", "cuda:99", "HOST:0", "host:0 "])
def test_an_unknown_device_is_not_found(name: str) -> None:
    if name == "cuda" and any(each.name.startswith("cuda:") for each in penstock.devices()):
        pytest.skip("here, \"cuda\" is the current GPU")
    with pytest.raises(FileNotFoundError, match="there is no device"):
        penstock.device(name)


def test_memory_of_a_device_tells_what_it_is(device_memory: Any) -> None:
    buffer = penstock.device(device_memory.device).empty(12_345)
    assert (buffer.nbytes, len(buffer), buffer.device) == (12_345, 12_345, device_memory.device)
    assert buffer.ptr > 0
    assert device_memory.device in repr(buffer)
    assert _native.resolve(buffer) == (buffer.ptr, 12_345)
    facts = penstock.describe(buffer)
    assert facts == {"kind": "device", "device": device_memory.device, "base": buffer.ptr, "nbytes": facts["nbytes"]}
    assert facts["nbytes"] >= 12_345
    assert penstock.describe(buffer.ptr + 100)["base"] == buffer.ptr


def test_the_cpu_is_not_let_at_memory_of_a_gpu(device_memory: Any) -> None:
    buffer = penstock.device(device_memory.device).empty(10)
    if device_memory.device == "host:0":
        assert not hasattr(buffer, "__cuda_array_interface__")
        assert memoryview(buffer).nbytes == 10
        return
    facts = buffer.__cuda_array_interface__
    assert facts["data"] == (buffer.ptr, False)
    assert (facts["shape"], facts["typestr"], facts["strides"]) == ((10,), "|u1", None)
    with pytest.raises(BufferError, match="the CPU cannot access memory on cuda:0"):
        memoryview(buffer)


def test_memory_of_the_host_device_is_seen_through_the_buffer_protocol(tmp_path: Path, pattern: Any) -> None:
    (tmp_path / "file").write_bytes(pattern(50_000))
    buffer = penstock.device("host:0").empty(50_000)
    with penstock.open(tmp_path / "file") as file:
        file.read_into(buffer)
    view = memoryview(buffer)
    assert (view.format, view.readonly, view.c_contiguous) == ("B", False, True)
    assert bytes(view) == pattern(50_000)
    array = np.frombuffer(buffer, "<u2")
    assert array.flags.writeable
    array[:5] = 0x6161
    assert buffer.to_host() == b"a" * 10 + pattern(50_000)[10:]
    gone = weakref.ref(buffer)
    del buffer
    assert gone() is not None and bytes(view[:10]) == b"a" * 10
    del view, array
    assert gone() is None


def test_memory_of_the_parent_is_not_seen_in_a_child() -> None:
    buffer = penstock.device("host:0").empty(100)
    part = buffer[10:20]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: memoryview(buffer), lambda: memoryview(part), part.__dlpack__, part.to_host):
            try:
                call()
            except penstock.Error as error:
                refused += error.code == "forked"
        os._exit(0 if refused == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    "part", [slice(None), slice(10, 20), slice(-5, None), slice(7), slice(50, 10), slice(90, 500), slice(100, None)], ids=str
)
def test_a_slice_is_a_part_of_the_same_memory(device_memory: Any, pattern: Any, part: slice) -> None:
    buffer = device_memory.of(pattern(100))
    taken = buffer[part]
    expected = pattern(100)[part]
    assert isinstance(taken, penstock.DeviceBuffer)
    assert (taken.nbytes, len(taken), taken.device) == (len(expected), len(expected), buffer.device)
    assert taken.to_host() == expected
    assert taken.ptr == buffer.ptr + part.indices(100)[0]
    if expected:
        taken.copy_from(b"!")
        assert buffer.to_host()[part] == b"!" + expected[1:]
        again = taken[-1:]
        assert again.to_host() == taken.to_host()[-1:]
    if device_memory.device == "host:0":
        assert bytes(memoryview(taken)) == taken.to_host()


def test_a_slice_keeps_the_memory(device_memory: Any, tmp_path: Path, pattern: Any) -> None:
    (tmp_path / "file").write_bytes(pattern(1_000))
    buffer = device_memory.of(bytes(1_000))
    address = buffer.ptr
    part = buffer[100:400][50:]
    del buffer
    with penstock.open(tmp_path / "file", "r+") as file:
        assert file.read_into(part, 7) == 250
        assert file.pwrite(part, 500).result() == 250
        with pytest.raises(ValueError, match="the buffer has 250 bytes"):
            file.read_into(part, 0, 251)
    assert part.to_host() == pattern(1_000)[7:257] == (tmp_path / "file").read_bytes()[500:750]
    assert penstock.describe(part)["base"] == address
    del part
    if device_memory.device == "host:0":
        with pytest.raises(penstock.BufferError):
            penstock.describe(address)


def test_what_is_no_slice_is_refused(device_memory: Any) -> None:
    buffer = device_memory.of(bytes(10))
    for wrong in (3, "x", None, (1, 2)):
        with pytest.raises(TypeError, match=f"indexed with a slice, not {type(wrong).__name__}"):
            buffer[wrong]
    with pytest.raises(ValueError, match="must have step 1, not 2"):
        buffer[::2]
    with pytest.raises(TypeError):
        buffer["a":]


def test_dlpack_shows_its_memory(pattern: Any) -> None:
    buffer = penstock.device("host:0").empty(1_000)
    buffer.copy_from(pattern(1_000))
    assert buffer.__dlpack_device__() == (1, 0)
    for source in (buffer, buffer[100:]):
        array = np.from_dlpack(source)
        assert (array.dtype, array.shape, array.tobytes()) == (np.uint8, (len(source),), source.to_host())
    if array.flags.writeable:  # NumPy 2.1 and newer asks for a version that tells so
        array[0] = 7
        assert buffer.to_host()[100] == 7
    gone = weakref.ref(buffer)
    del buffer, source
    assert array[1] == pattern(1_000)[101] and gone() is None  # the slice, which it keeps, has the memory
    assert np.from_dlpack(penstock.device("host:0").empty(10)[3:3]).shape == (0,)


def test_a_capsule_that_nobody_takes_lets_go(device_memory: Any) -> None:
    buffer = device_memory.of(bytes(10))
    gone = weakref.ref(buffer)
    capsules = [buffer.__dlpack__(), buffer.__dlpack__(max_version=(1, 0)), buffer.__dlpack__(stream=None, copy=False)]
    assert ["dltensor_versioned" in repr(capsule) for capsule in capsules] == [False, True, False]
    del buffer
    assert gone() is not None
    del capsules
    assert gone() is None


def test_dlpack_is_refused_in_words(device_memory: Any) -> None:
    buffer = device_memory.of(bytes(10))
    assert buffer.__dlpack__(dl_device=buffer.__dlpack_device__(), copy=False) is not None
    with pytest.raises(BufferError, match="dl_device: .*is on"):
        buffer.__dlpack__(dl_device=(4, 0))
    with pytest.raises(BufferError, match="copy:"):
        buffer.__dlpack__(copy=True)
    for name in ("dl_device", "max_version"):
        for wrong in ("x", 3, (1,), (1, "x")):
            with pytest.raises(TypeError, match=name):
                buffer.__dlpack__(**{name: wrong})


@pytest.mark.skipif(not any(device.name == "cuda:0" for device in penstock.devices()), reason="no GPU")
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_dlpack_shows_memory_of_a_gpu(library: str, pattern: Any) -> None:
    module = pytest.importorskip(library)
    buffer = penstock.device("cuda:0").empty(1_000)
    buffer.copy_from(pattern(1_000))
    assert buffer.__dlpack_device__() == (2, 0)
    part = buffer[200:]
    array = module.from_dlpack(part)
    address = array.data.ptr if library == "cupy" else array.data_ptr()
    assert address == buffer.ptr + 200
    content = bytes(array.get() if library == "cupy" else array.cpu().numpy())
    assert content == pattern(1_000)[200:]


@pytest.mark.parametrize("nbytes", [0, -1, 1 << 62])
def test_memory_of_no_sensible_size_is_refused(nbytes: int) -> None:
    with pytest.raises(penstock.Error):
        penstock.device("host:0").empty(nbytes)


@pytest.mark.parametrize("nbytes", [1, 4096, 3_000_017])
def test_bytes_go_there_and_back(device_memory: Any, pattern: Any, nbytes: int) -> None:
    buffer = penstock.device(device_memory.device).empty(nbytes)
    buffer.copy_from(pattern(nbytes))
    assert buffer.to_host() == pattern(nbytes)
    target = np.zeros(nbytes + 3, np.uint8)
    buffer.copy_to(target)
    assert target.tobytes() == pattern(nbytes) + bytes(3)
    other = penstock.device(device_memory.device).empty(nbytes)
    penstock.copy(other, buffer)
    other.copy_from(b"!")
    assert other.to_host() == b"!" + pattern(nbytes)[1:]


def test_copy_takes_memory_of_the_host(pattern: Any) -> None:
    target = bytearray(1000)
    penstock.copy(target, np.frombuffer(pattern(1000), np.uint8))
    assert target == pattern(1000)
    penstock.copy(target, b"")
    penstock.copy(memoryview(target)[10:], b"xyz")
    assert target[10:13] == b"xyz"


def test_what_does_not_fit_is_not_copied(device_memory: Any) -> None:
    buffer = penstock.device(device_memory.device).empty(10)
    with pytest.raises(ValueError, match="source has 11 bytes, but the target has 10"):
        buffer.copy_from(bytes(11))
    with pytest.raises(ValueError):
        buffer.copy_to(bytearray(9))
    with pytest.raises(ValueError, match="read-only"):
        buffer.copy_to(bytes(10))
    with pytest.raises(TypeError):
        buffer.copy_from("text")


def test_a_pointer_into_it_is_memory_of_the_device(device_memory: Any, tmp_path: Path, pattern: Any) -> None:
    (tmp_path / "file").write_bytes(pattern(5_000))
    buffer = device_memory.of(bytes(9_000))
    part = penstock.Pointer(buffer.ptr + 1_000, 8_000, owner=buffer)
    with penstock.open(tmp_path / "file") as file:
        assert file.read_into(part) == 5_000
    assert buffer.to_host() == bytes(1_000) + pattern(5_000) + bytes(3_000)


def test_memory_that_was_freed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    buffer = penstock.device("host:0").empty(1 << 20)
    pointer = penstock.Pointer(buffer.ptr, 1 << 20)
    gone = weakref.ref(buffer)
    del buffer
    assert gone() is None
    with penstock.open(tmp_path / "file") as file, pytest.raises(penstock.BufferError):
        file.read_into(pointer)
    with pytest.raises(penstock.BufferError):
        penstock.describe(pointer)


def test_a_range_longer_than_its_allocation_is_refused(device_memory: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 24))
    buffer = device_memory.of(bytes(1 << 20))
    with penstock.open(tmp_path / "file") as file, pytest.raises(penstock.BufferError, match="past the end"):
        file.read_into(penstock.Pointer(buffer.ptr, 1 << 24, owner=buffer))


def test_memory_of_the_host_is_told_as_such() -> None:
    assert penstock.describe(bytearray(10)) == {"kind": "host", "device": None, "base": None, "nbytes": None}


class Stream:
    """A stream as CuPy, PyTorch and cuda-python show theirs: here, the default one."""

    def __init__(self, name: str) -> None:
        handle: Any = 0
        if name == "__cuda_stream__":
            handle = lambda: (0, 0)  # noqa: E731
        setattr(self, name, handle)


STREAMS: dict[str, Any] = {
    "None": None,
    "int": 0,
    **{name: Stream(name) for name in ("ptr", "cuda_stream", "__cuda_stream__")},
}


@pytest.mark.parametrize("stream", STREAMS)
def test_a_read_is_queued_onto_a_stream(device_memory: Any, tmp_path: Path, pattern: Any, stream: str) -> None:
    (tmp_path / "file").write_bytes(pattern(300_000))
    buffer = device_memory.of(bytes(200_000))
    with penstock.open(tmp_path / "file") as file:
        result = file.read_on_stream(buffer, STREAMS[stream], 250_000, 100_000, 1_000)
        assert result.wait(60) == 50_000
        assert result.done and result.bytes == 50_000
        assert "ended" in repr(result)
    assert buffer.to_host() == bytes(1_000) + pattern(300_000)[250_000:] + bytes(149_000)


def test_a_write_is_queued_onto_a_stream(device_memory: Any, tmp_path: Path, pattern: Any) -> None:
    path = tmp_path / "file"
    with penstock.open(path, "w") as file:
        results = [file.write_on_stream(device_memory.of(pattern(70_000)), None, i * 60_000, 60_000, 5) for i in range(5)]
        assert [result.wait(60) for result in results] == [60_000] * 5
    assert path.read_bytes() == pattern(70_000)[5:60_005] * 5


def test_a_request_on_a_stream_fails_as_others_do(device_memory: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    buffer = device_memory.of(bytes(10))
    with penstock.open(path) as file:
        with pytest.raises(PermissionError):
            file.write_on_stream(buffer, None)
        with pytest.raises(penstock.Error):
            file.read_on_stream(bytearray(10), None)  # memory of the host
        with pytest.raises(ValueError):
            file.read_on_stream(buffer, None, -1)
        with pytest.raises(ValueError):
            file.read_on_stream(buffer, None, 0, 11)
        with pytest.raises(TypeError, match="stream"):
            file.read_on_stream(buffer, "stream")
    with pytest.raises(penstock.Closed):
        file.read_on_stream(buffer, None)


def test_another_process_maps_no_more_than_is_shared() -> None:
    memory = penstock.device("host:0").empty(10_000)
    memory.copy_from(b"x" * 10_000)
    handle, offset, length, descriptor = _native.share_memory(memory[5000:])
    try:
        assert length >= 5000
        again = _native.open_shared_memory("host:0", handle, offset, 5000, descriptor, os.getpid())
        assert again.to_host() == b"x" * 5000 and again.ptr != memory[5000:].ptr
        again.copy_from(b"y")
        assert memory.to_host()[4999:5002] == b"xyx"
        for nbytes, at in ((length + 1, offset), (1, 1 << 60), (1 << 62, offset)):
            with pytest.raises(penstock.Error, match="shares fewer than"):
                _native.open_shared_memory("host:0", handle, at, nbytes, descriptor, os.getpid())
        for wrong in (b"", b"host", b"x" * 64):
            with pytest.raises(penstock.Error):
                _native.open_shared_memory("host:0", wrong, offset, 5000, descriptor, os.getpid())
    finally:
        os.close(descriptor)
    with pytest.raises(penstock.Error, match="only device memory can be shared"):
        _native.share_memory(bytearray(100))
    with pytest.raises(penstock.NotFound):
        _native.open_shared_memory("host:9", handle, 0, 1, -1, os.getpid())
