"""penstock.safetensors where things go wrong: hostile and damaged files, files that change, full disks, killed and rival savers, Ctrl-C."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import _native, safetensors
from penstock._core.pieces import Piece
from penstock._core.saving import save_image
from penstock.safetensors import SafetensorError, load_file, load_into, safe_open, save_file
from penstock.safetensors import numpy as of_numpy

pytestmark = pytest.mark.usefixtures("torch_not_imported")

reference = pytest.importorskip("safetensors", reason="the safetensors library, to compare with, is not installed")

MIB = 1 << 20


def written(path: Path, header: Any, content: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + content)
    return path


def row(**facts: Any) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]} | facts


# --- what is no file at all


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "model.safetensors"])
def test_a_fifo_that_nobody_writes_to_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    for filename in (tmp_path / name, tmp_path):
        with pytest.raises(penstock.NotAFile, match=name):
            load_file(filename)


def test_an_index_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole
    with pytest.raises(penstock.InvalidArgument, match="model.safetensors.index.json is larger than 100000000 bytes"):
        load_file(path)


# --- files that are none

HOSTILE: dict[str, tuple[Any, bytes]] = {
    "a type that is none": ({"victim": row(dtype="U9")}, b"abc"),
    "a type that is no text": ({"victim": row(dtype=8)}, b"abc"),
    "a shape that is none": ({"victim": row(shape="3")}, b"abc"),
    "a negative length": ({"victim": row(shape=[-3])}, b"abc"),
    "a length that is no integer": ({"victim": row(shape=[3.0])}, b"abc"),
    "lengths whose product overflows": ({"victim": row(shape=[1 << 32, 1 << 32])}, b"abc"),
    "an enormous length": ({"victim": row(shape=[1 << 62, 8])}, b"abc"),
    "a shape of other bytes": ({"victim": row(shape=[4])}, b"abc"),
    "bytes past the end": ({"victim": row(shape=[5], data_offsets=[0, 5])}, b"abc"),
    "bytes far past the end": ({"victim": row(shape=[1 << 60], data_offsets=[0, 1 << 60])}, b"abc"),
    "an end before the beginning": ({"victim": row(data_offsets=[3, 0])}, b"abc"),
    "negative offsets": ({"victim": row(data_offsets=[-3, 0])}, b"abc"),
    "one offset": ({"victim": row(data_offsets=[3])}, b"abc"),
    "a hole in front": ({"victim": row(data_offsets=[1, 4])}, b"abcd"),
    "two tensors in one place": ({"first": row(), "victim": row(data_offsets=[2, 5])}, b"abcde"),
    "bytes of nobody": ({"victim": row()}, b"abcd"),
    "half a byte": ({"victim": row(dtype="F4", shape=[3], data_offsets=[0, 1])}, b"a"),
    "no dtype": ({"victim": {"shape": [3], "data_offsets": [0, 3]}}, b"abc"),
    "a tensor that is a number": ({"victim": 1}, b"abc"),
    "metadata that is no text": ({"__metadata__": {"a": 1}}, b""),
    "metadata that is a list": ({"__metadata__": []}, b""),
    "no object": ([], b""),
    "no JSON": (b"{victim", b""),
    "no UTF-8": (b'{"\xff":1}', b""),
    "nothing": (b"", b""),
    "text after the object": (b"{}x", b""),
    "a deep nest": (b"[" * 100_000, b""),
    "a deep nest in a tensor": (b'{"victim":{"dtype":' + b"[" * 100_000, b""),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_header_is_an_error_in_words(tmp_path: Path, what: str) -> None:
    header, content = HOSTILE[what]
    path = written(tmp_path / "file", header, content)
    with pytest.raises(reference.SafetensorError):
        reference.safe_open(path, "np")
    for call in (lambda: load_file(path), lambda: safe_open(path, "np"), lambda: load_into(path, {}), lambda: load_file(path, "host:0")):
        with pytest.raises(SafetensorError) as caught:
            call()
        assert str(path) in str(caught.value) and caught.value.filename == str(path)
        if what not in ("bytes of nobody",) and isinstance(header, dict) and "victim" in header:
            assert "victim" in str(caught.value)
    with pytest.raises(SafetensorError):
        of_numpy.load(path.read_bytes())


@pytest.mark.parametrize("shape", [[0, 1 << 62], [1 << 64 - 1, 0], [0, 1 << 40, 1 << 40], [0] + [1] * 64], ids=str)
@pytest.mark.parametrize("framework", ["np", "pt"])
def test_an_empty_tensor_of_a_shape_that_no_array_has_is_named(tmp_path: Path, shape: list[int], framework: str) -> None:
    if framework == "pt":
        pytest.importorskip("torch", reason="PyTorch is not installed")
        if len(shape) > 64:
            pytest.skip("PyTorch has as many dimensions as one likes")
    path = written(tmp_path / "file", {"victim": row(dtype="F32", shape=shape, data_offsets=[0, 0])})
    for call in (load_file, lambda path, **how: list(safetensors.stream(path, **how)), lambda path, **how: safe_open(path, **how).get_tensor("victim")):
        with pytest.raises(SafetensorError, match='tensor "victim" has the type F32 and shape') as caught:
            call(path, framework=framework)
        assert caught.value.filename == str(path)


def test_a_length_that_is_none_is_an_error(tmp_path: Path) -> None:
    for length in (3, 1 << 20, 100_000_001, 1 << 40, (1 << 64) - 1):
        path = written(tmp_path / "file", b"{}", b"", length)
        with pytest.raises(SafetensorError, match=str(path)):
            load_file(path)
        with pytest.raises(SafetensorError):
            of_numpy.load(path.read_bytes())
    for content in (b"", b"\2\0\0", bytes(7)):
        path.write_bytes(content)
        with pytest.raises(SafetensorError, match=str(path)):
            load_file(path)


def test_a_file_that_is_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    save_file({"weight": np.arange(20.0), "bias": np.arange(5, dtype="u1"), "none": np.zeros(0)}, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    path = tmp_path / "cut"
    for end in range(len(content)):
        path.write_bytes(content[:end])
        with pytest.raises(SafetensorError, match=str(path)):
            load_file(path)
        with pytest.raises(SafetensorError):
            of_numpy.load(content[:end])


def test_damaged_headers_are_errors_or_files(tmp_path: Path) -> None:
    """Nothing else comes of any damage, such as a crash or an exception of another kind."""
    numbers = random.Random(1)
    save_file({"weight": np.arange(20.0).reshape(4, 5), "bias": np.arange(5, dtype="u1")}, tmp_path / "whole", {"format": "np"})
    content = (tmp_path / "whole").read_bytes()
    path = tmp_path / "damaged"
    refused = 0
    for _ in range(1500):
        damaged = bytearray(content)
        for _ in range(numbers.randint(1, 3)):
            damaged[numbers.randrange(8, len(content) - 165)] = numbers.choice([numbers.randrange(256), ord(numbers.choice('0123456789{}[]:,"'))])
        path.write_bytes(damaged)
        try:
            load_file(path, "host:0")
        except SafetensorError:
            refused += 1
    assert 0 < refused < 1500


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(FileNotFoundError, match="folder.safetensors"):
        load_file(tmp_path / "folder.safetensors")
    with pytest.raises(IsADirectoryError):
        safe_open(tmp_path / "folder.safetensors", "np")
    with pytest.raises(penstock.Error):
        load_file("/dev/null")


# --- files that change


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    tensors = {"first": np.arange(50_000, dtype="f8"), "second": np.arange(50_000, dtype="f4"), "third": np.arange(60_000, dtype="u2")}
    save_file(tensors, tmp_path / "file")
    return tmp_path / "file", tensors


def test_a_file_that_shrinks_is_a_short_read_of_named_tensors(pair: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = pair
    with safe_open(path, "np") as file, safe_open(path, None, "host:0") as device:
        size = path.stat().st_size
        os.truncate(path, size - 150_000)  # within the second; the third is gone
        assert (file.get_tensor("first") == tensors["first"]).all()
        for each in (file, device):
            for name in ("second", "third"):
                with pytest.raises(penstock.ShortRead, match=f'{path}: the file was truncated after it was opened: it ends at {size - 150_000}, before the end of "{name}"') as caught:
                    each.get_tensor(name)
                assert caught.value.filename == str(path)
            with pytest.raises(penstock.ShortRead, match='before the end of "second", "third"'):
                each.get_tensors()
            with pytest.raises(penstock.ShortRead, match='before the end of "third"'):
                each.get_slice("third")[10:]


def test_a_file_that_shrinks_after_its_header_was_read_is_one_too(pair: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    path, tensors = pair
    target = {name: np.zeros_like(each) for name, each in tensors.items()}
    for module, call in (("load_file", lambda: load_file(path)), ("into", lambda: load_into(path, target))):
        save_file(tensors, path)
        with monkeypatch.context() as patch:
            patch.setattr(f"penstock._tensors.{module}.check_wanted", lambda *_: os.truncate(path, 500_000))
            with pytest.raises(penstock.ShortRead, match='"second", "third"'):
                call()
        assert penstock.requests() == []


def test_a_file_that_grows_or_is_replaced_stays_what_it_was(pair: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = pair
    with safe_open(path, "np") as file:
        with path.open("ab") as more:
            more.write(bytes(1000))
        assert all((each == tensors[name]).all() for name, each in file.get_tensors().items())
    with pytest.raises(SafetensorError):
        load_file(path)
    save_file(tensors, path)
    with safe_open(path, "np") as file:
        save_file({"first": np.zeros(3)}, path)
        assert (file.get_tensor("third") == tensors["third"]).all()
    assert list(load_file(path)) == ["first"]


def test_an_error_of_the_system_names_the_tensor(pair: tuple[Path, dict[str, Any]]) -> None:
    """Memory that the kernel cannot write to, which no check before can see."""
    import ctypes
    import mmap

    path, tensors = pair
    fixed = mmap.mmap(-1, 400_000, prot=mmap.PROT_READ)
    address, _ = _native.resolve(fixed)
    array = np.ctypeslib.as_array((ctypes.c_double * 50_000).from_address(address))
    target = {"first": array, "second": np.zeros(50_000, "f4")}
    with pytest.raises(penstock.Error, match='tensor "first" was not read: .*') as caught:
        load_into(path, target, strict=False)
    assert caught.value.filename == str(path) and type(caught.value) is not penstock.ShortRead
    assert penstock.requests() == []
    del array, target


# --- saving


@pytest.fixture
def old(tmp_path: Path) -> Path:
    save_file({"old": np.arange(10)}, tmp_path / "file")
    return tmp_path / "file"


def is_old(path: Path) -> bool:
    return list(load_file(path)) == ["old"] and [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_save_that_fails_leaves_the_old_file(old: Path) -> None:
    """RLIMIT_FSIZE ends it in the middle, with EFBIG."""
    code = (
        "import resource, sys, numpy\n"
        "from penstock.safetensors import save_file\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try: save_file({'new': numpy.zeros(8 << 20, 'u1')}, sys.argv[1])\n"
        "except OSError as problem: print(type(problem).__name__, problem)\n"
    )
    told = subprocess.run([sys.executable, "-c", code, str(old)], capture_output=True, text=True, check=True)
    assert "File too large" in told.stdout
    assert is_old(old)


def test_a_save_onto_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small file system")
    try:
        save_file({"old": np.arange(10)}, folder / "file")
        with pytest.raises(penstock.Error, match="No space left on device"):
            save_file({"new": np.zeros(8 * MIB, "u1")}, folder / "file")
        assert is_old(folder / "file")
        with pytest.raises(penstock.Error, match="No space left on device"):
            save_file({"new": np.zeros(8 * MIB, "u1")}, folder / "other")
        assert is_old(folder / "file")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_where_nothing_can_be_saved_is_told(old: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save_file({"new": np.zeros(3)}, old.parent / "none" / "file")
    (old.parent / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        save_file({"new": np.zeros(3)}, old.parent / "folder")
    (old.parent / "folder").rmdir()
    assert is_old(old)


def test_an_error_names_the_path_that_it_was_given_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "none" / "file"
    for call in (lambda: save_file({"new": np.zeros(3)}, path), lambda: save_image(str(path), Zeros(3))):
        with pytest.raises(FileNotFoundError) as caught:
            call()
        assert str(caught.value).endswith(f"create {path} in {path.parent}: No such file or directory (os 2)")
        assert caught.value.filename == str(path)


class Zeros:
    """A file of zeros, for save_image()."""

    def __init__(self, nbytes: int) -> None:
        self.memory = np.zeros(nbytes, "u1")

    def pieces(self) -> list[Piece]:
        return [Piece("zeros", 0, self.memory.nbytes, self.memory.ctypes.data, self.memory)]

    def rest(self) -> list[Piece]:
        return []


SAVES: list[Callable[[Path], None]] = [lambda path: save_file({"new": np.zeros(3)}, path), lambda path: save_image(str(path), Zeros(3))]


@pytest.mark.parametrize("save", SAVES)
def test_only_regular_files_are_replaced(tmp_path: Path, save: Callable[[Path], None]) -> None:
    fifo, device, socket_path = tmp_path / "fifo", tmp_path / "device", tmp_path / "socket"
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.fspath(socket_path))
    places = [fifo, socket_path]
    if os.geteuid() == 0:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        places.append(device)
    for each in places:
        before = os.stat(each)
        with pytest.raises(penstock.Error, match=f"{each} is not a regular file") as caught:
            save(each)
        assert caught.value.code == "not_a_file"
        after = os.stat(each)
        assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)
    assert sorted(os.listdir(tmp_path)) == sorted(each.name for each in places)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("name", ["n" * 240, "n" * 255, "\u4e2d" * 85])
def test_a_name_may_have_255_bytes(tmp_path: Path, save: Callable[[Path], None], name: str) -> None:
    for _ in range(2):
        save(tmp_path / name)
    assert os.listdir(tmp_path) == [name]


def test_nobody_else_can_read_what_will_be_closed_to_them(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old.chmod(0o600)
    modes: list[int] = []

    class Pending(_native.PendingFile):
        def open(self, *, direct: bool = False) -> penstock.File:
            modes.append(os.fstat(self.fileno()).st_mode)
            return super().open(direct=direct)

        def publish(self, *, replace: bool = True, durable: bool = True) -> None:
            modes.append(os.fstat(self.fileno()).st_mode)
            modes.extend(each.stat().st_mode for each in old.parent.iterdir())
            super().publish(replace=replace, durable=durable)

    monkeypatch.setattr(_native, "PendingFile", Pending)
    for save in SAVES:
        save(old)
    assert {stat.S_IMODE(each) for each in modes} == {0o600} and len(modes) >= 6
    assert stat.S_IMODE(old.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_file_keeps_its_owner_and_attributes(old: Path) -> None:
    os.chown(old, 65534, 1234)
    old.chmod(0o660)
    try:
        os.setxattr(old, "user.origin", b"here")
    except OSError as problem:
        pytest.skip(f"no attributes here: {problem}")
    for save in SAVES:
        save(old)
        assert (old.stat().st_uid, old.stat().st_gid, stat.S_IMODE(old.stat().st_mode)) == (65534, 1234, 0o660)
        assert os.getxattr(old, "user.origin") == b"here"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_who_may_write_another_users_file_may_save_it(old: Path) -> None:
    command = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", sys.executable, "-c"]
    if subprocess.run([*command, "import numpy, penstock, os, sys; os.stat(sys.argv[1])", str(old)], capture_output=True).returncode:
        pytest.skip("another user cannot run Python here, or get to this folder")
    os.chown(old, 65534, 65534)
    old.chmod(0o666)
    old.parent.chmod(0o777)
    code = "import numpy, sys; from penstock.safetensors import save_file; save_file({'new': numpy.zeros(3)}, sys.argv[1])"
    subprocess.run([*command, code, str(old)], check=True)
    assert list(load_file(old)) == ["new"] and stat.S_IMODE(old.stat().st_mode) == 0o666


def test_a_file_keeps_its_permissions_and_a_link_stays_one(old: Path) -> None:
    old.chmod(0o640)
    save_file({"new": np.zeros(3)}, old)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    link = old.parent / "link"
    link.symlink_to(old.name)
    save_file({"newer": np.zeros(3)}, link)
    assert link.is_symlink() and list(load_file(old)) == ["newer"]
    mask = os.umask(0o027)
    try:
        save_file({"new": np.zeros(3)}, old.parent / "fresh")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((old.parent / "fresh").stat().st_mode) == 0o640
    save_file({"long": np.zeros(3)}, old.parent / ("n" * 255))
    assert list(load_file(old.parent / ("n" * 255))) == ["long"]


SAVER = """
import sys, numpy
from penstock.safetensors import save_file
for i in range(1 << 30):
    save_file({"x": numpy.full(300_000, i, "u4"), "i": numpy.array(i)}, sys.argv[1])
    print(i, flush=True)
