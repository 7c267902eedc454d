"""Where the tensors of a message go that no buffer was given for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import penstock
import penstock.pipe
from penstock import _native

CONTENT = np.arange(90_000, dtype="<i4")
SMALL = CONTENT[:100]


@pytest.fixture(params=["unix:", "tcp://127.0.0.1:0"], ids=["unix", "tcp"])
def ends(request):
    with penstock.pipe.listen(request.param) as listener:
        accepted = listener.accept(timeout=10)
        there = penstock.pipe.connect(listener.url)
        with accepted.result() as here, there:
            yield here, there


def same(buffer, content):
    back = np.empty_like(content)
    penstock.copy(back, buffer)
    return bool((back == content).all())


def on_host_device(content):
    buffer = penstock.device("host:0").empty(content.nbytes)
    buffer.copy_from(content)
    return buffer


@pytest.mark.parametrize("posted", [True, False])
@pytest.mark.parametrize("content", [CONTENT, SMALL], ids=["large", "in line"])
def test_a_tensor_goes_to_the_device_that_the_sender_names(ends, content, posted):
    here, there = ends
    receiving = there.receive(timeout=10) if posted else None
    sent = here.send(b"there", tensors=[content, content, content], devices=["host:0", None, "host"])
    message = (receiving or there.receive(timeout=10)).result()
    assert [each.target_device for each in message.facts] == ["host:0", "", "host"]
    assert isinstance(message.tensors[0], penstock.DeviceBuffer) and message.tensors[0].device == "host:0"
    for each in message.tensors[1:]:
        assert isinstance(each, np.ndarray) and each.dtype == content.dtype
    assert all(same(each, content) for each in message.tensors)
    assert sent.result(timeout=20) == 3 * content.nbytes
    assert receiving is None or receiving.result() is message


def test_a_device_of_the_receivers_choice_comes_first(ends):
    here, there = ends
    for device, kind in (("host:0", penstock.DeviceBuffer), ("host", np.ndarray)):
        for named in ("host:0", "host", "cuda:9", None):
            sent = here.send(tensors=[CONTENT, SMALL], devices=named)
            message = there.receive(device=device, timeout=10).result()
            assert [type(each) for each in message.tensors] == [kind, kind]
            assert same(message.tensors[0], CONTENT) and same(message.tensors[1], SMALL)
            assert message.facts[0].target_device == (named or "")
            sent.result(timeout=20)
    sent = here.send(tensors=[CONTENT], devices="host:0")
    descriptor = there.next(timeout=10).result()
    assert descriptor.tensors[0].target_device == "host:0" and descriptor.tensors[0].dtype == "<i4"
    with pytest.raises(ValueError, match="mutually exclusive"):
        descriptor.receive(into=[np.empty_like(CONTENT)], device="host")
    assert isinstance(descriptor.receive(timeout=10).result().tensors[0], penstock.DeviceBuffer)
    sent.result(timeout=20)
    sent = here.send(tensors=[CONTENT], devices="host:0")
    assert there.next(timeout=10).result().receive(device="host").result().tensors[0].dtype == "<i4"
    sent.result(timeout=20)


def test_buffers_of_the_users_do_not_mind_what_the_sender_names(ends):
    here, there = ends
    into = np.zeros_like(CONTENT)
    receiving = there.receive(into=[into], timeout=10)
    here.send(tensors=[CONTENT], devices="cuda:7").result()
    message = receiving.result()
    assert message.tensors[0] is into and (into == CONTENT).all()
    assert message.facts[0].target_device == "cuda:7"


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        ("cuda:1", ["cuda:1", "cuda:1"]),
        (1, ["cuda:1", "cuda:1"]),
        (np.int64(1), ["cuda:1", "cuda:1"]),
        ([None, 2], ["", "cuda:2"]),
        (("host", ""), ["host", ""]),
        ({"host": "cuda:3"}, ["cuda:3", ""]),
        ({"host:0": 4, 0: "cuda:5"}, ["", "cuda:4"]),
        ({"host": "host:0", "host:0": "host"}, ["host:0", "host"]),
        ({}, ["", ""]),
        (None, ["", ""]),
    ],
)
def test_devices_are_one_for_all_one_for_each_or_a_map(ends, devices, named):
    here, there = ends
    sent = here.send(tensors=[CONTENT, on_host_device(CONTENT)], devices=devices)
    descriptor = there.next(timeout=10).result()
    assert [each.target_device for each in descriptor.tensors] == named
    assert [each.device for each in descriptor.tensors] == ["host", "host:0"]
    assert all(same(each, CONTENT) for each in descriptor.receive(device="host", timeout=10).result().tensors)
    sent.result(timeout=20)


def test_an_unknown_device_is_named_and_the_pipe_goes_on(ends):
    here, there = ends
    for device in ("cuda:77", 77, "pigeon:0", ""):
        with pytest.raises(penstock.NotFound, match="cuda:77" if device == 77 else f'"{device}"'):
            there.receive(device=device)
    for device, kind in ((-1, penstock.InvalidArgument), ("cuda:1 or so", penstock.InvalidArgument), ("x" * 65, penstock.InvalidArgument)):
        with pytest.raises(kind, match="devices" if device == -1 else "tensor 0"):
            here.send(tensors=[CONTENT], devices=device).result()
    with pytest.raises(penstock.InvalidArgument, match="lists 1 devices for 2 tensors"):
        here.send(tensors=[CONTENT, CONTENT], devices=["host"])
    sent = here.send(b"lost", tensors=[CONTENT], devices="cuda:77")
    receiving = there.receive(timeout=10)
    with pytest.raises(penstock.NotFound, match="cuda:77"):
        receiving.result()
    assert isinstance(receiving.exception(), penstock.NotFound) and receiving.done()
    with pytest.raises(penstock.Cancelled):
        sent.result(timeout=20)
    sent = here.send(b"not lost", tensors=[CONTENT], devices="cuda:77")
    descriptor = there.next(timeout=10).result()
    with pytest.raises(penstock.NotFound, match="cuda:77"):
        descriptor.receive()
    assert same(descriptor.receive(device="host:0").result().tensors[0], CONTENT)
    sent.result(timeout=20)


def test_many_are_received_on_a_device_while_nobody_waits(ends):
    here, there = ends
    called = []
    receiving = [there.receive(device="host:0" if i % 2 else None, timeout=30) for i in range(60)]
    for each in receiving:
        each.add_done_callback(called.append)
    sent = [here.send(str(i).encode(), tensors=[CONTENT + i], devices="host:0" if i % 3 else None) for i in range(60)]
    for each in penstock.as_completed(receiving, timeout=30):
        each.result()
    for i, each in enumerate(receiving):
        message = each.result()
        assert message.metadata == str(i).encode() and same(message.tensors[0], CONTENT + i)
        assert isinstance(message.tensors[0], penstock.DeviceBuffer if i % 2 or i % 3 else np.ndarray)
    for each in sent:
        each.result()
    while len(called) < 60:  # on the thread of completions
        _native._settle()
    assert len({id(each) for each in called}) == 60


def test_they_can_be_awaited_cancelled_and_timed_out_at_either_step(ends):
    here, there = ends

    async def both():
        receiving = there.receive(device="host:0", timeout=10)
        await here.send(tensors=[CONTENT])
        return await receiving

    assert same(asyncio.run(both()).tensors[0], CONTENT)
    with pytest.raises(penstock.TimedOut):
        there.receive(device="host:0", timeout=0.02).result()
    waiting = there.receive(device="host:0")
    with pytest.raises(TimeoutError):
        waiting.result(timeout=0.02)
    assert not waiting.done() and waiting.cancel()
    with pytest.raises(penstock.Cancelled):
        waiting.result()
    assert not waiting.cancel()
    for i in range(30):
        sent = here.send(tensors=[CONTENT])
        receiving = there.receive(device="host:0", timeout=10)
        if i % 2:
            here.explain()
        receiving.cancel()
        try:
            assert same(receiving.result().tensors[0], CONTENT)
            sent.result(timeout=20)
            continue
        except penstock.Cancelled:
            pass
        if not sent.done():  # the message may wait for who receives next, or was dropped
            try:
                there.receive(timeout=0.2).result()
            except penstock.TimedOut:
                pass
        with_end = sent.exception(timeout=10)
        assert with_end is None or isinstance(with_end, penstock.Cancelled)
    gone = there.receive(device="host:0")
    here.close()
    with pytest.raises(penstock.Closed):
        gone.result()
    with pytest.raises(penstock.Closed):
        there.receive(device="host:0").result()


def test_a_forked_child_is_told_of_its_parents_receives():
    program = """
        import os, numpy as np, penstock, penstock.pipe
        with penstock.pipe.listen() as listener:
            accepted = listener.accept()
            there = penstock.pipe.connect(listener.url)
            here = accepted.result()
        waiting = there.receive(device="host:0")
        if os.fork() == 0:
            ok = waiting.done() and getattr(waiting.exception(), "code", "") == "forked"
            os._exit(0 if ok else 1)
        _, status = os.wait()
        assert status == 0, status
        here.send(tensors=[np.arange(50_000)]).result()
        assert waiting.result().tensors[0].nbytes == 400_000
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)


