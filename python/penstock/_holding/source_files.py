"""Describes a model's files, so that another process can tell whether its own files have the same contents."""

from __future__ import annotations

import hashlib
import os
import time
from typing import NamedTuple

from .._core.errors import InvalidArgument

__all__ = ["SourceFile", "describe_file", "describe_path", "wait_until_settled"]

_most_header = 100_000_000  # bytes: the safetensors library's limit
_same_tick_ns = 20_000_000  # two changes within this time may get the same timestamp


class SourceFile(NamedTuple):
    """Times are in nanoseconds. `header` is the SHA-256 of the file's header."""

    size: int
    mtime: int
    ctime: int
    device: int
    inode: int
    header: str


def describe_file(descriptor: int, name: str) -> SourceFile:
    """Describes an open safetensors file. Raises OSError, and InvalidArgument if the file is not a safetensors file."""
    facts = os.fstat(descriptor)
    beginning = os.pread(descriptor, 8, 0)
    length = int.from_bytes(beginning, "little")
    header = os.pread(descriptor, length, 8) if length <= min(_most_header, facts.st_size) else b""
    if len(beginning) < 8 or len(header) != length:
        raise InvalidArgument(f"{name} is not a safetensors file", code="invalid_argument", filename=name)
    digest = hashlib.sha256(beginning + header).hexdigest()
    return SourceFile(facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_dev, facts.st_ino, digest)


def describe_path(path: str) -> SourceFile:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return describe_file(descriptor, path)
    finally:
        os.close(descriptor)


def wait_until_settled(files: list[SourceFile | None]) -> None:
    """Waits, for at most 20 ms per file, until a change to one of the files would get a new timestamp."""
    for each in files:
        left = 0 if each is None else max(each.mtime, each.ctime) + _same_tick_ns - time.time_ns()
        if 0 < left <= _same_tick_ns:
            time.sleep(left / 1e9)
