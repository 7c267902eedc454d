"""Decorators and a test web server that programs import from KvikIO."""

from __future__ import annotations

import contextlib
import functools
import http.server
import inspect
import os
import pathlib
import re
import socket
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from penstock._core.forks import forkable_lock

__all__ = ["LocalHttpServer", "call_once", "kvikio_deprecate_module", "kvikio_deprecation_notice"]

Result = TypeVar("Result")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def call_once(func: Callable[..., Result]) -> Callable[..., Result]:
    """Runs func on its first call only; later calls return the first result, whatever their arguments.

    If func raises, the call does not count. Thread-safe: other callers wait for the running call.
    """
    lock = forkable_lock()
    kept: list[Result] = []

    @functools.wraps(func)
    def once(*args: Any, **kwargs: Any) -> Result:
        with lock:
            if not kept:
                kept.append(func(*args, **kwargs))
        return kept[0]

    return once


def kvikio_deprecation_notice(msg: str, *, since: str) -> Callable[[Decorated], Decorated]:
    """Marks a function or class as deprecated: each call issues a FutureWarning, and its docstring says so.

    - `msg`: what to use instead.
    - `since`: the version that deprecated it.
    """

    def decorate(target: Decorated) -> Decorated:
        @functools.wraps(target)
        def warned(*args: Any, **kwargs: Any) -> Any:
            warnings.warn(f"{target.__name__} is deprecated since {since}. {msg}", FutureWarning, stacklevel=2)
            return target(*args, **kwargs)

        note = f".. deprecated:: {since}\n    {msg}"
        warned.__doc__ = f"{inspect.getdoc(target) or ''}\n\n{note}"
        return warned  # type: ignore[return-value]

    return decorate


def kvikio_deprecate_module(msg: str, *, since: str) -> None:
    """Issues a FutureWarning that the calling module is deprecated. Call it at the top of that module."""
    caller = inspect.stack()[1].frame.f_globals.get("__name__", "this module")
    warnings.warn(f"{caller} is deprecated since {since}. {msg}", FutureWarning, stacklevel=3)


class LocalHttpServer:
    """Serves a folder on a 127.0.0.1 port, for tests. A context manager: `with LocalHttpServer(folder) as server: ... server.url`.

    `ip`, `port` and `url` are set during the block. The server runs on threads of this process (KvikIO's is a separate process). It stops when the
    block or the process ends, or after max_lifetime.
    """

    ip: str
    port: int
    url: str

    def __init__(
        self,
        root_path: str | pathlib.Path,
        range_support: bool = True,
        max_lifetime: int = 120,
        handler: type[http.server.BaseHTTPRequestHandler] | None = None,
        handler_options: dict[str, Any] | None = None,
    ) -> None:
        """Prepares the server; the with statement starts it.

        - `root_path`: the folder.
        - `range_support`: True to support range requests.
        - `max_lifetime`: in seconds.
        - `handler`: handles the requests; `range_support` then has no effect. It is called with `handler_options` and `directory=root_path`.
        """
        self.root_path = root_path
        self.range_support = range_support
        self.max_lifetime = max_lifetime
        self.handler = handler
        self.handler_options = handler_options or {}

    def __enter__(self) -> LocalHttpServer:
        handler: Callable[..., Any] = self.handler or (_RangeHandler if self.range_support else _WholeHandler)
        options = {**self.handler_options, "directory": os.fspath(self.root_path)}
        self._server = _Server(("127.0.0.1", 0), functools.partial(handler, **options))
        self.ip, self.port = str(self._server.server_address[0]), int(self._server.server_address[1])
        self.url = f"http://{self.ip}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        self._limit = threading.Timer(self.max_lifetime, self._server.shutdown)
        self._limit.daemon = True
        self._limit.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._limit.cancel()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.end_connections()


class _Server(http.server.ThreadingHTTPServer):
    """A server that can end connections that its clients keep open."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._connections: dict[Any, threading.Thread] = {}
        super().__init__(*arguments)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._connections[request] = threading.current_thread()
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._connections[request]

    def end_connections(self) -> None:
        for request, thread in list(self._connections.items()):
            with contextlib.suppress(OSError):  # it has just been closed
                request.shutdown(socket.SHUT_RDWR)
            thread.join(1)  # a handler of the user's may block


class _WholeHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Prints nothing."""


class _RangeHandler(_WholeHandler):
    """Handles requests for one part of a file (RFC 9110, section 14)."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def _answer(self, with_content: bool) -> None:
        path = self.translate_path(self.path)
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "").strip())
        if asked is None or not any(asked.groups()) or not os.path.isfile(path):
            super().do_GET() if with_content else super().do_HEAD()
            return
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first, end = _part(asked[1], asked[2], size)
            if first >= end:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{size}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Type", self.guess_type(path))
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
            self.send_header("Content-Length", str(end - first))
            self.send_header("Last-Modified", self.date_time_string(os.fstat(file.fileno()).st_mtime))
            self.end_headers()
            if with_content:
                file.seek(first)
                left = end - first
                while left > 0 and (content := file.read(min(left, 1 << 20))):
                    self.wfile.write(content)
                    left -= len(content)

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()


def _part(first: str, last: str, size: int) -> tuple[int, int]:
    """Returns the begin and end of a range: "2-5" is bytes 2 to 5, "2-" is everything from byte 2 to the end, "-5" is the last five bytes."""
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(int(last) + 1, size) if last else size


def __dir__() -> list[str]:
    return sorted(__all__)
