"""A thousand pipes whose processes are killed while they are at work leave no memory, of the host or of a GPU, and no descriptor behind."""

from __future__ import annotations

import gc
import os
import pathlib
import resource
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import penstock
import penstock.pipe
from penstock import _native

NBYTES = 500_000

SENDS = textwrap.dedent(
    f"""
    import sys, time
    import penstock, penstock.pipe
    url, device, count = sys.argv[1:]
    content = bytearray({NBYTES}) if device == "host" else penstock.device(device).empty({NBYTES})
    pipes = [penstock.pipe.connect(url) for _ in range(int(count))]
    sent = [pipe.send(b"it", tensors=[content]) for pipe in pipes]
    for pipe in pipes:
        pipe.explain()
    print("there", flush=True)
    time.sleep(1000)
    """
)


def gpus():
    return [each.name for each in penstock.devices() if each.name.startswith("cuda:")][:1]


def room_on(device):
    return bytearray(NBYTES) if device == "host" else penstock.device(device).empty(NBYTES)


def kill_one(listener, device, count):
    """Some of its pipes have received all, some are about to, some wait for what never comes."""
    accepting = [listener.accept(timeout=60) for _ in range(count)]
    other = subprocess.Popen([sys.executable, "-c", SENDS, listener.url, device, str(count)], stdout=subprocess.PIPE, text=True)
    try:
        pipes = [each.result() for each in accepting]
        assert other.stdout.readline() == "there\n"
        under_way = []
        for i, pipe in enumerate(pipes):
            under_way.append(pipe.send(b"never received", tensors=[room_on(device)]))
            if i % 4 > 0:
                under_way.append(pipe.receive(into=[room_on(device)]) if i % 2 else pipe.receive(device=device))
            if i % 4 > 1:
                assert under_way[-1].result(timeout=60).metadata == b"it"
                under_way.append(pipe.receive(device=device))
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        other.stdout.close()
    for each in under_way:
        error = each.exception(timeout=60)
        assert error is None or isinstance(error, penstock.Error)
    for pipe in pipes:
        with pytest.raises(penstock.Closed):
            while True:  # what had come
                pipe.next(timeout=60).result()


def level():
    """Descriptors, and mappings that pipes share."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), maps.count("memfd:penstock-pipe")


def settled(descriptors):
    gc.collect()
    _native._settle()
    until = time.monotonic() + 20
    while level()[0] > descriptors or level()[1] > 0:  # the reactor lets go of the last ones
        assert time.monotonic() < until, (level(), descriptors)
        time.sleep(0.001)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def run(device, processes, memory_in_use):
    before = processes // 3 + 1  # of them, until all that stays has been made
    with penstock.pipe.listen() as listener:
        room_on(device)
        descriptors = level()[0] + 8  # an engine opens some when it first needs them
        for i in range(1, processes + 1):
            kill_one(listener, device, 1000 // processes)
            if i == before:
                resident, on_device = settled(descriptors), memory_in_use()
        assert settled(descriptors) <= resident + (16 << 20)
        until = time.monotonic() + 20
        while memory_in_use() > on_device + (4 << 20):  # the driver takes the memory of the last process back
            assert time.monotonic() < until, (memory_in_use(), on_device)
            time.sleep(0.001)


@pytest.mark.parametrize("device", ["host", "host:0"])
def test_memory_of_the_host(device):
    run(device, 10, lambda: 0)


@pytest.mark.skipif(not gpus(), reason="no GPU")
def test_memory_of_a_gpu():
    cupy = pytest.importorskip("cupy")

    def memory_in_use():
        cupy.get_default_memory_pool().free_all_blocks()
        with cupy.cuda.Device(0):
            free, total = cupy.cuda.runtime.memGetInfo()
        return total - free

    run("cuda:0", 4, memory_in_use)  # each takes a while to begin
