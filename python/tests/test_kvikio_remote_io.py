"""What KvikIO's own tests of remote files ask: servers that fail so often, that are slow, that serve no ranges; S3 and WebHDFS."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy
import pytest

import penstock
import penstock.kvikio as kvikio
from penstock.kvikio import RemoteEndpointType, RemoteFile, defaults

from .range_server import WebServer
from .test_remote_s3 import server  # noqa: F401

CONTENT = numpy.arange(50_000, dtype=numpy.int64)
BYTES = CONTENT.tobytes()


@dataclass
class Faults:
    """What the server does to requests for data, so often."""

    times: int = 0
    status: int = 503
    silent: bool = False
    ranges: bool = True
    sizes_too: bool = False
    asked: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def is_due(self) -> bool:
        self.asked += 1
        self.times -= 1
        return self.times >= 0


@contextmanager
def serving(faults: Faults) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            if not (faults.sizes_too and self.misbehaves()):
                self.answer(False)

        def do_GET(self) -> None:
            if not self.misbehaves():
                self.answer(True)

        def misbehaves(self) -> bool:
            if not faults.is_due():
                return False
            if faults.silent:
                faults.released.wait(30)
                self.close_connection = True
            else:
                self.send_error(faults.status)
            return True

        def answer(self, with_body: bool) -> None:
            if self.path != "/data":
                self.send_error(404)
                return
            told = self.headers.get("Range", "")
            begin, end = 0, len(BYTES)
            if told and faults.ranges:
                first, _, last = told.removeprefix("bytes=").partition("-")
                begin, end = int(first), min(int(last) + 1, len(BYTES))
            self.send_response(206 if told and faults.ranges else 200)
            if told and faults.ranges:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(BYTES)}")
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            if with_body:
                self.wfile.write(BYTES[begin:end])

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = WebServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/data"
    finally:
        faults.released.set()
        http.shutdown()
        http.server_close()
        thread.join()


def lines_of(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return capfd.readouterr().out.splitlines()


# --- HTTP
@pytest.mark.parametrize("size", [1, 10, 1000, 10_000, 50_000])
@pytest.mark.parametrize("nthreads", [1, 3])
@pytest.mark.parametrize("tasksize", [99, 4096])
@pytest.mark.filterwarnings("ignore:KvikIO's")
def test_any_size_with_any_threads_and_tasks(size, nthreads, tasksize):
    with serving(Faults()) as url, defaults.set({"num_threads": nthreads, "task_size": tasksize}), RemoteFile.open_http(url) as file:
        assert file.nbytes() == CONTENT.nbytes
        assert f'"{url}"' in str(file)
        memory = numpy.empty(size, CONTENT.dtype)
        assert file.read(memory) == memory.nbytes
        numpy.testing.assert_array_equal(memory, CONTENT[:size])
        if size <= 49_900:
            assert file.pread(memory, file_offset=800).get() == memory.nbytes
            numpy.testing.assert_array_equal(memory, CONTENT[100 : 100 + size])


def test_a_file_that_is_smaller_than_the_read():
    with serving(Faults()) as url, RemoteFile.open_http(url, nbytes=10) as file:
        assert file.nbytes() == 10
        with pytest.raises(ValueError, match=r"cannot read 0\+100 bytes into a 10 bytes file"):
            file.read(numpy.empty(100, numpy.uint8))
        with pytest.raises(ValueError, match=r"cannot read 8\+3 bytes into a 10 bytes file"):
            file.read(numpy.empty(3, numpy.uint8), file_offset=8)


def test_a_server_without_ranges():
    with serving(Faults(ranges=False)) as url, RemoteFile.open_http(url, len(BYTES)) as file:
        with pytest.raises(OverflowError, match="maybe the server doesn't support file ranges?"):
            file.read(numpy.empty(10, numpy.uint8))
        with pytest.raises(OverflowError, match="maybe the server doesn't support file ranges?"):
            file.read(numpy.empty(10, numpy.uint8), file_offset=10)
        memory = numpy.empty_like(CONTENT)
        assert file.read(memory) == memory.nbytes, "all of it is what such a server sends"
        numpy.testing.assert_array_equal(memory, CONTENT)


def test_a_file_that_is_not_there():
    with serving(Faults()) as url, pytest.raises(RuntimeError, match="URL returned error: 404"):
        RemoteFile.open_http(url + ".not")


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_server_that_stays_busy_is_asked_so_often(capfd, attempts):
    faults = Faults(times=1000)
    with serving(faults) as url, defaults.set("http_max_attempts", attempts), RemoteFile.open_http(url) as file:
        with pytest.raises(RuntimeError) as failed:
            file.read(numpy.empty(100, numpy.uint8))
        assert f"KvikIO: HTTP request reached maximum number of attempts ({attempts})" in str(failed.value)
        assert "Got HTTP code 503" in str(failed.value)
    assert faults.asked == attempts
    assert lines_of(capfd) == ["KvikIO: Got HTTP code 503. Retrying after 500ms (attempt 1 of 2)."][: attempts - 1]


def test_a_server_that_is_busy_for_a_while_gives_the_bytes(capfd):
    faults = Faults(times=2, status=500)
    with serving(faults) as url, RemoteFile.open_http(url) as file:
        memory = numpy.empty(100, CONTENT.dtype)
        assert file.read(memory) == memory.nbytes
        numpy.testing.assert_array_equal(memory, CONTENT[:100])
    assert lines_of(capfd) == [
        "KvikIO: Got HTTP code 500. Retrying after 500ms (attempt 1 of 3).",
        "KvikIO: Got HTTP code 500. Retrying after 1000ms (attempt 2 of 3).",
    ]


def test_a_busy_server_is_asked_again_for_the_size(capfd):
    with serving(Faults(times=1, sizes_too=True)) as url:
        assert RemoteFile.open_http(url).nbytes() == len(BYTES)
        assert lines_of(capfd) == ["KvikIO: Got HTTP code 503. Retrying after 500ms (attempt 1 of 3)."]
    with serving(Faults(times=9, sizes_too=True)) as url, defaults.set("http_max_attempts", 1):
        with pytest.raises(RuntimeError, match=r"KvikIO: HTTP request reached maximum number of attempts \(1\)"):
            RemoteFile.open_http(url)
        assert lines_of(capfd) == []


def test_an_output_that_is_full_or_closed_fails_no_read(monkeypatch):
    full = open("/dev/full", "w")
    closed = open("/dev/null", "w")
    closed.close()
    for output in (full, closed, None):
        monkeypatch.setattr("sys.stdout", output)
        with serving(Faults(times=1)) as url, RemoteFile.open_http(url) as file:
            assert file.read(numpy.empty(100, CONTENT.dtype)) == 100 * CONTENT.itemsize
    with suppress(OSError):
        full.close()


def test_a_server_that_does_not_answer_in_time(capfd):
    faults = Faults(times=1000, silent=True)
    with serving(faults) as url, defaults.set({"http_max_attempts": 2, "http_timeout": 1}), RemoteFile.open_http(url) as file:
        with pytest.raises(RuntimeError) as failed:
            file.read(numpy.empty(100, numpy.uint8))
        assert "KvikIO: HTTP request reached maximum number of attempts (2)" in str(failed.value)
        assert "Operation timed out." in str(failed.value)
    assert faults.asked == 2
    assert lines_of(capfd) == ["KvikIO: Timeout error. Retrying after 500ms (attempt 1 of 2)."]


def test_a_server_that_answers_in_time_after_once(capfd):
    with serving(Faults(times=1, silent=True)) as url, defaults.set("http_timeout", 1), RemoteFile.open_http(url) as file:
        memory = numpy.empty(100, CONTENT.dtype)
        assert file.read(memory) == memory.nbytes
        numpy.testing.assert_array_equal(memory, CONTENT[:100])
    assert lines_of(capfd) == ["KvikIO: Timeout error. Retrying after 500ms (attempt 1 of 3)."]


def test_the_statuses_to_ask_again_after(capfd):
    with serving(Faults(times=1, status=503)) as url, defaults.set("http_status_codes", [504]), RemoteFile.open_http(url) as file:
        with pytest.raises(RuntimeError, match="503"):
            file.read(numpy.empty(100, numpy.uint8))
    with serving(Faults(times=1, status=418)) as url, defaults.set("http_status_codes", [418]), RemoteFile.open_http(url) as file:
        assert file.read(numpy.empty(100, numpy.uint8)) == 100
    assert lines_of(capfd) == ["KvikIO: Got HTTP code 418. Retrying after 500ms (attempt 1 of 3)."]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_an_overloaded_server_is_not_asked_by_get_after_head(status):
    faults = Faults(times=1, status=status, sizes_too=True)
    with serving(faults) as url, defaults.set("http_status_codes", [418]), pytest.raises(RuntimeError, match=str(status)):
        RemoteFile.open_http(url)
    assert faults.asked == 1


def test_files_of_penstock_itself_print_nothing_and_have_their_own_rules(capfd):
    with serving(Faults(times=3)) as url, penstock.open(url) as file:
        assert file.read_into(bytearray(100)) == 100
    with serving(Faults(times=3)) as url, penstock.open(url, storage_options={"attempts": 2, "retry_pause": 0.001}) as file:
        with pytest.raises(penstock.Error, match="after 2 tries"):
            file.read_into(bytearray(100))
    assert lines_of(capfd) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("attempts", 0, "from 1 to"),
        ("attempts", "3", "attempts"),
        ("retried_statuses", "503", "must be a sequence"),
        ("retried_statuses", [-1], "retried_statuses"),
        ("timeout", 0, "positive"),
        ("timeout", float("nan"), "positive"),
        ("retry_pause", -1, "positive"),
        ("retries", [], "Penstock's own"),
    ],
)
def test_patience_that_is_none_is_refused_in_words(name, value, words):
    with pytest.raises((penstock.InvalidArgument, TypeError, ValueError), match=words):
        penstock.open("http://127.0.0.1:1/x", storage_options={name: value})


# --- which kind
def test_kinds_and_allow_lists():
    with serving(Faults()) as url:
        assert RemoteFile.open(url).remote_endpoint_type() is RemoteEndpointType.HTTP
        assert RemoteFile.open(url, RemoteEndpointType.HTTP, [RemoteEndpointType.HTTP]).nbytes() == len(BYTES)
        assert RemoteFile.open(url, nbytes=7).nbytes() == 7
        with pytest.raises(RuntimeError, match="not in the allowlist"):
            RemoteFile.open(url, RemoteEndpointType.HTTP, [RemoteEndpointType.WEBHDFS])
        with pytest.raises(RuntimeError, match="Invalid URL"):
            RemoteFile.open(url, RemoteEndpointType.S3)
        with pytest.raises(RuntimeError, match="Invalid URL"):
            RemoteFile.open("s3://bucket/key", RemoteEndpointType.HTTP)
    for wrong, words in (("ftp://host/file", "Unsupported endpoint URL"), ("no url", "Bad scheme")):
        with pytest.raises(RuntimeError, match=words):
            kvikio.infer_remote_endpoint_type(wrong)


# --- S3
@pytest.mark.parametrize("size", [1, 1000, len(CONTENT)])
def test_objects_of_s3(server: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    facts = server.facts()
    for name, value in (
        ("AWS_DEFAULT_REGION", facts["region"]),
        ("AWS_ACCESS_KEY_ID", facts["access_key"]),
        ("AWS_SECRET_ACCESS_KEY", facts["secret_key"]),
        ("AWS_ENDPOINT_URL", facts["endpoint"]),
    ):
        monkeypatch.setenv(name, value)
    key = f"kvikio/{size}"
    server.put(key, CONTENT[:size].tobytes())
    for file in (RemoteFile.open_s3(facts["bucket"], key), RemoteFile.open_s3_url(f"s3://{facts['bucket']}/{key}")):
        assert file.nbytes() == size * 8
        memory = numpy.zeros(size, CONTENT.dtype)
        assert file.pread(memory).get() == size * 8
        numpy.testing.assert_array_equal(memory, CONTENT[:size])
        assert file.read(memory, 8, 8 * (size - 1)) == 8
        assert memory[0] == size - 1
    given = RemoteFile.open_s3(facts["bucket"], key, nbytes=8)
    assert given.nbytes() == 8
    with pytest.raises(ValueError, match="cannot read"):
        given.read(numpy.zeros(2, CONTENT.dtype))


# --- WebHDFS
@contextmanager
def webhdfs() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urllib.parse.urlsplit(self.path)
            query = urllib.parse.parse_qs(parts.query)
            if parts.path != "/webhdfs/v1/home/test_user/test_file.bin":
                self.send_error(404)
                return
            if query["op"] == ["GETFILESTATUS"]:
                body = json.dumps({"FileStatus": {"length": len(BYTES), "type": "FILE"}}).encode()
            elif "redirected" not in query:
                self.send_response(307)
                self.send_header("Location", f"http://{self.headers['Host']}{self.path}&redirected=true")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            else:
                offset, length = int(query["offset"][0]), int(query["length"][0])
                body = BYTES[offset : offset + length]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = WebServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/webhdfs/v1/home/test_user/test_file.bin"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@pytest.mark.parametrize("suffix", ["", "?user.name=test_user"])
def test_a_file_of_webhdfs(suffix, monkeypatch):
    monkeypatch.setenv("KVIKIO_WEBHDFS_USERNAME", "test_user")
    with webhdfs() as url:
        for file in (RemoteFile.open_webhdfs(url + suffix), RemoteFile.open(url + suffix)):
            assert file.remote_endpoint_type() is RemoteEndpointType.WEBHDFS
            assert file.nbytes() == len(BYTES)
            memory = numpy.zeros_like(CONTENT)
            assert file.read(memory) == len(BYTES)
            numpy.testing.assert_array_equal(memory, CONTENT)
            assert file.read(memory, 80, 8000) == 80
            numpy.testing.assert_array_equal(memory[:10], CONTENT[1000:1010])
        with pytest.raises(RuntimeError, match="404"):
            RemoteFile.open_webhdfs(url + "x")
