"""One signal ends whoever waits for a server, in whatever it waits: for an answer, or for the rest of one that never ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from penstock.__main__ import command

KEYS = {"AWS_ACCESS_KEY_ID": "AKIAX", "AWS_SECRET_ACCESS_KEY": "s"}
WAIT_S = 30


class EndlessServer:
    """/silent: it does not answer. /endless: GET sends bytes without a length for as long as somebody takes them. /busy: 503 each time."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=32)
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.is_waited_for = threading.Event()
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                self.threads.append(threading.Thread(target=self.talk, args=(self.listening.accept()[0],)))
                self.threads[-1].start()

    def talk(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while asked := connection.recv(1 << 16):
                if b"/busy" in asked:
                    self.is_waited_for.set()
                    connection.sendall(b"HTTP/1.1 503 Busy\r\nRetry-After: 20\r\nContent-Length: 0\r\n\r\n")
                elif b"/silent" in asked or b"list-type" in asked:
                    self.is_waited_for.set()
                elif asked.startswith(b"HEAD"):
                    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                else:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    for count in range(1 << 40):
                        connection.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
                        if count == 100:
                            self.is_waited_for.set()

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def server() -> Iterator[EndlessServer]:
    made = EndlessServer()
    try:
        yield made
    finally:
        made.close()


def program(call: str) -> list[str]:
    return [sys.executable, "-c", f"import sys, penstock, penstock.safetensors.numpy\nurl = sys.argv[1]\n{call}"]


CALLS = {
    "command read": [command(), "read"],
    "command cp": [command(), "cp"],
    "open": program("penstock.open(url)"),
    "load": program("penstock.load(url)"),
    "load_file": program("penstock.safetensors.numpy.load_file(url)"),
}


# A Python program ends on SIGTERM by itself.
CASES = [(call, number) for call in CALLS for number in (signal.SIGINT, signal.SIGTERM) if call.startswith("command") or number == signal.SIGINT]


def check_end(server: EndlessServer, run: list[str], number: signal.Signals) -> None:
    running = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **KEYS})
    try:
        assert server.is_waited_for.wait(WAIT_S)
        running.send_signal(number)
        _, words = running.communicate(timeout=WAIT_S)
    finally:
        running.kill()
        running.wait()
    assert running.returncode != 0
    if run[0] == sys.executable and number == signal.SIGINT:
        assert "KeyboardInterrupt" in words, words


@pytest.mark.parametrize("path", ["silent", "endless", "busy"])
@pytest.mark.parametrize(("call", "number"), CASES, ids=[f"{call}, {number.name}" for call, number in CASES])
def test_a_signal_ends_the_opening_of_an_object(server, call, path, number, tmp_path):
    extra = [str(tmp_path / "copy")] if call == "command cp" else []
    check_end(server, [*CALLS[call], f"{server.url}/{path}/data.safetensors", *extra], number)
    assert list(tmp_path.iterdir()) == []


def test_a_signal_ends_a_list(server):
    options = {"endpoint": server.url, "key": "AKIAX", "secret": "s"}
    check_end(server, [*program(f"penstock.list_remote(url, storage_options={options})"), "s3://bucket/"], signal.SIGINT)