# --- PyTorch


def test_a_device_of_pytorchs_makes_its_tensors(ends):
    torch = pytest.importorskip("torch")
    here, there = ends
    for tensor in (torch.arange(30_000.0).reshape(100, 300), torch.ones(7, 5, dtype=torch.bfloat16), torch.tensor(True), torch.empty(0, 3)):
        sent = here.send(tensors=[tensor], devices={torch.device("cpu"): torch.device("cuda:6")})
        message = there.receive(device=torch.device("cpu"), timeout=10).result()
        assert message.facts[0].target_device == "cuda:6"
        (got,) = message.tensors
        assert got.dtype == tensor.dtype and torch.equal(got, tensor)
        sent.result(timeout=20)
    sent = here.send(tensors=[np.arange(5, dtype="<u1"), np.arange(50_000, dtype=">f4"), b"raw"])
    little, other, raw = there.next().result().receive(device=torch.device("cpu")).result().tensors
    assert little.dtype == torch.uint8 and little.tolist() == [0, 1, 2, 3, 4]
    assert other.dtype == torch.uint8 and other.numpy().view(">f4")[7] == 7  # of another byte order, which PyTorch has not
    assert bytes(raw.numpy()) == b"raw"
    sent.result(timeout=20)
    with pytest.raises(penstock.NotFound, match="meta"):
        there.receive(device=torch.device("meta"))
    told = [here.send(tensors=[little], devices=each) for each in (torch.device("cuda"), "cuda")]
    for each in told:  # which GPU that is the receiver knows
        coming = there.next().result()
        assert coming.tensors[0].target_device == "cuda"
        coming.receive(device="cpu").result()
        each.result(timeout=20)


