"""What comes from servers is kept on the node: by options, by the environment, for several processes at once."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

import penstock

from . import range_server

CONTENT = numpy.random.default_rng(9).integers(0, 256, 3 * 2**20 + 11, dtype=numpy.uint8)

READ = """
import sys, hashlib, penstock
print(hashlib.sha256(penstock.load(sys.argv[1], dtype="u1").tobytes()).hexdigest())
"""

# In a process of its own, in which the engine ends with it.
READ_BY_OPTIONS = """
import hashlib, pathlib, sys, numpy, penstock
url, folder = sys.argv[1:]
options = {"cache_dir": pathlib.Path(folder), "cache_bytes": 10**9}
for device in ("host", "host:0"):
    back = numpy.empty(int(sys.stdin.readline()), numpy.uint8)
    penstock.copy(back, penstock.load(url, dtype="u1", device=device, storage_options=options))
    print(hashlib.sha256(back.tobytes()).hexdigest(), flush=True)
with penstock.open(url, storage_options=options) as file:
    assert any("in the node cache in " + folder in each for each in file.explain(device="host:0").remarks)
with penstock.open(url, storage_options={**options, "cache_dir": ""}) as file:
    assert file.read_into(bytearray(10)) == 10
"""

# It is killed while its child, which was forked in the middle of a download, lives on.
DOWNLOAD = """
import os, sys, numpy, penstock
url, folder = sys.argv[1:]
into = numpy.empty(int(sys.stdin.readline()), "u1")
file = penstock.open(url, storage_options={"cache_dir": folder})
future = file.pread(into)
sys.stdin.readline()
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
future.result()
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    (tmp_path / "data.bin").write_bytes(CONTENT.tobytes())
    with range_server.serving(tmp_path) as server:
        yield server


def bytes_of(asked: list[tuple[str, dict[str, str]]]) -> int:
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", "")) for _, headers in asked]
    return sum(int(each[2]) - int(each[1]) + 1 for each in ranges if each)


def test_a_second_load_asks_for_the_version_alone(served, tmp_path):
    url, asked = served
    run = [sys.executable, "-c", READ_BY_OPTIONS, f"{url}/data.bin", str(tmp_path / "cache")]
    ran = subprocess.run(run, input=f"{len(CONTENT)}\n" * 2, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [hashlib.sha256(CONTENT.tobytes()).hexdigest()] * 2
    assert bytes_of(asked) == len(CONTENT) + 10


def test_the_environment_holds_for_every_url(served, tmp_path):
    url, asked = served
    set_so = {**os.environ, "PENSTOCK_CACHE_DIR": str(tmp_path / "cache"), "PENSTOCK_CACHE_BYTES": "1G"}
    run = [sys.executable, "-c", READ, f"{url}/data.bin"]
    all_at_once = [subprocess.Popen(run, env=set_so, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert len({each.communicate()[0] for each in all_at_once}) == 1
    assert all(each.returncode == 0 for each in all_at_once)
    assert bytes_of(asked) == len(CONTENT)


def test_what_a_killed_process_was_fetching_is_fetched_by_the_next_though_its_child_lives_on(tmp_path):
    (tmp_path / "data.bin").write_bytes(CONTENT.tobytes())
    gate = range_server.Gate()
    with range_server.serving(tmp_path, gate) as (url, asked):
        run = [sys.executable, "-c", DOWNLOAD, f"{url}/data.bin", str(tmp_path / "cache")]
        with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
            assert killed.stdin is not None and killed.stdout is not None
            killed.stdin.write(f"{len(CONTENT)}\n")
            killed.stdin.flush()
            gate.reached.wait()
            killed.stdin.write("\n")
            killed.stdin.flush()
            assert killed.stdout.readline() == "forked\n"
            killed.kill()
            killed.wait()  # a process that waits for a busy disk keeps its locks until the disk has answered
            gate.open()
            set_so = {**os.environ, "PENSTOCK_CACHE_DIR": str(tmp_path / "cache")}
            for _ in range(2):
                before = bytes_of(asked)
                ran = subprocess.run([sys.executable, "-c", READ, f"{url}/data.bin"], env=set_so, capture_output=True, text=True)
                assert ran.stdout.strip() == hashlib.sha256(CONTENT.tobytes()).hexdigest(), ran.stderr
        assert bytes_of(asked) == before, "not all of it was kept"


def test_wrong_options_are_refused_in_words(served, tmp_path):
    url, _ = served
    wrong: list[tuple[dict[str, object], str]] = [
        ({"cache_dir": "cache"}, "absolute path"),
        ({"cache_dir": 5}, "PathLike"),
        ({"cache_dir": str(tmp_path), "cache_bytes": -1}, "cache_bytes"),
        ({"cache_dir": str(tmp_path), "cache_bytes": "many"}, "cache_bytes"),
    ]
    for options, words in wrong:
        with pytest.raises((penstock.InvalidArgument, TypeError), match=words):
            penstock.open(f"{url}/data.bin", storage_options=options)
    for name, value in {"PENSTOCK_CACHE_DIR": "cache", "PENSTOCK_CACHE_BYTES": "200X"}.items():
        ran = subprocess.run(
            [sys.executable, "-c", READ, f"{url}/data.bin"], env={**os.environ, name: value}, capture_output=True, text=True
        )
        assert ran.returncode != 0
        assert name in ran.stderr
