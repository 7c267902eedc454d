#!/usr/bin/env python3
"""NVIDIA's cuda-python over libcufile: calls every function of cuda.bindings.cufile and checks what comes back.

A function of the binding that nothing here calls is a failure, so that a new version of cuda-python asks for new checks. Memory is a
GPU's where there is one, else the host's. Needs cuda-bindings 13 and NumPy; needs no libcuda.so.1.

Usage: penstock run -- python3 cuda_python_cufile.py FOLDER [LIBRARY]
       python3 cuda_python_cufile.py FOLDER penstock.cuda_bindings
FOLDER is written to. LIBRARY: the library file that must be in use. penstock.cuda_bindings: that module instead of NVIDIA's, which it must equal.
"""

import ctypes
import errno
import importlib
import os
import pathlib
import sys
import tempfile
from typing import Any, Callable

from client import check, check_library, equal, fail, ok, skip, why_no_gpu

OURS = sys.argv[2:] == ["penstock.cuda_bindings"]

try:
    import numpy as np

    binding: Any = importlib.import_module("penstock.cuda_bindings.cufile" if OURS else "cuda.bindings.cufile")
except ImportError as problem:
    skip(f"the binding cannot be imported: {problem}")

KIB, MIB = 1024, 1024 * 1024


def functions_of(module: Any) -> set[str]:
    names = getattr(module, "__all__", dir(module))  # NVIDIA's has none, and imports nothing that is callable
    found = {name for name in names if not name.startswith("_") and callable(getattr(module, name))}
    return {name for name in found if not isinstance(getattr(module, name), type)}


class Watched:
    """The binding, and which of its functions have been called."""

    def __init__(self, module: Any):
        self.module = module
        self.functions = functions_of(module)
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in self.functions:
            self.called.add(name)
        return getattr(self.module, name)


cufile = Watched(binding)
SUCCESS, INVALID_VALUE = 0, 5022


def refused(call: Callable[[], Any], code: int, what: str) -> None:
    """The call must fail with this cuFile error."""
    try:
        call()
    except binding.cuFileError as problem:
        check(str(code) in str(problem) or cufile.op_status_error(code) in str(problem), f"{what}: {problem}, not {code}")
        return
    fail(f"{what}: no error, not {code}")


class Memory:
    """Memory that cuFile reads into: a GPU's, or the host's on a machine without."""

    gpu_missing = why_no_gpu()

    def __init__(self, size: int):
        self.size = size
        if Memory.gpu_missing is None:
            self.address = int(cuda(driver().cuMemAlloc(size)))
        else:
            self.kept = ctypes.create_string_buffer(size + 4096)
            self.address = (ctypes.addressof(self.kept) + 4095) // 4096 * 4096

    def put(self, data: bytes, offset: int = 0) -> None:
        if Memory.gpu_missing is None:
            cuda(driver().cuMemcpyHtoD(self.address + offset, data, len(data)))
        else:
            ctypes.memmove(self.address + offset, data, len(data))

    def get(self, length: int, offset: int = 0) -> bytes:
        if Memory.gpu_missing is not None:
            return ctypes.string_at(self.address + offset, length)
        target = bytearray(length)
        cuda(driver().cuMemcpyDtoH(target, self.address + offset, length))
        return bytes(target)

    def wipe(self) -> None:
        self.put(bytes(self.size))

    def free(self) -> None:
        if Memory.gpu_missing is None:
            cuda(driver().cuMemFree(self.address))


def driver() -> Any:
    from cuda.bindings import driver as module  # loads libcuda when first called: only where there is a GPU

    return module


def cuda(outcome: tuple) -> Any:
    """The value of a call of the CUDA driver."""
    error, *values = outcome
    equal(int(error), 0, "CUDA driver")
    return values[0] if values else None


def use_gpu() -> None:
    cuda(driver().cuInit(0))
    device = cuda(driver().cuDeviceGet(0))
    cuda(driver().cuCtxSetCurrent(cuda(driver().cuDevicePrimaryCtxRetain(device))))


