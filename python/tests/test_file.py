"""Opening, reading and writing files, blocking."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock

# Below a block, around one and around a slab, and of many slabs; none a multiple of a page but the third.
SIZES = [1, 511, 4096, 4097, 131_073, 5_000_011]


@pytest.fixture
def file_of(tmp_path: Path, pattern: Any) -> Any:
    """file_of(n): the name and the content of a file of n bytes."""

    def make(nbytes: int) -> tuple[Path, bytes]:
        path = tmp_path / f"of_{nbytes}"
        path.write_bytes(pattern(nbytes))
        return path, pattern(nbytes)

    return make


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_file_is_read_whole(memory: Any, file_of: Any, nbytes: int) -> None:
    path, content = file_of(nbytes)
    target = memory.empty(nbytes)
    with penstock.open(path) as file:
        assert file.read_into(target) == nbytes
    assert memory.bytes(target) == content


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_file_is_written_whole(memory: Any, tmp_path: Path, pattern: Any, nbytes: int) -> None:
    path = tmp_path / "written"
    with penstock.open(path, "w") as file:
        assert file.write_from(memory.of(pattern(nbytes))) == nbytes
    assert path.read_bytes() == pattern(nbytes)


def test_a_part_is_read_into_a_part(memory: Any, file_of: Any) -> None:
    path, content = file_of(300_007)
    target = memory.of(bytes(200_000))
    with penstock.open(path) as file:
        assert file.read_into(target, offset=12_345, size=100_001, buffer_offset=77) == 100_001
    assert memory.bytes(target) == bytes(77) + content[12_345:112_346] + bytes(200_000 - 77 - 100_001)


def test_a_part_is_written_from_a_part(memory: Any, file_of: Any, pattern: Any) -> None:
    path, content = file_of(300_007)
    source = pattern(90_000)[::-1]
    with penstock.open(path, "r+") as file:
        assert file.write_from(memory.of(source), 12_345, 70_000, 111) == 70_000
    assert path.read_bytes() == content[:12_345] + source[111:70_111] + content[82_345:]


@pytest.mark.parametrize("direct", [False, True])
def test_a_write_past_the_page_cache_is_whole(memory: Any, tmp_path: Path, pattern: Any, direct: bool) -> None:
    path = tmp_path / "direct"
    with penstock.open(path, "w+", direct=direct) as file:
        file.write_from(memory.of(pattern(9_000_003)), 5)
        file.sync()
        target = memory.empty(9_000_003)
        assert file.read_into(target, 5) == 9_000_003
    assert memory.bytes(target) == pattern(9_000_003)
    assert path.read_bytes() == bytes(5) + pattern(9_000_003)


def test_a_short_count_is_the_end_of_the_file(memory: Any, file_of: Any) -> None:
    path, content = file_of(10_000)
    target = memory.of(b"\xee" * 4096)
    with penstock.open(path) as file:
        assert file.read_into(target, 9_000) == 1_000
        assert memory.bytes(target) == content[9_000:] + b"\xee" * 3_096
        assert file.read_into(target, 10_000) == 0
        assert file.read_into(target, 1 << 40) == 0


def test_nothing_is_read_into_nothing(file_of: Any) -> None:
    path, _ = file_of(100)
    with penstock.open(path, "r+") as file:
        assert file.read_into(bytearray()) == 0
        assert file.read_into(np.empty(0)) == 0
        assert file.read_into(bytearray(10), size=0) == 0
        assert file.read_into(bytearray(10), buffer_offset=10) == 0
        assert file.write_from(b"") == 0


@pytest.mark.parametrize("path", ["posix", "staged", "mapped"])
def test_a_path_can_be_asked_for(file_of: Any, path: str) -> None:
    nbytes = 20_000_001  # few pages are not worth mapping
    name, content = file_of(nbytes)
    target: Any = bytearray(nbytes) if path == "posix" else penstock.device("host:0").empty(nbytes)
    before = penstock.stats()["paths"][path]["bytes"]
    with penstock.open(name) as file:
        assert file.read_into(target, path=path) == len(content)
    assert (bytes(target) if path == "posix" else target.to_host()) == content
    assert penstock.stats()["paths"][path]["bytes"] >= before + len(content)


@pytest.mark.parametrize("prefer", ["speed", "cpu"])
def test_what_to_spend_can_be_asked_for(memory: Any, file_of: Any, prefer: str) -> None:
    path, content = file_of(300_000)
    target = memory.empty(300_000)
    with penstock.open(path) as file:
        file.read_into(target, prefer=prefer)
    assert memory.bytes(target) == content


def test_readinto_reads_from_the_position(file_of: Any) -> None:
    path, content = file_of(1000)
    target = bytearray(600)
    with penstock.open(path) as file:
        assert file.readinto(target) == 600
    assert target == content[:600]


@pytest.mark.parametrize("kind", [str, bytes, Path, "fspath"])
def test_a_path_may_be_of_any_kind(file_of: Any, kind: Any) -> None:
    path, content = file_of(100)

    class Named:
        def __fspath__(self) -> str:
            return str(path)

    name = {str: str(path), bytes: os.fsencode(path), Path: path, "fspath": Named()}[kind]
    with penstock.open(name) as file:
        assert file.name is name
        target = bytearray(100)
        file.read_into(target)
    assert target == content


def test_a_name_that_is_no_utf_8_is_opened(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\xfe"
    with open(name, "wb") as plain:
        plain.write(b"content")
    target = bytearray(7)
    for spelled in (name, os.fsdecode(name)):
        with penstock.open(spelled) as file:
            assert file.read_into(target) == 7
    with pytest.raises(FileNotFoundError) as caught:
        penstock.open(name + b"\xfd")
    assert os.fsencode(caught.value.filename) == name + b"\xfd"


def test_a_descriptor_is_lent(file_of: Any) -> None:
    path, content = file_of(5_000)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        target = bytearray(5_000)
        with penstock.open(descriptor) as file:
            assert file.name == descriptor
            assert file.read_into(target) == 5_000
        assert target == content
        assert os.pread(descriptor, 3, 0) == content[:3]  # still open
    finally:
        os.close(descriptor)


def test_the_modes_do_as_those_of_open(tmp_path: Path) -> None:
    path = tmp_path / "modes"
    with penstock.open(path, "w") as file:
        assert file.write_from(b"0123456789") == 10
        with pytest.raises(PermissionError):
            file.read_into(bytearray(3))
    with penstock.open(path, "rb") as file:
        assert file.mode == "r"
        with pytest.raises(PermissionError):
            file.write_from(b"abc")
    with penstock.open(path, "r+b") as file:
        file.write_from(b"ab", 4)
        target = bytearray(10)
        assert file.read_into(target) == 10
        assert target == b"0123ab6789"
    with penstock.open(path, "w+") as file:
        assert file.size() == 0
    with pytest.raises(FileExistsError) as caught:
        penstock.open(path, "x")
    assert caught.value.filename == str(path)
    path.unlink()
    with penstock.open(path, "xb+") as file:
        file.write_from(b"new")
        assert file.read_into(target) == 3


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for mode in ("w", "x"):
            path = tmp_path / f"umask_{mode}"
            penstock.open(path, mode).close()
            assert path.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


def test_a_file_tells_what_it_is(file_of: Any) -> None:
    path, _ = file_of(1234)
    file = penstock.open(str(path))
    assert (file.name, file.mode, file.closed, file.size()) == (str(path), "r", False, 1234)
    assert repr(file) == f"<penstock.File name={str(path)!r} mode='r'>"
    file.close()
    assert file.closed
    assert repr(file) == f"<penstock.File name={str(path)!r} mode='r' closed>"
    file.close()  # a second time does nothing


def test_with_closes_after_an_exception(file_of: Any) -> None:
    path, _ = file_of(10)
    with pytest.raises(KeyError), penstock.open(path) as file:
        raise KeyError
    assert file.closed


def test_threads_read_one_file_at_once(memory: Any, file_of: Any) -> None:
    path, content = file_of(3_000_000)
    wrong: list[int] = []

    def read(file: penstock.File, start: int) -> None:
        target = memory.empty(100_003)
        for offset in range(start, 2_900_000, 700_001):
            count = file.read_into(target, offset)
            if memory.bytes(target)[:count] != content[offset : offset + 100_003]:
                wrong.append(offset)

    with penstock.open(path) as file:
        threads = [threading.Thread(target=read, args=(file, i * 91)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_progress_adds_up(memory: Any, tmp_path: Path) -> None:
    nbytes = (300 << 20) + 5
    path = tmp_path / "sparse"
    with open(path, "wb") as plain:
        plain.truncate(nbytes)
        plain.seek(nbytes - 3)
        plain.write(b"end")
    told: list[int] = []

    class Bar:
        def update(self, n: int) -> None:
            told.append(n)

    target = memory.empty(nbytes + 10)
    with penstock.open(path) as file:
        for progress in (told.append, Bar()):
            told.clear()
            assert file.read_into(target, progress=progress) == nbytes
            assert sum(told) == nbytes
            assert len(told) > 1
    if memory.device is None:
        assert bytes(target[nbytes - 4 : nbytes]) == b"\0end"


def test_what_progress_raises_stops_the_request(file_of: Any) -> None:
    path, _ = file_of(1_000_000)

    def refuse(count: int) -> None:
        raise LookupError(count)

    with penstock.open(path) as file, pytest.raises(LookupError):
        file.read_into(bytearray(1_000_000), progress=refuse)


def test_explain_covers_the_range_once(file_of: Any) -> None:
    path, _ = file_of(2_000_003)
    with penstock.open(path) as file:
        for memory in ("host", "device"):
            plan = file.explain(memory=memory)
            assert sum(part.length for part in plan.parts) == 2_000_003
            offset = 0
            for part in plan.parts:
                assert part.offset == offset and part.path and part.reason
                offset += part.length
            assert all(part.path in str(plan) for part in plan.parts)
        assert file.explain(100, 50, memory="host").parts[0][:3] == (50, 100, "posix")
        assert file.explain() == file.explain(device=penstock.devices()[0].name)
        assert file.explain(100, 50, device="host:0").parts[0][:3] == (50, 100, "staged")
        assert plan.cached_bytes is None or 0 <= plan.cached_bytes <= 2_000_003
        assert isinstance(plan.remarks, list)
    with penstock.open(path, "r+") as file:
        assert sum(part.length for part in file.explain(5_000_000, write=True).parts) == 5_000_000


def test_explain_tells_of_memory_like_that_of_the_last_request(file_of: Any) -> None:
    path, content = file_of(2_000_003)

    def paths(plan: penstock.Plan) -> set[str]:
        return {part.path for part in plan.parts}

    array, buffer = np.empty(1000, np.uint8), penstock.device("host:0").empty(1000)
    with penstock.open(path, "r+") as file:
        first = file.explain()
        assert first == file.explain(device=penstock.devices()[0].name) == file.explain(memory="device")
        requests: list[Callable[[Any], object]] = [
            file.read_into,
            lambda memory: file.pread(memory).result(),
            lambda memory: file.read_many([(memory, 0)]),
            lambda memory: file.pread_many([(memory, 0)]).result(),
            lambda memory: penstock.pread_many([(file, memory, 0)]).result(),
            lambda memory: file.read_ranges(memory, [0], [1000]),
            lambda memory: file.pread_ranges(memory, [0], [1000]).result(),
            lambda memory: file.write_from(memory, 1000),
            file.readinto,
        ]
        for request in requests:
            request(array)
            assert paths(file.explain()) == {"posix"}
            assert file.explain(memory="device") == first
            request(buffer)
            assert paths(file.explain()) == {"staged"} and file.explain() == file.explain(device="host:0")
        file.read(100)
        assert paths(file.explain()) == {"posix"}
        file.read_on_stream(buffer, None).wait()
        assert paths(file.explain()) == {"staged"}
        file.read_into(penstock.device("host:0").empty(10))  # which is gone now
        assert paths(file.explain()) == {"staged"}


def test_a_plan_of_many_parts_is_few_lines() -> None:
    parts = [penstock.PlanPart(i << 20, 1 << 20, "staged", "in the page cache" if i % 2 else "not there") for i in range(41)]
    lines = str(penstock.Plan(parts, ["no GPU"], 20 << 20)).splitlines()
    assert lines == [
        "41 MiB, 20 MiB of it in the page cache",
        "      21 MiB in 21 parts, starting at 0: staged, not there",
        "      20 MiB in 20 parts, starting at 1048576: staged, in the page cache",
        "  remark: no GPU",
    ]
    assert "1 MiB at 1048576: staged" in str(penstock.Plan(parts[1:2], [], None))


class LikeATensor:
    """As PyTorch's tensors, it has __index__ and is no sequence."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __index__(self) -> int:
        raise TypeError("only integer tensors of a single element can be converted to an index")

    def __dlpack__(self, **how: Any) -> Any:
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def test_explain_takes_memory(file_of: Any) -> None:
    path, _ = file_of(2_000_003)
    with penstock.open(path) as file:
        array, buffer = np.empty((10, 100), np.uint8), penstock.device("host:0").empty(2000)
        assert file.explain(array).parts[0][:3] == (0, 1000, "posix")
        assert file.explain(array.T, 50).parts[0][:3] == (50, 1000, "posix")
        assert file.explain(buffer[:300], 5).parts[0][:3] == (5, 300, "staged")
        assert file.explain(np.int64(100)) == file.explain(100)
        assert file.explain(LikeATensor(array)).parts[0][:3] == (0, 1000, "posix")
        with pytest.raises(ValueError, match="not to a buffer"):
            file.explain(array, device="host:0")
        with pytest.raises(TypeError, match="size"):
            file.explain("all")  # type: ignore[arg-type]


