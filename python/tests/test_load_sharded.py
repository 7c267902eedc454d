"""penstock.load_sharded: one model for several devices, each of which gets its part. Here all are one host device, or the host."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.safetensors import SafetensorError, load_sharded
from penstock.safetensors.numpy import save_file

pytestmark = pytest.mark.usefixtures("torch_not_imported")

WORLD = 3


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    numbers = np.random.default_rng(3)
    tensors: dict[str, Any] = {
        "embed": numbers.standard_normal((6 * 700, 300), "f4"),
        "norm": numbers.standard_normal(301).astype("f2"),
        "none": np.empty((0, 6), "f4"),
        "scalar": np.array(4.5),
    }
    for i in range(4):
        tensors[f"layers.{i}.up.weight"] = numbers.integers(0, 255, (6 * 50, 120), "u1")
        tensors[f"layers.{i}.down.weight"] = numbers.standard_normal((1200, 24), "f4")  # short rows: read whole, and cut
        tensors[f"layers.{i}.wide.weight"] = numbers.integers(0, 255, (7, 3 * 9001), "u1")  # long ones: read by the part
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    return path, tensors


SHARD = {"*.up.weight": 0, "*.down.weight": 1, "*.wide.weight": -1, "embed": 0, "layers.*": None}


def part_of(name: str, tensor: Any, rank: int) -> Any:
    dim = next((dim for key, dim in {"up": 0, "down": 1, "wide": 1, "embed": 0}.items() if key in name), None)
    return tensor if dim is None else np.split(tensor, WORLD, axis=dim)[rank]


def test_each_device_gets_its_part(model: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = model
    found = penstock.load_sharded(path, ["cpu"] * WORLD, SHARD, "np")
    assert len(found) == WORLD
    for rank, mine in enumerate(found):
        assert sorted(mine) == sorted(tensors)
        for name, tensor in tensors.items():
            expected = part_of(name, tensor, rank)
            assert mine[name].dtype == expected.dtype and mine[name].shape == expected.shape, name
            assert np.array_equal(mine[name], expected), (rank, name)
        assert mine["embed"].flags.c_contiguous and mine["layers.0.down.weight"].flags.c_contiguous


def test_of_devices_the_file_is_read_once(model: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = model
    before = sum(each["bytes"] for each in penstock.stats()["paths"].values())
    found = load_sharded(path, ["host:0"] * WORLD, {"*.up.weight": 0, "*.wide.weight": 1})
    read = sum(each["bytes"] for each in penstock.stats()["paths"].values()) - before
    for rank, mine in enumerate(found):
        for name, tensor in tensors.items():
            cut = name.endswith(("up.weight", "wide.weight"))
            assert bytes_of(mine[name]) == (part_of(name, tensor, rank) if cut else tensor).tobytes(), (rank, name)
    size = path.stat().st_size
    assert size - 4096 <= read <= size + 65536  # the beginning, with the header in it, apart


def bytes_of(memory: Any) -> bytes:
    if not memory:
        return b""
    content = bytearray(memory.nbytes)
    penstock.copy(content, memory)
    return bytes(content)


def test_names_callables_and_one_device(model: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = model
    asked: list[tuple[str, tuple[int, ...]]] = []

    def rule(name: str, shape: tuple[int, ...]) -> int | None:
        asked.append((name, shape))
        return 0 if name == "embed" else None

    found = load_sharded(path, ["cpu", "cpu"], rule, "np", names=["norm", "embed"])
    assert [sorted(each) for each in found] == [["embed", "norm"]] * 2
    assert sorted(set(asked)) == [("embed", (4200, 300)), ("norm", (301,))]
    assert np.array_equal(found[1]["embed"], tensors["embed"][2100:])
    (alone,) = load_sharded(path, ["cpu"], SHARD, "np")
    assert all(np.array_equal(alone[name], tensor) for name, tensor in tensors.items())
    whole = load_sharded(path, ["cpu", "cpu"], framework="np")
    assert all(np.array_equal(each[name], tensor) for each in whole for name, tensor in tensors.items())


def test_what_cannot_be_cut_is_told_before_anything_is_read(model: tuple[Path, dict[str, Any]]) -> None:
    path, _ = model
    with pytest.raises(penstock.InvalidArgument, match=r'slices for tensor "norm" of shape \[301\]: the 301 rows of dimension 0 cannot be divided evenly among 2 ranks'):
        load_sharded(path, ["cpu", "cpu"], {"norm": 0}, "np")
    with pytest.raises(penstock.InvalidArgument, match=r"there is no dimension 2"):
        load_sharded(path, ["cpu", "cpu"], {"embed": 2}, "np")
    with pytest.raises(TypeError, match=r"""shard returned '0' for tensor "embed", which is neither a dimension nor None"""):
        load_sharded(path, ["cpu", "cpu"], lambda name, shape: "0" if name == "embed" else None, "np")  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="shard must be a mapping or a callable, not int"):
        load_sharded(path, ["cpu"], 0, "np")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="devices must be a sequence of devices, not str"):
        load_sharded(path, "cpu", framework="np")
    with pytest.raises(penstock.InvalidArgument, match="devices is empty"):
        load_sharded(path, [], framework="np")
    with pytest.raises(penstock.NotFound):
        load_sharded(path, ["host:0", "host:77"])
    with pytest.raises(SafetensorError, match="missing"):
        load_sharded(path, ["cpu"], framework="np", names=["missing"])


def test_a_file_that_is_cut_meanwhile_is_told_of(model: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = model
    from penstock._tensors import sharded as _sharded

    fill = _sharded._filled

    def cut_first(*args: Any) -> Any:
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size - 1000)
        return fill(*args)

    monkeypatch.setattr(_sharded, "_filled", cut_first)
    with pytest.raises(penstock.ShortRead, match="the file was truncated after it was opened"):
        load_sharded(path, ["host:0"] * 2)


def test_devices_are_filled_in_turns(model: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    path, tensors = model
    from penstock._tensors import sharded as _sharded

    asked: list[tuple[int, int]] = []  # the memory, and how many bytes
    start = _sharded.Reads.start

    def noted(self: Any, source: Any, memory: Any, ranges: Any, copies: Any = ()) -> None:
        if not copies:
            asked.append((penstock._native.resolve(memory)[0], sum(ranges.sizes)))
        start(self, source, memory, ranges, copies)

    monkeypatch.setattr(_sharded.Reads, "start", noted)
    monkeypatch.setattr(_sharded, "_TURN_BYTES", 1 << 20)
    found = load_sharded(path, ["cpu"] * 2, {"embed": 0, "*.up.weight": 0}, "np")
    assert all(np.array_equal(mine["embed"], part) for mine, part in zip(found, np.split(tensors["embed"], 2)))
    first, second = (memory for memory, _ in asked[:2])
    assert first != second and [memory for memory, _ in asked] == [first, second] * (len(asked) // 2) and len(asked) >= 4
    assert sum(nbytes for _, nbytes in asked) == tensors["embed"].nbytes + 4 * 6 * 50 * 120


def test_ranges_in_turns_are_the_same_ranges() -> None:
    from penstock._tensors.reads import Ranges

    numbers = random.Random(8)
    for _ in range(200):
        ranges = Ranges()
        for i in range(numbers.randrange(20)):
            ranges.add_all([1000 * i], [numbers.randrange(1, 500)], [i])
        most = numbers.randrange(1, 2000)
        turns = list(ranges.in_turns(most))
        for name in ("offsets", "sizes", "places"):
            assert [each for turn in turns for each in getattr(turn, name)] == getattr(ranges, name).tolist()
        assert all(sum(turn.sizes) >= most > sum(turn.sizes[:-1]) for turn in turns[:-1])
        assert all(turn.sizes and sum(turn.sizes[:-1]) < most for turn in turns)


def test_random_models_and_worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = random.Random(9)
    from penstock._tensors import sharded as _sharded

    monkeypatch.setattr(_sharded, "_TURN_BYTES", 100)
    for round_ in range(25):
        world = numbers.randint(1, 4)
        tensors = {}
        dims: dict[str, int | None] = {}
        for i in range(numbers.randint(0, 12)):
            shape = [numbers.choice([0, 1, 2, 5, 16, 130]) for _ in range(numbers.randint(0, 3))]
            dims[f"t{i}"] = numbers.choice([None, *range(len(shape))])
            if (dim := dims[f"t{i}"]) is not None:
                shape[dim] *= world
            tensors[f"t{i}"] = np.frombuffer(numbers.randbytes(int(np.prod(shape)) * 2), "i2").reshape(shape)
        path = tmp_path / f"{round_}"
        save_file(tensors, path)
        for rank, mine in enumerate(load_sharded(path, ["cpu"] * world, dims, "np")):
            for name, tensor in tensors.items():
                dim = dims[name]
                expected = tensor if dim is None else np.split(tensor, world, axis=dim)[rank]
                assert np.array_equal(mine[name], expected), (round_, rank, name)


def test_the_first_read_into_a_device_can_be_prepared(tmp_path: Path) -> None:
    path = tmp_path / "data"
    content = np.random.default_rng(1).bytes(5 << 20)
    path.write_bytes(content)
    with penstock.open(path) as file:
        file.prepare("host:0")
        file.prepare("host:0")
        memory = penstock.device("host:0").empty(len(content))
        assert file.read_into(memory) == len(content)
        assert bytes_of(memory) == content
        with pytest.raises(penstock.NotFound, match='there is no device "host:9"'):
            file.prepare("host:9")
        with pytest.raises(penstock.NotFound, match='there is no device "gpu"; available devices: host'):
            file.prepare("gpu")
        file.prepare("cpu")  # which needs nothing
    with pytest.raises(penstock.Closed):
        file.prepare("host:0")
