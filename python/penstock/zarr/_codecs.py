"""Describes chunk codecs from metadata of formats 2 and 3, and decodes chunks on the CPU.

Stateless, so any thread may decode. numcodecs does the work, with the GIL released.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from typing import Any

import numcodecs
import numpy as np

from penstock.zarr._chunk_plan import Shards, Unsupported
from penstock.zarr._limits import decode_exactly, decode_up_to, most_encoded

__all__ = ["ByteCodec", "Stored", "byte_codecs2", "crc32c", "decode", "stored3"]

_CHECKSUM_BYTES = 4


@dataclass(frozen=True)
class ByteCodec:
    """A codec whose encoded side is bytes. zarr 3's codecs are identified by their zarr names, all others by their numcodecs ids."""

    name: str
    codec: Any = field(compare=False)  # a numcodecs codec; None: a CRC-32C that follows the bytes


@dataclass(frozen=True)
class Stored:
    """The storage format of a zarr 3 array's chunks, according to its codecs."""

    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[int, ...]
    codecs: tuple[ByteCodec, ...]
    shards: Shards | None


def stored3(codecs: Sequence[dict[str, Any]], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Stored:
    """Interprets the codecs in zarr 3 metadata for chunks of a given shape. Raises Unsupported if only zarr can decode them.

    Metadata that violates the specification may raise any exception.
    """
    axes = tuple(range(len(shape)))
    stored: np.dtype[Any] | None = None
    byte_codecs: list[ByteCodec] = []
    for metadata in codecs:
        name, config = metadata["name"], metadata.get("configuration") or {}
        if name == "transpose" and stored is None:
            axes = tuple(axes[axis] for axis in _order(config["order"], len(shape)))
        elif name == "bytes" and stored is None:
            stored = _in_order(dtype, config.get("endian"))
        elif name == "sharding_indexed":
            if len(codecs) > 1:
                raise Unsupported("its shards are encoded with other codecs")
            return _sharded(config, shape, dtype)
        elif stored is None:
            raise Unsupported(f"its elements are encoded with {name}")
        else:
            byte_codecs.append(_byte_codec3(name, config))
    if stored is None:
        raise Unsupported("none of its codecs produces bytes")
    return Stored(shape, stored, axes, tuple(byte_codecs), None)


def _order(order: Any, axes: int) -> tuple[int, ...]:
    return {"C": tuple(range(axes)), "F": tuple(reversed(range(axes)))}.get(order) if isinstance(order, str) else tuple(order)  # type: ignore[return-value]


def _in_order(dtype: np.dtype[Any], endian: Any) -> np.dtype[Any]:
    endian = getattr(endian, "value", endian)
    return dtype if endian is None else dtype.newbyteorder("<" if endian == "little" else ">")


def _sharded(config: dict[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Stored:
    chunk_shape = tuple(config["chunk_shape"])
    inner = stored3(config["codecs"], chunk_shape, dtype)
    if inner.shards is not None:
        raise Unsupported("its shards contain shards")
    chunks = tuple(map(operator.floordiv, shape, chunk_shape))
    index = stored3(config["index_codecs"], (*chunks, 2), np.dtype("u8"))
    names = [codec.name for codec in index.codecs]
    if index.shards is not None or names not in ([], ["crc32c"]):
        raise Unsupported(f"its shard indexes are encoded with {', '.join(names) or 'shards'}")
    if index.axes != tuple(range(len(chunks) + 1)):
        raise Unsupported("its shard indexes are transposed")
    index_bytes = 16 * reduce(operator.mul, chunks, 1) + (_CHECKSUM_BYTES if names else 0)
    location = config.get("index_location", "end")
    first = getattr(location, "value", location) == "start"
    shards = Shards(chunks, index_bytes, index.dtype, bool(names), first)
    return Stored(chunk_shape, inner.dtype, inner.axes, inner.codecs, shards)


def _byte_codec3(name: str, config: dict[str, Any]) -> ByteCodec:
    if name == "crc32c":
        if _crc32c is None:
            raise Unsupported("computing its CRC-32C requires a package: pip install google-crc32c")
        return ByteCodec(name, None)
    if name in ("blosc", "gzip", "zstd"):  # their configurations matter only for encoding
        return ByteCodec(name, numcodecs.get_codec({"id": name}))
    ours = name.removeprefix("numcodecs.")
    if ours == name or ours in _OF_ARRAYS:
        raise Unsupported(f"its chunks are encoded with {name}")
    return _of_numcodecs({"id": ours, **config})


# numcodecs codecs that zarr 3 uses as array-to-array codecs, which never follow the bytes codec.
_OF_ARRAYS = ("astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize")


def byte_codecs2(filters: Iterable[Any] | None, compressor: Any) -> tuple[ByteCodec, ...]:
    """Returns the numcodecs codecs of format 2, given as codecs or their configurations. Raises Unsupported if one is not installed."""
    codecs = [*(filters or ()), *([] if compressor is None else [compressor])]
    return tuple(_of_numcodecs(codec if isinstance(codec, dict) else codec.get_config()) for codec in codecs)


# These codecs create objects, or arrays of unlimited size, so zarr decodes them.
_OF_OBJECTS = ("categorize", "json2", "msgpack2", "pickle", "vlen-array", "vlen-bytes", "vlen-utf8")


def _of_numcodecs(config: dict[str, Any]) -> ByteCodec:
    if config.get("id") in _OF_OBJECTS:
        raise Unsupported(f"its chunks are encoded with {config['id']}")
    try:
        return ByteCodec(config["id"], numcodecs.get_codec(dict(config)))
    except Exception as error:
        raise Unsupported(f"numcodecs does not provide the codec {config.get('id')}: {error}") from error


def decode(codecs: Sequence[ByteCodec], data: Any, out: Any) -> Any:
    """Decodes one chunk. `data` is uint8, and `out` is an array with the decoded size. Returns the decoded bytes, which are in `out` or in other
    memory.

    Raises ValueError with the codec's name if the bytes are damaged. Whatever `data` contains, the output of numcodecs codecs never exceeds the size
    of a chunk, or most_encoded() between two codecs.
    """
    most = most_encoded(len(out))
    for at in range(len(codecs) - 1, -1, -1):
        codec = codecs[at]
        try:
            if codec.codec is None:
                data = _without_checksum(data)
            elif at == 0:
                data = decode_exactly(codec.name, codec.codec, data, out)
            else:
                data = decode_up_to(codec.name, codec.codec, data, most)
        except Exception as error:
            raise ValueError(f"{codec.name} cannot decode {_nbytes(data)} bytes: {error}") from error
    found = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data.reshape(-1).view(np.uint8)
    if len(found) != len(out):
        raise ValueError(f"it decodes to {len(found)} bytes, but a chunk of this array has {len(out)}")
    return found


def _nbytes(data: Any) -> int:
    return memoryview(data).nbytes


def _without_checksum(data: Any) -> Any:
    data = np.frombuffer(data, np.uint8)
    if len(data) < _CHECKSUM_BYTES:
        raise ValueError("too few bytes for a checksum")
    body, (told,) = data[:-_CHECKSUM_BYTES], struct.unpack("<I", data[-_CHECKSUM_BYTES:].tobytes())
    found = crc32c(body)
    if found != told:
        raise ValueError(f"checksum mismatch: computed CRC-32C {found:08x}, stored CRC-32C {told:08x}")
    return body


def crc32c(data: Any) -> int:
    """Returns the CRC-32C of data. Called only if a codec chain or a shard index includes one."""
    assert _crc32c is not None
    return int(_crc32c(data))


def _find_crc32c() -> Callable[[Any], int] | None:
    try:
        import google_crc32c

        return lambda data: int(google_crc32c.value(memoryview(data).tobytes() if google_crc32c.implementation != "c" else data))
    except ImportError:
        pass
    try:
        of_package = import_module("crc32c").crc32c  # zarr before 3.1.2 depends on it
        return lambda data: int(of_package(data))
    except ImportError:
        return None


_crc32c = _find_crc32c()