"""


def check_whole(path: Path) -> int:
    found = load_file(path)
    number = int(found["i"])
    assert (found["x"] == number).all()
    return number


@pytest.mark.parametrize("seed", range(12))
def test_a_saver_that_is_killed_leaves_one_file_or_the_other(tmp_path: Path, seed: int) -> None:
    saver = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path / "file")], stdout=subprocess.PIPE, text=True)
    assert saver.stdout is not None
    last = -1
    for _ in range(random.Random(seed).randint(1, 30)):
        last = int(saver.stdout.readline())
    saver.kill()
    saver.wait()
    saver.stdout.close()
    assert check_whole(tmp_path / "file") >= last
    others = [each.name for each in tmp_path.iterdir() if each.name != "file"]
    assert len(others) <= 1 and all(each.startswith(".file.penstock-") for each in others)


def test_two_savers_of_one_path_leave_one_whole_file(tmp_path: Path) -> None:
    """And who reads meanwhile finds a whole one, too."""
    path = tmp_path / "file"
    save_file({"x": np.zeros(300_000, "u4"), "i": np.array(0)}, path)
    failed: list[BaseException] = []

    def save(first: int) -> None:
        try:
            for i in range(first, first + 15):
                save_file({"x": np.full(300_000, i, "u4"), "i": np.array(i)}, path)
        except BaseException as problem:
            failed.append(problem)

    threads = [threading.Thread(target=save, args=(100 * number,)) for number in (1, 2, 3)]
    for each in threads:
        each.start()
    seen = {check_whole(path)}
    while any(each.is_alive() for each in threads):
        seen.add(check_whole(path))
    for each in threads:
        each.join()
    assert not failed and check_whole(path) in (114, 214, 314) and seen <= {0, *range(100, 115), *range(200, 215), *range(300, 315)}
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


# --- interruptions


class Interrupted:
    """In the place of a function: as if Ctrl-C came in it."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            signal.raise_signal(signal.SIGINT)
        return self.function(*args, **named)


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    save_file({f"x{i}": np.full(4 * MIB, i, "u1") for i in range(8)}, tmp_path / "file")
    yield tmp_path / "file"


