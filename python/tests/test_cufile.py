"""penstock.cufile: the documented cufile module, with addresses of the host and of devices."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pathlib
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import cufile
from penstock.cufile import IOVec, OpError, Status, cuFileError

SIZE = 64 * 1024 + 77


@pytest.fixture
def path(tmp_path: pathlib.Path, pattern: Any) -> pathlib.Path:
    made = tmp_path / "file"
    made.write_bytes(pattern(SIZE))
    return made


@pytest.fixture
def handle(path: pathlib.Path) -> Iterator[int]:
    """The file, registered for both directions."""
    with registered(path) as fh:
        yield fh


@contextlib.contextmanager
def registered(path: pathlib.Path, flags: int = os.O_RDWR) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        fh = cufile.handle_register(descriptor)
        try:
            yield fh
        finally:
            cufile.handle_deregister(fh)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def raises(status: int, match: str | None = None) -> Iterator[None]:
    with pytest.raises(cuFileError, match=match) as caught:
        yield
    assert caught.value.status == status, caught.value
    assert caught.value.message and caught.value.message in str(caught.value)


def count_in(memory: Any, result: Any) -> int:
    return int(struct.unpack("=q", memory.bytes(result))[0])


# The driver


def test_calls_that_tell_nothing_return_none(handle: int, device_memory: Any) -> None:
    address = device_memory.address(device_memory.empty(8))
    calls: dict[str, tuple[Any, ...]] = {
        "driver_open": (),
        "buf_register": (address, 8, 0),
        "read": (handle, address, 8, 0, 0),
        "write": (handle, address, 8, 0, 0),
        "readv": (handle, IOVec(address, 8), 1, 0, 0),
        "writev": (handle, IOVec(address, 8), 1, 0, 0),
        "read_async": (handle, address, 8, 0, 0, 0, 0),
        "write_async": (handle, address, 8, 0, 0, 0, 0),
        "synchronize": (0,),
        "set_file_properties": (handle, {}),
        "buf_deregister": (address,),
        "driver_close": (),
    }
    for name, arguments in calls.items():
        assert getattr(cufile, name)(*arguments) is None, name


def in_new_process(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_driver_opens_in_nests() -> None:
    script = """
from penstock import cufile
for _ in range(2): cufile.driver_open()
for _ in range(2): cufile.driver_close()
try: cufile.driver_close()
except cufile.cuFileError as error: print(error.status, error)
"""
    assert in_new_process(script).startswith("5001 CU_FILE_DRIVER_NOT_INITIALIZED (5001): ")


def test_use_opens_the_driver_and_the_last_close_forgets_all(path: pathlib.Path) -> None:
    script = f"""
import os
from penstock import cufile
fh = cufile.handle_register(os.open({str(path)!r}, os.O_RDONLY))
cufile.buf_register(4096, 4096, 0)
cufile.driver_close()
for call in (lambda: cufile.handle_deregister(fh), lambda: cufile.buf_deregister(4096), cufile.driver_close):
    try: call()
    except cufile.cuFileError as error: print(error.status.name)
"""
    assert in_new_process(script).split() == [
        "CU_FILE_INVALID_HANDLE",
        "CU_FILE_MEMORY_NOT_REGISTERED",
        "CU_FILE_DRIVER_NOT_INITIALIZED",
    ]


def test_what_opens_the_driver_first_counts_as_one_use(path: pathlib.Path) -> None:
    first_calls = (
        "cufile.batch_io_set_up(1)",
        "cufile.driver_get_properties()",
        "cufile.handle_register(fd)",
        "bindings.batch_io_set_up(1)",
        "gds.GdsFile(path, os.O_RDONLY)",
    )
    for first in first_calls:
        script = f"""
import os
from penstock import cufile, gds
from penstock.cuda_bindings import cufile as bindings
path = {str(path)!r}
fd = os.open(path, os.O_RDONLY)
kept = {first}
fh = cufile.handle_register(os.open(path, os.O_RDONLY))
print(cufile.use_count())
cufile.driver_close()
print(cufile.use_count())
try: cufile.driver_close()
except cufile.cuFileError as error: print(error.status.name)
"""
        assert in_new_process(script).split() == ["1", "0", "CU_FILE_DRIVER_NOT_INITIALIZED"], first


def test_another_modules_close_forgets_the_files_and_the_settings(path: pathlib.Path) -> None:
    script = f"""
import os, ctypes
from penstock import cufile
from penstock.cuda_bindings import cufile as bindings
host = ctypes.create_string_buffer(4096)
before = len(os.listdir("/proc/self/fd"))
fd = os.open({str(path)!r}, os.O_RDWR)
fh = cufile.handle_register(fd)
cufile.pread(fh, ctypes.addressof(host), 8, 0, 0)
def operation(fh):
    params = cufile.IOParams(1)
    params.mode, params.opcode, params.fh = cufile.BatchMode.BATCH, cufile.Opcode.READ, fh
    params.u.batch.dev_ptr_base, params.u.batch.size_ = ctypes.addressof(host), 8
    return params
