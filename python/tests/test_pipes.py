"""Pipes between threads and processes, through Python."""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import penstock
import penstock.pipe
from penstock._core import tensor_facts as _tensors

WAYS = [("unix:", []), ("unix:", ["cma", "cuda_basic"]), ("unix:", ["basic", "cuda_basic"]), ("tcp://127.0.0.1:0", [])]


@pytest.fixture(params=WAYS, ids=lambda way: way[0][:4] + "-" + (way[1] or ["all"])[0])
def ends(request):
    url, channels = request.param
    with penstock.pipe.listen(url, channels) as listener:
        accepted = listener.accept(timeout=10)
        there = penstock.pipe.connect(listener.url, channels)
        here = accepted.result()
        with here, there:
            yield here, there


@pytest.mark.parametrize("dtype", ["u1", "<f4", ">i2", "?", "<c16", "<M8[ns]"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (100, 30), (3, 500, 200)])
def test_arrays_arrive_as_they_are(ends, dtype, shape):
    here, there = ends
    array = (np.arange(np.prod(shape, dtype=int)) % 100).astype(dtype).reshape(shape)
    sent = here.send(b"named", tensors=[array])
    message = there.receive(timeout=10).result()
    assert message.metadata == b"named"
    (got,) = message.tensors
    assert got.dtype == array.dtype and got.shape == array.shape
    assert got.tobytes() == array.tobytes()
    assert got.flags.writeable
    assert sent.result() == array.nbytes


def test_payloads_and_several_tensors_into_buffers_of_the_users(ends):
    here, there = ends
    first, second = np.arange(50_000), bytearray(b"abc" * 10)
    into = [np.zeros_like(first), bytearray(30)]
    receiving = there.receive(into=into, timeout=10)
    here.send(b"", payloads=[b"one", bytearray(b"two"), b""], tensors=[first, second]).result()
    message = receiving.result()
    assert message.payloads == [b"one", b"two", b""]
    assert message.tensors[0] is into[0] and (into[0] == first).all()
    assert into[1] == second


def test_next_tells_what_comes(ends):
    here, there = ends
    array = np.ones((300, 200), dtype="f4")
    sent = here.send(b"step 1", tensors=[array, b"raw"])
    descriptor = there.next(timeout=10).result()
    assert descriptor.metadata == b"step 1"
    assert [each.nbytes for each in descriptor.tensors] == [array.nbytes, 3]
    assert descriptor.tensors[0].dtype == "<f4" and descriptor.tensors[0].shape == (300, 200)
    assert descriptor.tensors[1].dtype is None
    with pytest.raises(penstock.InvalidArgument, match="1 targets were given for 2 tensors"):
        descriptor.receive(into=[np.empty_like(array)]).result()
    message = descriptor.receive(timeout=10).result()
    assert (message.tensors[0] == array).all()
    assert message.tensors[1].tobytes() == b"raw"
    assert sent.result() == array.nbytes + 3


def test_tensors_of_a_device(ends):
    here, there = ends
    content = np.arange(700_000, dtype="<i4")
    source = penstock.device("host:0").empty(content.nbytes)
    source.copy_from(content)
    sent = here.send(tensors=[source, content])
    descriptor = there.next(timeout=10).result()
    assert [each.device for each in descriptor.tensors] == ["host:0", "host"]
    with pytest.raises(ValueError, match="mutually exclusive"):
        descriptor.receive(into=[source, source], device="host:0")
    message = descriptor.receive(device="host:0", timeout=10).result()
    for each in message.tensors:
        back = np.empty_like(content)
        each.copy_to(back)
        assert (back == content).all()
    assert sent.result() == 2 * content.nbytes
    routes = {(each.source, each.target) for each in there.explain().received}
    assert routes == {("host:0", "host:0"), ("host", "host:0")}
    sent = here.send(tensors=[source])
    assert (there.receive(timeout=10).result().tensors[0].view("<i4") == content).all()
    sent.result()