def test_pytorch_is_not_imported_by_who_does_not():
    program = """
        import sys, numpy as np, penstock.pipe
        with penstock.pipe.listen() as listener:
            accepted = listener.accept()
            there = penstock.pipe.connect(listener.url)
            here = accepted.result()
        sent = here.send(tensors=[np.arange(9)], devices={"host": "host:0"})
        assert there.receive(device=None).result().tensors[0].nbytes == 72
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)


def gpus():
    return [each.name for each in penstock.devices() if each.name.startswith("cuda:")]


@pytest.mark.skipif(not gpus(), reason="no GPU")
def test_gpus_of_the_senders_choice(ends):
    """On one GPU, or from each to each."""
    here, there = ends
    for i, name in enumerate(gpus()[:2]):
        source = penstock.device(name).empty(CONTENT.nbytes)
        source.copy_from(CONTENT)
        for target in (name, gpus()[(i + 1) % len(gpus())]):
            sent = here.send(tensors=[source, CONTENT], devices={name: target, "host": target})
            message = there.receive(timeout=60).result()
            assert [penstock.describe(each)["device"] for each in message.tensors] == [target, target]
            assert all(same(each, CONTENT) for each in message.tensors)
            sent.result(timeout=20)


@pytest.mark.skipif(not gpus(), reason="no GPU")
def test_pytorchs_allocator_keeps_what_another_stream_uses(ends):
    torch = pytest.importorskip("torch")
    here, there = ends
    device = torch.device("cuda", 0)
    mine = torch.cuda.Stream(device)
    content = torch.arange(1 << 20, device=device)
    torch.cuda.synchronize()
    sent = here.send(tensors=[content])
    with torch.cuda.stream(mine):
        receiving = there.receive(device=device, timeout=60)  # made in this stream, whoever makes it
    sent.result(timeout=20)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        tensor = receiving.result().tensors[0]  # used in that one from now on
        torch.cuda._sleep(1 << 28)
        twice = tensor * 2
        address = tensor.data_ptr()
        del tensor, receiving
        with torch.cuda.stream(mine):
            again = torch.full((1 << 20,), -1, device=device)
        assert again.data_ptr() != address or torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert torch.equal(twice, content * 2)


def test_a_pipe_keeps_a_device_map(tmp_path):
    with penstock.pipe.listen() as listener:
        accepted = listener.accept(timeout=20)
        there = penstock.pipe.connect(listener.url)
        here = accepted.result()
    here.set_device_map({"host": "host:0"})
    content = np.arange(100_000, dtype="u1")
    here.send(tensors=[content])
    assert there.receive(timeout=20).result().tensors[0].device == "host:0"
    here.send(tensors=[content], devices="host")
    assert isinstance(there.receive(timeout=20).result().tensors[0], np.ndarray), "what a call names counts more"
    here.set_device_map(None)
    here.send(tensors=[content])
    assert isinstance(there.receive(timeout=20).result().tensors[0], np.ndarray)
    for wrong in ("host:0", [("host", "host:0")]):
        with pytest.raises(TypeError):
            here.set_device_map(wrong)