cufile.batch_io_submit(cufile.batch_io_set_up(1), 1, operation(fh), 0)
bindings.driver_close()
os.close(fd)
print(len(os.listdir("/proc/self/fd")) - before)
try: cufile.pread(fh, ctypes.addressof(host), 8, 0, 0)
except cufile.cuFileError as error: print(error.status.name)
bindings.set_parameter_bool(bindings.BoolConfigParameter.PROPERTIES_ALLOW_SYSTEM_MEMORY, False)
fh = cufile.handle_register(os.open({str(path)!r}, os.O_RDWR))
try: cufile.pread(fh, ctypes.addressof(host), 8, 0, 0)
except cufile.cuFileError as error: print(error.status.name)
cufile.batch_io_submit(cufile.batch_io_set_up(1), 1, operation(fh), 0)
"""
    assert in_new_process(script).split() == ["0", "CU_FILE_INVALID_HANDLE", "CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED"]


def test_the_version_is_one_number() -> None:
    assert cufile.get_version() == 1170


# Handles


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_DIRECT])
def test_a_descriptor_is_registered(path: pathlib.Path, memory: Any, flags: int) -> None:
    try:
        os.close(os.open(path, flags))
    except OSError:
        pytest.skip("the file system has no direct I/O")
    with registered(path, flags) as fh:
        buffer = memory.empty(SIZE)
        assert cufile.pread(fh, memory.address(buffer), SIZE, 0, 0) == SIZE
        assert memory.bytes(buffer) == path.read_bytes()


class Descr(ctypes.Structure):
    """CUfileDescr_t."""

    _fields_ = [("type", ctypes.c_int), ("fd", ctypes.c_int64), ("fs_ops", ctypes.c_void_p)]


def test_a_descriptor_struct_is_registered(path: pathlib.Path, memory: Any) -> None:
    with open(path, "rb") as file:
        descr = Descr(cufile.FileHandleType.CU_FILE_HANDLE_TYPE_OPAQUE_FD, file.fileno())
        fh = cufile.handle_register(ctypes.addressof(descr))
        buffer = memory.empty(10)
        assert cufile.pread(fh, memory.address(buffer), 10, 5, 0) == 10
        assert memory.bytes(buffer) == path.read_bytes()[5:15]
        cufile.handle_deregister(fh)


def test_other_descriptor_structs_are_refused(path: pathlib.Path) -> None:
    descr = Descr(cufile.FileHandleType.CU_FILE_HANDLE_TYPE_OPAQUE_WIN32, 1)
    with raises(Status.CU_FILE_IO_NOT_SUPPORTED, "descriptor struct type 2"):
        cufile.handle_register(ctypes.addressof(descr))
    descr = Descr(cufile.FileHandleType.CU_FILE_HANDLE_TYPE_OPAQUE_FD, 60_000)
    with raises(Status.CU_FILE_INVALID_VALUE, "60000"):
        cufile.handle_register(ctypes.addressof(descr))


@pytest.mark.parametrize("descr", [-1, 60_000, 0x1234567890, 1 << 70])
def test_what_is_neither_descriptor_nor_address_is_refused(descr: int) -> None:
    with raises(Status.CU_FILE_INVALID_VALUE):
        cufile.handle_register(descr)


def test_directories_and_pipes_are_refused(tmp_path: pathlib.Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    pipe = os.pipe()
    for descriptor in (directory, pipe[0]):
        with raises(OpError.CU_FILE_INVALID_FILE_TYPE):
            cufile.handle_register(descriptor)
    for descriptor in (directory, *pipe):
        os.close(descriptor)


def test_a_file_that_is_closed_meanwhile_is_named_by_its_descriptor(path: pathlib.Path) -> None:
    with open(path, "rb") as file:
        fh = cufile.handle_register(file.fileno())
        used = cufile._driver.find_file(fh)
        assert used.name == str(path)
        cufile.handle_deregister(fh)
        assert used.name == f"descriptor {file.fileno()}"


def test_appending_descriptors_are_refused(path: pathlib.Path) -> None:
    with open(path, "ab") as file, raises(Status.CU_FILE_INVALID_FILE_OPEN_FLAG, "O_APPEND"):
        cufile.handle_register(file.fileno())


def test_a_descriptor_is_registered_once(path: pathlib.Path) -> None:
    with open(path, "rb") as file:
        fh = cufile.handle_register(file.fileno())
        with raises(OpError.CU_FILE_HANDLE_ALREADY_REGISTERED):
            cufile.handle_register(file.fileno())
        cufile.handle_deregister(fh)
        again = cufile.handle_register(file.fileno())
        assert again != fh
        cufile.handle_deregister(again)


def test_a_handle_survives_the_callers_close(path: pathlib.Path, tmp_path: pathlib.Path, memory: Any) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    fh = cufile.handle_register(descriptor)
    os.close(descriptor)
    other = tmp_path / "other"
    other.write_bytes(b"other")
    reused = os.open(other, os.O_RDONLY)
    assert reused == descriptor
    another = cufile.handle_register(reused)
    buffer = memory.empty(5)
    cufile.read(fh, memory.address(buffer), 5, 0, 0)
    assert memory.bytes(buffer) == path.read_bytes()[:5]
    cufile.read(another, memory.address(buffer), 5, 0, 0)
    assert memory.bytes(buffer) == b"other"
    for each in (fh, another):
        cufile.handle_deregister(each)
    os.close(reused)


def test_deregistering_leaks_no_descriptor(path: pathlib.Path, memory: Any) -> None:
    before = os.listdir("/proc/self/fd")
    with registered(path) as fh:
        cufile.read(fh, memory.address(memory.empty(8)), 8, 0, 0)
    assert os.listdir("/proc/self/fd") == before


def test_stale_and_unknown_handles_are_refused_by_every_call(path: pathlib.Path, memory: Any) -> None:
    with registered(path) as stale:
        pass  # and now it is deregistered
    address = memory.address(memory.empty(8))
    for fh in (stale, 0, -1, 1 << 40):
        for call in (
            lambda: cufile.handle_deregister(fh),
            lambda: cufile.read(fh, address, 8, 0, 0),
            lambda: cufile.write(fh, address, 8, 0, 0),
            lambda: cufile.pread(fh, address, 8, 0, 0),
            lambda: cufile.pwrite(fh, address, 8, 0, 0),
            lambda: cufile.read_async(fh, address, 8, 0, 0, 0, 0),
            lambda: cufile.write_async(fh, address, 8, 0, 0, 0, 0),
            lambda: cufile.readv(fh, [], 0, 0, 0),
            lambda: cufile.writev(fh, [], 0, 0, 0),
            lambda: cufile.get_file_properties(fh),
            lambda: cufile.set_file_properties(fh, {}),
        ):
            with raises(Status.CU_FILE_INVALID_HANDLE):
                call()


# Blocking reads and writes


@pytest.mark.parametrize(("size", "offset", "skip"), [(1, 0, 0), (4096, 4096, 0), (8191, 4097, 13), (SIZE, 0, 5)])
def test_ranges_move_between_file_and_memory(
    path: pathlib.Path, handle: int, memory: Any, size: int, offset: int, skip: int
) -> None:
    buffer = memory.of(b"\xee" * (size + skip + 3))
    cufile.read(handle, memory.address(buffer), size, offset, skip)
    expected = b"\xee" * skip + path.read_bytes()[offset : offset + size] + b"\xee" * 3
    assert memory.bytes(buffer) == expected
    cufile.write(handle, memory.address(buffer), size, SIZE + 10, skip)
    assert path.read_bytes()[SIZE:] == bytes(10) + expected[skip : skip + size]


def test_counting_calls_tell_the_bytes_moved(handle: int, memory: Any) -> None:
    address = memory.address(memory.empty(100))
    assert cufile.pread(handle, address, 100, SIZE - 30, 0) == 30
    assert cufile.pread(handle, address, 100, SIZE + 5, 0) == 0
    assert cufile.pread(handle, address, 0, 0, 0) == 0
    assert cufile.pwrite(handle, address, 100, SIZE, 0) == 100
    assert cufile.pwrite(handle, address, 0, 0, 0) == 0


def test_a_short_read_fills_what_there_is(path: pathlib.Path, handle: int, memory: Any) -> None:
    buffer = memory.of(b"\xee" * 100)
    cufile.read(handle, memory.address(buffer), 100, SIZE - 30, 0)
    assert memory.bytes(buffer) == path.read_bytes()[-30:] + b"\xee" * 70


@pytest.mark.parametrize("arguments", [(-1, 0, 0), (8, -1, 0), (8, 0, -1)])
def test_negative_numbers_are_invalid(handle: int, memory: Any, arguments: tuple[int, int, int]) -> None:
    address = memory.address(memory.empty(16))
    for call in (cufile.read, cufile.write, cufile.pread, cufile.pwrite):
        with raises(Status.CU_FILE_INVALID_VALUE, "is -1"):
            call(handle, address, *arguments)
    for queue in (cufile.read_async, cufile.write_async):
        with raises(Status.CU_FILE_INVALID_VALUE):
            queue(handle, address, *arguments, 0, 0)


@pytest.mark.parametrize("arguments", [(1 << 63, 0, 0), (8, 1 << 63, 0), (8, 0, 1 << 70)])
def test_numbers_beyond_64_bits_are_invalid(handle: int, memory: Any, arguments: tuple[int, int, int]) -> None:
    address = memory.address(memory.empty(16))
    for call in (cufile.read, cufile.write, cufile.pread, cufile.pwrite):
        with raises(Status.CU_FILE_INVALID_VALUE):
            call(handle, address, *arguments)
    with raises(Status.CU_FILE_INVALID_VALUE):
        cufile.readv(handle, IOVec(address, arguments[0], 0, arguments[2]), 1, arguments[1], 0)


@pytest.mark.parametrize("address", [0, -8, 1 << 64])
def test_null_is_invalid(handle: int, address: int) -> None:
    for call in (cufile.read, cufile.write, cufile.pread, cufile.pwrite):
        with raises(Status.CU_FILE_INVALID_VALUE):
            call(handle, address, 8, 0, 0)


def test_the_descriptors_access_is_enforced(path: pathlib.Path, memory: Any) -> None:
    address = memory.address(memory.empty(8))
    with registered(path, os.O_RDONLY) as fh:
        for call in (cufile.write, cufile.pwrite):
            with raises(Status.CU_FILE_INVALID_FILE_OPEN_FLAG, "not open for writing"):
                call(fh, address, 8, 0, 0)
        with raises(Status.CU_FILE_INVALID_FILE_OPEN_FLAG):
            cufile.writev(fh, IOVec(address, 8), 1, 0, 0)
    with registered(path, os.O_WRONLY) as fh:
        for call in (cufile.read, cufile.pread):
            with raises(Status.CU_FILE_INVALID_FILE_OPEN_FLAG, "not open for reading"):
                call(fh, address, 8, 0, 0)


def test_device_memory_past_its_allocation_is_refused(handle: int, device_memory: Any) -> None:
    address = device_memory.address(device_memory.empty(4096))
    with raises(OpError.CU_FILE_CUDA_POINTER_INVALID):
        cufile.read(handle, address, 1 << 30, 0, 0)


def test_host_memory_that_is_not_mapped_is_an_error(handle: int) -> None:
    with raises(OpError.CU_FILE_CUDA_POINTER_INVALID):
        cufile.read(handle, 1 << 16, 8, 0, 0)


def test_a_full_disk_is_an_io_error(memory: Any) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    descriptor = os.open("/dev/full", os.O_RDWR)
    try:
        with raises(OpError.CU_FILE_INVALID_FILE_TYPE):
            cufile.handle_register(descriptor)
    finally:
        os.close(descriptor)


# Registered memory


def test_memory_is_registered_once_and_deregistered_once(memory: Any) -> None:
    buffer = memory.empty(4096)
    address = memory.address(buffer)
    cufile.buf_register(address, 4096, cufile.CU_FILE_BUF_REGISTER_FLAGS_NONE)
    with raises(Status.CU_FILE_MEMORY_ALREADY_REGISTERED):
        cufile.buf_register(address, 100, 0)
    cufile.buf_deregister(address)
    with raises(Status.CU_FILE_MEMORY_NOT_REGISTERED):
        cufile.buf_deregister(address)


def test_device_memory_is_registered_with_the_engine(handle: int, device_memory: Any) -> None:
    address = device_memory.address(device_memory.empty(SIZE))
    before = penstock.stats()["usage"]["registrations"]
    cufile.buf_register(address, SIZE, 0)
    assert cufile.pread(handle, address, SIZE, 0, 0) == SIZE
    cufile.buf_deregister(address)
    assert penstock.stats()["usage"]["registrations"] == before + 1


def test_memory_that_is_freed_while_registered_is_an_error_until_it_is_deregistered(handle: int) -> None:
    memory = penstock.device("host:0").empty(SIZE)
    address = memory.ptr
    cufile.buf_register(address, SIZE, 0)
    del memory
    gc.collect()
    with raises(OpError.CU_FILE_CUDA_POINTER_INVALID):
        cufile.pread(handle, address, SIZE, 0, 0)
    cufile.buf_deregister(address)
    with raises(Status.CU_FILE_MEMORY_NOT_REGISTERED):
        cufile.buf_deregister(address)


def test_the_last_close_ends_registrations() -> None:
    script = """