class File:
    """A registered file."""

    def __init__(self, path: pathlib.Path, flags: int = os.O_RDWR | os.O_CREAT):
        direct = getattr(os, "O_DIRECT", 0)
        try:
            self.fd = os.open(path, flags | direct, 0o644)
        except OSError as problem:
            if problem.errno != errno.EINVAL:
                raise
            self.fd = os.open(path, flags, 0o644)  # this file system has no O_DIRECT
        self.handle = register(self.fd)

    def close(self) -> None:
        cufile.handle_deregister(self.handle)
        os.close(self.fd)


def register(fd: int, kind: int = 1) -> int:
    descriptor = np.zeros(1, dtype=binding.descr_dtype)
    descriptor["type"] = kind
    descriptor["handle"]["fd"] = fd
    return cufile.handle_register(descriptor.ctypes.data)


def random_bytes(seed: int, length: int) -> bytes:
    return np.random.default_rng(seed).bytes(length)


def use_count() -> int:
    """NVIDIA's binding calls cuFileUseCount but drops its value; it is asked for again, of the same library."""
    told = cufile.use_count()
    if told is not None:
        return int(told)
    count = ctypes.CDLL(None).cuFileUseCount
    count.restype = ctypes.c_long
    return count()


def close_all() -> None:
    while use_count() > 0:
        cufile.driver_close()


# --- groups of checks; each begins and ends with the library closed


def check_driver() -> str:
    version = cufile.get_version()
    check(version >= 1150, f"version {version}")
    equal(use_count(), 0, "uses before the first")
    refused(cufile.driver_close, 5001, "closing what is closed")
    cufile.driver_open()
    cufile.driver_open()
    equal(use_count(), 2, "uses")
    properties = (ctypes.c_uint32 * 14)()
    cufile.driver_get_properties(ctypes.addressof(properties))
    check(properties[8] & 1 << binding.FeatureFlags.BATCH_IO_SUPPORTED, "batches are not among the features")
    equal(properties[12], 128, "max_batch_io_size")
    close_all()
    check(len(cufile.op_status_error(5027)) > 0, "no text for 5027")
    return f"version {version}"


def check_parameters() -> str:
    sizes = binding.SizeTConfigParameter
    values = {
        sizes.POLLTHRESHOLD_SIZE_KB: 64,
        sizes.PROPERTIES_MAX_DIRECT_IO_SIZE_KB: 1024,
        sizes.PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB: 512,
        sizes.PROPERTIES_PER_BUFFER_CACHE_SIZE_KB: 128,
        sizes.PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB: 2048,
        sizes.PROPERTIES_IO_BATCHSIZE: 16,
        sizes.PROPERTIES_BATCH_IO_TIMEOUT_MS: 5000,
        sizes.EXECUTION_MAX_IO_QUEUE_DEPTH: 32,
        sizes.EXECUTION_MAX_IO_THREADS: 8,
        sizes.EXECUTION_MIN_IO_THRESHOLD_SIZE_KB: 4,
        sizes.EXECUTION_MAX_REQUEST_PARALLELISM: 4,
    }
    for parameter, value in values.items():
        before = cufile.get_parameter_size_t(parameter)
        cufile.set_parameter_size_t(parameter, value)
        equal(cufile.get_parameter_size_t(parameter), value, str(parameter))
        cufile.set_parameter_size_t(parameter, before)
    flags = [flag for flag in binding.BoolConfigParameter if int(flag) <= 11 and "NVTX" not in flag.name]
    for flag in flags:
        before = cufile.get_parameter_bool(flag)
        cufile.set_parameter_bool(flag, not before)
        equal(cufile.get_parameter_bool(flag), not before, str(flag))
        cufile.set_parameter_bool(flag, before)
    level = ctypes.create_string_buffer(b"INFO")
    cufile.set_parameter_string(binding.StringConfigParameter.LOGGING_LEVEL, ctypes.addressof(level))
    equal(cufile.get_parameter_string(binding.StringConfigParameter.LOGGING_LEVEL, 256).rstrip("\0"), "INFO", "LOGGING_LEVEL")
    level = ctypes.create_string_buffer(b"ERROR")
    cufile.set_parameter_string(binding.StringConfigParameter.LOGGING_LEVEL, ctypes.addressof(level))
    least, most = cufile.get_parameter_min_max_value(sizes.EXECUTION_MAX_IO_QUEUE_DEPTH)
    equal((least, most), (1, 256), "range of the queue depth")
    slab_sizes, slab_counts = np.array([4, 1024], dtype="u8"), np.array([10, 5], dtype="u8")
    cufile.set_parameter_posix_pool_slab_array(slab_sizes.ctypes.data, slab_counts.ctypes.data, 2)
    cufile.driver_open()
    back_sizes, back_counts = np.zeros(2, dtype="u8"), np.zeros(2, dtype="u8")
    cufile.get_parameter_posix_pool_slab_array(back_sizes.ctypes.data, back_counts.ctypes.data, 2)
    equal((back_sizes.tolist(), back_counts.tolist()), ([4, 1024], [10, 5]), "slabs of an open library")
    refused(lambda: cufile.set_parameter_size_t(sizes.POLLTHRESHOLD_SIZE_KB, 8), 5026, "setting a parameter of an open library")
    close_all()
    cufile.driver_set_poll_mode(False, 4)
    cufile.driver_set_max_direct_io_size(1024)
    cufile.driver_set_max_cache_size(131072)
    cufile.driver_set_max_pinned_mem_size(33554432)
    refused(lambda: cufile.driver_set_max_direct_io_size(1), 5003, "a direct size of 1 KiB")
    return f"{len(values)} sizes, {len(flags)} flags"


