"""A request ends, and its callbacks are called, also when no thread stands waiting for it: in every way of not waiting that there is.

Each case is a process of its own (nobody_waits.py), whose watchdog makes a hang a failure. PENSTOCK_TEST_REQUESTS: about how many requests
each of them begins; 100000 and more to look for what is rare.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

REQUESTS = os.environ.get("PENSTOCK_TEST_REQUESTS", "200")
SCRIPT = Path(__file__).with_name("nobody_waits.py")
WAYS = ["await", "wait", "as_completed", "done", "callbacks", "expiring", "cancelled", "dropped", "close", "kvikio"]
CORES = [count for count in (1, 2, 4) if count <= len(os.sched_getaffinity(0))]


def memories() -> list[str]:
    devices = [device.name for device in penstock.devices() if device.name in ("host:0", "cuda:0")]
    libraries = [name for name in ("cupy", "torch") if "cuda:0" in devices and importlib.util.find_spec(name)]
    return ["host", *devices, *libraries]


@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("memory", memories())
@pytest.mark.parametrize("way", WAYS)
def test_requests_end_though_nobody_waits(tmp_path: Path, way: str, memory: str, cores: int) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "file"), way, memory, str(cores), REQUESTS]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-8000:]
    assert ended.stdout.endswith("all ended\n") and ended.stderr == ""