@pytest.mark.parametrize(
    ("here_has", "there_has", "to_here", "to_there"),
    [
        (["basic", "cma", "xth"], ["basic", "cma", "xth"], "basic", "basic"),
        (["cma", "xth"], ["xth", "cma"], "cma", "xth"),
        ([], ["basic", "xth"], "xth", "basic"),
    ],
)
def test_the_receivers_first_channel_is_chosen(here_has, there_has, to_here, to_there):
    array = np.arange(30_000)
    with penstock.pipe.listen(channels=here_has) as listener:
        accepted = listener.accept(timeout=10)
        there = penstock.pipe.connect(listener.url, channels=there_has)
        here = accepted.result()
    with here, there:
        for sender, receiver in ((here, there), (there, here)):
            sent = sender.send(tensors=[array])
            assert (receiver.receive(timeout=10).result().tensors[0] == array).all()
            sent.result()
        assert [each.name for each in there.explain().receiving] == there_has
        assert [each.name for each in there.explain().receiving if each.chosen] == [to_there]
        assert [each.name for each in here.explain().sending if each.chosen] == [to_there]
        assert {each.name for each in here.stats() if each.sent_tensors} == {to_there}
        assert {each.name for each in here.stats() if each.received_tensors} == {to_here}


def test_futures_can_be_awaited_and_called_back(ends):
    here, there = ends
    called = []

    async def talk():
        receiving = there.receive(timeout=10)
        receiving.add_done_callback(called.append)
        assert await here.send(b"x", tensors=[np.arange(9)]) == 72
        return await receiving

    message = asyncio.run(talk())
    assert (message.tensors[0] == np.arange(9)).all()
    assert len(called) == 1


def test_what_does_not_come_times_out_and_can_be_cancelled(ends):
    here, there = ends
    with pytest.raises(penstock.TimedOut):
        there.receive(timeout=0.02).result()
    waiting = there.next()
    with pytest.raises(TimeoutError):
        waiting.result(timeout=0.02)
    assert waiting.cancel()
    with pytest.raises(penstock.Cancelled):
        waiting.result()
    nobody = here.send(b"", tensors=[np.zeros(100_000)], timeout=0.05)
    with pytest.raises(penstock.TimedOut):
        nobody.result()


def test_closing_ends_what_waits(ends):
    here, there = ends
    waiting = there.receive()
    here.close()
    with pytest.raises(penstock.Closed):
        waiting.result()
    with pytest.raises(penstock.Closed):
        here.send(b"").result()


def test_wrong_arguments_are_named(ends):
    here, _ = ends
    for argument, wrong in {
        "metadata": ["x", 5, None],
        "payloads": [b"not in a list", np.zeros(3), 5, [b"fine", 5]],
        "tensors": [bytearray(9), np.zeros((3, 3)), penstock.device("host:0").empty(10), None, "x", [np.zeros(3), 5]],
        "timeout": ["soon", [1.0]],
        "devices": [1.5, b"cuda:0", [1.5], {"cuda:0": 1.5}, {1.5: "cuda:0"}, [True]],
    }.items():
        for each in wrong:
            with pytest.raises(TypeError, match=argument):
                here.send(**{"tensors": [np.zeros(3)], argument: each})
    for argument, wrong in {"into": [np.zeros(3), 5, "x", [5]], "timeout": ["soon"], "device": [1.5, [], True]}.items():
        for each in wrong:
            with pytest.raises(TypeError, match=argument):
                here.receive(**{argument: each})
    with pytest.raises(TypeError, match="url"):
        penstock.pipe.connect(5)
    for channels in ("basic", [5]):
        with pytest.raises(TypeError, match="channels"):
            penstock.pipe.listen(channels=channels)
    with pytest.raises(TypeError, match="secret"):
        penstock.pipe.listen("tcp://127.0.0.1:0", secret=5)
    with pytest.raises(penstock.BufferError):
        here.send(tensors=[np.zeros((4, 4))[:, 1]])
    with pytest.raises(penstock.InvalidArgument, match="1 MiB"):
        here.send(b"x" * (1 << 20) + b"x").result()
    with pytest.raises(penstock.Error, match="host:0"):
        here.send(payloads=[penstock.device("host:0").empty(100)]).result()
    with pytest.raises(penstock.InvalidArgument, match="no-url"):
        penstock.pipe.connect("no-url")
    with pytest.raises(penstock.InvalidArgument, match="pigeon"):
        penstock.pipe.listen(channels=["pigeon"])
    with pytest.raises(penstock.InvalidArgument, match='"cma" is named twice'):
        penstock.pipe.listen(channels=["cma", "basic", "cma"])
    with pytest.raises(penstock.PermissionDenied, match="loopback"):
        penstock.pipe.listen("tcp://0.0.0.0:0")
    with pytest.raises(penstock.InvalidArgument, match="16 bytes"):
        penstock.pipe.listen("tcp://127.0.0.1:0", secret="short")


