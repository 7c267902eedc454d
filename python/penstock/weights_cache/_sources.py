"""Hashes of the contents of source files. A file is read again only if its state has changed; an index in the cache's folder keeps its hash."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from .. import _native
from .._core.errors import InvalidArgument
from .._core.urls import is_url

__all__ = ["Contents", "FileState", "contents_of", "in_threads", "model_files", "settings_files", "state_of"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_CHUNK_BYTES = 16 << 20
_THREADS = 8
_VERSION = 1
# If a file changes twice within this time, its time stamps may stay the same.
_TICK_NS = 20_000_000
_COARSE_TICK_NS = 2_100_000_000
_MOST_RECORDS = 100_000  # further records replace the oldest ones
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack")


class FileState(NamedTuple):
    """Values that change whenever a file's contents change. The kernel keeps its change cookie to itself; programs see only ctime."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class Contents(NamedTuple):
    """Source files by the names that the caller uses, each with its state when it was hashed and the hash of its contents."""

    files: list[tuple[str, FileState, str]]

    def are_current(self) -> bool:
        """Returns True if no file has changed since it was hashed, and each name still refers to the same file."""
        try:
            return all(state_of(name) == state for name, state, _ in self.files)
        except OSError:
            return False

    @property
    def hashes(self) -> list[str]:
        return [found for *_, found in self.files]


