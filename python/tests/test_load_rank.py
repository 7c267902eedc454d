"""load_rank(): the processes of a job, each of which gets its part; what all get comes from rank 0 over pipes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.safetensors import load_rank
from penstock._tensors import ranks as _ranks
from penstock.safetensors.numpy import save_file

pytestmark = pytest.mark.usefixtures("torch_not_imported")

SHARD = {"*.up": 0, "*.down": 1, "*.wide": 1}


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    numbers = np.random.default_rng(3)
    tensors: dict[str, Any] = {"embed": numbers.standard_normal((3000, 700), "f4"), "norm": numbers.standard_normal(301).astype("f2"), "none": np.empty((0, 4))}
    for i in range(2):
        tensors[f"{i}.up"] = numbers.integers(0, 255, (12 * 50, 120), "u1")
        tensors[f"{i}.down"] = numbers.standard_normal((1200, 24), "f4")  # short rows: it comes whole, and is cut
        tensors[f"{i}.wide"] = numbers.integers(0, 255, (7, 12 * 3001), "u1")
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors", tensors


def expected_of(tensors: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    dims = {"up": 0, "down": 1, "wide": 1}
    return {
        name: np.split(tensor, world, axis=dims[name[2:]])[rank] if name[2:] in dims else tensor for name, tensor in tensors.items()
    }


def meet(name: str) -> str:
    return f"unix:@penstock-test-{os.getpid()}-{name}"


def together(world: int, load: Callable[[int], Any]) -> list[Any]:
    """Each rank on a thread: what it returned or raised."""

    def attempt(rank: int) -> Any:
        try:
            return load(rank)
        except Exception as problem:
            return problem

    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(attempt, range(world)))


def in_a_process(path: Path, rank: int, world: int, address: str, told: Any) -> None:
    import hashlib

    found = load_rank(path, "cpu", rank, world, address, SHARD, "np")
    told.put((rank, {name: (each.dtype.str, each.shape, hashlib.sha256(each.tobytes()).hexdigest()) for name, each in found.items()}))


@pytest.mark.parametrize("world", [2, 4])
def test_processes_get_their_parts(model: tuple[Path, dict[str, Any]], world: int) -> None:
    import hashlib

    path, tensors = model
    spawn = multiprocessing.get_context("spawn")
    told = spawn.Queue()
    processes = [spawn.Process(target=in_a_process, args=(path, rank, world, meet(f"processes{world}"), told)) for rank in range(world)]
    for process in processes:
        process.start()
    found = dict(told.get(timeout=100) for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    for rank in range(world):
        for name, each in expected_of(tensors, rank, world).items():
            assert found[rank][name] == (each.dtype.str, each.shape, hashlib.sha256(each.tobytes()).hexdigest()), (rank, name)


@pytest.mark.parametrize("piece", [1 << 20, 100_003])
def test_in_pieces_of_any_size(model: tuple[Path, dict[str, Any]], piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tensors = model
    monkeypatch.setattr(_ranks, "_piece_bytes", piece)
    monkeypatch.setattr(_ranks, "_most_under_way", 3)
    for rank, found in enumerate(together(3, lambda rank: load_rank(path, "cpu", rank, 3, meet(f"pieces{piece}"), SHARD, "np"))):
        for name, each in expected_of(tensors, rank, 3).items():
            assert np.array_equal(found[name], each), (rank, name)
        assert list(found) == list(penstock.safetensors.load_file(path))


def test_memory_of_a_device_and_over_tcp(model: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = model
    found = together(2, lambda rank: load_rank(path, "host:0", rank, 2, meet("device")))
    for mine in found:
        for name, each in tensors.items():
            content = bytearray(each.nbytes)
            if each.nbytes:
                penstock.copy(content, mine[name])
            assert content == each.tobytes(), name
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    for rank, mine in enumerate(together(2, lambda rank: load_rank(path, "cpu", rank, 2, [url], SHARD, "np", secret="sixteen bytes or more"))):
        assert all(np.array_equal(mine[name], each) for name, each in expected_of(tensors, rank, 2).items())


def test_one_rank_alone_needs_nobody(model: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = model
    found = load_rank(path, "cpu", 0, 1, meet("alone"), SHARD, "np")
    assert all(np.array_equal(found[name], each) for name, each in tensors.items())


def test_ranks_that_load_something_else_are_told(model: tuple[Path, dict[str, Any]]) -> None:
    path, _ = model
    for others in (
        [SHARD, {**SHARD, "embed": 0}],
        [{"1.up": None, **SHARD}, {"0.up": None, **SHARD}],  # as many bytes for everyone, of another tensor
        [{"0.wide": 1}, {"0.up": 0, "0.wide": 1}],
        [{"0.up": 0}, {"0.up": 1}],  # the same for everyone, and parts that do not belong together
    ):
        for each in together(2, lambda rank: load_rank(path, "cpu", rank, 2, meet("other"), others[rank], "np")):
            assert isinstance(each, penstock.InvalidArgument) and "ranks 0 and 1 do not load the same" in str(each)


def test_ranks_of_which_one_cannot_cut_in_memory_are_told(tmp_path: Path) -> None:
    path = tmp_path / "many.safetensors"
    rows = np.arange(80_000, dtype="f4").reshape(20_000, 4)  # so many short runs that NumPy's come whole, and are cut
    save_file({"a": rows}, path)
    places = [("cpu", "np"), ("host:0", None)]
    for each in together(2, lambda rank: load_rank(path, places[rank][0], rank, 2, meet("places"), {"*": 1}, places[rank][1])):
        assert isinstance(each, penstock.InvalidArgument) and "ranks 0 and 1 do not load the same" in str(each)
    for rank, mine in enumerate(together(2, lambda rank: load_rank(path, "cpu", rank, 2, meet("places"), {"*": 1}, "np"))):
        assert np.array_equal(mine["a"], np.split(rows, 2, axis=1)[rank])


def test_ranks_that_have_only_parts_are_compared_too(tmp_path: Path) -> None:
    path = tmp_path / "parts.safetensors"
    save_file({"a": np.arange(12), "b": np.arange(8)}, path)
    for rank, mine in enumerate(together(2, lambda rank: load_rank(path, "cpu", rank, 2, meet("parts"), {"*": 0}, "np"))):
        assert np.array_equal(mine["a"], np.split(np.arange(12), 2)[rank]) and np.array_equal(mine["b"], np.split(np.arange(8), 2)[rank])
    for each in together(2, lambda rank: load_rank(path, "cpu", rank, 2, meet("parts"), {"*": 0}, "np", names=["ab"[rank]])):
        assert isinstance(each, penstock.InvalidArgument) and "ranks 0 and 1 do not load the same" in str(each)


def test_an_interrupted_rank_waits_for_the_end_of_all_that_it_began(model: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = model
    monkeypatch.setattr(_ranks, "_piece_bytes", 1 << 20)
    monkeypatch.setattr(_ranks, "_most_under_way", 3)
    begin, begun = _ranks._Chain._begin, []

    class Interrupted:
        """A receive; a signal interrupts who waits for it."""

        def __init__(self, future: Any) -> None:
            self.future = future
            self.has_ended = False
            begun.append(self)

        def result(self) -> Any:
            raise KeyboardInterrupt

        def cancel(self) -> None:
            self.future.cancel()

        def exception(self) -> None:
            self.future.exception()
            self.has_ended = True

    monkeypatch.setattr(_ranks._Chain, "_begin", lambda self, piece: Interrupted(begin(self, piece)) if self.rank == 1 else begin(self, piece))

    def load(rank: int) -> Any:
        try:
            return load_rank(path, "cpu", rank, 2, meet("interrupted"), None, "np")
        except KeyboardInterrupt:
            return [each.has_ended for each in begun]

    first, second = together(2, load)
    assert second == [True] * 3
    assert isinstance(first, penstock.Closed) and "rank 0: rank 1 failed: KeyboardInterrupt" in str(first)


def test_a_rank_that_does_not_come_is_named(model: tuple[Path, dict[str, Any]]) -> None:
    path, _ = model
    with pytest.raises(penstock.TimedOut, match=r"rank 0: receiving from rank 1: .*"):
        load_rank(path, "cpu", 0, 2, meet("nobody"), timeout=0.05)
    with pytest.raises(penstock.TimedOut, match=r"rank 1: rank 0 did not connect to unix:@.*nobody\.0 within 0.05 s"):
        load_rank(path, "cpu", 1, 2, meet("nobody"), timeout=0.05)


def test_a_rank_that_fails_ends_the_others(model: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = model
    monkeypatch.setattr(_ranks, "_piece_bytes", 1 << 20)
    monkeypatch.setattr(_ranks, "_most_under_way", 3)  # so that rank 0 cannot be done before
    hand_on = _ranks._Chain._hand_on
    seen = []

    def fails(self: Any, *args: Any) -> None:
        if self.rank == 1:
            seen.append(1)
            if len(seen) == 4:
                raise RuntimeError("of the test")
        hand_on(self, *args)

    monkeypatch.setattr(_ranks._Chain, "_hand_on", fails)
    found = together(3, lambda rank: load_rank(path, "cpu", rank, 3, meet("fails"), None, "np"))
    assert isinstance(found[1], RuntimeError)
    for rank in (0, 2):
        assert isinstance(found[rank], penstock.Closed) and str(found[rank]) == f"rank {rank}: rank 1 failed: RuntimeError: of the test"


@pytest.mark.parametrize("failing", range(4))
def test_a_rank_that_fails_at_once_tells_all_others_why(model: tuple[Path, dict[str, Any]], failing: int) -> None:
    path, _ = model
    began = time.monotonic()
    found = together(4, lambda rank: load_rank(path if rank != failing else "/nowhere/model.safetensors", "cpu", rank, 4, meet(f"early{failing}"), None, "np"))
    assert time.monotonic() - began < 60  # and not the 300 s that a rank waits for another
    assert isinstance(found[failing], penstock.NotFound)
    for rank in set(range(4)) - {failing}:
        assert isinstance(found[rank], penstock.Closed) and f"rank {rank}: rank {failing} failed: NotFound: " in str(found[rank]), found[rank]
        assert "/nowhere/model.safetensors" in str(found[rank])
        pickle.loads(pickle.dumps(found[rank]))


def test_a_rank_with_another_secret_ends_and_the_other_says_that_one_came(model: tuple[Path, dict[str, Any]]) -> None:
    path, _ = model
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    secrets = ["sixteen bytes or more", "of somebody else entirely"]
    first, second = together(2, lambda rank: load_rank(path, "cpu", rank, 2, [url], SHARD, "np", secret=secrets[rank], timeout=2))
    assert isinstance(second, penstock.PermissionDenied) and f"{url} does not accept the secret" in str(second)
    assert isinstance(first, penstock.TimedOut) and f"(connections to {url} with the wrong secret: 1)" in str(first)


def test_a_rank_that_waits_says_for_whom(model: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    path, _ = model
    monkeypatch.setattr(_ranks, "_silent", 0.01)
    for rank in range(2):
        with pytest.raises(penstock.TimedOut):
            load_rank(path, "cpu", rank, 2, meet("waits"), timeout=0.2)
    told = [record.getMessage() for record in caplog.records if record.name == "penstock"]
    assert "load_rank: rank 0 is waiting for rank 1" in told
    assert any(each.startswith("load_rank: rank 1 is waiting for rank 0 to listen at unix:@") for each in told)


def test_what_makes_no_sense_is_refused(model: tuple[Path, dict[str, Any]]) -> None:
    path, _ = model
    with pytest.raises(penstock.InvalidArgument, match="rank is 2, but world is 2"):
        load_rank(path, "cpu", 2, 2, "unix:@x")
    with pytest.raises(penstock.InvalidArgument, match="a single URL must be unix:@name"):
        load_rank(path, "cpu", 0, 2, "tcp://127.0.0.1:9")
    with pytest.raises(penstock.InvalidArgument, match="address has 1 URLs for 3 ranks"):
        load_rank(path, "cpu", 0, 3, ["unix:@x"])
    with pytest.raises(penstock.InvalidArgument, match="the 301 rows of dimension 0 cannot be divided evenly among 2 ranks"):
        load_rank(path, "cpu", 0, 2, "unix:@x", {"norm": 0}, "np", timeout=0.01)
