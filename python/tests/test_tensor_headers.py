"""What files of tensors hold, as the native module tells it: beside safetensors itself."""

from __future__ import annotations

import json
import random
import struct
import threading
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

safetensors = pytest.importorskip("safetensors")
from safetensors import numpy as reference  # noqa: E402

import penstock  # noqa: E402
from penstock import _native  # noqa: E402

TYPES = {np.bool_: "BOOL", np.uint8: "U8", np.int16: "I16", np.float16: "F16", np.float32: "F32", np.int64: "I64", np.float64: "F64"}
NAMES = ("a", "layer.0.weight", "é", "層", "😀", 'quote"', "back\\slash", "new\nline", "\x01", "/", "", "zero\0")


def random_arrays(count: int, numbers: random.Random) -> dict[str, Any]:
    arrays = {}
    for i in range(count):
        shape = tuple(numbers.randrange(4) for _ in range(numbers.randrange(4)))
        arrays[numbers.choice(NAMES) + str(i)] = np.ones(shape, numbers.choice(list(TYPES)))
    return arrays


def file_of(header: str | bytes, data: bytes = b"") -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text)) + text + data


def rows(header: Any) -> list[tuple[Any, ...]]:
    return list(zip(header.names(), header.dtypes(), header.shapes(), header.offsets(), header.sizes()))


def told_by_safetensors(content: bytes) -> dict[str, tuple[Any, ...]]:
    """dtype, shape and bytes of each tensor."""
    return {name: (each["dtype"], tuple(each["shape"]), bytes(each["data"])) for name, each in safetensors.deserialize(content)}


def told_by_us(content: bytes) -> dict[str, tuple[Any, ...]]:
    header = _native.parse_safetensors(content)
    return {name: (dtype, shape, content[offset : offset + size]) for name, dtype, shape, offset, size in rows(header)}


def test_a_file_is_told_by_its_path_and_open(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.arange(3, dtype=np.int16)}
    reference.save_file(arrays, path, {"by": "é"})
    content = path.read_bytes()
    with penstock.open(path) as file:
        for header in (_native.read_safetensors(path), _native.read_safetensors(str(path)), _native.read_safetensors(file)):
            start = header.data_offset
            assert rows(header) == [("b", "F32", (2, 3), start, 24), ("a", "I16", (3,), start + 24, 6)]
            assert header.names() == ["b", "a"]
            assert len(header) == 2
            assert "a" in header and "c" not in header and 3 not in header and "\ud800" not in header
            assert header.find("a") == ("a", "I16", (3,), start + 24, 6)
            assert header.find("c") is None
            assert header.metadata == {"by": "é"}
            assert content[start : start + 24] == arrays["b"].tobytes()


def test_a_file_without_metadata_has_none_and_one_with_none_is_empty() -> None:
    assert _native.parse_safetensors(file_of("{}")).metadata is None
    assert _native.parse_safetensors(file_of('{"__metadata__":{}}')).metadata == {}
    assert _native.parse_safetensors(file_of('{"__metadata__":null}')).metadata is None


def test_a_beginning_is_told_with_the_size_of_the_file() -> None:
    content = file_of('{"a":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}}')
    header = _native.parse_safetensors(memoryview(content), len(content) + 2**40)
    assert header.find("a") == ("a", "U8", (2**40,), len(content), 2**40)
    with pytest.raises(penstock.InvalidArgument, match='tensor "a" ends at'):
        _native.parse_safetensors(content)
    with pytest.raises(penstock.InvalidArgument, match="but fewer were given"):
        _native.parse_safetensors(content[:20], len(content) + 2**40)
    with pytest.raises(TypeError):
        _native.parse_safetensors("text")  # type: ignore[arg-type]


