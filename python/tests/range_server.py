"""A web server for tests, on loopback, that serves the files of a folder and supports ranges. It is also an S3 server for anonymous readers, whose
buckets are the subfolders."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote


class WebServer(ThreadingHTTPServer):
    """Serves each connection on a thread of its own."""

    request_queue_size = 256  # connections that a client may open at once; if the queue is full, the kernel delays a connection by a second

    def serve_forever(self, poll_interval: float = 0.01) -> None:  # shutdown() takes up to this long; the default is 0.5 s
        super().serve_forever(poll_interval)


class Gate:
    """Holds the answers to GET until it is opened; `reached` is set once one waits."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        self._opened.wait()

    def open(self) -> None:
        self._opened.set()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise, each answer of two segments waits for an acknowledgement that the client delays
    folder: Path
    gate: Gate | None
    asked: list[tuple[str, dict[str, str]]]
    connections: list[socket.socket]

    def setup(self) -> None:
        super().setup()
        type(self).connections.append(self.connection)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        if self.gate is not None:
            self.gate.pass_through()
        with suppress(ConnectionError):
            self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        type(self).asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        path, _, query = self.path.partition("?")
        if "list-type=2" in query:
            return self._list(self.folder / unquote(path).strip("/"), parse_qs(query).get("prefix", [""])[0])
        file = self.folder / unquote(path).lstrip("/")
        if not file.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        facts = file.stat()
        first, last = 0, facts.st_size - 1
        ranged = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if ranged:
            first, last = int(ranged[1]), min(int(ranged[2]), last)
        self.send_response(206 if ranged else 200)
        self.send_header("ETag", f'"{facts.st_mtime_ns}-{facts.st_size}"')
        if ranged:
            self.send_header("Content-Range", f"bytes {first}-{last}/{facts.st_size}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        if with_body:
            with open(file, "rb") as content:
                content.seek(first)
                self.wfile.write(content.read(last + 1 - first))

    def _list(self, bucket: Path, prefix: str) -> None:
        """As S3 lists a bucket."""
        names = sorted(str(each.relative_to(bucket)) for each in bucket.rglob("*") if each.is_file())
        rows = "".join(f"<Contents><Key>{name}</Key><Size>{(bucket / name).stat().st_size}</Size></Contents>" for name in names if name.startswith(prefix))
        content = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(
    folder: Path, gate: Gate | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """Its URL without a path; and what was asked so far, with the headers by their names in lower case."""
    asked: list[tuple[str, dict[str, str]]] = []
    connections: list[socket.socket] = []
    handler = type("Handler", (_Handler,), {"folder": folder, "gate": gate, "asked": asked, "connections": connections})
    server = WebServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = False  # so that closing it waits for them
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        server.server_close()
        thread.join()