def test_a_number_of_connections_that_there_cannot_be_is_named():
    for wrong in (0, 17, -1):
        with pytest.raises(penstock.InvalidArgument, match="connections must be 1 to 16"):
            penstock.pipe.listen("tcp://127.0.0.1:0", connections=wrong)
    with pytest.raises(TypeError, match="connections"):
        penstock.pipe.connect("unix:@nobody", connections="4")


def test_memory_that_would_arrive_as_something_else_is_refused(ends):
    here, _ = ends
    matrix = np.arange(6).reshape(2, 3)
    for wrong, words in ((matrix.T, "Fortran"), (np.zeros(3, object), "Python objects"), (matrix[:, ::2], "not contiguous")):
        for arguments in ({"tensors": [b"1", wrong]}, {"payloads": [b"1", wrong]}):
            with pytest.raises(penstock.BufferError, match=rf"{next(iter(arguments))}\[1\]: .*{words}") as caught:
                here.send(b"", **arguments)
            assert "order=" not in str(caught.value)
        with pytest.raises(penstock.BufferError, match=rf"into\[1\]: .*{words}"):
            here.receive(into=[bytearray(1), wrong])


def test_over_tcp_who_knows_the_secret_is_let_in():
    with penstock.pipe.listen("tcp://0.0.0.0:0", secret="correct horse battery staple") as listener:
        accepting = listener.accept(timeout=10)
        url = listener.url.replace("0.0.0.0", "127.0.0.1")
        with penstock.pipe.connect(url, secret=b"of somebody else entirely") as stranger:
            with pytest.raises(penstock.PermissionDenied, match="secret"):
                stranger.receive(timeout=10).result()
        with penstock.pipe.connect(url, secret=b"correct horse battery staple") as there:
            here = accepting.result()
            sent = there.send(b"known", tensors=[np.arange(100_000)])
            assert (here.receive(timeout=10).result().tensors[0] == np.arange(100_000)).all()
            sent.result()
            here.close()


def test_explain_and_stats_tell_the_channel(ends):
    here, there = ends
    plan = here.explain()
    chosen = [each.name for each in plan.sending if each.chosen]
    assert len(chosen) == 1
    assert all(each.refusal or each.chosen or plan.sending.index(each) > 0 for each in plan.sending)
    sent = here.send(b"", tensors=[np.zeros(10_000)])
    there.receive(timeout=10).result()
    sent.result()
    (stats,) = here.stats()
    assert stats.name == chosen[0] and stats.sent_bytes == 80_000 and stats.pushed_tensors == 0


def test_explain_and_stats_can_be_printed(ends):
    here, there = ends
    assert str(here.stats()) == "no tensors yet"
    sent = here.send(b"", tensors=[np.zeros(10_000)])
    there.receive(timeout=10).result()
    sent.result()
    plan = there.explain()
    lines = str(plan).splitlines()
    assert lines[0].startswith(f"over {plan.transport} to process {os.getpid()}")
    assert lines[1] == "sending, between host memory" and "received from host to host" in lines
    for each in plan.sending + plan.receiving:
        told = f"not usable: {each.refusal}" if each.refusal else "chosen" if each.chosen else "usable"
        assert f"  {each.name}: {told}" in lines
    (stats,) = there.stats()
    assert str(there.stats()) == f"{stats.name}: 0 tensors (0 bytes) sent, 1 (78.12 KiB) received"


def test_an_interrupt_ends_explain_at_once():
    with penstock.pipe.listen() as listener, penstock.pipe.connect(listener.url) as nobody_accepts:
        interrupt = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        interrupt.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            nobody_accepts.explain()
        assert time.monotonic() - began < 5  # and not the 10 s that it waits for
        interrupt.join()


def test_connecting_where_nobody_listens_names_the_url():
    with penstock.pipe.listen("tcp://127.0.0.1:0") as listener:
        url = listener.url
    with pytest.raises(penstock.NotFound, match=f"no process is listening at {url}"):
        penstock.pipe.connect(url)


def test_a_sender_hears_why_its_message_was_not_received(ends):
    here, there = ends
    sent = here.send(b"", tensors=[np.zeros(100_000)])
    with pytest.raises(penstock.InvalidArgument):
        there.receive(into=[np.zeros(3)], timeout=10).result()
    with pytest.raises(penstock.Cancelled, match="target 0 has 24 bytes, but its tensor has 800000"):
        sent.result(timeout=10)


