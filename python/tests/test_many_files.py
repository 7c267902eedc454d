"""Many files opened and closed by one call each."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _native

from . import range_server


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Of ten files, each with its own number in it."""
    made = [tmp_path / f"file {number}" for number in range(10)]
    for number, path in enumerate(made):
        path.write_bytes(bytes([number]) * (100 + number))
    return made


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def error_of_open(path: Any) -> Exception:
    with pytest.raises(penstock.Error) as raised:
        penstock.open(path)
    return raised.value


def test_files_come_in_order(paths: list[Path]) -> None:
    names: list[Any] = [str(paths[0]), os.fsencode(paths[1]), *paths[2:]]
    files: list[Any] = _native.open_many(names)
    for number, (name, file) in enumerate(zip(names, files)):
        target = bytearray(200)
        assert file.name is name
        assert (file.mode, file.closed, file.size()) == ("r", False, 100 + number)
        assert file.read_into(target) == 100 + number
        assert target[: 100 + number] == bytes([number]) * (100 + number)
        with pytest.raises(penstock.Error):
            file.write_from(b"x")
    _native.close_many(files)


def test_errors_come_in_their_places_as_open_raises_them(paths: list[Path], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / b"\xff".decode(errors="surrogateescape")).symlink_to("nothing")
    wrong: list[Any] = ["fifo", "loop", "missing", "", "nul\0", "file 0/below", b"\xff".decode(errors="surrogateescape")]
    wrong = [os.path.join(tmp_path, name) for name in wrong] + [""]
    if os.geteuid() != 0:
        paths[1].chmod(0)
        wrong.append(str(paths[1]))
    mixed = [path for each in wrong for path in (each, str(paths[0]))]
    outcomes: list[Any] = _native.open_many(mixed)
    assert len(outcomes) == len(mixed)
    for path, error in zip(wrong, outcomes[::2]):
        expected: Any = error_of_open(path)
        assert type(error) is type(expected)
        assert (str(error), error.filename, error.code, error.errno) == (
            str(expected), expected.filename, expected.code, expected.errno,
        )  # fmt: skip
        assert error.__traceback__ is None
    for file in outcomes[1::2]:
        assert file.size() == 100
    _native.close_many(outcomes[1::2])


def test_files_beyond_the_limit_of_open_files_are_errors(paths: list[Path]) -> None:
    before = descriptors()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, before)) + 4
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        outcomes: list[Any] = _native.open_many([str(paths[0])] * (limit + 1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    files = [each for each in outcomes if isinstance(each, penstock.File)]
    errors = [each for each in outcomes if not isinstance(each, penstock.File)]
    assert files and errors
    assert all("Too many open files" in str(error) for error in errors)
    _native.close_many(files)
    assert descriptors() == before


def test_objects_of_servers_are_opened_too(paths: list[Path], tmp_path: Path) -> None:
    with range_server.serving(tmp_path) as (url, _):
        there, missing = _native.open_many([f"{url}/file%203", f"{url}/missing"])
        assert isinstance(there, penstock.File) and there.size() == 103
        if isinstance(missing, penstock.File):  # the server is asked once something is wanted
            with pytest.raises(penstock.NotFound):
                missing.size()
            missing.close()
        else:
            assert isinstance(missing, penstock.NotFound)
        _native.close_many([there])


def test_nothing_is_opened_where_a_path_is_none(paths: list[Path]) -> None:
    before = descriptors()
    anything: Any = _native
    for wrong in (3, None, 1.5, ["x"], object()):
        with pytest.raises(TypeError):
            anything.open_many([str(paths[0]), wrong])
    for no_list in (str(paths[0]), (str(paths[0]),), None):
        with pytest.raises(TypeError, match=r"^open_many\(\): paths must be a list, not"):
            anything.open_many(no_list)
    assert descriptors() == before
    assert _native.open_many([]) == []


def test_a_list_may_change_while_its_paths_are_asked_for(paths: list[Path]) -> None:
    class Emptying:
        def __fspath__(self) -> str:
            names.clear()
            return str(paths[1])

    names: list[Any] = [Emptying(), str(paths[2])]
    files: list[Any] = _native.open_many(names)
    assert [file.size() for file in files] == [101, 102]
    _native.close_many(files)


def test_closing_returns_the_descriptors(paths: list[Path]) -> None:
    before = descriptors()
    files: list[Any] = _native.open_many([str(path) for path in paths])
    assert len(descriptors()) >= len(before) + len(paths)
    files[3].close()
    _native.close_many([*files, files[0]])
    assert all(file.closed for file in files)
    assert descriptors() == before
    _native.close_many(files)
    files[0].close()
    with pytest.raises(penstock.Closed):
        files[0].read_into(bytearray(1))
    del files
    assert descriptors() == before


def test_dropping_files_that_were_not_closed_returns_the_descriptors(paths: list[Path]) -> None:
    before = descriptors()
    files = _native.open_many([str(path) for path in paths])
    assert len(descriptors()) >= len(before) + len(paths)
    del files
    assert descriptors() == before


def test_nothing_is_closed_where_one_is_no_file(paths: list[Path]) -> None:
    anything: Any = _native
    with penstock.open(paths[0]) as file:
        for wrong in (3, None, str(paths[0]), penstock.NotFound("x")):
            with pytest.raises(TypeError, match="penstock.File objects, not"):
                anything.close_many([file, wrong])
        with pytest.raises(TypeError, match=r"^close_many\(\): files must be a list, not"):
            anything.close_many(file)
        assert not file.closed and file.size() == 100


def test_closing_waits_for_requests_under_way(tmp_path: Path, pattern: Any) -> None:
    nbytes = 20_000_003
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(pattern(nbytes))
    files: list[Any] = _native.open_many([str(tmp_path / "a"), str(tmp_path / "b")])
    targets = [bytearray(nbytes) for _ in files]
    futures = [file.pread(target) for file, target in zip(files, targets)]
    together = penstock.pread_many([(file, bytearray(nbytes), 0) for file in files])
    _native.close_many(files)
    assert [future.result() for future in futures] == [nbytes, nbytes]
    assert together.result() == [nbytes, nbytes]
    assert targets == [pattern(nbytes)] * 2
