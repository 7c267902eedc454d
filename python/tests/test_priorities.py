"""Which requests go first, and how much may flow in a second."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import penstock

NBYTES = 3_000_001
MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path, pattern: Any) -> Path:
    stored = tmp_path / "data"
    stored.write_bytes(pattern(NBYTES))
    return stored


@pytest.mark.parametrize("priority", ["normal", "background", None])
def test_bytes_are_the_same_whatever_goes_first(device_memory: Any, path: Path, tmp_path: Path, priority: Any) -> None:
    with penstock.open(path) as file, penstock.open(tmp_path / "copy", "w+") as copy:
        target = device_memory.empty(NBYTES)
        assert file.read_into(target, priority=priority) == NBYTES
        assert device_memory.bytes(target) == path.read_bytes()
        assert copy.pwrite(target, priority=priority).result() == NBYTES
        assert (tmp_path / "copy").read_bytes() == path.read_bytes()
        assert file.read_many([(target, 0)], priority=priority) == [NBYTES]
        assert file.pread_many([(target, 0, 10), (target, 10, 10, 10)], priority=priority).result() == [10, 10]
        assert copy.write_ranges(target, [0, 7], [5, 9], priority=priority) == 14
        assert penstock.pread_many([(file, target, 0)], priority=priority).result() == [NBYTES]


def test_background_requests_are_counted_and_explained(path: Path) -> None:
    before = penstock.stats()["usage"]["background_requests"]
    with penstock.open(path) as file:
        file.pread(bytearray(NBYTES), priority="background").result()
        assert any(remark.startswith("in the background") for remark in file.explain(priority="background").remarks)
        assert not any(remark.startswith("in the background") for remark in file.explain().remarks)
    assert penstock.stats()["usage"]["background_requests"] == before + 1


def test_an_unknown_priority_is_refused(path: Path) -> None:
    with penstock.open(path) as file, pytest.raises(penstock.InvalidArgument, match="normal, background"):
        file.pread(bytearray(1), priority="urgent")  # type: ignore[arg-type]


def test_an_array_is_written_in_the_background(tmp_path: Path) -> None:
    assert penstock.tofile(b"some bytes", tmp_path / "array", priority="background") == 10
    assert (tmp_path / "array").read_bytes() == b"some bytes"


def test_a_limit_delays_requests(path: Path) -> None:
    limit = 8 * MIB
    with penstock.open(path, bytes_per_second=limit) as file:
        began = time.monotonic()
        moved = sum(file.read_into(bytearray(NBYTES)) for _ in range(4))
        took = time.monotonic() - began
        assert moved == 4 * NBYTES
        assert took >= (moved - limit * 0.05 - 4 * MIB) / limit
        assert any(f"limited to {limit} bytes per second" in remark for remark in file.explain().remarks)
    assert penstock.stats()["usage"]["held_bytes"] > 0


def test_what_a_limit_holds_back_ends_in_time(path: Path) -> None:
    with penstock.open(path, bytes_per_second=1024) as file:
        file.read_into(bytearray(64 << 10))
        with pytest.raises(penstock.TimedOut):
            file.read_into(bytearray(NBYTES), timeout=0.01)
        future = file.pread(bytearray(NBYTES))
        future.cancel()
        with pytest.raises(penstock.Cancelled):
            future.result()


def test_a_limit_of_less_than_nothing_is_refused(path: Path) -> None:
    with pytest.raises(penstock.InvalidArgument, match="bytes_per_second"):
        penstock.open(path, bytes_per_second=-1)


def test_the_environment_limits_the_program(path: Path) -> None:
    code = f"import penstock; print(penstock.open({str(path)!r}).explain().remarks)"
    told = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PENSTOCK_BYTES_PER_SECOND": "1234567"}, capture_output=True, text=True, check=True
    ).stdout
    assert "limited to 1234567 bytes per second by the engine" in told
