"""Tests tools/performance: the table in the docs matches the journal, a run with an existing build works, and wrong arguments are rejected.

Usage: performance_test.py PENSTOCK
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import tool_module

ROOT = Path(__file__).resolve().parents[2]
PENSTOCK = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else ROOT / "build/release/penstock"
PROGRAM = ROOT / "tools" / "performance"
PAGE = ROOT / "docs/internals/performance.md"
JOURNAL = ROOT / "bench/performance.jsonl"

performance = tool_module.load(PROGRAM)


def record(commit: str, date: str, fraction: float, **machine: object) -> dict[str, object]:
    of = {"cpu": "CPU", "cores": 2, "kernel": "6.1", "driver": "none", "file_system": "ext4", "device": "host device"} | machine
    row = {"value": 5.0, "unit": "GB/s", "ceiling": 10.0, "fraction": fraction, "cpu_s_per_gb": 0.1}
    return {"commit": commit, "date": date, "subject": "x: a `b` | c", "measured": date, "runs": 3, "size": "64MiB", "machine": of, "rows": {"hot-4g": row}}


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


def is_ancestor(commit: str) -> bool:
    return subprocess.run(["git", "-C", str(ROOT), "merge-base", "--is-ancestor", commit, "HEAD"], capture_output=True, check=False).returncode == 0


class Tool(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-performance-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def run_tool(self, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(each) for each in (PROGRAM, *words)], capture_output=True, text=True, check=False, timeout=240)


class Table(Tool):
    def test_the_page_has_the_table_of_the_journal(self) -> None:
        page = shutil.copy(PAGE, self.folder / "page.md")
        ended = self.run_tool("--table", "--page", page)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(Path(page).read_text(), PAGE.read_text(), "docs/internals/performance.md is older than its journal: run tools/performance --table")

    def test_each_commit_of_the_journal_is_one_that_led_here(self) -> None:
        if git("rev-parse", "--is-shallow-repository") == "true":
            self.skipTest("this clone is shallow: it lacks the commits that the journal names")
        commits = {each["commit"] for each in performance.records_in(JOURNAL)}
        strangers = [each for each in sorted(commits) if not is_ancestor(each)]
        self.assertEqual(strangers, [], "bench/performance.jsonl names commits that are not in the history of HEAD: measure their successors")

    def test_each_machine_has_its_table_with_the_newest_commit_first(self) -> None:
        records = [
            record("aaaaaaaaaa", "2026-01-01T00:00:00+00:00", 0.5),
            record("bbbbbbbbbb", "2026-01-02T00:00:00+00:00", 0.25),
            record("bbbbbbbbbb", "2026-01-02T00:00:00+00:00", 0.75),
            record("cccccccccc", "2026-01-03T00:00:00+00:00", 0.9, device="a GPU", driver="580"),
        ]
        lines = performance.table_of(records).splitlines()
        self.assertEqual(
            lines,
            [
                "### host device; CPU, 2 cores, Linux 6.1, ext4; file of 64MiB",
                "| commit checked out | date | hot-4g | what it did |",
                "|---|---|---|---|",
                "| bbbbbbb | 2026-01-02 | 0.75 / 0.100 | `x: a 'b' / c` |",
                "| aaaaaaa | 2026-01-01 | 0.50 / 0.100 | `x: a 'b' / c` |",
                "",
                "### a GPU, driver 580; CPU, 2 cores, Linux 6.1, ext4; file of 64MiB",
                "| commit checked out | date | hot-4g | what it did |",
                "|---|---|---|---|",
                "| ccccccc | 2026-01-03 | 0.90 / 0.100 | `x: a 'b' / c` |",
            ],
        )

    def test_a_row_that_a_commit_lacks_has_no_figure(self) -> None:
        older = record("aaaaaaaaaa", "2026-01-01T00:00:00+00:00", 0.5)
        newer = record("bbbbbbbbbb", "2026-01-02T00:00:00+00:00", 0.5)
        older["rows"] = {"cold-4g": older["rows"]["hot-4g"]}
        self.assertIn("| bbbbbbb | 2026-01-02 | 0.50 / 0.100 | - |", performance.table_of([older, newer]))

    def test_the_best_value_stands_beside_the_best_ceiling(self) -> None:
        speeds = [{"value": value, "unit": "GB/s", "ceiling": ceiling, "cpu_s_per_gb": value} for value, ceiling in ((4, 10), (8, 9), (6, 8))]
        self.assertEqual(performance.best_of(speeds), {"value": 8, "unit": "GB/s", "ceiling": 10, "fraction": 0.8, "cpu_s_per_gb": 4})
        times = [{"value": value, "unit": "us", "ceiling": ceiling, "cpu_s_per_gb": value} for value, ceiling in ((10, 4), (8, 6))]
        self.assertEqual(performance.best_of(times), {"value": 8, "unit": "us", "ceiling": 4, "fraction": 0.5, "cpu_s_per_gb": 8})


class Measuring(Tool):
    def test_a_build_that_is_there_is_measured_as_the_commit_that_is_checked_out(self) -> None:
        journal = self.folder / "journal.jsonl"
        words = ("--runs", 1, "--size", "64MiB", "--rows", "hot-1m,call-4k", "--device", "host:0", "--journal", journal, "--dir", self.folder)
        ended = self.run_tool("--build", PENSTOCK.parent, *words)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        (found,) = [json.loads(line) for line in journal.read_text().splitlines()]
        self.assertEqual((found["commit"], found["runs"], found["size"], found["machine"]["device"]), (git("rev-parse", "HEAD"), 1, "64MiB", "host device"))
        self.assertEqual({name: row["unit"] for name, row in found["rows"].items()}, {"hot-1m": "GB/s", "call-4k": "us"})
        for row in found["rows"].values():
            self.assertGreater(min(row["value"], row["ceiling"], row["fraction"], row["cpu_s_per_gb"]), 0)

    def test_errors_say_what_is_wrong(self) -> None:
        journal = self.folder / "journal.jsonl"
        for status, text, *words in (
            (1, 'there is no commit "nowhere"', "nowhere"),
            (1, "penstock is not there: build it", "--build", self.folder),
            (1, "No such file or directory", "--table"),
            (2, 'no row "hot" is kept', "--rows", "hot"),
            (2, "--build is of one commit", "--build", PENSTOCK.parent, "HEAD", "HEAD~1"),
        ):
            ended = self.run_tool("--journal", journal, *words)
            self.assertEqual(ended.returncode, status, ended.stderr)
            self.assertIn(text, ended.stderr)
        self.assertFalse(journal.exists())

    def test_a_page_without_a_place_for_the_table_is_left_as_it_is(self) -> None:
        page = self.folder / "page.md"
        page.write_text("# A page\n")
        ended = self.run_tool("--table", "--page", page)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("lacks the lines between which the table stands", ended.stderr)
        self.assertEqual(page.read_text(), "# A page\n")

    def test_outside_of_a_git_repository_it_says_so(self) -> None:
        (self.folder / "tools").mkdir()
        alone = shutil.copy(PROGRAM, self.folder / "tools" / "performance")
        ended = subprocess.run([alone, "--build", PENSTOCK.parent], capture_output=True, text=True, check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("looking for a git repository", ended.stderr)


if __name__ == "__main__":
    if not (ROOT / ".git").exists():
        print("skipped: these sources are not a git repository, and a journal names commits")
        sys.exit(77)
    unittest.main()
