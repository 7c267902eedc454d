#!/usr/bin/env python3
"""Runs every TOTAL-th case of a GoogleTest program in one process, which takes half the CPU time of one process per case. A case that does not pass
there runs again alone, and only that run counts, as in ctest.

Usage: together.py PROGRAM PREFIX INDEX TOTAL LEFT_OUT RESULTS
LEFT_OUT: a filter of GoogleTest for cases that do not run. RESULTS: a JUnit file with a result for each case, named PREFIX and its name.
Exit status: 1 if a case failed.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

TOGETHER_SECONDS = 400
ALONE_SECONDS = 180
# Memory that a case has freed serves the next one: the kernel need not zero it again.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(256 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


def names_of(program, left_out):
    """Returns the cases in the program's order."""
    names, suite = [], ""
    for line in subprocess.run([program, "--gtest_list_tests", f"--gtest_filter=-{left_out}"], check=True, capture_output=True, text=True).stdout.splitlines():
        name = line.partition("#")[0].strip()
        if not line.startswith(" "):
            suite = name
        elif "DISABLED_" not in name:
            names.append(suite + name)
    return names


def run(program, names, seconds, environment):
    """Returns the results of the cases that finished, by name, and the output."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as file:
        command = [program, f"--gtest_output=xml:{file.name}", f"--gtest_filter={':'.join(names)}"]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, env={**os.environ, **environment})
            output = done.stdout
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"") + f"\nstill running after {seconds} s".encode()
        try:
            cases = ElementTree.parse(file.name).getroot().iter("testcase")
        except ElementTree.ParseError:  # the program did not finish
            cases = ()
        return {f"{each.get('classname')}.{each.get('name')}": each for each in cases if each.get("status") == "run"}, output.decode(errors="replace")


def skip_reason(case):
    """Returns the reason without GoogleTest's first line, which is the location."""
    message = case.find("skipped").get("message") or ""
    return " ".join(message.partition("\n")[2].split()) or "no reason given"


def main():
    program, prefix, index, total, left_out, results = sys.argv[1:]
    names = names_of(program, left_out)[int(index) :: int(total)]
    found, output = run(program, names, TOGETHER_SECONDS, KEEP_MEMORY)
    suite = ElementTree.Element("testsuite")
    failed = False
    for name in names:
        case, attributes = found.get(name), {}
        if case is None or case.find("failure") is not None:
            alone, said = run(program, [name], ALONE_SECONDS, {})
            case = alone.get(name)
            attributes["alone"] = "yes"
            print(f"{prefix}{name} did not pass with other cases:\n{output if name not in found else ''}\non its own:\n{said}")
        written = ElementTree.SubElement(suite, "testcase", attributes, name=prefix + name, time=case.get("time") if case is not None else "0")
        if case is None or case.find("failure") is not None:
            failed = True
            ElementTree.SubElement(written, "failure", message="see the output")
        elif case.find("skipped") is not None:
            ElementTree.SubElement(written, "skipped", message=skip_reason(case))
    Path(results).parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(results)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
