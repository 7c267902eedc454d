"""File handles of penstock.cufile and of penstock.cuda_bindings.cufile: each module uses and deregisters those of the other."""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from penstock import cufile
from penstock.cuda_bindings import cufile as bindings
from penstock.cufile import IOVec, OpError, Status, cuFileError

SIZE = 64 * 1024 + 77
MODULES = [pytest.param(cufile, bindings, id="documented-to-bindings"), pytest.param(bindings, cufile, id="bindings-to-documented")]


@pytest.fixture
def path(tmp_path: pathlib.Path, pattern: Any) -> pathlib.Path:
    made = tmp_path / "file"
    made.write_bytes(pattern(SIZE))
    return made


@pytest.fixture
def descriptor(path: pathlib.Path) -> Any:
    made = os.open(path, os.O_RDWR)
    yield made
    os.close(made)


def is_stale(fh: int) -> bool:
    """In both modules."""
    for call in (lambda: cufile.pread(fh, 4096, 8, 0, 0), lambda: bindings.read(fh, 4096, 8, 0, 0), lambda: cufile.get_file_properties(fh)):
        with pytest.raises(cuFileError) as caught:
            call()
        assert caught.value.status == Status.CU_FILE_INVALID_HANDLE
    return True


@pytest.mark.parametrize(("first", "second"), MODULES)
def test_a_handle_reads_and_writes_in_both_modules(first: Any, second: Any, path: pathlib.Path, descriptor: int, memory: Any) -> None:
    fh = first.handle_register(descriptor)
    for module in (second, first):
        buffer = memory.empty(SIZE)
        module.read(fh, memory.address(buffer), SIZE, 0, 0)
        assert memory.bytes(buffer) == path.read_bytes()
        module.write(fh, memory.address(memory.of(b"12345")), 5, 100, 0)
        assert path.read_bytes()[100:105] == b"12345"
    cufile.readv(fh, [IOVec(memory.address(buffer), 10)], 1, 90, 0)
    assert memory.bytes(buffer)[:10] == path.read_bytes()[90:100]
    second.handle_deregister(fh)
    assert is_stale(fh)
    again = second.handle_register(descriptor)
    assert again != fh
    first.handle_deregister(again)
    assert is_stale(again)


@pytest.mark.parametrize(("first", "second"), MODULES)
def test_a_handle_is_queued_on_a_stream_in_both_modules(
    first: Any, second: Any, path: pathlib.Path, descriptor: int, device_memory: Any
) -> None:
    fh = first.handle_register(descriptor)
    buffers = [device_memory.empty(SIZE) for _ in range(2)]
    cufile.read_async(fh, device_memory.address(buffers[0]), SIZE, 0, 0, 0, 0)
    values = [ctypes.c_int64(value) for value in (SIZE, 0, 0, -7)]
    bindings.read_async(fh, device_memory.address(buffers[1]), *(ctypes.addressof(value) for value in values), 0)
    second.handle_deregister(fh)  # waits for both
    assert values[3].value == SIZE
    for buffer in buffers:
        assert device_memory.bytes(buffer) == path.read_bytes()


@pytest.mark.parametrize(("first", "second"), MODULES)
def test_a_batch_takes_handles_of_both_modules(first: Any, second: Any, path: pathlib.Path, tmp_path: pathlib.Path, memory: Any) -> None:
    other = tmp_path / "other"
    other.write_bytes(path.read_bytes()[::-1])
    descriptors = [os.open(each, os.O_RDONLY) for each in (path, other)]
    handles = [module.handle_register(each) for module, each in zip((first, second), descriptors)]
    buffers = [memory.empty(SIZE) for _ in range(2)]
    for module in (first, second):
        batch = module.batch_io_set_up(2)
        params, events, count = module.IOParams(2), module.IOEvents(2), ctypes.c_uint(2)
        for index in range(2):
            params[index].mode, params[index].opcode, params[index].fh = module.BatchMode.BATCH, module.Opcode.READ, handles[index]
            params[index].u.batch.dev_ptr_base, params[index].u.batch.size_ = memory.address(buffers[index]), SIZE
        module.batch_io_submit(batch, 2, params, 0)
        module.batch_io_get_status(batch, 2, ctypes.addressof(count), events.ptr, 0)
        module.batch_io_destroy(batch)
        assert list(events.ret) == [SIZE, SIZE]
        assert [memory.bytes(each) for each in buffers] == [path.read_bytes(), other.read_bytes()]
    for module, fh in zip((second, first), handles):
        module.handle_deregister(fh)
    for each in descriptors:
        os.close(each)


@pytest.mark.parametrize(("first", "second"), MODULES)
def test_a_descriptor_gets_one_handle(first: Any, second: Any, descriptor: int) -> None:
    fh = first.handle_register(descriptor)
    with pytest.raises(cuFileError) as caught:
        second.handle_register(descriptor)
    assert caught.value.status == OpError.CU_FILE_HANDLE_ALREADY_REGISTERED
    second.handle_deregister(fh)
    first.handle_deregister(second.handle_register(descriptor))


@pytest.mark.parametrize(("first", "second"), MODULES)
def test_a_reused_descriptor_belongs_to_its_new_file(first: Any, second: Any, path: pathlib.Path, tmp_path: pathlib.Path, memory: Any) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"other")
    descriptor = os.open(path, os.O_RDONLY)
    fh = first.handle_register(descriptor)
    os.close(descriptor)
    reused = os.open(other, os.O_RDONLY)
    assert reused == descriptor
    another = second.handle_register(reused)
    buffer = memory.empty(5)
    for module in (first, second):
        for handle, expected in ((fh, path), (another, other)):
            module.read(handle, memory.address(buffer), 5, 0, 0)
            assert memory.bytes(buffer) == expected.read_bytes()[:5]
            assert cufile.get_file_properties(handle)["name"] == str(expected)
    second.handle_deregister(fh)
    first.handle_deregister(another)
    os.close(reused)


