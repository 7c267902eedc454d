"""Queries and empties the page cache. Linux only, as in KvikIO."""

from __future__ import annotations

import contextlib
import ctypes
import io
import mmap
import os
import subprocess
from typing import Iterator

from penstock import _native
from penstock._core.small_files import open_file
from penstock.kvikio._buffer_checks import check_not_negative
from penstock.kvikio.utils import kvikio_deprecation_notice

__all__ = ["clear_page_cache", "drop_file_page_cache", "drop_system_page_cache", "get_page_cache_info"]

File = str | os.PathLike[str] | int | io.IOBase

_window_bytes = 1 << 30  # mapped at a time, because mapping all of a large file would count against the commit limit
_drop_caches_file = "/proc/sys/vm/drop_caches"


def get_page_cache_info(file: File, offset: int = 0, length: int = 0) -> tuple[int, int]:
    """Returns how much of a file is in the page cache, as (cached pages, total pages in the range), from mincore(2).

    - `file`: a path, a descriptor open for reading, or a file object.
    - `offset`, `length`: the range in bytes, extended to whole pages and clipped to the end of the file. Length 0 means the rest of the file. An
      empty range returns (0, 0).

    Raises RuntimeError ("Unable to open file"), ValueError if file is anything else, and OverflowError for a negative number.
    """
    check_not_negative(offset=offset, length=length)
    with _descriptor_of(file) as descriptor:
        file_bytes = os.fstat(descriptor).st_size
        first = min(offset, file_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        end = min(offset + length, file_bytes) if length else file_bytes
        if offset >= end:
            return 0, 0
        resident = 0
        for start in range(first, end, _window_bytes):
            resident += _resident_pages(descriptor, start, min(_window_bytes, end - start))
        return resident, _pages(end - first)


def drop_file_page_cache(file: File, offset: int = 0, length: int = 0, sync_first: bool = True) -> None:
    """Asks the kernel to drop the cached pages in a range of a file (fdatasync, then posix_fadvise DONTNEED). Requires no privileges.

    - `sync_first`: write dirty pages to disk first; the kernel does not drop dirty pages.

    Other arguments and errors are as for get_page_cache_info().
    """
    check_not_negative(offset=offset, length=length)
    with _descriptor_of(file) as descriptor:
        if sync_first:
            os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


def drop_system_page_cache(reclaim_dentries_and_inodes: bool = True, sync_first: bool = True) -> bool:
    """Empties the whole machine's page cache and returns True if that succeeded. Requires root or passwordless sudo.

    - `reclaim_dentries_and_inodes`: also drop the kernel's dentry and inode caches.
    - `sync_first`: write dirty pages to disk first.
    """
    if sync_first:
        os.sync()
    level = "3" if reclaim_dentries_and_inodes else "1"
    try:
        with open(_drop_caches_file, "w") as control:
            control.write(level)
        return True
    except OSError:
        return _runs("sudo", "-n", "/sbin/sysctl", f"vm.drop_caches={level}")


@kvikio_deprecation_notice("Use drop_system_page_cache() instead.", since="26.04")
def clear_page_cache(reclaim_dentries_and_inodes: bool = True, clear_dirty_pages: bool = True) -> bool:
    """The older name of drop_system_page_cache()."""
    return drop_system_page_cache(reclaim_dentries_and_inodes, clear_dirty_pages)


@contextlib.contextmanager
def _descriptor_of(file: File) -> Iterator[int]:
    if isinstance(file, io.IOBase):
        yield file.fileno()
    elif isinstance(file, int) and not isinstance(file, bool):
        yield file
    elif isinstance(file, (str, os.PathLike)):
        try:
            descriptor = open_file(file)
        except OSError as error:
            raise RuntimeError(f"Unable to open file {_native.shown_name(file)}: {error.strerror}") from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    else:
        raise ValueError(f"file must be a path, a file descriptor or a file object, not {type(file).__name__}")


def _pages(length: int) -> int:
    return -(-length // mmap.PAGESIZE)


def _resident_pages(descriptor: int, start: int, length: int) -> int:
    # Writable and private only because ctypes requires that to return the address; nothing is written.
    with mmap.mmap(descriptor, length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=start) as mapping:
        flags = (ctypes.c_ubyte * _pages(length))()
        first = ctypes.c_char.from_buffer(mapping)
        failed = _libc.mincore(ctypes.byref(first), ctypes.c_size_t(length), flags)
        del first  # otherwise, the mapping could not be closed
        if failed:
            error = ctypes.get_errno()
            raise RuntimeError(f"mincore: {os.strerror(error)}")
        return sum(flag & 1 for flag in bytes(flags))


def _runs(*command: str) -> bool:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return False
    return done.returncode == 0


_libc = ctypes.CDLL(None, use_errno=True)
