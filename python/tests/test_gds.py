"""penstock.gds: the interface of torch.cuda.gds.

With PyTorch installed the storages are its own; without, Storage stands in for them: it has what penstock.gds asks of one, data_ptr() and
nbytes(), over memory of the host or of a device.
"""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import penstock
from penstock import cufile, gds

try:
    import torch
except ImportError:
    torch = None


class Storage:
    """As a torch.UntypedStorage."""

    def __init__(self, memory: Any, buffer: Any) -> None:
        self._memory = memory
        self._buffer = buffer

    def data_ptr(self) -> int:
        return int(self._memory.address(self._buffer))

    def nbytes(self) -> int:
        return int(self._buffer.nbytes)

    def content(self) -> bytes:
        return bytes(self._memory.bytes(self._buffer))


class Storages:
    """Storages over one kind of memory."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def of(self, content: bytes) -> Any:
        if torch is not None and self._memory.device != "host:0":
            device = self._memory.device or "cpu"
            return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device).untyped_storage()
        return Storage(self._memory, self._memory.of(content))

    def content(self, storage: Any) -> bytes:
        if isinstance(storage, Storage):
            return storage.content()
        return bytes(bytearray(storage.cpu()))


@pytest.fixture
def storages(memory: Any) -> Storages:
    return Storages(memory)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "file")


CREATE = os.O_CREAT | os.O_RDWR


def test_storages_are_saved_and_loaded(path: str, storages: Storages, pattern: Any) -> None:
    first, second = pattern(4096), pattern(20_001)[1:]
    file = gds.GdsFile(path, CREATE)
    file.save_storage(storages.of(first), offset=0)
    file.save_storage(storages.of(second), len(first))
    assert pathlib.Path(path).read_bytes() == first + second
    loaded, other = storages.of(bytes(len(first))), storages.of(bytes(len(second)))
    file.load_storage(loaded)
    file.load_storage(other, offset=len(first))
    assert storages.content(loaded) == first
    assert storages.content(other) == second


def test_attributes_are_torchs(path: str) -> None:
    file = gds.GdsFile(path, CREATE)
    assert file.filename == path
    assert file.flags == CREATE
    assert os.fstat(file.fd).st_ino == os.stat(path).st_ino
    assert isinstance(file.handle, int)


def test_handles_are_registered_once_and_deregistered_once(path: str, storages: Storages) -> None:
    file = gds.GdsFile(path, CREATE)
    with pytest.raises(AssertionError, match="already registered"):
        file.register_handle()
    file.deregister_handle()
    assert file.handle is None
    with pytest.raises(AssertionError, match="not registered"):
        file.deregister_handle()
    for call in (file.load_storage, file.save_storage):
        with pytest.raises(AssertionError, match="not registered"):
            call(storages.of(b"12345678"))
    file.register_handle()
    file.save_storage(storages.of(b"12345678"))
    assert pathlib.Path(path).read_bytes() == b"12345678"


def test_a_load_past_the_end_raises_and_tells_how_far_it_got(path: str, storages: Storages) -> None:
    file = gds.GdsFile(path, CREATE)
    file.save_storage(storages.of(b"x" * 100))
    match = r"cuFileRead partial read: expected 100 bytes, got 60: load_storage: .*file at 40: 60 of 100 bytes, then the end of the file"
    with pytest.raises(RuntimeError, match=match):
        file.load_storage(storages.of(bytes(100)), 40)
    with pytest.raises(RuntimeError, match="0 of 8 bytes"):
        file.load_storage(storages.of(bytes(8)), 100)


def test_a_file_open_for_the_other_direction_raises(path: str, storages: Storages) -> None:
    pathlib.Path(path).write_bytes(bytes(100))
    with gds.GdsFile(path, os.O_RDONLY) as file, pytest.raises(RuntimeError, match="save_storage") as caught:
        file.save_storage(storages.of(b"12345678"))
    assert isinstance(caught.value.__cause__, penstock.Error)
    with gds.GdsFile(path, os.O_WRONLY) as file, pytest.raises(RuntimeError, match="load_storage"):
        file.load_storage(storages.of(b"12345678"))


def test_a_negative_offset_raises(path: str, storages: Storages) -> None:
    with gds.GdsFile(path, CREATE) as file, pytest.raises(RuntimeError, match="save_storage"):
        file.save_storage(storages.of(b"12345678"), -1)


def test_a_missing_file_is_an_os_error(path: str) -> None:
    with pytest.raises(FileNotFoundError):
        gds.GdsFile(path, os.O_RDWR)


def test_what_cannot_be_registered_is_a_runtime_error_and_leaks_no_descriptor(path: str) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(RuntimeError, match="cuFileHandleRegister failed: .*O_APPEND"):
        gds.GdsFile(path, CREATE | os.O_APPEND)
    os.mkfifo(path + "pipe")
    with pytest.raises(RuntimeError, match="cuFileHandleRegister failed: .*pipe is a FIFO, not a file"):
        gds.GdsFile(path + "pipe", os.O_RDONLY)  # which nobody writes to
    with pytest.raises(RuntimeError, match="cuFileHandleRegister failed: .*pipe"):
        gds.GdsFile(path + "pipe", os.O_RDWR)
    gc.collect()
    assert os.listdir("/proc/self/fd") == before


def test_the_end_of_the_block_closes_and_so_does_the_destructor(path: str) -> None:
    before = os.listdir("/proc/self/fd")
    with gds.GdsFile(path, CREATE) as file:
        assert file.fd >= 0
    assert file.fd == -1 and file.handle is None
    file.close()
    with pytest.raises(AssertionError):
        file.deregister_handle()
    another = gds.GdsFile(path, CREATE)
    del another
    gc.collect()
    assert os.listdir("/proc/self/fd") == before


def test_direct_io_is_asked_for(path: str) -> None:
    before = gds.direct_io_fallbacks()
    with gds.GdsFile(path, CREATE) as file:
        taken = bool(_flags_of(file.fd) & os.O_DIRECT)
        assert taken is (file.fallback_reason == "")
    assert (gds.direct_io_fallbacks() == before) is taken


@pytest.mark.parametrize("preloaded", [False, True])  # libpenstock_direct_io.so drops the flag
def test_where_direct_io_is_refused_the_file_opens_without_and_says_so(
    path: str, storages: Storages, monkeypatch: pytest.MonkeyPatch, preloaded: bool
) -> None:
    real_open = os.open

    def refuse_direct(name: Any, flags: int, *more: Any) -> int:
        if preloaded:
            return real_open(name, flags & ~os.O_DIRECT, *more)
        if flags & os.O_DIRECT and flags & os.O_CREAT:
            os.close(real_open(name, flags & ~os.O_DIRECT, 0o666))  # as Linux does: it makes the file first
            raise OSError(22, "Invalid argument")
        return real_open(name, flags, *more)

    monkeypatch.setattr(os, "open", refuse_direct)
    before = gds.direct_io_fallbacks()
    file = gds.GdsFile(path, CREATE | os.O_EXCL)
    monkeypatch.undo()
    assert "does not support direct I/O" in file.fallback_reason
    assert gds.direct_io_fallbacks() == gds.Fallbacks(before.files + 1, file.fallback_reason)
    file.save_storage(storages.of(b"12345"))
    assert pathlib.Path(path).read_bytes() == b"12345"


def _flags_of(descriptor: int) -> int:
    fields = pathlib.Path(f"/proc/self/fdinfo/{descriptor}").read_text().split()
    return int(fields[fields.index("flags:") + 1], 8)


def test_buffers_are_registered_once_and_deregistered_once(storages: Storages) -> None:
    storage = storages.of(b"12345678")
    gds.gds_register_buffer(storage)
    with pytest.raises(RuntimeError, match="already registered"):
        gds.gds_register_buffer(storage)
    gds.gds_deregister_buffer(storage)
    with pytest.raises(RuntimeError, match="not registered"):
        gds.gds_deregister_buffer(storage)


def test_a_storage_of_a_device_is_registered_with_the_engine() -> None:
    memory = penstock.device("host:0").empty(4096)
    before = penstock.stats()["usage"]["registrations"]
    gds.gds_register_buffer(memory)
    with pytest.raises(cufile.cuFileError) as caught:  # one registration for all faces
        cufile.buf_register(memory.ptr, 4096, 0)
    assert caught.value.status == cufile.Status.CU_FILE_MEMORY_ALREADY_REGISTERED
    gds.gds_deregister_buffer(memory)
    assert penstock.stats()["usage"]["registrations"] == before + 1


def test_a_registered_buffer_is_used_as_any_other(path: str, storages: Storages, pattern: Any) -> None:
    storage = storages.of(pattern(5000))
    gds.gds_register_buffer(storage)
    with gds.GdsFile(path, CREATE) as file:
        file.save_storage(storage)
    gds.gds_deregister_buffer(storage)
    assert pathlib.Path(path).read_bytes() == pattern(5000)


def test_what_is_no_storage_is_a_type_error(path: str) -> None:
    with pytest.raises(TypeError):
        gds.gds_register_buffer("text")
    with gds.GdsFile(path, CREATE) as file, pytest.raises(TypeError):
        file.save_storage("text")


def test_torch_is_not_imported() -> None:
    script = "import sys, penstock.gds; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_storages_of_tensors_are_pytorchs(path: str) -> None:
    first = torch.randn(1024)
    second = torch.randn(2, 1024)
    with gds.GdsFile(path, CREATE) as file:
        file.save_storage(first.untyped_storage())
        file.save_storage(second.untyped_storage(), offset=first.nbytes)
        loaded, other = torch.empty(1024), torch.empty(2, 1024)
        file.load_storage(loaded.untyped_storage())
        file.load_storage(other.untyped_storage(), offset=first.nbytes)
    assert torch.equal(first, loaded) and torch.equal(second, other)


def test_every_public_name_is_there() -> None:
    assert all(hasattr(gds, name) for name in gds.__all__)


def test_it_is_available_where_a_gpu_is() -> None:
    assert gds.is_available() is (penstock.cuda_status() is None)


# The settings of cuFile


def in_new_process(script: str, settings: str, tmp_path: pathlib.Path) -> list[str]:
    told = tmp_path / "cufile.json"
    told.write_text(settings)
    environ = dict(os.environ, CUFILE_ENV_PATH_JSON=str(told))
    start = f"""