def check_registration(folder: pathlib.Path) -> str:
    refused(lambda: register(-1), INVALID_VALUE, "a descriptor of -1")
    directory = os.open(folder, os.O_RDONLY)
    refused(lambda: register(directory), 5018, "a directory")
    os.close(directory)
    file = File(folder / "registered")
    refused(lambda: register(file.fd), 5028, "a descriptor twice")
    refused(lambda: register(file.fd, kind=2), 5008, "a Windows handle")
    file.close()
    memory = Memory(MIB)
    cufile.buf_register(memory.address, MIB, 0)
    refused(lambda: cufile.buf_register(memory.address, MIB, 0), 5023, "memory twice")
    cufile.buf_deregister(memory.address)
    refused(lambda: cufile.buf_deregister(memory.address), 5024, "memory that is not registered")
    refused(lambda: cufile.buf_register(0, MIB, 0), INVALID_VALUE, "null")
    close_all()
    memory.free()
    return ""


def check_transfers(folder: pathlib.Path) -> str:
    length = 3 * MIB + 777
    data = random_bytes(1, length)
    path = folder / "data"
    file = File(path)
    source, target = Memory(length + 8 * KIB), Memory(length + 8 * KIB)
    source.put(data)
    equal(cufile.write(file.handle, source.address, length, 0, 0), length, "bytes written")
    check(path.read_bytes() == data, "the file differs from what was written")
    target.wipe()
    equal(cufile.read(file.handle, target.address, length, 0, 0), length, "bytes read")
    check(target.get(length) == data, "memory differs from the file")
    cufile.buf_register(target.address, target.size, 0)
    target.wipe()
    equal(cufile.read(file.handle, target.address, 100001, 12345, 4099), 100001, "bytes of a range aligned to nothing")
    check(target.get(100001, 4099) == data[12345:112346], "a range aligned to nothing")
    check(target.get(4099) == bytes(4099), "bytes in front of the range were touched")
    equal(cufile.read(file.handle, target.address, 8 * KIB, length - 1000, 0), 1000, "bytes up to the end")
    equal(cufile.read(file.handle, target.address, 8 * KIB, length, 0), 0, "bytes at the end")
    equal(cufile.read(file.handle, target.address, 0, 0, 0), 0, "nothing")
    refused(lambda: cufile.read(file.handle, target.address, 10, -1, 0), INVALID_VALUE, "a negative offset")
    refused(lambda: cufile.read(file.handle, target.address, target.size, 0, 1), 5017, "past the registered memory")
    refused(lambda: cufile.read(0, target.address, 10, 0, 0), 5027, "a null handle")
    cufile.buf_deregister(target.address)
    file.close()
    close_all()
    source.free()
    target.free()
    return f"{length} bytes"