@pytest.mark.parametrize(("first", "second"), MODULES)
def test_properties_end_with_the_handle(first: Any, second: Any, descriptor: int, memory: Any) -> None:
    before = os.listdir("/proc/self/fd")
    fh = first.handle_register(descriptor)
    try:
        cufile.set_file_properties(fh, {"direct_io": True, "priority": "cpu"})
    except cuFileError:
        first.handle_deregister(fh)
        pytest.skip("the file system has no direct I/O")
    buffer = memory.empty(4096)
    for module in (cufile, bindings):
        module.read(fh, memory.address(buffer), 4096, 0, 0)
    second.handle_deregister(fh)
    assert is_stale(fh) and os.listdir("/proc/self/fd") == before
    fh = second.handle_register(descriptor)
    told = cufile.get_file_properties(fh)
    assert (told["direct_io"], told["priority"]) == (False, "automatic")
    first.handle_deregister(fh)


@pytest.mark.parametrize(("first", "second"), MODULES)
def test_an_exception_that_is_kept_does_not_keep_its_file(first: Any, second: Any, descriptor: int) -> None:
    fh = first.handle_register(descriptor)
    used = cufile._driver.find_file(fh)
    with pytest.raises(cuFileError) as caught:
        cufile.read(fh, 1 << 16, 8, 0, 0)  # no memory is mapped there
    second.handle_deregister(fh)  # its traceback refers to the file
    assert caught.value.__traceback__ is not None
    for call in (used.properties, lambda: used.change({"direct_io": not used.direct})):
        with pytest.raises(cuFileError) as stale:
            call()
        assert stale.value.status == Status.CU_FILE_INVALID_HANDLE


START = """
import ctypes, os, resource, sys
from penstock import cufile
from penstock.cuda_bindings import cufile as bindings
path, first, second = sys.argv[1], *((cufile, bindings) if sys.argv[2] == "documented" else (bindings, cufile))
host = ctypes.create_string_buffer(4096)
address = ctypes.addressof(host)
def status(call):
    try: call()
    except cufile.cuFileError as error: return int(error.status)
    return 0
def leave_one_descriptor():
    bindings.handle_deregister(bindings.handle_register(fd))  # opens what the engine needs
    free = os.dup(fd)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
fd = os.open(path, os.O_RDWR)
"""


def in_new_process(script: str, path: pathlib.Path, first: Any) -> str:
    command = [sys.executable, "-c", START + script, str(path), "documented" if first is cufile else "bindings"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("first", "second"), MODULES)
def test_either_modules_close_ends_handles_of_both(first: Any, second: Any, path: pathlib.Path) -> None:
    script = """
before = len(os.listdir("/proc/self/fd"))
fh = first.handle_register(fd)
cufile.pread(fh, address, 8, 0, 0)
second.driver_close()
print(status(lambda: cufile.pread(fh, address, 8, 0, 0)), status(lambda: bindings.read(fh, address, 8, 0, 0)))
print(len(os.listdir("/proc/self/fd")) - before, len(cufile._driver._files))
again = second.handle_register(fd)
print(again != fh, status(lambda: cufile.pread(fh, address, 8, 0, 0)), cufile.pread(again, address, 8, 0, 0))
"""
    assert in_new_process(script, path, first).split() == ["5027", "5027", "0", "0", "True", "5027", "8"]


@pytest.mark.parametrize(("first", "second"), MODULES)
def test_a_forked_child_does_not_know_its_parents_handles(first: Any, second: Any, path: pathlib.Path) -> None:
    script = """
fh = first.handle_register(fd)
cufile.set_file_properties(fh, {"priority": "cpu"})
cufile.pread(fh, address, 8, 0, 0)
child = os.fork()
if child == 0:
    told = [status(lambda: module.read(fh, address, 8, 0, 0)) for module in (cufile, bindings)]
    told.append(status(lambda: cufile.handle_deregister(fh)))
    bindings.handle_deregister(fh)
    own = second.handle_register(fd)
    told += [own != fh, cufile.pread(own, address, 8, 0, 0), cufile.get_file_properties(own)["priority"]]
    first.handle_deregister(own)
    told.append(status(lambda: cufile.pread(own, address, 8, 0, 0)))
    print(*told, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bindings.read(fh, address, 8, 0, 0), cufile.get_file_properties(fh)["priority"])
second.handle_deregister(fh)
"""
    assert in_new_process(script, path, first).split() == ["5027", "5027", "5027", "True", "8", "automatic", "5027", "0", "8", "cpu"]


def test_a_handle_on_a_borrowed_descriptor_never_reaches_another_file(path: pathlib.Path) -> None:
    script = """
leave_one_descriptor()
fh = bindings.handle_register(fd)
print(cufile.pread(fh, address, 8, 0, 0))
os.close(fd)
print(status(lambda: cufile.pread(fh, address, 8, 0, 0)))
print(os.open(sys.executable, os.O_RDONLY) == fd, status(lambda: cufile.pread(fh, address, 8, 0, 0)))
print(status(lambda: cufile.handle_deregister(fh)))
"""
    assert in_new_process(script, path, bindings).split() == ["8", "5027", "True", "5027", "0"]


def test_a_documented_handle_has_its_own_descriptor_even_if_few_are_left(path: pathlib.Path) -> None:
    script = """
leave_one_descriptor()
fh = cufile.handle_register(fd)
os.close(fd)
print(cufile.pread(fh, address, 8, 0, 0), bindings.read(fh, address, 8, 0, 0))
"""
    assert in_new_process(script, path, cufile).split() == ["8", "8"]
