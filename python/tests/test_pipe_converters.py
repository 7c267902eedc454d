"""Pipes that carry arrays of a library which Penstock does not know."""

from __future__ import annotations

import math

import numpy as np
import pytest

import penstock
import penstock.pipe


class Grid:
    """An array whose memory is its own business."""

    def __init__(self, hidden: np.ndarray) -> None:
        self.hidden = hidden

    @property
    def dtype(self) -> np.dtype:
        return self.hidden.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.hidden.shape


class Frozen:
    """Cannot be written to: made of a buffer once that is full."""

    def __init__(self, memory: object, dtype: str, shape: tuple[int, ...]) -> None:
        self.bytes, self.dtype, self.shape = bytes(memoryview(memory)), dtype, shape


made: list[tuple[tuple[int, ...], str, str]] = []


def empty_grid(shape: tuple[int, ...], dtype: str, device: str) -> Grid:
    made.append((shape, dtype, device))
    return Grid(np.empty(shape, dtype))


class Buffer:
    def __init__(self, shape: tuple[int, ...], dtype: str, device: str) -> None:
        self.shape, self.dtype = shape, dtype
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        self.memory = np.empty(nbytes, "u1") if device == "host" else penstock.device(device).empty(nbytes)


@pytest.fixture(autouse=True)
def registered() -> None:
    made.clear()
    penstock.pipe.register_converter(Grid, lambda grid: grid.hidden, empty_grid)
    penstock.pipe.register_converter(Buffer, lambda buffer: buffer.memory)
    penstock.pipe.register_converter(
        Frozen, lambda frozen: frozen.bytes, Buffer, lambda buffer: Frozen(buffer.memory, buffer.dtype, buffer.shape)
    )


@pytest.fixture
def ends() -> tuple[penstock.pipe.Pipe, penstock.pipe.Pipe]:
    with penstock.pipe.listen() as listener:
        accepted = listener.accept(timeout=20)
        there = penstock.pipe.connect(listener.url)
        return accepted.result(), there


CONTENT = np.arange(60_000, dtype="f4").reshape(200, 300)


def test_tensors_of_a_registered_type_go_and_come(ends: tuple[penstock.pipe.Pipe, penstock.pipe.Pipe]) -> None:
    here, there = ends
    here.send(tensors=[Grid(CONTENT)])
    message = there.receive(kind=Grid, timeout=20).result()
    assert isinstance(message.tensors[0], Grid) and (message.tensors[0].hidden == CONTENT).all()
    assert made == [((200, 300), "<f4", "host")]
    here.send(tensors=[Grid(CONTENT)])
    assert (there.receive(timeout=20).result().tensors[0] == CONTENT).all(), "NumPy's, unless another kind is asked for"


def test_they_are_received_into_too(ends: tuple[penstock.pipe.Pipe, penstock.pipe.Pipe]) -> None:
    here, there = ends
    for how in ("posted", "descriptor"):
        target = Grid(np.zeros_like(CONTENT))
        here.send(tensors=[CONTENT])
        receive = there.receive if how == "posted" else there.next(timeout=20).result().receive
        assert receive(into=[target], timeout=20).result().tensors[0] is target
        assert (target.hidden == CONTENT).all()


@pytest.mark.parametrize("device", ["host", "host:0"])
def test_finish_makes_what_cannot_be_written_to(ends: tuple[penstock.pipe.Pipe, penstock.pipe.Pipe], device: str) -> None:
    here, there = ends
    here.send(tensors=[CONTENT, Frozen(CONTENT, "<f4", (200, 300))])
    message = there.receive(kind=Frozen, device=device, timeout=20).result()
    for each in message.tensors:
        assert isinstance(each, Frozen) and each.bytes == CONTENT.tobytes() and each.shape == (200, 300)
    here.send(tensors=[CONTENT])
    message = there.next(timeout=20).result().receive(kind=Frozen, device=device, timeout=20).result()
    assert message.tensors[0].bytes == CONTENT.tobytes()


def test_the_sender_names_the_device_and_types_that_numpy_lacks_keep_their_word(ends: tuple[penstock.pipe.Pipe, penstock.pipe.Pipe]) -> None:
    class Word:
        dtype, shape = "bfloat16", (5, 2)

    penstock.pipe.register_converter(Word, lambda word: b"x" * 20, lambda shape, dtype, device: made.append((shape, dtype, device)) or bytearray(20))
    here, there = ends
    here.send(tensors=[Word()], devices="host:0")
    message = there.receive(kind=Word, timeout=20).result()
    assert made == [((5, 2), "bfloat16", "host:0")] and message.tensors[0] == b"x" * 20


def test_what_a_converter_raises_is_raised_and_the_pipe_goes_on(ends: tuple[penstock.pipe.Pipe, penstock.pipe.Pipe]) -> None:
    class Broken:
        dtype, shape = "u1", (3,)

    def fail(*_: object) -> object:
        raise RuntimeError("no such thing")

    penstock.pipe.register_converter(Broken, fail, fail)
    here, there = ends
    with pytest.raises(RuntimeError, match="no such thing"):
        here.send(tensors=[Broken()])
    here.send(tensors=[CONTENT])
    with pytest.raises(RuntimeError, match="no such thing"):
        there.receive(kind=Broken, timeout=20).result()
    here.send(b"goes on")
    assert there.receive(timeout=20).result().metadata == b"goes on"


def test_wrong_arguments_are_told(ends: tuple[penstock.pipe.Pipe, penstock.pipe.Pipe]) -> None:
    _, there = ends
    for arguments in (("Grid", len), (Grid, None), (Grid, len, 3), (Grid, len, None, "finish")):
        with pytest.raises(TypeError):
            penstock.pipe.register_converter(*arguments)
    for kind in (int, "Grid", Buffer):
        with pytest.raises(TypeError):
            there.receive(kind=kind)
    with pytest.raises(ValueError):
        there.receive(kind=Grid, into=[CONTENT])
