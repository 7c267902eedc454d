"""penstock.cuda_bindings.cufile: cuda-python's module, with addresses of the host and of devices. docs/guides/cufile.md's functions have tests in C."""

from __future__ import annotations

import ctypes
import enum
import errno
import importlib.metadata
import inspect
import os
import pathlib
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock import cufile as documented
from penstock._cufile.library import Answer
from penstock.cuda_bindings import cufile
from penstock.cuda_bindings.cufile import OpError, cuFileError

SIZE = 64 * 1024 + 77


@pytest.fixture
def path(tmp_path: pathlib.Path, pattern: Any) -> pathlib.Path:
    made = tmp_path / "file"
    made.write_bytes(pattern(SIZE))
    return made


@pytest.fixture
def handle(path: pathlib.Path) -> Iterator[int]:
    """The file, registered for both directions."""
    descriptor = os.open(path, os.O_RDWR)
    fh = cufile.handle_register(descr_of(descriptor).ptr)
    yield fh
    cufile.handle_deregister(fh)
    os.close(descriptor)
    while cufile.use_count() > 0:
        cufile.driver_close()


def descr_of(descriptor: int) -> cufile.Descr:
    descr = cufile.Descr()
    descr.type = cufile.FileHandleType.OPAQUE_FD
    descr.handle.fd = descriptor
    descr.fs_ops = 0
    return descr


def refused(status: int, call: Callable[[], Any]) -> None:
    with pytest.raises(cuFileError) as caught:
        call()
    assert caught.value.status == status, caught.value


# Structs


def test_a_struct_has_its_fields_for_attributes() -> None:
    descr = descr_of(7)
    assert (descr.type, descr.handle.fd, descr.fs_ops) == (1, 7, 0)
    assert int(descr) == descr.ptr and ctypes.c_int.from_address(descr.ptr + 8).value == 7
    with pytest.raises(AttributeError, match="no field kind"):
        descr.kind = 1
    with pytest.raises(AttributeError, match="no field kind"):
        descr.kind  # noqa: B018


def test_an_array_of_structs_is_indexed_and_shares_its_memory() -> None:
    params = cufile.IOParams(3)
    params[1].u.batch.size_ = 5
    params[2].cookie = 9
    assert params.u.batch.size_.tolist() == [0, 5, 0] and params.cookie.tolist() == [0, 0, 9]
    assert [each.cookie for each in params] == [0, 0, 9] and params[-1].cookie == 9
    assert len(params[1:]) == 2 and params[1:].ptr == params[1].ptr == params.ptr + 64
    params.opcode = [0, 1, 1]
    assert params[1].opcode == cufile.Opcode.WRITE
    params[0] = params[2]
    assert params[0] == params[2] and params[0] != params[1]
    with pytest.raises(IndexError, match="out of bounds"):
        params[3]
    assert int(params) == params.ptr
    with pytest.raises(ValueError, match="at least 1"):
        cufile.IOParams(0)


def test_a_field_of_all_structs_is_an_array_of_numpy() -> None:
    params = cufile.IOParams(2)
    params["cookie"] = [3, 4]
    assert params["cookie"].tolist() == params.cookie.tolist() == [3, 4] and params[1]["cookie"].tolist() == [4]
    params["u"]["batch"]["size_"][1] = 7
    assert params[1].u.batch.size_ == 7
    assert np.asarray(params).dtype == cufile.io_params_dtype and np.shares_memory(np.asarray(params), params["fh"])
    assert not np.shares_memory(np.array(params), params["fh"])


def test_parts_of_every_struct_can_be_written() -> None:
    several = cufile.StatsLevel3.from_data(np.zeros(2, cufile.stats_level3_dtype))
    several.per_gpu_stats["n_mmap"][1, 3] = 5
    assert several[1].per_gpu_stats[3].n_mmap == 5 and several[0].per_gpu_stats[3].n_mmap == 0
    several[0].per_gpu_stats[2].n_mmap = 6
    assert several.per_gpu_stats["n_mmap"][0, 2] == 6


