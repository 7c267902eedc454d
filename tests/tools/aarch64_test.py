"""tools/aarch64 without a cross compiler: how it parses the output of a suite, and which arguments it rejects.

Usage: aarch64_test.py
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import tool_module

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tools" / "aarch64"

aarch64 = tool_module.load(PROGRAM)

LOG = """\
[ RUN      ] a.passes
[       OK ] a.passes (3 ms)
[ RUN      ] a.is_skipped
/x/a_test.cc:7: Skipped
this kernel has no io_uring

[  SKIPPED ] a.is_skipped (0 ms)
[ RUN      ] all/a.fails/0
/x/a_test.cc:9: Failure
wrong
[  FAILED  ] all/a.fails/0, where GetParam() = 1 (2 ms)
[ RUN      ] a.ends_the_process
Segmentation fault
"""


class Tests(unittest.TestCase):
    def test_what_a_suite_prints_is_counted_also_where_it_ends_early(self) -> None:
        found = aarch64.read_log(LOG)
        self.assertEqual(found.passed, ["a.passes"])
        self.assertEqual(found.failed, ["all/a.fails/0", "a.ends_the_process (ended the process)"])
        self.assertEqual(found.skipped, {"a.is_skipped": "this kernel has no io_uring"})

    def kept_log(self, folder: Path, built_later: bool) -> str:
        """What goes on has of a run that was stopped in its last test."""
        binary = folder / "suite"
        binary.touch()
        with unittest.mock.patch.object(aarch64, "LOGS", folder / "logs"):
            self.assertEqual(aarch64.begin_log(binary, 64, go_on=False), "")
            log = aarch64.log_of(binary, 64)
            log.write_text(LOG)
            os.utime(binary, ns=(0, log.stat().st_mtime_ns + (1 if built_later else -1)))
            return str(aarch64.begin_log(binary, 64, go_on=True))

    def test_a_run_that_was_stopped_goes_on_with_the_test_that_had_not_ended(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            found = aarch64.read_log(self.kept_log(Path(name), built_later=False))
        self.assertEqual(aarch64.ended(found), {"a.passes", "all/a.fails/0", "a.is_skipped"})

    def test_what_another_build_has_printed_counts_for_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            self.assertEqual(self.kept_log(Path(name), built_later=True), "")

    def test_only_the_wanted_tests_of_a_run_before_are_counted(self) -> None:
        found = aarch64.only(aarch64.read_log(LOG), {"a.passes", "a.ends_the_process"})
        self.assertEqual(aarch64.told_of(found), "1 passed, 1 failed, 0 skipped")

    def test_links_to_absolute_names_stay_in_the_folder(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "usr/lib").mkdir(parents=True)
            (folder / "usr/lib/libx.so").symlink_to("/lib/libx.so.1")
            aarch64.unpack([], folder)
            self.assertEqual((folder / "usr/lib/libx.so").readlink(), Path("../../lib/libx.so.1"))

    def test_a_suite_that_is_not_there_is_named(self) -> None:
        told = subprocess.run([PROGRAM, "--suites", "nowhere"], capture_output=True, text=True, check=False)
        self.assertEqual(told.returncode, 2)
        self.assertIn('there is no suite "nowhere"', told.stderr)

    def test_lengths_of_pages_are_numbers(self) -> None:
        told = subprocess.run([PROGRAM, "--pages", "large"], capture_output=True, text=True, check=False)
        self.assertEqual(told.returncode, 2)
        self.assertIn("such as 4,64", told.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