def state_of(name: str) -> FileState:
    """Opens the file, because a network file system then asks its server for changes. Raises OSError if that fails, or if it is not a regular file."""
    path = os.path.realpath(name)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL, "the source is not a regular file", name)
    return FileState(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def contents_of(folder: str, paths: Iterable[str | os.PathLike[str]]) -> Contents:
    """Returns the contents of files. Reads those whose state is not in the index. Several processes share this work by file. Blocks.

    `folder`: keeps the index. Raises OSError if a file cannot be read.
    """
    wanted = [os.path.abspath(os.fsdecode(_local(each))) for each in paths]
    found: dict[str, tuple[FileState, str]] = {}
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    for waits in (False, True):  # first the files that no other process is reading
        for path in wanted:
            if path not in found and (record := _record_of(folder, path, waits)) is not None:
                found[path] = record
    return Contents([(each, *found[each]) for each in wanted])


def _local(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    if is_url(path):
        raise InvalidArgument(
            f"the source {_native.shown_name(os.fspath(path))} is on a server, but sources must be local files: put its ETag or version into the key instead",
            code="invalid_argument",
        )
    return path


def _record_of(folder: str, path: str, waits: bool) -> tuple[FileState, str] | None:
    """Returns None if another process is reading the file, unless `waits` is True."""
    state = state_of(path)
    record = os.path.join(folder, hashlib.sha256(os.fsencode(state.path)).hexdigest()[:32] + ".json")
    if (known := _known(record, state)) is not None:
        return state, known
    with _locked(record, waits) as is_locked:
        if not is_locked:
            return None
        if (known := _known(record, state)) is not None:
            return state, known
        while True:
            _wait_for_tick(state)
            found = _hash_of(path)
            now = state_of(path)
            if now == state:
                break
            state = now  # changed while it was read
        if state.ctime_ns + _tick_of(state) <= time.time_ns():  # otherwise the file system's clock is ahead, and time stamps prove nothing
            _keep(record, state, found)
        return state, found


def owner_problem_of(status: os.stat_result) -> str | None:
    """Returns why another user can change a file or folder, phrased to follow its name; None if no other user can."""
    if status.st_uid != os.geteuid():
        return f"belongs to the user {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & 0o022:
        return f"can be written by other users (mode {stat.S_IMODE(status.st_mode):o}): run chmod go-w"
    return None


def _known(record: str, state: FileState) -> str | None:
    try:
        with open(record, encoding="utf-8") as file:
            is_own = owner_problem_of(os.fstat(file.fileno())) is None
            told = json.load(file)
        if is_own and told["version"] == _VERSION and told["state"] == list(state) and _is_hash(told["hash"]):
            return str(told["hash"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # absent, or left incomplete by a crash
        pass
    return None


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64


def _keep(record: str, state: FileState, found: str) -> None:
    """Writes a record, if possible. A crash leaves the old record or the new one, or one that is not valid JSON."""
    temporary = f"{record}.{os.getpid()}"
    with contextlib.suppress(OSError):
        _make_room(os.path.dirname(record))
        with open(temporary, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            json.dump({"version": _VERSION, "state": list(state), "hash": found}, file)
        os.replace(temporary, record)


def _make_room(folder: str) -> None:
    names = os.listdir(folder)
    if len(names) >= _MOST_RECORDS:
        paths = [os.path.join(folder, each) for each in names]
        for path in sorted(paths, key=lambda each: os.stat(each).st_mtime_ns)[: len(paths) // 2]:
            with contextlib.suppress(OSError):
                os.unlink(path)


@contextlib.contextmanager
def _locked(record: str, waits: bool) -> Iterator[bool]:
    """Locks a record, so that other processes do not read the same file. Yields False if another process holds the lock and `waits` is False."""
    with contextlib.ExitStack() as stack:
        is_locked = True
        try:
            descriptor = os.open(f"{record}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            is_locked = False
        except OSError:  # a full or read-only disk: the file is read without a lock
            pass
        yield is_locked


def _tick_of(state: FileState) -> int:
    return _COARSE_TICK_NS if state.ctime_ns % 1_000_000_000 == 0 else _TICK_NS


def _wait_for_tick(state: FileState) -> None:
    """Waits until a later change of a new file is certain to get another time stamp."""
    left = state.ctime_ns + _tick_of(state) - time.time_ns()
    if 0 < left <= _COARSE_TICK_NS:
        time.sleep(left / 1e9)


def _hash_of(path: str) -> str:
    """Returns the SHA-256 of the size and of the SHA-256 of each 16 MiB. Reads through the page cache, because the file is about to be loaded."""
    with open(path, "rb", buffering=0) as file:
        with contextlib.suppress(OSError):  # a write through a mapping updates the file's times only if its page was clean before
            os.fdatasync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        parts = in_threads(lambda start: _hash_of_chunk(file.fileno(), start), range(0, size, _CHUNK_BYTES))
        return hashlib.sha256(size.to_bytes(8, "little") + b"".join(parts)).hexdigest()


def in_threads(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Calls the function with each item in a few threads, or in this one if no thread can be started. Returns the results in order."""
    if len(items) > 1:
        with contextlib.suppress(RuntimeError), concurrent.futures.ThreadPoolExecutor(min(_THREADS, len(items), os.cpu_count() or 1), "penstock-hash") as pool:
            return list(pool.map(function, items))
    return list(map(function, items))


def _hash_of_chunk(descriptor: int, start: int) -> bytes:
    found = hashlib.sha256()
    place, past = start, start + _CHUNK_BYTES
    while place < past and (content := os.pread(descriptor, min(1 << 20, past - place), place)):
        found.update(content)
        place += len(content)
    return found.digest()


def model_files(folder: str | os.PathLike[str]) -> list[str]:
    """Returns the files of a model's folder that may affect its weights: weights in all formats, because arguments select the format, configuration and
    code. Raises NotADirectoryError or FileNotFoundError.
    """
    return [*_files_of(folder, _WEIGHTS), *settings_files(folder)]


def settings_files(folder: str | os.PathLike[str]) -> list[str]:
    """Returns the configuration and code in a model's folder. Raises NotADirectoryError or FileNotFoundError."""
    return _files_of(folder, (".json", ".py"))


def _files_of(folder: str | os.PathLike[str], endings: tuple[str, ...]) -> list[str]:
    return [os.path.join(folder, each) for each in sorted(os.listdir(folder)) if each.endswith(endings)]
