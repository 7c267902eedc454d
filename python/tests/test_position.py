"""What penstock.File has of Python's file objects: a position, the descriptor, truncate(), and async with."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock

NBYTES = 100_003


@pytest.fixture
def path(tmp_path: Path, pattern: Any) -> Path:
    name = tmp_path / "file"
    name.write_bytes(pattern(NBYTES))
    return name


def test_read_goes_on_from_where_it_ended(path: Path, pattern: Any) -> None:
    expected = pattern(NBYTES)
    with penstock.open(path) as file:
        assert file.read(0) == b""
        assert [file.read(10), file.read(7), file.tell()] == [expected[:10], expected[10:17], 17]
        rest = file.read()
        assert isinstance(rest, bytes) and rest == expected[17:]
        assert file.tell() == NBYTES
        assert [file.read(), file.read(5), file.read(None), file.read(-1)] == [b""] * 4
        file.seek(-5, os.SEEK_END)
        assert file.read(100) == expected[-5:]
        file.seek(NBYTES + 10)
        assert [file.read(), file.read(1), file.tell()] == [b"", b"", NBYTES + 10]


def test_readinto_goes_on_and_ends(memory: Any, path: Path, pattern: Any) -> None:
    with penstock.open(path) as file:
        seen, counts = b"", []
        while True:
            target = memory.empty(30_000)
            counts.append(file.readinto(target))
            if not counts[-1]:
                break
            seen += memory.bytes(target)[: counts[-1]]
    assert counts == [30_000, 30_000, 30_000, 10_003, 0]
    assert seen == pattern(NBYTES)


def test_write_goes_on_too(memory: Any, path: Path, pattern: Any) -> None:
    with penstock.open(path, "r+") as file:
        assert file.seek(10) == 10
        assert [file.write(memory.of(b"abc")), file.write(b"defg"), file.tell()] == [3, 4, 17]
        assert file.read(2) == pattern(NBYTES)[17:19]
        file.seek(0, os.SEEK_END)
        file.write(b"end")
        file.flush()
    content = path.read_bytes()
    assert content[:20] == pattern(NBYTES)[:10] + b"abcdefg" + pattern(NBYTES)[17:20]
    assert content[-3:] == b"end" and len(content) == NBYTES + 3


def test_requests_with_an_offset_leave_the_position(path: Path) -> None:
    with penstock.open(path, "r+") as file:
        file.seek(5)
        file.read_into(bytearray(100), 3)
        file.pwrite(b"x", 50).result()
        file.read_many([(bytearray(10), 0)])
        assert file.tell() == 5


def test_seek_counts_from_three_places(path: Path) -> None:
    with penstock.open(path) as file:
        assert [file.seek(100), file.seek(-40, 1), file.seek(5, os.SEEK_CUR), file.seek(3, 2)] == [100, 60, 65, NBYTES + 3]
        before = file.tell()
        for offset, whence in ((-1, 0), (-NBYTES - 4, 1), (-NBYTES - 1, 2), ((1 << 63) - 1, 1)):
            with pytest.raises(penstock.InvalidArgument, match=f"offset is {offset} from"):
                file.seek(offset, whence)
        for whence in (3, -1):
            with pytest.raises(ValueError, match=f"whence must be 0, 1 or 2, not {whence}"):
                file.seek(0, whence)
        assert file.tell() == before


def test_what_failed_does_not_count(path: Path, tmp_path: Path) -> None:
    with penstock.open(path) as file:
        file.seek(3)
        with pytest.raises(PermissionError):
            file.write(b"abc")
        assert file.tell() == 3
    with penstock.open(tmp_path / "new", "w") as file:
        file.write(b"12345")
        for call in (lambda: file.read(), lambda: file.read(1), lambda: file.readinto(bytearray(3))):
            with pytest.raises(PermissionError):
                call()
        assert file.tell() == 5


def test_a_closed_file_has_no_position(path: Path) -> None:
    file = penstock.open(path, "r+")
    file.close()
    calls = [file.read, file.tell, file.truncate, file.fileno, file.flush, file.readable, file.writable, file.seekable]
    calls += [lambda: file.seek(0), lambda: file.write(b"x"), lambda: file.readinto(bytearray(1))]
    for call in calls:
        with pytest.raises(penstock.Closed) as caught:
            call()
        assert caught.value.filename == str(path)


def test_a_file_that_does_not_tell_its_size_is_read_to_its_end() -> None:
    expected = Path("/proc/version").read_bytes()
    with penstock.open("/proc/version") as file:
        assert file.size() == 0
        assert file.read(5) + file.read() == expected
        assert file.tell() == len(expected)


def test_the_descriptor_is_that_of_the_file(path: Path) -> None:
    with penstock.open(path, "r+") as file:
        assert os.path.samestat(os.fstat(file.fileno()), path.stat())
        os.pwrite(file.fileno(), b"seen", 0)
        assert file.read(4) == b"seen"
        descriptor = file.fileno()
    with pytest.raises(OSError):
        os.fstat(descriptor)
    with open(path, "rb") as plain, penstock.open(plain.fileno()) as lent:
        assert os.path.sameopenfile(lent.fileno(), plain.fileno())


def test_what_a_file_is_open_for(path: Path, tmp_path: Path) -> None:
    for mode, expected in (("r", (True, False)), ("r+", (True, True)), ("w", (False, True)), ("w+", (True, True))):
        with penstock.open(path if mode[0] == "r" else tmp_path / mode, mode) as file:
            assert (file.readable(), file.writable()) == expected and file.seekable()
    with open(path, "r+b") as plain, penstock.open(plain.fileno()) as lent:
        assert lent.readable() and lent.writable()


@pytest.mark.parametrize("size", [0, 1, 5_000, NBYTES, NBYTES + 70_000])
def test_truncate_cuts_and_lengthens(path: Path, pattern: Any, size: int) -> None:
    with penstock.open(path, "r+") as file:
        file.seek(77)
        assert file.truncate(size) == size == file.size()
        assert file.tell() == 77
        target = bytearray(NBYTES * 2)
        assert file.read_into(target) == size
        assert target[:size] == (pattern(NBYTES) + bytes(70_000))[:size]
        assert file.truncate() == 77
    assert path.stat().st_size == 77


def test_truncate_is_refused_in_words(path: Path) -> None:
    with penstock.open(path) as file, pytest.raises(PermissionError, match="not open for writing"):
        file.truncate(3)
    with penstock.open(path, "r+") as file:
        with pytest.raises(ValueError, match="size is -1"):
            file.truncate(-1)
        with pytest.raises(penstock.Error, match="truncate") as caught:
            file.truncate((1 << 63) - 1)
        assert caught.value.filename == str(path) and caught.value.errno
    assert path.stat().st_size == NBYTES


def test_pythons_own_layers_stand_on_it(tmp_path: Path) -> None:
    path = tmp_path / "layers"
    array = np.arange(1000.0).reshape(10, 100)
    with penstock.open(path, "w") as file:
        np.save(file, array)
        pickle.dump({"a": [1, 2]}, file)
    with io.BufferedReader(penstock.open(path)) as buffered:  # type: ignore[arg-type]
        np.testing.assert_array_equal(np.load(buffered), array)
        assert pickle.load(buffered) == {"a": [1, 2]}
    with penstock.open(tmp_path / "zip", "w+") as file:
        with zipfile.ZipFile(file, "w") as packed:  # type: ignore[call-overload]
            packed.writestr("name", b"content" * 100)
        with zipfile.ZipFile(file) as unpacked:  # type: ignore[call-overload]
            assert unpacked.read("name") == b"content" * 100


def test_async_with_closes(path: Path, pattern: Any) -> None:
    async def read() -> penstock.File:
        async with penstock.open(path) as file:
            target = bytearray(NBYTES)
            assert await file.pread(target) == NBYTES
            assert target == pattern(NBYTES) and not file.closed
        assert file.closed
        with pytest.raises(KeyError):
            async with penstock.open(path) as other:
                raise KeyError
        assert other.closed
        return file

    asyncio.run(read())


def test_async_with_does_not_hold_up_the_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closing = threading.Event()
    turned = threading.Event()

    class Slow:
        def close(self) -> None:
            closing.set()
            assert turned.wait(60)

    async def turn() -> None:
        while not closing.is_set():
            await asyncio.sleep(0)
        turned.set()

    async def close() -> None:
        from penstock._core import futures as _futures

        await asyncio.gather(_futures.close(Slow()), turn())  # type: ignore[arg-type]

    asyncio.run(close())


# --- lines

LINES = [b"", b"\n", b"one", b"one\ntwo\n", b"\n\nx\n\n", b"a" * 511 + b"\n" + b"b" * 1025 + b"\n" + b"c" * 3000, b"\r\nx\ry\n"]


@pytest.mark.parametrize("content", LINES, ids=range(len(LINES)))
def test_lines_are_those_of_pythons_files(tmp_path: Path, content: bytes) -> None:
    name = tmp_path / "file"
    name.write_bytes(content)
    with penstock.open(name) as ours, open(name, "rb", buffering=0) as theirs:
        for size in (-1, None, 0, 1, 3, 600, -1):
            assert (ours.readline(size), ours.tell()) == (theirs.readline(size), theirs.tell())
        for wanted in (lambda file: list(file), lambda file: file.readlines(), lambda file: file.readlines(4), lambda file: file.readall()):
            ours.seek(0), theirs.seek(0)
            assert wanted(ours) == wanted(theirs)
            assert ours.tell() == theirs.tell()
        assert not ours.isatty() and iter(ours) is ours and next(ours, None) is None
        assert io.BufferedReader(ours).read() == b""  # type: ignore[arg-type]


def test_lines_are_written_one_after_the_other(path: Path) -> None:
    with penstock.open(path, "w") as file:
        file.writelines([b"one\n", bytearray(b"two"), memoryview(b"\nthree")])
        assert file.tell() == 13
    assert path.read_bytes() == b"one\ntwo\nthree"
    with penstock.open(path) as file, pytest.raises(TypeError):
        file.readline("x")  # type: ignore[arg-type]
