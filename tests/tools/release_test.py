"""Tests the metadata of a release, and tools/release: what it rejects, its pure functions and, with --long, a complete dry run.

Usage: release_test.py [WHEEL]   (checks the metadata of a wheel instead of pyproject.toml)
       release_test.py --long    (takes as long as four builds, and needs PyPI)
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest
import urllib.request
import zipfile
from pathlib import Path

import tool_module

ROOT = Path(__file__).resolve().parents[2]
IS_LONG = sys.argv[1:] == ["--long"]
WHEEL = sys.argv.pop(1) if len(sys.argv) > 1 and not IS_LONG else None
SKIPPED = 77
release = tool_module.load(ROOT / "tools" / "release")
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



class Tree(unittest.TestCase):
    """A small repository with the files that tools/release looks at."""

    def setUp(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="penstock-release-"))
        self.addCleanup(shutil.rmtree, self.root)
        for name in ("CMakeLists.txt", "pyproject.toml", "include/penstock/version.hpp"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        (self.root / "CHANGELOG.md").write_text(f"# Changes\n\n## {version()} (2026-12-01)\n\n- A line.\n\n## 0.0.1\n\n- An old line.\n")
        self.git("init", "--quiet")
        self.commit()

    def git(self, *arguments: str) -> None:
        who = ["-c", "user.name=A Tester", "-c", "user.email=tester@penstock.invalid"]
        subprocess.run(["git", *who, *arguments], cwd=self.root, check=True)

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "a commit")

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        self.assertIn(old, text)
        (self.root / name).write_text(text.replace(old, new, 1))
        self.commit()

    def problems(self, is_dry_run: bool = False) -> list[str]:
        return list(release.problems(self.root, release.Release(version(), is_dry_run)))

    def refuses(self, words: str, is_dry_run: bool = False) -> None:
        found = self.problems(is_dry_run)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_a_complete_tree_can_be_released(self) -> None:
        self.assertEqual(self.problems(), [])

    def test_changes_and_new_files_are_refused(self) -> None:
        (self.root / "CHANGELOG.md").write_text((self.root / "CHANGELOG.md").read_text() + "\n")
        (self.root / "new").touch()
        for is_dry_run in (False, True):
            self.refuses("the tree has changes: CHANGELOG.md, new.", is_dry_run)

    def test_a_tag_is_refused_unless_nothing_is_tagged(self) -> None:
        self.git("tag", f"v{version()}")
        self.refuses(f"the tag v{version()} exists")
        self.assertEqual(self.problems(is_dry_run=True), [])

    def test_the_tag_of_another_version_is_refused(self) -> None:
        self.git("tag", "v7.0.1")
        self.refuses("has the tag v7.0.1", is_dry_run=True)

    def test_a_version_of_its_own_in_one_build_file_is_refused(self) -> None:
        for name, old, new in (
            ("CMakeLists.txt", "VERSION ${penstock_version}", "VERSION 7.0.1"),
            ("pyproject.toml", 'dynamic = ["version"]', 'version = "7.0.1"'),
        ):
            with self.subTest(name):
                self.replace(name, old, new)
                self.refuses("7.0.1")
                self.replace(name, new, old)

    def test_a_version_without_a_section_of_the_changelog_is_refused(self) -> None:
        for heading in ("## 7.0.1", f"## {version()}0", f"## {version()}\n\n## 0.0.2"):
            with self.subTest(heading):
                self.replace("CHANGELOG.md", f"## {version()} (2026-12-01)", heading)
                self.refuses(f'no section "## {version()}"', is_dry_run=True)
                self.replace("CHANGELOG.md", heading, f"## {version()} (2026-12-01)")

    def test_a_section_that_is_not_yet_published_can_only_be_tried(self) -> None:
        self.replace("CHANGELOG.md", "(2026-12-01)", "(not yet published)")
        self.refuses("not yet published")
        self.assertEqual(self.problems(is_dry_run=True), [])


class Functions(unittest.TestCase):
    def test_the_version_is_the_same_everywhere(self) -> None:
        for ask in (release.version_of_header, release.version_of_cmake, release.version_of_python):
            self.assertEqual(ask(ROOT), version())

    def test_a_section_ends_where_the_next_begins(self) -> None:
        text = "# Changes\n\n## 2.0.0 (today)\n\n- New.\n\n### More\n\n- Small.\n\n## 1.0.0\n\n- Old.\n"
        self.assertEqual(release.changelog_section(text, "2.0.0"), ("2.0.0 (today)", "- New.\n\n### More\n\n- Small."))
        self.assertEqual(release.changelog_section(text, "1.0.0"), ("1.0.0", "- Old."))
        self.assertIsNone(release.changelog_section(text, "1.0"))

    def test_files_that_git_does_not_know_are_found_in_the_source_distribution(self) -> None:
        names = ["penstock-1", "penstock-1/PKG-INFO", "penstock-1/src", "penstock-1/src/a.cc", "penstock-1/build/src/a.o"]
        self.assertEqual(release.strangers_in(names, ["src/a.cc", "README.md"]), ["build/src/a.o"])

    def test_options_are_known(self) -> None:
        options = release.parse_arguments(["--dry-run", "--only", "sbom"])
        self.assertTrue(options.dry_run)
        self.assertEqual(options.only, "sbom")

    def test_the_bill_of_materials_and_notice_name_the_same_libraries(self) -> None:
        bill = tool_module.load(ROOT / "packaging" / "release" / "sbom.py")
        contained = (ROOT / "NOTICE").read_text().split("Built binaries contain code of:")[1]
        self.assertEqual(sorted(re.findall(r"https://\S+?(?=[,\s]|$)", contained)), sorted(library.url for library in bill.LIBRARIES))


def dry_run() -> int:
    """In a clone, since a release takes no tree with changes."""
    try:
        urllib.request.urlopen("https://pypi.org/simple/build/", timeout=20).close()
    except OSError as error:
        print(f"release_test: skipped: PyPI does not answer: {error}")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="penstock-release-", dir="/var/tmp") as folder:
        clone = Path(folder) / "penstock"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        tags = release.git("tag", root=clone)
        if subprocess.run([str(clone / "tools" / "release"), "--dry-run"], check=False).returncode:
            return 1
        files = sorted(path.name for path in (clone / "dist").iterdir())
        for pattern in (r"penstock-.*\.whl", r"penstock-.*\.tar\.gz", r"penstock-.*\.cdx\.json", r"RELEASE_NOTES\.md", "SHA256SUMS"):
            if not any(re.fullmatch(pattern, name) for name in files):
                print(f"release_test: dist/ has no {pattern}: {files}")
                return 1
        if release.git("tag", root=clone) != tags:
            print("release_test: the dry run made a tag")
            return 1
    return 0


if __name__ == "__main__":
    if IS_LONG:
        sys.exit(dry_run())
    unittest.main()
