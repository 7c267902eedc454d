"""A checkpoint's zip archive, and the offsets of its records in the file."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable
from typing import Any, NamedTuple

from .._core.errors import Error

__all__ = ["Archive", "CheckpointError", "Record", "is_zip"]

_BEGINNING = b"PK\x03\x04"
_local_header = struct.Struct("<4s5H3L2H")  # signature, version, flags, method, time, date, CRC, two sizes, lengths of name and extra


class CheckpointError(Error, RuntimeError):
    """The checkpoint is incomplete or damaged. Also a RuntimeError, like the error of `torch.load`."""


class Record(NamedTuple):
    """An archive member. If it is stored, the file contains its bytes unchanged."""

    name: str  # without the archive's own folder name, such as "data/0"
    header_offset: int
    nbytes: int
    stored: bool  # neither compressed nor encrypted


def is_zip(file: Any) -> bool:
    """Returns True if the file starts with the four magic bytes of a zip archive; torch.load uses the same test."""
    beginning = bytearray(4)
    return bool(file.read_into(beginning) == 4 and bytes(beginning) == _BEGINNING)


class Archive:
    """The directory of a zip archive in an open file. The constructor raises CheckpointError if it is missing or inconsistent."""

    def __init__(self, file: Any, path: str) -> None:
        """`file`: a penstock.File, or an object with its read_into(), read_many() and position."""
        self.file = file
        self._path = path
        try:
            with zipfile.ZipFile(file) as directory:
                members = directory.infolist()
        except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, IndexError) as error:
            raise self.broken(f"the archive is truncated: it starts like a zip archive but has no zip directory at its end ({error})") from error
        if not members:
            raise self.broken("the zip archive is empty")
        self._prefix = members[0].filename.partition("/")[0] + "/"
        self.records: dict[str, Record] = {}
        for each in members:
            if each.filename.startswith(self._prefix):
                name = each.filename[len(self._prefix) :]
                stored = each.compress_type == zipfile.ZIP_STORED and not each.flag_bits & 1 and each.compress_size == each.file_size
                self.records[name] = Record(name, each.header_offset, each.file_size, stored)

    def broken(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {what}", code="io", filename=self._path)

    def record(self, name: str) -> Record:
        found = self.records.get(name)
        if found is None:
            raise self.broken(f"the archive has no record {self._prefix}{name}")
        return found

    def read(self, name: str) -> bytes:
        """Returns the bytes of one stored record."""
        record = self.record(name)
        (offset,) = self.offsets([record])
        content = bytearray(record.nbytes)
        done = self.file.read_into(content, offset) if record.nbytes else 0
        if done != record.nbytes:
            raise self.broken(f"record {self._prefix}{name}: read {done} of {record.nbytes} bytes at offset {offset}: the file ends there")
        return bytes(content)

    def offsets(self, records: Iterable[Record]) -> list[int]:
        """Returns the offset of each record's bytes in the file. Reads all local headers at once."""
        records = list(records)
        step = _local_header.size
        headers = bytearray(step * len(records))
        view = memoryview(headers)
        requests = [(view[i * step : (i + 1) * step], each.header_offset) for i, each in enumerate(records)]
        counts = self.file.read_many(requests) if requests else []
        found = []
        for i, (record, count) in enumerate(zip(records, counts)):
            fields = _local_header.unpack_from(headers, i * step)
            if count != step or fields[0] != _BEGINNING:
                raise self.broken(f"record {self._prefix}{record.name}: its local header is not at offset {record.header_offset}")
            found.append(record.header_offset + step + fields[-2] + fields[-1])
        return found
