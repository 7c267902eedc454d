"""`penstock serve`, which holds a model's weights, and processes that attach to it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import pathlib
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._core.arrays import library_named
from penstock._core.file_facts import mount_of
from penstock._holding import engine_weights, held_weights, listing, source_files
from penstock._holding.listing import default_address, door_of
from penstock._tensors.frameworks import Framework
from penstock.safetensors import load_file, save_file
from penstock.weights import _attach, _attach_door, _daemon, _held_model, attach_weights, load_weights

from . import range_server

DEVICES = ["host", "host:0"]  # memory that is mapped from a descriptor, and memory of a device


def tensors() -> dict[str, np.ndarray[Any, Any]]:
    numbers = np.random.default_rng(1)
    return {
        "wide": numbers.random((300, 2000)).astype("f4"),
        "norm": numbers.random(63).astype("f2"),
        "count": np.array(7),
        "none": np.zeros((0, 5), "f4"),
        "flags": numbers.random((3, 4, 5)) < 0.5,
    }


@pytest.fixture
def model(tmp_path: pathlib.Path) -> str:
    """A folder with two files and their index."""
    folder = tmp_path / "model"
    folder.mkdir()
    names = list(tensors())
    files = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    for file, mine in files.items():
        save_file({name: tensors()[name] for name in mine}, folder / file)
    index = {"weight_map": {name: file for file, mine in files.items() for name in mine}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)


def address() -> str:
    return f"unix:@penstock-test-{os.getpid()}-{os.urandom(4).hex()}"


class Server:
    """A process of `penstock serve`."""

    def __init__(self, model: str, device: str, *arguments: str, at: str | None = None) -> None:
        self.address = at or address()
        where = ["--host"] if device == "host" else ["--device", device]
        command = [sys.executable, "-m", "penstock", "serve", model, *where, "--address", self.address, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()

    def end(self, by: int) -> tuple[int, str]:
        self.process.send_signal(by)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@contextlib.contextmanager
def served(model: str, device: str, *arguments: str, at: str | None = None) -> Iterator[Server]:
    server = Server(model, device, *arguments, at=at)
    try:
        yield server
    finally:
        server.end(signal.SIGKILL)


def same(found: dict[str, Any], expected: dict[str, np.ndarray[Any, Any]]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert tuple(found[name].shape) == value.shape and np.array_equal(np.asarray(found[name]), value), name


@pytest.mark.parametrize("device", DEVICES)
def test_readers_use_the_weights_in_place_or_copy_them(model: str, device: str) -> None:
    with served(model, device) as server:
        assert f"on {device} at {server.address}: 5 tensors, 0.00 GB" in server.line
        with attach_weights(server.address, framework="np") as attached, attach_weights(server.address, framework="np") as other:
            same(attached.tensors, tensors())
            attached.check()
            assert attached.connected and "5 tensors" in repr(attached)
            own = attach_weights(server.address, framework="np", names=["wide", "flags"], copy=True)
            own.tensors["wide"][:] = 0
            assert not own.connected
            same(other.tensors, tensors())
        assert not attached.connected and not attached.tensors
        loaded = load_weights(server.address, {name: np.ones_like(value) for name, value in tensors().items()})
        assert loaded.missing_keys == loaded.unexpected_keys == []
        same(load_weights(server.address, device="cpu", framework="np").tensors, tensors())
        assert server.end(signal.SIGTERM) == (0, "")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("copy", [False, True])
def test_tensors_are_pytorchs(tmp_path: pathlib.Path, device: str, copy: bool) -> None:
    torch = pytest.importorskip("torch")
    made = {"a": torch.arange(1000).to(torch.bfloat16), "b": torch.ones(3, 5), "c": torch.zeros(0, 2)}
    save_file(made, tmp_path / "model.safetensors")
    at = address()
    with _daemon.serve(str(tmp_path), device, at), attach_weights(at, framework="pt", copy=copy) as attached:
        assert all(torch.equal(attached.tensors[name], value) for name, value in made.items())
        module = {name: torch.full_like(value, 9) for name, value in made.items()}
        load_weights(at, module)
        assert all(torch.equal(module[name], value) for name, value in made.items())


def test_memory_of_a_device_is_shared_and_not_copied(model: str) -> None:
    at = address()
    with _daemon.serve(model, "host:0", at):
        with attach_weights(at, framework="np") as one, attach_weights(at, framework="np") as other:
            one.tensors["wide"][0, 0] = 5  # which the guide forbids
            assert other.tensors["wide"][0, 0] == 5


def test_a_reader_cannot_change_host_memory_for_others(model: str) -> None:
    at = address()
    with _daemon.serve(model, "host", at), attach_weights(at, framework="np") as one, attach_weights(at, framework="np") as other:
        one.tensors["wide"][:] = 5
        same(other.tensors, tensors())
        file = one._held._file
        assert file is not None
        with pytest.raises(PermissionError):
            mmap.mmap(file.fileno(), 4096)
        writable = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR)
        try:
            for change in (lambda: os.pwrite(writable, b"x", 0), lambda: os.ftruncate(writable, 0), lambda: mmap.mmap(writable, 4096)):
                with pytest.raises(PermissionError):
                    change()
        finally:
            os.close(writable)


@pytest.mark.parametrize("device", DEVICES)
def test_readers_hear_that_the_server_was_killed(model: str, device: str) -> None:
    with served(model, device) as server, attach_weights(server.address, framework="np") as attached:
        copy = attach_weights(server.address, framework="np", copy=True)
        server.end(signal.SIGKILL)
        assert not attached.connected
        if device == "host":  # this memory lives as long as a mapping
            attached.check()
            same(attached.tensors, tensors())
        else:
            with pytest.raises(penstock.Closed, match="the server has ended, so its weights on host:0 are no longer valid"):
                attached.check()
        copy.check()
        same(copy.tensors, tensors())
        with pytest.raises(penstock.NotFound, match="start penstock serve"):
            attach_weights(server.address)


def test_a_copy_of_a_killed_servers_memory_is_refused(model: str) -> None:
    with served(model, "host:0") as server, held_weights.HeldWeights(server.address, 10) as held:
        server.end(signal.SIGKILL)
        with pytest.raises(penstock.Closed):
            held.copied(held.listing.tensors, Framework(library_named("numpy"), "host"))


READER = """
import sys, penstock
with penstock.attach_weights(sys.argv[1], framework="np") as attached:
    print(float(attached.tensors["wide"].sum()), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("device", DEVICES)
def test_a_killed_reader_frees_its_place_and_nothing_else(model: str, device: str) -> None:
    with served(model, device, "--readers", "1") as server:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        for _ in range(3):
            with subprocess.Popen([sys.executable, "-c", READER, server.address], **pipes) as reader:
                assert float(reader.stdout.readline()) == pytest.approx(float(tensors()["wide"].sum()))
                with pytest.raises(penstock.Error, match="already has 1 readers, the limit set by --readers") as problem:
                    attach_weights(server.address)
                assert problem.value.code == "would_block"
                reader.kill()
        with attach_weights(server.address, framework="np") as attached:
            same(attached.tensors, tensors())


def test_a_stopped_server_is_not_believed(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_weights, "_most_silence", 0.01)
    with served(model, "host:0") as server, attach_weights(server.address, framework="np") as attached:
        server.process.send_signal(signal.SIGSTOP)
        os.waitpid(server.process.pid, os.WUNTRACED)
        for _ in range(2):
            with pytest.raises(penstock.Closed):
                attached.check()
            server.process.send_signal(signal.SIGCONT)  # its late answer counts for nothing


def test_threads_ask_in_turn(model: str) -> None:
    at = address()
    with _daemon.serve(model, "host:0", at), attach_weights(at, framework="np") as attached:
        threads = [threading.Thread(target=lambda: [attached.check() for _ in range(100)]) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert attached.connected


def test_a_reader_that_sends_something_else_is_disconnected(model: str) -> None:
    at = address()
    with _daemon.serve(model, "host", at), held_weights.HeldWeights(at, 10) as held:
        held._socket.send(b"x" * 1000)
        select.select([held._socket], [], [], 10)
        assert not held.connected


# --- strangers


def test_processes_of_other_users_are_refused(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at = address()
    with _daemon.serve(model, "host", at):
        with monkeypatch.context() as patch:
            patch.setattr(held_weights, "process_and_user", lambda connection: (1, os.geteuid() + 1))
            with pytest.raises(penstock.PermissionDenied, match="the server is a process of user"):
                attach_weights(at)
        monkeypatch.setattr(_attach_door, "process_and_user", lambda connection: (1, os.geteuid() + 1))
        with pytest.raises(penstock.PermissionDenied, match="belongs to a different user"):
            attach_weights(at)


def sealed_at(content: bytes) -> list[int]:
    return [listing.sealed_memory(content)]


def unsealed() -> list[int]:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    return [descriptor]


def rows(*given: Any, nbytes: Any = 256, files: Any = (None,)) -> bytes:
    return json.dumps({"nbytes": nbytes, "files": files, "tensors": given}).encode()


FACTS = {"held_weights": listing.PROTOCOL, "device": "host"}
GOOD = rows(["a", "U8", [10], 0, 10, 0])


@pytest.mark.parametrize(
    ("facts", "content", "told"),
    [
        (b"", None, "the server has ended"),
        (b"{", None, "not a JSON object"),
        (b"[]", None, "not a JSON object"),
        (b"[" * 8000, None, "not a JSON object"),
        (b"\xff" * 9000, None, "not a JSON object"),
        (json.dumps({"failed": "io", "reason": "no"}).encode(), None, "no"),
        (json.dumps({**FACTS, "held_weights": 2}).encode(), GOOD, "protocol version"),
        (FACTS, None, "protocol version"),
        ({**FACTS, "listing_bytes": "x"}, GOOD, "listing_bytes"),
        ({**FACTS, "listing_bytes": 1 << 40}, GOOD, "not sealed, or has"),
        ({**FACTS, "listing_bytes": len(GOOD) + 1}, GOOD, "not sealed, or has"),
        ({**FACTS, "listing_bytes": 10}, "unsealed", "not sealed, or has"),
        (FACTS, b"[" * 100_000, "a list of tensors that is not valid"),
        (FACTS, b"{}", "a list of tensors that is not valid"),
        (FACTS, rows(["a", "U8", [10], 0]), "a list of tensors that is not valid"),
        (FACTS, rows(["a", "U8", [10], 0, 10, 0], files=[[1, 2]]), "a list of tensors that is not valid"),
        (FACTS, rows(["a", "U8", [10], 0, 10, 0], nbytes=-1), "too many tensors"),
        (FACTS, rows(["a", "U8", [10], 0, 10, 0], ["a", "U8", [10], 0, 10, 0]), "a duplicate tensor"),
        (FACTS, rows([["a"], "U8", [10], 0, 10, 0]), "a list"),
        (FACTS, rows(["a", "X8", [10], 0, 10, 0]), "an invalid tensor"),
        (FACTS, rows(["a", "U8", [1.5], 0, 10, 0]), "an invalid tensor"),
        (FACTS, rows(["a", "U8", [True], 0, 1, 0]), "an invalid tensor"),
        (FACTS, rows(["a", "U8", [1] * 40, 0, 1, 0]), "an invalid tensor"),
        (FACTS, rows(["a", "U8", [11], 0, 10, 0]), "the invalid size or place"),
        (FACTS, rows(["a", "U8", [1 << 61, 1 << 61], 0, 10, 0]), "the invalid size or place"),
        (FACTS, rows(["a", "U8", [10], 256, 10, 0]), "the invalid size or place"),
        (FACTS, rows(["a", "U8", [10], 1, 10, 0]), "the invalid size or place"),
        (FACTS, rows(["a", "U8", [10], 0, 10, 0], nbytes=255), "too many tensors"),
        (FACTS, rows(["a", "U8", [10], 0, 10, 1]), "the invalid size or place"),
        (FACTS, GOOD, "memory that is not sealed"),
        ({**FACTS, "device": "host:0"}, GOOD, "no handle"),
        ({**FACTS, "device": "host:0", "handle": 1}, GOOD, "no handle"),
        ({**FACTS, "device": "host:0", "handle": "zz"}, GOOD, "no handle"),
        ({**FACTS, "device": "cuda:0", "uuid": "GPU-1"}, GOOD, "GPU GPU-1 is not visible"),
    ],
)
def test_a_server_is_not_believed(facts: Any, content: Any, told: str) -> None:
    at = address()
    descriptors = [] if content is None else unsealed() if content == "unsealed" else sealed_at(content)
    if isinstance(facts, dict):
        facts = json.dumps({"listing_bytes": len(content or b""), **facts}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.ExitStack() as stack:
        listener.bind(door_of(at))
        listener.listen()
        for each in descriptors:
            stack.callback(os.close, each)

        def answer() -> None:
            come, _ = listener.accept()
            with come:
                if facts:
                    socket.send_fds(come, [facts], descriptors)

        thread = threading.Thread(target=answer)
        thread.start()
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(penstock.Error, match=told):
            attach_weights(at, timeout=10)
        thread.join()
        assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_a_silent_server_times_out() -> None:
    at = address()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(door_of(at))
        listener.listen()
        for timeout in (0, 0.01):
            with pytest.raises(penstock.TimedOut):
                attach_weights(at, timeout=timeout)


def test_the_server_goes_on_when_descriptors_run_out(model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_attach_door, "_pause_ms", 1)
    at = address()
    refusals = iter([errno.EMFILE, errno.ENFILE, errno.ECONNABORTED])
    real = socket.socket.accept

    class Refusing(socket.socket):
        def accept(self) -> Any:
            for number in refusals:
                raise OSError(number, os.strerror(number))
            return real(self)

    with contextlib.ExitStack() as stack:
        with monkeypatch.context() as patch:
            patch.setattr(_attach_door.socket, "socket", Refusing)
            stack.enter_context(_daemon.serve(model, "host", at))
        with attach_weights(at, framework="np") as attached:
            same(attached.tensors, tensors())
    assert caplog.text.count("cannot accept a process now") == 2


@contextlib.contextmanager
def full_queue_at(name: str) -> Iterator[socket.socket]:
    """A listener that accepts no connections and whose queue is full, like that of a stopped server."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.ExitStack() as stack:
        listener.bind(name)
        listener.listen(1)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                client.setblocking(False)
                client.connect(name)
        yield listener


def test_a_server_with_too_many_waiting_connections_times_out_and_is_not_replaced(model: str, tmp_path: pathlib.Path) -> None:
    at = f"unix:{tmp_path}/weights"
    with full_queue_at(door_of(at)):
        with pytest.raises(penstock.TimedOut):
            attach_weights(at, timeout=0.05)
        with pytest.raises(penstock.InvalidArgument, match="already serves weights there"), _daemon.serve(model, "host", at):
            pass


def test_a_reader_waits_while_too_many_others_wait(model: str) -> None:
    at = address()
    with served(model, "host", at=at) as server:
        server.process.send_signal(signal.SIGSTOP)
        os.waitpid(server.process.pid, os.WUNTRACED)
        waiting = []
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                waiting[-1].setblocking(False)
                waiting[-1].connect(door_of(at))
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.append(attach_weights(at, framework="np", copy=True).tensors))
        reader.start()
        server.process.send_signal(signal.SIGCONT)
        reader.join()
        for each in waiting:
            each.close()
        same(found[0], tensors())


@pytest.mark.parametrize("left", [1, 2])
def test_a_reader_without_free_descriptors_names_the_limit(model: str, left: int) -> None:
    at = address()
    with _daemon.serve(model, "host", at):
        attach_weights(at, framework="np").close()  # imports what it needs
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        server_needs = 1  # it runs in this process
        taken = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            for _ in range(left + server_needs):
                os.close(taken.pop())
            with pytest.raises(penstock.Error, match="this process cannot open more files: raise its limit"):
                attach_weights(at, framework="np")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for each in taken:
                os.close(each)
        with attach_weights(at, framework="np") as attached:
            same(attached.tensors, tensors())


def test_a_model_that_readers_would_reject_is_not_served(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_most_tensors", "_most_listing", "_most_dims"):
        with monkeypatch.context() as patch, pytest.raises(penstock.InvalidArgument, match="cannot serve this model"):
            patch.setattr(listing, limit, 1)
            with _daemon.serve(model, "host", address()):
                pass


def test_a_server_that_ends_keeps_the_socket_of_a_later_one(model: str, tmp_path: pathlib.Path) -> None:
    at = f"unix:{tmp_path}/weights"
    with _daemon.serve(model, "host", at):
        for name in ("weights", "weights.attach"):
            os.unlink(tmp_path / name)  # by mistake
        with served(model, "host", at=at):
            pass  # it is killed, and leaves its sockets
        later = sorted(os.listdir(tmp_path))
    assert "weights.attach" in later and "weights.attach" in os.listdir(tmp_path)


# --- arguments and files


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"address": "tcp://127.0.0.1:1"}, penstock.InvalidArgument, "must be unix:@NAME or unix:/PATH"),
        ({"address": "unix:"}, penstock.InvalidArgument, "must be unix:@NAME"),
        ({"address": "unix:relative"}, penstock.InvalidArgument, "must be unix:@NAME"),
        ({"address": "unix:@" + "x" * 101}, penstock.InvalidArgument, "longer than 100 bytes"),
        ({"address": "unix:@a\0b"}, penstock.InvalidArgument, "zero byte"),
        ({"address": 5}, TypeError, "address must be a str, not int"),
        ({"timeout": None}, TypeError, "timeout"),
        ({"timeout": -1}, penstock.InvalidArgument, "timeout"),
        ({"names": "wide"}, TypeError, "names must be"),
        ({"names": ["wdie"]}, penstock.NotFound, 'does not have "wdie"'),
        ({"framework": "tf"}, penstock.Error, "framework tf is invalid"),
        ({"device": "host", "framework": "bytes"}, penstock.InvalidArgument, "copy=True"),
        ({"address": "unix:/nowhere/at/all"}, penstock.NotFound, "no process serves weights there"),
    ],
)
def test_wrong_arguments_are_explained(model: str, arguments: dict[str, Any], error: type[Exception], told: str) -> None:
    at = address()
    with _daemon.serve(model, "host", at), pytest.raises(error, match=told):
        attach_weights(**{"address": at, **arguments})


def test_a_model_that_is_loading_says_so(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at = address()

    def load(*_: Any) -> Any:
        with pytest.raises(penstock.Error, match="still being loaded") as problem:
            attach_weights(at)
        assert problem.value.code == "would_block"
        raise penstock.Error("enough", code="io")

    monkeypatch.setattr(_daemon, "HeldModel", load)
    with pytest.raises(penstock.Error, match="enough"), _daemon.serve(model, "host", at):
        pass
    with pytest.raises(penstock.NotFound):
        attach_weights(at)


def test_what_cannot_be_served_is_explained(model: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "damaged.safetensors").write_bytes(b"damaged")
    with served(model, "host") as server:
        for arguments, told in (
            ([model, "--address", server.address], "already serves weights there: pass another --address"),
            ([str(tmp_path / "damaged.safetensors"), "--address", address()], "damaged.safetensors"),
            ([model, "--device", "cuda:77"], "cuda:77"),
            ([model, "--address", "tcp://127.0.0.1:5"], "must be unix:@NAME"),
        ):
            done = subprocess.run([sys.executable, "-m", "penstock", "serve", *arguments], capture_output=True, text=True, timeout=60)
            assert done.returncode == 1 and done.stdout == "" and told in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_an_interpreter_without_the_package_is_named(model: str, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "penstock", "serve", model, "--python"]
    done = subprocess.run([*command, "/nowhere/python"], capture_output=True, text=True)
    assert done.returncode == 127 and "/nowhere/python: No such file or directory. Pass the interpreter" in done.stderr
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')  # without packages
    (tmp_path / "python").chmod(0o755)
    done = subprocess.run([*command, str(tmp_path / "python")], capture_output=True, text=True)
    assert done.returncode == 1 and "No module named 'penstock'. Pass the interpreter" in done.stderr and "Traceback" not in done.stderr


def test_a_killed_servers_path_is_used_again(model: str, tmp_path: pathlib.Path) -> None:
    at = f"unix:{tmp_path}/weights"
    with served(model, "host", at=at) as server:
        assert os.stat(f"{tmp_path}/weights.attach").st_mode & 0o77 == 0
        server.end(signal.SIGKILL)
    with served(model, "host", at=at) as server, attach_weights(at, framework="np") as attached:
        same(attached.tensors, tensors())
        assert server.end(signal.SIGTERM)[0] == 0
    assert "weights.attach" not in os.listdir(tmp_path)


def test_a_file_that_changes_during_the_load_is_refused(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _held_model._read

    def read(layout: Any, memory: Any) -> None:
        real(layout, memory)
        os.utime(pathlib.Path(model, "model-00001-of-00002.safetensors"))

    monkeypatch.setattr(_held_model, "_read", read)
    for device in DEVICES:
        with pytest.raises(penstock.Error, match="model-00001-of-00002.safetensors changed while it was loaded"):
            _held_model.HeldModel(model, device)


def test_a_change_through_a_mapping_after_the_load_is_noticed(model: str) -> None:
    file = pathlib.Path(model, "model-00001-of-00002.safetensors")
    with open(file, "r+b") as target, mmap.mmap(target.fileno(), 0) as mapping:
        mapping[-1] ^= 1  # more writes to this page do not change the file's times
        at = address()
        with _daemon.serve(model, "host", at):
            mapping[-1] ^= 1
            if mount_of(target.fileno())[0] == "tmpfs":
                pytest.skip("tmpfs does not record changes through mappings")
            assert found_for([str(file)], at) is None


def test_a_header_that_changes_before_the_load_is_refused(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the new bytes would be served under the names of the old header."""
    file = pathlib.Path(model, "model-00001-of-00002.safetensors")

    def change(_: Any) -> None:
        content = file.read_bytes()
        with open(file, "r+b") as target:
            target.write(content.replace(b'"norm"', b'"mron"'))

    monkeypatch.setattr(_held_model, "wait_until_settled", change)
    with pytest.raises(penstock.Error, match="model-00001-of-00002.safetensors changed while it was loaded"):
        _held_model.HeldModel(model, "host")


def test_a_model_larger_than_memory_is_refused(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 10)
    with pytest.raises(penstock.OutOfMemory, match="this machine has only 100 bytes"):
        _held_model.HeldModel(model, "host")


@pytest.mark.parametrize("call", ["memfd_create", "truncate", "mmap", "seal"])
def test_memory_that_the_system_refuses_is_explained(model: str, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    module = {"mmap": _held_model.mmap, "seal": _held_model}.get(call, os)
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(module, call, refuse)
        with pytest.raises(penstock.OutOfMemory, match="bytes of shared memory for the model: Cannot allocate memory"):
            _held_model.HeldModel(model, "host")
    assert len(os.listdir("/proc/self/fd")) == before


def test_older_kernels_seal_otherwise(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_future_write", 1 << 20)  # which the kernel does not know
    held = _held_model.HeldModel(model, "host")
    assert fcntl.fcntl(held.descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
    same(held.arrays(), tensors())
    held.close()


def test_a_model_at_a_url_is_held(model: str) -> None:
    at = address()
    with range_server.serving(pathlib.Path(model)) as (url, _), _daemon.serve(f"{url}/model.safetensors.index.json", "host", at):
        with attach_weights(at, framework="np") as attached:
            same(attached.tensors, tensors())
        files = [str(each) for each in pathlib.Path(model).glob("*.safetensors")]
        assert found_for(files, at) is None  # the server's files cannot be compared with these


def test_a_model_without_bytes_is_served(tmp_path: pathlib.Path) -> None:
    save_file({"none": np.zeros((0, 3), "f4")}, tmp_path / "model.safetensors")
    for device in DEVICES:
        at = address()
        with _daemon.serve(str(tmp_path / "model.safetensors"), device, at):
            for copy in (False, True):
                with attach_weights(at, framework="np", copy=copy) as attached:
                    assert attached.tensors["none"].shape == (0, 3)


# --- loaders that look for a server


def found_for(files: list[str], at: str) -> Any:
    found = held_weights.find_held(files, "host", at)
    if found is None:
        return None
    found[0].close()
    return [each.name for each in found[1]]


def test_a_server_is_used_only_for_files_with_the_same_contents(model: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = (str(each) for each in sorted(pathlib.Path(model).glob("*.safetensors")))
    names = list(tensors())
    at = address()
    with _daemon.serve(model, "host", at):
        assert set(found_for([first, second], at)) == set(names)
        assert set(found_for([second], at)) == set(names[2:])
        assert found_for([first, str(tmp_path / "absent")], at) is None
        link = tmp_path / "link.safetensors"
        link.symlink_to(first)  # as in Hugging Face's cache
        assert set(found_for([str(link)], at)) == set(names[:2])
        copy = tmp_path / "copy.safetensors"
        copy.write_bytes(pathlib.Path(first).read_bytes())
        os.utime(copy, ns=(0, os.stat(first).st_mtime_ns))
        assert found_for([str(copy)], at) is None  # may have changed in between
        with open(first, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        os.utime(first, ns=(0, os.stat(second).st_mtime_ns))
        assert found_for([first], at) is None
        assert set(found_for([second], at)) == set(names[2:])
    assert found_for([second], at) is None
    assert found_for([second], "tcp://nowhere") is None
    assert "tcp://nowhere are not used" in caplog.text


def test_tensors_that_an_index_leaves_out_are_not_from_that_file(model: str) -> None:
    first, second = (str(each) for each in sorted(pathlib.Path(model).glob("*.safetensors")))
    index = pathlib.Path(model, "model.safetensors.index.json")
    kept = json.loads(index.read_text())
    del kept["weight_map"]["wide"]
    index.write_text(json.dumps(kept))
    at = address()
    with _daemon.serve(model, "host", at):
        assert found_for([first], at) is None and found_for([second], at) is not None


def test_default_addresses_differ_by_user_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_address("host") == f"unix:@penstock-weights-{os.geteuid()}-host"
    assert default_address("host:0") != default_address("host")
    monkeypatch.setattr(os, "geteuid", lambda: 77)
    assert "-77-" in default_address("host")


def test_the_default_address_is_found(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"test-{os.getpid()}"
    for module in (listing, held_weights, _daemon):
        monkeypatch.setattr(module, "default_address", lambda device: f"unix:@penstock-{name}-{device}", raising=False)
    monkeypatch.setattr(_attach, "default_address", listing.default_address)
    with _daemon.serve(model, "host"), attach_weights(device="host", framework="np") as attached:
        same(attached.tensors, tensors())
        files = [str(each) for each in pathlib.Path(model).glob("*.safetensors")]
        assert held_weights.find_held(files, "host:0") is not None  # on the host
        assert held_weights.find_held(files, "host:0", on_host=False) is None


def test_files_settle_before_they_are_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": np.zeros(1)}, file)
    facts = source_files.describe_path(str(file))
    waited: list[float] = []
    monkeypatch.setattr(source_files.time, "sleep", waited.append)
    for age_ns, expected in ((0, 0.02), (15_000_000, 0.005), (20_000_000, None), (1 << 40, None), (-(1 << 40), None)):
        waited.clear()
        monkeypatch.setattr(source_files.time, "time_ns", lambda now=facts.ctime + age_ns: now)
        source_files.wait_until_settled([None, facts])
        assert waited == ([] if expected is None else [pytest.approx(expected)])


def test_weights_are_those_of_the_files(model: str) -> None:
    at = address()
    with _daemon.serve(model, "host", at), attach_weights(at, framework="np") as attached:
        same(attached.tensors, load_file(model, framework="np"))


class Told(list[str]):
    """A progress bar that counts what passes."""

    def __call__(self, of: Any, **options: Any) -> Any:
        for name, tensor in of:
            self.append(name)
            yield name, tensor


@pytest.mark.parametrize("device", DEVICES)
def test_vllms_loader_copies_from_a_server(model: str, device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    torch = pytest.importorskip("torch")
    from penstock.vllm import _weights

    files = [str(each) for each in sorted(pathlib.Path(model).glob("*.safetensors"))]
    cpu = torch.device("cpu")
    assert _weights.held_by_server(files, cpu, None, server=address()) is None
    monkeypatch.setattr(engine_weights, "_held_bytes", 1)  # one tensor at a time
    at, told = address(), Told()
    with served(model, device, at=at) as server:
        found = dict(_weights.held_by_server(files, cpu, lambda name: name == "flags", told, at))
        assert told == list(found)
        same(found, {name: value for name, value in tensors().items() if name != "flags"})
        found["wide"].zero_()  # as a model may
        flow = _weights.held_by_server(files, cpu, None, server=at)
        first = [next(flow)]
        server.end(signal.SIGKILL)
        same(dict([*first, *flow]), tensors())
        assert ("reading the other" in caplog.text) is (device == "host:0")
