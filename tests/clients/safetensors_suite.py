"""The safetensors library's own tests, unchanged, with Penstock in the library's place.

Usage: safetensors_suite.py [VERSION ...]    (the version that is installed)

Takes the sources of each version from PyPI, its wheel where another version is installed, and runs the tests of PyTorch and NumPy, once as they are
and once under penstock._startup, in an interpreter that has penstock, torch, numpy, safetensors and pytest. Some 20 seconds a version; it needs
PyPI. The results must be the same, and none may fail.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import penstock

STARTUP = Path(penstock.__file__).parent / "_startup"
OTHER_LIBRARIES = ("flax", "mlx", "paddle", "tf")

# pip asks the sources' build tool for their name before it saves them. That tool wants all of Rust's packages for an answer.
BUILD_TOOL = '''
import pathlib
def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = pathlib.Path(metadata_directory, "safetensors-0.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: safetensors\\nVersion: VERSION\\n")
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\\nGenerator: none\\nRoot-Is-Purelib: false\\nTag: py3-none-any\\n")
    return folder.name
'''


def pip(*words: str, **environment: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, env={**os.environ, **environment})


def sources_of(version: str, folder: Path) -> Path:
    """The folder of the Python bindings."""
    tool = folder / "tool"
    tool.mkdir()
    (tool / "maturin.py").write_text(BUILD_TOOL.replace("VERSION", version))
    quiet = ["--quiet", "--disable-pip-version-check"]
    pip("download", *quiet, "--no-deps", "--no-build-isolation", "--no-binary", "safetensors", f"safetensors=={version}", "--dest", str(folder), PYTHONPATH=str(tool))
    with tarfile.open(folder / f"safetensors-{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"safetensors-{version}" / "bindings" / "python"


def library_of(version: str, folder: Path) -> list[str]:
    """What has to stand in PYTHONPATH for this version to be imported."""
    if importlib.metadata.version("safetensors") == version:
        return []
    pip("install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(folder / "library"), f"safetensors=={version}")
    return [str(folder / "library")]


def outcome(tests: Path, paths: list[str], folder: Path) -> str:
    """What pytest counted. The tests write files below the folder that they are run in."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(tests, folder / "tests")
    left_out = [f"--ignore=tests/test_{each}_comparison.py" for each in OTHER_LIBRARIES]
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", *left_out]
    told = subprocess.run(words, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(paths)})
    last = told.stdout.strip().rpartition("\n")[2]
    counted = re.sub(r" in [\d.]+s.*", "", last)
    if told.returncode:
        print(told.stdout, told.stderr)
    return counted if told.returncode == 0 else f"failed: {counted}"


def check(version: str) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tests = sources_of(version, folder) / "tests"
        paths = library_of(version, folder)
        before = outcome(tests, paths, folder / "before")
        after = outcome(tests, [str(STARTUP), *paths], folder / "after")
    print(f"safetensors {version}: {before}; with Penstock in its place: {after}", flush=True)
    return before == after and not after.startswith("failed")


def main() -> int:
    versions = sys.argv[1:] or [importlib.metadata.version("safetensors")]
    matching = [check(each) for each in versions]  # checks all of them, also after one that differs
    return 0 if all(matching) else 1


if __name__ == "__main__":
    sys.exit(main())