def test_requests_under_way_are_listed(file_of: Any) -> None:
    path, _ = file_of(30_000_000)
    target = np.empty(30_000_000, dtype=np.uint8)
    before = time.monotonic_ns()
    seen: list[penstock.Request] = []
    with penstock.open(path) as file:
        while not seen:
            future = file.pread(target, 4096)
            seen = penstock.requests()
            future.result()
        assert penstock.requests() == []
    assert len(seen) == 1
    assert seen[0][:5] == (os.fspath(path), 4096, 30_000_000, False, "host")
    assert before - 20_000_000 < seen[0].since_ns <= time.monotonic_ns()


def test_the_counters_count(memory: Any, file_of: Any) -> None:
    path, _ = file_of(200_000)
    before = penstock.stats()
    with penstock.open(path, "r+") as file:
        file.read_into(memory.empty(200_000))
        file.write_from(memory.of(bytes(1000)))
    after = penstock.stats()
    assert after["reads"] == before["reads"] + 1
    assert after["writes"] == before["writes"] + 1
    assert after["read_bytes"] == before["read_bytes"] + 200_000
    assert after["written_bytes"] == before["written_bytes"] + 1000
    assert set(after["paths"]) == {"posix", "staged", "mapped", "direct", "dma_buf"}
    assert isinstance(penstock.summary(), str)
