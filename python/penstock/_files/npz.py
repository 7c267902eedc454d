"""Reads NumPy's .npz archives: stored members directly from their place in the file, and compressed members by inflating them."""

from __future__ import annotations

import logging
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable
from typing import IO, Any, cast

from .. import _native
from .._core.errors import InvalidArgument
from .._core.pieces import Piece, move_pieces
from .npy import ObjectArray, empty_like_header, piece_of, read_header, reader_of

__all__ = ["load_npz"]

_log = logging.getLogger("penstock")

_local = struct.Struct("<4s5H3L2H")  # signature, version, flags, method, time, date, CRC, two sizes, lengths of name and extra
_MOST_INFLATION = 1100  # deflate expands a byte to at most 1032 bytes; the rest is a margin for empty streams
_INFLATED_BYTES = 1 << 20  # per step


def load_npz(
    file: _native.File, name: str, device: Any, names: Iterable[str] | None, framework: str | None = None
) -> dict[str, Any]:
    """Returns the arrays by name, without ".npy", in the order of the archive. Blocks. `name`: the file's name, for errors.

    `names` are the arrays to read, with or without ".npy". None reads all arrays, and skips other members with a warning that lists them.
    All stored members are read as one batch. Raises InvalidArgument for a damaged archive, for names that do not exist, and for compression methods
    that numpy.savez_compressed does not use; ShortRead; penstock.Error.
    """
    archive = _opened(file, name)
    members = [each for each in archive.infolist() if not each.filename.endswith("/")]  # is_dir() fails on an empty name
    return _load_members(file, archive, _checked_members(members, names, file.size(), name), name, device, framework, names is None)


def _opened(file: _native.File, name: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(cast(IO[bytes], file))  # the file has the methods that ZipFile needs
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, IndexError) as problem:
        raise _wrong(name, f"the archive is truncated: it starts like a zip archive but has no zip directory at its end ({problem})") from None


def _load_members(
    file: _native.File, archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], name: str, device: Any, framework: str | None, leave_out: bool
) -> dict[str, Any]:
    """Loads members. `leave_out`: skip members that are not arrays if there are others."""
    found: dict[str, Any] = {}
    pieces: list[Piece] = []
    compressed: list[str] = []
    others: list[InvalidArgument] = []
    for each in members:
        label = f"{name}: {each.filename}"
        try:
            if each.compress_type == zipfile.ZIP_STORED:
                found[_key_of(each)] = _place_stored(file, each, label, device, framework, pieces)
            else:
                compressed.append(each.filename)
                found[_key_of(each)] = _inflated(archive, each, label, device, framework)
        except InvalidArgument as problem:
            is_damaged = each.filename.endswith(".npy") and not isinstance(problem, ObjectArray)
            if is_damaged or not leave_out:
                raise
            others.append(problem)
    if others and not found:
        raise others[0]
    for other in others:
        warnings.warn(f"skipped: {other}", UserWarning, stacklevel=6)
    if compressed:
        _log.info("%s: the CPU inflates %d compressed members: %s", name, len(compressed), ", ".join(compressed[:20]))
    move_pieces(file, pieces, label=name)
    return found


# --- selection of members