import penstock
from penstock import cufile
memory = penstock.device("host:0").empty(4096)
cufile.buf_register(memory.ptr, 4096, 0)
cufile.driver_close()
print(penstock.stats()["usage"]["registrations"])
"""
    assert in_new_process(script) == "1\n"


def test_wrong_registrations_are_refused(device_memory: Any) -> None:
    buffer = device_memory.empty(4096)
    address = device_memory.address(buffer)
    for arguments in ((0, 10, 0), (address, 0, 0), (address, -1, 0), (address, 4096, 3), (address, 4096, -1)):
        with raises(Status.CU_FILE_INVALID_VALUE):
            cufile.buf_register(*arguments)
    with raises(Status.CU_FILE_INVALID_VALUE):
        cufile.buf_deregister(0)
    with raises(OpError.CU_FILE_CUDA_POINTER_RANGE_ERROR):
        cufile.buf_register(address, 1 << 40, 0)


def test_a_read_only_buffer_takes_reads_only(handle: int, memory: Any) -> None:
    buffer = memory.empty(4096)
    address = memory.address(buffer)
    cufile.buf_register(address, 4096, cufile.CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY)
    cufile.read(handle, address, 4096, 0, 0)
    cufile.readv(handle, IOVec(address, 10), 1, 0, 0)
    for call in (cufile.write, cufile.pwrite):
        with raises(Status.CU_FILE_PERMISSION_DENIED, "for writes.*READ_ONLY"):
            call(handle, address, 10, 0, 20)
    with raises(Status.CU_FILE_PERMISSION_DENIED, "for writes"):
        cufile.write(handle, address + 100, 10, 0, 0)
    with raises(Status.CU_FILE_PERMISSION_DENIED, "piece 1: "):
        cufile.writev(handle, [IOVec(), IOVec(address, 10)], 2, 0, 0)
    cufile.buf_deregister(address)
    cufile.write(handle, address, 10, 0, 0)


def test_a_write_only_buffer_takes_writes_only(handle: int, memory: Any) -> None:
    buffer = memory.empty(4096)
    address = memory.address(buffer)
    cufile.buf_register(address, 4096, cufile.CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY)
    cufile.write(handle, address, 4096, 0, 0)
    for call in (cufile.read, cufile.pread):
        with raises(Status.CU_FILE_PERMISSION_DENIED, "for reads.*WRITE_ONLY"):
            call(handle, address, 10, 0, 0)
    cufile.buf_deregister(address)


def test_every_module_knows_a_registered_buffer(memory: Any) -> None:
    from penstock.cuda_bindings import cufile as bindings

    buffer = memory.empty(4096)
    address = memory.address(buffer)
    bindings.buf_register(address, 4096, 0)
    with raises(Status.CU_FILE_MEMORY_ALREADY_REGISTERED):
        cufile.buf_register(address, 4096, 0)
    cufile.buf_deregister(address)
    cufile.buf_register(address, 4096, 0)
    bindings.buf_deregister(address)
    with raises(Status.CU_FILE_MEMORY_NOT_REGISTERED):
        cufile.buf_deregister(address)


def test_every_module_obeys_the_direction_of_a_buffer(path: pathlib.Path, memory: Any) -> None:
    from penstock.cuda_bindings import cufile as bindings

    buffer = memory.empty(4096)
    address = memory.address(buffer)
    cufile.buf_register(address, 4096, cufile.CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY)
    descr = bindings.Descr()
    with open(path, "r+b") as file:
        descr.type, descr.handle.fd = bindings.FileHandleType.OPAQUE_FD, file.fileno()
        fh = bindings.handle_register(descr)
        assert bindings.read(fh, address, 4096, 0, 0) == 4096
        with raises(Status.CU_FILE_PERMISSION_DENIED):
            bindings.write(fh, address, 10, 0, 20)
        bindings.handle_deregister(fh)
    cufile.buf_deregister(address)


def test_directions_are_checked_for_stream_ordered_calls_too(handle: int, device_memory: Any) -> None:
    buffer = device_memory.empty(4096)
    address = device_memory.address(buffer)
    for flags, call in (
        (cufile.CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY, cufile.write_async),
        (cufile.CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY, cufile.read_async),
    ):
        cufile.buf_register(address, 4096, flags)
        with raises(Status.CU_FILE_PERMISSION_DENIED):
            call(handle, address, 10, 0, 0, 0, 0)
        cufile.buf_deregister(address)


def test_a_registered_length_bounds_the_range(handle: int, memory: Any) -> None:
    buffer = memory.empty(4096)
    address = memory.address(buffer)
    cufile.buf_register(address, 1000, 0)
    cufile.read(handle, address, 1000, 0, 0)
    for size, skip in ((1001, 0), (10, 991), (10, 4000)):
        with raises(OpError.CU_FILE_INVALID_MAPPING_RANGE):
            cufile.read(handle, address, size, 0, skip)
    cufile.buf_deregister(address)


# Scattered reads and writes


def test_pieces_are_scattered_in_the_file_and_in_memory(path: pathlib.Path, handle: int, memory: Any) -> None:
    content = path.read_bytes()
    first, second, total = memory.of(b"\xee" * 100), memory.of(b"\xee" * 50), memory.of(b"\xee" * 8)
    pieces = [
        IOVec(ptr=memory.address(first), size=10, file_offset=5000, buf_offset=20),
        IOVec(ptr=memory.address(second), size=50, file_offset=3),
        IOVec(ptr=memory.address(first), size=7, file_offset=4096, buf_offset=93),
    ]
    cufile.readv(handle, pieces, 3, 1000, memory.address(total))
    assert memory.bytes(first) == b"\xee" * 20 + content[6000:6010] + b"\xee" * 63 + content[5096:5103]
    assert memory.bytes(second) == content[1003:1053]
    assert count_in(memory, total) == 67


def test_pieces_are_gathered_into_the_file(path: pathlib.Path, handle: int, memory: Any, pattern: Any) -> None:
    content = path.read_bytes()
    source, total = memory.of(pattern(100)), memory.empty(8)
    address = memory.address(source)
    pieces = (IOVec(address, 30, 0, 70), IOVec(address, 20, SIZE + 5), IOVec(address, 1, 10, 99))
    cufile.writev(handle, pieces, 3, 0, memory.address(total))
    assert count_in(memory, total) == 51
    expected = pattern(100)[70:] + content[30:] + bytes(5) + pattern(100)[:20]
    assert path.read_bytes() == expected[:10] + pattern(100)[99:] + expected[11:]


def test_a_single_piece_needs_no_list(path: pathlib.Path, handle: int, memory: Any) -> None:
    buffer = memory.empty(9)
    cufile.readv(handle, IOVec(memory.address(buffer), 9), 1, 2, 0)
    assert memory.bytes(buffer) == path.read_bytes()[2:11]


def test_only_the_first_pieces_are_moved(handle: int, memory: Any) -> None:
    buffer, total = memory.empty(9), memory.empty(8)
    pieces = [IOVec(memory.address(buffer), 4), IOVec(0, 4)]
    cufile.readv(handle, pieces, 1, 0, memory.address(total))
    assert count_in(memory, total) == 4
    cufile.readv(handle, pieces, 0, 0, memory.address(total))
    assert count_in(memory, total) == 0


def test_pieces_at_the_end_are_short(handle: int, memory: Any) -> None:
    buffer, total = memory.empty(100), memory.empty(8)
    address = memory.address(buffer)
    pieces = [IOVec(address, 40, SIZE - 10), IOVec(address, 40, SIZE, 40), IOVec(address, 5, 0, 80)]
    cufile.readv(handle, pieces, 3, 0, memory.address(total))
    assert count_in(memory, total) == 15


def test_many_small_pieces_make_one_batch(path: pathlib.Path, handle: int, memory: Any) -> None:
    content = path.read_bytes()
    count = 3000
    buffer, total = memory.empty(count * 16), memory.empty(8)
    address = memory.address(buffer)
    pieces = [IOVec(address, 16, (i * 7919) % (SIZE - 16), i * 16) for i in range(count)]
    cufile.readv(handle, pieces, count, 0, memory.address(total))
    assert count_in(memory, total) == count * 16
    assert memory.bytes(buffer) == b"".join(content[piece.file_offset : piece.file_offset + 16] for piece in pieces)


def test_wrong_pieces_are_named(handle: int, memory: Any) -> None:
    address = memory.address(memory.empty(16))
    good = IOVec(address, 4)
    for call in (cufile.readv, cufile.writev):
        with raises(Status.CU_FILE_INVALID_VALUE, "piece 1: address"):
            call(handle, [good, IOVec(0, 4)], 2, 0, 0)
        with raises(Status.CU_FILE_INVALID_VALUE, "piece 0: file_offset is -1"):
            call(handle, [IOVec(address, 4, -1)], 1, 0, 0)
        with raises(Status.CU_FILE_INVALID_VALUE, "piece 0: buffer offset is -1"):
            call(handle, [IOVec(address, 4, 0, -1)], 1, 0, 0)
        with raises(Status.CU_FILE_INVALID_VALUE, "piece 0: size is -4"):
            call(handle, [IOVec(address, -4)], 1, 0, 0)
        with raises(Status.CU_FILE_INVALID_VALUE, "iovcnt is 2, but there are 1 pieces"):
            call(handle, [good], 2, 0, 0)
        with raises(Status.CU_FILE_INVALID_VALUE, "iovcnt"):
            call(handle, [good], -1, 0, 0)
        with raises(Status.CU_FILE_INVALID_VALUE, "file_offset is -1"):
            call(handle, [good], 1, -1, 0)


def test_iovec_is_settable() -> None:
    piece = IOVec()
    assert (piece.ptr, piece.size, piece.file_offset, piece.buf_offset) == (0, 0, 0, 0)
    piece.ptr, piece.size, piece.file_offset, piece.buf_offset = 1, 2, 3, 4
    assert piece == IOVec(ptr=1, size=2, file_offset=3, buf_offset=4)
    assert repr(piece) == "IOVec(ptr=1, size=2, file_offset=3, buf_offset=4)"


# In the order of a stream


def test_reads_and_writes_follow_each_other_on_a_stream(
    path: pathlib.Path, handle: int, device_memory: Any
) -> None:
    content = path.read_bytes()
    first, second = device_memory.empty(1000), device_memory.empty(1000)
    counts = [device_memory.of(b"\xee" * 8) for _ in range(3)]
    addresses = [device_memory.address(count) for count in counts]
    one, two = device_memory.address(first), device_memory.address(second)
    cufile.read_async(handle, one, 900, 77, 100, addresses[0], 0)
    cufile.write_async(handle, one, 1000, SIZE, 0, addresses[1], 0)
    cufile.read_async(handle, two, 1000, SIZE + 100, 0, addresses[2], 0)
    cufile.synchronize(0)
    assert [count_in(device_memory, count) for count in counts] == [900, 1000, 900]
    assert device_memory.bytes(first)[100:] == content[77:977]
    assert device_memory.bytes(second)[:900] == content[77:977]


def test_the_count_may_be_in_host_memory(handle: int, device_memory: Any) -> None:
    buffer = device_memory.empty(100)
    counts = (ctypes.c_int64 * 2)(-5, -5)
    address = ctypes.addressof(counts)
    cufile.read_async(handle, device_memory.address(buffer), 100, SIZE - 10, 0, address, 0)
    cufile.write_async(handle, device_memory.address(buffer), 50, 0, 50, address + 8, 0)
    cufile.synchronize()
    assert list(counts) == [10, 50]


def test_no_count_is_wanted(path: pathlib.Path, handle: int, device_memory: Any) -> None:
    buffer = device_memory.empty(100)
    cufile.read_async(handle, device_memory.address(buffer), 100, 0, 0, 0, 0)
    cufile.synchronize(0)
    assert device_memory.bytes(buffer) == path.read_bytes()[:100]


def test_a_failed_operation_stores_a_negative_count(handle: int, device_memory: Any) -> None:
    address = device_memory.address(device_memory.empty(4096))
    count = ctypes.c_int64(5)
    cufile.read_async(handle, address, 1 << 30, 0, 0, ctypes.addressof(count), 0)
    cufile.synchronize(0)
    assert count.value < 0


def test_host_memory_has_no_stream(handle: int) -> None:
    memory = (ctypes.c_char * 8)()
    for call in (cufile.read_async, cufile.write_async):
        with raises(Status.CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED):
            call(handle, ctypes.addressof(memory), 8, 0, 0, 0, 0)


def test_waiting_for_an_idle_stream_returns() -> None:
    cufile.synchronize(0)


def test_deregistering_waits_for_what_is_queued(path: pathlib.Path, device_memory: Any) -> None:
    buffer = device_memory.empty(SIZE)
    with registered(path) as fh:
        cufile.read_async(fh, device_memory.address(buffer), SIZE, 0, 0, 0, 0)
    assert device_memory.bytes(buffer) == path.read_bytes()


# Properties


def test_properties_describe_the_file(path: pathlib.Path, handle: int) -> None:
    path.read_bytes()
    told = cufile.get_file_properties(handle)
    assert told["name"] == str(path)
    assert told["size"] == SIZE
    assert told["file_system"] and os.path.ismount(told["mount"])
    assert len(told["direct_io_alignment"]) == 2
    assert told["residency"] == SIZE
    assert (told["path"], told["direct_io"], told["priority"]) == ("automatic", False, "automatic")
    for key in ("read_paths", "write_paths"):
        assert sum(length for _, length, _, _ in told[key]) == SIZE
        assert all(name in ("posix", "staged", "mapped", "direct", "dma_buf") and reason for _, _, name, reason in told[key])
    assert all(isinstance(remark, str) for remark in told["remarks"])


def test_properties_tell_of_the_directions_that_are_open(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with registered(path, os.O_RDONLY) as fh:
        told = cufile.get_file_properties(fh)
        assert told["read_paths"] and not told["write_paths"]
    with registered(path, os.O_WRONLY) as fh:
        told = cufile.get_file_properties(fh)
        assert told["write_paths"] and not told["read_paths"]
    empty = tmp_path / "empty"
    empty.touch()
    with registered(empty) as fh:
        assert cufile.get_file_properties(fh)["size"] == 0


def test_a_forced_path_is_taken(handle: int, memory: Any) -> None:
    path = "staged" if memory.device else "posix"
    cufile.set_file_properties(handle, {"path": path})
    assert cufile.get_file_properties(handle)["path"] == path
    before = penstock.stats()
    buffer = memory.empty(SIZE)
    assert cufile.pread(handle, memory.address(buffer), SIZE, 0, 0) == SIZE
    assert operations(path) > before["paths"][path]["operations"]
    cufile.set_file_properties(handle, {"path": "automatic"})
    assert cufile.get_file_properties(handle)["path"] == "automatic"


def operations(path: str) -> int:
    return int(penstock.stats()["paths"][path]["operations"])


@pytest.mark.parametrize("priority", ["speed", "cpu", "automatic"])
def test_a_priority_is_kept_and_reads_stay_right(path: pathlib.Path, handle: int, memory: Any, priority: str) -> None:
    cufile.set_file_properties(handle, {"priority": priority})
    assert cufile.get_file_properties(handle)["priority"] == priority
    buffer = memory.empty(SIZE)
    cufile.read(handle, memory.address(buffer), SIZE, 0, 0)
    assert memory.bytes(buffer) == path.read_bytes()


def test_direct_io_is_switched(path: pathlib.Path, handle: int, memory: Any, pattern: Any) -> None:
    try:
        cufile.set_file_properties(handle, {"direct_io": True})
    except cuFileError as error:
        assert error.status == Status.CU_FILE_IO_NOT_SUPPORTED
        pytest.skip("the file system has no direct I/O")
    assert cufile.get_file_properties(handle)["direct_io"] is True
    content = pattern((2 << 20) + 5)
    buffer = memory.of(content)
    cufile.write(handle, memory.address(buffer), len(content), 0, 0)
    assert path.read_bytes() == content
    cufile.set_file_properties(handle, {"direct_io": False})
    assert cufile.get_file_properties(handle)["direct_io"] is False
    back = memory.empty(len(content))
    cufile.read(handle, memory.address(back), len(content), 0, 0)
    assert memory.bytes(back) == content


@pytest.mark.parametrize(
    ("props", "words"),
    [
        ({"colour": 1}, "'colour'"),
        ({"path": "fastest"}, "path must be one of .*'fastest'"),
        ({"path": None}, "path"),
        ({"direct_io": 2}, "direct_io"),
        ({"direct_io": 1}, "direct_io"),
        ({"priority": 0}, "priority"),
        ({"size": 5}, "'size'"),
    ],
)
def test_wrong_properties_are_named_and_change_nothing(handle: int, props: dict[str, Any], words: str) -> None:
    before = cufile.get_file_properties(handle)
    with raises(Status.CU_FILE_INVALID_VALUE, words):
        cufile.set_file_properties(handle, {"priority": "cpu", **props})
    assert cufile.get_file_properties(handle) == before


def test_properties_tell_whether_nvidia_fs_is_loaded(handle: int) -> None:
    told = cufile.get_file_properties(handle)
    there = os.path.exists("/proc/driver/nvidia-fs/version")
    assert bool(told["nvidia_fs"]) is there
    assert told["gpu_direct"] is False or penstock.gpu_direct_status() is None


def test_properties_hold_for_pieces(path: pathlib.Path, handle: int, memory: Any) -> None:
    name = "staged" if memory.device else "posix"
    cufile.set_file_properties(handle, {"path": name})
    buffer = memory.empty(200)
    address = memory.address(buffer)
    before = operations(name)
    cufile.readv(handle, [IOVec(address, 100, 1000), IOVec(address + 100, 100, 5000)], 2, 0, 0)
    content = path.read_bytes()
    assert memory.bytes(buffer) == content[1000:1100] + content[5000:5100]
    assert operations(name) > before
    cufile.set_file_properties(handle, {"path": "direct"})
    if not cufile.get_file_properties(handle)["gpu_direct"]:
        with raises(Status.CU_FILE_IO_NOT_SUPPORTED, "direct"):
            cufile.readv(handle, IOVec(address, 100), 1, 0, 0)


def test_properties_hold_for_streams(path: pathlib.Path, handle: int, device_memory: Any) -> None:
    buffer = device_memory.empty(SIZE)
    address = device_memory.address(buffer)
    for name in ("posix", "mapped", "direct", "dma_buf"):
        cufile.set_file_properties(handle, {"path": name})
        for call in (cufile.read_async, cufile.write_async):
            with raises(OpError.CU_FILE_ASYNC_NOT_SUPPORTED, f"has the path {name} set"):
                call(handle, address, 10, 0, 0, 0, 0)
    cufile.set_file_properties(handle, {"path": "staged", "priority": "cpu"})
    cufile.read_async(handle, address, SIZE, 0, 0, 0, 0)
    cufile.synchronize(0)
    assert device_memory.bytes(buffer) == path.read_bytes()


# What cuda.bindings.cufile has too


def test_a_batch_names_files_by_this_modules_handles(path: pathlib.Path, memory: Any, pattern: Any) -> None:
    buffer = memory.empty(SIZE)
    with registered(path) as fh:
        batch = cufile.batch_io_set_up(2)
        params = two_reads(fh, memory.address(buffer))
        cufile.batch_io_submit(batch, 1, params, 0)
        cufile.batch_io_submit(batch, 1, params[1].ptr, 0)
        events, room = cufile.IOEvents(2), ctypes.c_uint(2)
        cufile.batch_io_get_status(batch, 2, ctypes.addressof(room), events.ptr, 0)
        assert room.value == 2 and sorted(events.ret) == [77, 64 * 1024]
        assert memory.bytes(buffer) == pattern(SIZE)
        assert params[0].fh == params[1].fh == fh
        for status, call in {
            Status.CU_FILE_INVALID_HANDLE: lambda: cufile.batch_io_submit(batch, 1, two_reads(fh + 1000, 4096), 0),
            OpError.CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR: lambda: cufile.batch_io_submit(batch, 0, params, 0),
            Status.CU_FILE_INVALID_VALUE: lambda: cufile.batch_io_submit(batch, 1, 1 << 20, 0),
        }.items():
            with raises(status):
                call()
        cufile.batch_io_destroy(batch)


def test_a_batch_obeys_the_direction_of_a_buffer(handle: int, memory: Any) -> None:
    buffer = memory.empty(SIZE)
    address = memory.address(buffer)
    cufile.buf_register(address, SIZE, cufile.CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY)
    batch = cufile.batch_io_set_up(2)
    params = two_reads(handle, address)
    params[1].opcode = cufile.Opcode.WRITE
    cufile.batch_io_submit(batch, 2, params, 0)
    events, room = cufile.IOEvents(2), ctypes.c_uint(2)
    cufile.batch_io_get_status(batch, 2, ctypes.addressof(room), events.ptr, 0)
    assert sorted(ctypes.c_int64(each.ret).value for each in events) == [-Status.CU_FILE_PERMISSION_DENIED, 77]
    cufile.batch_io_destroy(batch)
    cufile.buf_deregister(address)


def test_a_batch_refuses_a_path_and_takes_the_descriptor_in_use(path: pathlib.Path, handle: int, memory: Any, pattern: Any) -> None:
    buffer = memory.empty(SIZE)
    batch = cufile.batch_io_set_up(2)
    cufile.set_file_properties(handle, {"path": "posix"})
    with raises(Status.CU_FILE_IO_NOT_SUPPORTED, "has the path posix set"):
        cufile.batch_io_submit(batch, 2, two_reads(handle, memory.address(buffer)), 0)
    cufile.set_file_properties(handle, {"path": "automatic"})
    used = []
    for direct in (False, True, False):
        try:
            cufile.set_file_properties(handle, {"direct_io": direct})
        except cuFileError:
            pytest.skip("the file system has no direct I/O")
        cufile.batch_io_submit(batch, 2, two_reads(handle, memory.address(buffer)), 0)
        events, room = cufile.IOEvents(2), ctypes.c_uint(2)
        cufile.batch_io_get_status(batch, 2, ctypes.addressof(room), events.ptr, 0)
        assert memory.bytes(buffer) == pattern(SIZE)
        used.append(cufile._driver.find_file(handle).library_handle())
    assert used[0] == used[2] != used[1]
    cufile.batch_io_destroy(batch)


def test_a_batch_without_room_for_a_descriptor_works_through_the_one_that_is_open(tmp_path: pathlib.Path) -> None:
    script = """
