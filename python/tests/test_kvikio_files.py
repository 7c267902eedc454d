"""penstock.kvikio.CuFile, its futures, and the page cache functions: names, results and messages as KvikIO's users know them."""

from __future__ import annotations

import gc
import os
import pathlib
import warnings
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import kvikio

PAGE = 4096


@pytest.fixture
def file(tmp_path: pathlib.Path, pattern: Any) -> pathlib.Path:
    """A file of 64 KiB and a bit, unaligned at its end."""
    path = tmp_path / "file"
    path.write_bytes(pattern(64 * 1024 + 77))
    return path


@pytest.fixture
def compat(request: pytest.FixtureRequest) -> Iterator[kvikio.CompatMode]:
    with kvikio.defaults.set("compat_mode", request.param):
        yield request.param


every_compat_mode = pytest.mark.parametrize("compat", list(kvikio.CompatMode), indirect=True)


# Opening and closing


@pytest.mark.parametrize(
    ("flags", "access"),
    [("r", os.O_RDONLY), ("rb", os.O_RDONLY), ("r+", os.O_RDWR), ("w", os.O_WRONLY), ("wb", os.O_WRONLY), ("w+", os.O_RDWR)],
)
def test_flags_decide_the_access(file: pathlib.Path, flags: str, access: int) -> None:
    with kvikio.CuFile(file, flags) as opened:
        assert opened.open_flags() & os.O_ACCMODE == access
        assert not opened.open_flags() & os.O_DIRECT
        assert os.fstat(opened.fileno()).st_ino == file.stat().st_ino
        assert not opened.closed
    assert opened.closed


def test_w_empties_or_makes_the_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "made"
    kvikio.CuFile(path, "w").close()
    assert path.stat().st_size == 0 and path.stat().st_mode & 0o777 == 0o644 & ~_umask()
    path.write_bytes(b"old")
    kvikio.CuFile(str(path), "w+").close()
    assert path.read_bytes() == b""


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_missing_file_is_a_runtime_error_with_the_systems_words(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match=r"Unable to open file.*missing.*No such file or directory") as caught:
        kvikio.CuFile(tmp_path / "missing", "r")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_directory_is_a_runtime_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match="Unable to open file"):
        kvikio.CuFile(tmp_path, "r")


@pytest.mark.parametrize("flags", ["a", "a+"])
def test_appending_is_a_value_error(tmp_path: pathlib.Path, flags: str) -> None:
    with pytest.raises(ValueError, match="append"):
        kvikio.CuFile(tmp_path / "file", flags)


@pytest.mark.parametrize("flags", ["", "z", "x"])
def test_other_flags_are_a_value_error(tmp_path: pathlib.Path, flags: str) -> None:
    with pytest.raises(ValueError, match="Unknown file open flag"):
        kvikio.CuFile(tmp_path / "file", flags)


def test_a_refused_open_leaks_no_descriptor(tmp_path: pathlib.Path) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(RuntimeError):
            kvikio.CuFile(tmp_path, "r")
    assert os.listdir("/proc/self/fd") == before


