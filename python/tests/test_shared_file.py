"""Files that several processes write together, and have their name only once all of them have."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock._core import shared_file as _shared_file
from penstock._core.shared_file import SharedFile, abandon, open_shared, remove_left


def hidden_files(folder: Path) -> list[str]:
    return [each for each in os.listdir(folder) if each.startswith(".")]


def test_it_has_its_name_once_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    path.chmod(0o640)
    shared = SharedFile(str(path), b"head", 4 + 2_000_000)
    assert hidden_files(tmp_path) == [shared.hidden]
    for half in range(2):
        with open_shared(str(path), shared.hidden, 2_000_004) as file:
            file.write_from(bytes([half + 1]) * 1_000_000, 4 + half * 1_000_000)
    assert path.read_bytes() == b"old"
    shared.publish()
    shared.drop()
    assert path.read_bytes() == b"head" + b"\1" * 1_000_000 + b"\2" * 1_000_000
    assert path.stat().st_mode & 0o777 == 0o640 and path.stat().st_nlink == 1
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("how", ["drop", "forget"])
def test_nothing_remains_of_one_that_was_not_published(tmp_path: Path, how: str) -> None:
    shared = SharedFile(str(tmp_path / "model"), b"head", 100)
    if how == "drop":
        shared.drop()
        shared.drop()
    else:
        del shared
        gc.collect()
    assert os.listdir(tmp_path) == []


def test_it_is_written_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "model").symlink_to("there/blob")
    shared = SharedFile(str(tmp_path / "model"), b"head", 8)
    with open_shared(str(tmp_path / "model"), shared.hidden, 8) as file:
        file.write_from(b"tail", 4)
    shared.publish()
    assert (tmp_path / "there" / "blob").read_bytes() == b"headtail" and os.listdir(tmp_path / "there") == ["blob"]


def test_who_fails_takes_the_name_from_all(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    shared = SharedFile(path, b"head", 100)
    abandon(path, shared.hidden)
    abandon(path, shared.hidden)
    with pytest.raises(FileNotFoundError, match=f"{path}: the temporary file .* does not exist: another process that was writing the file failed, or"):
        with open_shared(path, shared.hidden, 100):
            pass
    shared.drop()
    assert os.listdir(tmp_path) == []


def test_another_file_under_its_hidden_name_is_not_written(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    shared = SharedFile(path, b"head", 100)
    with pytest.raises(penstock.InvalidArgument, match="has 100 bytes, not 101"):
        with open_shared(path, shared.hidden, 101):
            pass
    (tmp_path / shared.hidden).unlink()
    (tmp_path / shared.hidden).write_bytes(b"another's")
    shared.drop()
    assert (tmp_path / shared.hidden).read_bytes() == b"another's"


def test_a_link_that_takes_its_name_while_it_is_opened_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "model")
    (tmp_path / "victim").write_bytes(b"v" * 100)
    shared = SharedFile(path, b"head", 100)
    lock = _shared_file._lock

    def replaced(descriptor: int) -> None:
        lock(descriptor)
        (tmp_path / "link").symlink_to("victim")
        (tmp_path / "link").rename(tmp_path / shared.hidden)

    monkeypatch.setattr(_shared_file, "_lock", replaced)
    with open_shared(path, shared.hidden, 100) as file:
        file.write_from(b"tail", 96)
    assert (tmp_path / "victim").read_bytes() == b"v" * 100
    shared.drop()
    assert sorted(os.listdir(tmp_path)) == sorted([shared.hidden, "victim"])


KILLED = """
import os, signal, sys
from penstock._core.shared_file import SharedFile
shared = SharedFile(sys.argv[1], b"head", 100)
print("made", flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_leaves_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    own = SharedFile(str(tmp_path / "model"), b"head", 100)
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "model")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == b"made\n"
        (tmp_path / ".model.penstock-save-link").symlink_to("model")
        remove_left(str(tmp_path))
        assert len(hidden_files(tmp_path)) == 3
        other.stdin.close()
        assert other.wait() == -signal.SIGKILL
    remove_left(str(tmp_path))
    assert sorted(hidden_files(tmp_path)) == sorted([own.hidden, ".model.penstock-save-link"])
    with open_shared(str(tmp_path / "model"), own.hidden, 100):  # by a rank that goes on for a while
        remove_left(str(tmp_path))
    own.drop()
    remove_left(str(tmp_path / "missing"))


FULL = """
import resource, sys
from penstock._core.shared_file import SharedFile
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    SharedFile(sys.argv[1], b"head", 1_000_001)
except OSError as error:
    print(error.errno, error, flush=True)
"""


def test_a_disk_that_is_full_is_told_before_anything_is_written(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    told = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=True).stdout
    assert told.startswith(f"{errno.EFBIG} {path}: reserve 1000001 bytes: File too large")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing/model"):
        SharedFile(str(tmp_path / "missing" / "model"), b"head", 100)


# A sandbox (EPERM) or a file system (EOPNOTSUPP) that refuses calls, in a child: filters stay. A new call is one line. Numbers: x86-64, aarch64.
REFUSED = {"linkat": (265, 37), "renameat2": (316, 276), "flock": (73, 32), "fallocate": (285, 47), "fchmod": (91, 52), "fchown": (93, 55)}
WITHOUT = """
import ctypes, platform, struct, sys
from penstock._core.shared_file import SharedFile, open_shared
path, refused = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None)
for number in map(int, sys.argv[3:]):
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50000 | refused), (6, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in steps))
    filters = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filters):
        sys.exit(77)
for _ in range(2):
    shared = SharedFile(path, b"head", 8)
    with open_shared(path, shared.hidden, 8) as file:
        file.write_from(b"tail", 4)
    shared.publish()
    shared.drop()
SharedFile(path, b"gone", 4).drop()
"""


@pytest.mark.parametrize("refused", [errno.EPERM, errno.EOPNOTSUPP])
@pytest.mark.parametrize("calls", [*([each] for each in REFUSED), list(REFUSED)], ids="-".join)
def test_it_is_written_where_calls_are_refused(tmp_path: Path, calls: list[str], refused: int) -> None:
    column = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)
    if column is None:
        pytest.skip("the numbers of this machine's system calls are not known here")
    numbers = [str(REFUSED[each][column]) for each in calls]
    ended = subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path / "model"), str(refused), *numbers], capture_output=True, text=True)
    if ended.returncode == 77:
        pytest.skip("seccomp filters cannot be set here")
    assert ended.returncode == 0, ended.stderr
    assert os.listdir(tmp_path) == ["model"] and (tmp_path / "model").read_bytes() == b"headtail"
