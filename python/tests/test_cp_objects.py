"""penstock cp -r: folders of objects on an S3 server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.__main__ import command

from .object_server import FAULTS, FOLDER, KEY, TREE, Fault, ObjectServer, below, serving_objects


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving_objects(TREE | {"q/other": b"other", "p.txt": b"beside"}) as up:
        yield up


def cp(server: ObjectServer, *words: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | server.environment
    return subprocess.run([command(), "cp", *map(str, words)], capture_output=True, text=True, timeout=60, env=environment)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file()}


def fill(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_affects_only_its_object_and_the_copy_can_be_repeated(server: ObjectServer, what: str, tmp_path: Path) -> None:
    faults, message = FAULTS[what]
    server.faults[KEY] = list(faults)
    fill(tmp_path, {f"to/{KEY}": b"old"})
    ended = cp(server, "-r", FOLDER, tmp_path / "to")
    expected = below("p/", TREE)
    if message is not None:
        assert ended.returncode == 1
        assert KEY in ended.stderr and ended.stdout.startswith("199 files"), ended
        assert contents(tmp_path / "to" / "p") == expected | {KEY.removeprefix("p/"): b"old"}
        server.faults.clear()
        server.objects |= TREE
        ended = cp(server, "-r", FOLDER, tmp_path / "to")
    assert ended.returncode == 0, ended.stderr
    assert contents(tmp_path / "to" / "p") == expected


@pytest.mark.parametrize("status", [403, 404])
def test_a_failed_listing_is_an_error(server: ObjectServer, status: int, tmp_path: Path) -> None:
    server.faults[""] = [status]
    ended = cp(server, "-r", FOLDER, tmp_path / "to")
    assert ended.returncode == 1 and "list s3://bucket/p/" in ended.stderr


# Keys that an attacker may choose. Each must be refused by name, and nothing outside the folder may change.
HOSTILE_KEYS = ["../up", "a/../../up", "/etc/up", "..", "a/..", "a/.", "a/", "x" * 300, "one/inside"]


@pytest.mark.parametrize("key", HOSTILE_KEYS)
def test_a_hostile_key_is_refused_and_writes_nothing_outside(server: ObjectServer, key: str, tmp_path: Path) -> None:
    server.objects = {"p/one": b"1", "p/two": b"2", f"p/{key}": b"hostile"}
    ended = cp(server, "-r", FOLDER, tmp_path / "in" / "to")
    assert ended.returncode == 1
    assert any(f"bucket/p/{each}" in ended.stderr for each in (key, "one")), ended.stderr
    kept = {"one/inside": b"hostile"} if key == "one/inside" else {"one": b"1"}
    assert contents(tmp_path) == {f"in/to/{name}": content for name, content in ({"two": b"2"} | kept).items()}


def test_two_keys_with_the_same_path_are_refused(server: ObjectServer, tmp_path: Path) -> None:
    server.objects = {"p/a/b": b"1", "p/a//b": b"2", "p/c": b"3"}
    ended = cp(server, "-r", FOLDER, tmp_path / "to")
    assert ended.returncode == 1 and "p/a/b" in ended.stderr
    assert contents(tmp_path / "to") in ({"a/b": b"1", "c": b"3"}, {"a/b": b"2", "c": b"3"})


@pytest.mark.parametrize("when", ["new", "again"])
def test_keys_that_name_the_same_file_do_not_replace_each_other(server: ObjectServer, when: str, tmp_path: Path) -> None:
    """A folder that is mounted twice has such names, as has a file system that ignores case."""
    upper, lower = (tmp_path / "to" / "p" / name for name in "Aa")
    upper.mkdir(parents=True)
    lower.mkdir()
    mounted = subprocess.run(["mount", "--bind", upper, lower], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this process may not mount")
    try:
        server.objects = {"p/A/x": b"1", "p/other": b"2"}
        if when == "again":
            assert cp(server, "-r", FOLDER, tmp_path / "to").returncode == 0
        server.objects["p/a/x"] = b"3"
        ended = cp(server, "-r", FOLDER, tmp_path / "to")
    finally:
        subprocess.run(["umount", lower], check=True)
    assert ended.returncode == 1
    assert "/x would replace" in ended.stderr and "s3://bucket/p/" in ended.stderr
    assert (upper / "x").read_bytes() in (b"1", b"3")
    assert (upper.parent / "other").read_bytes() == b"2"


def test_a_folder_is_uploaded_and_downloaded_unchanged(server: ObjectServer, tmp_path: Path) -> None:
    files = below("p/", TREE) | {"large": os.urandom(9 << 20), "a b/c+%41#?": b"odd", "\u00e4": b"umlaut"}
    fill(tmp_path / "from", files)
    for target, prefix in (("s3://bucket/up", "up/"), ("s3://bucket/into/", "into/from/")):
        ended = cp(server, "-r", tmp_path / "from", target)
        if "large" in ended.stderr:  # this server does not support multipart uploads
            (tmp_path / "from" / "large").unlink()
            del files["large"]
            ended = cp(server, "-r", tmp_path / "from", target)
        assert ended.returncode == 0, ended.stderr
        assert below(prefix, server.objects) == files
    assert cp(server, "-r", "s3://bucket/up", tmp_path / "back").returncode == 0
    assert contents(tmp_path / "back") == files
    ended = cp(server, "-r", "s3://bucket/up", "s3://other/copy/")
    assert ended.returncode == 0, ended.stderr
    assert below("copy/up/", server.objects) == files


def test_a_small_file_is_uploaded_with_one_request(server: ObjectServer, tmp_path: Path) -> None:
    fill(tmp_path / "from", {str(i): b"x" * (i + 1) for i in range(300)})
    server.asked.clear()
    server.faults = {f"up/{name}": [lambda server: server.wait_for_others(4)] for name in sorted(map(str, range(300)))[:8]}
    assert cp(server, "-r", tmp_path / "from", "s3://bucket/up").returncode == 0
    assert sorted(server.asked) == sorted(("PUT", f"up/{i}") for i in range(300))
    assert 4 <= server.most_at_once <= 64


UPLOAD_FAULTS: dict[str, tuple[list[Fault], bool]] = {"forbidden": ([403], False), "busy once": ([503], True), "busy for ever": ([503] * 100, False)}


@pytest.mark.parametrize("what", UPLOAD_FAULTS)
def test_a_fault_affects_only_its_upload_and_the_copy_can_be_repeated(server: ObjectServer, what: str, tmp_path: Path) -> None:
    faults, works = UPLOAD_FAULTS[what]
    files = {str(i): str(i).encode() * 100 for i in range(50)}
    fill(tmp_path / "from", files)
    server.objects["up/7"] = b"old"
    server.faults["up/7"] = list(faults)
    ended = cp(server, "-r", tmp_path / "from", "s3://bucket/up")
    if not works:
        assert ended.returncode == 1
        assert "s3://bucket/up/7" in ended.stderr and ended.stdout.startswith("49 files"), ended
        assert below("up/", server.objects) == files | {"7": b"old"}
        server.faults.clear()
        ended = cp(server, "-r", tmp_path / "from", "s3://bucket/up")
    assert ended.returncode == 0, ended.stderr
    assert below("up/", server.objects) == files


def test_existing_objects_are_kept_on_request(server: ObjectServer, tmp_path: Path) -> None:
    fill(tmp_path / "from", {"a": b"new", "b": b"new"})
    server.objects["up/a"] = b"old"
    ended = cp(server, "-r", "-n", tmp_path / "from", "s3://bucket/up")
    assert ended.returncode == 0 and "1 kept" in ended.stdout
    assert below("up/", server.objects) == {"a": b"old", "b": b"new"}


def _file_link(folder: Path) -> None:
    (folder / "odd").symlink_to("kept")


def _outside_link(folder: Path) -> None:
    (folder / "odd").symlink_to("../outside")


def _folder_link(folder: Path) -> None:
    (folder / "odd").symlink_to(".")


def _dangling_link(folder: Path) -> None:
    (folder / "odd").symlink_to("nothing")


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "odd")


def _bad_name(folder: Path) -> None:
    (folder / os.fsdecode(b"odd\xff")).write_bytes(b"x")


ODD: dict[str, Callable[[Path], None]] = {
    "a link to a file inside": _file_link,
    "a link out of the folder": _outside_link,
    "a link to a folder": _folder_link,
    "a link to nothing": _dangling_link,
    "a FIFO": _fifo,
    "a name that is not UTF-8": _bad_name,
}


@pytest.mark.parametrize("what", ODD)
def test_files_that_cannot_be_objects_are_named(server: ObjectServer, what: str, tmp_path: Path) -> None:
    fill(tmp_path, {"from/kept": b"kept", "outside": b"secret"})
    ODD[what](tmp_path / "from")
    ended = cp(server, "-r", tmp_path / "from", "s3://bucket/up")
    uploaded = below("up/", server.objects)
    if what == "a link to a file inside":
        assert ended.returncode == 0 and uploaded == {"kept": b"kept", "odd": b"kept"}
    else:
        assert ended.returncode == 1 and "odd" in ended.stderr
        assert uploaded == {"kept": b"kept"}


def test_a_folder_is_uploaded_only_with_r_and_without_p(server: ObjectServer, tmp_path: Path) -> None:
    fill(tmp_path / "from", {"a": b"1"})
    ended = cp(server, tmp_path / "from", "s3://bucket/up")
    assert ended.returncode == 1 and "use -r" in ended.stderr
    ended = cp(server, "-r", "-p", tmp_path / "from", "s3://bucket/up")
    assert ended.returncode == 1 and ended.stderr.count("cannot be preserved") == 1
    shutil.rmtree(tmp_path / "from")
    ended = cp(server, "-r", tmp_path / "from", "s3://bucket/up")
    assert ended.returncode == 1 and "from" in ended.stderr
    assert below("up/", server.objects) == {}


@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_signal_ends_a_copy(server: ObjectServer, direction: str, tmp_path: Path) -> None:
    is_asked, is_over = threading.Event(), threading.Event()

    def hold(_: ObjectServer) -> None:
        is_asked.set()
        is_over.wait()

    fill(tmp_path / "from", below("p/", TREE))
    server.faults[KEY] = [hold] * 10
    words = [FOLDER, tmp_path / "to"] if direction == "down" else [tmp_path / "from", FOLDER]
    running = subprocess.Popen([command(), "cp", "-r", *words], env=os.environ | server.environment)
    try:
        assert is_asked.wait(60)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) != 0
    finally:
        running.kill()
        running.wait()
        is_over.set()
    hidden = [each for each in tmp_path.rglob("*") if each.name.startswith(".")]
    assert hidden == [], "nothing is left behind"
