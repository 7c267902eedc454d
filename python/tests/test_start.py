"""What a program that uses no GPU is spared: NVIDIA's driver, whose first call takes up to seconds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FAKE = """
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { close(open(getenv("LOADED_MARK"), O_CREAT | O_WRONLY, 0600)); }
"""

PROGRAM = """
import os, sys
import numpy as np
import penstock
path, mark = sys.argv[1:]
into = np.zeros(8192, np.uint8)
with penstock.open(path) as file:
    assert file.read_into(into) == 8192 and into.all()
assert not os.path.exists(mark), "reading into memory of the host loads the driver"
penstock.devices()
assert os.path.exists(mark), "asking for devices does"
"""


def test_host_memory_loads_no_driver(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "fake.c").write_text(FAKE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "fake.c"], check=True)
    (tmp_path / "data").write_bytes(b"x" * 8192)
    (tmp_path / "program.py").write_text(PROGRAM)
    mark = tmp_path / "mark"
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "LOADED_MARK": str(mark)}
    subprocess.run([sys.executable, tmp_path / "program.py", tmp_path / "data", mark], env=environment, check=True, timeout=60)
