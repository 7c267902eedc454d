"""Sub-interpreters are refused, and the main interpreter does not notice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import faulthandler, sys
faulthandler.dump_traceback_later(120, exit=True)
try:
    import _interpreters as interpreters  # Python 3.13
except ImportError:
    import _xxsubinterpreters as interpreters

CHILD = '''
try:
    import penstock
except ImportError as error:
    assert "sub-interpreter" in str(error), error
else:
    raise AssertionError("imported")
'''

def run_sub_interpreter():
    named = sys.version_info >= (3, 13)
    created = interpreters.create(kind) if named else interpreters.create(isolated=kind == "isolated")
    failed = interpreters.run_string(created, CHILD)
    assert failed is None, failed
    interpreters.destroy(created)

def use():
    import penstock
    with penstock.open(sys.argv[1]) as file:
        future = file.pread(bytearray(1000))
        future.add_done_callback(lambda _: None)
        assert future.result() == file.read_into(bytearray(1000)) == 1000
        return penstock.device("host:0").empty(10), future

kind, order = sys.argv[2:]
kept = [use()] if order == "after" else []
for _ in range(3):
    run_sub_interpreter()
    kept.append(use())
print("well")
"""


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("kind", ["legacy", "isolated"])
def test_a_sub_interpreter_is_refused(tmp_path: Path, kind: str, order: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    ended = subprocess.run([sys.executable, "-c", SCRIPT, path, kind, order], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "well\n", "")
