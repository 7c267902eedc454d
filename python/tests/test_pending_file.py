"""Files that have their name only once they are whole."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock
from penstock import _native


def test_a_file_has_its_name_once_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with _native.PendingFile(path) as pending:
        assert pending.path == str(path)
        with penstock.open(pending.fileno(), "r+") as file:
            assert file.write_from(bytearray(b"x" * 3_000_001)) == 3_000_001
        assert not path.exists()
        pending.publish()
        with pytest.raises(penstock.Error, match="was already published"):
            pending.publish()
    assert path.read_bytes() == b"x" * 3_000_001
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("how", ["drop", "leave", "forget"])
def test_what_was_not_published_is_gone(tmp_path: Path, how: str) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    pending = _native.PendingFile(path)
    os.write(pending.fileno(), b"half")
    if how == "drop":
        pending.drop()
        pending.drop()
        for call in (pending.fileno, pending.publish):
            with pytest.raises(penstock.Error, match="dropped|discarded"):
                call()
    elif how == "leave":
        with pytest.raises(ZeroDivisionError), pending:
            raise ZeroDivisionError
    else:
        del pending
        gc.collect()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model"]


def test_what_has_come_meanwhile_is_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "model"
    pending = _native.PendingFile(path)
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError) as caught:
        pending.publish(replace=False)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    pending.publish(durable=False)
    assert path.read_bytes() == b""


def test_the_permissions_are_those_of_the_old_file_or_as_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    path.chmod(0o640)
    _native.PendingFile(path).publish()
    assert path.stat().st_mode & 0o777 == 0o640
    _native.PendingFile(path, 0o604).publish()
    assert path.stat().st_mode & 0o777 == 0o604


def test_places_where_no_file_can_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _native.PendingFile(tmp_path / "missing" / "model")
    with pytest.raises(IsADirectoryError, match="is not a regular file"):
        _native.PendingFile(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(penstock.NotAFile, match="is not a regular file"):
        _native.PendingFile(tmp_path / "fifo")


def test_a_file_over_it_goes_by_the_path_that_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("model")
    with _native.PendingFile(tmp_path / "link") as pending:
        with pending.open(direct=True) as file:
            assert file.name == str(tmp_path / "link")
            assert file.write_from(bytearray(b"x" * 3_000_001)) == 3_000_001
            with pytest.raises(penstock.Error, match=f"{tmp_path}/link") as caught:
                file.write_from(bytearray(1), offset=2**63 - 1)
            assert caught.value.filename == str(tmp_path / "link")
        assert not (tmp_path / "model").exists()
        pending.publish()
    assert (tmp_path / "model").read_bytes() == b"x" * 3_000_001
    pending.drop()
    with pytest.raises(penstock.Closed):
        pending.open()


def test_a_forked_child_leaves_it_to_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "model"
    pending = _native.PendingFile(path)
    os.write(pending.fileno(), b"whole")
    child = os.fork()
    if child == 0:
        pending.drop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    pending.publish()
    assert path.read_bytes() == b"whole"


def test_threads_take_turns(tmp_path: Path) -> None:
    pending = _native.PendingFile(tmp_path / "model")
    outcomes = []

    def publish() -> None:
        try:
            pending.publish()
            outcomes.append("published")
        except penstock.Error as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted("was already published" in each for each in outcomes) == [False] + [True] * 7


SAVER = """
import os, sys
from penstock import _native
for i in range(10**9):
    pending = _native.PendingFile(sys.argv[1])
    os.write(pending.fileno(), bytes([i % 256]) * 100_000)
    pending.publish(durable=False)
    if i == 0: print("begun", flush=True)
"""


def test_a_kill_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "model"
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE) as saver:
            assert saver.stdout is not None
            assert saver.stdout.readline() == b"begun\n"
            saver.send_signal(signal.SIGKILL)
        content = path.read_bytes()
        assert len(content) == 100_000 and len(set(content)) == 1
        path.unlink()
