"""Pipes whose tensors come in the order of a stream, and stream=."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock
import penstock.pipe


Connect = Callable[..., tuple[penstock.pipe.Pipe, penstock.pipe.Pipe]]


@pytest.fixture
def both() -> Iterator[Connect]:
    """both(url, **options): two ends, which are closed at the end of the test."""
    ends: list[penstock.pipe.Pipe] = []

    def connect(url: str, **options: Any) -> tuple[penstock.pipe.Pipe, penstock.pipe.Pipe]:
        with penstock.pipe.listen(url, **options) as listener:
            accepted = listener.accept(timeout=20)
            ends.append(penstock.pipe.connect(listener.url, **options))
            ends.append(accepted.result())
        return ends[-1], ends[-2]

    yield connect
    for each in ends:
        each.close()


def on_host_device(content: np.ndarray) -> penstock.DeviceBuffer:
    memory = penstock.device("host:0").empty(content.nbytes)
    memoryview(memory)[:] = content.tobytes()
    return memory


WAYS = [("unix:", {}), ("unix:", {"channels": ["basic", "cuda_basic"]}), ("tcp://127.0.0.1:0", {})]


@pytest.mark.parametrize("url, options", WAYS)
@pytest.mark.parametrize("nbytes", [100, 3_000_001])
def test_what_is_queued_behind_a_receive_finds_the_bytes(both: Connect, tmp_path: pathlib.Path, url: str, options: dict, nbytes: int) -> None:
    here, there = both(url, **options)
    content = np.arange(nbytes, dtype="u1")
    for source in (content, on_host_device(content)):
        sent = here.send(b"m", tensors=[source])
        descriptor = there.next(timeout=20).result()
        message = descriptor.receive_on_stream(device="host:0", stream=0, timeout=20)
        with penstock.open(tmp_path / "behind", "w") as file:
            written = file.write_on_stream(message.tensors[0], 0)  # behind it on that stream, and nobody has waited
            assert written.wait() == nbytes
        assert (tmp_path / "behind").read_bytes() == content.tobytes()
        assert message.ended.result() is None and message.metadata == b"m"
        assert sent.result() == nbytes


def test_the_end_tells_that_the_message_was_taken_back_and_the_stream_goes_on(both: Connect, tmp_path: pathlib.Path) -> None:
    here, there = both("unix:", channels=["basic", "cuda_basic"])
    sent = here.send(tensors=[np.ones(3_000_000, "u1")])
    descriptor = there.next(timeout=20).result()
    sent.cancel()
    try:
        message = descriptor.receive_on_stream(device="host:0", stream=0, timeout=20)
    except penstock.Error:  # the word of it had come, and nothing was put onto the stream
        return
    with penstock.open(tmp_path / "behind", "w") as file:
        assert file.write_on_stream(message.tensors[0], 0).wait() == 3_000_000
    with pytest.raises(penstock.Error):
        message.ended.result()


def test_buffers_of_yours_are_filled_and_wrong_ones_are_told_at_once(both: Connect) -> None:
    here, there = both("unix:")
    content = np.arange(100_000, dtype="u1")
    sent = here.send(tensors=[content])
    descriptor = there.next(timeout=20).result()
    target = penstock.device("host:0").empty(content.nbytes)
    message = descriptor.receive_on_stream(into=[target], timeout=20)
    message.ended.result()
    assert message.tensors == [target] and bytes(memoryview(target)) == content.tobytes()
    assert sent.result() == content.nbytes
    here.send(tensors=[content])
    descriptor = there.next(timeout=20).result()
    with pytest.raises(penstock.InvalidArgument):
        descriptor.receive_on_stream(into=[])


def test_a_stream_is_named_by_a_handle_or_an_object(both: Connect) -> None:
    class Stream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 0)

    class OfCuPy:
        ptr = 0

    here, there = both("unix:")
    content = np.arange(3_000_000, dtype="u1")
    for stream in (0, Stream(), OfCuPy()):
        sent = here.send(tensors=[on_host_device(content)], stream=stream)
        message = there.receive(device="host:0", stream=stream, timeout=20).result()
        assert bytes(memoryview(message.tensors[0])) == content.tobytes()
        assert sent.result() == content.nbytes
    for wrong in ("0", 1.5, True):
        with pytest.raises(TypeError):
            here.send(tensors=[on_host_device(content)], stream=wrong)
        with pytest.raises(TypeError):
            there.receive(device="host:0", stream=wrong)


def test_many_receives_stand_on_one_stream(both: Connect, tmp_path: pathlib.Path) -> None:
    here, there = both("tcp://127.0.0.1:0")
    parts = [np.full(200_000, i, "u1") for i in range(12)]

    def send_all() -> None:
        for sent in [here.send(tensors=[each]) for each in parts]:
            sent.result()

    sender = threading.Thread(target=send_all)
    sender.start()
    target = penstock.device("host:0").empty(200_000)
    with penstock.open(tmp_path / "behind", "w") as file:
        ends, writes = [], []
        for i in range(len(parts)):
            message = there.next(timeout=20).result().receive_on_stream(into=[target], stream=0, timeout=20)
            writes.append(file.write_on_stream(target, 0, offset=i * 200_000))  # before the next one is put there
            ends.append(message.ended)
        for ended, written in zip(ends, writes):
            assert written.wait() == 200_000
            ended.result()
    sender.join()
    assert (tmp_path / "behind").read_bytes() == b"".join(each.tobytes() for each in parts)