def test_what_the_other_end_says_of_a_tensor_is_not_believed():
    pytest.importorskip("ml_dtypes")  # by which NumPy knows bfloat16
    for metadata in [b"", b"{", b"[]", b'{"dtype": "O", "shape": [1]}', b'{"dtype": "<f8", "shape": [2]}',
                     b'{"dtype": "<f8", "shape": [-1]}', b'{"dtype": "bfloat16", "shape": [4]}', b"[" * 100_000,
                     b'{"dtype": "<f8", "shape": [Infinity]}', b'{"dtype": ",", "shape": [1]}', b'{"dtype": "S0", "shape": [8]}']:
        facts = _tensors.facts_of(8, metadata, "host", "")
        assert facts.dtype is None and facts.shape is None


def _echo(url):
    with penstock.pipe.connect(url) as pipe:
        while True:
            try:
                message = pipe.receive().result()
            except penstock.Closed:
                return
            pipe.send(message.metadata, tensors=message.tensors).result()


@pytest.mark.parametrize("url", ["unix:", "tcp://127.0.0.1:0"])
def test_another_process_and_its_death(url):
    with penstock.pipe.listen(url) as listener:
        accepted = listener.accept(timeout=60)
        other = multiprocessing.get_context("spawn").Process(target=_echo, args=(listener.url,))
        other.start()
        pipe = accepted.result()
        array = np.arange(1_000_000)
        sent = pipe.send(b"go", tensors=[array])
        message = pipe.receive(timeout=60).result()
        assert (message.tensors[0] == array).all() and message.metadata == b"go"
        sent.result()
        waiting = pipe.receive()
        os.kill(other.pid, signal.SIGKILL)
        other.join()
        with pytest.raises(penstock.Closed, match="process"):
            waiting.result(timeout=10)


def test_the_interpreter_ends_while_pipes_wait():
    program = """
        import numpy as np, penstock.pipe
        listener = penstock.pipe.listen()
        accepted = listener.accept()
        there = penstock.pipe.connect(listener.url)
        here = accepted.result()
        futures = [listener.accept(), here.receive(), there.next(), here.send(tensors=[np.zeros(100_000)])]
        futures.append(here.receive(device="host:0"))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)


@pytest.mark.parametrize("channel", [[], ["basic"]])
def test_the_example_runs(channel):
    program = pathlib.Path(__file__).parents[2] / "examples/python/pipe_ping_pong.py"
    told = subprocess.run(
        [sys.executable, str(program), "3000000", "5", *channel], check=True, timeout=60, capture_output=True, text=True
    ).stdout
    assert f"{(channel or ['cma'])[0]}: chosen" in told
    assert "3000000 bytes: " in told


def test_the_parameter_server_runs():
    program = pathlib.Path(__file__).parents[2] / "examples/python/pipe_parameter_server.py"
    told = subprocess.run(
        [sys.executable, str(program), "2", "2", "100000"], check=True, timeout=120, capture_output=True, text=True
    ).stdout
    assert "parameters as expected" in told
    assert "host to host: cma" in told
    assert_both_are_told(told)


def assert_both_are_told(told):
    """Penstock's time, and that of torch.distributed.rpc where there is PyTorch."""
    assert re.search(r"^penstock.pipe +[0-9.]+ ms", told, re.MULTILINE)
    has_torch = importlib.util.find_spec("torch") is not None
    assert re.search(r"^torch.distributed.rpc" + (" +[0-9.]+ ms" if has_torch else ": PyTorch is not installed"), told, re.MULTILINE)


def test_the_two_stages_run():
    program = pathlib.Path(__file__).parents[2] / "examples/python/pipe_two_stages.py"
    told = subprocess.run([sys.executable, str(program), "10", "32", "256"], check=True, timeout=120, capture_output=True, text=True).stdout
    assert "results as expected" in told
    assert_both_are_told(told)


def test_the_fan_out_runs():
    program = pathlib.Path(__file__).parents[2] / "examples/python/pipe_fan_out.py"
    told = subprocess.run([sys.executable, str(program), "3", "80"], check=True, timeout=120, capture_output=True, text=True).stdout
    assert "3 receivers, 80 MiB each" in told and "bytes as expected" in told
    assert told.count("host to host by cma") == 3


def test_a_listener_may_be_closed_while_another_thread_accepts() -> None:
    def accept_until_closed(on: penstock.pipe.Listener) -> None:
        for _ in range(100_000):
            accepted = on.accept()
            if accepted.done() and isinstance(accepted.exception(), penstock.Closed):
                return

    for _ in range(100):
        listener = penstock.pipe.listen("unix:")
        thread = threading.Thread(target=accept_until_closed, args=(listener,))
        thread.start()
        listener.close()
        thread.join()
