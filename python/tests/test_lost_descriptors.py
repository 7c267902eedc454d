"""A descriptor that the program closes while an object of Penstock works with it, and whose number another file gets: requests reach the first file."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import cufile, gds, kvikio
from penstock.cuda_bindings import cufile as bindings

SIZE = 8192


class Door:
    """One way to open a file by a descriptor: how to read, write and close."""

    def __init__(self, read: Callable[[], bytes], write: Callable[[bytes], object], close: Callable[[], object]) -> None:
        self.read, self.write, self.close = read, write, close


def by_file(descriptor: int) -> Door:
    file = penstock.open(descriptor, "r+")
    memory = np.zeros(SIZE, "u1")

    def read() -> bytes:
        file.read_into(memory)
        return memory.tobytes()

    return Door(read, lambda data: file.write_from(np.frombuffer(data, "u1")), file.close)


def by_cufile(module: Any) -> Callable[[int], Door]:
    def open_by(descriptor: int) -> Door:
        fh = module.handle_register(descriptor)
        memory = np.zeros(SIZE, "u1")

        def read() -> bytes:
            move = module.pread if hasattr(module, "pread") else lambda *given: module.read(given[0], given[1], given[2], given[3], given[4])
            assert move(fh, memory.ctypes.data, SIZE, 0, 0) == SIZE
            return memory.tobytes()

        def write(data: bytes) -> None:
            memory[:] = np.frombuffer(data, "u1")
            move = module.pwrite if hasattr(module, "pwrite") else module.write
            assert move(fh, memory.ctypes.data, SIZE, 0, 0) == SIZE

        return Door(read, write, lambda: module.handle_deregister(fh))

    return open_by


DOORS = {"penstock.open": by_file, "cufile": by_cufile(cufile), "cuda_bindings": by_cufile(bindings)}


@pytest.fixture(autouse=True)
def closed_afterwards() -> Iterator[None]:
    yield
    while bindings.use_count() > 0:
        bindings.driver_close()


@pytest.fixture
def files(tmp_path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_bytes(b"A" * SIZE)
    theirs.write_bytes(b"B" * SIZE)
    return ours, theirs


def take_number(number: int, path: pathlib.Path) -> None:
    """Closes the descriptor and opens the file under its number, as the next open() of a program may."""
    opened = os.open(path, os.O_RDWR)
    os.dup2(opened, number)
    os.close(opened)


@pytest.mark.parametrize("door", DOORS)
def test_requests_reach_the_file_that_was_opened(door: str, files: tuple[pathlib.Path, pathlib.Path]) -> None:
    ours, theirs = files
    number = os.open(ours, os.O_RDWR)
    opened = DOORS[door](number)
    take_number(number, theirs)
    assert opened.read() == b"A" * SIZE
    opened.write(b"C" * SIZE)
    assert (ours.read_bytes(), theirs.read_bytes()) == (b"C" * SIZE, b"B" * SIZE)
    again = DOORS[door](number)
    assert again.read() == b"B" * SIZE
    opened.close()
    again.close()
    os.close(number)


@pytest.mark.parametrize("door", ["cufile", "cuda_bindings"])
def test_the_same_file_opened_again_under_its_number_registers_again(door: str, files: tuple[pathlib.Path, pathlib.Path]) -> None:
    number = os.open(files[0], os.O_RDWR)
    first = DOORS[door](number)
    take_number(number, files[0])
    second = DOORS[door](number)
    with pytest.raises(penstock.cufile.cuFileError, match="already|ALREADY"):
        DOORS[door](number)
    first.close()
    second.close()
    os.close(number)


def test_a_gds_file_whose_descriptor_is_closed_reaches_no_other(files: tuple[pathlib.Path, pathlib.Path]) -> None:
    file = gds.GdsFile(files[0], os.O_RDWR)
    take_number(file.fd, files[1])
    file.save_storage(np.full(SIZE, ord("C"), "u1"))
    file.close()
    assert (files[0].read_bytes(), files[1].read_bytes()) == (b"C" * SIZE, b"B" * SIZE)


def test_a_kvikio_file_whose_descriptor_is_closed_reaches_no_other(files: tuple[pathlib.Path, pathlib.Path]) -> None:
    file = kvikio.CuFile(files[0], "r+")
    take_number(file.fileno(), files[1])
    file.write(np.full(SIZE, ord("C"), "u1"))
    file.close()
    assert (files[0].read_bytes(), files[1].read_bytes()) == (b"C" * SIZE, b"B" * SIZE)


def test_closing_a_file_leaves_the_programs_descriptor_and_its_locks(files: tuple[pathlib.Path, pathlib.Path]) -> None:
    import fcntl

    with open(files[0], "r+b") as plain:
        fcntl.lockf(plain, fcntl.LOCK_EX)
        with penstock.open(plain.fileno(), "r+") as file:
            assert file.read(4) == b"AAAA"
        plain.seek(0)
        assert plain.read(4) == b"AAAA"
        if (child := os.fork()) == 0:
            try:
                fcntl.lockf(plain, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with penstock.open(files[1]):
        pass  # what was kept open for the lock is closed with it
