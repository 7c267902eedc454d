"""Runs a program as the ranks of a process group. One process imports PyTorch, which takes seconds, and forks the ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_fork = """
import os, sys
world, folder = int(sys.argv[1]), sys.argv[2]
children = []
for rank in range(world):
    children.append(os.fork())
    if children[-1] == 0:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/rank{rank}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        break
else:
    print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
    sys.exit()
"""


class Rank(NamedTuple):
    returncode: int
    out: str
    err: str


def run_ranks(imports: str, program: str, world: int, folder: Path) -> list[Rank]:
    """imports: lines that run before the ranks are forked. The program finds its rank, world and folder in variables of these names."""
    command = [sys.executable, "-W", "ignore", "-c", f"{imports}\n{_fork}\n{program}", str(world), str(folder)]
    codes = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return [Rank(int(code), *((folder / f"rank{rank}.{each}").read_text() for each in ("out", "err"))) for rank, code in enumerate(codes)]