def check_vectors(folder: pathlib.Path) -> str:
    """readv and writev, which came with CUDA 13.4."""
    if "readv" not in cufile.functions:
        return "not in this version of the binding"
    data = random_bytes(2, 70001)
    path = folder / "vectors"
    file = File(path)
    memory = Memory(256 * KIB)
    memory.put(data[:50000], 5)
    memory.put(data[50000:], 100 * KIB)
    pieces = binding.IOVec(2)
    pieces.base_ = [memory.address + 5, memory.address + 100 * KIB]
    pieces.len = [50000, 20001]
    equal(cufile.writev(file.handle, pieces, 0), len(data), "bytes written from two pieces")
    check(path.read_bytes() == data, "the file differs from what was written")
    memory.wipe()
    equal(cufile.readv(file.handle, pieces, 1), len(data) - 1, "bytes read to two pieces, up to the end")
    check(memory.get(50000, 5) + memory.get(20000, 100 * KIB) == data[1:], "two pieces")
    file.close()
    close_all()
    memory.free()
    return "two pieces"


def run_batch(batch: int, operations: list[dict], wanted: list[tuple[int, int]]) -> None:
    """Submits, and checks (status, bytes) of every operation."""
    entries = np.zeros(len(operations), dtype=binding.io_params_dtype)
    for entry, operation in zip(entries, operations):
        entry["mode"] = binding.BatchMode.BATCH
        for name in ("fh", "opcode", "cookie"):
            entry[name] = operation[name]
        for name in ("dev_ptr_base", "file_offset", "dev_ptr_offset", "size_"):
            entry["u"]["batch"][name] = operation[name]
    cufile.batch_io_submit(batch, len(operations), entries.ctypes.data, 0)
    seen: dict[int, tuple[int, int]] = {}
    while len(seen) < len(operations):
        events = np.zeros(len(operations), dtype=binding.io_events_dtype)
        count = ctypes.c_uint(len(operations))
        limit = (ctypes.c_long * 2)(10, 0)
        cufile.batch_io_get_status(batch, 1, ctypes.addressof(count), events.ctypes.data, ctypes.addressof(limit))
        check(count.value > 0, "no event within 10 s")
        for event in events[: count.value]:
            cookie = int(event["cookie"])
            check(cookie not in seen, f"cookie {cookie} came twice")
            seen[cookie] = (int(event["status"]), int(event["ret"]))
    equal([seen[operation["cookie"]] for operation in operations], wanted, "status and bytes of a batch")


def check_batch(folder: pathlib.Path) -> str:
    entries, piece = 16, 20 * KIB
    path = folder / "batch"
    file = File(path)
    memory = Memory(entries * piece)
    data = random_bytes(3, entries * piece)
    memory.put(data)

    def operations(opcode: int) -> list[dict]:
        made = []
        for i in range(entries):
            file_offset = (entries - 1 - i) * piece  # in the file, backwards
            made.append({"fh": file.handle, "opcode": opcode, "cookie": 1000 + i, "dev_ptr_base": memory.address,
                         "file_offset": file_offset, "dev_ptr_offset": i * piece, "size_": piece})
        return made

    complete = int(binding.Status.COMPLETE)
    refused(lambda: cufile.batch_io_set_up(0), INVALID_VALUE, "a batch of nothing")
    refused(lambda: cufile.batch_io_set_up(257), INVALID_VALUE, "a batch of 257")
    batch = cufile.batch_io_set_up(entries)
    run_batch(batch, operations(binding.Opcode.WRITE), [(complete, piece)] * entries)
    written = path.read_bytes()
    check(b"".join(written[i : i + piece] for i in range((entries - 1) * piece, -1, -piece)) == data, "the file differs from the batch")
    memory.wipe()
    run_batch(batch, operations(binding.Opcode.READ), [(complete, piece)] * entries)  # on the same batch
    check(memory.get(len(data)) == data, "memory differs from the batch")
    past_end = operations(binding.Opcode.READ)[:1]
    past_end[0]["file_offset"] = entries * piece
    run_batch(batch, past_end, [(complete, 0)])
    cufile.batch_io_cancel(batch)
    cufile.batch_io_destroy(batch)
    count = ctypes.c_uint(0)
    refused(lambda: cufile.batch_io_get_status(batch, 0, ctypes.addressof(count), 0, 0), 5041, "a destroyed batch")
    file.close()
    close_all()
    memory.free()
    return f"{entries} writes and reads on one batch"


