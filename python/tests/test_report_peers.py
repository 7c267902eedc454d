"""bench/report_peers.py, which `penstock bench --report` runs: what it measures here, and what it says of what is not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).resolve().parents[2] / "bench/report_peers.py"


def measured(tmp_path: Path, *words: str) -> dict[str, dict[str, Any]]:
    """By the name of the library."""
    source = tmp_path / "data"
    source.write_bytes(os.urandom(3 << 20))
    command = [sys.executable, str(PROGRAM), "--file", str(source), "--device", "host:0", "--sizes", "4096,1000001", "--quick", "--out", str(tmp_path / "out"), *words]
    subprocess.run(command, check=True, timeout=300)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "out"]  # nothing is left behind
    return {each["name"]: each for each in json.loads((tmp_path / "out").read_text())["peers"]}


def test_penstock_is_measured_at_each_size_and_the_others_say_how_to_have_them(tmp_path: Path) -> None:
    found = measured(tmp_path)
    assert list(found) == ["NVIDIA libcufile", "Penstock, Python", "KvikIO", "PyTorch", "safetensors", "Rows from Python"]
    ours = found["Penstock, Python"]
    assert ours["state"] == "measured", ours
    assert {point["call_bytes"] for point in ours["points"] if point["series"] == "hot"} == {4096, 1000001}
    assert all(point["gb_per_s"] > 0 and point["us"] > 0 for point in ours["points"])
    rows = found["Rows from Python"]
    assert rows["state"] == "measured", rows
    assert {row["row"]: row["ours"] for row in rows["rows"]}["penstock read_into, one call"] is True
    for each in found.values():
        assert each["state"] in ("measured", "absent"), each
        assert each["state"] == "measured" or (each["reason"] and each["install"]), each


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = measured(tmp_path, "--programs", "/no/such/folder")
    assert found["Rows from Python"]["state"] == "absent"
    assert "/no/such/folder/python_bench.py does not exist" in found["Rows from Python"]["reason"]


def test_a_library_that_takes_too_long_has_failed(tmp_path: Path) -> None:
    found = measured(tmp_path, "--timeout", "0")
    assert found["Penstock, Python"]["state"] == "failed"
    assert found["Penstock, Python"]["reason"] == "still running after 0 s"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "--one", "Penstock, Python", "--file", str(tmp_path / "missing"), "--sizes", "4096"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "missing" in ended.stderr
