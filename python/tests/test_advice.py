"""What is told of a program that makes it slow: by advice(), and on standard error when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import penstock

LITTLE_BY_LITTLE = """
import os, sys
import penstock
into = bytearray(256)
with penstock.open(sys.argv[1]) as file:
    while not penstock.advice():
        for at in range(0, 1 << 20, len(into)):
            assert file.read_into(into, offset=at) == len(into)
given, = penstock.advice()
print(given["code"], given["loss_seconds"] > 0, given["remedy"])
sys.stdout.flush()
if os.fork() == 0:
    sys.exit(0)
os.wait()
"""

AT_ONCE = """
import sys
import penstock
into = bytearray(1 << 20)
with penstock.open(sys.argv[1]) as file:
    for _ in range(100):
        assert file.read_into(into) == len(into)
print(penstock.advice())
"""


def run(program: str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PENSTOCK_LOG"} | variables
    return subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, str(path)], capture_output=True, text=True, timeout=120, env=environment)


def stored(folder: Path) -> Path:
    path = folder / "data"
    path.write_bytes(bytes(1 << 20))
    return path


def test_a_program_that_reads_little_by_little_is_told_so(tmp_path: Path) -> None:
    ended = run(LITTLE_BY_LITTLE, stored(tmp_path), PENSTOCK_LOG="summary")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "tiny-sequential-calls True Read larger pieces, or use a batch.\n"
    lines = ended.stderr.splitlines()  # once, and not by the child
    assert lines[0].startswith("penstock: posix: ")
    assert lines[1].startswith("penstock: advice: ") and lines[1].endswith(" [tiny-sequential-calls]")
    assert len(lines) == 2


def test_one_that_reads_as_it_should_is_told_nothing(tmp_path: Path) -> None:
    ended = run(AT_ONCE, stored(tmp_path), PENSTOCK_LOG="summary")
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr
    assert "advice" not in ended.stderr
    assert run(AT_ONCE, stored(tmp_path)).stderr == ""


def test_another_word_than_summary_is_an_error(tmp_path: Path) -> None:
    ended = run(AT_ONCE, stored(tmp_path), PENSTOCK_LOG="loud")
    assert ended.returncode != 0
    assert "PENSTOCK_LOG=loud: expected summary" in ended.stderr


def test_advice_is_a_list() -> None:
    assert isinstance(penstock.advice(), list)