def _key_of(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _checked_members(members: list[zipfile.ZipInfo], names: Iterable[str] | None, size: int, name: str) -> list[zipfile.ZipInfo]:
    """Returns the wanted members."""
    wanted = None if names is None else {each.removesuffix(".npy"): each for each in names}
    seen: set[str] = set()
    for each in members:
        if _key_of(each) in seen:
            raise _wrong(name, f"the archive contains {each.filename} twice")
        seen.add(_key_of(each))
    missing = [] if wanted is None else [each for key, each in wanted.items() if key not in seen]
    if missing:
        raise _wrong(name, f"it has no array called {', '.join(map(repr, missing[:20]))}; it has {', '.join(map(repr, list(seen)[:20])) or 'none'}", "not_found")
    if sum(each.compress_size for each in members) > size:
        raise _wrong(name, f"its members overlap: together they are larger than the file, which has {size} bytes")
    found = [each for each in members if wanted is None or _key_of(each) in wanted]
    for each in found:
        _check_member(each, size, f"{name}: {each.filename}")
    return found


def _check_member(member: zipfile.ZipInfo, size: int, label: str) -> None:
    if not 0 <= member.header_offset < size:
        raise _wrong(label, f"it starts at offset {member.header_offset}, but the file has only {size} bytes")
    if member.flag_bits & 1:
        raise _wrong(label, "it is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _wrong(label, f"zip compression method {member.compress_type} is not supported; supported are stored (0) and deflated (8)")
    is_stored = member.compress_type == zipfile.ZIP_STORED
    if is_stored and member.compress_size != member.file_size:
        raise _wrong(label, f"it is stored uncompressed, but its size in the file is {member.compress_size} bytes, not {member.file_size}")
    if not is_stored and member.file_size > (member.compress_size + 1) * _MOST_INFLATION:
        raise _wrong(label, f"{member.compress_size} compressed bytes cannot expand to {member.file_size} bytes")


# --- stored members


def _place_stored(file: _native.File, member: zipfile.ZipInfo, label: str, device: Any, framework: str | None, pieces: list[Piece]) -> Any:
    """Returns a new array, and adds the piece that reads its bytes."""
    begin = _begin_of(file, member, label)
    header = read_header(reader_of(file, begin, begin + member.file_size), label)
    _check_length(header.offset + header.nbytes, member, label)
    array, memory = empty_like_header(header, device, framework, label)
    if header.nbytes:
        pieces.append(piece_of(member.filename, begin + header.offset, header.nbytes, memory))
    return array


def _begin_of(file: _native.File, member: zipfile.ZipInfo, label: str) -> int:
    """Returns where a member's bytes start: after its local header, whose length is stored only in that header."""
    header = bytearray(_local.size)
    if file.read_into(header, member.header_offset) < len(header) or not header.startswith(b"PK\x03\x04"):
        raise _wrong(label, "it is not at the offset in the zip directory")
    *_, name_bytes, extra_bytes = _local.unpack(header)
    return int(member.header_offset + _local.size + name_bytes + extra_bytes)


# --- compressed members


def _inflated(archive: zipfile.ZipFile, member: zipfile.ZipInfo, label: str, device: Any, framework: str | None) -> Any:
    try:
        with archive.open(member) as stream:
            header = read_header(stream.read, label)
            _check_length(header.offset + header.nbytes, member, label)
            array, memory = empty_like_header(header, device, framework, label)
            _copy_stream(stream, memory, header.nbytes, label)
            return array
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeDecodeError) as problem:
        raise _wrong(label, f"its compressed data is corrupt: {problem}") from None


def _copy_stream(stream: IO[bytes], memory: Any, nbytes: int, label: str) -> None:
    address = _native.resolve(memory, True)[0] if nbytes else 0
    done = 0
    while done < nbytes:
        piece = stream.read(min(_INFLATED_BYTES, nbytes - done))
        if not piece:
            raise _wrong(label, f"it is truncated after {done} of {nbytes} bytes")
        source, _ = _native.resolve(piece)
        _native.copy(_native.Pointer(address + done, len(piece), memory), _native.Pointer(source, len(piece), piece, True))
        done += len(piece)
    stream.read(1)  # reads to the end, where zipfile compares the checksum


def _check_length(wanted: int, member: zipfile.ZipInfo, label: str) -> None:
    if wanted != member.file_size:
        raise _wrong(label, f"its header and array require {wanted} bytes, but it contains {member.file_size}")


def _wrong(name: str, problem: str, code: str = "invalid_argument") -> InvalidArgument:
    return InvalidArgument(f"{name}: {problem}", code=code, filename=name)
