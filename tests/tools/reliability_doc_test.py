"""Tests that every test named in docs/reference/promises.md exists.

Usage: reliability_doc_test.py CTEST BUILD_DIRECTORY
"""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def ctest_names(ctest: str, build: str) -> list[str]:
    listed = subprocess.run([ctest, "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True, text=True).stdout
    return [test["name"] for test in json.loads(listed)["tests"]]


def named_tests(page: str) -> list[str]:
    """What stands in backticks and looks like a test: folder.suite.test, or a file of tests."""
    return re.findall(r"`((?:[a-z]+\.[\w*/.]+|python/tests/\w+\.py))`", page)


def main() -> int:
    names = ctest_names(sys.argv[1], sys.argv[2])
    folders = {name.split(".")[0] for name in names}
    named = named_tests((ROOT / "docs/reference/promises.md").read_text())
    assert len(named) > 130, named
    missing = [
        each
        for each in named
        if not ((ROOT / each).is_file() if each.endswith(".py") else each.split(".")[0] in folders and fnmatch.filter(names, each))
    ]
    for each in missing:
        print(f"docs/reference/promises.md names {each}, and there is no such test")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
