"""Tests that a build from source lists all missing dependencies at once, and that pip takes {fmt} and nlohmann/json from PyPI if the system lacks them.

Usage: source_build_test.py short|long CMAKE COMPILER

short only configures. long has pip build the package without the command, as on a machine that has a compiler but no other build dependency,
and tries it; it is skipped if PyPI does not respond.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SELECTION, CMAKE, COMPILER = sys.argv[1:4]
# Nothing of the system's is found but what is named: the compiler, and Python, which says itself where its headers are.
HIDDEN = ("CMAKE_FIND_USE_CMAKE_SYSTEM_PATH", "CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH")
SKIPPED = 77
PROGRAM = """
import os, pathlib, penstock, penstock.cufile
content = os.urandom(1_000_003)
pathlib.Path("file").write_bytes(content)
buffer = penstock.device("host:0").empty(len(content))
with penstock.open("file") as file:
    assert file.read_into(buffer) == len(content)
    assert "built without liburing" in str(file.explain()), file.explain()
assert buffer.to_host() == content
print("reads its file, built with nothing of the system's")
"""


class Configuring(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-source-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def configure(self, **settings: str) -> str:
        given = {"CMAKE_CXX_COMPILER": COMPILER, "CMAKE_MAKE_PROGRAM": shutil.which("ninja") or "ninja", **dict.fromkeys(HIDDEN, "OFF"), **settings}
        command = [CMAKE, "-G", "Ninja", "-S", str(ROOT), "-B", str(self.folder / "build"), *(f"-D{name}={value}" for name, value in given.items())]
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_ROOT") and name != "CMAKE_PREFIX_PATH"}
        ended = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertNotEqual(ended.returncode, 0, ended.stdout)
        self.assertEqual(ended.stdout.count("CMake Error"), 1, ended.stdout)
        return ended.stdout

    def packages(self, told: str) -> list[str]:
        lines = re.findall(r"^ *On Debian and Ubuntu: apt-get install (.*)$", told, re.MULTILINE)
        self.assertEqual(len(lines), 1, told)
        return lines[0].split()

    def test_all_that_is_missing_is_named_at_once(self) -> None:
        told = self.configure(PENSTOCK_UCX="ON", PENSTOCK_BUILD_TESTS="ON")
        wanted = ["libfmt-dev", "nlohmann-json3-dev", "libucx-dev", "libcli11-dev", "libxxhash-dev", "libgtest-dev"]
        self.assertEqual([each for each in self.packages(told) if each in wanted], wanted)
        for package in wanted:
            self.assertRegex(told, rf"(?m)^ +\S.*: {package}$")

    def test_what_is_left_out_is_not_asked_for(self) -> None:
        told = self.configure(PENSTOCK_BUILD_CLI="OFF", PENSTOCK_BUILD_TESTS="OFF")
        self.assertEqual(self.packages(told), ["libfmt-dev"])

    def test_the_packages_of_setup_hold_all_that_is_named(self) -> None:
        installed = (ROOT / "tools/setup").read_text()
        for package in self.packages(self.configure(PENSTOCK_UCX="ON", PENSTOCK_BUILD_TESTS="ON")):
            self.assertRegex(installed, rf"packages=\([^)]*\b{package}\b")

    def test_a_python_without_what_pyproject_requires_is_told(self) -> None:
        """A venv has nothing."""
        venv.create(self.folder / "venv", with_pip=False)
        python = self.folder / "venv/bin/python"
        told = self.configure(PENSTOCK_BUILD_CLI="OFF", PENSTOCK_BUILD_TESTS="OFF", PENSTOCK_BUILD_PYTHON="ON", Python_EXECUTABLE=str(python))
        self.assertEqual([each for each in self.packages(told) if each != "python3-dev"], ["libfmt-dev", "nlohmann-json3-dev"])
        if "python3-dev" not in told:
            self.assertIn(f"{python} -m pip install nanobind", told)


def build_by_pip(folder: Path) -> int:
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv/bin/python")
    settings = {"PENSTOCK_BUILD_CLI": "OFF", **dict.fromkeys(HIDDEN, "OFF")}
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--verbose", str(ROOT)]
    command += [f"--config-settings=cmake.define.{name}={value}" for name, value in settings.items()]
    environment = {**os.environ, "CXX": COMPILER, "TMPDIR": str(folder)}
    ended = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if ended.returncode and "installing build dependencies" in ended.stdout.lower() and "No matching distribution" in ended.stdout:
        print("skipped: PyPI does not answer")
        return SKIPPED
    if ended.returncode:
        print(ended.stdout)
        return 1
    # Of the headers of PyPI, and not of what this system has.
    for package in ("cmeel-fmt", "nlohmann-json", "nvidia-nvtx"):
        if f"using PyPI's {package}" not in ended.stdout:
            print(f"{ended.stdout}\n{package} was not taken from PyPI")
            return 1
    tried = subprocess.run([python, "-c", PROGRAM], cwd=folder, text=True, check=False)
    return tried.returncode


def main() -> int:
    if SELECTION == "long":
        with tempfile.TemporaryDirectory(prefix="penstock-source-", dir="/var/tmp") as folder:
            return build_by_pip(Path(folder))
    return 0 if unittest.main(argv=sys.argv[:1], exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
