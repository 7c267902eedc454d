"""The protocol between weights servers and their receivers, over a pipe.

A receiver's request is a word: a small JSON object in a message's metadata. The response is also a word:

    {"weights": 1, "ask": "catalog", ...}    {"version": 3, ...}, and the catalog: which tensors, and which part of each
    {"ask": "send"}, and the pieces          the pieces as tensors of messages, in the requested order; then {"sent": 3}
    {"ask": "done"}                          no response: the server may release the version

A server that cannot answer sends {"failed": code, "reason": ...}. If it fails between pieces, each remaining message has this word instead of its
tensors. Catalogs and pieces are not JSON, so that their encoded size bounds their size in memory.
"""

from __future__ import annotations

import array
import hashlib
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .. import pipe
from .._core.boxes import Box
from .._core.peer_words import failure_of, failure_word, malformed, number_in

__all__ = [
    "BATCH_BYTES",
    "GATHERED_BYTES",
    "MOST_TENSORS",
    "PROTOCOL",
    "Catalog",
    "Piece",
    "Row",
    "failure_of",
    "failure_word",
    "malformed",
    "number_in",
    "packed_pieces",
    "problem_for_catalog",
    "unpacked_pieces",
    "word_of",
]

PROTOCOL = 1
BATCH_BYTES = 256 << 20  # size limit for a message with several tensors
MOST_IN_BATCH = 4096  # tensors per message: a posted receive can describe this many
GATHERED_BYTES = 64 << 20  # size limit for the non-contiguous tensors in a message
MOST_TENSORS = 1 << 18
MOST_PIECES = 1 << 18
_most_batches = 1 << 16
_most_catalog = 32 << 20  # bytes
_most_word = 8192
_most_dims = 32
_most_name = 4096
_most_bytes = 1 << 48  # per tensor; for an empty tensor, according to its non-zero extents. No library supports larger shapes


class Row(NamedTuple):
    """A tensor in a catalog. `is_contiguous`: in the server's memory. `box`: the part of the whole tensor that the server has."""

    name: str
    dtype: str
    itemsize: int
    is_contiguous: bool
    whole: tuple[int, ...]
    box: Box


class Catalog:
    """A server's tensors and their encoded form."""

    def __init__(self, rows: list[Row], payloads: list[bytes]) -> None:
        self.rows = rows
        self.payloads = payloads
        self.digest = hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in payloads)).hexdigest()

    @staticmethod
    def of(rows: list[Row]) -> Catalog:
        words = list(dict.fromkeys(each.dtype for each in rows))
        numbers = array.array("q")
        for each in rows:
            numbers.extend([words.index(each.dtype), each.itemsize, each.is_contiguous, len(each.whole)])
            numbers.extend([*each.whole, *each.box.starts, *each.box.shape])
        return Catalog(rows, [_joined(each.name for each in rows), _joined(words), _as_bytes(numbers)])

    @staticmethod
    def read(payloads: Sequence[bytes]) -> Catalog:
        """Decodes a catalog. Raises Error (io)."""
        if len(payloads) != 3 or sum(map(len, payloads)) > _most_catalog:
            raise malformed(f"a catalog of {len(payloads)} payloads with {sum(map(len, payloads))} bytes")
        names, words = _split(payloads[0], MOST_TENSORS), _split(payloads[1], 256)
        numbers = _Numbers(payloads[2])
        rows = [_row(name, words, numbers) for name in names]
        numbers.end()
        if len({each.name for each in rows}) != len(rows):
            raise malformed("a catalog that lists a tensor twice")
        return Catalog(rows, list(payloads))


def problem_for_catalog(name: str, dims: int) -> str | None:
    """Returns why a tensor cannot be in a catalog, or None."""
    try:
        named = 0 < len(name.encode()) <= _most_name and "\0" not in name
    except UnicodeEncodeError:
        named = False
    if not named:
        return f"its name is empty, is not Unicode, has a zero byte or is longer than {_most_name} bytes"
    return f"it has more than {_most_dims} dimensions" if dims > _most_dims else None


