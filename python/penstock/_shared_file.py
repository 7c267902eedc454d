"""A file that several processes write together, each its part: it has its name only once all of them have.

One process makes it, with its size and its beginning; it has a hidden name in the same folder then, by which the others open it. The one that has made
it gives it its name, or drops it. What a killed one has left is known by its hidden name, which nobody has locked, and goes with the next remove_left().
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

from . import _native
from ._errors import Error, InvalidArgument, NotFound, make_error

__all__ = ["SharedFile", "abandon", "open_shared", "remove_left"]

_ending = ".penstock-save-"
# What a kernel, a sandbox or a file system answers to a call that it does not have.
_refused = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM)


class SharedFile:
    """Made by one process, whose file system the others see. Locked (flock, shared) until it is published or dropped, or garbage."""

    def __init__(self, path: str, beginning: bytes, nbytes: int) -> None:
        """nbytes: of the whole file, room for which is reserved where the file system can do that. Raises penstock.Error, which names path."""
        self.path = path
        self._pending = _native.PendingFile(path)
        self.hidden = _hidden_name(path)  # without the folder, which others may find by another path
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
        """Gives it its name, in the place of what was there, once its bytes are on the disk. Raises as pending files do; it is as it was then."""
        self._pending.publish()
        self._remove_name()

    def drop(self) -> None:
        """Nothing remains of it, unless it was published. A second time does nothing."""
        if hasattr(self, "_remove_name"):
            self._remove_name()
        self._pending.drop()


@contextlib.contextmanager
def open_shared(path: str, hidden: str, nbytes: int) -> Iterator[_native.File]:
    """For writing a part of it, in any process, which is on the disk when this ends. path: where it will be; hidden, nbytes: as the one has told that has
    made it. Raises penstock.Error."""
    place = _path_of(path, hidden)
    # By its descriptor: the name may be another file's by now. Past the page cache, where that goes: it is on its way to the disk.
    with _locked(path, place) as descriptor, _native.open(descriptor, "r+", direct=True) as file:
        if file.size() != nbytes:
            problem = f"{path}: {hidden} has {file.size()} bytes, and not {nbytes}: it is another file than the one that was made for this save"
            raise InvalidArgument(problem, code="invalid_argument", filename=path)
        yield file
        file.sync()


def abandon(path: str, hidden: str) -> None:
    """Takes its hidden name, since the caller has failed to write its part: nothing of it remains once all have closed it."""
    with contextlib.suppress(OSError):
        os.unlink(_path_of(path, hidden))


def remove_left(folder: str) -> None:
    """Removes from a folder what processes have left that were killed while they wrote a shared file there. What cannot be looked at stays."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(".") and _ending in name:
                with contextlib.suppress(OSError):
                    _remove_unlocked(os.path.join(folder, name))


def _hidden_name(path: str) -> str:
    return f".{os.path.basename(os.path.realpath(path))}{_ending}{uuid.uuid4().hex[:16]}"


def _path_of(path: str, hidden: str) -> str:
    """Beside where the name leads, if it is a link."""
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
    """The name, if it is that of this file still, and not in a forked child."""
    with contextlib.suppress(OSError):
        if os.getpid() == process and os.path.samestat(os.lstat(path), facts):
            os.unlink(path)


@contextlib.contextmanager
def _locked(path: str, place: str) -> Iterator[int]:
    """A descriptor of it, no link followed."""
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        why = "another process that writes it has failed, or this one does not see the same folder"
        raise NotFound(f"{path}: there is no {place} to write it to: {why}", code="not_found", filename=path) from None
    except OSError as problem:
        raise _error_of(problem.errno or 0, f"{path}: open {place}", path) from None
    try:
        _lock(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """As one of those who write it. By that what a killed process leaves is told from what is being written; where the file system has no locks, it stays.
    And a client of NFS that has a file to itself may write a page as a whole of which it was given a part, over what another has written there; with
    a lock that is shared it does not."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _link(descriptor: int, name: str, path: str) -> str:
    """Gives the file that name, and returns the name. Where there are no links (FAT, some sandboxes), the pending file has a hidden name already."""
    own = f"/proc/self/fd/{descriptor}"
    try:
        # With a folder given, os.link() calls linkat(), which follows the link that /proc has of the descriptor.
        os.link(own, name, src_dir_fd=descriptor, follow_symlinks=True)
        return name
    except OSError as problem:
        with contextlib.suppress(OSError):
            if problem.errno in _refused and os.path.samestat(os.lstat(os.readlink(own)), os.fstat(descriptor)):
                return os.readlink(own)
        raise _error_of(problem.errno or 0, f"{path}: give its hidden file a name", path) from None


# --- room on the disk

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = getattr(_libc, "fallocate64", None) or _libc.fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def _reserve(descriptor: int, nbytes: int, path: str) -> None:
    """Not posix_fallocate(), which writes to every block where the file system cannot do it."""
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
        raise _error_of(number, f"{path}: make room for {nbytes} bytes", path)


_codes = {errno.ENOSPC: "no_space", errno.EDQUOT: "no_space", errno.EACCES: "permission_denied", errno.EPERM: "permission_denied"}


def _error_of(number: int, what: str, path: str) -> Error:
    return make_error(_codes.get(number, "io"), f"{what}: {os.strerror(number)} (os {number})", "os", number, path, None, 0)
