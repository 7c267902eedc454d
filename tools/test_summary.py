#!/usr/bin/env python3
"""Adds up the JUnit files that ctest and pytest wrote. Prints what was skipped, by reason, what failed, and the totals.

Usage: test_summary.py FILE...  Exit status: 0 when no test failed and at least one passed, else 1.
The last line reads: N passed, N failed, N skipped
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

# GoogleTest prints "file:line: Skipped", then the reason, up to "[  SKIPPED ]".
SKIP_REASON = re.compile(r": Skipped\n(.*?)\n+(?=\[  SKIPPED \]|\S+:\d+: )", re.DOTALL)
# Scripts print "name: skipped: reason".
SCRIPT_SKIP_REASON = re.compile(r"^\S+: skipped: (.*)$", re.MULTILINE)
# A process with many cases, whose results are in a separate file.
MANY_CASES = re.compile(r"\.together_\d+$")
# Differs from test to test.
TEMPORARY_NAME = re.compile(r"\S*penstock-test-\S*")
NEEDS_GPU = "needs a GPU (CUDA)"
# Reasons that tests give in many ways, and one name for each; the first pattern that matches counts. Other reasons are printed as they are.
KINDS = [
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"run_clients\.py fetch", "needs tests/clients/run_clients.py fetch"),
        (r"\(GPU\)", NEEDS_GPU),
        (r"could not import '([\w-]+)", r"needs the package \1"),
        (r"\bpip install '?([\w-]+)", r"needs the package \1"),
        (r"^(?:the )?([\w-]+)(?: library| package)?(?:,[^,]*,)? is not installed", r"needs the package \1"),
        (r"^there is an? (?:GPU|CUDA|NVIDIA)|without a? ?GPU", "needs a machine without a GPU"),
        (r"\b(?:GPU|CUDA|NVIDIA)", NEEDS_GPU),
        (r"\b(?:needs|only) root\b", "needs root"),
        (r"^root (?:reads|may)", "needs a user who is not root"),
    )
]
ALIASES = {"pytorch": "torch"}


def kind_of(reason) -> str:
    for pattern, name in KINDS:
        if match := pattern.search(reason):
            package = match[1].lower() if match.groups() else ""
            return name.replace(r"\1", ALIASES.get(package, package))
    return reason


def of_pytest(case) -> bool:
    """pytest and tests/support/together.py write no status: a test that was neither skipped nor failed has passed."""
    return case.get("status") is None


def skip_reason(case) -> str:
    if of_pytest(case):
        reason = case.find("skipped").get("message") or ""
    else:
        output = case.findtext("system-out") or ""
        match = SKIP_REASON.search(output) or SCRIPT_SKIP_REASON.search(output)
        reason = " ".join(match.group(1).split()) if match else ""
    return TEMPORARY_NAME.sub("...", reason) or "no reason given"


def outcome(case) -> str:
    """passed, failed or skipped. A test that ctest could not even start counts as failed."""
    if of_pytest(case):
        if case.find("failure") is not None or case.find("error") is not None:
            return "failed"
        return "passed" if case.find("skipped") is None else "skipped"
    if case.get("status") == "run" and case.find("failure") is None:
        return "passed"
    if case.get("status") == "disabled":
        return "skipped"
    skipped = case.find("skipped")
    if skipped is not None and (skipped.get("message") or "").startswith("SKIP_"):
        return "skipped"
    return "failed"


def main(files) -> int:
    counts = Counter()
    reasons = Counter()
    failed_names = []
    for name in files:
        for case in ElementTree.parse(name).getroot().iter("testcase"):
            result = outcome(case)
            if result == "passed" and MANY_CASES.search(case.get("name")):
                continue
            counts[result] += 1
            if case.get("alone"):
                print(f"ran again, alone: {case.get('name')} ({result})")
            if result == "skipped":
                reasons["disabled" if case.get("status") == "disabled" else kind_of(skip_reason(case))] += 1
            elif result == "failed":
                failed_names.append(case.get("name"))

    for reason, count in reasons.most_common():
        print(f"skipped {count}: {reason}")
    for name in failed_names:
        print(f"FAILED {name}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 0 if counts["passed"] and not counts["failed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
