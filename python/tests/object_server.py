"""An S3 server for tests, on loopback, that keeps its objects in memory and fails where a test asks for it."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote

# What happens to a request for an object: a number is the status of the answer, "cut" sends half of the answer, and a function runs first.
Fault = int | str | Callable[["ObjectServer"], None]


class ObjectServer:
    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = dict(objects)
        self.sizes: dict[str, int] = {}  # that the listing claims, by key
        self.page_size = 1000
        self.faults: dict[str, list[Fault]] = {}  # by key, for its next requests in turn
        self.asked: list[tuple[str, str]] = []  # method and key; the key of a listing is ""
        self.most_at_once = 0
        self.url = ""
        self.connections: list[socket.socket] = []
        self._now = 0
        self._lock = threading.Condition()

    @property
    def options(self) -> dict[str, object]:
        keys = {"access_key_id": "key", "secret_access_key": "secret"}
        return {"endpoint": self.url, "region": "us-east-1", "retry_pause": 0.001, **keys}

    @property
    def environment(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        return {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1", **keys}

    def next_fault(self, key: str) -> Fault | None:
        with self._lock:
            faults = self.faults.get(key)
            return faults.pop(0) if faults else None

    def wait_for_others(self, count: int) -> None:
        """Waits until so many requests have been in progress at once. For use as a fault."""
        with self._lock:
            self._lock.wait_for(lambda: self.most_at_once >= count, timeout=2)

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            self._lock.notify_all()
        try:
            yield
        finally:
            with self._lock:
                self._now -= 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    of: ObjectServer

    def setup(self) -> None:
        super().setup()
        self.of.connections.append(self.connection)

    def do_GET(self) -> None:
        with self.of.counted(), suppress(ConnectionError):
            self._get()

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        with self.of.counted(), suppress(ConnectionError):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            key = self._noted_key()
            fault = self.of.next_fault(key)
            if isinstance(fault, int):
                return self._answer(fault, b"")
            if callable(fault):
                fault(self.of)
            if self.headers.get("If-None-Match") == "*" and key in self.of.objects:
                return self._answer(412, b"")
            self.of.objects[key] = body
            self._answer(200, b"")

    def _noted_key(self) -> str:
        path, _, query = self.path.partition("?")
        key = "" if "list-type=2" in query else unquote(path).split("/", 2)[2]
        self.of.asked.append((self.command, key))
        return key

    def _get(self) -> None:
        key = self._noted_key()
        if key == "":
            return self._list(parse_qs(self.path.partition("?")[2]))
        fault = self.of.next_fault(key)
        if isinstance(fault, int):
            return self._answer(fault, b"")
        if callable(fault):
            fault(self.of)
        content = self.of.objects.get(key)
        if content is None:
            return self._answer(404, b"")
        ranged = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not ranged:
            return self._answer(200, content)
        first, last = int(ranged[1]), min(int(ranged[2]), len(content) - 1)
        if first >= len(content):
            return self._answer(416, b"", f"bytes */{len(content)}")
        self._answer(206, content[first : last + 1], f"bytes {first}-{last}/{len(content)}", cut=fault == "cut")

    def _answer(self, status: int, body: bytes, content_range: str = "", cut: bool = False) -> None:
        self.send_response(status)
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(len(body)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut

    def _list(self, query: dict[str, list[str]]) -> None:
        fault = self.of.next_fault("")
        if isinstance(fault, int):
            return self._answer(fault, b"")
        keys = sorted(key for key in self.of.objects if key.startswith(query.get("prefix", [""])[0]))
        begin = int(query.get("continuation-token", ["0"])[0])
        end = begin + self.of.page_size
        rows = "".join(
            f"<Contents><Key>{quote(key, safe='')}</Key><Size>{self.of.sizes.get(key, len(self.of.objects[key]))}</Size></Contents>"
            for key in keys[begin:end]
        )
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{end}</NextContinuationToken>" if end < len(keys) else ""
        self._answer(200, f"<ListBucketResult><EncodingType>url</EncodingType>{more}{rows}</ListBucketResult>".encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving_objects(objects: dict[str, bytes]) -> Iterator[ObjectServer]:
    """Serves a bucket of any name with these objects."""
    of = ObjectServer(objects)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"of": of}))
    server.daemon_threads = False  # so that closing it waits for them
    of.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield of
    finally:
        server.shutdown()
        for connection in of.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        server.server_close()
        thread.join()


# A tree of objects, the URL of their folder, and one of them.
TREE = {f"p/{i % 7}/{i % 3}/{i}.bin": os.urandom(i * 97 % 30_000) for i in range(200)}
FOLDER = "s3://bucket/p"
KEY = "p/3/1/10.bin"
assert len(TREE[KEY]) > 900


def _remove(server: ObjectServer) -> None:
    del server.objects[KEY]


def _grow(server: ObjectServer) -> None:
    server.objects[KEY] += b"more"


def _shrink(server: ObjectServer) -> None:
    server.objects[KEY] = server.objects[KEY][:-1]


# What happens to one object after it was listed, and a part of the message; None: nothing fails.
FAULTS: dict[str, tuple[list[Fault], str | None]] = {
    "forbidden": ([403], "access denied|Forbidden|403"),
    "removed": ([_remove], "no such object|404"),
    "grown": ([_grow], "now has"),
    "shrunk": ([_shrink], "now has"),
    "busy once": ([503], None),
    "busy twice, then cut": ([503, 500, "cut"], None),
    "cut in the middle": (["cut", "cut"], None),
    "busy for ever": ([503] * 100, "503"),
}


def below(prefix: str, objects: dict[str, bytes]) -> dict[str, bytes]:
    return {key.removeprefix(prefix): content for key, content in objects.items() if key.startswith(prefix)}