import os, penstock
from penstock import cufile, gds
class Storage:
    def __init__(self, buffer): self.buffer = buffer
    def data_ptr(self): return self.buffer.ptr if isinstance(self.buffer, penstock.DeviceBuffer) else self.buffer.ctypes.data
    def nbytes(self): return self.buffer.nbytes
def attempt(call):
    try: print("fine", call() and "")
    except RuntimeError as error: print(error)
path = {str(tmp_path / 'file')!r}
"""
    done = subprocess.run([sys.executable, "-c", start + script], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_cufile_json_that_cannot_be_read_stops_everything(tmp_path: pathlib.Path) -> None:
    script = """
import numpy
print(gds.is_available())
attempt(lambda: gds.GdsFile(path, os.O_CREAT | os.O_RDWR))
attempt(lambda: gds.gds_register_buffer(Storage(numpy.zeros(8))))
"""
    told = in_new_process(script, '{"properties": ', tmp_path)
    assert told[0] == "False"
    assert told[1].startswith("cuFileHandleRegister failed: CU_FILE_DRIVER_INVALID_PROPS (5002): ") and "line 1" in told[1]
    assert told[2].startswith("cuFileBufRegister failed: CU_FILE_DRIVER_INVALID_PROPS (5002): ") and "cufile.json" in told[2]


def test_without_the_compatibility_mode_a_file_must_be_gpu_direct(tmp_path: pathlib.Path) -> None:
    if penstock.gpu_direct_status() is None:
        pytest.skip("files may be GPU-direct here")
    script = "attempt(lambda: gds.GdsFile(path, os.O_CREAT | os.O_RDWR))"
    (told,) = in_new_process(script, '{"properties": {"allow_compat_mode": false}}', tmp_path)
    assert told.startswith("cuFileHandleRegister failed: ") and "allow_compat_mode is false" in told


def test_host_memory_may_be_forbidden_and_the_forced_mode_is_kept_to(tmp_path: pathlib.Path) -> None:
    script = """
import numpy
attempt(lambda: gds.gds_register_buffer(Storage(numpy.zeros(8))))
device = Storage(penstock.device("host:0").empty(4096))
attempt(lambda: gds.gds_register_buffer(device))
file = gds.GdsFile(path, os.O_CREAT | os.O_RDWR)
file.save_storage(device)
attempt(lambda: file.save_storage(Storage(numpy.zeros(512))))
print(penstock.stats()["paths"]["staged"]["bytes"], os.path.getsize(path))
"""
    settings = '{"properties": {"allow_system_memory": false, "force_compat_mode": true}}'
    told = in_new_process(script, settings, tmp_path)
    assert told[0] == "cuFileBufRegister failed: the storage is in host memory, and allow_system_memory is false"
    assert told[2].startswith("cuFileWrite failed: save_storage: ") and told[2].endswith("allow_system_memory is false")
    assert (told[1], told[3]) == ("fine None", "4096 4096")
