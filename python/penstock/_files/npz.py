"""Reads NumPy's .npz archives: stored members directly from their place in the file, and compressed members by inflating them."""

from __future__ import annotations

import contextlib
import logging
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, cast

from .. import _native
from .._core.batches import in_batches
from .._core.errors import InvalidArgument
from .._core.pieces import Piece, move_pieces
from .._core.urls import is_url
from .._core.windows import Part, Window, held_bytes, windows_of
from .npy import ObjectArray, empty_like_header, piece_of, read_header, reader_of

__all__ = ["has_arrays", "load_npz", "window_of"]

_log = logging.getLogger("penstock")

_local = struct.Struct("<4s5H3L2H")  # signature, version, flags, method, time, date, CRC, two sizes, lengths of name and extra
_MOST_INFLATION = 1100  # deflate expands a byte to at most 1032 bytes; the rest is a margin for empty streams
_INFLATED_BYTES = 1 << 20  # per step
_ARCHIVE_EDGES = (_local.size, 64 << 10)  # the directory is at the end
_MEMBER_EDGES = (4096, 0)  # the local header and NumPy's header
_HELD_BYTES = 256 << 20  # limit for members that are in memory at once, and for reading a compressed member with one request


def load_npz(
    file: _native.File, name: str, device: Any, names: Iterable[str] | None, framework: str | None = None, window: Window | None = None
) -> dict[str, Any]:
    """Returns the arrays by name, without ".npy", in the order of the archive. Blocks. `name`: the file's name, for errors. `window`: the result of
    window_of().

    `names` are the arrays to read, with or without ".npy". None reads all arrays, and skips other members with a warning that lists them.
    Stored members are read together, up to 256 MiB of small ones at once. Raises InvalidArgument for a damaged archive, for names that do not exist,
    and for compression methods that numpy.savez_compressed does not use; ShortRead; penstock.Error.
    """
    window = window or window_of(file, file.size())
    archive = _opened(window, name)
    members = [each for each in archive.infolist() if not each.filename.endswith("/")]  # is_dir() fails on an empty name
    checked = _checked_members(members, names, file.size(), name)
    loader = _Loader(file, window, archive, name, device, framework, names is None)
    return loader.load(checked)


def window_of(file: _native.File, size: int) -> Window:
    """Returns the archive as a window, with its directory in memory."""
    return windows_of([Part(file, 0, size)], _ARCHIVE_EDGES)[0]


def has_arrays(window: Window) -> bool:
    """Returns True for an archive with arrays."""
    try:
        return any(name.endswith(".npy") for name in _opened(window, "").namelist())
    except InvalidArgument:
        return False


def _opened(window: Window, name: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(cast(IO[bytes], window))  # the window has the methods that ZipFile needs
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, IndexError) as problem:
        raise _wrong(name, f"the archive is truncated: it starts like a zip archive but has no zip directory at its end ({problem})") from None


class _Loader:
    """Loads members of one archive. `leave_out`: skip members that are not arrays if there are others."""

    def __init__(
        self, file: _native.File, window: Window, archive: zipfile.ZipFile, name: str, device: Any, framework: str | None, leave_out: bool
    ) -> None:
        self._file, self._window, self._archive, self._name = file, window, archive, name
        self._device, self._framework, self._leave_out = device, framework, leave_out
        self._found: dict[str, Any] = {}
        self._compressed: list[str] = []
        self._others: list[InvalidArgument] = []

    def load(self, members: list[zipfile.ZipInfo]) -> dict[str, Any]:
        ends = _ends_of(self._archive)
        parts = [(each, Part(self._file, each.header_offset, ends[each.header_offset] - each.header_offset)) for each in members]
        for batch in in_batches(parts, _HELD_BYTES, lambda each: held_bytes(each[1], _MEMBER_EDGES)):
            self._load_batch(batch)
        if self._others and not self._found:
            raise self._others[0]
        for other in self._others:
            warnings.warn(f"skipped: {other}", UserWarning, stacklevel=6)
        if self._compressed:
            _log.info("%s: the CPU inflates %d compressed members: %s", self._name, len(self._compressed), ", ".join(self._compressed[:20]))
        return self._found

    def _load_batch(self, batch: list[tuple[zipfile.ZipInfo, Part]]) -> None:
        pieces: list[Piece] = []
        for (member, part), head in zip(batch, self._heads([part for _, part in batch])):
            label = f"{self._name}: {member.filename}"
            try:
                if member.compress_type == zipfile.ZIP_STORED:
                    self._found[_key_of(member)] = _place_stored(head, member, label, self._device, self._framework, pieces)
                else:
                    self._compressed.append(member.filename)
                    with self._held_at_once(head, part):
                        self._found[_key_of(member)] = _inflated(self._archive, member, label, self._device, self._framework)
            except InvalidArgument as problem:
                is_damaged = member.filename.endswith(".npy") and not isinstance(problem, ObjectArray)
                if is_damaged or not self._leave_out:
                    raise
                self._others.append(problem)
        move_pieces(self._file, pieces, label=self._name)

    def _heads(self, parts: list[Part]) -> list[Window]:
        """Returns the members, with their headers in memory."""
        contents = [self._window.held(part.start, part.nbytes) for part in parts]
        if None in contents:
            return windows_of(parts, _MEMBER_EDGES)
        heads = [Window(part) for part in parts]
        for head, content in zip(heads, contents):
            head.hold(0, cast(memoryview, content))
        return heads

    @contextlib.contextmanager
    def _held_at_once(self, head: Window, part: Part) -> Iterator[None]:
        """Keeps a compressed member from a server in memory, because zipfile reads it in small steps."""
        content = head.held(0, part.nbytes)
        if content is None and is_url(self._file.name) and part.nbytes <= _HELD_BYTES:
            content = memoryview(bytearray(part.nbytes))
            content = content[: self._file.read_into(content, part.start)]
        if content is None or self._window.held(part.start, part.nbytes) is not None:
            yield
            return
        self._window.hold(part.start, content)
        try:
            yield
        finally:
            self._window.drop(part.start)


def _ends_of(archive: zipfile.ZipFile) -> dict[int, int]:
    """Returns an offset at or after the end of each member's bytes, by the offset of its header."""
    starts = sorted({each.header_offset for each in archive.infolist()})
    return dict(zip(starts, [*starts[1:], max(archive.start_dir, *starts)])) if starts else {}


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


def _place_stored(head: Window, member: zipfile.ZipInfo, label: str, device: Any, framework: str | None, pieces: list[Piece]) -> Any:
    """Returns a new array, and copies its bytes or adds the piece that reads them. `head`: the member, with its local header."""
    begin = _begin_of(head, label)
    header = read_header(reader_of(head, begin, begin + member.file_size), label)
    _check_length(header.offset + header.nbytes, member, label)
    array, memory = empty_like_header(header, device, framework, label)
    if header.nbytes:
        content = head.held(begin + header.offset, header.nbytes)
        if content is not None:
            _native.copy(memory, content)
        else:
            pieces.append(piece_of(member.filename, member.header_offset + begin + header.offset, header.nbytes, memory))
    return array


def _begin_of(head: Window, label: str) -> int:
    """Returns where a member's bytes start: after its local header, whose length is stored only in that header."""
    header = bytearray(_local.size)
    if head.read_into(header) < len(header) or not header.startswith(b"PK\x03\x04"):
        raise _wrong(label, "it is not at the offset in the zip directory")
    *_, name_bytes, extra_bytes = _local.unpack(header)
    return int(_local.size + name_bytes + extra_bytes)


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
