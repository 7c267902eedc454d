"""Tensors that are read before they are asked for: every byte, whatever the order, and no more memory than the budget."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import penstock
from penstock.safetensors import PrefetchLoader, SafetensorError, safe_open
from penstock._tensors import ahead as _ahead
from penstock.safetensors import torch as ours
from penstock._tensors.ahead import Ahead, Sequence
from penstock._tensors.sources import Source

CPU = torch.device("cpu")  # which stands for a GPU here
HANG_S = 60  # a test that waits this long fails


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.skipif(penstock.cuda_status() is not None or not torch.cuda.is_available(), reason="no GPU"))])
def device(request: pytest.FixtureRequest) -> Any:
    return torch.device(request.param)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ahead, "_batch_bytes", 4096)
    monkeypatch.setattr(_ahead, "_default_ahead_bytes", 16384)


def model(layers: int = 24, width: int = 16) -> dict[str, Any]:
    numbers = torch.Generator().manual_seed(1)
    found = {"embed": torch.randn(64, width, generator=numbers), "scalar": torch.tensor(3.5), "empty": torch.empty(0, 5)}
    for layer in range(layers):
        found[f"layers.{layer}.weight"] = torch.randn(width, width, generator=numbers)
        found[f"layers.{layer}.half"] = torch.randn(width, 3, generator=numbers).half()
        found[f"layers.{layer}.bytes"] = torch.arange(7, dtype=torch.uint8)
    return found


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Source, dict[str, Any]]]:
    tensors = model()
    ours.save_file(tensors, tmp_path / "model.safetensors")
    source = Source(str(tmp_path / "model.safetensors"))
    yield source, tensors
    source.file.close()


def natural(name: str) -> str:
    return _ahead.natural_order(name)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("order", ["of the file", "of the layers", "backwards", "at random"])
def test_every_tensor_is_right_in_any_order(opened: Any, device: Any, order: str) -> None:
    source, tensors = opened
    names = list(source.header.names)
    if order == "of the layers":
        names.sort(key=natural)
    elif order == "backwards":
        names.reverse()
    elif order == "at random":
        random.Random(1).shuffle(names)
    ahead = Ahead(source, device)
    most = 0
    for name in names + names[:5]:
        found = ahead.take(source.row(name))
        assert found.device == device and torch.equal(found.cpu(), tensors[name]) and found.dtype == tensors[name].dtype
        assert found.untyped_storage().nbytes() == tensors[name].nbytes  # nobody else's bytes hang on it
        most = max(most, ahead.waiting_bytes)
    assert most <= 16384
    if order in ("of the file", "of the layers"):
        assert most > 0
    if order == "backwards":
        assert most == 0
    ahead.drop()
    assert ahead.waiting_bytes == 0


@pytest.mark.usefixtures("small_batches")
def test_a_program_that_wants_few_is_not_read_ahead_for_long(tmp_path: Path) -> None:
    tensors = {f"layers.{each:04}": torch.full((256,), float(each)) for each in range(2000)}
    ours.save_file(tensors, tmp_path / "model.safetensors")
    source = Source(str(tmp_path / "model.safetensors"))
    ahead = Ahead(source, CPU)
    started = []
    batch_of = ahead._batch
    ahead._batch = lambda rows: started.extend(rows) or batch_of(rows)  # type: ignore[method-assign,func-returns-value]
    for row in range(0, 2000, 8):  # each 8th: near enough to be foreseen, and seven of eight in vain
        assert ahead.take(row)[0] == row
        _ahead._Neighbours.of(CPU).make_room(Sequence(CPU), 1 << 20, 0)  # whose room is taken from what waits
    assert len(started) < 500


@pytest.mark.usefixtures("small_batches")
def test_threads_that_ask_at_once_get_theirs(opened: Any, device: Any) -> None:
    source, tensors = opened
    ahead = Ahead(source, device)
    names = sorted(tensors, key=natural)
    wrong: list[str] = []

    def ask(mine: list[str]) -> None:
        wrong.extend(name for name in mine if not torch.equal(ahead.take(source.row(name)).cpu(), tensors[name]))

    threads = [threading.Thread(target=ask, args=(names[each::4],)) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class DuringAllocation(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    """Calls a function before each tensor that PyTorch allocates on this thread. The function may take as long as a busy stream, or fail."""

    def __init__(self, function: Callable[[tuple[int, ...]], None]) -> None:
        super().__init__()
        self._function = function

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.empty:
            self._function(tuple(args[0]))
        return function(*args, **(kwargs or {}))


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("waits_for", ["its own tensor", "the tensors after it"])
def test_a_thread_that_waits_for_memory_keeps_no_other_waiting(tmp_path: Path, device: Any, waits_for: str) -> None:
    names = [[f"a{each:03}" for each in range(60)], [f"b{each:03}" for each in range(40)]]
    sequence = Sequence(device)
    first, second = (Ahead(source, device, sequence=sequence) for source in shards(tmp_path, names))
    if waits_for == "its own tensor":
        first.take(50)
        row = 0  # out of order
    else:
        first.take(0)
        row = 1
    is_slow, goes_on = threading.Event(), threading.Event()
    allocated: list[tuple[int, ...]] = []

    def wait(shape: tuple[int, ...]) -> None:
        allocated.append(shape)
        if len(allocated) == (1 if waits_for == "its own tensor" else 2):
            is_slow.set()
            assert goes_on.wait(HANG_S)

    def take() -> Any:
        with DuringAllocation(wait):
            return first.take(row)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(take)
        assert is_slow.wait(HANG_S)
        try:
            assert second.take(30)[0] == 1030  # of another shard
            assert first.take(40)[0] == 40
        finally:
            goes_on.set()
        assert found.result(HANG_S)[0] == row
    assert [first.take(each)[0] for each in range(60)] == list(range(60))


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("failure", [torch.OutOfMemoryError, KeyboardInterrupt])
def test_no_memory_to_read_ahead_costs_only_what_is_read_ahead(opened: Any, device: Any, failure: type[BaseException]) -> None:
    source, tensors = opened
    names = source.header.names
    ahead = Ahead(source, device)
    ahead.take(0)
    allocated: list[tuple[int, ...]] = []

    with ThreadPoolExecutor(1) as pool:
        other: list[Future[Any]] = []

        def fail(shape: tuple[int, ...]) -> None:
            allocated.append(shape)
            if len(allocated) == 3:  # after the requested tensor, and one of the next
                other.append(pool.submit(ahead.take, 2))  # which this thread has begun to read
                raise failure("no memory")

        with DuringAllocation(fail):
            try:
                ahead.take(1)
            except KeyboardInterrupt:
                assert failure is KeyboardInterrupt
        assert torch.equal(other[0].result(HANG_S).cpu(), tensors[names[2]])
    for row, name in enumerate(names):
        assert torch.equal(ahead.take(row).cpu(), tensors[name])
    assert ahead.waiting_bytes == 0


def test_what_is_read_already_is_not_looked_through_for_each_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours.save_file({f"t{each:04}": torch.full((4,), float(each)) for each in range(1000)}, tmp_path / "model.safetensors")
    ahead = Ahead(Source(str(tmp_path / "model.safetensors")), CPU)
    looked_at = []
    is_to_come = Ahead.is_to_come
    monkeypatch.setattr(Ahead, "is_to_come", lambda self, row: looked_at.append(row) or is_to_come(self, row))  # type: ignore[func-returns-value]
    for row in range(1000):
        assert ahead.take(row)[0] == row
        if row in (300, 600):
            ahead.drop()  # and what was let go of is read again
        assert (ahead.waiting_bytes > 0) is (row not in (0, 300, 600, 999))
    assert len(looked_at) < 3000


@pytest.mark.usefixtures("small_batches")
def test_files_share_the_budget(tmp_path: Path) -> None:
    aheads = []
    for number in range(4):
        ours.save_file({f"t{each:03}": torch.full((256,), float(each)) for each in range(100)}, tmp_path / f"{number}.safetensors")
        ahead = Ahead(Source(str(tmp_path / f"{number}.safetensors")), CPU)
        for row in range(20):
            ahead.take(row)
        aheads.append(ahead)
        assert sum(each.waiting_bytes for each in aheads) <= 16384


def shards(folder: Path, names: list[list[str]], elements: int = 256) -> list[Source]:
    found = []
    for number, mine in enumerate(names):
        path = folder / f"model-{number}.safetensors"
        ours.save_file({name: torch.full((elements,), float(number * 1000 + place)) for place, name in enumerate(mine)}, path)
        found.append(Source(str(path)))
    return found


@pytest.mark.usefixtures("small_batches")
def test_shards_are_read_ahead_in_the_order_of_their_names(tmp_path: Path, device: Any) -> None:
    names = [[f"layers.{each}" for each in range(40)], [f"layers.{each}" for each in range(40, 80)], ["head", *(f"layers.{each}" for each in range(80, 90))]]
    sequence = Sequence(device)
    files = [Ahead(source, device, sequence=sequence) for source in shards(tmp_path, names)]
    where = {name: (file, file.source.row(name)) for file in files for name in file.source.header.names}
    waiting_at_a_seam = []
    for name in sorted(where, key=natural):
        file, row = where[name]
        waiting_at_a_seam += [sequence.waiting_bytes] if name in ("layers.40", "layers.80") else []
        number = files.index(file)
        assert file.take(row)[0] == number * 1000 + names[number].index(name)
        assert sequence.waiting_bytes <= 16384
    assert min(waiting_at_a_seam) > 0  # the next file was begun before this one ended
    assert sequence.waiting_bytes == 0


@pytest.mark.usefixtures("small_batches")
def test_a_file_that_is_gone_waits_for_nothing(tmp_path: Path) -> None:
    sequence = Sequence(CPU)
    first, second = (Ahead(source, CPU, sequence=sequence) for source in shards(tmp_path, [[f"a{each:03}" for each in range(8)], [f"b{each:03}" for each in range(50)]]))
    for row in range(6):
        first.take(row)
    assert second.waiting_bytes > 0
    gone = weakref.ref(second)
    del second
    assert gone() is None and sequence.has_lost
    for row in range(6, 8):
        assert first.take(row)[0] == row
    assert sequence.waiting_bytes == 0


@pytest.mark.usefixtures("small_batches")
def test_a_file_that_was_gone_at_first_has_no_place_in_the_order_of_names(tmp_path: Path) -> None:
    sequence = Sequence(CPU)
    first, second = (Ahead(source, CPU, sequence=sequence) for source in shards(tmp_path, [["b1", "b2", "b3"], ["a"]]))
    del second
    for row in range(3):
        assert first.take(row)[0] == row


def test_names_with_odd_numbers_have_an_order() -> None:
    long = "9" * 5000  # more digits than int() takes
    names = ["a\N{SUPERSCRIPT TWO}", "layers.10", "layers.010", "layers.2", long, "5", "\N{SUPERSCRIPT TWO}"]
    assert sorted(names, key=natural) == ["5", "a\N{SUPERSCRIPT TWO}", "layers.2", "layers.10", "layers.010", "\N{SUPERSCRIPT TWO}", long]


@pytest.mark.usefixtures("small_batches")
def test_a_file_that_has_ended_is_not_read_ahead(tmp_path: Path) -> None:
    sequence = Sequence(CPU)
    first, second = (Ahead(source, CPU, sequence=sequence) for source in shards(tmp_path, [[f"a{each:03}" for each in range(8)], [f"b{each:03}" for each in range(50)]]))
    second.end()
    for row in range(8):
        first.take(row)
        assert second.waiting_bytes == 0


def test_a_tensor_that_is_cut_off_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours.save_file({f"t{each:03}": torch.full((1024,), float(each)) for each in range(64)}, tmp_path / "model.safetensors")
    source = Source(str(tmp_path / "model.safetensors"))
    with open(tmp_path / "model.safetensors", "r+b") as file:
        file.truncate(source.header.offsets[40] + 100)
    ahead = Ahead(source, CPU)
    for row in range(40):
        assert ahead.take(row)[7] == row
    with pytest.raises(penstock.ShortRead, match="t040"):
        ahead.take(40)
    with pytest.raises(penstock.ShortRead, match="t041"):
        ahead.take(41)


def test_nothing_is_read_ahead_where_that_is_asked_for(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SAFETENSORS_AHEAD_MIB", "0")
    source, _ = opened
    ahead = Ahead(source, CPU)
    for row in range(len(source.header)):
        ahead.take(row)
        assert ahead.waiting_bytes == 0


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this PyTorch has no elements of four bits")
def test_elements_of_four_bits_come_by_twos(tmp_path: Path, device: Any) -> None:
    tensor = torch.arange(48, dtype=torch.uint8).reshape(6, 8).view(torch.float4_e2m1fn_x2)
    ours.save_file({"a": tensor}, tmp_path / "model.safetensors")
    source = Source(str(tmp_path / "model.safetensors"))
    found = Ahead(source, device).take(0)
    assert found.dtype == tensor.dtype and found.shape == (6, 8) and torch.equal(found.cpu().view(torch.uint8), tensor.view(torch.uint8))
    source.file.close()


# --- prefetch()


def test_a_plan_is_handed_out_once(opened: Any, device: Any) -> None:
    source, tensors = opened
    with PrefetchLoader(source, device, None) as loader:
        assert len(loader) == len(tensors) and loader.names() == source.header.names
        assert torch.equal(loader.take("embed").cpu(), tensors["embed"])
        with pytest.raises(SafetensorError, match="already been delivered"):
            loader.take("embed")
        rest = dict(loader)
    assert rest.keys() == tensors.keys() - {"embed"}
    assert all(torch.equal(tensor.cpu(), tensors[name]) for name, tensor in rest.items())
    with pytest.raises(SafetensorError, match="closed"):
        loader.take("scalar")


def test_a_plan_takes_rows(opened: Any, device: Any) -> None:
    source, tensors = opened
    plan = {"embed": slice(3, 60), "layers.2.weight": slice(0, 0), "layers.3.half": slice(5, None), "scalar": None}
    with PrefetchLoader(source, device, plan) as loader:
        for name, rows in plan.items():
            expected = tensors[name] if rows is None else tensors[name][rows]
            found = loader.take(name)
            assert found.shape == expected.shape and torch.equal(found.cpu(), expected)


@pytest.mark.usefixtures("small_batches")
def test_nothing_that_is_not_in_a_plan_is_read(opened: Any) -> None:
    names = opened[0].header.names[:8]
    with PrefetchLoader(opened[0], CPU, dict.fromkeys(names)) as loader:
        assert [name for name, _ in loader] == names
        assert loader._ahead is not None and loader._ahead.waiting_bytes == 0


@pytest.mark.parametrize("plan", [{"scalar": slice(0, 1)}, {"embed": slice(0, 8, 2)}, {"embed": 3}, {"no such tensor": None}])
def test_a_plan_that_cannot_be_is_refused(opened: Any, plan: Any) -> None:
    with pytest.raises(SafetensorError):
        PrefetchLoader(opened[0], CPU, plan)


def test_safe_open_begins_a_plan(opened: Any, device: Any) -> None:
    source, tensors = opened
    with safe_open(source.name, "pt", device) as file:
        meta = file.get_tensor_meta("embed")
        assert (meta.dtype, meta.shape, meta.data_offsets[1] - meta.data_offsets[0]) == ("F32", [64, 16], 4096)
        if device.type == "cpu":
            with pytest.raises(SafetensorError, match="into a GPU"):
                file.prefetch()
            return
        with file.prefetch({"embed": slice(1, 3)}) as loader:
            assert torch.equal(loader.take("embed").cpu(), tensors["embed"][1:3])