import resource
os.pwrite(fd, b"content!", 0)
fh = cufile.handle_register(fd)
batch = cufile.batch_io_set_up(1)
params, events = cufile.IOParams(1), cufile.IOEvents(1)
params.mode, params.opcode, params.fh = cufile.BatchMode.BATCH, cufile.Opcode.READ, fh
params.u.batch.dev_ptr_base, params.u.batch.size_ = device.ptr, 8
resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
cufile.batch_io_submit(batch, 1, params, 0)
room = ctypes.c_uint(1)
cufile.batch_io_get_status(batch, 1, ctypes.addressof(room), events.ptr, 0)
print(room.value, events.ret, device.to_host()[:8])
"""
    assert with_settings(script, "{}", tmp_path)[-1] == "1 8 b'content!'"


def two_reads(fh: int, address: int) -> Any:
    """Reads of the whole file, in two parts."""
    params = cufile.IOParams(2)
    params.mode, params.opcode, params.fh = cufile.BatchMode.BATCH, cufile.Opcode.READ, fh
    params.u.batch.dev_ptr_base = address
    params.u.batch.file_offset = params.u.batch.dev_ptr_offset = [0, 64 * 1024]
    params.u.batch.size_ = [64 * 1024, 77]
    return params


def test_statistics_count_reads_and_writes_while_they_are_on(handle: int, memory: Any, pattern: Any) -> None:
    buffer = memory.empty(SIZE)
    address = memory.address(buffer)
    cufile.set_stats_level(1)
    cufile.stats_start()
    assert cufile.pread(handle, address, SIZE, 0, 0) == SIZE and memory.bytes(buffer) == pattern(SIZE)
    assert cufile.pwrite(handle, address, 100, 0, 50) == 100
    cufile.readv(handle, [IOVec(address, 10), IOVec(address, 5, file_offset=10, buf_offset=10)], 2, 0, 0)
    with raises(Status.CU_FILE_IO_NOT_SUPPORTED if memory.device else OpError.CU_FILE_CUDA_POINTER_INVALID):
        cufile.set_file_properties(handle, {"path": "mapped" if memory.device else "automatic"})
        cufile.pread(handle, address if memory.device else 1 << 46, SIZE, 0, 0)
    cufile.set_file_properties(handle, {"path": "automatic"})
    cufile.stats_stop()
    cufile.pread(handle, address, SIZE, 0, 0)
    told = cufile.StatsLevel1()
    cufile.get_stats_l1(told.ptr)
    assert (told.read_ops.ok, told.read_ops.err, told.write_ops.ok, told.write_bytes) == (2, 1, 1, 100)
    assert told.read_bytes == SIZE + 15
    cufile.stats_reset()
    cufile.set_stats_level(0)


def test_statistics_count_what_is_refused_and_what_is_registered(path: pathlib.Path, memory: Any) -> None:
    address = memory.address(memory.empty(4096))
    cufile.set_stats_level(1)
    cufile.stats_start()
    with registered(path, os.O_RDONLY) as fh:
        for call in (
            lambda: cufile.pread(fh, address, -1, 0, 0),
            lambda: cufile.pwrite(fh, address, 8, 0, 0),
            lambda: cufile.readv(fh, IOVec(0, 8), 1, 0, 0),
            lambda: cufile.buf_register(address, 0, 0),
            lambda: cufile.handle_register(-1),
            lambda: cufile.handle_deregister(fh + 1000),
        ):
            with pytest.raises(cuFileError):
                call()
        cufile.buf_register(address, 4096, 0)
        cufile.buf_deregister(address)
    cufile.stats_stop()
    told = cufile.StatsLevel1()
    cufile.driver_open()
    cufile.get_stats_l1(told.ptr)
    cufile.driver_close()
    counts = {name: (getattr(told, f"{name}_ops").ok, getattr(told, f"{name}_ops").err) for name in ("read", "write", "hdl_register")}
    assert counts == {"read": (0, 2), "write": (0, 1), "hdl_register": (1, 1)}
    assert (told.hdl_deregister_ops.ok, told.hdl_deregister_ops.err) == (1, 1)
    assert (told.buf_register_ops.ok, told.buf_register_ops.err, told.buf_deregister_ops.ok) == (1, 1, 1)
    cufile.stats_reset()
    cufile.set_stats_level(0)


def test_another_modules_switch_of_the_statistics_counts(tmp_path: pathlib.Path) -> None:
    script = """
