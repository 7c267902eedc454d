"""What becomes of what is not in the page cache, and ranges that are pinned."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock

NBYTES = 5_000_011


@pytest.fixture
def path(tmp_path: Path, pattern: Any) -> Path:
    stored = tmp_path / "data"
    stored.write_bytes(pattern(NBYTES))
    return stored


@pytest.mark.parametrize("cache", ["auto", "fill", "bypass", None])
def test_bytes_are_the_same_whichever_way_they_go(device_memory: Any, path: Path, cache: Any) -> None:
    with penstock.open(path, "r+", cache=cache) as file:
        for ask in (None, cache):
            file.sync()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            target = device_memory.empty(NBYTES)
            assert file.read_into(target, cache=ask) == NBYTES
            assert device_memory.bytes(target) == path.read_bytes()
            assert file.pread(target, cache=ask).result() == NBYTES
            assert file.read_many([(target, 0)], cache=ask) == [NBYTES]
            assert file.read_ranges(target, [0, 7], [5, 9], cache=ask) == 14


def test_explain_tells_what_was_asked_for(path: Path) -> None:
    with penstock.open(path, "r+") as file:
        file.sync()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if file.explain().cached_bytes != 0:
            pytest.skip(f"{path} stays in the page cache")
        for cache, words in (("fill", "read through it, as requested"), ("bypass", "direct I/O, as requested")):
            reasons = {part.reason for part in file.explain(cache=cache).parts}  # type: ignore[arg-type]
            if reasons == {"the file system does not support direct I/O: through the page cache"}:
                pytest.skip(f"{path} has no direct I/O")
            assert all(words in reason for reason in reasons), reasons


def test_an_unknown_word_is_refused(path: Path) -> None:
    with pytest.raises(penstock.InvalidArgument, match="auto, fill, bypass"):
        penstock.open(path, cache="kept")  # type: ignore[arg-type]
    with penstock.open(path) as file, pytest.raises(TypeError, match="cache must be a str or None"):
        file.pread(bytearray(1), cache=3)  # type: ignore[arg-type]


def test_the_old_name_of_fill_still_works_and_warns(path: Path) -> None:
    with pytest.warns(DeprecationWarning, match='use cache="fill"'), penstock.open(path, cache="keep") as file:  # type: ignore[arg-type]
        with pytest.warns(DeprecationWarning, match='use cache="fill"'):
            assert file.read_into(bytearray(9), cache="keep") == 9  # type: ignore[call-overload]
    code = "import penstock, sys; [penstock.open(sys.argv[1]).close() for _ in range(2)]"
    environment = {**os.environ, "PENSTOCK_CACHE": "keep"}
    told = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=environment, check=True)
    assert told.stderr == "penstock: PENSTOCK_CACHE=keep is deprecated: use PENSTOCK_CACHE=fill\n"


def test_a_pinned_range_is_read_and_given_back(device_memory: Any, path: Path) -> None:
    with penstock.open(path) as file:
        before = penstock.stats()["pinned_file_bytes"]
        with file.pin() as pinned:
            assert pinned.size == NBYTES
            assert pinned.problem is None
            assert penstock.stats()["pinned_file_bytes"] == before + NBYTES
            assert any("pinned" in part.reason for part in file.explain().parts)
            for _ in range(2):
                target = device_memory.empty(NBYTES)
                assert file.read_into(target) == NBYTES
                assert device_memory.bytes(target) == path.read_bytes()
        assert pinned.size == 0
        assert pinned.problem == "it was released"
        pinned.release()
        assert penstock.stats()["pinned_file_bytes"] == before


def test_a_part_may_be_pinned_and_goes_with_its_last_reference(path: Path) -> None:
    with penstock.open(path) as file:
        before = penstock.stats()["pinned_file_bytes"]
        pinned = file.pin(4096, 1 << 20)
        assert pinned.size == 1 << 20
        del pinned
        assert penstock.stats()["pinned_file_bytes"] == before
        with pytest.raises(penstock.InvalidArgument):
            file.pin(NBYTES)
        with pytest.raises(penstock.InvalidArgument):
            file.pin(-1)
        with pytest.raises(penstock.InvalidArgument):
            file.pin(0, -1)
    with pytest.raises(penstock.Closed):
        file.pin()


def test_a_file_that_changes_is_told_of(device_memory: Any, path: Path) -> None:
    with penstock.open(path) as file, file.pin() as pinned:
        changed = bytes(NBYTES)
        path.write_bytes(changed)
        target = device_memory.empty(NBYTES)
        assert file.read_into(target) == NBYTES
        assert device_memory.bytes(target) == changed
        assert pinned.size == 0
        assert "has changed" in (pinned.problem or "")


def test_a_forked_child_has_nothing_that_is_pinned(path: Path) -> None:
    with penstock.open(path) as file, file.pin() as pinned:
        child = os.fork()
        if child == 0:
            right = pinned.size == 0 and "parent" in (pinned.problem or "")
            pinned.release()
            os._exit(0 if right else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert pinned.size == NBYTES


@pytest.mark.parametrize("step", [4096, 1 << 20])
def test_an_immutable_file_has_the_same_bytes(device_memory: Any, path: Path, step: int) -> None:
    stored = path.read_bytes()
    with penstock.open(path, immutable=True) as file:
        for _ in range(2):
            target = device_memory.empty(NBYTES)
            for offset in range(0, NBYTES, step):
                size = min(step, NBYTES - offset)
                assert file.read_into(target, offset, size, buffer_offset=offset) == size
            assert device_memory.bytes(target) == stored
        part = device_memory.empty(step)
        file.seek(0)
        read = b""
        while count := file.readinto(part):
            read += device_memory.bytes(part)[:count]
        assert read == stored
        assert any("immutable" in remark for remark in file.explain().remarks)


def test_what_is_written_is_not_immutable(path: Path) -> None:
    with pytest.raises(penstock.InvalidArgument, match="cannot be opened for writing"):
        penstock.open(path, "r+", immutable=True)
    with path.open("rb") as raw, pytest.raises(penstock.InvalidArgument, match="not by descriptor"):
        penstock.open(raw.fileno(), immutable=True)
