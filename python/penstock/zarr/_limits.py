"""Decodes untrusted bytes: codecs never produce more output than requested, whatever size the input declares.

Stateless, so any thread may decode.
"""

from __future__ import annotations

import bz2
import gzip
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

__all__ = [
    "COMPRESSED",
    "MAGIC",
    "MOST_OF_BLOCK",
    "RAW",
    "RESERVED",
    "RLE",
    "decode_exactly",
    "decode_up_to",
    "most_encoded",
]

# An encoded chunk may be larger than its decoded size by this factor plus this many bytes. Anything larger is not an encoded chunk.
_MOST_GROWTH = 16
_ALWAYS_ALLOWED = 1 << 20


def most_encoded(chunk_bytes: int) -> int:
    """Returns the largest size that a chunk may have when encoded, including between two of its codecs."""
    return _MOST_GROWTH * chunk_bytes + _ALWAYS_ALLOWED


def decode_exactly(name: str, codec: Any, data: Any, out: Any) -> Any:
    """Decodes to exactly the size of `out`, into `out` or other memory. Raises the codec's exceptions, and ValueError if the declared size differs.

    Codecs from packages other than numcodecs may return a different length.
    """
    announced = _announced(name, data)
    if announced is not None:
        if announced != len(out):
            raise ValueError(f"their header declares {announced} bytes, but a chunk of this array has {len(out)}")
        codec.decode(data, out)
        return out
    framed = _with_size(data, len(out)) if name == "zstd" else None
    if framed is not None:
        codec.decode(framed, out)
        return out
    # The bound for several frames is much larger than their decoded size; the caller checks the actual size.
    return decode_up_to(name, codec, data, most_encoded(len(out)) if name == "zstd" else len(out))


def decode_up_to(name: str, codec: Any, data: Any, most: int) -> Any:
    """Decodes to at most `most` bytes. Raises the errors of decode_exactly()."""
    announced = _announced(name, data)
    if announced is None and name == "zstd":
        # zstd appends the output of such frames to growing memory, so the bound is computed from their blocks.
        announced = _most_of_zstd(data, most)
    if announced is not None and announced > most:
        raise ValueError(f"their header declares {announced} bytes, but at most {most} are allowed")
    limited = _LIMITED.get(name)
    if limited is None:
        return codec.decode(data)
    found = limited(codec, data, most + 1)
    if len(found) > most:
        raise ValueError(f"they would decode to more than {most} bytes")
    return found


# Codecs that do not declare a size. These functions return at most the requested number of bytes.


def _gzip(codec: Any, data: Any, count: int) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        return file.read(count)


def _zlib(codec: Any, data: Any, count: int) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(data, count)
    if not stream.eof and len(found) < count:
        raise ValueError("they are truncated")
    return found


def _bz2(codec: Any, data: Any, count: int) -> bytes:
    with bz2.BZ2File(io.BytesIO(data)) as file:
        return file.read(count)


def _lzma(codec: Any, data: Any, count: int) -> bytes:
    import lzma  # some Python builds lack it, in which case numcodecs lacks the codec too

    with lzma.LZMAFile(io.BytesIO(data), format=codec.format, filters=codec.filters) as file:
        return file.read(count)


_LIMITED: dict[str, Callable[[Any, Any, int], bytes]] = {"bz2": _bz2, "gzip": _gzip, "lzma": _lzma, "zlib": _zlib}


# Codecs that declare a size.


def _announced(name: str, data: Any) -> int | None:
    """Returns the size that compressed bytes declare, or None if they declare none."""
    ask = _ANNOUNCED.get(name)
    return None if ask is None else ask(data)


def _announced_by_lz4(data: Any) -> int | None:
    head = bytes(memoryview(data)[:4])
    return int.from_bytes(head, "little") if len(head) == 4 else None