def test_closing_twice_does_nothing_and_closes_every_descriptor(file: pathlib.Path, memory: Any) -> None:
    with kvikio.CuFile(file) as first:  # the first read of a process opens what stays open
        first.read(memory.empty(PAGE))
    before = len(os.listdir("/proc/self/fd"))
    opened = kvikio.CuFile(file, "r+")
    opened.read(memory.empty(PAGE))
    opened.close()
    opened.close()
    assert opened.closed
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_dropped_file_is_closed(file: pathlib.Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    opened = kvikio.CuFile(file)
    assert len(os.listdir("/proc/self/fd")) > before
    del opened
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_file_refuses_everything(file: pathlib.Path, memory: Any) -> None:
    opened = kvikio.CuFile(file, "r+")
    opened.close()
    with pytest.raises(RuntimeError, match="closed"):
        opened.read(memory.empty(8))
    with pytest.raises(RuntimeError, match="closed"):
        opened.pwrite(memory.of(b"x" * 8)).get()
    with pytest.raises(RuntimeError, match="closed"):
        opened.fileno()
    with pytest.raises(RuntimeError, match="closed"):
        opened.open_flags()


def test_direct_io_support_follows_the_settings(file: pathlib.Path) -> None:
    with kvikio.defaults.set({"auto_direct_io_read": False, "auto_direct_io_write": False}), kvikio.CuFile(file) as none:
        assert none.is_direct_io_supported() is False
    with kvikio.defaults.set("auto_direct_io_read", True), kvikio.CuFile(file) as some:
        assert some.is_direct_io_supported() is _takes_direct_io(file)


def _takes_direct_io(path: pathlib.Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


# Reading and writing


@every_compat_mode
@pytest.mark.parametrize("size", [1, 10, 1000, 1024, PAGE, 10 * PAGE + 3])
def test_written_bytes_are_read_back(
    tmp_path: pathlib.Path, memory: Any, pattern: Any, compat: kvikio.CompatMode, size: int
) -> None:
    content = pattern(size)
    path = tmp_path / "file"
    with kvikio.CuFile(path, "w") as target:
        assert target.write(memory.of(content)) == size
    assert path.read_bytes() == content
    read = memory.empty(size)
    with kvikio.CuFile(path, "r") as source:
        assert source.read(read) == size
    assert memory.bytes(read) == content


@pytest.mark.parametrize("direct", [False, True])
def test_large_writes_are_complete_with_and_without_direct_io(
    tmp_path: pathlib.Path, memory: Any, pattern: Any, direct: bool
) -> None:
    content = pattern((4 << 20) + 123)
    with kvikio.defaults.set("auto_direct_io_write", direct), kvikio.CuFile(tmp_path / "file", "w+") as file:
        assert file.write(memory.of(content)) == len(content)
        back = memory.empty(len(content))
        assert file.read(back) == len(content)
        assert memory.bytes(back) == content
    assert (tmp_path / "file").read_bytes() == content


@pytest.mark.parametrize(("offset", "size"), [(0, 100), (1, 4095), (PAGE, PAGE), (4097, 8191), (65000, 613)])
def test_a_range_of_the_file_fills_the_start_of_the_buffer(
    file: pathlib.Path, memory: Any, offset: int, size: int
) -> None:
    buffer = memory.of(b"\xee" * (size + 9))
    with kvikio.CuFile(file) as source:
        assert source.read(buffer, size, offset) == size
        expected = file.read_bytes()[offset : offset + size] + b"\xee" * 9
        assert memory.bytes(buffer) == expected
        assert source.pread(buffer, size=size, file_offset=offset, task_size=199).get() == size
    assert memory.bytes(buffer) == expected


def test_pieces_written_in_any_order_make_the_file(tmp_path: pathlib.Path, memory: Any, pattern: Any) -> None:
    content = pattern(20 * 80)
    with kvikio.CuFile(tmp_path / "file", "w") as target:
        futures = []
        for piece in (7, 0, 19, 3, 11, *[i for i in range(20) if i not in (7, 0, 19, 3, 11)]):
            part = memory.of(content[piece * 80 : piece * 80 + 80])
            futures.append(target.pwrite(part, file_offset=piece * 80))
        assert [future.get() for future in futures] == [80] * 20
    assert (tmp_path / "file").read_bytes() == content


@every_compat_mode
def test_a_read_that_meets_the_end_is_short(file: pathlib.Path, memory: Any, compat: kvikio.CompatMode) -> None:
    content = file.read_bytes()
    buffer = memory.of(b"\xee" * 200)
    with kvikio.CuFile(file) as source:
        assert source.read(buffer, file_offset=len(content) - 50) == 50
        assert memory.bytes(buffer) == content[-50:] + b"\xee" * 150
        assert source.read(buffer, file_offset=len(content)) == 0
        assert source.pread(buffer, file_offset=len(content) + 1000).get() == 0


def test_size_zero_moves_nothing(file: pathlib.Path, memory: Any) -> None:
    with kvikio.CuFile(file, "r+") as opened:
        assert opened.read(memory.empty(8), 0) == 0
        assert opened.write(memory.empty(8), 0) == 0


def test_a_file_opened_for_the_other_direction_is_not_permitted(file: pathlib.Path, memory: Any) -> None:
    with kvikio.CuFile(file, "r") as opened:
        with pytest.raises(RuntimeError, match="Operation not permitted") as caught:
            opened.write(memory.of(b"12345678"))
        assert isinstance(caught.value.__cause__, penstock.Error)
        with pytest.raises(RuntimeError, match="Operation not permitted"):
            opened.pwrite(memory.of(b"12345678")).get()
    with kvikio.CuFile(file, "w") as opened, pytest.raises(RuntimeError, match="Operation not permitted"):
        opened.read(memory.empty(8))


def test_a_size_beyond_the_buffer_is_a_value_error(file: pathlib.Path, memory: Any) -> None:
    with kvikio.CuFile(file, "r+") as opened:
        for call in (opened.read, opened.write, opened.pread, opened.pwrite):
            with pytest.raises(ValueError, match="size"):
                call(memory.empty(8), 9)


@pytest.mark.parametrize("arguments", [{"size": 1 << 63}, {"file_offset": 1 << 70}])
def test_numbers_beyond_64_bits_overflow(file: pathlib.Path, memory: Any, arguments: dict[str, int]) -> None:
    with kvikio.CuFile(file, "r+") as opened:
        for call in (opened.read, opened.write, opened.pread, opened.pwrite):
            with pytest.raises(OverflowError, match="64 bits"):
                call(memory.empty(8), **arguments)


@pytest.mark.parametrize("arguments", [{"size": -1}, {"file_offset": -1}])
def test_negative_numbers_overflow(file: pathlib.Path, memory: Any, arguments: dict[str, int]) -> None:
    with kvikio.CuFile(file, "r+") as opened:
        for call in (opened.read, opened.write, opened.pread, opened.pwrite):
            with pytest.raises(OverflowError, match="negative value"):
                call(memory.empty(8), **arguments)


def test_the_task_size_is_checked(file: pathlib.Path, memory: Any) -> None:
    with kvikio.CuFile(file, "r+") as opened:
        for call in (opened.read, opened.write, opened.pread, opened.pwrite):
            with pytest.raises(ValueError, match="positive integer"):
                call(memory.empty(8), task_size=0)
            with pytest.raises(OverflowError, match="negative value"):
                call(memory.empty(8), task_size=-5)


def test_a_task_size_that_changes_nothing_says_so_once(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvikio.defaults, "_warned", set())
    with kvikio.CuFile(file) as opened, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        opened.pread(bytearray(8), task_size=kvikio.defaults.get("task_size")).get()
        assert told == []
        for _ in range(3):
            opened.pread(bytearray(8), task_size=4096).get()
            opened.read(bytearray(8), task_size=1)
    assert [each.category for each in told] == [RuntimeWarning]
    assert "task_size has no effect" in str(told[0].message) and told[0].filename == __file__


def test_read_only_memory_is_no_target(file: pathlib.Path) -> None:
    frozen = np.zeros(8, np.uint8)
    frozen.flags.writeable = False
    with kvikio.CuFile(file, "r+") as opened:
        for target in (b"12345678", frozen, memoryview(b"12345678")):
            with pytest.raises(ValueError, match="read-only"):
                opened.read(target)
        assert opened.write(frozen) == 8


def test_memory_with_gaps_is_a_value_error(file: pathlib.Path) -> None:
    with kvikio.CuFile(file, "r+") as opened:
        for call in (opened.read, opened.write):
            with pytest.raises(ValueError, match="contiguous"):
                call(np.zeros(16, np.uint8)[::2])


def test_both_orders_of_an_array_are_contiguous(file: pathlib.Path) -> None:
    orders: tuple[Any, ...] = ("C", "F")
    for order in orders:
        array = np.zeros((3, 5), np.int16, order=order)
        with kvikio.CuFile(file) as source:
            assert source.read(array) == 30
        assert array.tobytes("A") == file.read_bytes()[:30]


def test_what_is_no_memory_is_a_type_error(file: pathlib.Path) -> None:
    with kvikio.CuFile(file) as source, pytest.raises(TypeError):
        source.read("text")


# Futures


def test_a_future_may_be_asked_any_number_of_times(file: pathlib.Path, memory: Any) -> None:
    with kvikio.CuFile(file) as source:
        future = source.pread(memory.empty(100))
        assert isinstance(future, kvikio.IOFuture)
        assert [future.get() for _ in range(3)] == [100] * 3
        assert future.done() is True


def test_a_failed_future_raises_each_time(file: pathlib.Path, memory: Any) -> None:
    with kvikio.CuFile(file, "w") as target:
        try:
            future = target.pread(memory.empty(100))
        except RuntimeError as error:
            assert "Operation not permitted" in str(error)
            return
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Operation not permitted"):
                future.get()


def test_a_future_outlives_its_buffer_and_its_file(file: pathlib.Path, memory: Any) -> None:
    future = kvikio.CuFile(file).pread(memory.empty(60000))
    gc.collect()
    assert future.get() == 60000


def test_dropping_a_future_stops_nothing(tmp_path: pathlib.Path, memory: Any, pattern: Any) -> None:
    content = pattern(3 << 20)
    with kvikio.CuFile(tmp_path / "file", "w") as target:
        target.pwrite(memory.of(content))
    assert (tmp_path / "file").read_bytes() == content


def test_threads_share_a_file(file: pathlib.Path, memory: Any) -> None:
    content = file.read_bytes()
    failures: list[BaseException] = []

    def read_slices(first: int) -> None:
        try:
            buffer = memory.empty(1000)
            for offset in range(first, 60000, 4000):
                assert source.read(buffer, file_offset=offset) == 1000
                assert memory.bytes(buffer) == content[offset : offset + 1000]
        except BaseException as error:
            failures.append(error)

    with kvikio.CuFile(file) as source:
        threads = [threading.Thread(target=read_slices, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


# Raw operations: device memory only


@pytest.mark.parametrize("size", [1, 10, 1000, 1024, PAGE, 10 * PAGE])
def test_raw_operations_move_device_memory(tmp_path: pathlib.Path, device_memory: Any, pattern: Any, size: int) -> None:
    content = pattern(size)
    with kvikio.CuFile(tmp_path / "file", "w+") as file:
        assert file.raw_write(device_memory.of(content)) == size
        back = device_memory.empty(size)
        assert file.raw_read(back) == size
    assert device_memory.bytes(back) == content


def test_raw_operations_start_at_dev_offset_and_stay_inside_the_buffer(
    tmp_path: pathlib.Path, device_memory: Any, pattern: Any
) -> None:
    content = pattern(1000)
    with kvikio.CuFile(tmp_path / "file", "w+") as file:
        assert file.raw_write(device_memory.of(content), 100, 7, 300) == 100
        assert file.raw_write(device_memory.of(content), file_offset=107, dev_offset=900) == 100
        back = device_memory.of(b"\xee" * 50)
        assert file.raw_read(back, file_offset=7, dev_offset=40) == 10
        assert device_memory.bytes(back) == b"\xee" * 40 + content[300:310]
        for arguments in ({"dev_offset": 51}, {"size": 20, "dev_offset": 31}):
            with pytest.raises(ValueError):
                file.raw_read(back, **arguments)
        with pytest.raises(OverflowError, match="negative value"):
            file.raw_read(back, dev_offset=-1)
    assert (tmp_path / "file").read_bytes() == bytes(7) + content[300:400] + content[900:]


def test_raw_operations_refuse_host_memory(file: pathlib.Path) -> None:
    array = np.zeros(8)
    with kvikio.CuFile(file, "r+") as opened:
        for call in (opened.raw_read, opened.raw_write):
            with pytest.raises(ValueError, match="Non-CUDA buffers not supported"):
                call(array)
        for queue in (opened.raw_read_async, opened.raw_write_async):
            with pytest.raises(ValueError, match="Non-CUDA buffers not supported"):
                queue(array, 0)


@pytest.mark.parametrize("size", [1, 10, 1000, 1024, PAGE, 10 * PAGE])
def test_stream_ordered_operations_follow_each_other(
    tmp_path: pathlib.Path, device_memory: Any, pattern: Any, size: int
) -> None:
    content = pattern(size)
    first, second = device_memory.empty(size), device_memory.empty(size)
    with kvikio.CuFile(tmp_path / "file", "w+") as file:
        futures = [
            file.raw_write_async(device_memory.of(content), 0),
            file.raw_read_async(first, 0),
            file.raw_write_async(first, 0, file_offset=size),
            file.raw_read_async(second, 0, size=size, file_offset=size, dev_offset=0),
        ]
        assert all(isinstance(future, kvikio.IOFutureStream) for future in futures)
        assert [future.check_bytes_done() for future in futures] == [size] * 4
        assert [future.check_bytes_done() for future in futures] == [size] * 4
    assert device_memory.bytes(first) == device_memory.bytes(second) == content
    assert (tmp_path / "file").read_bytes() == content * 2


def test_a_stream_ordered_read_that_meets_the_end_is_short(file: pathlib.Path, device_memory: Any) -> None:
    with kvikio.CuFile(file) as source:
        at = file.stat().st_size - 5
        assert source.raw_read_async(device_memory.empty(100), 0, file_offset=at).check_bytes_done() == 5


def test_a_stream_ordered_read_of_a_write_only_file_is_not_permitted(file: pathlib.Path, device_memory: Any) -> None:
    with kvikio.CuFile(file, "w") as opened, pytest.raises(RuntimeError, match="Operation not permitted"):
        opened.raw_read_async(device_memory.empty(8), 0).check_bytes_done()


def test_a_stream_ordered_operation_outlives_what_it_was_given(file: pathlib.Path, device_memory: Any) -> None:
    future = kvikio.CuFile(file).raw_read_async(device_memory.empty(60000), 0)
    gc.collect()
    assert future.check_bytes_done() == 60000


# Registration


@pytest.mark.parametrize("flags", [0, 1, 2, 4, 8, 15])
def test_streams_may_be_registered_and_need_not(file: pathlib.Path, device_memory: Any, flags: int) -> None:
    kvikio.stream_register(0, flags)
    with kvikio.CuFile(file) as source:
        assert source.raw_read_async(device_memory.empty(16), 0).check_bytes_done() == 16
    kvikio.stream_deregister(0)
    kvikio.stream.stream_deregister(0)


def test_unknown_promises_of_a_stream_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="flags"):
        kvikio.stream.stream_register(0, 16)


def test_device_memory_may_be_registered_and_need_not(device_memory: Any) -> None:
    buffer = device_memory.empty(100)
    kvikio.memory_register(buffer)
    kvikio.buffer.memory_register(buffer)
    kvikio.memory_deregister(buffer)
    kvikio.buffer.memory_deregister(buffer)


def test_the_whole_allocation_is_registered_with_the_engine(file: pathlib.Path) -> None:
    allocation = penstock.device("host:0").empty(8192)
    before = penstock.stats()["usage"]["registrations"]
    kvikio.memory_register(allocation[4096:])
    kvikio.memory_register(allocation)  # is registered, and stays so
    with kvikio.CuFile(file) as opened:
        assert opened.read(allocation, size=10) == 10
    kvikio.memory_deregister(allocation[100:200])
    assert penstock.stats()["usage"]["registrations"] == before
    kvikio.memory_deregister(allocation)
    kvikio.memory_deregister(allocation)  # is not registered any more
    assert penstock.stats()["usage"]["registrations"] == before + 1


def test_what_another_module_has_registered_stays_so() -> None:
    allocation = penstock.device("host:0").empty(8192)
    penstock.cufile.buf_register(allocation.ptr, 8192, 0)
    kvikio.memory_deregister(allocation)
    kvikio.memory_register(allocation)
    kvikio.memory_deregister(allocation)
    penstock.cufile.buf_deregister(allocation.ptr)


def test_nothing_is_nothing_to_register() -> None:
    nothing = penstock.device("host:0").empty(10)[3:3]
    kvikio.memory_register(nothing)
    kvikio.memory_deregister(nothing)


def test_host_memory_is_not_registered() -> None:
    for call in (kvikio.memory_register, kvikio.memory_deregister):
        with pytest.raises(ValueError, match="Non-CUDA buffers not supported"):
            call(np.zeros(8))


def test_the_version_is_that_of_the_kvikio_whose_interface_this_is() -> None:
    assert re.fullmatch(r"\d\d\.\d\d\.\d\d", kvikio.__version__)  # as KvikIO writes it
    version = tuple(int(number) for number in kvikio.__version__.split("."))
    assert version == (26, 10, 0)
    assert hasattr(kvikio, "SummaryMonitor"), "KvikIO has it from 26.10 on"


def test_the_commit_is_penstocks() -> None:
    told = pathlib.Path(penstock.__file__).parent / "GIT_COMMIT"
    if told.exists():
        assert re.fullmatch("[0-9a-f]{40,64}", kvikio.__git_commit__)
    else:
        assert kvikio.__git_commit__ == "unknown"


def test_without_a_recorded_commit_it_is_unknown(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock, "__file__", str(tmp_path / "__init__.py"))
    assert kvikio._commit_built_from() == "unknown"
    (tmp_path / "GIT_COMMIT").write_text("0123abcd\n")
    assert kvikio._commit_built_from() == "0123abcd"


def test_freeing_bounce_buffers_tells_what_is_pinned_no_longer(file: pathlib.Path, device_memory: Any) -> None:
    buffer = device_memory.empty(64 * 1024)
    for free in (kvikio.bounce_buffer_free, kvikio.buffer.bounce_buffer_free, penstock.trim):
        with kvikio.CuFile(file) as source:
            source.read(buffer)
        pinned = penstock.stats()["pinned_bytes"]
        freed = free()
        assert freed > 0
        assert penstock.stats()["pinned_bytes"] == pinned - freed
        assert free() == 0
    with kvikio.CuFile(file) as source:
        source.read(buffer)
    assert device_memory.bytes(buffer) == file.read_bytes()[: 64 * 1024]


def test_bounce_buffers_are_counted_in_the_size_that_the_program_set(tmp_path: pathlib.Path, device_memory: Any) -> None:
    buffer = device_memory.of(b"x" * 80)
    kvikio.bounce_buffer_free()
    with kvikio.defaults.set({"compat_mode": kvikio.CompatMode.ON, "num_threads": 1}), kvikio.CuFile(tmp_path / "file", "w") as target:
        with kvikio.defaults.set({"bounce_buffer_size": 1024}):
            target.write(buffer)
            assert (kvikio.bounce_buffer_free(), kvikio.bounce_buffer_free()) == (1024, 0)
            assert penstock.stats()["pinned_bytes"] == 0
            target.write(buffer)
        with kvikio.defaults.set({"bounce_buffer_size": 2048}):
            target.write(buffer)
            assert (kvikio.bounce_buffer_free(), kvikio.bounce_buffer_free()) == (2048, 0)
        with kvikio.defaults.set({"bounce_buffer_size": 4096, "num_threads": 3, "task_size": 32}):
            target.pwrite(buffer).get()
            target.write(bytes(80))  # which needs none
            assert (kvikio.bounce_buffer_free(), kvikio.bounce_buffer_free()) == (3 * 4096, 0)
            target.write(bytes(80))
            assert kvikio.bounce_buffer_free() == 0


def test_direct_reads_are_a_setting(file: pathlib.Path) -> None:
    with kvikio.defaults.set("auto_direct_io_read", True), kvikio.CuFile(file) as direct, kvikio.CuFile(file) as other:
        os.posix_fadvise(direct.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        told = {part.reason for part in direct._file.explain(device="host:0").parts}
        assert told == {part.reason for part in penstock.open(file, cache="bypass").explain(device="host:0").parts}
        buffer = penstock.device("host:0").empty(64 * 1024)
        assert other.read(buffer) == 64 * 1024 and buffer.to_host() == file.read_bytes()[: 64 * 1024]


def test_a_fifo_that_nobody_writes_to_is_refused(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(RuntimeError, match="Unable to open file.*fifo is a FIFO"):
        kvikio.CuFile(tmp_path / "fifo")
    with pytest.raises(RuntimeError, match="Unable to open file.*fifo"):
        kvikio.get_page_cache_info(tmp_path / "fifo")


# The page cache


def test_page_cache_info_counts_pages(file: pathlib.Path) -> None:
    file.read_bytes()
    assert kvikio.get_page_cache_info(file) == (17, 17)
    assert kvikio.get_page_cache_info(str(file), PAGE, 1) == (1, 1)
    assert kvikio.get_page_cache_info(file, 4095, 2) == (2, 2)
    assert kvikio.get_page_cache_info(file, 60000, 1 << 40) == (3, 3)
    assert kvikio.get_page_cache_info(file, 1 << 40) == (0, 0)


def test_page_cache_info_takes_paths_descriptors_and_files(file: pathlib.Path) -> None:
    with open(file, "rb") as opened:
        for argument in (file, str(file), opened.fileno(), opened):
            cached, total = kvikio.get_page_cache_info(argument)
            assert 0 <= cached <= total == 17


def test_page_cache_info_of_a_large_file_is_added_up(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as sparse:
        sparse.truncate((5 << 29) + 1)
    assert kvikio.get_page_cache_info(path) == (0, (5 << 29) // PAGE + 1)


@pytest.mark.parametrize("call", [kvikio.get_page_cache_info, kvikio.drop_file_page_cache])
def test_page_cache_functions_name_what_is_wrong(tmp_path: pathlib.Path, file: pathlib.Path, call: Any) -> None:
    with pytest.raises(RuntimeError, match="Unable to open file"):
        call(tmp_path / "missing")
    for argument in (123.456, [str(file)], None):
        with pytest.raises(ValueError):
            call(argument)
    for arguments in ((-1,), (0, -1)):
        with pytest.raises(OverflowError, match="negative value"):
            call(file, *arguments)


def test_dropping_the_page_cache_of_a_file_keeps_its_bytes(file: pathlib.Path) -> None:
    content = file.read_bytes()
    kvikio.drop_file_page_cache(file, sync_first=True)
    cached, total = kvikio.get_page_cache_info(file)
    assert cached <= total  # on a file system in memory they stay
    with open(file, "rb") as opened:
        kvikio.drop_file_page_cache(opened, 0, PAGE, sync_first=False)
    assert file.read_bytes() == content


def test_dropping_everything_asks_the_kernel_first_and_sudo_then(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = tmp_path / "drop_caches"
    monkeypatch.setattr("penstock.kvikio._page_cache._drop_caches_file", str(control))
    assert kvikio.drop_system_page_cache(sync_first=False) is True
    assert control.read_text() == "3"
    assert kvikio.drop_system_page_cache(reclaim_dentries_and_inodes=False, sync_first=False) is True
    assert control.read_text() == "1"

    monkeypatch.setattr("penstock.kvikio._page_cache._drop_caches_file", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kvikio.drop_system_page_cache(sync_first=False) is False
    sudo = tmp_path / "sudo"
    sudo.write_text(f'#!/bin/sh\nprintf "%s " "$@" > {tmp_path}/asked\n')
    sudo.chmod(0o755)
    assert kvikio.drop_system_page_cache(sync_first=False) is True
    assert (tmp_path / "asked").read_text() == "-n /sbin/sysctl vm.drop_caches=3 "


def test_clear_page_cache_is_deprecated(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.kvikio._page_cache._drop_caches_file", str(tmp_path / "drop_caches"))
    with pytest.warns(FutureWarning, match="drop_system_page_cache"):
        assert kvikio.clear_page_cache(True, False) is True


# The package


def test_a_gpu_takes_part() -> None:
    if not any(device.name == "cuda:0" for device in penstock.devices()):
        pytest.skip("no CUDA GPU here: the tests ran on host memory and on the host device")


def test_every_public_name_is_there() -> None:
    for name in kvikio.__all__:
        assert hasattr(kvikio, name)
    assert isinstance(kvikio.__version__, str) and kvikio.__version__
    assert kvikio.is_remote_file_available() is True


def test_deprecated_functions_warn_and_say_so() -> None:
    @kvikio.kvikio_deprecation_notice("use the other", since="1.2")
    def old(number: int) -> int:
        """Does something."""
        return number + 1

    with pytest.warns(FutureWarning, match="old is deprecated since 1.2. use the other"):
        assert old(1) == 2
    assert ".. deprecated:: 1.2" in (old.__doc__ or "")
    with pytest.warns(FutureWarning, match="1.2.*use the other"):
        kvikio.utils.kvikio_deprecate_module("use the other", since="1.2")


def test_call_once_calls_once() -> None:
    calls: list[int] = []

    @kvikio.utils.call_once
    def first(number: int) -> int:
        calls.append(number)
        if number < 0:
            raise ValueError("no")
        return number

    with pytest.raises(ValueError):
        first(-1)
    assert [first(3), first(4)] == [3, 3]
    assert calls == [-1, 3]