def _row(name: str, words: list[str], numbers: _Numbers) -> Row:
    word, itemsize, contiguous, dims = numbers.take(4)
    if not 0 <= word < len(words) or not 1 <= itemsize <= 1024 or contiguous not in (0, 1) or not 0 <= dims <= _most_dims or len(name) > _most_name:
        raise malformed(f'an invalid type or number of dimensions for "{name[:200]}"')
    whole, starts, shape = (tuple(numbers.take(dims)) for _ in range(3))
    box = Box(starts, shape)
    if min((*whole, *starts, *shape), default=0) < 0 or not Box.whole(whole).contains(box) or math.prod(each or 1 for each in whole) * itemsize > _most_bytes:
        raise malformed(f'an invalid shape or part for "{name[:200]}"')
    return Row(name, words[word], itemsize, bool(contiguous), whole, box)


class Piece(NamedTuple):
    """A part of a row's tensor."""

    row: int
    box: Box


def packed_pieces(batches: Iterable[Sequence[Piece]]) -> list[bytes]:
    numbers = array.array("q")
    for batch in batches:
        numbers.append(len(batch))
        for each in batch:
            numbers.append(each.row)
            numbers.extend([*each.box.starts, *each.box.shape])
    return [_as_bytes(numbers)]


def unpacked_pieces(payloads: Sequence[bytes], rows: Sequence[Row]) -> list[list[Piece]]:
    """Decodes pieces, and checks that each is within its row. Raises Error (io)."""
    if len(payloads) != 1:
        raise malformed(f"pieces in {len(payloads)} payloads")
    numbers, count = _Numbers(payloads[0]), 0
    batches: list[list[Piece]] = []
    while numbers:
        (length,) = numbers.take(1)
        count += max(length, 0)
        if not 1 <= length <= MOST_IN_BATCH or count > MOST_PIECES or len(batches) == _most_batches:
            raise malformed(f"a request for {length} pieces in a message, with {count} pieces in {len(batches) + 1} messages so far")
        batches.append([_piece(rows, numbers) for _ in range(length)])
    if sum(_bytes_of(each, rows) for batch in batches for each in batch) > sum(each.box.size * each.itemsize for each in rows):
        raise malformed("a request for more bytes than the tensors have")
    return batches


def _piece(rows: Sequence[Row], numbers: _Numbers) -> Piece:
    (row,) = numbers.take(1)
    if not 0 <= row < len(rows):
        raise malformed(f"tensor index {row}, but the catalog has {len(rows)} tensors")
    dims = len(rows[row].whole)
    box = Box(tuple(numbers.take(dims)), tuple(numbers.take(dims)))
    if min(box.shape, default=1) < 1 or not rows[row].box.contains(box):
        raise malformed(f'a request for {box} of "{rows[row].name}", but the local part is {rows[row].box}')
    return Piece(row, box)


def _bytes_of(piece: Piece, rows: Sequence[Row]) -> int:
    return piece.box.size * rows[piece.row].itemsize


# --- words


def word_of(message: pipe.Message | pipe.Descriptor) -> dict[str, Any]:
    """Returns a message's word. Raises Error (io) if the message has none, or has tensors."""
    if message.tensors or len(message.metadata) > _most_word:
        raise malformed(f"{len(message.tensors)} tensors and {len(message.metadata)} bytes of metadata instead of one JSON object")
    try:
        word = json.loads(message.metadata)
    except (ValueError, RecursionError):
        word = None
    if not isinstance(word, dict):
        raise malformed("metadata that is not a JSON object")
    return word


# --- columns


def _joined(texts: Iterable[str]) -> bytes:
    return "".join(f"{each}\0" for each in texts).encode()


def _split(packed: bytes, most: int) -> list[str]:
    if packed.count(b"\0") > most or (packed and not packed.endswith(b"\0")):
        raise malformed(f"more than {most} names, or names without a terminator")
    try:
        return packed.decode().split("\0")[:-1]
    except UnicodeDecodeError:
        raise malformed("names that are not UTF-8") from None


def _as_bytes(numbers: array.array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


class _Numbers:
    """Reads consecutive little-endian 8-byte integers."""

    def __init__(self, packed: bytes) -> None:
        if len(packed) > _most_catalog or len(packed) % 8:
            raise malformed(f"numbers of {len(packed)} bytes in total, which is not a multiple of 8")
        numbers = array.array("q")
        numbers.frombytes(packed)
        if sys.byteorder == "big":
            numbers.byteswap()
        self._numbers = numbers
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._numbers)

    def take(self, count: int) -> array.array[int]:
        found = self._numbers[self._at : self._at + count]
        if len(found) < count:
            raise malformed("too few numbers")
        self._at += count
        return found

    def end(self) -> None:
        if self:
            raise malformed("too many numbers")
