#!/usr/bin/env python3
"""Tests tools/check_imports.py on small packages, each with one import that it must reject or accept."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "check_imports.py"
BEGINNING = {"__init__.py": "from ._core.errors import Error\n", "_core/__init__.py": "", "_core/errors.py": "class Error(OSError): ...\n"}


class check_imports(unittest.TestCase):
    def run_on(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**BEGINNING, **files}.items():
                file = Path(folder, "python/penstock", name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            done = subprocess.run([sys.executable, str(SCRIPT), folder], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def assert_refused(self, files, *words):
        code, output = self.run_on(files)
        self.assertEqual(code, 1, output)
        for word in words:
            self.assertIn(word, output)

    def assert_accepted(self, files):
        code, output = self.run_on(files)
        self.assertEqual(code, 0, output)

    def test_an_import_that_points_up_is_refused_with_its_line(self):
        for text in (
            "import os\nfrom .. import kv\n",
            "import os\nfrom ..kv import Store\n",
            "import os\nimport penstock.kv\n",
            "import os\nfrom penstock import kv\n",
            "def lazily():\n    from ..kv import Store\n",
            "if TYPE_CHECKING:\n    from ..kv import Store\n",
        ):
            self.assert_refused({"kv.py": "class Store: ...\n", "_core/errors.py": text}, "python/penstock/_core/errors.py:2:", "_core may not use kv")

    def test_imports_that_point_down_are_accepted(self):
        self.assert_accepted({"kv.py": "import json\nfrom . import _native\nfrom ._core.errors import Error\nfrom penstock._core import errors\n"})

    def test_the_public_names_of_the_package_are_for_the_floors_that_may_use_them(self):
        self.assert_accepted({"gds.py": "import penstock\nfrom penstock import Error\n"})
        self.assert_refused({"kv.py": "import penstock\n"}, "kv may not use penstock")

    def test_private_modules_of_a_sibling_package_are_refused(self):
        weights = {"weights/__init__.py": "", "weights/_wire.py": "", "vllm_weights/__init__.py": "from ..weights import _wire\n"}
        self.assert_refused(weights, "weights._wire is private to weights")
        self.assert_accepted({**weights, "vllm_weights/__init__.py": "from .. import weights\n"})

    def test_modules_that_import_each_other_are_refused(self):
        first = {"_core/a.py": "from . import b\n", "_core/b.py": "from .c import d\n", "_core/c.py": "def lazily():\n    from . import a\n"}
        self.assert_refused(first, "in a circle: _core.a -> _core.b -> _core.c -> _core.a")
        self.assert_accepted({**first, "_core/c.py": "if TYPE_CHECKING:\n    from . import a\n"})

    def test_a_module_that_is_in_no_table_is_refused(self):
        self.assert_refused({"news.py": "from ._core import errors\n"}, "news is not a floor of the package")

    def test_a_folder_without_the_package_is_a_wrong_call(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, str(SCRIPT), folder], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("not the root of the repository", done.stderr)


if __name__ == "__main__":
    unittest.main()
