"""A web server for tests that answers as the first part of a path says: a line of BEHAVIOURS for each thing that servers do, with what comes of it
for whoever reads from them. A new behaviour is a new line."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy
from safetensors.numpy import save

TENSOR = numpy.random.default_rng(3).integers(0, 256, 1_500_003, dtype=numpy.uint8)
CONTENT = save({"x": TENSOR})
SIZE = len(CONTENT)
CHANGED = save({"x": TENSOR[::-1].copy()})
ETAG = 'ETag: "v1"'
MODIFIED = "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT"


class Request(NamedTuple):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    count: Counter[str]  # of the requests for this path so far, by their method

    def span(self, size: int) -> tuple[int, int] | None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", "")) if self.method == "GET" else None
        return (int(asked[1]), min(int(asked[2]), size - 1)) if asked else None


Answer = Callable[[Request], "bytes | None"]  # None hangs up


class Behaviour(NamedTuple):
    answer: Answer
    error: str = ""  # a pattern; empty: the bytes come
    is_slow: bool = False  # it serves no ranges, which is counted
    content: bytes = CONTENT


def head(first: str, *lines: str) -> bytes:
    return "".join(line + "\r\n" for line in (f"HTTP/1.1 {first}", *lines, "")).encode("latin1")


def right(asked: Request, *lines: str, content: bytes = CONTENT, etag: str = ETAG, ranges: bool = True) -> bytes:
    """What a server should answer, with further lines."""
    span = asked.span(len(content)) if ranges else None
    if span and span[0] >= len(content):
        return head("416 No", f"Content-Range: bytes */{len(content)}", "Content-Length: 0")
    first, last = span or (0, len(content) - 1)
    told = [etag] if etag else []
    if span:
        told.append(f"Content-Range: bytes {first}-{last}/{len(content)}")
    answered = head("206 Partial Content" if span else "200 OK", f"Content-Length: {last - first + 1}", *told, *lines)
    return answered + (b"" if asked.method == "HEAD" else content[first : last + 1])


def lines(*more: str) -> Answer:
    return lambda asked: right(asked, *more)


def by_method(of_head: Answer, of_get: Answer = right) -> Answer:
    return lambda asked: (of_head if asked.method == "HEAD" else of_get)(asked)


def says(first: str, *more: str, body: bytes = b"") -> Answer:
    return lambda asked: head(first, f"Content-Length: {len(body)}", *more) + (b"" if asked.method == "HEAD" else body)


def hang_up(asked: Request) -> None:
    return None


def once(first: Answer, method: str = "GET", then: Answer = right) -> Answer:
    return lambda asked: (first if asked.method == method and asked.count[method] == 1 else then)(asked)


def edited(*changes: tuple[bytes, bytes], of: Answer = right) -> Answer:
    """With other bytes in the head."""

    def answer(asked: Request) -> bytes:
        top, empty, body = (of(asked) or b"").partition(b"\r\n\r\n")
        for old, new in changes:
            top = top.replace(old, new)
        return top + empty + body

    return answer


def with_lf(asked: Request) -> bytes:
    top, _, body = right(asked).partition(b"\r\n\r\n")
    return top.replace(b"\r\n", b"\n") + b"\n\n" + body


def length_of_head(bytes_told: int) -> Answer:
    return says("200 OK", ETAG) if bytes_told == 0 else lambda asked: head("200 OK", f"Content-Length: {bytes_told}", ETAG)


def no_ranges(asked: Request) -> bytes:
    return right(asked, ranges=False)


def chunked(asked: Request) -> bytes:
    """Without ranges, and without a length."""
    parts = [CONTENT[at : at + 100_000] for at in range(0, SIZE, 100_000)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    return head("200 OK", ETAG, "Transfer-Encoding: chunked") + (b"" if asked.method == "HEAD" else body)


class Last(bytes):
    """The connection ends with it."""


def until_closed(asked: Request) -> bytes:
    return Last(b"HTTP/1.0 200 OK\r\n" + ETAG.encode() + b"\r\n\r\n" + (b"" if asked.method == "HEAD" else CONTENT))


def cut(at: int, of: Answer = right) -> Answer:
    return lambda asked: Last((of(asked) or b"")[:at])


def without_etag_from(count: int) -> Answer:
    return lambda asked: right(asked, etag=ETAG if asked.count["GET"] < count else "")


def versions(first: str, second: str) -> Answer:
    """The second name of the version from the second GET on."""
    return lambda asked: right(asked, etag=first if asked.count["GET"] < 2 else second)


def a_byte_at_a_time(asked: Request) -> bytes:
    span = asked.span(SIZE)
    if span is None:
        return right(asked)
    return head("206 P", ETAG, "Content-Length: 1", f"Content-Range: bytes {span[0]}-{span[0]}/{SIZE}") + CONTENT[span[0] : span[0] + 1]


def closing(of: Answer) -> Answer:
    """Closes the connection after each answer, and does not say so."""
    return lambda asked: Last(of(asked) or b"")


def in_parts(asked: Request) -> bytes:
    """At most 400,000 bytes at a time."""
    span = asked.span(SIZE)
    if span is None:
        return right(asked)
    first, last = span[0], min(span[1], span[0] + 399_999)
    return head("206 P", ETAG, f"Content-Length: {last - first + 1}", f"Content-Range: bytes {first}-{last}/{SIZE}") + CONTENT[first : last + 1]


def redirect(location: str, of: Answer = right) -> Answer:
    """From /BEHAVIOUR/READER/data.safetensors to the location, where the bytes are."""

    def to(asked: Request) -> str:
        _, behaviour, reader, *_ = asked.path.split("/")
        return location.replace("BEHAVIOUR", behaviour).replace("READER", reader)

    def answer(asked: Request) -> bytes:
        return of(asked) if "there" in asked.path + asked.query else head("302 Found", f"Location: {to(asked)}", "Content-Length: 0")

    return answer


def signed(valid: Callable[[str, Request], bool]) -> Answer:
    """Sends its readers to addresses that say what they were asked for, and serves those that are valid."""

    def answer(asked: Request) -> bytes:
        word = f"{asked.method}{asked.count[asked.method]}"
        if not asked.query:
            return head("302 Found", f"Location: ?there={word}", "Content-Length: 0")
        return right(asked) if valid(asked.query.removeprefix("there="), asked) else head("403 Forbidden", "Content-Length: 0")

    return answer


def with_range_as(form: str) -> Answer:
    """With the range of 206 in another form."""

    def answer(asked: Request) -> bytes:
        top, empty, body = right(asked).partition(b"\r\n\r\n")
        return re.sub(rb"bytes (\d+)-(\d+)/(\d+)", form.encode(), top) + empty + body

    return answer


def encoded(word: str, of: Answer = right) -> Answer:
    return edited((b"ETag:", f"Content-Encoding: {word}\r\nETag:".encode()), of=of)


REFUSALS_OF_HEAD = ("400 No", "401 No", "403 No", "404 No", "405 No", "406 No", "415 No", "422 No", "500 No", "501 No", "503 No")
ENCODINGS = ("gzip", "x-gzip", "aws-chunked", "gzip,aws-chunked", "UTF-8", "none", "identity")
RANGES = (r"bytes: \1-\2/\3", r"bytes\t\1-\2/\3", r"\1-\2/\3", r"bytes \1 - \2 / \3")
LOCATIONS = ("there", "./there", "../READER/there", "?there", "/BEHAVIOUR/READER/there", "there#part", "sub/../there?x=/../y")

BEHAVIOURS = {
    "right": Behaviour(right),
    # --- the size
    "head_says_0": Behaviour(by_method(length_of_head(0))),
    "empty": Behaviour(lambda asked: right(asked, content=b""), content=b""),
    "empty_without_ranges": Behaviour(lambda asked: right(asked, content=b"", ranges=False), content=b""),
    "empty_in_chunks": Behaviour(by_method(length_of_head(0), lambda asked: head("200 OK", ETAG, "Transfer-Encoding: chunked") + b"0\r\n\r\n"), content=b""),
    "head_says_less": Behaviour(by_method(length_of_head(1000)), rf"now has {SIZE} bytes"),
    "head_says_more": Behaviour(by_method(length_of_head(SIZE + 5)), rf"now has {SIZE} bytes"),
    "head_says_less_and_all_comes": Behaviour(by_method(length_of_head(1000), no_ranges), rf"now has {SIZE} bytes"),
    **{
        f"head_says_{length}_and_more_comes_{name}": Behaviour(by_method(length_of_head(length), of_get), f"more than the expected {length} bytes|the file is truncated")
        for length in (1000, 100_000, 1_200_000)
        for name, of_get in (("in_chunks", chunked), ("up_to_the_end", until_closed))
    },
    # --- the version
    "loses_its_etag_after_head": Behaviour(without_etag_from(1), "was replaced while"),
    "loses_its_etag": Behaviour(without_etag_from(2), "was replaced while"),
    "another_etag": Behaviour(versions(ETAG, 'ETag: "v2"'), "was replaced while"),
    "an_etag_appears": Behaviour(versions(MODIFIED, MODIFIED + "\r\n" + ETAG), "was replaced while"),
    "loses_the_time_of_its_change": Behaviour(versions(MODIFIED, ""), "was replaced while"),
    "only_get_says_the_version": Behaviour(by_method(lambda asked: right(asked, etag=""))),
    "no_version": Behaviour(lambda asked: right(asked, etag="")),
    # --- connections
    "a_byte_at_a_time": Behaviour(a_byte_at_a_time, "a few bytes of each range"),
    "head_breaks_once": Behaviour(once(hang_up, "HEAD")),
    "head_breaks_in_its_answer": Behaviour(once(cut(20), "HEAD")),
    "get_breaks_once": Behaviour(once(hang_up)),
    "get_breaks_in_its_body": Behaviour(once(cut(50_000))),
    "closes_without_a_word": Behaviour(closing(right)),
    "in_parts": Behaviour(in_parts),
    "gets_break_at_once": Behaviour(by_method(right, hang_up), "before responding"),
    # --- HEAD
    **{f"head_refused_{each[:3]}": Behaviour(by_method(says(each))) for each in REFUSALS_OF_HEAD},
    "head_hangs_up": Behaviour(by_method(hang_up)),
    "head_without_a_length": Behaviour(by_method(lambda asked: head("200 OK", ETAG, "Transfer-Encoding: chunked"))),
    "neither_head_nor_get": Behaviour(says("404 No"), "404"),
    "missing_at_s3": Behaviour(by_method(says("404 No", "x-amz-request-id: 1"), says("500 No")), "404"),
    # --- heads of answers
    "two_dates": Behaviour(lines("Date: Mon, 01 Jan 2024 00:00:00 GMT", "Date: Mon, 01 Jan 2024 00:00:01 GMT")),
    "two_times_of_change": Behaviour(lines(MODIFIED, "Last-Modified: Mon, 01 Jan 2024 00:00:01 GMT")),
    "two_pauses": Behaviour(lines("Retry-After: 1", "Retry-After: 2")),
    "two_etags": Behaviour(lines('ETag: "other"')),
    "lines_end_with_lf": Behaviour(with_lf),
    "a_folded_line": Behaviour(lines("X-Info: one\r\n  two")),
    "a_folded_etag": Behaviour(edited((b'ETag: "v1"', b'ETag:\r\n\t"v1"'))),
    "300_lines": Behaviour(lines(*(f"X-{i}: 1" for i in range(300)))),
    "a_blank_before_the_colon": Behaviour(lines("X-Info : 1")),
    "bytes_with_a_capital": Behaviour(edited((b"Content-Range: bytes", b"Content-Range: Bytes"))),
    "names_without_capitals": Behaviour(edited((b"Content-", b"content-"), (b"ETag", b"etag"))),
    "a_latin_1_line": Behaviour(lines("X-Name: caf\xe9")),
    "a_bell": Behaviour(lines("X-Name: \x07")),
    "no_words_behind_the_status": Behaviour(edited((b"206 Partial Content", b"206"), (b"200 OK", b"200"))),
    "200_with_its_range": Behaviour(edited((b"206 Partial Content", b"200 OK"))),
    **{f"a_range_as_{index}": Behaviour(with_range_as(each)) for index, each in enumerate(RANGES)},
    "a_line_without_a_colon": Behaviour(by_method(right, lines("nonsense")), "is not valid HTTP"),
    # --- encodings
    **{f"stored_as_{each}": Behaviour(encoded(each)) for each in ENCODINGS},
    "stored_as_gzip_without_ranges": Behaviour(encoded("gzip", no_ranges), is_slow=True),
    "stored_as_aws_chunked_without_a_length": Behaviour(encoded("aws-chunked", chunked), is_slow=True),
    "chunked_and_identity": Behaviour(edited((b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity, Chunked"), of=chunked), is_slow=True),
    "compressed_on_the_way": Behaviour(by_method(right, encoded("gzip", chunked)), "as gzip"),
    # --- redirects
    **{f"redirect_{index}": Behaviour(redirect(each)) for index, each in enumerate(LOCATIONS)},
    "redirect_that_closes_without_a_word": Behaviour(closing(redirect("there", in_parts))),
    "redirect_for_each_method": Behaviour(signed(lambda word, asked: word.startswith(asked.method))),
    "redirect_that_expires": Behaviour(signed(lambda word, asked: word.startswith("GET") or asked.count["GET"] < 2)),
    "redirect_that_is_never_valid": Behaviour(signed(lambda word, asked: False), "403"),
    "redirect_in_a_circle": Behaviour(lambda asked: head("302 Found", "Location: data.safetensors", "Content-Length: 0"), "redirects|too many"),
    "redirect_to_nothing": Behaviour(lambda asked: head("302 Found", "Content-Length: 0"), "contains no address"),
    # --- no ranges
    "no_ranges": Behaviour(no_ranges, is_slow=True),
    "no_ranges_in_chunks": Behaviour(chunked, is_slow=True),
    "no_ranges_up_to_the_end": Behaviour(until_closed, is_slow=True),
    "no_ranges_and_head_says_0": Behaviour(by_method(length_of_head(0), no_ranges), is_slow=True),
    "no_ranges_and_no_head": Behaviour(by_method(says("405 No"), no_ranges), is_slow=True),
    "no_ranges_and_they_are_told": Behaviour(lambda asked: right(asked, "Accept-Ranges: none", ranges=False), is_slow=True),
    "no_ranges_and_it_breaks_once": Behaviour(once(cut(900_000, no_ranges), then=no_ranges), is_slow=True),
    "no_ranges_and_it_changes": Behaviour(
        lambda asked: (
            right(asked, ranges=False, etag="", content=CHANGED)
            if asked.count["whole GET"] > 1
            else Last(right(asked, ranges=False, etag="")[:1_200_000])
        ),
        "was replaced while",
        is_slow=True,
    ),
}


@dataclass
class WebServer:
    """What asks is counted by path, so that each reader has a path of its own: /BEHAVIOUR/READER/NAME."""

    port: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, behaviour: str, reader: str, name: str = "data.safetensors") -> str:
        return f"http://127.0.0.1:{self.port}/{behaviour}/{reader}/{name}"

    def answer(self, text: str) -> bytes | None:
        first, *fields = text.split("\r\n")
        method, target, _ = first.split(" ", 2)
        if method == "CONNECT":  # as a proxy it makes no tunnels, and forwards to itself
            return head("403 Forbidden", "Content-Length: 0")
        path, _, query = re.sub("^http://[^/]*", "", target).partition("?")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in fields)}
        with self.lock:
            count = self.counts.setdefault("/".join(path.split("/")[:3]), Counter())
            count[method] += 1
            count[f"whole {method}"] += "range" not in headers
            asked = Request(method, path, query, headers, Counter(count))
        return BEHAVIOURS[path.split("/")[1]].answer(asked)

    def talk(self, connection: socket.socket) -> None:
        come = b""
        with connection, suppress(OSError):
            while True:
                while b"\r\n\r\n" not in come:
                    got = connection.recv(1 << 16)
                    if not got:
                        return
                    come += got
                text, _, come = come.partition(b"\r\n\r\n")
                answered = self.answer(text.decode("latin1"))
                connection.sendall(answered or b"")
                if answered is None or isinstance(answered, Last):
                    return


@contextmanager
def serving() -> Iterator[WebServer]:
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    server = WebServer(listening.getsockname()[1])

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=server.talk, args=(listening.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()
