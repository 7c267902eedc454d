"""Decoding of bytes that may lie about how many come of them: no codec here makes more than it is asked for.

Nothing here keeps state, so any thread may decode.
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

# Bytes that say to be an encoded chunk and are that much longer than one hold something else.
_MOST_GROWTH = 16
_ALWAYS_ALLOWED = 1 << 20


def most_encoded(chunk_bytes: int) -> int:
    """How many bytes a chunk may have before it is decoded, and between two of its codecs."""
    return _MOST_GROWTH * chunk_bytes + _ALWAYS_ALLOWED


def decode_exactly(name: str, codec: Any, data: Any, out: Any) -> Any:
    """Decodes to the bytes of out, in out or in other memory. Raises what the codec raises, and ValueError where other bytes come of data.

    A codec of another package than numcodecs may give bytes of another length.
    """
    announced = _announced(name, data)
    if announced is not None:
        if announced != len(out):
            raise ValueError(f"they announce {announced} bytes, a chunk of this array is {len(out)}")
        codec.decode(data, out)
        return out
    framed = _with_size(data, len(out)) if name == "zstd" else None
    if framed is not None:
        codec.decode(framed, out)
        return out
    # What comes of several frames at most is far more than what comes of them; the caller sees how much that is.
    return decode_up_to(name, codec, data, most_encoded(len(out)) if name == "zstd" else len(out))


def decode_up_to(name: str, codec: Any, data: Any, most: int) -> Any:
    """Decodes to most bytes or fewer. Errors as for decode_exactly()."""
    announced = _announced(name, data)
    if announced is None and name == "zstd":
        # Such frames are joined by zstd itself, in memory that grows: what can come of them at most is known from their blocks.
        announced = _most_of_zstd(data, most)
    if announced is not None and announced > most:
        raise ValueError(f"they announce {announced} bytes, and {most} at most may come of them")
    limited = _LIMITED.get(name)
    if limited is None:
        return codec.decode(data)
    found = limited(codec, data, most + 1)
    if len(found) > most:
        raise ValueError(f"more than {most} bytes would be decoded")
    return found


# Codecs that do not announce a size: they give so many bytes, and no more.


def _gzip(codec: Any, data: Any, count: int) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        return file.read(count)


def _zlib(codec: Any, data: Any, count: int) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(data, count)
    if not stream.eof and len(found) < count:
        raise ValueError("they are cut")
    return found


def _bz2(codec: Any, data: Any, count: int) -> bytes:
    with bz2.BZ2File(io.BytesIO(data)) as file:
        return file.read(count)


def _lzma(codec: Any, data: Any, count: int) -> bytes:
    import lzma  # some builds of Python lack it, and then numcodecs lacks the codec

    with lzma.LZMAFile(io.BytesIO(data), format=codec.format, filters=codec.filters) as file:
        return file.read(count)


_LIMITED: dict[str, Callable[[Any, Any, int], bytes]] = {"bz2": _bz2, "gzip": _gzip, "lzma": _lzma, "zlib": _zlib}


# Codecs that do.


def _announced(name: str, data: Any) -> int | None:
    """The size that compressed bytes announce, None where they do not."""
    ask = _ANNOUNCED.get(name)
    return None if ask is None else ask(data)


def _announced_by_lz4(data: Any) -> int | None:
    head = bytes(memoryview(data)[:4])
    return int.from_bytes(head, "little") if len(head) == 4 else None


def _announced_by_blosc(data: Any) -> int | None:
    # Versions, flags, the size of an element, three sizes: decoded, of a block, encoded. Blosc 1 believes the last one and would read on behind cut bytes.
    view = _view_of(data)
    if len(view) < 16 or len(view) < int.from_bytes(view[12:16], "little"):
        raise ValueError("they are cut")
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

# RFC 8878. Damaged bytes end a walk over frames and blocks early: zstd refuses them at the same place.
MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"  # behind a byte from 0x50 to 0x5f
MOST_OF_BLOCK = 128 << 10
RAW, RLE, COMPRESSED, RESERVED = range(4)  # kinds of blocks


def _view_of(data: Any) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")  # an empty one cannot be cast


class _Frame(NamedTuple):
    start: int
    blocks: int  # where they begin
    size: int | None  # as its header says
    checked: bool  # 4 bytes of checksum follow the blocks


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
    # 3.1.1.1: a magic number, a descriptor, perhaps a window and a dictionary, then perhaps the size.
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
    """Of each block: where it ends, and the bytes that come of it at most."""
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
    """What comes of all frames at most; something larger than enough once that is exceeded. None: there is no frame."""
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
    """A frame that has no size, with one: zstd then makes exactly so many bytes of it, or says that it cannot. None where data is no single frame."""
    view = _view_of(data)
    frames = list(_frames(view))
    if len(frames) != 1 or frames[0].size is not None or frames[0].start != 0:
        return None
    head = bytearray(view[: frames[0].blocks])
    head[4] |= 0xC0  # 8 bytes of size
    return bytes(head) + struct.pack("<Q", size) + bytes(view[frames[0].blocks :])
