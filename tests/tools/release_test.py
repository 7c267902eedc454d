"""What a release says of itself: CHANGELOG.md begins with the version of version.hpp, and the package's extras are those of the docs.

Usage: release_test.py [WHEEL]   (a wheel's own metadata in place of pyproject.toml)
"""

from __future__ import annotations

import re
import sys
import tomllib
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEEL = sys.argv.pop(1) if len(sys.argv) > 1 else None
EXTRAS = {"numpy": "numpy", "cupy": "cupy-cuda13x", "cuda13": "cupy-cuda13x", "cupy12": "cupy-cuda12x", "cuda12": "cupy-cuda12x", "torch": "torch", "zarr": "zarr"}


def version() -> str:
    text = (ROOT / "include/penstock/version.hpp").read_text()
    return ".".join(re.findall(r"#define PENSTOCK_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))


def extras() -> dict[str, str]:
    if WHEEL is None:
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        return {name: re.split(r"[<>=]", needs[0])[0] for name, needs in declared.items()}
    with zipfile.ZipFile(WHEEL) as archive:
        metadata = archive.read(next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))).decode()
    return {name: needed for needed, name in re.findall(r"^Requires-Dist: ([\w-]+).*extra == ['\"](\w+)['\"]", metadata, re.MULTILINE)}


class Release(unittest.TestCase):
    def test_the_changelog_begins_with_this_version(self) -> None:
        self.assertEqual(re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0], version())

    def test_each_extra_installs_what_it_says(self) -> None:
        self.assertEqual(extras(), EXTRAS)


if __name__ == "__main__":
    unittest.main()
