"""Queries what Linux reports about an open file and about nvidia-fs."""

from __future__ import annotations

import ctypes
import os
import re
from typing import Literal

from .. import _native
from .errors import Error

__all__ = ["direct_io_alignment", "direct_problem", "mode_of", "mount_of", "nvidia_fs_version"]

_nvidia_fs_version_file = "/proc/driver/nvidia-fs/version"

_statx_mount_id = 0x1000
_statx_direct_io = 0x2000  # since Linux 6.1
_at_empty_path = 0x1000


def direct_io_alignment(descriptor: int) -> tuple[int, int]:
    """Returns the alignments in bytes that O_DIRECT requires, as (memory, offset).

    Returns (0, 0) if the file system does not support O_DIRECT, or if the kernel (before 6.1) does not report it.
    """
    told = _statx(descriptor, _statx_direct_io)
    return (told.dio_memory_align, told.dio_offset_align) if told.mask & _statx_direct_io else (0, 0)


def direct_problem(file: _native.File, write: bool) -> Error | None:
    """Returns why a file cannot use GPU-direct I/O, or None if it can. Plans a transfer of one block to find out."""
    try:
        file.explain(4096, 0, memory="device", write=write, path="direct")
    except Error as problem:
        return problem
    return None


def mode_of(access: int) -> Literal["r", "w", "r+"]:
    """Returns the mode of penstock.open() for a descriptor that was opened with these flags."""
    if access & os.O_ACCMODE == os.O_RDONLY:
        return "r"
    return "w" if access & os.O_ACCMODE == os.O_WRONLY else "r+"


def mount_of(descriptor: int) -> tuple[str, str]:
    """Returns (file system type, mount point) of an open file, as in /proc/self/mountinfo; empty if unknown.

    Raises OSError if the process has run out of descriptors.
    """
    told = _statx(descriptor, _statx_mount_id)
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                fields, _, kind = line.partition(" - ")
                words = fields.split()
                if told.mask & _statx_mount_id and int(words[0]) == told.mount_id:
                    return kind.split()[0], _unescaped(words[4])
    except (FileNotFoundError, PermissionError):
        pass  # /proc is not mounted
    return "", ""


def nvidia_fs_version() -> str:
    """Returns the version of the kernel module nvidia-fs, such as "2.24.3"; empty if it is not loaded."""
    try:
        with open(_nvidia_fs_version_file, encoding="ascii", errors="replace") as told:
            found = re.search(r"\d+(\.\d+)+", told.read())
    except OSError:
        return ""
    return found[0] if found else ""


class _Statx(ctypes.Structure):
    _fields_ = [
        ("mask", ctypes.c_uint32),
        ("_until_mount_id", ctypes.c_uint8 * 140),
        ("mount_id", ctypes.c_uint64),
        ("dio_memory_align", ctypes.c_uint32),
        ("dio_offset_align", ctypes.c_uint32),
        ("_rest", ctypes.c_uint8 * 96),
    ]
    mask: int
    mount_id: int
    dio_memory_align: int
    dio_offset_align: int


assert ctypes.sizeof(_Statx) == 256  # struct statx in linux/stat.h


def _statx(descriptor: int, wanted: int) -> _Statx:
    told = _Statx()
    if _libc.statx(descriptor, b"", _at_empty_path, wanted, ctypes.byref(told)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return told


def _unescaped(text: str) -> str:
    """Decodes the octal escapes for blanks, tabs, newlines and backslashes in mountinfo."""
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text


_libc = ctypes.CDLL(None, use_errno=True)
