"""A forked child: old files are refused with a clear error, new ones work."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

NBYTES = 300_000


@pytest.fixture
def path(tmp_path: Path, pattern: Any) -> Path:
    name = tmp_path / "file"
    name.write_bytes(pattern(NBYTES))
    return name


def in_child(check: Callable[[], None]) -> None:
    """Runs check in a forked child, and fails as it does."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told = b""
        try:
            check()
        except BaseException:  # noqa: BLE001 - all of it is told to the parent
            told = traceback.format_exc().encode()
        os.write(writing, told)
        os._exit(1 if told else 0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, told.decode() or f"status {status}"


@pytest.mark.parametrize("where", ["numpy", "host:0"])
def test_a_child_reads_files_of_its_own(path: Path, pattern: Any, where: str) -> None:
    def empty() -> Any:
        return np.zeros(NBYTES, np.uint8) if where == "numpy" else penstock.device(where).empty(NBYTES)

    def content(buffer: Any) -> bytes:
        return bytes(buffer.tobytes() if where == "numpy" else buffer.to_host())

    with penstock.open(path) as file:
        file.pread(empty()).result()  # threads and memory are the parent's

        def check() -> None:
            with penstock.open(path) as own:
                for read in (own.read_into, lambda buffer: own.pread(buffer).result(60)):
                    buffer = empty()
                    assert read(buffer) == NBYTES
                    assert content(buffer) == pattern(NBYTES)
                assert own.read_many([(buffer, 0)]) == [NBYTES]

        in_child(check)
        assert file.pread(empty()).result() == NBYTES


def test_a_file_of_the_parent_is_refused(path: Path) -> None:
    target = bytearray(NBYTES)
    with penstock.open(path, "r+") as file:
        file.pread(target).result()

        def check() -> None:
            for call in (
                lambda: file.read_into(target),
                lambda: file.write_from(target),
                lambda: file.pread(target).result(60),
                lambda: file.read_many([(target, 0)]),
                lambda: file.pread_many([(target, 0)]).result(60),
            ):
                with pytest.raises(penstock.Error) as caught:
                    call()
                assert caught.value.code == "forked", caught.value
            file.close()

        in_child(check)


def test_a_request_of_the_parent_is_refused(path: Path) -> None:
    with penstock.open(path) as file:
        futures = [file.pread(bytearray(NBYTES)) for _ in range(100)]

        def check() -> None:
            for future in futures:
                try:
                    future.result(60)
                except penstock.Error as error:
                    assert error.code == "forked"
            futures.clear()

        in_child(check)
        assert [future.result() for future in futures] == [NBYTES] * 100


def test_a_child_ends_as_others_do(path: Path) -> None:
    file = penstock.open(path)
    future = file.pread(bytearray(NBYTES))
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_read_own, args=(str(path),))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert future.result() == NBYTES
    file.close()


def _read_own(path: str) -> None:
    with penstock.open(path) as own:
        future = own.pread(bytearray(100))
        future.add_done_callback(lambda _: None)
        assert future.result(60) == 100


def test_memory_of_the_parent_may_be_dropped_in_the_child() -> None:
    buffer = penstock.device("host:0").empty(1000)
    held = [buffer]
    del buffer

    def check() -> None:
        held.clear()
        own = penstock.device("host:0").empty(10)
        own.copy_from(b"0123456789")
        assert own.to_host() == b"0123456789"

    in_child(check)
    held[0].copy_from(b"still here")
    assert held[0].to_host()[:10] == b"still here"


# --- forked while threads are at work, so while one of them is anywhere


def test_a_child_hangs_nowhere(path: Path) -> None:
    forks = os.environ.get("PENSTOCK_TEST_FORKS", "5")
    command = [sys.executable, str(Path(__file__).with_name("forked_children.py")), str(path), forks]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout[-1000:] + ended.stderr[-6000:]
    assert ended.stdout == "all children ended\n"
