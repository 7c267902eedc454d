#!/usr/bin/env python3
"""An HTTP proxy to another server, or an HTTP server for a folder, that injects the faults it is asked for.

    faulty_proxy.py (--to HOST:PORT | --serve FOLDER) [--rules JSON] [--certificate FILE --key FILE]

prints one line of JSON when it listens: port; other_port, another origin for the same content, without TLS; control_port. Then each line of JSON
on stdin, or on a connection to control_port, is a command, answered by one line. It stops at the end of stdin.

    {"rules": [RULE, ...]}   replaces the rules
    {"log": true}            {"log": [...]}: all requests so far: connection, request, method, target, headers, other, fault
    {"counts": true}         {"connections": N, "requests": N, "open": N}
    {"forget": true}         clears counts and log

A RULE is {"fault": NAME, ...} with the fault's parameters. It applies to every request, unless it restricts them: "requests" or "connections", a list
of numbers from 1; "times", the most matches; "method"; "path", a prefix of the target; "other", whether on other_port. The first match applies.

fault           the client sees
delay           nothing for "seconds", then the response
silent          nothing, until it closes
refuse          the connection closed right after accept (only with "connections")
close           the connection closed before the head
reset_early     the connection reset before the head
cut             the connection closed after "after" bytes of the body
reset           the connection reset after "after" bytes of the body
stall           nothing more after "after" bytes of the body
trickle         "bytes" of the body each "every" seconds
length          a Content-Length that is wrong by "by"; the body is complete, and the connection is closed after it
longer          "by" more bytes of the body than requested; with "told", Content-Length counts them
shorter         "by" fewer bytes, with a matching Content-Length
ignore_range    the whole object, with 200
part_as_200     the requested range, with 200 (as rclone does)
range           a Content-Range that is wrong by "by", or has another "total"
head            headers "set" to values, or removed if the value is null
gzip            the body compressed, with Content-Encoding
chunked         the body in chunks, without Content-Length
status          "status" (503) with "body", "headers", and "retry_after"
redirect        "status" (302) with a "body" to "to": a URL, or other (the other origin), plain (it, from https), self, or metadata
flood           "bytes" (100 MB) of headers that do not end
garbage         bytes that are not a response head
bad_status      a head whose first line is "line"
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import hashlib
import json
import random
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

MOST_HEAD_BYTES = 1 << 20
PIECE_BYTES = 64 << 10
METADATA = "http://169.254.169.254/latest/meta-data/"
REASONS = {200: "OK", 206: "Partial Content", 302: "Found", 404: "Not Found", 412: "Precondition Failed", 416: "Range Not Satisfiable", 503: "Slow Down"}

Headers = list[tuple[str, str]]


def value_of(headers: Headers, name: str) -> str | None:
    return next((value for known, value in headers if known.lower() == name.lower()), None)


def with_header(headers: Headers, name: str, value: str | None) -> Headers:
    """Returns the headers with another value, or without it."""
    kept = [(known, old) for known, old in headers if known.lower() != name.lower()]
    return kept if value is None else [*kept, (name, value)]


@dataclass
class Request:
    method: str
    target: str
    headers: Headers
    body: bytes
    connection: int
    number: int
    other: bool


@dataclass
class Answer:
    status: int
    headers: Headers
    body: AsyncIterator[bytes]

    def set(self, name: str, value: str | None) -> None:
        self.headers = with_header(self.headers, name, value)

    def length(self) -> int:
        return int(value_of(self.headers, "Content-Length") or 0)


async def pieces(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), PIECE_BYTES):
        yield content[at : at + PIECE_BYTES]


async def whole(answer: Answer) -> bytes:
    return b"".join([piece async for piece in answer.body])


def plain_answer(status: int, headers: Headers, content: bytes = b"") -> Answer:
    return Answer(status, [*headers, ("Content-Length", str(len(content)))], pieces(content))


# --- sources of responses
class Folder:
    """Serves the files of a folder, with ranges and ETags."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    async def answer(self, request: Request) -> Answer:
        name = self._folder / unquote(request.target.split("?")[0]).lstrip("/")
        if not name.is_file() or ".." in name.parts:
            return plain_answer(404, [])
        content = name.read_bytes()
        headers = [("ETag", f'"{hashlib.md5(content).hexdigest()}"'), ("Accept-Ranges", "bytes")]
        wanted = value_of(request.headers, "If-Match")
        if wanted is not None and wanted != headers[0][1]:
            return plain_answer(412, headers)
        span = value_of(request.headers, "Range")
        if span is None or not span.startswith("bytes="):
            return plain_answer(200, headers, content)
        first, _, last = span.removeprefix("bytes=").partition("-")
        begin = int(first) if first else max(len(content) - int(last), 0)
        end = min(int(last) + 1 if first and last else len(content), len(content))
        if begin >= end:
            return plain_answer(416, [*headers, ("Content-Range", f"bytes */{len(content)}")])
        return plain_answer(206, [*headers, ("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")], content[begin:end])


