"""Tests that tools/wheels builds a wheel from this tree for each installed interpreter, and tries each in an empty venv. Needs PyPI. Takes minutes.

Usage: wheels_test.py
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALL_MADE, SOME_INTERPRETERS_MISSING, SKIPPED = 0, 3, 77


def has_nvtx(wheel: Path) -> bool:
    with zipfile.ZipFile(wheel) as archive:
        return any(b"NVTX_INJECTION64_PATH" in archive.read(name) for name in archive.namelist() if "/libpenstock.so" in name)


def complaints(output: Path) -> list[str]:
    ended = subprocess.run([sys.executable, str(ROOT / "tools" / "wheels"), "--output", str(output)], text=True, stderr=subprocess.PIPE, check=False)
    print(ended.stderr)
    if ended.returncode not in (ALL_MADE, SOME_INTERPRETERS_MISSING):
        return [f"tools/wheels: exit status {ended.returncode}"]
    made = sorted(each.name for each in output.glob("*.whl"))
    if not made:
        return ["no wheel was made: there is no interpreter with its headers"]
    found = [f"{name} is not named for glibc 2.28" for name in made if not name.endswith(f"-manylinux_2_28_{platform.machine()}.whl")]
    if ended.stderr.count(" works on Python ") < len(made):
        found.append("not every wheel was tried")
    found += [f"{each.name} has no ranges of NVTX" for each in output.glob("*.whl") if not has_nvtx(each)]
    return found


def main() -> int:
    if platform.machine() not in ("x86_64", "aarch64") or platform.libc_ver()[0] != "glibc":
        print("wheels_test: skipped: wheels are made with glibc on x86-64 and aarch64 only")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="penstock-wheels-") as folder:
        found = complaints(Path(folder))
    for each in found:
        print(each)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
