"""bench/kvikio: the benchmarks by KvikIO's names."""

from __future__ import annotations

import argparse
import importlib
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

import penstock

try:
    import zarr
except ImportError:
    zarr = None

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "bench/kvikio"


def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / f"{name}.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def rates(output: str) -> dict[str, bool]:
    """Name of each line of figures, and whether it tells of several runs."""
    found = re.findall(r"^(\S+ (?:read|write)) +\| +[0-9.]+ [KMGT]?i?B/s( ±.*)?$", output, re.MULTILINE)
    return {name: bool(more) for name, more in found}


@pytest.mark.parametrize("api", ["cufile", "posix", "cufile-mfma", "cufile-mf", "cufile-ma", "zarr"])
def test_single_node_io(tmp_path: pathlib.Path, api: str) -> None:
    if api == "zarr" and zarr is None:
        pytest.skip("zarr is not installed")
    done = run("single_node_io", "-n", "1MiB", "-d", str(tmp_path), "--api", api, "-t", "4", "--nruns", "2", "--pre-register-buffer")
    assert done.returncode == 0, done.stderr
    assert rates(done.stdout) == {f"{api} read": True, f"{api} write": True}
    assert "1048576 bytes (1.00 MiB)" in done.stdout and "nthreads            | 4" in done.stdout
    assert list(tmp_path.iterdir())


def test_single_node_io_by_default() -> None:
    done = run("single_node_io", "--nbytes", "4096")
    assert done.returncode == 0, done.stderr
    assert list(rates(done.stdout)) == ["cufile read", "cufile write", "posix read", "posix write"]
    assert ("GPU                 | none" in done.stdout) is (penstock.cuda_status() is not None)


def test_wrong_options_of_single_node_io_are_named(tmp_path: pathlib.Path) -> None:
    for options, words in (
        (["-n", "many"], "--nbytes"),
        (["-n", "0"], "--nbytes"),
        (["--api", "s3"], "s3"),
        (["-d", str(tmp_path / "none")], "not a directory"),
        (["-n", "10", "-t", "3", "--api", "cufile-mf"], "multiple of --nthreads"),
    ):
        done = run("single_node_io", *options)
        assert done.returncode != 0 and words in done.stderr


@pytest.mark.skipif(zarr is None, reason="zarr is not installed")
def test_zarr_io(tmp_path: pathlib.Path) -> None:
    done = run("zarr_io", "-n", "1 MiB", "--chunksize", "256 KiB", "-d", str(tmp_path), "--n-warmup-runs", "1", "--dtype", "float64")
    assert done.returncode == 0, done.stderr
    assert rates(done.stdout) == {"kvikio read": False, "kvikio write": False, "posix read": False, "posix write": False}
    done = run("zarr_io", "-n", "1001")
    assert done.returncode != 0 and "multiples of 4, the size of float32" in done.stderr


@pytest.fixture
def utils(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("utils")


def test_numbers_of_bytes(utils: Any) -> None:
    for text, nbytes in (("4096", 4096), ("10 MiB", 10 << 20), ("1.5GB", 1_500_000_000), ("2k", 2000), ("3KiB", 3072), ("7 B", 7)):
        assert utils.parse_bytes(text) == nbytes
    for wrong in ("", "MiB", "-1", "1 XiB", "1 2"):
        with pytest.raises(ValueError, match="not a number of bytes"):
            utils.parse_bytes(wrong)
    told = [utils.format_bytes(nbytes) for nbytes in (0, 1023, 1024, 5 << 20, 3 << 60)]
    assert told == ["0 B", "1023 B", "1.00 KiB", "5.00 MiB", "3072.00 PiB"]


def test_folders(tmp_path: pathlib.Path, utils: Any) -> None:
    assert utils.parse_directory(None) is None
    assert utils.parse_directory(str(tmp_path)) == tmp_path
    with pytest.raises(argparse.ArgumentTypeError):
        utils.parse_directory(str(tmp_path / "none"))
    with utils.folder_for(None) as made:
        assert made.is_dir()
    assert not made.exists()
    with utils.folder_for(tmp_path) as given:
        assert given == tmp_path
    assert tmp_path.exists()
