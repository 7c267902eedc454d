"""penstock.kvikio.Mmap: regions of a file, and KvikIO's messages."""

from __future__ import annotations

import gc
import pathlib
from typing import Any

import pytest

from penstock import kvikio
from penstock.kvikio.mmap import Mmap

SIZE = 100_000


@pytest.fixture
def file(tmp_path: pathlib.Path, pattern: Any) -> pathlib.Path:
    path = tmp_path / "file"
    path.write_bytes(pattern(SIZE))
    return path


@pytest.mark.parametrize("start", [0, 10, 512, 4096, 9999])
@pytest.mark.parametrize("length", [None, 1, 80, 9999])
def test_a_region_is_read_whole(file: pathlib.Path, memory: Any, start: int, length: int | None) -> None:
    content = file.read_bytes()[start:] if length is None else file.read_bytes()[start : start + length]
    mapped = kvikio.Mmap(file, "r", length, start)
    assert (mapped.initial_map_size(), mapped.initial_map_offset()) == (len(content), start)
    assert mapped.file_size() == SIZE
    buffer = memory.empty(len(content))
    assert mapped.read(buffer, length, start) == len(content)
    assert memory.bytes(buffer) == content
    again = memory.empty(len(content))
    assert mapped.pread(again, length, start, 1024).get() == len(content)
    assert memory.bytes(again) == content
    mapped.close()


def test_the_defaults_read_the_whole_file(file: pathlib.Path, memory: Any) -> None:
    buffer = memory.empty(SIZE)
    mapped = Mmap(str(file))
    assert mapped.read(buffer) == SIZE
    assert memory.bytes(buffer) == file.read_bytes()
    assert mapped.pread(buffer).get() == SIZE


def test_a_part_of_the_region_is_read(file: pathlib.Path, memory: Any) -> None:
    mapped = Mmap(file, "r", 1024, 512)
    buffer = memory.empty(100)
    assert mapped.read(buffer, 100, 1400) == 100
    assert memory.bytes(buffer) == file.read_bytes()[1400:1500]
    assert mapped.read(buffer, 0, 512) == 0


def test_a_missing_file_cannot_be_opened(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match="Unable to open file"):
        Mmap(tmp_path / "missing")


@pytest.mark.parametrize("flags", ["", "z", "a"])
def test_unknown_flags_are_a_value_error(file: pathlib.Path, flags: str) -> None:
    with pytest.raises(ValueError, match="Unknown file open flag"):
        Mmap(file, flags)


def test_writing_is_a_value_error_and_leaves_the_file(file: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="not supported"):
        Mmap(file, "w")
    assert file.stat().st_size == SIZE


def test_a_region_outside_the_file_is_refused(file: pathlib.Path) -> None:
    with pytest.raises(IndexError, match="Offset must be less than the file size"):
        Mmap(file, "r", None, SIZE * 2)
    with pytest.raises(IndexError, match="Offset must be less than the file size"):
        Mmap(file, "r", None, SIZE)
    with pytest.raises(IndexError, match="Mapped region is past the end of file"):
        Mmap(file, "r", SIZE * 2)
    with pytest.raises(ValueError, match="Mapped region should not be zero byte"):
        Mmap(file, "r", 0)
    for arguments in ((-1, 0), (1, -1)):
        with pytest.raises(OverflowError, match="negative value"):
            Mmap(file, "r", *arguments)


def test_a_read_outside_the_region_is_refused(file: pathlib.Path, memory: Any) -> None:
    buffer = memory.empty(SIZE)
    mapped = Mmap(file, "r", 1024, 512)
    for call in (mapped.read, mapped.pread):
        with pytest.raises(IndexError, match="Offset is past the end of file"):
            call(buffer, 1024, SIZE + 1)
        for size, offset in ((1024, 513), (1024, 512 - 128), (1024 + 128, 512)):
            with pytest.raises(IndexError, match="Read is out of bound"):
                call(buffer, size, offset)
        with pytest.raises(OverflowError, match="negative value"):
            call(buffer, -1, 512)


def test_a_buffer_that_is_too_small_is_refused(file: pathlib.Path, memory: Any) -> None:
    mapped = Mmap(file)
    with pytest.raises(ValueError, match="size"):
        mapped.read(memory.empty(SIZE - 1))
    with pytest.raises(ValueError, match="size"):
        mapped.pread(memory.empty(10), 11)


def test_a_closed_region_refuses_reads(file: pathlib.Path, memory: Any) -> None:
    mapped = Mmap(file)
    assert mapped.closed() is False
    mapped.close()
    mapped.close()
    assert mapped.closed() is True
    assert (mapped.file_size(), mapped.initial_map_size(), mapped.initial_map_offset()) == (0, 0, 0)
    for call in (mapped.read, mapped.pread):
        with pytest.raises(RuntimeError, match="Cannot read from a closed MmapHandle"):
            call(memory.empty(8))


def test_a_future_outlives_its_region(file: pathlib.Path, memory: Any) -> None:
    future = Mmap(file).pread(memory.empty(SIZE))
    gc.collect()
    assert future.get() == SIZE


def test_an_empty_file_has_an_empty_region(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    mapped = Mmap(path)
    assert (mapped.initial_map_size(), mapped.file_size()) == (0, 0)
