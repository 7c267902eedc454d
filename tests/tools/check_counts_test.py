#!/usr/bin/env python3
"""Tests that tools/check_counts.py counts lines and public names, and fails when a limit is exceeded."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import tool_module

check_counts = tool_module.load(Path(__file__).resolve().parents[2] / "tools/check_counts.py")
FILES = {
    "python/penstock/__init__.py": '__all__ = ["a", "b"]\n',
    "python/penstock/kv.py": "import os\n\n__all__ = [\n    'c',\n]\n",
    "python/penstock/_core/names.py": '__all__ = ["private"]\n',
    "python/penstock/_native.pyi": "x: int\n" * 100,
    "src/base/one.cc": "int one;\nint two;\n",
    "src/base/one.hpp": "#pragma once\n",
}


class counts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name, text in FILES.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def test_lines_and_public_names_are_counted(self):
        self.assertEqual(check_counts.counts(self.root), {"lines of python/penstock": 7, "lines of src": 3, "public Python names": 3})

    def test_only_a_count_over_its_limit_fails(self):
        with mock.patch.object(sys, "argv", ["check_counts.py", str(self.root)]):
            for limit, code in ((3, 0), (2, 1)):
                with mock.patch.dict(check_counts.LIMITS, {"lines of src": limit}), contextlib.redirect_stdout(io.StringIO()) as output:
                    self.assertEqual(check_counts.main(), code)
                self.assertEqual("lines of src: 3 of 2, which is too many" in output.getvalue(), code == 1)


if __name__ == "__main__":
    unittest.main()
