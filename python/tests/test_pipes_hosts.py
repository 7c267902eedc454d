"""Pipes between two network namespaces with UTS and PID namespaces of their own, as between two hosts."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

SECRET = "correct horse battery staple"

LISTENS = textwrap.dedent(
    f"""
    import sys
    import penstock, penstock.pipe
    channels = sys.argv[2:]
    listener = penstock.pipe.listen("tcp://" + sys.argv[1] + ":0", channels, {SECRET!r})
    print(listener.url, flush=True)
    with listener.accept(timeout=30).result() as pipe:
        for _ in range(4):
            message = pipe.next(timeout=30).result().receive(device="host" if channels else "host:0").result()
            pipe.send(message.metadata, tensors=message.tensors, timeout=30).result()
        try:
            pipe.receive().result()
        except penstock.Closed as gone:
            print("gone:", gone, flush=True)
    """
)

CONNECTS = textwrap.dedent(
    f"""
    import os, signal, sys, time
    import numpy as np
    import penstock, penstock.pipe
    with penstock.pipe.connect(sys.argv[1], secret="a secret of somebody else") as stranger:
        try:
            stranger.receive(timeout=30).result()
        except penstock.PermissionDenied:
            print("refused", flush=True)
    channels = sys.argv[2:]
    pipe = penstock.pipe.connect(sys.argv[1], channels, {SECRET!r})
    for size in (10, 100_000, 5_000_001, 50_000_001):
        content = (np.arange(size) % 251).astype(np.uint8)
        sent = pipe.send(b"there and back", tensors=[content], timeout=30)
        back = pipe.receive(timeout=30).result()
        assert (back.tensors[0] == content).all() and sent.result() == size
        while not channels and size == 5_000_001 and pipe.explain().connections < 4:
            time.sleep(0.01)  # the further ones, which hold up nothing
    refusals = {{each.name: each.refusal for each in pipe.explain().sending}}
    if channels:
        assert refusals == dict.fromkeys(channels, ""), refusals
        assert {{each.name: each.received_bytes for each in pipe.stats()}}[channels[0]] == 55_100_002, pipe.stats()
    else:
        assert refusals["basic"] == refusals["mpt"] == "" and refusals["cma"] and refusals["cuda_ipc"], refusals
        assert "RDMA" in refusals["ucx"] and "RDMA" in refusals["cuda_gdr"], refusals
    print("right", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture
def hosts():
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("making network namespaces needs root, ip and unshare")
    names = [f"penstock-{os.getpid()}-{side}" for side in "ab"]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", f"ps{os.getpid()}a", "type", "veth", "peer", "name", f"ps{os.getpid()}b")
            for side, name in zip("ab", names, strict=True):
                link = f"ps{os.getpid()}{side}"
                ip("link", "set", link, "netns", name)
                ip("-n", name, "addr", "add", f"10.77.0.{1 + (side == 'b')}/24", "dev", link)
                ip("-n", name, "link", "set", link, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as refused:
            pytest.skip(f"no network namespaces here: {refused.stderr.decode().strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)


def on(host: str, program: str, argument: str, channels: list[str]) -> subprocess.Popen[str]:
    words = ["ip", "netns", "exec", host, "unshare", "--pid", "--uts", "--fork", sys.executable, "-c", program, argument, *channels]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("channels", [[], ["ucx"]], ids=["all", "ucx"])
def test_ends_on_two_hosts_speak_and_hear_of_each_others_death(hosts, channels):
    if channels:
        try:
            ctypes.CDLL("libucp.so.0")
        except OSError as missing:
            pytest.skip(f"UCX is not installed: {missing}")
    with on(hosts[0], LISTENS, "10.77.0.1", channels) as listens:
        url = listens.stdout.readline().strip()
        assert url.startswith("tcp://10.77.0.1:")
        with on(hosts[1], CONNECTS, url, channels) as connects:
            told = connects.communicate(timeout=90)[0]
        assert told.split() == ["refused", "right"]
        assert "gone" in listens.communicate(timeout=30)[0]
        assert listens.returncode == 0