class Upstream:
    """Forwards to another server, with one connection per request."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)

    async def answer(self, request: Request) -> Answer:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=MOST_HEAD_BYTES)
        headers = with_header(request.headers, "Connection", "close")
        writer.write(head_of(f"{request.method} {request.target} HTTP/1.1", headers) + request.body)
        line, answered = await read_head(reader)
        made = Answer(int(line.split()[1]), with_header(answered, "Connection", None), self._body(reader, writer, request, answered))
        if request.method != "HEAD" and value_of(answered, "Content-Length") is None:
            content = await whole(made)  # chunked, or up to the end of the connection: passed on with a length
            made = plain_answer(made.status, with_header(made.headers, "Transfer-Encoding", None), content)
        return made

    @staticmethod
    async def _body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request, headers: Headers) -> AsyncIterator[bytes]:
        try:
            if request.method == "HEAD":
                return
            if (value_of(headers, "Transfer-Encoding") or "").lower() == "chunked":
                while size := int(await reader.readline(), 16):
                    yield await reader.readexactly(size)
                    await reader.readline()
                return
            left = int(value_of(headers, "Content-Length") or 1 << 62)
            while left and (piece := await reader.read(min(left, PIECE_BYTES))):
                left -= len(piece)
                yield piece
        finally:
            writer.close()


def head_of(line: str, headers: Headers) -> bytes:
    return (line + "\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers) + "\r\n").encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> tuple[str, Headers]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    split = [line.partition(":") for line in lines[1:] if line]
    return lines[0], [(name.strip(), value.strip()) for name, _, value in split]


# --- sending
class Client:
    """A connection to the client."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.is_open = True

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, answer: Answer, line: str | None = None) -> None:
        await self.send(head_of(line or f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Answer')}", answer.headers))

    async def whole(self, answer: Answer, request: Request) -> None:
        await self.head(answer)
        async for piece in answer.body:
            if request.method != "HEAD":
                await self.send(piece)

    async def part(self, answer: Answer, after: int) -> None:
        """Sends the head, and this many bytes of the body."""
        await self.head(answer)
        left = after
        async for piece in answer.body:
            await self.send(piece[:left])
            left -= len(piece[:left])
            if left == 0:
                break

    def close(self) -> None:
        self.is_open = False
        self.writer.close()

    def reset(self) -> None:
        """Sends a RST after the bytes sent so far."""
        self.is_open = False
        one = self.writer.get_extra_info("socket")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def until_closed(self, reader: asyncio.StreamReader) -> None:
        while await reader.read(PIECE_BYTES):
            pass
        self.close()


@dataclass
class Exchange:
    """One request, and the data that a fault needs to answer it."""

    proxy: Proxy
    reader: asyncio.StreamReader
    client: Client
    request: Request
    rule: dict[str, Any]

    def value(self, name: str, otherwise: Any) -> Any:
        return self.rule.get(name, otherwise)

    async def origin(self) -> Answer:
        return await self.proxy.source.answer(self.request)

    async def send(self, answer: Answer) -> None:
        await self.client.whole(answer, self.request)


Fault = Callable[[Exchange], Awaitable[None]]
FAULTS: dict[str, Fault] = {}


def fault(does: Fault) -> Fault:
    FAULTS[does.__name__.rstrip("_")] = does
    return does


@fault
async def delay(one: Exchange) -> None:
    await asyncio.sleep(one.value("seconds", 1))
    await one.send(await one.origin())


@fault
async def silent(one: Exchange) -> None:
    await one.client.until_closed(one.reader)


@fault
async def close(one: Exchange) -> None:
    one.client.close()


@fault
async def reset_early(one: Exchange) -> None:
    one.client.reset()


@fault
async def cut(one: Exchange) -> None:
    await one.client.part(await one.origin(), one.value("after", 0))
    one.client.close()


@fault
async def reset(one: Exchange) -> None:
    await one.client.part(await one.origin(), one.value("after", 0))
    one.client.reset()


@fault
async def stall(one: Exchange) -> None:
    await one.client.part(await one.origin(), one.value("after", 0))
    await one.client.until_closed(one.reader)


@fault
async def trickle(one: Exchange) -> None:
    answer = await one.origin()
    await one.client.head(answer)
    content, step = await whole(answer), one.value("bytes", 1)
    for at in range(0, len(content), step):
        await one.client.send(content[at : at + step])
        await asyncio.sleep(one.value("every", 0.1))


@fault
async def length(one: Exchange) -> None:
    answer = await one.origin()
    answer.set("Content-Length", str(answer.length() + one.value("by", 1)))
    await one.send(answer)
    one.client.close()


@fault
async def longer(one: Exchange) -> None:
    answer = await one.origin()
    more = one.value("by", 1)
    if one.value("told", False):
        answer.set("Content-Length", str(answer.length() + more))
    await one.send(answer)
    await one.client.send(b"+" * more)


@fault
async def shorter(one: Exchange) -> None:
    answer = await one.origin()
    content = await whole(answer)
    content = content[: len(content) - one.value("by", 1)]
    answer.set("Content-Length", str(len(content)))
    answer.body = pieces(content)
    await one.send(answer)


@fault
async def ignore_range(one: Exchange) -> None:
    one.request.headers = with_header(one.request.headers, "Range", None)
    await one.send(await one.origin())


@fault
async def part_as_200(one: Exchange) -> None:
    answer = await one.origin()
    answer.status = 200 if answer.status == 206 else answer.status
    await one.send(answer)


@fault
async def range_(one: Exchange) -> None:
    answer = await one.origin()
    told = value_of(answer.headers, "Content-Range")
    if told is not None:
        span, _, total = told.removeprefix("bytes ").partition("/")
        begin, _, end = span.partition("-")
        by = one.value("by", 0)
        answer.set("Content-Range", f"bytes {int(begin) + by}-{int(end) + by}/{one.value('total', total)}")
    await one.send(answer)


@fault
async def head(one: Exchange) -> None:
    answer = await one.origin()
    for name, value in one.value("set", {}).items():
        answer.set(name, value)
    await one.send(answer)


@fault
async def gzip_(one: Exchange) -> None:
    answer = await one.origin()
    content = gzip.compress(await whole(answer), 1)
    answer.set("Content-Encoding", "gzip")
    answer.set("Content-Length", str(len(content)))
    answer.body = pieces(content)
    await one.send(answer)


@fault
async def chunked(one: Exchange) -> None:
    answer = await one.origin()
    answer.set("Content-Length", None)
    answer.set("Transfer-Encoding", "chunked")
    await one.client.head(answer)
    async for piece in answer.body:
        await one.client.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    await one.client.send(b"0\r\n\r\n")


@fault
async def status(one: Exchange) -> None:
    headers = list(one.value("headers", {}).items())
    if "retry_after" in one.rule:
        headers.append(("Retry-After", str(one.rule["retry_after"])))
    await one.send(plain_answer(one.value("status", 503), headers, one.value("body", "").encode()))


@fault
async def redirect(one: Exchange) -> None:
    to = one.value("to", "self")
    other = f"http://localhost:{one.proxy.ports['other_port']}{one.request.target}"
    scheme = "https" if one.proxy.tls is not None and not one.request.other else "http"
    here = f"{scheme}://{value_of(one.request.headers, 'Host')}{one.request.target}"
    to = {"other": other, "plain": other, "self": here, "metadata": METADATA}.get(to, to)
    await one.send(plain_answer(one.value("status", 302), [("Location", to)], one.value("body", "").encode()))


@fault
async def flood(one: Exchange) -> None:
    await one.client.send(b"HTTP/1.1 200 OK\r\n")
    line = b"X-Flood: " + b"x" * 1013 + b"\r\n"
    for _ in range(one.value("bytes", 100 << 20) // len(line)):
        await one.client.send(line)
    await one.client.until_closed(one.reader)


@fault
async def garbage(one: Exchange) -> None:
    await one.client.send(random.Random(one.request.number).randbytes(4096) + b"\r\n\r\n")
    one.client.close()


@fault
async def bad_status(one: Exchange) -> None:
    answer = await one.origin()
    await one.client.head(answer, one.value("line", "HTTP/1.1 twohundred"))
    one.client.close()


@dataclass
class Proxy:
    source: Folder | Upstream
    tls: ssl.SSLContext | None = None
    rules: list[dict[str, Any]] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    connections: int = 0
    requests: int = 0
    open: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)

    def set_rules(self, rules: list[dict[str, Any]]) -> None:
        for rule in rules:
            if rule.get("fault") not in {*FAULTS, "refuse"}:
                raise ValueError(f"there is no fault {rule.get('fault')!r}; there are: {', '.join(sorted({*FAULTS, 'refuse'}))}")
        self.rules = [dict(rule) for rule in rules]

    @staticmethod
    def _fits(rule: dict[str, Any], request: Request) -> bool:
        return (
            rule.get("times", 1) > 0
            and request.number in rule.get("requests", [request.number])
            and request.connection in rule.get("connections", [request.connection])
            and request.method == rule.get("method", request.method)
            and request.target.startswith(rule.get("path", ""))
            and request.other == rule.get("other", request.other)
        )

    def rule_for(self, request: Request) -> dict[str, Any] | None:
        for rule in self.rules:
            if rule["fault"] != "refuse" and self._fits(rule, request):
                if "times" in rule:
                    rule["times"] -= 1
                return rule
        return None

    def _refuses(self, connection: int) -> bool:
        rules = [rule for rule in self.rules if rule["fault"] == "refuse"]
        for rule in rules:
            if connection in rule.get("connections", [connection]) and rule.get("times", 1) > 0:
                rule["times"] = rule.get("times", 1 << 60) - 1
                return True
        return False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: bool) -> None:
        self.connections += 1
        connection = self.connections
        client = Client(writer)
        self.open += 1
        try:
            if self._refuses(connection):
                client.close()
            while client.is_open and await self._serve_one(reader, client, connection, other):
                pass
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # the client disconnected, or sent no valid request
        finally:
            self.open -= 1
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, client: Client, connection: int, other: bool) -> bool:
        line, headers = await read_head(reader)
        method, target = line.split(" ")[:2]
        body = await reader.readexactly(int(value_of(headers, "Content-Length") or 0))
        self.requests += 1
        request = Request(method, target, headers, body, connection, self.requests, other)
        rule = self.rule_for(request)
        self.log.append(
            {
                "connection": connection,
                "request": request.number,
                "method": method,
                "target": target,
                "headers": {name.lower(): value for name, value in headers},
                "other": other,
                "fault": rule["fault"] if rule else None,
            }
        )
        one = Exchange(self, reader, client, request, rule or {})
        if rule is None:
            await one.send(await one.origin())
        else:
            await FAULTS[rule["fault"]](one)
        return (value_of(headers, "Connection") or "").lower() != "close"

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        if "rules" in order:
            self.set_rules(order["rules"])
        elif "forget" in order:
            self.connections = self.requests = 0
            self.log = []
        elif "log" in order:
            return {"log": self.log}
        elif "counts" in order:
            return {"connections": self.connections, "requests": self.requests, "open": self.open}
        else:
            raise ValueError("an order is rules, log, counts or forget")
        return {"done": True}

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(self.answer_order(line))
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def answer_order(self, line: bytes) -> bytes:
        try:
            told = self.obey(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            told = {"failed": str(problem)}
        return json.dumps(told).encode() + b"\n"

    async def listen(self) -> None:
        async def here(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.serve(reader, writer, False)

        async def there(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.serve(reader, writer, True)

        for name, handler, tls in (("port", here, self.tls), ("other_port", there, None), ("control_port", self.control, None)):
            server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=tls, limit=MOST_HEAD_BYTES)
            self.ports[name] = server.sockets[0].getsockname()[1]


async def run(proxy: Proxy) -> None:
    await proxy.listen()
    print(json.dumps(proxy.ports), flush=True)
    orders = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        sys.stdout.buffer.write(proxy.answer_order(line))
        sys.stdout.buffer.flush()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = arguments.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", type=Upstream, dest="source", metavar="HOST:PORT")
    where.add_argument("--serve", type=Folder, dest="source", metavar="FOLDER")
    arguments.add_argument("--rules", type=json.loads, default=[], metavar="JSON")
    arguments.add_argument("--certificate", metavar="FILE")
    arguments.add_argument("--key", metavar="FILE")
    asked = arguments.parse_args()
    proxy = Proxy(asked.source)
    if asked.certificate is not None:
        proxy.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        proxy.tls.load_cert_chain(asked.certificate, asked.key)
    try:
        proxy.set_rules(asked.rules)
    except ValueError as problem:
        arguments.error(str(problem))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(proxy))


if __name__ == "__main__":
    main()
