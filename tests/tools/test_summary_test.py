#!/usr/bin/env python3
"""Tests tools/test_summary.py on files in the format of ctest --output-junit."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from xml.sax.saxutils import escape

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "test_summary.py"

PASSED = '<testcase name="sys.reads" status="run"><system-out>[       OK ] reads</system-out></testcase>'
FAILED = '<testcase name="sys.writes" status="fail"><failure message=""/><system-out>boom</system-out></testcase>'
NOT_STARTED = '<testcase name="sys.gone" status="notrun"><skipped message="Unable to find executable"/></testcase>'


def skipped(reason):
    output = f"a_test.cc:12: Skipped\n{reason}\n\n[  SKIPPED ] a.b (0 ms)\n"
    return (
        '<testcase name="cuda.copies" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'
        f"<system-out>{output}</system-out></testcase>"
    )


SCRIPT_SKIPPED = (
    '<testcase name="clients.x" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>'
    "<system-out>x: skipped: needs a GPU: no libcuda.so.1\n0 passed</system-out></testcase>"
)
PYTEST_PASSED = '<testcase classname="a.b" name="works" time="0.1"/>'
PYTEST_FAILED = '<testcase classname="a.b" name="breaks" time="0.1"><failure message="boom"/></testcase>'
PYTEST_BROKEN = '<testcase classname="a.b" name="falls" time="0.1"><error message="boom"/></testcase>'
PYTEST_SKIPPED = '<testcase classname="a.b" name="waits" time="0"><skipped type="pytest.skip" message="no CUDA GPU"/></testcase>'

# What a line says, and reasons that it stands for.
KINDS = {
    "needs a GPU (CUDA)": ["no CUDA device", "needs a GPU", "no GPU: no libcuda.so.1", "cupy is not installed (GPU)", "no NVIDIA driver"],
    "needs a machine without a GPU": ["there is a GPU", "there is an NVIDIA driver: needs a machine without GPU", "there is a CUDA device"],
    "needs the package torch": ["PyTorch is not installed", "could not import 'torch': No module named 'torch'", "could not import 'torch.distributed.tensor'"],
    "needs the package safetensors": ["the safetensors library, to compare with, is not installed", "the safetensors library is not installed"],
    "needs the package moto": ["there is no moto_server here: pip install 'moto[server]'"],
    "needs the package cuda-python": ["cuda-python is not installed"],
    "needs tests/clients/run_clients.py fetch": ["a.tar.gz was not fetched; to fetch it, run `run_clients.py fetch --only fio --into FOLDER`"],
    "needs root": ["only root can become another user", "mounting a file system needs root: refused", "needs root, ip and unshare"],
    "needs a user who is not root": ["root reads all", "root may list any folder"],
}


class test_summary(unittest.TestCase):
    def summary(self, *files):
        with tempfile.TemporaryDirectory() as folder:
            names = []
            for index, cases in enumerate(files):
                names.append(Path(folder) / f"{index}.xml")
                names[-1].write_text(f'<?xml version="1.0"?>\n<testsuite name="t">{"".join(cases)}</testsuite>\n')
            done = subprocess.run([sys.executable, str(SCRIPT), *map(str, names)], capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout.splitlines()

    def test_totals_are_the_last_line_and_sum_over_files(self):
        code, lines = self.summary([PASSED, PASSED], [PASSED, skipped("no io_uring here")])
        self.assertEqual(code, 0)
        self.assertEqual(lines[-1], "3 passed, 0 failed, 1 skipped")

    def test_a_failure_is_named_and_sets_the_exit_status(self):
        code, lines = self.summary([PASSED, FAILED])
        self.assertEqual(code, 1)
        self.assertIn("FAILED sys.writes", lines)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")

    def test_a_test_that_could_not_start_has_failed(self):
        code, lines = self.summary([PASSED, NOT_STARTED])
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")

    def test_skips_are_counted_by_reason_most_first(self):
        _, lines = self.summary([PASSED, skipped("no io_uring here"), skipped("tmpfs drops no pages"), skipped("tmpfs drops no pages")])
        self.assertEqual(lines[:-1], ["skipped 2: tmpfs drops no pages", "skipped 1: no io_uring here"])

    def test_reasons_of_one_kind_are_one_line(self):
        for kind, reasons in KINDS.items():
            with self.subTest(kind):
                _, lines = self.summary([PASSED, *map(skipped, reasons)], [PYTEST_SKIPPED.replace("no CUDA GPU", escape(reason)) for reason in reasons])
                self.assertEqual(lines[:-1], [f"skipped {2 * len(reasons)}: {kind}"])

    def test_scripts_say_why_they_were_skipped(self):
        _, lines = self.summary([PASSED, SCRIPT_SKIPPED])
        self.assertIn("skipped 1: needs a GPU (CUDA)", lines)

    def test_files_of_pytest_are_added_up_too(self):
        code, lines = self.summary([PASSED], [PYTEST_PASSED, PYTEST_SKIPPED])
        self.assertEqual(code, 0)
        self.assertEqual(lines[-1], "2 passed, 0 failed, 1 skipped")
        self.assertIn("skipped 1: needs a GPU (CUDA)", lines)
        code, lines = self.summary([PYTEST_PASSED, PYTEST_FAILED, PYTEST_BROKEN])
        self.assertEqual(code, 1)
        self.assertIn("FAILED breaks", lines)
        self.assertEqual(lines[-1], "1 passed, 2 failed, 0 skipped")

    def test_a_process_of_many_cases_counts_only_if_it_fails(self):
        process = '<testcase name="contract.together_12" status="run"/>'
        code, lines = self.summary([process], [PYTEST_PASSED, PYTEST_SKIPPED])
        self.assertEqual((code, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))
        code, lines = self.summary([process.replace("run", "fail")], [PYTEST_PASSED])
        self.assertEqual((code, lines), (1, ["FAILED contract.together_12", "1 passed, 1 failed, 0 skipped"]))

    def test_a_case_that_ran_again_alone_is_named(self):
        _, lines = self.summary(['<testcase name="pipe.a" alone="yes"/>'])
        self.assertEqual(lines, ["ran again, alone: pipe.a (passed)", "1 passed, 0 failed, 0 skipped"])

    def test_no_test_at_all_is_no_success(self):
        code, lines = self.summary([])
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "0 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    unittest.main()
