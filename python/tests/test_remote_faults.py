"""Each kind of fault of tests/support/faulty_proxy.py between Penstock and a server of files, one with TLS and one of S3, for reads of every kind: the
bytes are right, or there is an error in words; nothing hangs, and deadlines hold. All is read in a child, whose certificates are those of the
tests; a reply that does not come within its time is a hang."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest

from .test_remote_s3 import servers

CONTENT = numpy.random.default_rng(11).integers(0, 256, 300_007, dtype=numpy.uint8).tobytes()
PROXY = Path(__file__).parents[2] / "tests/support/faulty_proxy.py"
HANG_S = 30

READER = r"""
import json, sys, numpy, penstock
content = open(sys.argv[1], "rb").read()

def read(file, way, size, timeout):
    memory = numpy.full(size, 0xA5, numpy.uint8)
    if way == "read":
        done = file.read_into(memory, 0, timeout=timeout)
    elif way == "future":
        done = file.pread(memory, 0, timeout=timeout).result()
    else:
        step = max(size // 7, 1)
        ranges = [(file, memory, at, min(step, size - at), at) for at in range(0, size, step)]
        done = sum(penstock.pread_many(ranges, timeout=timeout).result())
    return done == size and memory.tobytes() == content[:size]

for line in sys.stdin:
    asked = json.loads(line)
    try:
        with penstock.open(asked["url"], storage_options=asked["options"]) as file:
            file.read_into(bytearray(1)) if asked["warm"] else None
            print("opened", flush=True)
            sys.stdin.readline()
            told = {"right": read(file, asked["way"], asked["size"], asked["timeout"])}
    except penstock.Error as problem:
        told = {"code": problem.code, "words": str(problem)}
    print(json.dumps(told), flush=True)
"""


class Talk:
    """A child that is told things by lines, and answers."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self._come = b""

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        while b"\n" not in self._come:
            ready, _, _ = select.select([self._process.stdout], [], [], HANG_S)
            if not ready:
                self._process.kill()
                pytest.fail("it hangs")
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            assert more, "the child has ended"
            self._come += more
        line, _, self._come = self._come.partition(b"\n")
        return line.decode()

    def ask(self, line: str) -> Any:
        self.say(line)
        return json.loads(self.hear())

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(HANG_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()


class Fault(NamedTuple):
    rule: dict[str, Any]
    words: str = ""  # of the error; empty: it heals
    code: str = "io"
    timeout: float | None = None


def once(name: str, **more: Any) -> Fault:
    return Fault({"fault": name, "times": 1, **more})


TIMED_OUT = {"words": ".", "code": "timed_out", "timeout": 0.2}

FAULTS = {
    "delay": once("delay", seconds=0.05),
    "refuse": once("refuse"),
    "close": once("close"),
    "reset_early": once("reset_early"),
    "cut_at_once": once("cut"),
    "cut": once("cut", after=5000),
    "reset": once("reset", after=5000),
    "garbage": once("garbage"),
    "bad_status": once("bad_status"),
    "length_too_long": once("length", by=7),
    "busy": once("status", status=503, retry_after=0),
    "too_many": once("status", status=429),
    "internal_error": once("status", status=500, body="<Error><Code>InternalError</Code></Error>"),
    "slow_down": once("status", status=503, body="<Error><Code>SlowDown</Code><Message>x</Message></Error>"),
    "flood": once("flood", bytes=1 << 18),
    "longer": once("longer", by=5),
    "shorter": once("shorter", by=5),
    "chunked": Fault({"fault": "chunked"}),
    "part_as_200": Fault({"fault": "part_as_200"}),
    "always_busy": Fault({"fault": "status", "status": 503}, r"after 2 tries.*status 503|status 503.*after 2 tries"),
    "always_closed": Fault({"fault": "close"}, "before responding"),
    "always_cut": Fault({"fault": "cut"}, "before the end"),
    "silent": Fault({"fault": "silent"}, **TIMED_OUT),
    "stall": Fault({"fault": "stall", "after": 1000}, **TIMED_OUT),
    "trickle": Fault({"fault": "trickle", "bytes": 10, "every": 0.01}, **TIMED_OUT),
    "longer_and_told": Fault({"fault": "longer", "by": 5, "told": True}, "for a range of"),
    "another_range": Fault({"fault": "range", "by": 1}, "instead of the requested"),
    "another_total": Fault({"fault": "range", "total": 99_999_999}, "now has 99999999 bytes"),
    "another_version": Fault({"fault": "head", "set": {"ETag": '"another"'}}, "was replaced while"),
    "ignore_range": Fault({"fault": "ignore_range"}, "does not support ranges", "unsupported"),
    "ignore_range_once": once("ignore_range"),
    "no_etag": Fault({"fault": "head", "set": {"ETag": None}}, "was replaced while"),
    "gzip": Fault({"fault": "gzip"}, "as gzip", "unsupported"),
    "not_found": Fault({"fault": "status", "status": 404}, "404", "not_found"),
    "forbidden": Fault({"fault": "status", "status": 403}, "403", "permission_denied"),
    "redirect_to_metadata": Fault({"fault": "redirect", "to": "metadata"}, "machine credentials|http instead of https|cannot be followed"),
    "redirect_in_a_circle": Fault({"fault": "redirect"}, "too many|cannot be followed"),
    "redirect_without_tls": Fault({"fault": "redirect", "to": "plain", "other": False}, "http instead of https|cannot be followed|RIGHT"),
}


class Place(NamedTuple):
    proxy: Talk
    url: str
    options: dict[str, Any]


@contextlib.contextmanager
def proxied(arguments: list[str]) -> Iterator[tuple[Talk, int]]:
    proxy = Talk([sys.executable, str(PROXY), *arguments])
    try:
        yield proxy, json.loads(proxy.hear())["port"]
    finally:
        proxy.end()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("certificate")
    files = folder / "certificate.pem", folder / "key.pem"
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    names = ["-subj", "/CN=tests", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run([*made, "-out", str(files[0]), "-keyout", str(files[1]), *names], check=True, capture_output=True)
    return files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("served")
    (made / "data.bin").write_bytes(CONTENT)
    return made


@pytest.fixture(scope="module", params=["http", "https", "s3"])
def place(request: Any, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    patience = {"attempts": 2, "retry_pause": 0.005, "timeout": 1.0}  # of connections that a fault has left without an answer
    if request.param == "http":
        with proxied(["--serve", str(folder)]) as (proxy, port):
            yield Place(proxy, f"http://127.0.0.1:{port}/data.bin", patience)
    elif request.param == "https":
        public, key = request.getfixturevalue("certificate")
        with proxied(["--serve", str(folder), "--certificate", str(public), "--key", str(key)]) as (proxy, port):
            yield Place(proxy, f"https://localhost:{port}/data.bin", patience)
    else:
        module = servers()
        try:
            with module.Server("seaweedfs", tmp_path_factory.mktemp("s3") / "kept") as up:
                up.put("data.bin", CONTENT)
                facts = up.facts()
                with proxied(["--to", f"127.0.0.1:{up.port}"]) as (proxy, port):
                    keys = {"access_key_id": facts["access_key"], "secret_access_key": facts["secret_key"], "region": facts["region"]}
                    yield Place(proxy, f"s3://{facts['bucket']}/data.bin", {**patience, **keys, "endpoint": f"http://127.0.0.1:{port}"})
        except module.Missing as why:
            pytest.skip(str(why))


@pytest.fixture(scope="module")
def reader(request: Any, place: Place, folder: Path) -> Iterator[Talk]:
    others = {"CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}
    env = {name: value for name, value in os.environ.items() if name.upper() not in others} | {"PENSTOCK_CUDA": "0"}
    if place.url.startswith("https"):
        env["SSL_CERT_FILE"] = str(request.getfixturevalue("certificate")[0])
    made = Talk([sys.executable, "-c", READER, str(folder / "data.bin")], env)
    yield made
    made.end()


def read(reader: Talk, place: Place, fault: Fault, way: str, size: int) -> dict[str, Any]:
    """Opened while nothing is wrong; with the fault from then on."""
    asked = {"url": place.url, "options": place.options, "way": way, "size": size, "timeout": fault.timeout, "warm": fault.rule["fault"] != "refuse"}
    place.proxy.ask('{"rules": []}')
    reader.say(json.dumps(asked))
    assert reader.hear() == "opened"
    assert place.proxy.ask(json.dumps({"rules": [{**({} if fault.rule["fault"] == "refuse" else {"method": "GET"}), **fault.rule}]})) == {"done": True}
    reader.say("")
    told: dict[str, Any] = json.loads(reader.hear())
    place.proxy.ask('{"rules": []}')
    return told


@pytest.mark.parametrize("way", ["read", "future", "batch"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_gives_the_right_bytes_or_an_error_in_words(reader: Talk, place: Place, name: str, way: str) -> None:
    fault = FAULTS[name]
    # What fails for good is of one piece, so that the server's budget for tries lasts for all tests.
    size = 10_000 if fault.words else len(CONTENT)
    told = read(reader, place, fault, way, size)
    if not fault.words or ("RIGHT" in fault.words and "right" in told):
        assert told == {"right": True}
        return
    assert told.get("code") == fault.code, told
    assert re.search(fault.words, told["words"]), told
    assert place.url in told["words"]
    assert read(reader, place, once("delay", seconds=0), way, 1000) == {"right": True}, "it works again"


def test_every_fault_of_the_proxy_is_among_them() -> None:
    there = set(re.findall(r"^@fault\nasync def (\w+?)_?\(", PROXY.read_text(), re.MULTILINE)) | {"refuse"}
    assert {fault.rule["fault"] for fault in FAULTS.values()} == there
