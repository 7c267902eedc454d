"""Every function of both cufile modules with every argument wrong, one after the other: an exception, never a crash. A new function is found by itself."""

from __future__ import annotations

import ctypes
import inspect
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from penstock import cuda_status
from penstock._cufile import codes as _cufile_codes
from penstock import cufile as documented
from penstock.cuda_bindings import cufile as bindings

# As descriptors, small numbers, freed memory, numbers that no pointer holds.
NUMBERS = [1, 3, 4095, 65_535, 0x1234567890, 1 << 63, (1 << 64) - 1, -1, 1 << 70]
OTHERS: list[Any] = ["text", None, 1.5, b"bytes", object(), [], {}]
EXPECTED = (_cufile_codes.cuFileError, TypeError, OverflowError, ValueError)
# Their arguments are keys of dictionaries, or sizes of nothing; the others of a module are swept.
LEFT_OUT = {"set_file_properties", "get_file_properties", "synchronize", "driver_open", "driver_close", "use_count"}


def functions() -> list[Any]:
    found = []
    for module in (documented, bindings):
        for name in sorted(set(dir(module))):
            call = getattr(module, name)
            if name.startswith("_") or name in LEFT_OUT or not inspect.isfunction(call) or not inspect.signature(call).parameters:
                continue
            if call.__module__ in (documented.__name__, bindings.__name__):
                found.append(pytest.param(module, name, id=f"{module.__name__.removeprefix('penstock.')}.{name}"))
    return found


class World:
    """Good values for each argument, by its name."""

    def __init__(self, module: ModuleType, path: pathlib.Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR)
        self.module = module
        self.memory = np.zeros(1 << 16, "u1")
        self.fh = module.handle_register(self.descriptor)
        self.batch = bindings.batch_io_set_up(4)
        self.pieces: Any = bindings.IOVec(1) if module is bindings else documented.IOVec(self.memory.ctypes.data, 16)
        if module is bindings:
            self.pieces.base_, self.pieces.len = self.memory.ctypes.data, 16

    def value_of(self, function: str, name: str) -> Any:
        if name in ("descr", "fh"):
            return self.descriptor if name == "descr" else self.fh
        if name in ("batch_idp", "batch"):
            return self.batch
        if name == "iov":
            return self.pieces
        if name in ("file_offset", "buf_ptr_offset", "flags", "stream", "min_nr", "level", "param", "gpu_index", "timeout", "status", "poll"):
            return 0
        if name in ("size", "length", "nr", "len", "iovcnt", "value") or name.startswith("max_") or name.endswith("threshold_size"):
            return self.memory.ctypes.data if function == "batch_io_get_status" else 1
        return self.memory.ctypes.data

    def close(self) -> None:
        bindings.batch_io_destroy(self.batch)
        self.module.handle_deregister(self.fh)
        os.close(self.descriptor)
        while bindings.use_count() > 0:
            bindings.driver_close()


@pytest.mark.parametrize("module, name", functions())
def test_a_wrong_argument_is_an_exception(module: ModuleType, name: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 16))
    world = World(module, path)
    call = getattr(module, name)
    parameters = list(inspect.signature(call).parameters)
    for wrong_place, wrong_name in enumerate(parameters):
        if wrong_name == "stream" and cuda_status() is None:
            continue  # CUDA's driver reads what it points to
        for wrong in NUMBERS + OTHERS:
            arguments = [wrong if place == wrong_place else world.value_of(name, each) for place, each in enumerate(parameters)]
            try:
                call(*arguments)
            except EXPECTED as error:
                assert str(error)
    world.close()


@pytest.fixture
def descriptor(tmp_path: pathlib.Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(b"content")
    opened = os.open(tmp_path / "file", os.O_RDWR)
    yield opened
    os.close(opened)
    while bindings.use_count() > 0:
        bindings.driver_close()


def test_a_descriptor_is_registered_as_it_is(descriptor: int) -> None:
    fh = bindings.handle_register(descriptor)
    memory = np.zeros(7, "u1")
    assert bindings.read(fh, memory.ctypes.data, 7, 0, 0) == 7
    assert memory.tobytes() == b"content"
    with pytest.raises(bindings.cuFileError, match="HANDLE_ALREADY_REGISTERED"):
        bindings.handle_register(descriptor)
    bindings.handle_deregister(fh)


def test_a_number_that_is_no_open_descriptor_is_refused() -> None:
    for number in (60_000, -1):
        with pytest.raises((bindings.cuFileError, OverflowError)):
            bindings.handle_register(number)


@pytest.mark.parametrize(
    "call",
    [
        lambda address: bindings.driver_get_properties(address),
        lambda address: bindings.handle_register(address),
        lambda address: bindings.get_parameter_posix_pool_slab_array(address, address, 3),
        lambda address: documented.driver_get_properties(address),
        lambda address: documented.handle_register(address),
    ],
)
def test_an_address_that_leads_nowhere_is_named(call: Callable[[int], Any]) -> None:
    with pytest.raises(_cufile_codes.cuFileError, match=re.escape("0x1234567890")):
        call(0x1234567890)


def test_memory_that_cannot_be_written_is_no_place_for_a_result() -> None:
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    constant = library.mmap(None, 4096, 1, 0x22, -1, 0)  # PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS
    for call, said in (
        (bindings.driver_get_properties, "is not the address of 56 bytes that can be written"),
        (documented.driver_get_properties, "is not the address of 56 writable bytes"),
    ):
        with pytest.raises(_cufile_codes.cuFileError, match=said):
            call(constant)


def test_a_pickled_error_keeps_its_detail() -> None:
    import pickle

    with pytest.raises(bindings.cuFileError) as caught:
        bindings.driver_get_properties(0x1234567890)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and again.detail == caught.value.detail


def test_the_page_of_cuda_python_runs_as_it_is_typed(tmp_path: pathlib.Path) -> None:
    """In a process of its own: what crashed was the interpreter."""
    (tmp_path / "file").write_bytes(b"content")
    program = (
        "import os, sys\nfrom penstock.cuda_bindings import cufile\ncufile.driver_open()\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\nhandle = cufile.handle_register(fd)\nprint(handle != 0)\n"
        "cufile.handle_deregister(handle)\ncufile.driver_close()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "file")], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
