"""A file that several processes write together, each process one part. It gets its final name only once all parts have been written.

One process creates the file, with its full size and its first bytes, under a hidden name in the same folder. The other processes open it by that
name. The creator then renames it or drops it. remove_left() removes the hidden files of killed processes, which it recognizes by the missing lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import uuid
import weakref
from collections.abc import Iterator

from .. import _native
from .errors import Error, InvalidArgument, NotFound, make_error

__all__ = ["SharedFile", "abandon", "open_shared", "remove_left"]

_ending = ".penstock-save-"
# The errors of calls that the kernel, a sandbox or the file system does not support.
_refused = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM)


class SharedFile:
    """Created by one process, on a file system that the others can access. Locked (flock, shared) until it is published, dropped or garbage
    collected."""

    def __init__(self, path: str, beginning: bytes, nbytes: int) -> None:
        """`nbytes` is the size of the whole file. Reserves that space if the file system supports it. Raises penstock.Error with the path."""
        self.path = path
        self._pending = _native.PendingFile(path)
        self.hidden = _hidden_name(path)  # without the folder, because other processes may access it by another path
        hidden = _path_of(path, self.hidden)
        try:
            descriptor = self._pending.fileno()
            _lock(descriptor)
            _reserve(descriptor, nbytes, path)
            hidden = _link(descriptor, hidden, path)
            self.hidden = os.path.basename(hidden)
            self._remove_name = weakref.finalize(self, _remove, hidden, os.fstat(descriptor), os.getpid())
            with self._pending.open() as file:
                file.write_from(beginning)
        except BaseException:
            self.drop()
            raise

    def publish(self) -> None:
        """Flushes the file and renames it over an existing one. Raises the same errors as a pending file; the existing file then stays unchanged."""
        self._pending.publish()
        self._remove_name()

    def drop(self) -> None:
        """Removes the file unless it was published. A second call does nothing."""
        if hasattr(self, "_remove_name"):
            self._remove_name()
        self._pending.drop()


@contextlib.contextmanager
def open_shared(path: str, hidden: str, nbytes: int) -> Iterator[_native.File]:
    """Opens the file in any process to write a part of it, and flushes it at the end of the block. `path` is its final name; `hidden` and `nbytes`
    come from the creator. Raises penstock.Error.
    """
    place = _path_of(path, hidden)
    # Opens the descriptor, because the name may refer to another file by now. Bypasses the page cache if possible, because the data is flushed to
    # disk immediately.
    with _locked(path, place) as descriptor, _native.open(descriptor, "r+", direct=True) as file:
        if file.size() != nbytes:
            problem = f"{path}: {hidden} has {file.size()} bytes, not {nbytes}, so it is not the file created for this save"
            raise InvalidArgument(problem, code="invalid_argument", filename=path)
        yield file
        file.sync()


def abandon(path: str, hidden: str) -> None:
    """Removes the hidden name after the caller failed to write its part. The file disappears once all processes have closed it."""
    with contextlib.suppress(OSError):
        os.unlink(_path_of(path, hidden))


def remove_left(folder: str) -> None:
    """Removes the shared files of killed processes from a folder. Keeps files that it cannot examine."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(".") and _ending in name:
                with contextlib.suppress(OSError):
                    _remove_unlocked(os.path.join(folder, name))


def _hidden_name(path: str) -> str:
    return f".{os.path.basename(os.path.realpath(path))}{_ending}{uuid.uuid4().hex[:16]}"


def _path_of(path: str, hidden: str) -> str:
    """Returns the path of the hidden file. If path is a symbolic link, this is in its target's folder."""
    return os.path.join(os.path.dirname(os.path.realpath(path)), os.path.basename(hidden))


def _remove_unlocked(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(descriptor)
        if stat.S_ISREG(facts.st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path, facts, os.getpid())
    finally:
        os.close(descriptor)


def _remove(path: str, facts: os.stat_result, process: int) -> None:
    """Removes the name if it still refers to this file. Does nothing in a forked child."""
    with contextlib.suppress(OSError):
        if os.getpid() == process and os.path.samestat(os.lstat(path), facts):
            os.unlink(path)


@contextlib.contextmanager
def _locked(path: str, place: str) -> Iterator[int]:
    """Opens and locks the file without following symbolic links."""
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        why = "another process that was writing the file failed, or does not share this folder"
        raise NotFound(f"{path}: the temporary file {place} does not exist: {why}", code="not_found", filename=path) from None
    except OSError as problem:
        raise _error_of(problem.errno or 0, f"{path}: open {place}", path) from None
    try:
        _lock(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Acquires a writer's shared lock. remove_left() treats an unlocked file as left by a killed process; if locks are not supported, such files
    stay.

    The lock also matters on NFS: a client that believes it is a file's only user may write whole pages and overwrite other clients' bytes in them.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _link(descriptor: int, name: str, path: str) -> str:
    """Links the file to the name, and returns the name. If links are not supported (FAT, some sandboxes), the pending file already has a hidden name.
    """
    own = f"/proc/self/fd/{descriptor}"
    try:
        # With a folder argument, os.link() calls linkat(), which follows the descriptor's link in /proc.
        os.link(own, name, src_dir_fd=descriptor, follow_symlinks=True)
        return name
    except OSError as problem:
        with contextlib.suppress(OSError):
            if problem.errno in _refused and os.path.samestat(os.lstat(os.readlink(own)), os.fstat(descriptor)):
                return os.readlink(own)
        raise _error_of(problem.errno or 0, f"{path}: link its hidden file", path) from None


# --- disk space

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = getattr(_libc, "fallocate64", None) or _libc.fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def _reserve(descriptor: int, nbytes: int, path: str) -> None:
    """Reserves space. Does not use posix_fallocate(), which writes to every block if the file system lacks support."""
    number = errno.EINTR
    while number == errno.EINTR:
        number = 0 if _fallocate(descriptor, 0, 0, nbytes) == 0 else ctypes.get_errno()
    if number in _refused:
        try:
            os.ftruncate(descriptor, nbytes)
            return
        except OSError as problem:
            number = problem.errno or errno.EIO
    if number:
        raise _error_of(number, f"{path}: reserve {nbytes} bytes", path)


_codes = {errno.ENOSPC: "no_space", errno.EDQUOT: "no_space", errno.EACCES: "permission_denied", errno.EPERM: "permission_denied"}


def _error_of(number: int, what: str, path: str) -> Error:
    return make_error(_codes.get(number, "io"), f"{what}: {os.strerror(number)} (os {number})", "os", number, path, None, 0)
