"""Opens and reads files at paths that users pass, such as a model's index, and flushes folders. Rejects anything that is not a file."""

from __future__ import annotations

import os
import stat

from .. import _native
from .errors import make_error
from .urls import is_url

__all__ = ["open_file", "read_small_file", "sync_folder"]


def open_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Opens a regular file or a block device, like os.open(). Does not wait for a FIFO's writer.

    Raises OSError as os.open() does; NotAFile or IsADirectory for other objects; Error for a URL.
    """
    if is_url(path):
        name = _native.shown_name(path)
        raise make_error("unsupported", f"{name} is the URL of an object on a server, not a file", "penstock", 0, name, None, 0)
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    try:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISBLK(kind):
            name = os.fsdecode(path)
            raise make_error("not_a_file", f"{name} is {_kind_of(kind)}, not a file", "penstock", 0, name, None, 0)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_small_file(path: str | os.PathLike[str], most: int) -> bytes:
    """Returns a file's bytes. Raises InvalidArgument if the file exceeds the limit, and penstock.Error for system errors and those of open_file().
    """
    name = os.fsdecode(path)
    try:
        with os.fdopen(open_file(path), "rb") as file:
            content = file.read(most + 1)
    except OSError as problem:
        if hasattr(problem, "code"):
            raise
        code = {FileNotFoundError: "not_found", PermissionError: "permission_denied"}.get(type(problem), "io")
        raise make_error(code, f"{name}: {problem.strerror}", "os", problem.errno or 0, name, None, 0) from None
    if len(content) > most:
        raise make_error("invalid_argument", f"{name} is larger than {most} bytes", "penstock", 0, name, None, 0)
    return content


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Flushes a folder's entries to disk. Blocks. Raises OSError."""
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _kind_of(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a terminal or another device"}
    return kinds.get(stat.S_IFMT(mode), "something else")