def check_streams(folder: pathlib.Path) -> str:
    length = MIB + 5
    path = folder / "stream"
    data = random_bytes(4, 2 * MIB)
    path.write_bytes(data)
    file = File(path)
    memory = Memory(2 * MIB)
    size, file_offset, memory_offset = ctypes.c_size_t(length), ctypes.c_int64(3), ctypes.c_int64(7)
    done = ctypes.c_ssize_t(-99)
    pointers = [ctypes.addressof(value) for value in (size, file_offset, memory_offset, done)]
    if Memory.gpu_missing is not None:
        cufile.stream_register(0, 0)
        refused(lambda: cufile.read_async(file.handle, memory.address, *pointers, 0), 5013, "a stream read to host memory")
        refused(lambda: cufile.write_async(file.handle, memory.address, *pointers, 0), 5013, "a stream write from host memory")
        cufile.stream_deregister(0)
        outcome = "refused for host memory"
    else:
        stream = int(cuda(driver().cuStreamCreate(1)))  # CU_STREAM_NON_BLOCKING
        cufile.stream_register(stream, 0)
        memory.wipe()
        cufile.read_async(file.handle, memory.address, *pointers, stream)
        cuda(driver().cuStreamSynchronize(stream))
        equal(done.value, length, "bytes read on a stream")
        check(memory.get(length, 7) == data[3 : 3 + length], "memory differs after a read on a stream")
        fresh = random_bytes(5, length)
        memory.put(fresh, 7)
        cufile.write_async(file.handle, memory.address, *pointers, stream)
        cuda(driver().cuStreamSynchronize(stream))
        equal(done.value, length, "bytes written on a stream")
        check(path.read_bytes()[3 : 3 + length] == fresh, "the file differs after a write on a stream")
        cufile.stream_deregister(stream)
        cuda(driver().cuStreamDestroy(stream))
        outcome = "a real stream"
    file.close()
    close_all()
    memory.free()
    return outcome


def layouts(version: int) -> tuple[np.dtype, np.dtype, np.dtype, str]:
    """The stats structs of the library: the binding's, but for a library before 1.19, which ends level 1 earlier."""
    one, two, three = (np.dtype(layout) for layout in (binding.stats_level1_dtype, binding.stats_level2_dtype, binding.stats_level3_dtype))
    if OURS or version >= 1190 or "readv_ops" not in one.names:
        return one, two, three, "the binding's layout"
    names = one.names[: one.names.index("readv_ops")]
    older_one = np.dtype([(name, one.fields[name][0]) for name in names])
    older_two = np.dtype([("basic", older_one)] + [(name, two.fields[name][0]) for name in two.names[1:]])
    per_gpu = three.fields["per_gpu_stats"][0]
    older_three = np.dtype([("detailed", older_two), ("num_gpus", "<u4"), ("padding", "<u4"), ("per_gpu_stats", per_gpu)])
    return older_one, older_two, older_three, "1.17's layout, since the library says that it is 1.17 and the binding is newer"


