#!/usr/bin/env python3
"""Tests that tests/support/faulty_proxy.py injects the requested faults, and no others."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

PROXY = Path(__file__).resolve().parents[1] / "support" / "faulty_proxy.py"
CONTENT = bytes(range(256)) * 1000


class Proxy:
    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen([sys.executable, PROXY, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.ports: dict[str, int] = json.loads(self._line())

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def order(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return dict(json.loads(self._line()))

    def end(self) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait(60)


class Faults(unittest.TestCase):
    folder: tempfile.TemporaryDirectory[str]
    proxy: Proxy

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        (Path(cls.folder.name) / "a b").write_bytes(CONTENT)
        cls.proxy = Proxy("--serve", cls.folder.name)

    @classmethod
    def tearDownClass(cls) -> None:
        assert cls.proxy.end() == 0
        cls.folder.cleanup()

    def setUp(self) -> None:
        self.proxy.order(rules=[])
        self.proxy.order(forget=True)

    def rule(self, fault: str, **values: Any) -> None:
        self.assertEqual(self.proxy.order(rules=[{"fault": fault, **values}]), {"done": True})

    def ask(self, headers: dict[str, str] | None = None, method: str = "GET", port: str = "port") -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.ports[port], timeout=60)
        self.addCleanup(connection.close)
        connection.request(method, "/a%20b", headers=headers or {})
        answer = connection.getresponse()
        return answer, answer.read()

    def raw(self, request: bytes = b"GET /a%20b HTTP/1.1\r\nHost: x\r\n\r\n") -> socket.socket:
        one = socket.create_connection(("127.0.0.1", self.proxy.ports["port"]), timeout=60)
        self.addCleanup(one.close)
        one.sendall(request)
        return one

    @staticmethod
    def all_of(one: socket.socket) -> bytes:
        got = b""
        while piece := one.recv(1 << 20):
            got += piece
        return got

    # --- without a fault
    def test_a_file_is_served_in_ranges(self) -> None:
        answer, body = self.ask()
        self.assertEqual((answer.status, body), (200, CONTENT))
        etag = answer.headers["ETag"]
        for span, told, part in (
            ("10-19", "10-19", CONTENT[10:20]),
            ("255990-", "255990-255999", CONTENT[-10:]),
            ("-5", "255995-255999", CONTENT[-5:]),
            ("255999-999999", "255999-255999", CONTENT[-1:]),
        ):
            answer, body = self.ask({"Range": f"bytes={span}", "If-Match": etag})
            self.assertEqual((answer.status, answer.headers["Content-Range"], body), (206, f"bytes {told}/256000", part))
        self.assertEqual(self.ask({"Range": "bytes=256000-"})[0].status, 416)
        self.assertEqual(self.ask({"If-Match": '"other"'})[0].status, 412)
        answer, body = self.ask(method="HEAD")
        self.assertEqual((answer.headers["Content-Length"], body), ("256000", b""))

    def test_one_connection_serves_many_requests_and_all_are_logged(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.ports["port"], timeout=60)
        self.addCleanup(connection.close)
        for name in ("/a%20b", "/none?x=1", "/../etc/passwd"):
            connection.request("GET", name, headers={"X-Mine": name})
            connection.getresponse().read()
        log = self.proxy.order(log=True)["log"]
        self.assertEqual([(one["connection"], one["request"], one["target"], one["headers"]["x-mine"]) for one in log],
                         [(1, 1, "/a%20b", "/a%20b"), (1, 2, "/none?x=1", "/none?x=1"), (1, 3, "/../etc/passwd", "/../etc/passwd")])  # fmt: skip
        self.assertEqual(self.proxy.order(counts=True), {"connections": 1, "requests": 3, "open": 1})

    def test_it_leads_to_another_server(self) -> None:
        second = Proxy("--to", f"127.0.0.1:{self.proxy.ports['port']}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", second.ports["port"], timeout=60)
            self.addCleanup(connection.close)
            for fault in ([], [{"fault": "chunked"}]):
                self.proxy.order(rules=fault)
                connection.request("GET", "/a%20b", headers={"Range": "bytes=1000-199999"})
                answer = connection.getresponse()
                self.assertEqual((answer.status, answer.read()), (206, CONTENT[1000:200000]))
                connection.close()
        finally:
            self.assertEqual(second.end(), 0)

    # --- which requests
    def test_a_rule_says_which_requests_it_is_for(self) -> None:
        self.rule("status", requests=[2, 3], path="/a", method="GET", times=1)
        self.assertEqual([self.ask()[0].status for _ in range(3)], [200, 503, 200])
        self.rule("status", other=True)
        self.assertEqual((self.ask()[0].status, self.ask(port="other_port")[0].status), (200, 503))

    def test_orders_come_over_a_connection_too(self) -> None:
        orders = {b'{"rules": [{"fault": "status", "status": 500}]}': "done", b"no": "failed", b'{"rules": [{"fault": "x"}]}': "failed"}
        with socket.create_connection(("127.0.0.1", self.proxy.ports["control_port"]), timeout=60) as control, control.makefile("rwb") as lines:
            for order, told in orders.items():
                lines.write(order + b"\n")
                lines.flush()
                self.assertIn(told, json.loads(lines.readline()))
        self.assertEqual(self.ask()[0].status, 500)

    # --- connections
    def test_a_connection_ends_where_it_is_told_to(self) -> None:
        self.rule("close")
        self.assertEqual(self.all_of(self.raw()), b"")
        self.rule("reset_early")
        with self.assertRaises(ConnectionResetError):
            self.all_of(self.raw())
        self.rule("cut", after=1000)
        self.assertEqual(self.all_of(self.raw()).partition(b"\r\n\r\n")[2], CONTENT[:1000])
        self.rule("reset", after=1000)
        with self.assertRaises(ConnectionResetError):
            self.all_of(self.raw())
        self.rule("refuse", times=1)
        with self.assertRaises((http.client.RemoteDisconnected, ConnectionError)):
            self.ask()
        self.assertEqual(self.ask()[0].status, 200)

    def test_nothing_comes_until_the_client_closes(self) -> None:
        self.rule("silent")
        one = self.raw()
        one.shutdown(socket.SHUT_WR)
        self.assertEqual(self.all_of(one), b"")
        self.rule("stall", after=100)
        one = self.raw()
        one.shutdown(socket.SHUT_WR)
        self.assertEqual(self.all_of(one).partition(b"\r\n\r\n")[2], CONTENT[:100])

    def test_what_comes_late_comes_whole(self) -> None:
        self.rule("delay", seconds=0.01)
        self.assertEqual(self.ask()[1], CONTENT)
        self.rule("trickle", bytes=100000, every=0.01)
        self.assertEqual(self.ask()[1], CONTENT)

    # --- bodies
    def test_lengths_are_wrong(self) -> None:
        self.rule("length", by=5)
        with self.assertRaises(http.client.IncompleteRead):
            self.ask()
        self.rule("length", by=-5)
        self.assertEqual(self.ask()[1], CONTENT[:-5])
        self.rule("longer", by=3, told=True)
        answer, body = self.ask({"Range": "bytes=0-9"})
        self.assertEqual((answer.headers["Content-Range"], body), ("bytes 0-9/256000", CONTENT[:10] + b"+++"))
        self.rule("longer", by=3)
        one = self.raw(b"GET /a%20b HTTP/1.1\r\nRange: bytes=0-9\r\nConnection: close\r\n\r\n")
        self.assertEqual(self.all_of(one).partition(b"\r\n\r\n")[2], CONTENT[:10] + b"+++")
        self.rule("shorter", by=4)
        self.assertEqual(self.ask({"Range": "bytes=0-9"})[1], CONTENT[:6])

    def test_ranges_are_wrong(self) -> None:
        self.rule("ignore_range")
        answer, body = self.ask({"Range": "bytes=0-9"})
        self.assertEqual((answer.status, len(body), answer.headers["Content-Range"]), (200, 256000, None))
        self.rule("part_as_200")
        answer, body = self.ask({"Range": "bytes=0-9"})
        self.assertEqual((answer.status, len(body), answer.headers["Content-Range"]), (200, 10, "bytes 0-9/256000"))
        self.rule("range", by=1, total=7)
        answer, body = self.ask({"Range": "bytes=0-9"})
        self.assertEqual((answer.status, body, answer.headers["Content-Range"]), (206, CONTENT[:10], "bytes 1-10/7"))

    def test_bodies_are_encoded(self) -> None:
        self.rule("gzip")
        answer, body = self.ask()
        self.assertEqual((answer.headers["Content-Encoding"], gzip.decompress(body)), ("gzip", CONTENT))
        self.rule("chunked")
        answer, body = self.ask()
        self.assertEqual((answer.headers["Content-Length"], body), (None, CONTENT))

    # --- heads
    def test_headers_are_changed(self) -> None:
        self.rule("head", set={"ETag": '"other"', "Accept-Ranges": None, "X-New": "1"})
        answer, body = self.ask()
        self.assertEqual((answer.headers["ETag"], answer.headers["Accept-Ranges"], answer.headers["X-New"], body), ('"other"', None, "1", CONTENT))

    def test_errors_are_answered(self) -> None:
        self.rule("status", status=503, retry_after=7, body="<Error/>", headers={"X-Why": "x"})
        answer, body = self.ask()
        self.assertEqual((answer.status, answer.headers["Retry-After"], answer.headers["X-Why"], body), (503, "7", "x", b"<Error/>"))
        for code in (429, 500):
            self.rule("status", status=code)
            self.assertEqual(self.ask()[0].status, code)

    def test_redirects_lead_elsewhere(self) -> None:
        port, other = self.proxy.ports["port"], self.proxy.ports["other_port"]
        for to, where in (
            ("self", f"http://127.0.0.1:{port}/a%20b"),
            ("other", f"http://localhost:{other}/a%20b"),
            ("metadata", "http://169.254.169.254/latest/meta-data/"),
            ("ftp://x/", "ftp://x/"),
        ):
            self.rule("redirect", to=to, status=307, body="this is no data")
            answer, body = self.ask()
            self.assertEqual((answer.status, answer.headers["Location"], body), (307, where, b"this is no data"))
        self.proxy.order(rules=[{"fault": "redirect", "to": "other", "other": False}])
        self.assertEqual(self.ask(port="other_port")[1], CONTENT)
        self.assertTrue(self.proxy.order(log=True)["log"][-1]["other"])

    def test_heads_are_none(self) -> None:
        self.rule("garbage")
        with self.assertRaises(http.client.BadStatusLine):
            self.ask()
        self.rule("bad_status")
        self.assertTrue(self.all_of(self.raw()).startswith(b"HTTP/1.1 twohundred\r\n"))
        self.rule("flood", bytes=1 << 20)
        one = self.raw()
        one.shutdown(socket.SHUT_WR)
        got = self.all_of(one)
        self.assertTrue(got.startswith(b"HTTP/1.1 200 OK\r\nX-Flood: x") and b"\r\n\r\n" not in got and len(got) > 1 << 19, len(got))


class Arguments(unittest.TestCase):
    def test_rules_are_checked(self) -> None:
        done = subprocess.run([sys.executable, PROXY, "--serve", "/", "--rules", '[{"fault": "none"}]'], capture_output=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"there is no fault 'none'", done.stderr)


if __name__ == "__main__":
    unittest.main()
