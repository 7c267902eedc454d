"""read_tree(): all files of a folder in memory."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.__main__ import command


def fill(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


TREES: dict[str, dict[str, bytes]] = {
    "nothing": {},
    "one empty file": {"a": b""},
    "sizes around a page": {f"size-{size}": bytes([size % 251]) * size for size in (1, 63, 64, 65, 4095, 4096, 4097, 8191)},
    "files larger than a block": {"large": os.urandom((8 << 20) + 1), "medium": os.urandom((2 << 20) + 1), "small": b"s"},
    "many folders": {f"{i % 7}/{i % 5}/{i}": str(i).encode() * 100 for i in range(400)},
    "many files in one folder": {f"{i:05d}": str(i).encode() * (i % 3000) for i in range(3000)},
    "deep folders": {"d/" * 40 + "file": b"deep"},
    "names": {"a b": b"1", "-": b"2", "\u00e4\u00f6": b"3", os.fsdecode(b"\xff\xfe"): b"4", "new\nline": b"5", ".hidden/.file": b"6"},
}


@pytest.mark.parametrize("what", TREES)
def test_a_tree_reads_as_its_files_do(what: str, tmp_path: Path) -> None:
    fill(tmp_path, TREES[what])
    found = penstock.read_tree(tmp_path)
    assert {name: bytes(view) for name, view in found.items()} == TREES[what]
    assert list(found) == sorted(found, key=os.fsencode)
    assert all(view.readonly for view in found.values())
    assert {name: bytes(view) for name, view in penstock.read_tree(f"{tmp_path}/").items()} == TREES[what]


def test_views_outlive_the_dict(tmp_path: Path) -> None:
    fill(tmp_path, {"a": b"a" * 5000, "b": b"b" * 5000})
    kept = penstock.read_tree(tmp_path)["b"]
    assert bytes(kept) == b"b" * 5000


def test_links_inside_the_folder_are_followed_to_files(tmp_path: Path) -> None:
    fill(tmp_path, {"blobs/x": b"content"})
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model").symlink_to("../blobs/x")
    try:
        found = penstock.read_tree(tmp_path)
    except penstock.Error as problem:
        if "cannot follow safely" in str(problem):
            pytest.skip("the kernel has no openat2()")
        raise
    assert bytes(found["snapshot/model"]) == b"content"
    (tmp_path / "again").symlink_to(tmp_path)
    assert bytes(penstock.read_tree(tmp_path / "snapshot" / ".." / "blobs")["x"]) == b"content"


def _link(to: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(to)


def _socket(path: Path) -> object:
    bound = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(path.parent)
    bound.bind(path.name)
    os.chdir(here)
    return bound


REFUSED: dict[str, tuple[Callable[[Path], object], type[penstock.Error]]] = {
    "a link to an absolute path": (_link("/etc/hostname"), penstock.NotAFile),
    "a link out of the folder": (_link("../../outside"), penstock.NotAFile),
    "a link to a folder": (_link("."), penstock.NotAFile),
    "a link to nothing": (_link("nothing"), penstock.NotFound),
    "a link to itself": (_link("odd"), penstock.Error),
    "a FIFO": (os.mkfifo, penstock.NotAFile),
    "a socket": (_socket, penstock.NotAFile),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_file_of_the_folder_is_named(what: str, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    fill(tmp_path / "tree", {"a/file": b"1"})
    make, kind = REFUSED[what]
    made = make(tmp_path / "tree" / "a" / "odd")
    try:
        with pytest.raises(penstock.Error, match="tree/a/odd") as raised:
            penstock.read_tree(tmp_path / "tree")
    finally:
        if isinstance(made, socket.socket):
            made.close()
    assert isinstance(raised.value, kind) or "cannot follow safely" in str(raised.value)


FOLDERS: dict[str, tuple[str, type[Exception]]] = {
    "missing": ("absent", penstock.NotFound),
    "a file": ("file", OSError),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_a_path_that_is_no_folder_is_named(what: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    name, kind = FOLDERS[what]
    with pytest.raises(kind, match=name):
        penstock.read_tree(tmp_path / name)


LIMITS = {"max_bytes": (299, 300), "max_files": (2, 3)}


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_refuse_more(limit: str, tmp_path: Path) -> None:
    fill(tmp_path, dict.fromkeys(("a", "b", "c"), b"x" * 100))
    too_few, enough = LIMITS[limit]
    with pytest.raises(penstock.InvalidArgument, match=limit):
        penstock.read_tree(tmp_path, **{limit: too_few})
    assert len(penstock.read_tree(tmp_path, **{limit: enough})) == 3


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_must_not_be_read_is_named(what: str, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    fill(tmp_path, {"a/b": b"x"})
    (tmp_path / "a" / "b" if what == "file" else tmp_path / "a").chmod(0)
    with pytest.raises(penstock.PermissionDenied, match="a/b" if what == "file" else "a"):
        penstock.read_tree(tmp_path)
    (tmp_path / "a").chmod(0o700)


@pytest.fixture
def busy_tree(tmp_path: Path) -> Iterator[Path]:
    """A folder in which another thread replaces, truncates, grows and removes files."""
    fill(tmp_path, {f"{i}": b"v" * 5000 for i in range(300)})
    is_over = threading.Event()

    def change() -> None:
        i = 0
        while not is_over.is_set():
            path = tmp_path / f"{i % 300}"
            if i % 4 == 0:
                path.unlink(missing_ok=True)
            elif i % 4 == 1:
                path.write_bytes(b"w" * 7000)
            elif i % 4 == 2:
                path.write_bytes(b"")
            else:
                (tmp_path / "new").write_bytes(b"x" * 5000)
                (tmp_path / "new").replace(path)
            i += 7

    changer = threading.Thread(target=change)
    changer.start()
    yield tmp_path
    is_over.set()
    changer.join()


def test_files_that_change_are_whole_or_an_error_names_them(busy_tree: Path) -> None:
    for _ in range(20):
        try:
            found = penstock.read_tree(busy_tree)
        except penstock.Error as problem:
            assert isinstance(problem, penstock.NotFound) or "changed while it was read" in str(problem), problem
        else:
            assert {bytes(view[:1]) * len(view) == bytes(view) for view in found.values()} == {True}


def test_few_descriptors_are_enough(tmp_path: Path) -> None:
    fill(tmp_path, {f"{i}/{j}": b"x" * 100 for i in range(200) for j in range(5)})
    program = "import penstock, sys; print(len(penstock.read_tree(sys.argv[1])))"
    limited = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )
    assert limited.stdout == "1000\n", limited.stderr


def test_few_descriptors_are_enough_for_a_copy(tmp_path: Path) -> None:
    fill(tmp_path / "from", {f"{i}/{j}": b"x" * 100 for i in range(200) for j in range(5)})
    limited = subprocess.run(
        [command(), "cp", "-r", tmp_path / "from", tmp_path / "to"],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)),
    )
    assert limited.returncode == 0, limited.stderr[:500]
    assert len(list((tmp_path / "to").rglob("*/*"))) == 1000


def test_an_exception_from_a_signal_handler_stops_it(tmp_path: Path) -> None:
    fill(tmp_path, {f"{i % 50}/{i}": b"x" for i in range(2000)})

    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(Stop):
            while True:
                killer = threading.Timer(0.001, lambda: os.kill(os.getpid(), signal.SIGUSR1))
                killer.start()
                penstock.read_tree(tmp_path)
                killer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


WRONG = {"a number": 5, "None": None, "a list": ["a"]}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_types_are_refused(what: str) -> None:
    with pytest.raises(TypeError):
        penstock.read_tree(WRONG[what])  # type: ignore[arg-type]
