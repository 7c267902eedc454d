#!/usr/bin/env python3
"""Tests that only src/base/output.hpp and src/cli/common/say.hpp print, so that printing never throws and never ends a user's program.

fmt::print() and streams throw if the terminal, the disk or the pipe is gone; stdio writes into whatever file has the descriptor number of standard
error. Separate programs (examples, benchmark tools) may print as they like.

Usage: printing_test.py [repository root]
"""

import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent.parent
PRINTS = re.compile(
    r"\bfmt::(?:v?print|println)\b|\bstd::(?:cout|cerr|clog|print|println|printf|puts|putchar|perror)\b|\bstderr\b"
    r"|\b(?:std::)?(?:fprintf|fputs|fputc|fwrite|fflush)\([^;]*\bstdout\b|STDERR_FILENO"
)
# Those that print, and questions about a terminal.
MAY = {
    "src/base/output.cc": None,
    "src/cli/common/say.cc": r"columns_of\(stderr\)",
    "src/cli/common/progress.cc": r"columns_of\(stderr\)|isatty\(STDERR_FILENO\)",
    "src/cli/shell/main.cc": r"for \(const int fd : ",
}


def sources():
    for folder, pattern in (("src", "**/*"), ("python/native", "**/*"), ("bench", "*"), ("include", "**/*")):
        for path in sorted((ROOT / folder).glob(pattern)):
            if path.suffix in (".cc", ".hpp", ".h"):
                yield path


def main():
    problems = []
    count = 0
    for path in sources():
        name = str(path.relative_to(ROOT))
        if name in MAY and MAY[name] is None:
            continue
        count += 1
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = re.sub(r'"(?:\\.|[^"\\])*"', '""', line).split("//")[0]
            if PRINTS.search(code) and not (name in MAY and re.search(MAY[name], code)):
                problems.append(f"{name}:{number}: {line.strip()}")
    for problem in problems:
        print(problem)
    print(f"printing_test: {count} files; {len(problems)} problem(s)")
    return 1 if problems or count < 400 else 0


if __name__ == "__main__":
    sys.exit(main())
