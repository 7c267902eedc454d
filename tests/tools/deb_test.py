"""Tests the Debian packages that cpack makes from a build: their contents and dependencies, and that the command runs from the unpacked packages.

Usage: deb_test.py CPACK BUILD_DIRECTORY [PACKAGES]   (a finished build of the preset install; PACKAGES: a folder of packages that cpack made from it)
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPACK, BUILD = sys.argv[1], Path(sys.argv[2]).resolve()
SKIPPED = 77
NAMES = ("penstock", "libpenstock0", "libpenstock-dev")


def output(*command: object, **settings: object) -> str:
    ended = subprocess.run([str(each) for each in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **settings)  # type: ignore[call-overload]
    if ended.returncode:
        raise AssertionError(f"{command}: {ended.returncode}\n{ended.stdout}")
    return str(ended.stdout)


class Packages(unittest.TestCase):
    folder: Path
    debs: dict[str, Path]
    scratch: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(tempfile.mkdtemp(prefix="penstock-deb-", dir="/var/tmp"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        packages = Path(sys.argv[3]).resolve() if len(sys.argv) > 3 else cls.folder / "packages"
        if len(sys.argv) == 3:
            output(CPACK, "-G", "DEB", "-B", packages, cwd=BUILD)
        cls.debs = {path.name.split("_")[0]: path for path in packages.glob("*.deb")}
        cls.scratch = cls.folder / "root"
        for deb in cls.debs.values():
            output("dpkg-deb", "-x", deb, cls.scratch)

    def field(self, package: str, name: str) -> str:
        return output("dpkg-deb", "-f", self.debs[package], name).strip()

    def files(self, package: str) -> list[str]:
        listed = [line.split(maxsplit=5)[5] for line in output("dpkg-deb", "-c", self.debs[package]).splitlines()]
        return [each.split(" -> ")[0].removeprefix(".") for each in listed if not each.endswith("/")]

    def test_three_packages_share_no_file(self) -> None:
        self.assertEqual(sorted(self.debs), sorted(NAMES))
        every = [each for name in NAMES for each in self.files(name)]
        self.assertEqual(len(every), len(set(every)))

    def test_each_holds_what_it_is_for(self) -> None:
        version = self.field("penstock", "Version").split("-")[0]
        wanted = {
            "penstock": ["/bin/penstock", "/man/man1/penstock.1.gz", "/bash-completion/completions/penstock", "/zsh/vendor-completions/_penstock",
                         "/fish/vendor_completions.d/penstock.fish", "/share/penstock/_startup/sitecustomize.py"],
            "libpenstock0": ["/libpenstock.so.0", f"/libpenstock.so.{version}", "/penstock/libcufile.so.0", "/penstock/libpenstock_audit.so",
                             "/penstock/libpenstock_device_node.so", "/penstock/libpenstock_direct_io.so"],
            "libpenstock-dev": ["/libpenstock.so", "/include/penstock/penstock.hpp", "/include/penstock/cufile/cufile.h", "/cmake/penstock/penstockConfig.cmake",
                                "/pkgconfig/penstock.pc", "/pkgconfig/penstock-cufile.pc"],
        }  # fmt: skip
        for package, ends in wanted.items():
            held = self.files(package)
            for end in (*ends, "/copyright", "/changelog.gz", "/changelog.Debian.gz"):
                self.assertEqual(len([each for each in held if each.endswith(end)]), 1, f"{package}: {end} in {held}")
        self.assertFalse([each for each in self.files("penstock") if re.search(r"\.(so|hpp|cmake)", each)])
        self.assertFalse([each for each in self.files("libpenstock0") if "/include/" in each or "/bin/" in each])

    def test_each_needs_the_library_of_its_own_version(self) -> None:
        version = self.field("libpenstock0", "Version")
        for package in ("penstock", "libpenstock-dev"):
            self.assertIn(f"libpenstock0 (= {version})", self.field(package, "Depends").split(", "))
        for package in ("penstock", "libpenstock0"):
            needed = self.field(package, "Depends")
            self.assertRegex(needed, r"libc6 \(>= [\d.]+\)")
            self.assertRegex(needed, r"libstdc\+\+6 \(>= [\d.]+\)")
            self.assertNotIn("fmt", needed)

    def test_they_say_what_they_are(self) -> None:
        for package, section in zip(NAMES, ("utils", "libs", "libdevel")):
            self.assertEqual(self.field(package, "Section"), section)
            self.assertEqual(self.field(package, "Priority"), "optional")
            self.assertRegex(self.field(package, "Maintainer"), r"^\S.* <\S+@\S+>$")
            short, *rest = self.field(package, "Description").splitlines()
            self.assertLess(len(short), 80)
            self.assertTrue(rest)

    def test_the_library_is_made_known_to_the_linker(self) -> None:
        output("dpkg-deb", "-e", self.debs["libpenstock0"], self.folder / "control")
        self.assertIn("activate-noawait ldconfig", (self.folder / "control/triggers").read_text())
        version = self.field("libpenstock0", "Version")
        self.assertIn(f"libpenstock 0 libpenstock0 (= {version})", (self.folder / "control/shlibs").read_text())

    def test_licence_and_changelog_are_there(self) -> None:
        for package in NAMES:
            documents = self.scratch / "usr/share/doc" / package
            self.assertIn("/usr/share/common-licenses/Apache-2.0", (documents / "copyright").read_text())
            self.assertIn("{fmt}", (documents / "copyright").read_text())
            self.assertEqual(gzip.open(documents / "changelog.gz", "rt").read(), (ROOT / "CHANGELOG.md").read_text())
            self.assertIn(f"penstock ({self.field(package, 'Version')}) ", gzip.open(documents / "changelog.Debian.gz", "rt").read())

    def test_the_command_runs_where_they_are_unpacked(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "PENSTOCK_"))}
        command = self.scratch / "usr/bin/penstock"
        version = self.field("penstock", "Version").split("-")[0]
        self.assertEqual(output(command, "--version", env=environment), f"penstock {version}\n")
        (self.folder / "data").write_bytes(os.urandom(1_000_003))
        self.assertIn("data", output(command, "read", self.folder / "data", "--device", "host", "--verify", env=environment))
        program = "import ctypes; ctypes.CDLL('libcufile.so.0').cuFileGetVersion; print(open('/proc/self/maps').read())"
        maps = output(command, "run", "--", sys.executable, "-c", program, env=environment)
        libraries = {Path(line.split()[-1]).resolve() for line in maps.splitlines() if re.search(r"/lib(cufile|penstock)\.so", line)}
        self.assertEqual(len(libraries), 2, maps)
        for library in libraries:
            self.assertTrue(library.is_relative_to(self.scratch), library)

    def test_a_program_is_built_against_them(self) -> None:
        """And runs from the packages' library, not one of this machine's."""
        [described] = self.scratch.glob("usr/lib*/**/penstock.pc")
        environment = {**os.environ, "PKG_CONFIG_PATH": str(described.parent)}
        flags = output("pkg-config", "--cflags", "--libs", "penstock", env=environment).split()
        output("c++", "-std=c++20", ROOT / "tests/install/consumer/consumer.cc", "-o", self.folder / "consumer", *flags)
        version = self.field("penstock", "Version").split("-")[0]
        self.assertIn(version, output(self.folder / "consumer", self.folder / "consumed"))

    def test_lintian_finds_no_error(self) -> None:
        if shutil.which("lintian") is None:
            self.skipTest("lintian is not installed")
        told = subprocess.run(["lintian", "--fail-on", "none", *self.debs.values()], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        print(told.stdout)
        self.assertFalse(re.findall(r"^E: .*$", told.stdout, re.MULTILINE))


def main() -> int:
    for tool in ("dpkg-deb", "dpkg-shlibdeps", "pkg-config"):
        if shutil.which(tool) is None:
            print(f"skipped: {tool} is not installed")
            return SKIPPED
    return 0 if unittest.main(argv=sys.argv[:1], exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
