#!/usr/bin/env python3
"""Tests tools/fetch_engines with its own package index."""

import contextlib
import io
import json
import os
import platform
import re
import tempfile
import threading
import unittest
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import tool_module

tool = tool_module.load(Path(__file__).resolve().parents[2] / "tools" / "fetch_engines")

LIBRARY = os.urandom(5 * tool.RANGE_BYTES)
MODULES = {f"vllm/{name}.py": f"name = {name!r}\n" * 50 for name in ("__init__", "model/loader", "zz")}


def wheel_of(version, machine=None):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in list(MODULES)[:2]:
            wheel.writestr(name, MODULES[name])
        wheel.writestr("vllm/_C.abi3.so", LIBRARY)
        wheel.writestr("vllm/zz.py", MODULES["vllm/zz.py"])
        if machine:
            wheel.writestr("vllm/fs_io_C.abi3.so", f"for {machine}")
        wheel.writestr("vllm_tests/other.py", "")
        wheel.writestr(f"vllm-{version}.dist-info/METADATA", f"Version: {version}\n")
    return content.getvalue()


class Index(BaseHTTPRequestHandler):
    wheels = {f"vllm-{version}-py3-none-any.whl": wheel_of(version) for version in ("1.0", "1.1")}
    wheels |= {f"vllm-2.0-cp38-abi3-{machine}.whl": wheel_of("2.0", machine) for machine in ("another", platform.machine())}
    ranges = True
    sent_bytes = 0

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not name:
            content = json.dumps({"files": [{"filename": each, "url": f"../../files/{each}"} for each in self.wheels]}).encode()
        else:
            content = self.wheels[name]
        length = len(content)
        if wanted and self.ranges:
            content = content[int(wanted[1]) : int(wanted[2]) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {wanted[1]}-{wanted[2]}/{length}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        type(self).sent_bytes += len(content)
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content)

    def log_message(self, *_):
        pass


class FetchEnginesTest(unittest.TestCase):
    def setUp(self):
        Index.ranges, Index.sent_bytes = True, 0
        server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.index = f"http://127.0.0.1:{server.server_port}/simple"

    def run_tool(self, *requirements, index=None):
        errors = io.StringIO()
        words = ["fetch_engines", "--folder", str(self.folder), *requirements]
        with mock.patch.object(tool, "INDEX", index or self.index), mock.patch("sys.argv", words), contextlib.redirect_stderr(errors):
            return tool.main(), errors.getvalue()

    def files(self):
        return {str(each.relative_to(self.folder)): each.read_text() for each in self.folder.rglob("*") if each.is_file()}

    def test_python_files_are_taken_from_a_wheel_without_the_rest_of_it(self):
        self.assertEqual(self.run_tool("vllm==1.0"), (0, ""))
        self.assertEqual(self.files(), {**MODULES, "vllm.stamp": "1.0"})
        self.assertLess(Index.sent_bytes, len(LIBRARY) // 2)

    def test_compiled_files_are_of_this_machine(self):
        self.assertEqual(self.run_tool("vllm==2.0"), (0, ""))
        self.assertEqual(self.files(), {**MODULES, "vllm/fs_io_C.abi3.so": f"for {platform.machine()}", "vllm.stamp": "2.0"})

    def test_a_version_that_is_there_is_not_fetched_again_and_another_replaces_it(self):
        self.run_tool("vllm==1.0")
        Index.sent_bytes = 0
        self.assertEqual(self.run_tool("vllm==1.0"), (0, ""))
        self.assertEqual(Index.sent_bytes, 0)
        self.assertEqual(self.run_tool("vllm==1.1"), (0, ""))
        self.assertEqual(self.files(), {**MODULES, "vllm.stamp": "1.1"})

    def test_what_others_put_there_stays(self):
        (self.folder / "vllm").mkdir()
        self.assertEqual(self.run_tool("vllm==1.0"), (0, ""))
        self.assertEqual(self.files(), {})

    def test_a_failure_is_named_and_leaves_what_was_there(self):
        self.run_tool("vllm==1.0")
        before = self.files()
        for requirement, index, ranges, reason in (
            ("vllm==1.1", "http://127.0.0.1:1/simple", True, "Connection refused"),
            ("vllm==1.1", None, False, "does not serve ranges"),
            ("vllm==9.9", None, True, "lists no wheel of version 9.9"),
        ):
            Index.ranges = ranges
            with self.subTest(reason):
                status, errors = self.run_tool(requirement, index=index)
                self.assertEqual(status, 1)
                self.assertIn("vllm cannot be fetched, and tests that need it are skipped", errors)
                self.assertIn(reason, errors)
                self.assertEqual(self.files(), before)


if __name__ == "__main__":
    unittest.main()
