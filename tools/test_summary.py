#!/usr/bin/env python3
"""Adds up the JUnit files that ctest and pytest wrote, and prints what was skipped and why, what failed, and the totals.

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
# Would make every reason another one.
TEMPORARY_NAME = re.compile(r"\S*penstock-test-\S*")
NEEDS_GPU = re.compile(r"\b(gpu|cuda|nvidia)", re.IGNORECASE)


def of_pytest(case) -> bool:
    """pytest writes no status: what is neither skipped nor failed has passed."""
    return case.get("status") is None


def skip_reason(case) -> str:
    if of_pytest(case):
        return case.find("skipped").get("message") or "no reason given"
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
            counts[result] += 1
            if result == "skipped":
                reasons["disabled" if case.get("status") == "disabled" else skip_reason(case)] += 1
            elif result == "failed":
                failed_names.append(case.get("name"))

    for reason, count in reasons.most_common():
        print(f"skipped {count}: {reason}")
    without_gpu = sum(count for reason, count in reasons.items() if NEEDS_GPU.search(reason))
    if without_gpu:
        print(f"{without_gpu} of the skipped tests need a GPU, and this machine has none that they can use")
    for name in failed_names:
        print(f"FAILED {name}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 0 if counts["passed"] and not counts["failed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