from penstock.cuda_bindings import cufile as bindings
fh = cufile.handle_register(fd)
bindings.set_stats_level(1)
bindings.stats_start()
cufile.pread(fh, ctypes.addressof(host), 4096, 0, 0)
cufile.readv(fh, [cufile.IOVec(ctypes.addressof(host), 10)], 1, 0, 0)
bindings.stats_stop()
cufile.pread(fh, ctypes.addressof(host), 4096, 0, 0)
told = cufile.StatsLevel1()
cufile.get_stats_l1(told.ptr)
print(told.read_ops.ok, told.readv_ops.ok, told.readv_bytes)
"""
    assert with_settings(script, "{}", tmp_path, PENSTOCK_CUFILE_VERSION="1.20") == ["2 1 10"]
    assert with_settings(script, "{}", tmp_path) == ["2 0 0"]


def test_cufile_json_may_start_the_statistics(tmp_path: pathlib.Path) -> None:
    script = """
fh = cufile.handle_register(fd)
cufile.pread(fh, ctypes.addressof(host), 4096, 0, 0)
told = cufile.StatsLevel1()
cufile.get_stats_l1(told.ptr)
print(told.read_ops.ok)
"""
    assert with_settings(script, '{"profile": {"cufile_stats": 1}}', tmp_path) == ["1"]


def test_properties_of_the_driver_tell_its_features() -> None:
    stored = (ctypes.c_uint32 * 14)()
    told = cufile.driver_get_properties(ctypes.addressof(stored))
    assert told["max_batch_io_size"] == stored[12] == 128 and told["fflags"] == stored[8]
    flags = cufile.FeatureFlags
    assert told["features"] & ~flags.CU_FILE_FEATURE_GDS_SUPPORTED == (
        flags.CU_FILE_FEATURE_BATCH_IO_SUPPORTED | flags.CU_FILE_FEATURE_ASYNC_IO_SUPPORTED | flags.CU_FILE_FEATURE_VECTOR_IO_SUPPORTED
    )
    assert bool(told["features"] & flags.CU_FILE_FEATURE_GDS_SUPPORTED) == (told["nvfs"] != (0, 0))
    assert cufile.driver_get_properties().keys() == told.keys()


def test_names_of_the_bindings_are_imported_when_they_are_asked_for() -> None:
    script = "import sys; from penstock import cufile; print('numpy' in sys.modules); cufile.IOParams; print('numpy' in sys.modules)"
    assert in_new_process(script).split() == ["False", "True"]
    assert {"IOParams", "stats_reset", "stream_register"} <= set(dir(cufile))
    with pytest.raises(AttributeError, match="nonsense"):
        cufile.nonsense  # noqa: B018


# Settings


def with_settings(script: str, settings: str, tmp_path: pathlib.Path, **variables: str) -> list[str]:
    told = tmp_path / "cufile.json"
    told.write_text(settings)
    start = f"""
