"""The command that the package carries."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.__main__ import command

SCRIPT = Path(sysconfig.get_path("scripts")) / "penstock"


def run(*words: Any, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120, **how)


@pytest.mark.parametrize("start", [[sys.executable, "-m", "penstock"], [SCRIPT], [command()]], ids=["-m", "script", "command"])
def test_the_command_runs(start: list[Any]) -> None:
    told = run(*start, "--version")
    assert (told.returncode, told.stdout, told.stderr) == (0, f"penstock {penstock.__version__}\n", "")
    assert run(*start, "no-such-command").returncode == 2
    assert "host:0" in run(*start, "devices").stdout


def test_its_exit_code_is_that_of_the_program() -> None:
    for code in (0, 7):
        assert run(sys.executable, "-m", "penstock", "run", "--", "sh", "-c", f"exit {code}").returncode == code


def test_a_file_is_read_and_verified(tmp_path: Path, pattern: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(pattern(1_000_001))
    told = run(sys.executable, "-m", "penstock", "read", path, "--verify")
    assert told.returncode == 0, told.stderr


def test_the_program_gets_the_packages_libcufile() -> None:
    code = "import ctypes; print(ctypes.CDLL('libcufile.so.0')._name); print(open('/proc/self/maps').read())"
    told = run(command(), "run", "--", sys.executable, "-c", code)
    assert told.returncode == 0, told.stderr
    assert str(command().parent.parent / "lib" / "penstock" / "libcufile.so.0") in told.stdout


def test_the_package_carries_its_libraries() -> None:
    folder = command().parent.parent
    assert (folder / "lib" / "libpenstock.so.0").is_file()
    for module in ("audit", "device_node", "direct_io"):
        assert (folder / "lib" / "penstock" / f"libpenstock_{module}.so").is_file()
    library = ctypes.CDLL(str(folder / "lib" / "penstock" / "libcufile.so.0"))
    version = ctypes.c_int()
    assert library.cuFileGetVersion(ctypes.byref(version)) == 0 or version.value > 0
    assert os.access(command(), os.X_OK)
