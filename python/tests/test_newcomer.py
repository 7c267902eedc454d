"""What a newcomer tries first: every function takes every name of a device."""

from __future__ import annotations

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).parents[2] / "tests/tools/device_names.py"


def test_every_function_takes_every_name_of_a_device(tmp_path: pathlib.Path) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
