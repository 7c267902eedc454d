"""penstock.safetensors.stream(): every tensor once, in the order of the files, in no more memory than was asked for, and never written to again."""

from __future__ import annotations

import gc
import json
import operator
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import _native
from penstock._core.arrays import of_numpy as _of_numpy
from penstock._tensors import frameworks as _frameworks
from penstock._tensors import reads as _reading
from penstock._tensors import stream as inside
from penstock.safetensors import SafetensorError, load_file, safe_open, save_file, stream

pytestmark = pytest.mark.usefixtures("torch_not_imported")

LIMIT = 64 << 10

HAS_GPU = any(each.name.startswith("cuda:") for each in penstock.devices())
on_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU")


class Memory:
    """What NumPy's arenas have allocated."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.most = 0
        self._rooms: list[weakref.ref[Any]] = []

    def add(self, nbytes: int, room: Any) -> None:
        self.sizes.append(nbytes)
        self._rooms.append(weakref.ref(room))
        self.most = max(self.most, self.live)

    @property
    def live(self) -> int:
        return sum(nbytes for nbytes, room in zip(self.sizes, self._rooms) if room() is not None)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    found = Memory()
    made = _of_numpy.NumpyArena.__init__

    def counted(self: Any, nbytes: int) -> None:
        made(self, nbytes)
        found.add(nbytes, self._room)

    monkeypatch.setattr(_of_numpy.NumpyArena, "__init__", counted)
    return found


def model(count: int = 200, nbytes: int = 1024) -> dict[str, Any]:
    numbers = np.random.default_rng(1)
    found: dict[str, Any] = {f"layers.{each:03}.weight": numbers.integers(0, 255, (nbytes // 16, 16), "u1") for each in range(count)}
    found["scalar"], found["empty"], found["halves"] = np.array(3.5, "f4"), np.zeros((0, 5), "f4"), np.arange(999, dtype="f2")
    return found


@pytest.fixture
def tensors() -> dict[str, Any]:
    return model()


@pytest.fixture
def file(tmp_path: Path, tensors: dict[str, Any]) -> Path:
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def shards(tmp_path: Path, tensors: dict[str, Any]) -> Path:
    """A folder of three, and their index."""
    weights = {}
    for number in range(3):
        name = f"model-{number + 1:05}-of-00003.safetensors"
        mine = {each: tensors[each] for each in sorted(tensors)[number::3]}
        save_file(mine, tmp_path / name)
        weights.update(dict.fromkeys(mine, name))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    return tmp_path


def values(tensor: Any) -> Any:
    """In memory of the host."""
    if isinstance(tensor, (np.ndarray, bytes)):
        return tensor
    if hasattr(tensor, "cpu"):
        return tensor.cpu().numpy()
    return tensor.get() if hasattr(tensor, "get") else bytes(tensor.to_host())


def same(found: Any, expected: Any) -> bool:
    got = values(found)
    if isinstance(got, bytes):
        return got == expected.tobytes()
    return (got.dtype, got.shape) == (expected.dtype, expected.shape) and got.tobytes() == expected.tobytes()


FRAMEWORKS = [("np", "cpu"), ("bytes", "host:0"), ("pt", "cpu"), *(pytest.param((each, "cuda:0"), marks=on_gpu) for each in ("pt", "cupy", "bytes"))]


@pytest.fixture(params=FRAMEWORKS)
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    framework, device = request.param
    if framework == "pt":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    elif framework == "cupy":
        pytest.importorskip("cupy", reason="CuPy is not installed")
    return {"framework": framework, "device": device}


def limited(nbytes: int) -> dict[str, Any]:
    """On the host; on a device max_host_bytes is about something else."""
    return {"framework": "np", "max_host_bytes": nbytes}


# --- what comes


def test_every_tensor_comes_in_the_order_of_the_file(file: Path, tensors: dict[str, Any], place: dict[str, Any]) -> None:
    expected = list(load_file(file))
    for limits in ({}, {"max_device_bytes": LIMIT}, {"max_device_bytes": 1}):
        found = list(stream(file, **place, **limits))
        assert [name for name, _ in found] == expected
        assert all(same(tensor, tensors[name]) for name, tensor in found)


def test_shards_come_one_after_the_other(shards: Path, tensors: dict[str, Any], place: dict[str, Any]) -> None:
    for files in (shards, [shards / f"model-{each}-of-00003.safetensors" for each in ("00001", "00002", "00003")]):
        found = list(stream(files, **place, max_device_bytes=LIMIT))
        assert [name for name, _ in found] == list(load_file(files))
        assert all(same(tensor, tensors[name]) for name, tensor in found)


def test_names_are_those_that_come(shards: Path, tensors: dict[str, Any], memory: Memory) -> None:
    names = ["layers.150.weight", "scalar", "layers.003.weight", "empty"]
    found = dict(stream(shards, names, framework="np"))
    assert found.keys() == set(names) and all(same(found[name], tensors[name]) for name in names)
    assert memory.most <= 4096
    assert list(stream(shards, [], framework="np")) == []


def test_a_stream_tells_how_many_are_to_come(shards: Path) -> None:
    flow = stream(shards, ["scalar", "empty", "halves"], framework="np")
    assert operator.length_hint(flow) == 3
    assert [operator.length_hint(flow) for _ in flow] == [2, 1, 0]
    with stream(shards, framework="np") as flow:
        next(flow)
    assert operator.length_hint(flow) == 0


def test_a_rank_gets_its_part(shards: Path, tensors: dict[str, Any], place: dict[str, Any]) -> None:
    def part(name: str, shape: tuple[int, ...]) -> Any:
        return (0, 1, 4) if name.startswith("layers") else None

    for name, tensor in stream(shards, slices=part, **place, max_device_bytes=LIMIT):
        assert same(tensor, tensors[name][16:32] if name.startswith("layers") else tensors[name])


@pytest.mark.parametrize("index", [(slice(1, 40), slice(3, 5)), (slice(0, 64, 3), 7), (2, slice(0, 16, 5)), (slice(5, 5),)])
def test_parts_of_any_shape_come(file: Path, tensors: dict[str, Any], place: dict[str, Any], index: Any) -> None:
    if place["framework"] == "bytes":
        pytest.skip("bytes are not indexed")
    for name, tensor in stream(file, slices=lambda name, shape: index if name.startswith("layers") else None, **place, max_device_bytes=LIMIT):
        assert same(tensor, np.ascontiguousarray(tensors[name][index]) if name.startswith("layers") else tensors[name])


def test_types_that_numpy_lacks_come_for_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from penstock.safetensors.torch import save_file as save

    expected = {"bf": torch.randn(300).bfloat16(), "f8": torch.randn(64).to(torch.float8_e4m3fn)}
    save(expected, tmp_path / "model.safetensors")
    found = dict(stream(tmp_path / "model.safetensors", framework="pt"))
    assert all(found[name].dtype == each.dtype and torch.equal(found[name].view(torch.uint8), each.view(torch.uint8)) for name, each in expected.items())


# --- memory


def test_memory_is_bounded_and_there_is_more_ahead(file: Path, memory: Memory) -> None:
    held = []
    for name, _ in stream(file, **limited(LIMIT)):
        held.append(memory.live)
    assert max(held) <= memory.most <= LIMIT
    assert sum(memory.sizes) > 3 * LIMIT and held[0] > LIMIT // 2  # while the first is looked at, half of the memory is read ahead
    assert memory.live <= LIMIT // 8  # the last one is held by the loop
    assert max(memory.sizes) > 4 * 1024  # many tensors come together


def test_a_tensor_larger_than_the_limit_is_read_alone(tmp_path: Path, memory: Memory) -> None:
    tensors = {f"t{each}": np.full(1000, each, "u1") for each in range(40)} | {"t20": np.full(5 * LIMIT, 20, "u1")}
    save_file(tensors, tmp_path / "model.safetensors")
    for name, tensor in stream(tmp_path / "model.safetensors", **limited(LIMIT)):
        assert same(tensor, tensors[name])
        if name == "t20":
            assert memory.sizes[-1] == memory.live == 5 * LIMIT  # nothing is read ahead of it, and nothing behind
        del tensor
    assert memory.most <= 5 * LIMIT + LIMIT // 8


def test_what_is_kept_is_never_written_to(file: Path, tensors: dict[str, Any], place: dict[str, Any]) -> None:
    kept: dict[str, Any] = {}
    for number, (name, tensor) in enumerate(stream(file, **place, max_device_bytes=LIMIT, **({"max_host_bytes": LIMIT} if place["device"] == "cpu" else {}))):
        if number % 5 == 0:
            kept[name] = tensor
        elif number % 5 == 1 and place["framework"] != "bytes" and tensor.ndim == 2:
            kept[name] = tensor[:]  # a view alone
    assert all(same(tensor, tensors[name]) for name, tensor in kept.items())


def test_views_of_other_libraries_keep_the_memory(file: Path, tensors: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    ways: list[Callable[[Any], Any]] = [lambda each: each.numpy(), lambda each: np.from_dlpack(each.detach()), lambda each: torch.from_dlpack(each).numpy()]
    kept = {name: ways[number % 3](tensor) for number, (name, tensor) in enumerate(stream(file, framework="pt", max_host_bytes=LIMIT))}
    assert all(same(array, tensors[name]) for name, array in kept.items())


def test_what_the_caller_keeps_counts_and_stops_nothing(file: Path, tensors: dict[str, Any], memory: Memory) -> None:
    kept = []
    for name, tensor in stream(file, **limited(LIMIT)):
        kept.append((name, tensor))
        assert memory.live <= max(LIMIT, sum(each.nbytes for _, each in kept) + LIMIT // 8 + 1024)
    assert len(kept) == len(tensors) and all(same(tensor, tensors[name]) for name, tensor in kept)
    assert set(memory.sizes[-100:]) == {1024}  # one at a time


@pytest.mark.parametrize("keep", [lambda each: each[:1], lambda each: each.view("u1")[3:].reshape(-1), memoryview, np.from_dlpack])
def test_a_view_that_is_kept_counts(file: Path, memory: Memory, keep: Callable[[Any], Any]) -> None:
    flow = stream(file, **limited(LIMIT))
    kept = [keep(tensor) for name, tensor in flow if name.startswith("layers") and name < "layers.100"]
    gc.collect()
    assert memory.live >= 100 * 1024 and flow._flow._held.nbytes >= 100 * 1024 - LIMIT
    del kept
    gc.collect()
    assert memory.live <= LIMIT


def test_memory_that_is_given_back_is_room_again(file: Path, memory: Memory) -> None:
    flow = stream(file, **limited(LIMIT))
    kept = [next(flow) for _ in range(100)]
    alone = len(memory.sizes)
    kept.clear()
    list(flow)
    assert max(memory.sizes[alone + 1 :]) > 4 * 1024


def test_too_little_memory_ahead_is_no_error(file: Path, tensors: dict[str, Any], memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _of_numpy.Numpy.arena
    refused = []

    def short(self: Any, nbytes: int, device: str) -> Any:
        if memory.live + nbytes > 20_000:
            refused.append(nbytes)
            raise MemoryError("no more")
        return made(self, nbytes, device)

    monkeypatch.setattr(_of_numpy.Numpy, "arena", short)
    for limit in (LIMIT, 64 * LIMIT):  # one batch fits, or none, and tensors alone
        found = 0
        for name, tensor in stream(file, **limited(limit)):
            assert same(tensor, tensors[name])
            found += 1
        assert found == len(tensors) and 0 < len(refused) <= 2 * len(memory.sizes)
        refused.clear()
        del tensor


def test_memory_that_is_in_use_is_not_read_into(file: Path, tensors: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a GPU, whose stream works on it still. What is read ahead waits for none, and nothing is read into it before."""
    waited, add = [], _reading.Flow.add

    def settle(self: Any) -> None:
        waited.append(self.memory)

    def checked(self: Any, source: Any, memory: Any, ranges: Any) -> Any:
        assert any(memory is each for each in waited)
        return add(self, source, memory, ranges)

    monkeypatch.setattr(_of_numpy.NumpyArena, "settled", lambda self: len(waited) > 2, raising=False)
    monkeypatch.setattr(_of_numpy.NumpyArena, "settle", settle, raising=False)
    monkeypatch.setattr(_reading.Flow, "add", checked)
    flow = stream(file, **limited(LIMIT))
    name, tensor = next(flow)
    assert same(tensor, tensors[name]) and len(waited) == 1 and len(flow._flow.ahead) > 3
    assert all(same(tensor, tensors[name]) for name, tensor in flow)


