"""Many requests at once."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock

NBYTES = 2_000_003


@pytest.fixture
def file(tmp_path: Path, pattern: Any) -> Iterator[penstock.File]:
    path = tmp_path / "file"
    path.write_bytes(pattern(NBYTES))
    with penstock.open(path, "r+") as opened:
        yield opened


def random_ranges(count: int, buffer_bytes: int) -> list[tuple[int, int, int]]:
    """(offset, size, place in the buffer), the places apart from each other."""
    numbers = random.Random(count)
    slot = buffer_bytes // count
    ranges = []
    for i in range(count):
        size = numbers.randint(0, slot)
        ranges.append((numbers.randint(0, NBYTES - size), size, i * slot))
    return ranges


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("count", [1, 7, 300])
def test_each_range_comes_to_its_place(memory: Any, file: Any, pattern: Any, count: int, asynchronous: bool) -> None:
    content = pattern(NBYTES)
    target = memory.of(bytes(1_500_000))
    ranges = random_ranges(count, 1_500_000)
    requests = [(target, offset, size, place) for offset, size, place in ranges]
    counts = file.pread_many(requests).result() if asynchronous else file.read_many(requests)
    assert counts == [size for _, size, _ in ranges]
    expected = bytearray(1_500_000)
    for offset, size, place in ranges:
        expected[place : place + size] = content[offset : offset + size]
    assert memory.bytes(target) == expected


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_range_is_written_from_its_place(memory: Any, file: Any, pattern: Any, asynchronous: bool) -> None:
    source = pattern(500_000)[::-1]
    buffer = memory.of(source)
    requests = [(buffer, i * 9_001, 4_099, i * 3_001) for i in range(150)]
    counts = file.pwrite_many(requests).result() if asynchronous else file.write_many(requests)
    assert counts == [4_099] * 150
    expected = bytearray(pattern(NBYTES))
    for i in range(150):
        expected[i * 9_001 : i * 9_001 + 4_099] = source[i * 3_001 : i * 3_001 + 4_099]
    assert Path(file.name).read_bytes() == expected


def test_the_requests_may_name_different_memory(file: Any, pattern: Any) -> None:
    content = pattern(NBYTES)
    host, array_, device = bytearray(1000), np.zeros(2000, np.uint8), penstock.device("host:0").empty(3000)
    assert file.read_many([(host, 5), (array_, 6, None, 100), [device, 7, 2_999, 1]]) == [1000, 1900, 2999]
    assert host == content[5:1005]
    assert array_.tobytes() == bytes(100) + content[6:1906]
    assert device.to_host()[1:] == content[7:3006]


def test_requests_come_from_any_iterable(file: Any, pattern: Any) -> None:
    targets = [bytearray(10) for _ in range(5)]
    assert file.read_many((target, i) for i, target in enumerate(targets)) == [10] * 5
    assert targets == [pattern(NBYTES)[i : i + 10] for i in range(5)]
    assert file.read_many([]) == []
    assert file.pread_many(()).result() == []


def test_a_short_range_is_the_end_of_the_file(memory: Any, file: Any) -> None:
    target = memory.of(bytes(3000))
    assert file.read_many([(target, 0, 1000), (target, NBYTES - 10, 1000, 1000), (target, NBYTES + 5, 1000, 2000)]) == [1000, 10, 0]


@pytest.mark.parametrize(
    "request_", [("buffer",), ("buffer", 0, 1, 0, 0), ("buffer", 0, 11), ("buffer", 0, 5, 6), ("buffer", 0, -1), ("buffer", 0, 1, -1)]
)
def test_a_wrong_request_is_a_value_error(file: Any, request_: tuple[Any, ...]) -> None:
    buffer = bytearray(b"\xee" * 10)
    wrong = tuple(buffer if item == "buffer" else item for item in request_)
    for call in (file.read_many, file.write_many, file.pread_many, file.pwrite_many):
        with pytest.raises(ValueError):
            call([(buffer, 0), wrong])
    assert buffer == b"\xee" * 10  # nothing was begun


def test_what_is_no_request_is_a_type_error(file: Any) -> None:
    for requests in (3, [3], [(bytearray(1), "0")], [(None, 0)], [(bytearray(1), 0, 1.5)]):
        with pytest.raises(TypeError):
            file.read_many(requests)


def test_the_first_failure_is_raised_and_the_others_are_done(file: Any, pattern: Any, tmp_path: Path) -> None:
    good, freed = bytearray(100), penstock.device("host:0").empty(1 << 20)
    gone = penstock.Pointer(freed.ptr, 1 << 20)
    del freed
    with pytest.raises(penstock.Error) as caught:
        file.read_many([(good, 0), (gone, 11, 4096), (gone, 22, 4096)])
    assert caught.value.offset == 11
    assert good == pattern(NBYTES)[:100]
    error = file.pread_many([(good, 0), (gone, 11, 4096)]).exception()
    assert isinstance(error, penstock.Error) and error.offset == 11


@pytest.mark.parametrize("kind", ["lists", "arrays of 64 bits", "unsigned arrays", "arrays of 32 bits", "ranges", "array.array"])
def test_ranges_come_in_any_kind_of_sequence(memory: Any, file: Any, pattern: Any, kind: str) -> None:
    content = pattern(NBYTES)
    offsets, sizes, places = [7, 1_000_000, 33, NBYTES - 5], [100, 1, 0, 10], [500, 0, 3, 900]
    made: Any = {
        "lists": list,
        "arrays of 64 bits": lambda values: np.array(values, np.int64),
        "unsigned arrays": lambda values: np.array(values, np.uint64),
        "arrays of 32 bits": lambda values: np.array(values, np.int32),
        "ranges": tuple,
        "array.array": lambda values: array("q", values),
    }[kind]
    target = memory.of(bytes(1000))
    assert file.read_ranges(target, made(offsets), made(sizes), made(places)) == 106
    expected = bytearray(1000)
    expected[500:600] = content[7:107]
    expected[0:1] = content[1_000_000:1_000_001]
    expected[900:905] = content[-5:]
    assert memory.bytes(target) == expected


def test_ranges_without_places_lie_one_after_the_other(memory: Any, file: Any, pattern: Any) -> None:
    content = pattern(NBYTES)
    target = memory.of(bytes(4000))
    assert file.read_ranges(target, np.arange(0, 40_000, 10_000), 1000) == 4000
    assert memory.bytes(target) == b"".join(content[i * 10_000 : i * 10_000 + 1000] for i in range(4))
    assert file.read_ranges(target, [1, 2], [10, 20]) == 30
    assert memory.bytes(target)[:30] == content[1:11] + content[2:22]
    assert file.read_ranges(target, [], []) == 0


def test_ranges_are_moved_without_blocking(memory: Any, file: Any, pattern: Any) -> None:
    content = pattern(NBYTES)
    target = memory.of(bytes(1000))
    reading = file.pread_ranges(target, array("q", [7, NBYTES - 5, 33]), array("q", [100, 10, 0]), array("q", [500, 900, 3]))
    assert reading.result() == [100, 5, 0]  # a count for each range: the file ends within the second
    assert memory.bytes(target)[500:600] == content[7:107] and memory.bytes(target)[900:905] == content[-5:]
    assert file.pread_ranges(target, [], []).result() == []
    assert file.pwrite_ranges(memory.of(content[:30]), [100_000, 5], 10, [20, 0]).result() == [10, 10]
    written = Path(file.name).read_bytes()
    assert written[100_000:100_010] == content[20:30] and written[5:15] == content[:10]
    with pytest.raises(ValueError, match="sizes has 2 items, but offsets has 1"):
        file.pread_ranges(target, [0], [1, 2])
    with penstock.open(file.name, "r") as reader, pytest.raises(penstock.PermissionDenied):
        reader.pwrite_ranges(target, [0], [1]).result()


def test_ten_thousand_ranges_come_to_their_places(memory: Any, file: Any, pattern: Any) -> None:
    content = np.frombuffer(pattern(NBYTES), np.uint8)
    offsets = np.random.default_rng(1).integers(0, NBYTES - 64, 10_000)
    target = memory.empty(640_000)
    assert file.read_ranges(target, offsets, 64) == 640_000
    expected = content[offsets[:, None] + np.arange(64)]
    assert memory.bytes(target) == expected.tobytes()


def test_ranges_are_written(memory: Any, file: Any, pattern: Any) -> None:
    source = pattern(30_000)[::-1]
    assert file.write_ranges(memory.of(source), [100_000, 5], [20_000, 7], [0, 25_000]) == 20_007
    expected = bytearray(pattern(NBYTES))
    expected[100_000:120_000] = source[:20_000]
    expected[5:12] = source[25_000:25_007]
    assert Path(file.name).read_bytes() == expected


def test_a_wrong_range_is_a_value_error(file: Any) -> None:
    target = bytearray(100)
    for offsets, sizes, places in (
        ([0, 1], [1], None),
        ([0], [1], [0, 1]),
        ([0], [101], None),
        ([0], [10], [91]),
        ([0], [-1], None),
        ([-1], [1], None),
        ([0, 0], [1 << 62, 1 << 62], None),
        ([0, 0, 0], [50, 50, 1], None),
        (np.array([2**63], np.uint64), [1], None),
    ):
        with pytest.raises(ValueError):
            file.read_ranges(target, offsets, sizes, places)
    for offsets, sizes in ((0, 1), (["0"], [1]), ([0], [None]), ([0.5], [1])):
        with pytest.raises(TypeError):
            file.read_ranges(target, offsets, sizes)
    assert target == bytes(100)