def _announced_by_blosc(data: Any) -> int | None:
    # Blosc header: versions, flags, element size, then three sizes (decoded, block, encoded). Blosc 1 trusts the encoded size and would read past the
    # end of truncated data.
    view = _view_of(data)
    if len(view) < 16 or len(view) < int.from_bytes(view[12:16], "little"):
        raise ValueError("they are truncated")
    return int.from_bytes(view[4:8], "little")


def _announced_by_zstd(data: Any) -> int | None:
    total = None
    for frame in _frames(data):
        if frame.size is None:
            return None
        total = frame.size + (total or 0)
    return total


_ANNOUNCED: dict[str, Callable[[Any], int | None]] = {
    "blosc": _announced_by_blosc,
    "lz4": _announced_by_lz4,
    "zstd": _announced_by_zstd,
}

# RFC 8878. At damaged bytes, iterating over frames and blocks stops early; zstd rejects the bytes at the same position.
MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"  # preceded by a byte from 0x50 to 0x5f
MOST_OF_BLOCK = 128 << 10
RAW, RLE, COMPRESSED, RESERVED = range(4)  # block types


def _view_of(data: Any) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")  # an empty view cannot be cast


class _Frame(NamedTuple):
    start: int
    blocks: int  # offset of the first block
    size: int | None  # from the header
    checked: bool  # a 4-byte checksum follows the blocks


def _frames(data: Any) -> Iterator[_Frame]:
    view = _view_of(data)
    at = 0
    while at + 8 <= len(view):
        if view[at] & 0xF0 == 0x50 and view[at + 1 : at + 4] == _SKIPPABLE:
            at += 8 + int.from_bytes(view[at + 4 : at + 8], "little")
            continue
        frame = _frame_at(view, at)
        if frame is None:
            return
        yield frame
        end = frame.blocks
        for end, _ in _blocks(view, frame.blocks):
            pass
        at = end + (4 if frame.checked else 0)


def _frame_at(view: memoryview, at: int) -> _Frame | None:
    # RFC 8878, 3.1.1.1: a magic number, a descriptor, an optional window and dictionary ID, then an optional size.
    if view[at : at + 4] != MAGIC:
        return None
    descriptor = view[at + 4]
    single = descriptor >> 5 & 1
    size_bytes = (single, 2, 4, 8)[descriptor >> 6]
    size_at = at + 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    blocks = size_at + size_bytes
    if blocks > len(view):
        return None
    told = int.from_bytes(view[size_at:blocks], "little") + (256 if size_bytes == 2 else 0)
    return _Frame(at, blocks, told if size_bytes else None, bool(descriptor & 4))


def _blocks(view: memoryview, at: int) -> Iterator[tuple[int, int]]:
    """Yields each block's end and its largest decoded size."""
    while at + 3 <= len(view):
        header = int.from_bytes(view[at : at + 3], "little")
        kind, size = header >> 1 & 3, header >> 3
        if kind == RESERVED:
            return
        at += 3 + (1 if kind == RLE else size)
        yield at, size if kind in (RAW, RLE) else MOST_OF_BLOCK
        if header & 1:
            return


def _most_of_zstd(data: Any, enough: int) -> int | None:
    """Returns the largest possible decoded size of all frames, or the first partial sum larger than `enough`, or None if there is no frame."""
    view = _view_of(data)
    total = None
    for frame in _frames(view):
        total = (total or 0) + (frame.size or 0)
        for _, made in _blocks(view, frame.blocks):
            total += made
            if total > enough:
                return total
    return total


def _with_size(data: Any, size: int) -> Any:
    """Adds `size` to a frame that lacks a size, so that zstd produces exactly that many bytes or fails. Returns None if data is not a single such
    frame.
    """
    view = _view_of(data)
    frames = list(_frames(view))
    if len(frames) != 1 or frames[0].size is not None or frames[0].start != 0:
        return None
    head = bytearray(view[: frames[0].blocks])
    head[4] |= 0xC0  # 8-byte size field
    return bytes(head) + struct.pack("<Q", size) + bytes(view[frames[0].blocks :])
