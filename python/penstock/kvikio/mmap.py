"""KvikIO's memory-mapped file. Penstock's engine performs the reads, and decides whether to map the file."""

from __future__ import annotations

import os
from typing import Any

from penstock.kvikio._buffer_checks import check_not_negative
from penstock.kvikio.cufile import CuFile, IOFuture

__all__ = ["Mmap"]


class Mmap:
    """A readable region of a file. Thread-safe, except for close(). Unlike a real mapping, it survives truncation of the file."""

    def __init__(
        self,
        file_path: str | os.PathLike[str],
        flags: str = "r",
        initial_map_size: int | None = None,
        initial_map_offset: int = 0,
        mode: int = 0o644,
        map_flags: int | None = None,
    ) -> None:
        """Opens a region of a file: initial_map_size bytes (None: to the end) at initial_map_offset.

        `mode` and `map_flags` are accepted for compatibility with KvikIO and ignored.

        Raises RuntimeError ("Unable to open file"), ValueError if flags does not start with "r" or the region is empty, and IndexError if the region
        is not within the file.
        """
        if flags[:1] == "w":
            raise ValueError("File-backed mmap write is not supported")
        if flags[:1] != "r":
            raise ValueError(f"Unknown file open flag {flags!r}")
        check_not_negative(initial_map_size=initial_map_size, initial_map_offset=initial_map_offset)
        self._file = CuFile(file_path, "r")
        self._file._backend = "MMAP"
        try:
            self._offset, self._size = _region(self.file_size(), initial_map_size, initial_map_offset)
        except BaseException:
            self._file.close()
            raise

    def initial_map_size(self) -> int:
        """Returns the size of the region in bytes; 0 once closed."""
        return 0 if self.closed() else self._size

    def initial_map_offset(self) -> int:
        """Returns the offset of the region in the file, in bytes; 0 once closed."""
        return 0 if self.closed() else self._offset

    def file_size(self) -> int:
        """Returns the current size of the file in bytes; 0 once closed."""
        return 0 if self.closed() else os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Waits for running reads, then closes the file. Does nothing if it is already closed."""
        self._file.close()

    def closed(self) -> bool:
        """Returns True once close() has been called. As in KvikIO, this is a method here but a property in CuFile."""
        return self._file.closed

    def read(self, buf: Any, size: int | None = None, offset: int = 0) -> int:
        """Reads size bytes (None: to the end of the file) at offset in the file into buf (host or device memory). Blocks.

        Returns the number of bytes read. Raises IndexError if the range is not within the region, ValueError if it does not fit into buf, and
        RuntimeError if the file is closed or the read fails.
        """
        return self._file.read(buf, self._checked(size, offset), offset)

    def pread(
        self, buf: Any, size: int | None = None, offset: int = 0, task_size: int | None = None
    ) -> IOFuture:
        """Starts the read that read() performs and returns at once. `task_size` is as for CuFile.pread()."""
        return self._file.pread(buf, self._checked(size, offset), offset, task_size)

    def _checked(self, size: int | None, offset: int) -> int:
        if self.closed():
            raise RuntimeError("Cannot read from a closed MmapHandle")
        check_not_negative(size=size, offset=offset)
        file_bytes = self.file_size()
        if offset > file_bytes:
            raise IndexError(f"Offset is past the end of file: {offset} of {file_bytes} bytes")
        length = file_bytes - offset if size is None else size
        if offset < self._offset or offset + length > self._offset + self._size:
            region = f"{self._offset} to {self._offset + self._size}"
            raise IndexError(f"Read is out of bounds: {offset} to {offset + length}, but the region is {region}")
        return length


def _region(file_bytes: int, size: int | None, offset: int) -> tuple[int, int]:
    if offset >= file_bytes and (offset > 0 or size):
        raise IndexError(f"Offset must be less than the file size: {offset} of {file_bytes} bytes")
    if size == 0:
        raise ValueError("Mapped region should not be zero byte")
    length = file_bytes - offset if size is None else size
    if offset + length > file_bytes:
        raise IndexError(f"Mapped region is past the end of file: {offset} to {offset + length} of {file_bytes} bytes")
    return offset, length


def __dir__() -> list[str]:
    return sorted(__all__)
