"""The four documented cufile programs, as examples/python has them, run on the host device and where there is one on a GPU."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"

if not EXAMPLES.is_dir():
    pytest.skip("the examples are not beside the tests", allow_module_level=True)


def run(name: str, *arguments: object, device: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments), "--device", device]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_file_is_read(tmp_path: pathlib.Path, device_memory: Any, pattern: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(pattern(300_001))
    done = run("cufile_basic_read.py", path, device=device_memory.device)
    assert done.returncode == 0, done.stderr
    assert f"300001 bytes of {path}" in done.stdout and "as in the file" in done.stdout


def test_a_missing_file_is_told(tmp_path: pathlib.Path, device_memory: Any) -> None:
    done = run("cufile_basic_read.py", tmp_path / "missing", device=device_memory.device)
    assert done.returncode == 1 and "No such file" in done.stderr


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_000_003])
def test_a_file_is_copied_through_two_buffers(
    tmp_path: pathlib.Path, device_memory: Any, pattern: Any, size: int
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(pattern(size))
    done = run("cufile_async_pipeline.py", source, target, "--chunk", 65_536, device=device_memory.device)
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == source.read_bytes()
    assert f"{size} bytes in {-(-size // 65_536)} chunks" in done.stdout


def test_rows_of_a_sparse_matrix_are_read(device_memory: Any) -> None:
    done = run("cufile_scattered_read.py", "--rows", 5000, "--wanted", 700, device=device_memory.device)
    assert done.returncode == 0, done.stderr
    assert "1400 pieces" in done.stdout and "right" in done.stdout


def test_buffer_sizes_are_profiled(tmp_path: pathlib.Path, device_memory: Any) -> None:
    file, picture = tmp_path / "file", tmp_path / "profile.png"
    small = ("--file", file, "--total", 4 << 20, "--largest", 1 << 20)
    done = run("cufile_profile.py", *small, device=device_memory.device)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["buffer", "64", "256", "1024"]
    assert not file.exists()
    plotted = run("cufile_profile.py", *small, "--plot", picture, device=device_memory.device)
    assert plotted.returncode == 0, plotted.stderr
    assert picture.exists() == ("3 buffer sizes" in plotted.stdout)