def test_no_memory_at_all_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: Any, nbytes: int, device: str) -> Any:
        raise MemoryError("no more")

    flow = stream(file, framework="np")
    monkeypatch.setattr(_of_numpy.Numpy, "arena", none)
    with pytest.raises(MemoryError):
        next(flow)
    assert list(flow) == []


# --- bytes under way


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limit on bytes in flight, and the largest range, of each addition to a flow. The flow itself is tested in tests/tensors."""
    found: list[tuple[int, int]] = []
    native = _native.ReadFlow

    class ReadFlow:
        def __init__(self, most_bytes: int, links: Any) -> None:
            self._most_bytes, self._flow = most_bytes, native(most_bytes, links)

        def add(self, file: Any, memory: Any, offsets: Any, sizes: Any, places: Any) -> Any:
            found.append((self._most_bytes, max(sizes)))
            return self._flow.add(file, memory, offsets, sizes, places)

    monkeypatch.setattr(_native, "ReadFlow", ReadFlow)
    return found


@pytest.fixture
def wide(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """12 MiB, of which one tensor has 5."""
    numbers = np.random.default_rng(2)
    tensors = {f"t{each:02}": numbers.integers(0, 255, (5 << 20) if each == 20 else 250_000, "u1") for each in range(30)}
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors", tensors


@pytest.mark.parametrize("place", [{}, {"device": "host:0", "framework": "bytes"}, pytest.param({"device": "cuda:0", "framework": "bytes"}, marks=on_gpu)])
def test_load_file_limits_the_bytes_in_flight(wide: tuple[Path, dict[str, Any]], limits: list[tuple[int, int]], place: dict[str, Any]) -> None:
    file, tensors = wide
    for slices in (None, lambda name, shape: (slice(10, None),)):
        found = load_file(file, **place, slices=slices, max_host_bytes=2 << 20)
        assert all(same(found[name], each if slices is None else each[10:]) for name, each in tensors.items())
    assert set(limits) == {(2 << 20, 256 << 10)}


@pytest.mark.parametrize("device", ["host:0", pytest.param("cuda:0", marks=on_gpu)])
def test_a_stream_limits_the_bytes_in_flight(wide: tuple[Path, dict[str, Any]], limits: list[tuple[int, int]], device: str) -> None:
    file, tensors = wide
    for name, tensor in stream(file, device=device, framework="bytes", max_host_bytes=2 << 20):
        assert same(tensor, tensors[name])
    assert max(limits) == (2 << 20, 256 << 10) and len({most for most, _ in limits}) == 1


def test_a_file_that_is_cut_meanwhile_names_the_tensor(wide: tuple[Path, dict[str, Any]]) -> None:
    file, _ = wide

    def cut(name: str, shape: tuple[int, ...]) -> None:
        """Called when the header has been read."""
        with open(file, "r+b") as opened:
            opened.truncate(4 << 20)

    with pytest.raises(penstock.ShortRead, match='model.safetensors: .*"t1[0-9]"'):
        load_file(file, slices=cut, max_host_bytes=1 << 20)


@pytest.mark.parametrize("wrong", [{"max_host_bytes": 0}, {"max_device_bytes": -1}, {"max_host_bytes": 1000, "device": "host:0", "framework": "bytes"}])
def test_limits_that_are_none_are_refused(file: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(penstock.InvalidArgument, match="max_"):
        stream(file, **{"framework": "np", **wrong})
    with pytest.raises(TypeError, match="max_host_bytes"):
        load_file(file, max_host_bytes=1.5)  # type: ignore[arg-type]
    with pytest.raises(penstock.InvalidArgument, match="max_host_bytes is 1000"):
        load_file(file, max_host_bytes=1000)


# --- leaving


def settled() -> tuple[int, int]:
    """Requests, and buffers that requests hold."""
    gc.collect()
    _native._settle()
    return _native._under_way(), _native._held_memories()


def leave_by_break(file: Path) -> None:
    for _ in stream(file, **limited(LIMIT)):
        break


def leave_by_close(file: Path) -> None:
    flow = stream(file, **limited(LIMIT))
    next(flow)
    flow.close()
    flow.close()
    assert list(flow) == []


def leave_by_with(file: Path) -> None:
    with stream(file, **limited(LIMIT)) as flow:
        next(flow)
    assert list(flow) == []


def leave_by_exception(file: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in stream(file, **limited(LIMIT)):
            1 / 0  # noqa: B018


def leave_to_the_collector(file: Path) -> None:
    cycle: list[Any] = [stream(file, **limited(LIMIT))]
    cycle.append(cycle)
    next(cycle[0])
    del cycle


def leave_slices_that_hold_it(file: Path) -> None:
    class Loader:
        def __init__(self) -> None:
            self.flow = stream(file, slices=self.part, **limited(LIMIT))

        def part(self, name: str, shape: tuple[int, ...]) -> None:
            return None

    next(Loader().flow)


def leave_a_generator(file: Path) -> None:
    def renamed() -> Iterator[tuple[str, Any]]:
        for name, tensor in stream(file, **limited(LIMIT)):
            yield f"model.{name}", tensor

    next(renamed())


def leave_before_the_first(file: Path) -> None:
    stream(file, **limited(LIMIT))


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_break,
        leave_by_close,
        leave_by_with,
        leave_by_exception,
        leave_to_the_collector,
        leave_slices_that_hold_it,
        leave_a_generator,
        leave_before_the_first,
    ],
)
def test_leaving_early_ends_all(file: Path, memory: Memory, leave: Callable[[Path], None]) -> None:
    before = settled()
    leave(file)
    assert settled() == before and memory.live == 0


def test_what_was_handed_out_outlives_the_stream(file: Path, tensors: dict[str, Any], place: dict[str, Any]) -> None:
    with stream(file, **place) as flow:
        kept = dict(next(flow) for _ in range(20))
    assert all(same(tensor, tensors[name]) for name, tensor in kept.items())


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "import threading; threading.Thread(target=next, args=(flow,)).start()"])
def test_an_interpreter_ends_in_the_middle(file: Path, end: str) -> None:
    code = f"from penstock.safetensors import stream\nflow = stream({str(file)!r}, framework='np', max_host_bytes=65536)\nnext(flow)\n{end}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# --- errors


def cut_behind(file: Path, tensor: str) -> list[str]:
    """The file ends within the tensor. Returns the names of those before."""
    from penstock._tensors.sources import Source

    source = Source(str(file))
    names, row = source.header.names, source.row(tensor)
    with open(file, "r+b") as opened:
        opened.truncate(source.header.offsets[row] + 100)
    source.file.close()
    return names[:row]


def test_an_error_comes_in_its_turn(file: Path, tensors: dict[str, Any], place: dict[str, Any]) -> None:
    flow = stream(file, **place)  # opened, and read when it was cut already
    before = cut_behind(file, "layers.120.weight")
    found = []
    with pytest.raises(penstock.ShortRead, match="model.safetensors.*layers.120.weight"):
        for name, tensor in flow:
            found.append(name)
            assert same(tensor, tensors[name])
    assert found == before
    assert list(flow) == []


def test_a_read_that_does_not_begin_is_told_in_its_turn(file: Path, tensors: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    add = _reading.Flow.add

    def refused(self: Any, source: Any, memory: Any, ranges: Any) -> Any:
        if ranges.offsets[-1] >= source.header.offsets[source.row("layers.100.weight")]:
            raise penstock.Error("the engine has ended", code="closed")
        return add(self, source, memory, ranges)

    monkeypatch.setattr(_reading.Flow, "add", refused)
    found = []
    with pytest.raises(penstock.Error, match="the engine has ended"):
        for name, tensor in stream(file, **limited(LIMIT)):
            found.append(name)
            assert same(tensor, tensors[name])
    assert found == list(load_names(file))[: len(found)] and "layers.090.weight" < found[-1] < "layers.100.weight"


def load_names(file: Path) -> list[str]:
    with safe_open(file, "np") as opened:
        return opened.offset_keys()


def test_an_error_of_a_later_shard_comes_after_the_others(shards: Path) -> None:
    flow = stream(shards, framework="np")
    names = list(load_file(shards))
    before = cut_behind(shards / "model-00002-of-00003.safetensors", "layers.101.weight")
    found = []
    with pytest.raises(penstock.ShortRead, match="model-00002-of-00003.*layers.101.weight"):
        for name, _ in flow:
            found.append(name)
    assert found == names[: len(found)] and found[-len(before) :] == before


def test_what_is_wrong_with_the_files_is_told_at_once(shards: Path) -> None:
    with pytest.raises(SafetensorError, match="nobody"):
        stream(shards, ["nobody"], framework="np")
    with pytest.raises(SafetensorError, match="framework"):
        stream(shards, framework="tf")
    (shards / "model-00003-of-00003.safetensors").write_bytes(b"damaged")
    with pytest.raises(SafetensorError, match="model-00003"):
        stream(shards, framework="np")
    (shards / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(penstock.NotFound, match="model-00003"):
        stream(shards, framework="np")


def test_a_part_that_cannot_be_is_told_in_its_turn(file: Path) -> None:
    found = []
    with pytest.raises(penstock.InvalidArgument, match="layers.050.weight"):
        for name, _ in stream(file, framework="np", slices=lambda name, shape: (0, 0, 3) if name == "layers.050.weight" else None):
            found.append(name)
    assert found[-1] == "layers.049.weight"


# --- several


def test_several_streams_at_once(file: Path, tensors: dict[str, Any], place: dict[str, Any]) -> None:
    flows = [stream(file, **place, max_device_bytes=LIMIT * (1 + each)) for each in range(4)]
    for together in zip(*flows):
        assert len({name for name, _ in together}) == 1
        assert all(same(tensor, tensors[name]) for name, tensor in together)


def test_each_thread_has_its_own(file: Path, tensors: dict[str, Any]) -> None:
    wrong: list[str] = []

    def go() -> None:
        found = 0
        for name, tensor in stream(file, **limited(LIMIT)):
            found += 1
            if not same(tensor, tensors[name]):
                wrong.append(name)
        if found != len(tensors):
            wrong.append(f"{found} tensors")

    threads = [threading.Thread(target=go) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_a_second_thread_is_refused_and_the_stream_goes_on(file: Path, tensors: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    flow = stream(file, **limited(LIMIT))
    found = dict([next(flow)])
    waits, told = inside._Batch.wait, []

    def wait(batch: Any) -> None:
        def other() -> None:
            with pytest.raises(penstock.InvalidArgument, match="another thread is using this stream") as caught:
                next(flow)
            told.append(caught.value)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        waits(batch)

    monkeypatch.setattr(inside._Batch, "wait", wait)
    found.update(flow)
    assert told and sorted(found) == sorted(tensors) and all(same(each, tensors[name]) for name, each in found.items())


# --- GPUs


@pytest.fixture
def cuda() -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not (HAS_GPU and torch.cuda.is_available()):
        pytest.skip("no GPU for PyTorch")
    return torch


def test_memory_of_a_gpu_is_bounded(wide: tuple[Path, dict[str, Any]], cuda: Any) -> None:
    file, tensors = wide
    limit = 2 << 20
    before = cuda.cuda.memory_allocated(0)
    cuda.cuda.reset_peak_memory_stats(0)
    for name, tensor in stream(file, framework="pt", device="cuda:0", max_device_bytes=limit):
        assert same(tensor, tensors[name])
        del tensor
    assert cuda.cuda.max_memory_allocated(0) - before <= limit + tensors["t20"].nbytes + 4096
    assert cuda.cuda.memory_allocated(0) == before


@pytest.mark.parametrize("other_stream", [False, True])
def test_memory_is_written_to_when_the_gpu_is_done_with_it(wide: tuple[Path, dict[str, Any]], cuda: Any, other_stream: bool) -> None:
    """The casts are queued behind work that takes long, and the tensors are dropped at once: their memory may be handed out again meanwhile."""
    file, tensors = wide
    found = {}
    with cuda.cuda.stream(cuda.cuda.Stream(0) if other_stream else cuda.cuda.current_stream(0)):
        flow = stream(file, framework="pt", device="cuda:0", max_device_bytes=2 << 20)
        for name, tensor in flow:
            cuda.cuda._sleep(2_000_000)
            found[name] = tensor.to(cuda.int32)
            del tensor
        cuda.cuda.synchronize()
    assert all((found[name].cpu().numpy() == tensors[name]).all() for name in tensors)


def test_batches_are_those_that_the_limit_is_for() -> None:
    """The figures that docs/guides/models.md has."""
    place = _frameworks.framework_on("np", None)
    assert inside._limits(place, None, None) == (512 << 20, None) and inside._limits(place, None, None).batch == 64 << 20
    assert inside._limits(place, 7, 80 << 20).batch == 10 << 20
