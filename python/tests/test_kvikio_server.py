"""penstock.kvikio.utils.LocalHttpServer: a folder over HTTP, whole files and parts of them."""

from __future__ import annotations

import http.server
import pathlib
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import kvikio
from penstock.kvikio import utils
from penstock.kvikio.utils import LocalHttpServer

CONTENT = bytes(range(256)) * 10


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "file").write_bytes(CONTENT)
    return tmp_path


@pytest.fixture
def server(folder: pathlib.Path) -> Iterator[LocalHttpServer]:
    with LocalHttpServer(folder) as running:
        yield running


def get(url: str, part: str | None = None, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(url, headers={"Range": part} if part else {}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return answer.status, answer.read(), dict(answer.headers)


def test_whole_files_are_served(server: LocalHttpServer) -> None:
    assert server.url == f"http://{server.ip}:{server.port}" and server.ip == "127.0.0.1"
    status, content, headers = get(f"{server.url}/file")
    assert (status, content, headers["Accept-Ranges"]) == (200, CONTENT, "bytes")
    status, content, headers = get(f"{server.url}/file", method="HEAD")
    assert (status, content, int(headers["Content-Length"])) == (200, b"", len(CONTENT))


@pytest.mark.parametrize(
    ("part", "expected", "told"),
    [
        ("bytes=0-0", CONTENT[:1], "0-0"),
        ("bytes=5-99", CONTENT[5:100], "5-99"),
        ("bytes=2000-", CONTENT[2000:], "2000-2559"),
        ("bytes=-7", CONTENT[-7:], "2553-2559"),
        ("bytes=-9999", CONTENT, "0-2559"),
        ("bytes=2500-9999", CONTENT[2500:], "2500-2559"),
    ],
)
def test_parts_of_files_are_served(server: LocalHttpServer, part: str, expected: bytes, told: str) -> None:
    status, content, headers = get(f"{server.url}/file", part)
    assert (status, content, headers["Content-Range"]) == (206, expected, f"bytes {told}/2560")
    status, content, headers = get(f"{server.url}/file", part, "HEAD")
    assert (status, content, int(headers["Content-Length"])) == (206, b"", len(expected))


@pytest.mark.parametrize("part", ["bytes=2560-", "bytes=7-6", "bytes=-0"])
def test_parts_that_are_not_there_are_refused(server: LocalHttpServer, part: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(f"{server.url}/file", part)
    assert (caught.value.code, caught.value.headers["Content-Range"]) == (416, "bytes */2560")
    caught.value.close()


def test_what_is_no_range_gets_the_whole_file(server: LocalHttpServer) -> None:
    for part in ("bytes=", "bytes=-", "lines=1-2", "bytes=1-2,5-6"):
        assert get(f"{server.url}/file", part)[:2] == (200, CONTENT)


def test_a_missing_file_is_404(server: LocalHttpServer) -> None:
    for part in (None, "bytes=0-5"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(f"{server.url}/none", part)
        assert caught.value.code == 404
        caught.value.close()


def test_a_custom_handler_serves_requests(folder: pathlib.Path) -> None:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any, status: int, **kwargs: Any) -> None:
            self._status = status
            super().__init__(*args, **kwargs)

        def do_GET(self) -> None:
            self.send_error(self._status)

    with LocalHttpServer(folder, handler=Handler, handler_options={"status": 418}) as server:
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(f"{server.url}/file")
        assert caught.value.code == 418
        caught.value.close()


def test_range_responses_may_omit_the_modification_time(folder: pathlib.Path) -> None:
    """A response to a range need not repeat Last-Modified (RFC 9110, section 15.3.7)."""

    class Handler(utils._RangeHandler):
        def send_header(self, keyword: str, value: str) -> None:
            if not (self.command == "GET" and keyword == "Last-Modified"):
                super().send_header(keyword, value)

    for options in ({}, {"handler": Handler}):
        with LocalHttpServer(folder, **options) as server, kvikio.RemoteFile.open_http(f"{server.url}/file") as file:
            found = bytearray(len(CONTENT))
            assert file.read(found) == len(CONTENT) and found == CONTENT


def test_without_ranges_the_whole_file_comes(folder: pathlib.Path) -> None:
    with LocalHttpServer(str(folder), range_support=False) as server:
        assert get(f"{server.url}/file", "bytes=5-99")[:2] == (200, CONTENT)


def test_it_ends_with_its_block(folder: pathlib.Path) -> None:
    before = threading.active_count()
    with LocalHttpServer(folder) as server:
        url = f"{server.url}/file"
        get(url)
    with pytest.raises(urllib.error.URLError):
        get(url)
    assert threading.active_count() <= before + 1  # one may still be sending


def test_it_ends_when_its_time_has_passed(folder: pathlib.Path) -> None:
    with LocalHttpServer(folder, max_lifetime=0) as server:
        server._thread.join()
