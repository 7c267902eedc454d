"""Opens files by path, keeps them open for later reads, and writes whole files. Independent of zarr."""

from __future__ import annotations

import os
import resource
import stat
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import penstock
from penstock._core.arrays import settle
from penstock._core.small_files import sync_folder

__all__ = ["MISSING", "HandleCache", "Lease", "files_at_once", "write_file", "write_memory"]

# Exceptions raised by opening a path if the store has no value for the key.
MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError, penstock.NotAFile)

# The descriptors that penstock may hold per open file: the file itself and a second one opened with O_DIRECT.
_DESCRIPTORS_PER_FILE = 2
_MOST_FILES_AT_ONCE = 256


def files_at_once() -> int:
    """Returns how many files a batch may hold open: an eighth of the open-file limit, between 4 and 256."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_FILES_AT_ONCE
    return max(4, min(_MOST_FILES_AT_ONCE, soft // (8 * _DESCRIPTORS_PER_FILE)))


@dataclass(eq=False)
class _Entry:
    path: str
    file: penstock.File
    identity: tuple[int, ...]  # for a local file: device, inode, modification time in ns
    users: int = 0
    retired: bool = False  # removed from the cache: its last user closes it


@dataclass
class Lease:
    """A file that stays open until the lease ends, and the file's size in bytes at the start of the lease."""

    file: penstock.File
    size: int
    entry: _Entry = field(repr=False)


class HandleCache:
    """Keeps at most `limit` idle files open, closing the least recently used first. Thread-safe.

    A file that has been replaced or changed since it was opened is reopened, so each lease costs one stat().
    """

    def __init__(self, limit: int) -> None:
        """Creates a cache of at most `limit` files. Raises ValueError if `limit` is negative."""
        if limit < 0:
            raise ValueError(f"max_open_files is {limit}: it must be 0 or more")
        self.limit = limit
        self._lock = threading.Lock()  # guards the fields below; never held while a file is opened or closed
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        _caches.add(self)

    def __len__(self) -> int:
        return len(self._entries)

    def acquire(self, path: str) -> Lease:
        """Opens path for reading, or reuses an open file. Blocks. End the lease with release().

        Raises one of MISSING if the file does not exist, and penstock.Error if it cannot be opened.
        """
        identity, known_size = self._look(path)
        with self._lock:
            entry = self._entries.get(path)
            if entry is not None and entry.identity == identity:
                entry.users += 1
                self._entries.move_to_end(path)
                return Lease(entry.file, entry.file.size() if known_size is None else known_size, entry)
        file = self._open(path)
        size = file.size()  # not the cached size, because the file may have been replaced since then
        entry = _Entry(path, file, identity, users=1)
        with self._lock:
            stale = [self._entries.pop(path)] if path in self._entries else []
            self._entries[path] = entry
            while len(self._entries) > self.limit:
                stale.append(self._entries.popitem(last=False)[1])
            closing = self._retire(stale)
        _close(closing)
        return Lease(file, size, entry)

    def _look(self, path: str) -> tuple[tuple[int, ...], int | None]:
        """Returns the identity that distinguishes this file from others with the same name, and its size (None if only the open file can report
        it)."""
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(21, "Is a directory", path)
        return (found.st_dev, found.st_ino, found.st_mtime_ns), found.st_size

    def _open(self, path: str) -> penstock.File:
        return penstock.open(path)

    def release(self, lease: Lease) -> None:
        """Ends a lease. No read through it may be in progress."""
        entry = lease.entry
        with self._lock:
            entry.users -= 1
            last = entry.users == 0 and entry.retired
        if last:
            _close([entry])

    @contextmanager
    def lease(self, path: str) -> Iterator[Lease]:
        """Returns a context manager that calls acquire() and release()."""
        lease = self.acquire(path)
        try:
            yield lease
        finally:
            self.release(lease)

    def forget(self, path: str) -> None:
        """Drops path and all files below it, so that the space of deleted files is freed."""
        below = path.rstrip("/") + "/"
        with self._lock:
            gone = [p for p in self._entries if p == path or p.startswith(below)]
            closing = self._retire([self._entries.pop(p) for p in gone])
        _close(closing)

    def clear(self) -> None:
        """Drops all files. Files in use are closed when their leases end."""
        with self._lock:
            closing = self._retire(list(self._entries.values()))
            self._entries.clear()
        _close(closing)

    def _retire(self, entries: list[_Entry]) -> list[_Entry]:
        for entry in entries:
            entry.retired = True
        return [entry for entry in entries if entry.users == 0]

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._entries = OrderedDict()


_caches: weakref.WeakSet[HandleCache] = weakref.WeakSet()


def _start_afresh_in_child() -> None:
    # A forked child cannot use files that its parent opened, or a lock that another thread held.
    for cache in list(_caches):
        cache._start_afresh()


os.register_at_fork(after_in_child=_start_afresh_in_child)


def _close(entries: list[_Entry]) -> None:
    for entry in entries:
        entry.file.close()


def write_file(path: str, value: Any, *, exclusive: bool = False, fsync: bool = False) -> int:
    """Writes a whole value atomically: readers see either the old file or the new one. Blocks. Returns the value's size in bytes.

    - `value`: contiguous host or GPU memory.
    - `exclusive`: fail with FileExistsError if the file exists.
    - `fsync`: return only once the file and its directory entry are on disk.

    Raises penstock.Error or OSError, and leaves no temporary file behind.
    """
    folder, name = os.path.split(path)
    made = _make_folders(folder)
    temporary = os.path.join(folder, f"{name}.{uuid.uuid4().hex}.partial")
    try:
        written = write_memory(value, temporary, fsync=fsync)
        if exclusive:
            os.link(temporary, path)
            os.unlink(temporary)
        else:
            os.replace(temporary, path)
    except BaseException:
        _remove_if_there(temporary)
        raise
    if fsync:
        for changed in [*made, folder]:
            sync_folder(changed)
    return written


def write_memory(value: Any, path: str, *, fsync: bool = False) -> int:
    """Writes a value to a file that must not exist. Blocks. Returns the value's size in bytes. Raises the errors of write_file()."""
    settle(value)
    with penstock.open(path, "x") as file:
        written = file.write_from(value) if _nbytes(value) else 0
        if fsync:
            file.sync()
    return written


def _nbytes(value: Any) -> int:
    return int(value.nbytes) if hasattr(value, "nbytes") else len(value)


def _make_folders(folder: str) -> list[str]:
    """Creates a folder and its missing parents. Returns the folders in which an entry was created."""
    missing = []
    at = folder
    while at and not os.path.isdir(at):
        missing.append(at)
        at = os.path.dirname(at)
    os.makedirs(folder or ".", exist_ok=True)
    return [os.path.dirname(made) or "." for made in missing]


def _remove_if_there(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
