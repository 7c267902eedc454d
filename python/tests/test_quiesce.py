"""penstock.quiesce(): what is left in the process, for each way of using Penstock; what it refuses; and CRIU, where it works."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import _native, pipe
from penstock._core.saving import save_in_background
from penstock.safetensors.numpy import save_file
from penstock.weights import _daemon

from . import quiesced_states
from .range_server import Gate, serving

SCRIPT = quiesced_states.__file__
ROUNDS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, pattern: Callable[[int], bytes]) -> Path:
    made = tmp_path_factory.mktemp("quiesce")
    (made / "data").write_bytes(pattern(quiesced_states.NBYTES))
    return made


def start(*arguments: object, **how: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # the CUDA driver keeps a thread and a socket
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **how)


@pytest.mark.parametrize("state", quiesced_states.STATES)
def test_nothing_is_left_that_cannot_be_frozen_and_the_bytes_are_equal_afterwards(folder: Path, state: str) -> None:
    with serving(folder) as (url, _):
        child = start(state, folder, ROUNDS, f"{url}/data")
        out, errors = child.communicate(timeout=100)
    assert out == "done\n", errors


@contextlib.contextmanager
def listening(folder: Path) -> Iterator[object]:
    with pipe.listen(f"unix:{folder}/door") as listener:
        yield listener


@contextlib.contextmanager
def connected(folder: Path) -> Iterator[object]:
    with pipe.listen(f"unix:{folder}/door") as listener, pipe.connect(listener.url) as near, listener.accept().result():
        listener.close()
        yield near


@contextlib.contextmanager
def serving_weights(folder: Path) -> Iterator[object]:
    with penstock.serve_weights({"w": np.arange(10)}, f"unix:{folder}/door") as server:
        yield server


@contextlib.contextmanager
def holding_weights(folder: Path) -> Iterator[object]:
    save_file({"w": np.arange(10)}, folder / "model.safetensors")
    with _daemon.serve(str(folder / "model.safetensors"), "host:0", f"unix:{folder}/held"):
        yield None


@contextlib.contextmanager
def attached(folder: Path) -> Iterator[object]:
    with holding_weights(folder), penstock.attach_weights(f"unix:{folder}/held") as found:
        yield found


@contextlib.contextmanager
def mapped_memory(_: Path) -> Iterator[object]:
    memory = penstock.device("host:0").empty(10_000)
    handle, offset, length, descriptor = _native.share_memory(memory)
    mapped = _native.open_shared_memory("host:0", handle, offset, length, descriptor, os.getpid())
    os.close(descriptor)
    yield mapped
    del mapped


NAMED = [
    (listening, "close the listener at unix:.*/door first"),
    (connected, "close the pipe from .*, the pipe to unix:.*/door first"),
    (serving_weights, "close the listener at unix:.*/door first"),
    (holding_weights, "close the weights server at unix:.*/held first"),
    (attached, "the connection to the weights server at unix:.*/held"),
    (mapped_memory, r"close the device memory of another process \(1 in use\) first"),
]


@pytest.mark.parametrize(("opened", "name"), NAMED)
def test_what_cannot_be_frozen_is_named_until_it_is_closed(tmp_path: Path, opened: Callable[[Path], Any], name: str) -> None:
    with opened(tmp_path), pytest.raises(penstock.Error, match=name):
        penstock.quiesce()
    penstock.quiesce()


def test_weights_that_a_process_has_attached_are_named_after_the_connection_is_closed(tmp_path: Path) -> None:
    with attached(tmp_path) as found:
        kept = dict(found.tensors)
    with pytest.raises(penstock.Error, match="close the device memory of another process"):
        penstock.quiesce()
    kept.clear()
    penstock.quiesce()


class HeldImage:
    """A file whose contents are not ready until `ready` is set."""

    def __init__(self) -> None:
        self.ready = threading.Event()

    def pieces(self) -> list[Any]:
        self.ready.wait()
        return []

    rest = pieces


def test_a_background_save_is_named_at_the_deadline_and_otherwise_completes_first(tmp_path: Path) -> None:
    image = HeldImage()
    saved = save_in_background(str(tmp_path / "saved"), image)
    with pytest.raises(penstock.TimedOut, match=f"the save of {tmp_path}/saved is still in progress"):
        penstock.quiesce(timeout=0.001)
    threading.Timer(0, image.ready.set).start()
    penstock.quiesce()
    assert (tmp_path / "saved").exists()
    saved.result()


def test_a_request_that_does_not_end_is_named(folder: Path) -> None:
    gate = Gate()
    with serving(folder, gate) as (url, _), penstock.open(f"{url}/data") as file:
        future = file.pread(bytearray(1000), 5)
        gate.reached.wait()
        with pytest.raises(penstock.TimedOut, match=f"still in flight: read 1000 at 5 of {url}/data"):
            penstock.quiesce(timeout=0.001)
        gate.open()
        assert future.result() == 1000
        penstock.quiesce()


def test_calls_on_other_threads_wait_or_complete(folder: Path) -> None:
    child = start("--threads", folder, ROUNDS)
    out, errors = child.communicate(timeout=100)
    assert out == "done\n", errors


@pytest.mark.parametrize("timeout", [-1.0, 0])
def test_a_deadline_in_the_past_is_enough_for_an_idle_process(timeout: float) -> None:
    penstock.quiesce(timeout)


def why_no_criu() -> str:
    if shutil.which("criu") is None:
        return "criu is not installed"
    checked = subprocess.run(["criu", "check"], capture_output=True, text=True)
    return "" if checked.returncode == 0 else f"criu check: {checked.stderr.strip().splitlines()[-1]}"


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Path]:
    if why := why_no_criu():
        pytest.skip(why)
    yield tmp_path


@pytest.mark.parametrize("state", ["file", "cached", "rings", "pinned", "stream", "futures", "read ahead", "store"])
def test_criu_dumps_and_restores_a_process(folder: Path, images: Path, state: str) -> None:
    with open(images / "out", "w") as out:
        child = subprocess.Popen([sys.executable, SCRIPT, "--freeze", state, folder, "1"], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        stopped = os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert stopped is not None and stopped.si_code == os.CLD_STOPPED
    how = ["--images-dir", images, "--shell-job", "--file-locks", "-v1"]
    subprocess.run(["criu", "dump", "--tree", str(child.pid), *how], check=True)
    assert child.wait() == -signal.SIGKILL
    subprocess.run(["criu", "restore", "--restore-detached", *how], check=True)
    ended = os.pidfd_open(child.pid)
    os.kill(child.pid, signal.SIGCONT)
    select.select([ended], [], [])
    os.close(ended)
    assert (images / "out").read_text() == "quiesced\ndone\n"
