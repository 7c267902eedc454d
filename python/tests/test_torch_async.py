"""penstock.torch.save_async(): what is saved is what there was at the call, and what goes wrong comes out of the future."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import penstock.torch  # noqa: E402

from .torch_states import assert_same, module_and_optimizer, state  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.pt"


class Held:
    """A callback for progress that holds up the thread that saves until it is let go."""

    def __init__(self) -> None:
        self.reached, self._let_go = threading.Event(), threading.Event()

    def __call__(self, done: int, total: int) -> None:
        self.reached.set()
        self._let_go.wait()

    def let_go(self) -> None:
        self._let_go.set()


def zero(obj: Any) -> None:
    """All tensors in it."""
    if isinstance(obj, torch.Tensor):
        obj.detach().zero_()
    for each in obj.values() if isinstance(obj, dict) else obj if isinstance(obj, (list, tuple)) else ():
        zero(each)


@pytest.mark.parametrize("snapshot", ["auto", "device", "host"])
def test_what_is_changed_after_the_call_does_not_change_the_file(path: Path, snapshot: str) -> None:
    for make in (state, module_and_optimizer):
        torch.manual_seed(1)
        wanted = make()
        torch.manual_seed(1)
        changed = make()
        changed.pop("generator", None), wanted.pop("generator", None)
        future = penstock.torch.save_async(changed, path, snapshot)
        zero(changed)
        assert future.result() is None and future.done() and not future.cancelled()
        assert_same(torch.load(path), wanted)
        assert future.progress[0] == future.progress[1] > 0


def test_an_unknown_snapshot_and_what_is_no_path_are_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="snapshot must be 'auto', 'device' or 'host', not 'disk'"):
        penstock.torch.save_async(torch.ones(1), path, "disk")
    with pytest.raises(ValueError, match="not the path of a regular file"):
        penstock.torch.save_async(torch.ones(1), "/dev/null")
    assert not path.exists()


def test_what_cannot_be_pickled_is_told_at_once(path: Path) -> None:
    with pytest.raises((AttributeError, TypeError)):
        penstock.torch.save_async([torch.ones(1), lambda: None, threading.Lock()], path)
    assert os.listdir(path.parent) == []


def test_errors_come_out_of_the_future(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "state.pt"
    future = penstock.torch.save_async(torch.ones(3), path)
    with pytest.raises(penstock.NotFound, match=str(path)):
        future.result()
    assert isinstance(future.exception(), FileNotFoundError) and future.done() and not future.cancel()


def test_an_error_that_nobody_asks_for_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()
    future = penstock.torch.save_async(torch.ones(3), tmp_path / "missing" / "state.pt")
    future.add_done_callback(lambda _: ended.set())
    thread = next(each for each in threading.enumerate() if each.name == "penstock-save") if not future.done() else None
    del future
    ended.wait()
    if thread is not None:
        thread.join()
    gc.collect()
    assert [each.levelno for each in caplog.records] == [logging.ERROR]
    assert "missing/state.pt" in caplog.text and "its result was never read" in caplog.text


def test_a_future_that_is_dropped_does_not_end_its_save(path: Path) -> None:
    penstock.torch.save(1, path)
    held = Held()
    penstock.torch.save_async(torch.arange(4), path, progress=held)
    gc.collect()
    held.reached.wait()
    assert torch.load(path) == 1
    held.let_go()
    penstock.torch.save_async(torch.arange(5), path).result()  # which begins after it
    assert torch.load(path).tolist() == [0, 1, 2, 3, 4]


def test_cancel_leaves_the_old_file(path: Path) -> None:
    penstock.torch.save(1, path)
    before, held = path.read_bytes(), Held()
    future = penstock.torch.save_async(torch.arange(100), path, progress=held)
    held.reached.wait()
    assert future.running() and not future.done() and future.cancel()
    held.let_go()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()
    assert future.cancelled() and not future.cancel() and not future.running()
    assert path.read_bytes() == before and os.listdir(path.parent) == ["state.pt"]


def test_cancel_after_the_end_comes_too_late(path: Path) -> None:
    future = penstock.torch.save_async(torch.arange(3), path)
    future.result()
    assert not future.cancel() and not future.cancelled()


def test_of_several_saves_to_one_path_the_last_wins(path: Path) -> None:
    held = Held()
    first = penstock.torch.save_async(torch.tensor(0), path, progress=held)
    held.reached.wait()
    others = [penstock.torch.save_async(torch.tensor(i), path) for i in range(1, 8)]
    assert not any(each.done() for each in others)
    held.let_go()
    assert concurrent.futures.wait([first, *others]).not_done == set()
    assert all(each.exception() is None for each in (first, *others))
    assert int(torch.load(path)) == 7 and os.listdir(path.parent) == ["state.pt"]


def test_cancel_of_one_that_waits_for_another_ends_it_at_once(path: Path) -> None:
    held = Held()
    first = penstock.torch.save_async(torch.tensor(1), path, progress=held)
    held.reached.wait()
    second, third = (penstock.torch.save_async(torch.tensor(i), path) for i in (2, 3))
    assert second.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        second.result()
    assert not first.done() and not third.done()  # the third still comes after the first
    held.let_go()
    assert first.result() is None and third.result() is None and int(torch.load(path)) == 3


def test_what_fails_does_not_hold_up_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    held = Held()
    first = penstock.torch.save_async(torch.tensor(0), folder / "state.pt", progress=held)
    assert isinstance(first.exception(), FileNotFoundError)
    folder.mkdir()
    penstock.torch.save_async(torch.tensor(1), folder / "state.pt").result()
    assert int(torch.load(folder / "state.pt")) == 1


def test_a_callback_that_raises_ends_the_save_with_its_error(path: Path) -> None:
    def fails(done: int, total: int) -> None:
        raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        penstock.torch.save_async(torch.ones(3), path, progress=fails).result()
    assert os.listdir(path.parent) == []


def test_a_future_can_be_awaited_and_waited_for(path: Path) -> None:
    async def save() -> None:
        await penstock.torch.save_async(torch.arange(3), path)

    asyncio.run(save())
    assert torch.load(path).tolist() == [0, 1, 2]
    futures = [penstock.torch.save_async(torch.tensor(i), path.with_name(str(i))) for i in range(3)]
    assert {each.path for each in concurrent.futures.as_completed(futures)} == {str(path.with_name(str(i))) for i in range(3)}


@pytest.mark.parametrize("snapshot", ["auto", "device", "host"])
def test_tensor_files_are_saved_in_the_background_too(path: Path, snapshot: str) -> None:
    from penstock.safetensors.torch import load_file, save_file, save_file_async

    base = torch.arange(1_000, dtype=torch.float32)
    tensors = {"part": base[17:400], "empty": torch.empty(0, 3), "half": torch.randn(7, 5).half(), "scalar": torch.tensor(3)}
    save_file(tensors, path, {"format": "pt"})
    wanted = path.read_bytes()
    path.unlink()
    future = save_file_async(tensors, path, {"format": "pt"}, snapshot)
    zero(tensors)
    assert future.result() is None and path.read_bytes() == wanted
    assert load_file(path)["part"].tolist() == list(range(17, 400))
    with pytest.raises(RuntimeError, match="share memory"):
        save_file_async({"a": base, "b": base}, path)
    with pytest.raises(ValueError, match="snapshot must be"):
        save_file_async({"a": base}, path, None, "disk")
    with pytest.raises(penstock.NotFound, match="missing"):
        save_file_async({"a": base}, path.parent / "missing" / "file").result()
    assert path.read_bytes() == wanted and os.listdir(path.parent) == [path.name]


def test_the_end_of_the_interpreter_waits(path: Path) -> None:
    program = f"import torch, penstock.torch; penstock.torch.save_async(torch.arange(5_000_000), {str(path)!r})"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert torch.equal(torch.load(path), torch.arange(5_000_000))


def test_the_end_of_the_interpreter_tells_of_an_error(path: Path) -> None:
    program = f"import torch, penstock.torch; penstock.torch.save_async(torch.ones(3), {str(path / 'x')!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "its result was never read" in done.stderr and str(path) in done.stderr


def test_the_example_trains_saves_and_goes_on(tmp_path: Path) -> None:
    program = Path(__file__).parents[2] / "examples/python/async_checkpoint.py"
    if not program.is_file():
        pytest.skip("the examples are not beside the tests")
    said = []
    for _ in range(2):
        done = subprocess.run([sys.executable, str(program), str(tmp_path), "--steps", "20"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert "starting anew" in said[0] and "step 20: " in said[0] and "saved " in said[0]
    assert "going on from step 20" in said[1] and "step 40: " in said[1]
    assert torch.load(tmp_path / "checkpoint.pt")["step"] == 40


@needs_gpu
@pytest.mark.parametrize("snapshot", ["auto", "device", "host"])
def test_a_gpu_goes_on_while_its_tensors_are_saved(path: Path, snapshot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock._core.torch_storages._BLOCK_BYTES", 1 << 20)
    tensors = {f"layer {i}": torch.empty(700_001, dtype=torch.uint8, device="cuda") for i in range(5)}
    for number in range(3):
        torch.cuda._sleep(50_000_000)
        for i, each in enumerate(tensors.values()):
            each.fill_(number * 10 + i)  # queued, not done
        future = penstock.torch.save_async(tensors, path, snapshot)
        for each in tensors.values():
            each.fill_(200)
        future.result()
        for i, each in enumerate(torch.load(path, "cpu").values()):
            assert bool((each == number * 10 + i).all())


@needs_gpu
@pytest.mark.parametrize("snapshot", ["device", "host"])
def test_tensor_files_of_a_gpu_are_what_there_was(path: Path, snapshot: str) -> None:
    from penstock.safetensors.torch import load_file, save_file_async

    whole = torch.empty(900_001, dtype=torch.uint8, device="cuda")
    for number in range(3):
        torch.cuda._sleep(50_000_000)
        whole.fill_(number)
        future = save_file_async({"part": whole[5:800_000], "all": whole[800_000:]}, path, None, snapshot)
        whole.fill_(200)
        future.result()
        assert all(bool((each == number).all()) for each in load_file(path).values())


@needs_gpu
def test_a_gpu_without_room_is_copied_to_pinned_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (0, 1 << 40))
    tensor = torch.arange(1_000_000, device="cuda")
    gc.collect()
    before = torch.cuda.memory_allocated()
    plan = penstock._core.torch_storages.snapshot_of([tensor.untyped_storage()], "auto")
    assert torch.cuda.memory_allocated() == before and plan.contents[0][0].device.type == "cpu"
    future = penstock.torch.save_async(tensor, path)
    tensor.zero_()
    future.result()
    assert torch.equal(torch.load(path, "cpu"), torch.arange(1_000_000))
