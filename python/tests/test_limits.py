"""Near a limit of the process (descriptors, threads, address space) each door of the package succeeds, or says what it could not have."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy
import pytest

import penstock.pipe
import penstock.safetensors.numpy
import penstock.weights

from . import range_server

NBYTES = 12_000_000
SECRET = "correct horse battery staple"
SCRIPT = Path(__file__).with_name("starved_doors.py")
# How many more the process may have; MiB of address space.
LIMITS = {"descriptors": [1, 3, 6, 10, 16], "threads": [0, 1, 2, 4, 7], "memory": [2, 12, 40, 90, 180]}
if os.environ.get("PENSTOCK_TEST_LIMITS") == "all":
    LIMITS = {"descriptors": [*range(1, 30)], "threads": [*range(30)], "memory": [*range(0, 320, 5)]}
DOORS = [
    "read",
    "write",
    "tensors",
    "remote",
    "remote tensors",
    "RemoteFile",
    "upload",
    "cache",
    "kv",
    "pipe",
    "weights",
    "penstock read",
    "penstock cp",
]


class _Bucket(BaseHTTPRequestHandler):
    """Takes objects in one part or in many, and keeps nothing."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        begins = self.path.endswith("uploads") or self.path.endswith("uploads=")
        name = "InitiateMultipartUploadResult" if begins else "CompleteMultipartUploadResult"
        self._answer(f"<?xml version='1.0'?><{name}><UploadId>1</UploadId><ETag>\"e\"</ETag></{name}>".encode())

    def do_DELETE(self) -> None:
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        left = int(self.headers.get("Content-Length", 0))
        while left > 0:
            got = len(self.rfile.read(min(left, 1 << 20)))
            if got == 0:
                return
            left -= got
        self.send_response(200)
        self.send_header("ETag", '"e"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _bucket() -> Iterator[str]:
    server = range_server.WebServer(("127.0.0.1", 0), _Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _echo() -> Iterator[str]:
    """Answers each message with its metadata."""
    with penstock.pipe.listen("tcp://127.0.0.1:0", secret=SECRET) as listener:

        def serve() -> None:
            while True:
                try:
                    pipe = listener.accept().result()
                except penstock.Error:
                    return
                try:
                    with pipe:
                        pipe.send(pipe.receive().result().metadata).result()
                except penstock.Error:
                    pass  # the other end had no more

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.url
    thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    made: Path = tmp_path_factory.mktemp("limits")
    made.chmod(0o777)  # children have users of their own
    content = numpy.arange(NBYTES // 4, dtype="u4")
    content.tofile(made / "data")
    penstock.safetensors.numpy.save_file({"data": content}, made / "tensors.safetensors")
    (made / "tensors.safetensors").chmod(0o644)
    return made


@pytest.fixture(scope="module")
def places(folder: Path) -> Iterator[str]:
    with ExitStack() as stack:
        origin, _ = stack.enter_context(range_server.serving(folder))
        weights = {"data": numpy.arange(NBYTES // 4, dtype="u4").view("u1")}
        yield json.dumps(
            {
                "url": f"{origin}/data",
                "tensors": f"{origin}/tensors.safetensors",
                "bucket": stack.enter_context(_bucket()),
                "pipe": stack.enter_context(_echo()),
                "weights": stack.enter_context(penstock.weights.serve_weights(weights, url="tcp://127.0.0.1:0", secret=SECRET)).url,
            }
        )


@pytest.mark.parametrize("kinds", [("descriptors", "memory"), ("threads",)], ids="-".join)
@pytest.mark.parametrize("door", DOORS)
def test_a_door_near_a_limit_succeeds_or_says_what_it_lacks(folder: Path, places: str, door: str, kinds: tuple[str, ...]) -> None:
    if "threads" in kinds and os.geteuid() != 0:
        pytest.skip("only root can be another user, whose threads are counted alone")
    limits = [(kind, value) for kind in kinds for value in LIMITS[kind]]
    # glibc ends a process that has no memory for the thread-local storage of a library, which nothing can prevent: one of some 800 loads near the
    # limit of memory. So what ends in another way is tried once more.
    wrong = _wrong_endings(folder, places, door, limits)
    again = [(kind, value) for kind, value, _ in wrong]
    assert not again or _wrong_endings(folder, places, door, again) == [], wrong


def _wrong_endings(folder: Path, places: str, door: str, limits: list[tuple[str, int]]) -> list[list[Any]]:
    words = [text for kind, value in limits for text in (kind, str(value))]
    ended = subprocess.run([sys.executable, str(SCRIPT), door, str(folder), places, *words], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-8000:]
    endings = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(kind, value) for kind, value, _ in endings] == limits
    return [each for each in endings if not re.fullmatch("ok|named", each[2])]