def test_a_struct_lies_over_memory_of_another() -> None:
    params = cufile.IOParams(2)
    seen = cufile.IOParams.from_ptr(params.ptr, 2, owner=params)
    params[1].fh = 4
    assert seen[1].fh == 4
    assert cufile.IOParams.from_data(np.zeros(2, cufile.io_params_dtype))[1].fh == 0
    assert cufile.IOEvents.from_buffer(bytes(48))[1].ret == 0
    only_read = cufile.IOParams.from_ptr(params.ptr, 2, readonly=True)
    with pytest.raises(ValueError, match="read-only"):
        only_read.fh = 3
    with pytest.raises(ValueError, match="null"):
        cufile.Descr.from_ptr(0)
    with pytest.raises(ValueError, match="dtype"):
        cufile.Descr.from_data(np.zeros(1, "u1"))


def test_structs_are_as_large_as_cufiles() -> None:
    told = {name: getattr(cufile, name).itemsize for name in cufile.__all__ if name.endswith("_dtype")}
    assert told == {
        "descr_dtype": 24, "io_events_dtype": 24, "io_params_dtype": 64, "io_vec_dtype": 16, "op_counter_dtype": 16,
        "per_gpu_stats_dtype": 248, "stats_level1_dtype": 624, "stats_level2_dtype": 1136, "stats_level3_dtype": 5112,
    }


FACTS = pathlib.Path(__file__).parents[2] / "tests/abi"


def test_fields_lie_where_cufile_h_has_them() -> None:
    """Of the structs that have not grown since cuFile 1.17, and of level 1 what it had then."""
    if not FACTS.exists():
        pytest.skip("the facts of cufile.h are in the repository only")
    places = dict(places_of("cufile_1_17.facts", "cufile_1_20_additions.facts"))
    for struct, dtype in {
        "CUfileDescr_t": cufile.descr_dtype, "CUfileIOParams_t": cufile.io_params_dtype, "CUfileIOEvents_t": cufile.io_events_dtype,
        "CUfileIOVec_t": cufile.io_vec_dtype, "CUfileOpCounter_t": cufile.op_counter_dtype,
        "CUfilePerGpuStats_t": cufile.per_gpu_stats_dtype, "CUfileStatsLevel1_t": cufile.stats_level1_dtype,
    }.items():
        named = {plain(name.removeprefix(f"{struct}.")): place for name, place in places.items() if name.startswith(f"{struct}.")}
        ours = dict(flattened(dtype))
        assert named and {name: ours.get(name) for name in named} == named, struct


def plain(name: str) -> str:
    """As cuda-python spells a field of C's."""
    words = {"devPtr_base": "dev_ptr_base", "devPtr_offset": "dev_ptr_offset", "base": "base_", "size": "size_"}
    return ".".join(words.get(each, each) for each in name.split("."))


