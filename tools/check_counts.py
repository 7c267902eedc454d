#!/usr/bin/env python3
"""Fails when the code grows past the limits below. If a count falls, lower its limit. To raise a limit, give a reason in the commit.

Usage: check_counts.py [repository root]
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

LIMITS = {"lines of python/penstock": 32_744, "lines of src": 89_845, "public Python names": 392}


def lines_of(folder: Path, *patterns: str) -> int:
    return sum(len(file.read_bytes().splitlines()) for pattern in patterns for file in folder.rglob(pattern))


def public_names(package: Path) -> int:
    """Counts the names in `__all__` of all public modules."""
    count = 0
    for file in package.rglob("*.py"):
        if any(part.startswith("_") and part != "__init__" for part in file.relative_to(package).with_suffix("").parts):
            continue
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" and isinstance(node.value, ast.List):
                count += len(node.value.elts)
    return count


def counts(root: Path) -> dict[str, int]:
    package = root / "python/penstock"
    return {
        "lines of python/penstock": lines_of(package, "*.py"),
        "lines of src": lines_of(root / "src", "*.cc", "*.hpp", "*.h"),
        "public Python names": public_names(package),
    }


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    grown = False
    for what, count in counts(root).items():
        is_over = count > LIMITS[what]
        grown = grown or is_over
        print(f"check_counts: {what}: {count:,} of {LIMITS[what]:,}" + (", which is too many" if is_over else ""))
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
