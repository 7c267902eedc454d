#!/usr/bin/env python3
"""Tests that no source works on only one processor architecture: code for one has a counterpart for the other, the page size comes from the kernel,
and folder names fit the machine. Ignores comments.

Usage: portability_test.py [repository root]
"""

import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent.parent

SUFFIXES = {".cc", ".hpp", ".h", ".c", ".py", ".cmake", ""}
COMMENT = {".cc": "//", ".hpp": "//", ".h": "//", ".c": "//"}
# Where each may stand; what else would know it asks these.
RULES = (
    ("a folder of one processor's libraries", r"(x86_64|aarch64|sbsa)-linux(?!-gnu-)", {
        "src/sys/library_folders.cc", "packaging/manylinux/glibc_stubs.py", "cmake/aarch64.cmake", "tools/aarch64",
    }),
    ("the processor", r"__(x86_64|i386|amd64|aarch64)__", {
        "src/base/cpu_pause.hpp", "src/base/stream_copy.cc", "src/kv/checksum.cc", "src/sys/library_folders.hpp",
        "src/cufile/driver.cc", "packaging/manylinux/compat_calls.c", "packaging/manylinux/compat_start.c",
    }),
    ("an instruction", r"\b(_mm\d*_\w+|__builtin_ia32_\w+|__crc32c?\w)\(|\basm\b", {
        "src/base/cpu_pause.hpp", "src/base/stream_copy.cc", "src/kv/checksum.cc", "packaging/manylinux/compat_calls.c",
        "packaging/manylinux/compat_start.c", "packaging/manylinux/compat_conditions.c",
    }),
    ("the length of a page", r"_SC_PAGE_?SIZE|\bgetpagesize\b|\bpage\w*( = |\{)(4096|1 << 12)\b", {"src/sys/page_size.cc", "src/cufile/addresses.cc", "python/penstock/weights/_transfer_plan.py"}),
)  # fmt: skip
# Of each a file that has both processors: what one has by an instruction, the other has too.
BOTH = ("src/base/cpu_pause.hpp", "src/base/stream_copy.cc", "src/kv/checksum.cc")


def sources():
    for room in ("src", "include", "python/penstock", "python/native", "packaging", "cmake", "tools"):
        for path in sorted((ROOT / room).rglob("*")):
            if path.is_file() and path.suffix in SUFFIXES and "__pycache__" not in path.parts:
                yield path


def code_of(path):
    mark = COMMENT.get(path.suffix, "#")
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        yield number, line.split(mark)[0]


def main():
    files = list(sources())
    assert len(files) > 300, f"{len(files)} sources"
    problems = []
    for path in files:
        name = str(path.relative_to(ROOT))
        for number, code in code_of(path):
            problems += [f"{name}:{number}: {what}: {code.strip()}" for what, pattern, allowed in RULES if name not in allowed and re.search(pattern, code)]
    for name in BOTH:
        text = (ROOT / name).read_text(encoding="utf-8")
        problems += [f"{name}: nothing for {each}" for each in ("__x86_64__", "__aarch64__") if each not in text]
    for problem in problems:
        print(problem)
    print(f"portability_test: {len(files)} sources; {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
