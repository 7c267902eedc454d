#!/ usr / bin / env python3
"""Runs the client `life` in each of its modes: it ends with the expected code, in time, says nothing, and leaves no file behind.

Usage: life_test.py LIFE LIBRARY
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

LIFE, LIBRARY = (Path(argument).resolve() for argument in sys.argv[1:3])
TIME_LIMIT_S = 60


class Life(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = Path(self.folder.name) / "data"
        self.file.write_bytes(os.urandom(8 << 20))
        self.work = Path(self.folder.name) / "work"
        self.work.mkdir()

    def run_mode(self, mode: str, expected: int, **environment: str) -> str:
        ended = subprocess.run(
            [LIFE, LIBRARY, self.file, mode],
            cwd=self.work,
            env={**os.environ, **environment},
            timeout=TIME_LIMIT_S,
            capture_output=True,
            text=True,
        )
        self.assertEqual(ended.returncode, expected, ended.stderr)
        self.assertEqual(ended.stdout, "")
        self.assertEqual(list(self.work.iterdir()), [], "a file was left in the working directory")
        return ended.stderr

    def test_exit_with_transfers_in_flight(self) -> None:
        # LeakSanitizer (g++ 12) takes the thread-local memory of a library that was opened at run time for one of 200 GB, and looks
        # through it while the threads stand still; what is in flight is no leak.
        options = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        for _ in range(5):
            self.assertEqual(self.run_mode("exit_in_flight", 7, ASAN_OPTIONS=options), "")

    def test_quick_exit_with_transfers_in_flight(self) -> None:
        for _ in range(5):
            self.assertEqual(self.run_mode("quick_exit_in_flight", 8), "")

    def test_use_in_an_exit_handler(self) -> None:
        self.assertEqual(self.run_mode("use_at_exit", 0), "")

    def test_unloading_and_loading_again(self) -> None:
        self.assertEqual(self.run_mode("reopen", 0), "")

    def test_forking_under_load(self) -> None:
        needed = subprocess.run(["ldd", LIBRARY], capture_output=True, text=True).stdout
        if "libasan" in needed:
            self.skipTest("the allocator of AddressSanitizer (g++ 12) does not survive a fork of several threads")
        if "libtsan" in needed:
            self.skipTest("ThreadSanitizer does not support new threads in a forked child")
        self.assertEqual(self.run_mode("fork", 0), "")

    def test_summary_is_told_when_asked_for(self) -> None:
        told = self.run_mode("read", 0, PENSTOCK_LOG="summary")
        self.assertRegex(told, r"^penstock: posix: 0\.00 GB in \d+ pieces at ")

    def test_summary_of_a_client_that_did_nothing(self) -> None:
        told = subprocess.run(
            [LIFE, LIBRARY, self.file, "no such mode"], env={**os.environ, "PENSTOCK_LOG": "summary"}, capture_output=True, text=True, timeout=TIME_LIMIT_S
        )
        self.assertEqual(told.stderr, "penstock: cuFile was not used\n")

    def test_a_log_is_written_where_it_was_asked_for(self) -> None:
        log = Path(self.folder.name) / "asked.log"
        self.run_mode("read", 0, CUFILE_LOGFILE_PATH=str(log), CUFILE_LOGGING_LEVEL="INFO")
        self.assertIn("open", log.read_text())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