def test_an_interruption_while_it_waits_ends_a_load(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock._tensors import reads as _reading

    target = {f"x{i}": np.zeros(4 * MIB, "u1") for i in range(8)}
    for call in (lambda: load_file(large), lambda: load_file(large, "host:0"), lambda: load_into(large, target)):
        with monkeypatch.context() as patch:
            patch.setattr(_reading, "wait", Interrupted(_reading.wait))
            with pytest.raises(KeyboardInterrupt):
                call()
        assert penstock.requests() == []
    assert all((each == int(name[1:])).all() for name, each in load_file(large).items())


def test_an_interruption_while_views_are_made_ends_a_load(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock._core.arrays import of_numpy

    with monkeypatch.context() as patch:
        patch.setattr(of_numpy.NumpyArena, "views", Interrupted(lambda *_: None))
        with pytest.raises(KeyboardInterrupt):
            load_file(large)
    assert penstock.requests() == []


def test_ctrl_c_ends_a_process_that_loads(large: Path) -> None:
    code = (
        "import sys\n"
        "import penstock\n"
        "from penstock import safetensors\n"
        "try:\n"
        "    while True:\n"
        "        safetensors.load_file(sys.argv[1])\n"
        "        print('loaded', flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', penstock.requests())\n"
    )
    for count in (1, 2, 5):
        loader = subprocess.Popen([sys.executable, "-c", code, str(large)], stdout=subprocess.PIPE, text=True)
        assert loader.stdout is not None
        told = []
        for line in loader.stdout:
            told.append(line)
            # Again where Python had no ear for it, as in a destructor: it drops exceptions there.
            if len(told) >= count and (len(told) - count) % 10 == 0:
                loader.send_signal(signal.SIGINT)
            if len(told) >= 1000:
                loader.kill()
        loader.stdout.close()
        assert loader.wait() == 0 and told[-1] == "interrupted []\n" and set(told[:-1]) == {"loaded\n"}


def test_an_interruption_ends_a_save_and_leaves_the_old_file(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pending(_native.PendingFile):
        def publish(self, *, replace: bool = True, durable: bool = True) -> None:
            signal.raise_signal(signal.SIGINT)
            super().publish(replace=replace, durable=durable)

    with monkeypatch.context() as patch:
        patch.setattr(_native, "PendingFile", Pending)
        with pytest.raises(KeyboardInterrupt):
            save_file({"new": np.zeros(MIB)}, old)
    assert penstock.requests() == [] and is_old(old)


def test_where_memory_does_not_suffice_nothing_is_read(tmp_path: Path) -> None:
    """Of a sparse file that is as large as it says, with a process that may have less than that."""
    nbytes = 1 << 40
    header = json.dumps({"x": row(shape=[nbytes], data_offsets=[0, nbytes])}).encode()
    path = written(tmp_path / "file", header)
    os.truncate(path, 8 + len(header) + nbytes)
    code = (
        "import resource, sys\n"
        "import numpy\n"
        "from penstock.safetensors import load_file, safe_open\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 38, 1 << 38))\n"
        "try: load_file(sys.argv[1])\n"
        "except MemoryError: print('no memory')\n"
        "with safe_open(sys.argv[1], 'np') as file: print(file.get_slice('x')[1 << 39 : (1 << 39) + 5].tolist())\n"
    )
    told = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert told.stdout == "no memory\n[0, 0, 0, 0, 0]\n", told.stderr


# --- files of other kinds

OTHER_KINDS = {
    "zip": (b"PK\3\4" + bytes(60), "a zip archive, such as a torch.save checkpoint"),
    "old checkpoint": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a checkpoint of PyTorch 1.5 or older"),
    "pickle 2": (pickle.dumps({"x": 1}, 2), "a Python pickle"),
    "pickle 4": (pickle.dumps({"x": [1] * 50}, 4), "a Python pickle"),
    "gzip": (gzip.compress(b"x" * 99), "compressed by gzip"),
    "gzip, no time": (gzip.compress(b"x" * 99, mtime=0), "compressed by gzip"),
    "json": (b'{"error": "Invalid username or password."}', "JSON text"),
    "npy": (b"\x93NUMPY\1\0v\0{", "a NumPy array"),
    "gguf": (b"GGUF" + bytes(20), "a GGUF file"),
    "html": (b"<!DOCTYPE html><html></html>", "an HTML page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a git-lfs pointer"),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_a_file_of_another_kind_is_called_by_it(tmp_path: Path, kind: str) -> None:
    content, word = OTHER_KINDS[kind]
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    for load in (lambda: load_file(path), lambda: safe_open(path, framework="np")):
        with pytest.raises(SafetensorError, match=f"{path} is {word}"):
            load()


def test_a_damaged_file_is_not_taken_for_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    for length in (0x0280, 0x7B, 0x5B):  # which begin as pickles and JSON do
        path.write_bytes(length.to_bytes(8, "little") + b"x" * 1000)
        with pytest.raises(SafetensorError, match="must start with"):
            load_file(path)


@pytest.mark.parametrize(
    "names",
    [
        ["diffusion_pytorch_model.safetensors"],
        ["diffusion_pytorch_model-00001-of-00001.safetensors", "diffusion_pytorch_model.safetensors.index.json"],
        ["model.fp16-00001-of-00001.safetensors", "model.safetensors.index.fp16.json"],
        ["adapter_model.safetensors"],
        ["a.safetensors", "b.safetensors", "config.json"],
        ["pytorch_model.bin"],
    ],
    ids=lambda names: names[-1],
)
def test_a_folder_under_other_names_says_what_it_has(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(penstock.NotFound, match="contains neither .* it contains ") as told:
        load_file(tmp_path)
    told_names = [name for name in names if f'"{name}"' in str(told.value)]
    indexes = [name for name in names if ".index." in name]
    assert told_names == (indexes or [name for name in names if name != "config.json"])
