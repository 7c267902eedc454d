#!/usr/bin/env python3
"""Tests tests/support/together.py with a program that behaves like a GoogleTest program."""

import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "together.py"

# Each case does what its name says. long_ cases are left out by the filter.
PROGRAM = """#!{python}
import os, sys
given = dict(each[2:].partition("=")[::2] for each in sys.argv[1:])
cases = [name for name in {cases!r} if not name.startswith("long_")]
if "gtest_list_tests" in given:
    print("ways/rooms.")
    for name in cases:
        print(f"  {{name}}  # GetParam() = 1")
    sys.exit()
wanted = [name.rpartition(".")[2] for name in given["gtest_filter"].split(":")]
results = []
for name in wanted:
    print("runs", name)
    if "crashes" in name or ("needs_to_be_alone" in name and len(wanted) > 1):
        sys.stdout.flush()
        os.abort()
    inside = ""
    if "fails" in name or ("likes_to_be_alone" in name and len(wanted) > 1):
        inside = '<failure message="no"/>'
    if "skips" in name:
        inside = '<skipped message="a_test.cc:1&#x0A;no GPU&#x0A;"/>'
    results.append(f'<testcase name="{{name}}" status="run" time="0.1" classname="ways/rooms">{{inside}}</testcase>')
open(given["gtest_output"].partition(":")[2], "w").write(f"<testsuites><testsuite>{{''.join(results)}}</testsuite></testsuites>")
"""


class together(unittest.TestCase):
    def outcomes(self, *cases, index=0, total=1):
        """The exit status, a word for each case, and the output."""
        with tempfile.TemporaryDirectory() as folder:
            program, results = Path(folder, "program"), Path(folder, "new", "results.xml")
            program.write_text(PROGRAM.format(python=sys.executable, cases=cases))
            program.chmod(0o700)
            done = subprocess.run([sys.executable, SCRIPT, program, "core.", str(index), str(total), "long_*", results], capture_output=True, text=True)
            self.assertEqual(done.stderr, "")
            found = {}
            for case in ElementTree.parse(results).getroot():
                inside = list(case)
                self.assertEqual("alone" in case.attrib, case.get("name") in done.stdout)
                found[case.get("name").removeprefix("core.ways/rooms.")] = f"{inside[0].tag}: {inside[0].get('message')}" if inside else "passed"
            return done.returncode, found, done.stdout

    def test_cases_run_once_in_one_process(self):
        status, found, output = self.outcomes("a", "b", "skips", "long_c")
        self.assertEqual((status, found, output), (0, {"a": "passed", "b": "passed", "skips": "skipped: no GPU"}, ""))

    def test_each_process_takes_its_share(self):
        cases = [f"c{number}" for number in range(7)]
        shares = [set(self.outcomes(*cases, index=index, total=3)[1]) for index in range(3)]
        self.assertEqual(sorted(map(len, shares)), [2, 2, 3])
        self.assertEqual(set().union(*shares), set(cases))

    def test_a_case_that_fails_beside_others_runs_again_on_its_own(self):
        for case in ("likes_to_be_alone", "needs_to_be_alone"):
            with self.subTest(case):
                status, found, output = self.outcomes("a", case, "b")
                self.assertEqual((status, found), (0, {"a": "passed", case: "passed", "b": "passed"}))
                self.assertIn(f"core.ways/rooms.{case} did not pass with other cases", output)

    def test_a_failure_is_a_failure(self):
        for case in ("fails", "crashes"):
            with self.subTest(case):
                status, found, output = self.outcomes("a", case, "skips")
                self.assertEqual((status, found), (1, {"a": "passed", case: "failure: see the output", "skips": "skipped: no GPU"}))
                self.assertIn(f"runs {case}", output)


if __name__ == "__main__":
    unittest.main()