def test_what_is_no_file_of_tensors_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(file_of('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', bytes(4)))
    with pytest.raises(penstock.InvalidArgument, match=r'broken\.safetensors: tensor "a": \[2\] of F32 takes 8 bytes') as caught:
        _native.read_safetensors(path)
    assert isinstance(caught.value, ValueError)
    assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError, match="missing"):
        _native.read_safetensors(tmp_path / "missing")
    with pytest.raises(TypeError):
        _native.read_safetensors(3.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_files_of_safetensors_are_told_as_it_tells_them(seed: int) -> None:
    numbers = random.Random(seed)
    content = reference.save(random_arrays(numbers.randrange(30), numbers), None if seed % 2 else {"k": "v"})
    assert told_by_us(content) == told_by_safetensors(content)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_made_is_what_safetensors_makes(seed: int) -> None:
    numbers = random.Random(seed)
    arrays = random_arrays(numbers.randrange(30), numbers)
    metadata = numbers.choice([None, {}, {"ké": 'v"\\\n\x1f\x7f😀'}])
    items = list(arrays.items())
    numbers.shuffle(items)
    beginning, order, offsets, sizes = _native.make_safetensors(
        [name for name, _ in items], [TYPES[each.dtype.type] for _, each in items], (each.shape for _, each in items), metadata
    )
    content = bytearray(beginning)
    for place, offset, size in zip(order, offsets, sizes):
        assert offset == len(content)
        content += items[place][1].tobytes()
        assert size == items[place][1].nbytes
    if not arrays and metadata == {}:
        # Of these safetensors 0.8 makes a file that it refuses itself.
        assert told_by_us(bytes(content)) == told_by_safetensors(bytes(content)) == {}
    else:
        assert content == reference.save(arrays, metadata)


def refused(told: Any, content: bytes) -> bool:
    try:
        told(content)
    except (ValueError, safetensors.SafetensorError):
        return True
    return False


def is_known_difference(content: bytes) -> bool:
    """What we refuse and safetensors does not."""
    if content[8:9] != b"{":
        return True
    try:
        length = int.from_bytes(content[:8], "little")

        def no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            if len({key for key, _ in pairs}) < len(pairs):
                raise KeyError
            return dict(pairs)

        header = json.loads(content[8 : 8 + length], object_pairs_hook=no_twice)
    except KeyError:
        return True
    return any(set(each) != {"dtype", "shape", "data_offsets"} for name, each in header.items() if name != "__metadata__")


@pytest.mark.parametrize("seed", range(30))
def test_damaged_files_are_refused_where_safetensors_refuses_them(seed: int) -> None:
    numbers = random.Random(seed)
    taken = 0
    for _ in range(300):
        content = bytearray(reference.save(random_arrays(1 + numbers.randrange(3), numbers), {"k": "v"}))
        end = 8 + int.from_bytes(content[:8], "little")
        at = numbers.randrange(end)
        kind = numbers.randrange(4)
        if kind == 0:
            content[at] = numbers.randrange(256)
        elif kind == 1:
            content[at] = numbers.choice(b'0123456789"{}[],: \\nul')
        elif kind == 2:
            start = numbers.randrange(8, end)
            part = content[start : start + numbers.randrange(1, 40)]
            content[8 + at % (end - 8) : 8 + at % (end - 8)] = part
            content[:8] = struct.pack("<Q", end - 8 + len(part))
        else:
            del content[at : at + numbers.randrange(1, 5)]
        damaged = bytes(content)
        ours, theirs = refused(told_by_us, damaged), refused(told_by_safetensors, damaged)
        assert ours or not theirs, damaged
        if ours and not theirs:
            assert is_known_difference(damaged), damaged
        if not ours:
            taken += 1
            assert told_by_us(damaged) == told_by_safetensors(damaged)
    assert taken > 0


def test_what_no_file_can_hold_is_refused_by_name() -> None:
    make = _native.make_safetensors
    for names, dtypes, shapes, metadata, message in [
        (["a", "a"], ["U8", "U8"], [[1], [1]], None, 'tensor "a" appears twice'),
        (["__metadata__"], ["U8"], [[1]], None, '"__metadata__" is reserved and cannot be a tensor name'),
        (["a"], ["u8"], [[1]], None, 'tensor "a": unknown tensor type "u8"'),
        (["a"], ["F4"], [[1]], None, 'tensor "a": its 4 bits of type F4 are not a whole number of bytes'),
        (["a"], ["U8"], [[-1]], None, "a length in a shape"),
        (["a"], ["U8"], [[2**64]], None, "a length in a shape"),
        (["a"], ["U8", "U8"], [[1]], None, "more dtypes"),
        (["a"], [], [[1]], None, "fewer dtypes"),
        (["a"], ["U8"], [[1], [1]], None, "more shapes"),
        (["a"], ["U8"], [], None, "fewer shapes"),
        (["\ud800"], ["U8"], [[1]], None, "surrogates not allowed"),
        ([], [], [], {"k": "\udfff"}, "surrogates not allowed"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(names, dtypes, shapes, metadata)
    for arguments in [([b"a"], ["U8"], [[1]]), (["a"], [8], [[1]]), (["a"], ["U8"], [[1.0]]), (["a"], ["U8"], [1]), ([], [], [], {"k": 1}), ([], [], [], [("k", "v")])]:
        with pytest.raises(TypeError):
            make(*arguments)


def test_ten_thousand_tensors_are_told_whoever_else_runs(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.weight" for i in range(10_000)]
    beginning, order, offsets, _ = _native.make_safetensors(names, ["BF16"] * len(names), [[3, 7]] * len(names))
    path = tmp_path / "many"
    path.write_bytes(beginning + bytes(42 * len(names)))
    seen: list[Any] = []
    threads = [threading.Thread(target=lambda: seen.append(list(zip(*rows(_native.read_safetensors(path)))))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(seen) == 4
    for told in seen:
        assert told[0] == tuple(names[i] for i in order)
        assert told[3] == tuple(offsets)
        assert set(told[1]) == {"BF16"} and set(told[2]) == {(3, 7)} and set(told[4]) == {42}


def test_tensors_are_placed_one_after_the_other() -> None:
    beginning, _, offsets, sizes = _native.make_safetensors(["a", "b", "c", "d"], ["U8", "F32", "U8", "BF16"], [[5], [70], [0], [2]])
    header = _native.parse_safetensors(beginning, len(beginning) + sum(sizes))
    by_name = dict(zip(header.names(), zip(header.offsets(), header.sizes())))
    for alignment, start in ((1, 0), (64, 0), (256, 512), (64, 3)):
        end, starts, (offsets_there, sizes_there, places) = header.place(alignment, start)
        at, expected = start, []
        for name in header.names():
            expected.append(at)
            at += -(-by_name[name][1] // alignment) * alignment
        integers = [array("q", each).tolist() for each in (starts, offsets_there, sizes_there, places)]
        there = [i for i, name in enumerate(header.names()) if by_name[name][1]]
        assert end == at and integers[0] == expected and len(there) == 3
        assert integers[1:] == [[column[i] for i in there] for column in (header.offsets(), header.sizes(), expected)]
    assert header.kinds() == {"U8", "F32", "BF16"} and _native.parse_safetensors(_native.make_safetensors([], [], [])[0]).kinds() == set()
    for alignment in (0, 3, 96):
        with pytest.raises(penstock.InvalidArgument, match="power of two"):
            header.place(alignment)