import os, ctypes, penstock
from penstock import cufile
def attempt(call):
    try: print("fine", call() and "")
    except cufile.cuFileError as error: print(int(error.status), error.message)
fd = os.open({str(tmp_path / "file")!r}, os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 8192)
device = penstock.device("host:0").empty(4096)
host = ctypes.create_string_buffer(4096)
"""
    environ = dict(os.environ, CUFILE_ENV_PATH_JSON=str(told), **variables)
    done = subprocess.run([sys.executable, "-c", start + script], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_bad_cufile_json_keeps_the_driver_closed(tmp_path: pathlib.Path) -> None:
    script = """
attempt(cufile.driver_open)
attempt(lambda: cufile.handle_register(fd))
attempt(lambda: cufile.buf_register(ctypes.addressof(host), 8, 0))
attempt(cufile.driver_close)
with open(os.environ["CUFILE_ENV_PATH_JSON"], "w") as mended: mended.write("{}")
attempt(cufile.driver_open)
"""
    told = with_settings(script, "{\n  oops", tmp_path)
    assert all(line.startswith("5002 ") and "cufile.json" in line and "line 2" in line for line in told[:3])
    assert told[3].startswith("5001 ") and told[4] == "fine None"


def test_a_cufile_json_that_is_a_folder_is_an_error(tmp_path: pathlib.Path) -> None:
    told = with_settings("os.environ['CUFILE_ENV_PATH_JSON'] = os.path.dirname(os.environ['CUFILE_ENV_PATH_JSON'])\nattempt(cufile.driver_open)", "{}", tmp_path)
    assert told[0].startswith("5002 ") and "not a regular file" in told[0]


def test_settings_are_read_anew_when_the_driver_opens_again(tmp_path: pathlib.Path) -> None:
    script = """
