"""Which requests go first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock

NBYTES = 3_000_001


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
    before = penstock.stats()["background_requests"]
    with penstock.open(path) as file:
        file.pread(bytearray(NBYTES), priority="background").result()
        assert any(remark.startswith("in the background") for remark in file.explain(priority="background").remarks)
        assert not any(remark.startswith("in the background") for remark in file.explain().remarks)
    assert penstock.stats()["background_requests"] == before + 1


def test_an_unknown_priority_is_refused(path: Path) -> None:
    with penstock.open(path) as file, pytest.raises(penstock.InvalidArgument, match="normal, background"):
        file.pread(bytearray(1), priority="urgent")  # type: ignore[arg-type]


def test_an_array_is_written_in_the_background(tmp_path: Path) -> None:
    assert penstock.tofile(b"some bytes", tmp_path / "array", priority="background") == 10
    assert (tmp_path / "array").read_bytes() == b"some bytes"
