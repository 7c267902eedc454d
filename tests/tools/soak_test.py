"""Tests tools/soak: pieces of the real storm, a restart after kill -9, failing pieces, truncated journals, and the report.

Usage: soak_test.py STORM_TESTS
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STORM = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else ROOT / "build/release/tests/penstock_storm_tests"
SOAK = ROOT / "tools" / "soak"
MIB = 1 << 20


def piece(number: int, memory: tuple[int, int, int] = (300, 300, 300), descriptors: tuple[int, int, int] = (110, 110, 110), **others: object) -> dict[str, object]:
    """As the journal has it; memory in MiB."""
    in_bytes = [each * MIB for each in memory]
    made: dict[str, object] = {
        "began": "2026-01-01T00:00:00+00:00", "seed": number, "seconds": 300.0, "commit": "c0ffee", "build": "release", "program": "0123456789ab",
        "ended": "exit 0", "steps": 1000, "failed_allocations": 5, "samples": 270, "heap_bytes": {"start": 90 * 1024, "end": 170 * 1024},
        "resident_bytes": {"start": 15 * MIB, "end": 90 * MIB, "highest": max(in_bytes), "thirds": in_bytes},
        "descriptors": {"start": 3, "end": 3, "highest": max(descriptors), "thirds": list(descriptors)},
    }  # fmt: skip
    return made | others


class Soak(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def command(self, *words: object) -> list[str]:
        return [str(each) for each in (SOAK, "--folder", self.folder, *words)]

    def soak(self, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True, check=False, timeout=240)

    def journal(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "journal.jsonl").read_text().splitlines()]

    def write_journal(self, *pieces: dict[str, object], torn: str = "") -> None:
        (self.folder / "journal.jsonl").write_text("".join(json.dumps(each) + "\n" for each in pieces) + torn)

    def program(self, text: str) -> Path:
        made = self.folder / "program"
        made.write_text(f"#!/bin/sh\n{text}\n")
        made.chmod(0o755)
        return made


class Pieces(Soak):
    def test_a_piece_of_the_storm_leaves_a_line_with_what_the_storm_says_of_itself(self) -> None:
        ended = self.soak("--storm", STORM, "--seconds", 1, "--hours", "0.0001", "--seeds", "5")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        (found,) = self.journal()
        self.assertEqual((found["seed"], found["ended"]), (5, "exit 0"))
        self.assertGreaterEqual(found["seconds"], 1)
        self.assertGreater(found["steps"], 0)
        self.assertLessEqual(found["descriptors"]["end"], found["descriptors"]["start"])
        self.assertGreaterEqual(found["resident_bytes"]["highest"], found["resident_bytes"]["start"])
        self.assertIn("end", found["heap_bytes"])
        self.assertEqual(found["slab_bytes"]["end"], 0)
        self.assertGreater(found["malloc_bytes"]["highest"], 0)
        self.assertEqual(list((self.folder / "work").iterdir()), [])
        self.assertIn("in 1 pieces that passed, 0 failed", ended.stdout)

    def test_what_is_done_counts_when_it_is_started_again(self) -> None:
        words = ("--storm", self.program("exit 0"), "--hours", "0.0000001", "--seeds", "5")
        self.assertEqual(self.soak(*words).returncode, 0)
        again = self.soak(*words)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(len(self.journal()), 1)

    def test_after_a_kill_it_goes_on_with_the_seed_that_was_under_way(self) -> None:
        (self.folder / "journal.jsonl").touch()
        running = self.folder / "running.log"
        os.mkfifo(running)  # so that the storm's first words can be waited for
        reader = os.open(running, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        with subprocess.Popen(self.command("--storm", STORM, "--seconds", 600, "--seeds", "7")) as process:
            told = b""
            while b"PENSTOCK_STORM_SEED=7" not in told:
                self.assertTrue(select.select([reader], [], [], 120)[0], "the storm says nothing")
                told += os.read(reader, 4096)
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGKILL)
        while select.select([reader], [], [], 120)[0] and os.read(reader, 4096):  # until the storm has ended too
            pass
        running.unlink()
        self.assertEqual(self.journal(), [])
        again = self.soak("--storm", STORM, "--seconds", 1, "--hours", "0.0001", "--seeds", "7")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual([each["seed"] for each in self.journal()], [7])

    def test_one_that_fails_is_kept_and_told_with_the_command_that_repeats_it(self) -> None:
        ended = self.soak("--storm", self.program("echo the reason; exit 1"), "--seconds", 1, "--seeds", "8,9", "--failures", "2")
        self.assertEqual(ended.returncode, 1)
        self.assertEqual([(each["seed"], each["ended"], each["steps"]) for each in self.journal()], [(8, "exit 1", None), (9, "exit 1", None)])
        for each in self.journal():
            self.assertEqual((self.folder / str(each["output"])).read_text(), "the reason\n")
        self.assertIn("given up after 2 pieces", ended.stderr)
        commands = re.findall(r"this repeats it: (.*)", ended.stderr)
        self.assertTrue(commands[0].startswith("PENSTOCK_STORM_SEED=8 PENSTOCK_STORM_SECONDS=1 "), commands)
        repeated = subprocess.run(commands[0], shell=True, capture_output=True, text=True, check=False)
        self.assertEqual((repeated.returncode, repeated.stdout), (1, "the reason\n"))

    def test_one_that_failed_is_not_forgotten_when_the_hours_have_passed(self) -> None:
        words = ("--storm", self.program('test "$PENSTOCK_STORM_SEED" = 9'), "--hours", "0.0000001", "--seeds", "8,9")
        for _ in range(2):
            ended = self.soak(*words)
            self.assertEqual(ended.returncode, 1, ended.stderr)
            self.assertIn("in 1 pieces that passed, 1 failed", ended.stdout)

    def test_one_that_is_killed_while_it_tells_its_figures_counts_without_them(self) -> None:
        ended = self.soak("--storm", self.program("printf 'storm figures: {\"steps\": 12, \"resi'; kill -KILL $$"), "--failures", "1")
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertEqual([(each["ended"], each["steps"]) for each in self.journal()], [("signal 9", None)])
        self.assertIn("0 steps, 0 allocations failed", ended.stdout)

    def test_the_signal_that_ended_one_is_told(self) -> None:
        ended = self.soak("--storm", self.program("kill -ABRT $$"), "--failures", "1")
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(self.journal()[0]["ended"], "signal 6")

    def test_a_line_that_was_torn_is_left_out_and_the_next_begins_a_new_one(self) -> None:
        self.write_journal(piece(1), torn='{"seed": 2, "secon')
        told = self.soak("--report")
        self.assertIn("left out: 1 lines", told.stderr)
        self.assertIn("in 1 pieces that passed", told.stdout)
        self.soak("--storm", self.program("exit 0"), "--hours", "0.0000001", "--seeds", "3")
        lines = (self.folder / "journal.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(lines[0])["seed"], json.loads(lines[2])["seed"]], [1, 3])


class Report(Soak):
    def report(self, *pieces: dict[str, object]) -> tuple[int, str]:
        self.write_journal(*pieces)
        told = self.soak("--report")
        return told.returncode, told.stdout

    def test_level_pieces_are_flat(self) -> None:
        status, text = self.report(*(piece(number) for number in range(4)))
        self.assertEqual(status, 0)
        self.assertIn("0.33 h in 4 pieces that passed, 0 failed", text)
        self.assertIn("4,000 steps, 20 allocations failed", text)
        self.assertIn("resident memory: flat; over a piece +0.0 MiB", text)
        self.assertIn("descriptors: flat", text)
        self.assertIn("malloc's heap, when all is closed: +80 KiB at most", text)

    def test_growth_over_a_piece_is_not_flat(self) -> None:
        status, text = self.report(*(piece(number, memory=(300, 320, 340)) for number in range(4)))
        self.assertEqual(status, 1)
        self.assertIn("resident memory: NOT FLAT; over a piece +40.0 MiB (+800.0 MiB an hour)", text)
        status, text = self.report(*(piece(number, descriptors=(100, 105, 110)) for number in range(4)))
        self.assertEqual(status, 1)
        self.assertIn("descriptors: NOT FLAT; over a piece +10.0", text)

    def test_growth_over_the_pieces_is_not_flat(self) -> None:
        status, text = self.report(*(piece(number, memory=(300 + 20 * number,) * 3) for number in range(4)))
        self.assertEqual(status, 1)
        self.assertIn("over the pieces +60.0 MiB (+240.0 MiB an hour)", text)

    def test_few_pieces_say_nothing(self) -> None:
        status, text = self.report(piece(1), piece(2))
        self.assertEqual(status, 0)
        self.assertIn("resident memory: 2 pieces with samples are too few to say", text)

    def test_a_failure_is_in_it_and_subjects_are_apart(self) -> None:
        status, text = self.report(piece(1, commit="older"), piece(2, ended="signal 6", output="failed-2.log"))
        self.assertEqual(status, 1)
        self.assertIn("FAILED: seed 2, signal 6, 300 s, output in failed-2.log", text)
        self.assertLess(text.index("commit checked out older"), text.index("commit checked out c0ffee"))


class Errors(Soak):
    def fails(self, status: int, text: str, *words: object) -> None:
        ended = self.soak(*words)
        self.assertEqual(ended.returncode, status, ended.stderr)
        self.assertIn(text, ended.stderr)

    def test_each_says_what_is_wrong(self) -> None:
        self.fails(1, "nothing has been run", "--report")
        self.fails(1, "cmake --build --preset nowhere --target penstock_storm_tests", "--preset", "nowhere")
        self.fails(1, "No such file or directory", "--storm", "/nowhere/storm")
        self.fails(2, "seeds are numbers", "--seeds", "one")
        self.fails(2, "invalid positive value", "--hours", "-1")

    def test_outside_of_a_git_repository_it_says_so(self) -> None:
        (self.folder / "tools").mkdir()
        alone = shutil.copy(SOAK, self.folder / "tools" / "soak")
        ended = subprocess.run([alone, "--storm", "/bin/true"], capture_output=True, text=True, check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("is not a git repository", ended.stderr)


if __name__ == "__main__":
    if not (ROOT / ".git").exists():
        print("skipped: these sources are not a git repository, and a journal names commits")
        sys.exit(77)
    unittest.main()