def places_of(*facts: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for line in "\n".join((FACTS / each).read_text() for each in facts).splitlines():
        found = re.match(r"field (\S+)=at (\d+) of (\d+) ", line)
        if found:
            yield found[1], (int(found[2]), int(found[3]))


def flattened(dtype: np.dtype[Any], at: int = 0, prefix: str = "") -> Iterator[tuple[str, tuple[int, int]]]:
    """Of each field, also those in it: its name from the outermost struct on, and where it begins and how long it is."""
    for name, (kind, offset, *_) in (dtype.fields or {}).items():
        yield prefix + name, (at + offset, kind.itemsize)
        yield from flattened(kind, at + offset, f"{prefix}{name}.")


def test_layouts_numbers_and_signatures_are_those_of_cuda_python() -> None:
    theirs = pytest.importorskip("cuda.bindings.cufile", reason="cuda-python is not installed")
    version = importlib.metadata.version("cuda-bindings")
    if not version.startswith("13.5."):
        pytest.skip(f"cuda-python {version} is another than 13.5, which the module follows")
    for name in cufile.__all__:
        ours, other = getattr(cufile, name), getattr(theirs, name)
        if name.endswith("_dtype"):
            assert dict(flattened(np.dtype(other))) == dict(flattened(ours)) and np.dtype(other).itemsize == ours.itemsize, name
        elif isinstance(ours, enum.EnumMeta):
            assert {key: each.value for key, each in other.__members__.items()} == {
                key: each.value for key, each in ours.__members__.items()
            }, name
        elif inspect.isfunction(ours):
            assert parameters(other) == parameters(ours), name
    missing = {name for name in dir(theirs) if not name.startswith("_") and is_of_cuda_python(getattr(theirs, name))}
    assert missing <= set(cufile.__all__)
    ours, other = cuFileError(5027, 0), theirs.cuFileError(5027, 0)
    assert str(ours).replace(cufile.op_status_error(5027), theirs.op_status_error(5027)) == str(other)
    assert (ours.args, ours.status, ours.cuda_error) == ((str(ours),), other.status, other.cuda_error) and other.args == (str(other),)


def parameters(function: Any) -> list[tuple[str, Any]]:
    return [(each.name, each.default) for each in inspect.signature(function).parameters.values()]


def is_of_cuda_python(value: Any) -> bool:
    return isinstance(value, np.dtype) or getattr(value, "__module__", None) == "cuda.bindings.cufile"


# Files and memory


def test_ranges_move_between_file_and_memory(handle: int, path: pathlib.Path, memory: Any, pattern: Any) -> None:
    buffer = memory.empty(SIZE)
    address = memory.address(buffer)
    cufile.buf_register(address, SIZE, 0)
    assert cufile.read(handle, address, SIZE, 0, 0) == SIZE
    assert memory.bytes(buffer) == pattern(SIZE)
    assert cufile.read(handle, address, SIZE, SIZE - 7, 0) == 7
    assert cufile.write(handle, address, 100, 1000, 8) == 100
    assert path.read_bytes()[1000:1100] == memory.bytes(buffer)[8:108]
    cufile.buf_deregister(address)


def test_vectors_move_one_range_of_the_file(handle: int, path: pathlib.Path, memory: Any, pattern: Any) -> None:
    first, second = memory.empty(1000), memory.empty(500)
    pieces = cufile.IOVec(2)
    pieces.base_ = [memory.address(first), memory.address(second)]
    pieces.len = [1000, 500]
    assert cufile.readv(handle, pieces, 3) == 1500
    assert memory.bytes(first) + memory.bytes(second) == pattern(SIZE)[3:1503]
    assert cufile.writev(handle, pieces, 0) == 1500
    assert path.read_bytes()[:1500] == pattern(SIZE)[3:1503]
    refused(OpError.INVALID_VALUE, lambda: cufile.readv(handle, pieces, 3, 1))


def test_a_stream_takes_its_arguments_by_address(handle: int, device_memory: Any, pattern: Any) -> None:
    buffer = device_memory.empty(SIZE)
    address = device_memory.address(buffer)
    size, file_offset, offset, done = ctypes.c_size_t(1000), ctypes.c_int64(5), ctypes.c_int64(3), ctypes.c_ssize_t(-7)
    cufile.stream_register(0, 15)
    where = [ctypes.addressof(each) for each in (size, file_offset, offset, done)]
    cufile.read_async(handle, address, *where, 0)
    cufile.handle_deregister(handle)  # waits for it
    assert done.value == 1000 and device_memory.bytes(buffer)[3:1003] == pattern(SIZE)[5:1005]
    refused(OpError.INVALID_VALUE, lambda: cufile.stream_register(0, 16))
    cufile.stream_deregister(0)
    refused(OpError.INVALID_VALUE, lambda: cufile.stream_deregister(0))
    refused(OpError.HANDLE_NOT_REGISTERED, lambda: cufile.write_async(handle, address, *where, 0))


def test_registration_refuses_what_c_refuses(handle: int, device_memory: Any) -> None:
    address = device_memory.address(device_memory.empty(4096))
    cufile.buf_register(address, 4096, 0)
    refused(OpError.MEMORY_ALREADY_REGISTERED, lambda: cufile.buf_register(address, 4096, 0))
    refused(OpError.INVALID_MAPPING_RANGE, lambda: cufile.read(handle, address, 4096, 0, 1))
    cufile.buf_deregister(address)
    refused(OpError.MEMORY_NOT_REGISTERED, lambda: cufile.buf_deregister(address))
    refused(OpError.CUDA_POINTER_RANGE_ERROR, lambda: cufile.buf_register(address, 1 << 40, 0))
    refused(OpError.INVALID_VALUE, lambda: cufile.buf_register(0, 4096, 0))
    refused(OpError.INVALID_VALUE, lambda: cufile.handle_register(descr_of(-1)))
    refused(OpError.INVALID_VALUE, lambda: cufile.handle_register(0))
    refused(OpError.HANDLE_NOT_REGISTERED, lambda: cufile.read(1, address, 4096, 0, 0))


def test_an_error_of_the_system_keeps_its_number(handle: int) -> None:
    refused(errno.EINVAL, lambda: cufile.read(handle, 0, 10, 0, 0))


# Batches


def test_a_batch_tells_of_each_operation(handle: int, memory: Any, pattern: Any) -> None:
    buffers = [memory.empty(1000) for _ in range(3)]
    batch = cufile.batch_io_set_up(3)
    params = operations(handle, [memory.address(each) for each in buffers])
    cufile.batch_io_submit(batch, 3, params.ptr, 0)
    events = wait_for(cufile.batch_io_get_status, batch, 3)
    assert {(each.cookie, each.status, each.ret) for each in events} == {(cookie, cufile.Status.COMPLETE, 1000) for cookie in range(3)}
    assert b"".join(memory.bytes(each) for each in buffers) == pattern(SIZE)[:3000]
    cufile.batch_io_cancel(batch)
    cufile.batch_io_destroy(batch)
    refused(OpError.INTERNAL_BATCH_SUBMIT_ERROR, lambda: cufile.batch_io_submit(batch, 1, operations(handle, [4096]), 0))


def operations(handle: int, addresses: list[int]) -> cufile.IOParams:
    """Reads of 1000 bytes each, one behind the other."""
    params = cufile.IOParams(len(addresses))
    params.mode, params.opcode, params.fh = cufile.BatchMode.BATCH, cufile.Opcode.READ, handle
    params.cookie = range(len(addresses))
    params.u.batch.dev_ptr_base = addresses
    params.u.batch.file_offset = range(0, 1000 * len(addresses), 1000)
    params.u.batch.size_ = 1000
    return params


def wait_for(get_status: Callable[..., None], batch: int, count: int) -> cufile.IOEvents:
    events, room = cufile.IOEvents(count), ctypes.c_uint(count)
    get_status(batch, count, ctypes.addressof(room), events.ptr, 0)
    assert room.value == count
    return events


def test_a_wrong_batch_is_refused(handle: int, memory: Any) -> None:
    refused(OpError.INVALID_VALUE, lambda: cufile.batch_io_set_up(0))
    batch = cufile.batch_io_set_up(1)
    params = operations(handle, [memory.address(memory.empty(1000))] * 2)
    refused(OpError.INTERNAL_BATCH_SUBMIT_ERROR, lambda: cufile.batch_io_submit(batch, 2, params, 0))
    refused(OpError.INVALID_VALUE, lambda: cufile.batch_io_submit(batch, 1, params, 1))
    room = ctypes.c_uint(1)
    refused(
        OpError.INVALID_VALUE, lambda: cufile.batch_io_get_status(batch, 2, ctypes.addressof(room), cufile.IOEvents(2), 0)
    )
    cufile.batch_io_destroy(batch)


# The driver, parameters and statistics


def test_uses_are_counted_together_with_the_documented_module() -> None:
    before = cufile.use_count()
    cufile.driver_open()
    documented.driver_open()
    assert cufile.use_count() == documented.use_count() == before + 2
    documented.driver_close()
    cufile.driver_close()
    assert cufile.use_count() == before


def test_properties_are_stored_at_an_address() -> None:
    stored = (ctypes.c_uint32 * 14)()
    cufile.driver_get_properties(ctypes.addressof(stored))
    assert stored[8] & 1 << cufile.FeatureFlags.BATCH_IO_SUPPORTED and stored[12] == 128
    refused(OpError.INVALID_VALUE, lambda: cufile.driver_get_properties(0))
    cufile.driver_set_poll_mode(False, 4)
    cufile.driver_set_max_direct_io_size(1024)
    cufile.driver_set_max_cache_size(131072)
    cufile.driver_set_max_pinned_mem_size(33554432)
    refused(OpError.DRIVER_UNSUPPORTED_LIMIT, lambda: cufile.driver_set_max_direct_io_size(1))
    refused(OpError.INVALID_VALUE, lambda: cufile.get_bar_size_in_kb(-1))


PARAMETERS = """
import ctypes
from penstock.cuda_bindings import cufile as c
sizes, flags, texts = c.SizeTConfigParameter, c.BoolConfigParameter, c.StringConfigParameter
c.set_parameter_size_t(sizes.PROPERTIES_IO_BATCHSIZE, 16)
c.set_parameter_bool(flags.FORCE_COMPAT_MODE, True)
level = ctypes.create_string_buffer(b"INFO")
c.set_parameter_string(texts.LOGGING_LEVEL, ctypes.addressof(level))
numbers = (ctypes.c_size_t * 2)(4, 1024), (ctypes.c_size_t * 2)(10, 5)
c.set_parameter_posix_pool_slab_array(ctypes.addressof(numbers[0]), ctypes.addressof(numbers[1]), 2)
back = (ctypes.c_size_t * 2)(), (ctypes.c_size_t * 2)()
print(c.get_parameter_size_t(sizes.PROPERTIES_IO_BATCHSIZE), c.get_parameter_bool(flags.FORCE_COMPAT_MODE))
print(c.get_parameter_string(texts.LOGGING_LEVEL, 256), c.get_parameter_min_max_value(sizes.EXECUTION_MAX_IO_QUEUE_DEPTH))
from penstock import cufile as documented
documented.driver_open()
print(documented._driver.settings().gpu_direct, documented._driver.settings().values["properties.io_batchsize"])
c.get_parameter_posix_pool_slab_array(ctypes.addressof(back[0]), ctypes.addressof(back[1]), 2)
print(list(back[0]), list(back[1]))
for call in (
    lambda: c.set_parameter_bool(flags.FORCE_COMPAT_MODE, False),
    lambda: c.get_parameter_size_t(99),
    lambda: c.get_parameter_string(texts.LOGGING_LEVEL, 2),
    lambda: c.get_parameter_string(texts.LOGGING_LEVEL, 0),
):
    try: call()
    except c.cuFileError as error: print(error.status.name)
"""


def test_parameters_hold_for_every_module_from_the_next_opening_on() -> None:
    done = subprocess.run([sys.executable, "-c", PARAMETERS], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "16 True",
        "INFO (1, 256)",
        "False 16",
        "[4, 1024] [10, 5]",
        "DRIVER_ALREADY_OPEN",
        *["INVALID_VALUE"] * 3,
    ], done.stderr


def test_statistics_count_at_every_level(handle: int, device_memory: Any) -> None:
    address = device_memory.address(device_memory.empty(4096))
    cufile.set_stats_level(3)
    cufile.stats_start()
    cufile.buf_register(address, 4096, 0)
    cufile.read(handle, address, 4096, 0, 0)
    cufile.read(handle, address, 4096, 0, 0)
    cufile.write(handle, address, 100, 0, 0)
    first, second, third = cufile.StatsLevel1(), cufile.StatsLevel2(), cufile.StatsLevel3()
    cufile.get_stats_l1(first.ptr)
    cufile.get_stats_l2(second.ptr)
    cufile.get_stats_l3(third)
    assert (first.read_ops.ok, first.write_ops.ok, first.buf_register_ops.ok, first.read_bytes) == (2, 1, 1, 8192)
    assert cufile.OpCounter.from_data(first.read_ops).ok == 2
    assert second.basic.read_bytes == 8192 and second.read_size_kb_hist.sum() == 2
    assert third.detailed.basic.read_bytes == 8192 and len(third.per_gpu_stats) == 16
    assert cufile.StatsLevel1.from_data(second.basic).read_ops.ok == 2
    assert cufile.StatsLevel2.from_data(third.detailed).read_size_kb_hist.sum() == 2
    assert sum(third.per_gpu_stats[gpu].n_total_reads for gpu in range(third.num_gpus)) == (2 if device_memory.device.startswith("cuda") else 0)
    cufile.stats_stop()
    cufile.stats_reset()
    cufile.get_stats_l1(first)
    assert first.read_ops.ok == 0
    assert cufile.get_stats_level() == 3
    cufile.set_stats_level(0)
    refused(OpError.INVALID_VALUE, lambda: cufile.get_stats_l1(first))
    refused(OpError.INVALID_VALUE, lambda: cufile.set_stats_level(4))
    cufile.buf_deregister(address)


# Errors


def test_an_error_has_its_number_and_its_words() -> None:
    error = cuFileError(5027)
    assert error.status == OpError.HANDLE_NOT_REGISTERED == 5027 and error.cuda_error is None
    assert str(error).startswith("HANDLE_NOT_REGISTERED (5027): ") and error.args == (str(error),)
    assert isinstance(error, documented.cuFileError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(cuFileError(errno.EIO)) == "EIO (5): Input/output error"
    assert error.status is OpError.HANDLE_NOT_REGISTERED


def test_an_error_tells_cudas_number_too(handle: int) -> None:
    with pytest.raises(cuFileError) as caught:
        cufile.buf_register(0, 4096, 0)
    assert caught.value.cuda_error == 0 and str(caught.value).endswith("; CUDA status: CUDA_SUCCESS (0)")
    told = cuFileError(5011, 100)
    assert told.cuda_error == 100 and re.search(r"; CUDA status: (CUDA_ERROR_NO_DEVICE|CUresult) \(100\)$", str(told))
    assert str(pickle.loads(pickle.dumps(told))) == str(told)
    with pytest.raises(cuFileError) as caught:
        cufile.read(handle, 0, 10, 0, 0)
    assert caught.value.cuda_error is None
    assert Answer(5011, 100) == 5011 and Answer(5011, 100).cuda_error == 100


def test_a_number_of_no_error_has_its_words_too() -> None:
    assert cufile.op_status_error(5999) == "not an error number of cuFile"


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_what_c_does_not_hold_overflows(value: int) -> None:
    for call in (lambda: cufile.buf_register(4096, value, 0), lambda: cufile.read(1, value, 1, 0, 0), lambda: cufile.batch_io_set_up(value)):
        with pytest.raises(OverflowError):
            call()


@pytest.mark.parametrize("value", ["1", None, 1.5])
def test_what_is_no_integer_is_a_type_error(value: Any) -> None:
    for call in (lambda: cufile.buf_register(4096, value, 0), lambda: cufile.handle_register(value), lambda: cufile.set_stats_level(value)):
        with pytest.raises(TypeError):
            call()


def test_a_client_of_cuda_python_gets_what_it_expects(tmp_path: pathlib.Path) -> None:
    client = pathlib.Path(__file__).parents[2] / "tests/clients/cuda_python_cufile.py"
    if not client.exists():
        pytest.skip("the clients are in the repository only")
    done = subprocess.run(
        [sys.executable, str(client), str(tmp_path), "penstock.cuda_bindings"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0 and "functions of the binding were called" in done.stdout, done.stdout + done.stderr


# What cuda-python 13.5 has, by name and parameters.
SIGNATURES = {
    "batch_io_cancel": "batch_idp",
    "batch_io_destroy": "batch_idp",
    "batch_io_get_status": "batch_idp min_nr nr iocbp timeout",
    "batch_io_set_up": "nr",
    "batch_io_submit": "batch_idp nr iocbp flags",
    "buf_deregister": "buf_ptr_base",
    "buf_register": "buf_ptr_base length flags",
    "driver_close": "",
    "driver_get_properties": "props",
    "driver_open": "",
    "driver_set_max_cache_size": "max_cache_size",
    "driver_set_max_direct_io_size": "max_direct_io_size",
    "driver_set_max_pinned_mem_size": "max_pinned_size",
    "driver_set_poll_mode": "poll poll_threshold_size",
    "get_bar_size_in_kb": "gpu_index",
    "get_parameter_bool": "param",
    "get_parameter_min_max_value": "param",
    "get_parameter_posix_pool_slab_array": "size_values count_values len",
    "get_parameter_size_t": "param",
    "get_parameter_string": "param len",
    "get_stats_l1": "stats",
    "get_stats_l2": "stats",
    "get_stats_l3": "stats",
    "get_stats_level": "",
    "get_version": "",
    "handle_deregister": "fh",
    "handle_register": "descr",
    "op_status_error": "status",
    "read": "fh buf_ptr_base size file_offset buf_ptr_offset",
    "read_async": "fh buf_ptr_base size_p file_offset_p buf_ptr_offset_p bytes_read_p stream",
    "readv": "fh iov file_offset flags",
    "set_parameter_bool": "param value",
    "set_parameter_posix_pool_slab_array": "size_values count_values len",
    "set_parameter_size_t": "param value",
    "set_parameter_string": "param desc_str",
    "set_stats_level": "level",
    "stats_reset": "",
    "stats_start": "",
    "stats_stop": "",
    "stream_deregister": "stream",
    "stream_register": "stream flags",
    "use_count": "",
    "write": "fh buf_ptr_base size file_offset buf_ptr_offset",
    "write_async": "fh buf_ptr_base size_p file_offset_p buf_ptr_offset_p bytes_written_p stream",
    "writev": "fh iov file_offset flags",
}


def test_functions_take_cuda_pythons_arguments() -> None:
    found = {name: getattr(cufile, name) for name in cufile.__all__}
    functions = {name: " ".join(inspect.signature(each).parameters) for name, each in found.items() if inspect.isfunction(each)}
    assert functions == SIGNATURES