address = ctypes.addressof(host)
cufile.driver_open()
attempt(lambda: cufile.buf_register(address, 8, 0))
fh = cufile.handle_register(fd)
attempt(lambda: cufile.pread(fh, address, 8, 0, 0))
attempt(lambda: cufile.writev(fh, cufile.IOVec(address, 8), 1, 0, 0))
cufile.driver_close()
os.environ["CUFILE_ENV_PATH_JSON"] = "/dev/null"
cufile.driver_open()
attempt(lambda: cufile.buf_register(address, 8, 0))
"""
    told = with_settings(script, '{"properties": {"allow_system_memory": false}}', tmp_path)
    assert all(line.startswith("5013 ") and "allow_system_memory is false" in line for line in told[:3])
    assert told[3] == "fine None"


@pytest.mark.parametrize("settings", ['{"execution": {"parallel_io": false}}', '{"execution": {"max_io_threads": 0}}'])
def test_streams_may_be_forbidden(tmp_path: pathlib.Path, settings: str) -> None:
    script = """
fh = cufile.handle_register(fd)
attempt(lambda: cufile.read_async(fh, device.ptr, 4096, 0, 0, 0, 0))
attempt(lambda: cufile.read(fh, device.ptr, 4096, 0, 0))
"""
    told = with_settings(script, settings, tmp_path)
    assert told[0].startswith("5038 ") and told[1] == "fine None"


def test_the_compatibility_mode_may_be_forbidden_or_forced(tmp_path: pathlib.Path) -> None:
    if penstock.gpu_direct_status() is not None:
        told = with_settings("attempt(lambda: cufile.handle_register(fd))", '{"properties": {"allow_compat_mode": false}}', tmp_path)
        assert told[0].startswith("5008 ") and "allow_compat_mode is false" in told[0]
    script = """
