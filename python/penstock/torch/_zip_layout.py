"""Places a checkpoint's records in its file, an uncompressed zip archive that torch.load and zip tools can read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Placed", "directory_of", "header_of", "place"]

# Sizes, offsets and member counts of at least these values are stored in zip64 fields.
_BIG = 0xFFFFFFFF
_MANY = 0xFFFF
_DATE = 0x21  # the earliest date that zip supports, 1980-01-01, so that checkpoints do not depend on the clock

_local = struct.Struct("<4s5H3L2H")
_central = struct.Struct("<4s6H3L5H2L")
_end = struct.Struct("<4s4H2LH")
_end64 = struct.Struct("<4sQ2H2L4Q")
_locator = struct.Struct("<4sLQL")
_PADDING = struct.Struct("<2sH")  # an extra field without meaning


class Placed(NamedTuple):
    """A record and its position in the file."""

    name: bytes
    nbytes: int
    header_offset: int
    offset: int  # where its bytes start; a multiple of the alignment
    padding: int  # bytes between the header's end and offset: none, or at least the 4 bytes of an extra field's header


def place(records: Sequence[tuple[str, int]], alignment: int) -> list[Placed]:
    """Places the records consecutively, in order. `records` contains each record's name and size."""
    found, end = [], 0
    for name, nbytes in records:
        encoded = name.encode("ascii")
        start = end + _local.size + len(encoded) + len(_sizes64(nbytes))
        padding = -start % alignment
        if 0 < padding < _PADDING.size:
            padding += alignment * -(-_PADDING.size // alignment)
        found.append(Placed(encoded, nbytes, end, start + padding, padding))
        end = start + padding + nbytes
    return found


def header_of(record: Placed, crc: int) -> bytes:
    """Returns the local header, which fills the bytes from header_offset to offset."""
    extra = _sizes64(record.nbytes)
    if record.padding:
        extra += _PADDING.pack(b"FB", record.padding - _PADDING.size) + b"Z" * (record.padding - _PADDING.size)
    nbytes = min(record.nbytes, _BIG)
    fields = (_version(record.nbytes), 0, 0, 0, _DATE, crc, nbytes, nbytes, len(record.name), len(extra))
    return _local.pack(b"PK\3\4", *fields) + record.name + extra


def directory_of(records: Sequence[Placed], crcs: Sequence[int]) -> bytes:
    """Returns the end of the file, after the last record's bytes."""
    start = records[-1].offset + records[-1].nbytes
    entries = b"".join(_entry(each, crc) for each, crc in zip(records, crcs))
    count, end = len(records), start + len(entries)
    found = entries
    if count >= _MANY or start >= _BIG or len(entries) >= _BIG:
        found += _end64.pack(b"PK\6\6", _end64.size - 12, 45, 45, 0, 0, count, count, len(entries), start)
        found += _locator.pack(b"PK\6\7", 0, end, 1)
    few = min(count, _MANY)
    return found + _end.pack(b"PK\5\6", 0, 0, few, few, min(len(entries), _BIG), min(start, _BIG), 0)


def _entry(record: Placed, crc: int) -> bytes:
    big = [each for each in (record.nbytes, record.nbytes, record.header_offset) if each >= _BIG]
    extra = struct.pack(f"<2H{len(big)}Q", 1, 8 * len(big), *big) if big else b""
    nbytes, offset = min(record.nbytes, _BIG), min(record.header_offset, _BIG)
    version = 45 if big else 20
    fields = (version, version, 0, 0, 0, _DATE, crc, nbytes, nbytes, len(record.name), len(extra), 0, 0, 0, 0, offset)
    return _central.pack(b"PK\1\2", *fields) + record.name + extra


def _sizes64(nbytes: int) -> bytes:
    return struct.pack("<2H2Q", 1, 16, nbytes, nbytes) if nbytes >= _BIG else b""


def _version(nbytes: int) -> int:
    return 45 if nbytes >= _BIG else 20
