"""Files that are whole under their name, or not there: what they had before stays until then."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from types import TracebackType

from . import _native

__all__ = ["PendingFile"]


class PendingFile:
    """A file beside the one that it will be. commit() forces its bytes to the disk and gives it its name; without that it goes. A context manager.

    What a process leaves that is killed meanwhile is named .NAME.XXXXXXXX.partial. A symbolic link stays one: what it names is replaced. A file
    that is replaced hands on its permissions.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.realpath(os.fspath(path))
        folder, name = os.path.split(self._path)
        self._folder = folder
        self._temporary = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(4)}.partial")
        self.file = _native.open(self._temporary, "x", direct=True)  # past the page cache, where that goes: it is on its way to the disk
        self._pending = True

    def __enter__(self) -> PendingFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.discard()

    def commit(self) -> None:
        """Raises penstock.Error or OSError, and the file under the name is what it was then."""
        with contextlib.suppress(FileNotFoundError):
            os.chmod(self._temporary, stat.S_IMODE(os.stat(self._path).st_mode))
        self.file.sync()
        self.file.close()
        os.replace(self._temporary, self._path)
        self._pending = False
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)  # the name, too, outlives a loss of power
        finally:
            os.close(descriptor)

    def discard(self) -> None:
        """Nothing after commit()."""
        if not self._pending:
            return
        self._pending = False
        with contextlib.suppress(OSError):
            self.file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)