fh = cufile.handle_register(fd)
cufile.read(fh, device.ptr, 4096, 0, 0)
cufile.write(fh, ctypes.addressof(host), 4096, 0, 0)
cufile.readv(fh, [cufile.IOVec(device.ptr, 4096), cufile.IOVec(ctypes.addressof(host), 4096)], 2, 0, 0)
print(penstock.stats()["paths"]["staged"]["bytes"], penstock.stats()["paths"]["posix"]["bytes"])
"""
    told = with_settings(script, "{}", tmp_path, CUFILE_FORCE_COMPAT_MODE="true")
    assert told == ["8192 8192"]


# How far it got


def test_a_write_that_stops_half_way_tells_how_far_it_got(tmp_path: pathlib.Path) -> None:
    script = """
import pickle, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
fh = cufile.handle_register(fd)
for address in (ctypes.addressof(host), device.ptr):
    for offset in (0, 4096):
        try: cufile.write(fh, address, 4096, offset, 0)
        except cufile.cuFileError as caught: error = caught
        same = pickle.loads(pickle.dumps(error))
        assert (same.status, same.bytes_done, str(same)) == (error.status, error.bytes_done, str(error))
        assert error.bytes_done == error.__cause__.bytes_done
        print(error.status.name, error.reason.name, error.bytes_done, "bytes done, then CU_FILE_IO_ERROR" in str(error))
"""
    told = with_settings(script, "{}", tmp_path)
    assert told == ["CU_FILE_OP_PARTIAL_COMPLETION CU_FILE_IO_ERROR 3000 True", "CU_FILE_IO_ERROR CU_FILE_IO_ERROR 0 False"] * 2


# Names and numbers


def test_errors_carry_a_status_and_a_message() -> None:
    error = cuFileError(5022, "why")
    assert error.status is Status.CU_FILE_INVALID_VALUE and error.message == "why"
    assert str(error) == "CU_FILE_INVALID_VALUE (5022): why"
    assert cuFileError(5001).status is OpError.CU_FILE_DRIVER_NOT_INITIALIZED
    assert str(cuFileError(7, "odd")) == "status (7): odd"
    assert isinstance(error, Exception)


def test_status_numbers_are_cufiles() -> None:
    for status in Status:
        if status not in (Status.CU_FILE_FILE_SYSTEM_NOT_SUPPORTED,):
            OpError(status)
    assert int(Status.CU_FILE_SUCCESS) == 0
    assert OpError(Status.CU_FILE_INVALID_HANDLE) is OpError.CU_FILE_HANDLE_NOT_REGISTERED
    assert OpError(Status.CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED) is OpError.CU_FILE_CUDA_MEMORY_TYPE_INVALID
    assert OpError(Status.CU_FILE_INVALID_VALUE) is OpError.CU_FILE_OP_INVALID_ARG


def test_every_documented_name_is_there() -> None:
    documented = {
        Status: "SUCCESS INVALID_VALUE INVALID_HANDLE CUDA_MEMORY_TYPE_NOT_SUPPORTED IO_NOT_SUPPORTED PERMISSION_DENIED "
        "INVALID_FILE_OPEN_FLAG MEMORY_ALREADY_REGISTERED MEMORY_NOT_REGISTERED PLATFORM_NOT_SUPPORTED FILE_SYSTEM_NOT_SUPPORTED",
        OpError: "OP_SUCCESS OP_FAILED OP_INVALID_ARG OP_IO_FAILED OP_MEMORY_INVALID OP_PARTIAL_COMPLETION INTERNAL_ERROR",
        cufile.FeatureFlags: "FEATURE_GDS_SUPPORTED FEATURE_BATCH_IO_SUPPORTED FEATURE_ASYNC_IO_SUPPORTED "
        "FEATURE_VECTOR_IO_SUPPORTED",
        cufile.FileHandleType: "HANDLE_TYPE_OPAQUE_FD HANDLE_TYPE_OPAQUE_WIN32",
        cufile: "BUF_REGISTER_FLAGS_NONE BUF_REGISTER_FLAGS_READ_ONLY BUF_REGISTER_FLAGS_WRITE_ONLY",
    }
    for place, names in documented.items():
        for name in names.split():
            assert hasattr(place, f"CU_FILE_{name}"), name
    assert all(hasattr(cufile, name) for name in cufile.__all__)