def check_stats(folder: pathlib.Path) -> str:
    one_layout, two_layout, three_layout, which = layouts(cufile.get_version())
    refused(lambda: cufile.set_stats_level(-1), INVALID_VALUE, "level -1")
    refused(lambda: cufile.set_stats_level(4), INVALID_VALUE, "level 4")
    for level in (0, 1, 2, 3):
        cufile.set_stats_level(level)
        equal(cufile.get_stats_level(), level, "stats level")
    # The binding's own size of each, so that a struct that is larger than the library's would show as untouched bytes.
    rooms = [np.full(np.dtype(layout).itemsize + 64, 0xA5, dtype="u1")
             for layout in (binding.stats_level1_dtype, binding.stats_level2_dtype, binding.stats_level3_dtype)]
    refused(lambda: cufile.get_stats_l1(rooms[0].ctypes.data), 5001, "stats of a closed library")
    cufile.driver_open()
    cufile.stats_start()
    cufile.stats_reset()
    (folder / "stats").write_bytes(random_bytes(6, MIB))
    file = File(folder / "stats")
    memory = Memory(MIB)
    for i in range(4):
        equal(cufile.read(file.handle, memory.address, 64 * KIB, i * 4096, 0), 64 * KIB, "bytes read")
    equal(cufile.write(file.handle, memory.address, 4 * KIB, 0, 0), 4 * KIB, "bytes written")
    for room, call in zip(rooms, (cufile.get_stats_l1, cufile.get_stats_l2, cufile.get_stats_l3)):
        call(room.ctypes.data)
    one, two, three = (room[: layout.itemsize].view(layout)[0] for room, layout in zip(rooms, (one_layout, two_layout, three_layout)))
    for room, layout in zip(rooms, (one_layout, two_layout, three_layout)):
        check((room[layout.itemsize :] == 0xA5).all(), "bytes behind a stats struct were touched")
    for level, seen in ((1, one), (2, two["basic"]), (3, three["detailed"]["basic"])):
        equal(int(seen["read_ops"]["ok"]), 4, f"level {level}: reads")
        equal(int(seen["read_bytes"]), 256 * KIB, f"level {level}: bytes read")
        equal(int(seen["write_ops"]["ok"]), 1, f"level {level}: writes")
        equal(int(seen["write_bytes"]), 4 * KIB, f"level {level}: bytes written")
        equal(int(seen["hdl_register_ops"]["ok"]), 1, f"level {level}: files registered")
    equal(int(two["read_size_kb_hist"].sum()), 4, "level 2: reads in the histogram")
    equal(int(three["detailed"]["write_size_kb_hist"].sum()), 1, "level 3: writes in the histogram")
    check(int(three["num_gpus"]) <= 16, "level 3: number of GPUs")
    if Memory.gpu_missing is None:
        check(int(three["num_gpus"]) >= 1, "level 3: no GPU")
        equal(int(three["per_gpu_stats"]["read_bytes"][: int(three["num_gpus"])].sum()), 256 * KIB, "level 3: bytes read to GPUs")
    cufile.stats_stop()
    cufile.read(file.handle, memory.address, 4 * KIB, 0, 0)
    cufile.get_stats_l1(rooms[0].ctypes.data)
    equal(int(one["read_ops"]["ok"]), 4, "reads after the end of counting")
    cufile.set_stats_level(1)
    refused(lambda: cufile.get_stats_l2(rooms[1].ctypes.data), INVALID_VALUE, "level 2 at level 1")
    cufile.set_stats_level(0)
    file.close()
    close_all()
    memory.free()
    return f"levels 1 to 3, {which}"


def check_machine() -> str:
    refused(lambda: cufile.get_bar_size_in_kb(1000), INVALID_VALUE, "GPU 1000")
    outcome = "no GPU to ask"
    if Memory.gpu_missing is None:
        size_kb = cufile.get_bar_size_in_kb(0)
        check(size_kb > 0, "GPU 0 has a BAR of 0 KiB")
        outcome = f"BAR of {size_kb} KiB"
    close_all()
    return outcome


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: cuda_python_cufile.py FOLDER [LIBRARY]")
    try:
        version = binding.get_version()
    except Exception as problem:  # the loader's own class, of another package, and its text is long
        fail(f"no libcufile was found: {type(problem).__name__}: {str(problem).splitlines()[0]}")
    if not OURS:
        check_library(sys.argv[2] if len(sys.argv) == 3 else None)
    if Memory.gpu_missing is None:
        use_gpu()
    package = importlib.import_module("penstock" if OURS else "cuda.bindings")
    ok(f"{package.__name__} {package.__version__} on cuFile {version}, "
       + ("GPU memory" if Memory.gpu_missing is None else f"host memory: {Memory.gpu_missing}"))
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as scratch:
        folder = pathlib.Path(scratch)
        ok(f"driver: {check_driver()}")
        ok(f"parameters: {check_parameters()}")
        check_registration(folder)
        ok("registration")
        for what, group in (("transfers", check_transfers), ("vectors", check_vectors), ("batch", check_batch),
                            ("streams", check_streams), ("stats", check_stats)):
            ok(f"{what}: {group(folder)}")
        ok(f"machine: {check_machine()}")
    missed = cufile.functions - cufile.called
    check(not missed, f"functions of the binding that nothing here calls: {', '.join(sorted(missed))}")
    ok(f"all {len(cufile.functions)} functions of the binding were called")


if __name__ == "__main__":
    main()
