"""Chunks that a GPU decodes: read in batches into its memory as they are stored, decoded there, and put into the result there."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

import penstock
from penstock.zarr._coded import Failures, check_size, decode_alone
from penstock.zarr._nvcomp import Payload
from penstock.zarr._plan import ArrayLayout, ChunkPart
from penstock.zarr._reads import Read, start_reads
from penstock.zarr._stored import ChunkFiles, StoredChunk, groups
from penstock.zarr._targets import Target

__all__ = ["MOST_DECODED_BYTES", "Decoder", "read_on_gpu"]

# Decoded bytes of one group of chunks, but for one chunk that is larger. Two groups are under way: one that is read, one that is decoded.
# Besides the result they take the encoded bytes of both and, for zstd, three times this for nvCOMP. Fewer chunks leave parts of a GPU idle.
MOST_DECODED_BYTES = 1 << 30
_GROUPS_UNDER_WAY = 2

_ALIGNMENT = 256  # of chunks in GPU memory: more than any algorithm asks for

_logger = logging.getLogger("penstock")


class Decoder(Protocol):
    """What decodes chunks in a device's memory: _nvcomp.Nvcomp."""

    alignment: int  # of encoded and decoded chunks, a power of two

    def most_bytes(self) -> int: ...

    def decode(
        self, sources: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any], places: np.ndarray[Any, Any], chunk_bytes: int
    ) -> np.ndarray[Any, Any]: ...


def read_on_gpu(layout: ArrayLayout, parts: Sequence[ChunkPart], target: Target, box: Any, decoder: Decoder, payload: Payload) -> None:
    """Fills the target, which is an array on a device. Errors as for load().

    Chunks that the decoder refuses are decoded by the CPU, which says what is wrong with them where anything is.
    """
    files = ChunkFiles(layout)
    failures = Failures()
    under_way: deque[_Group] = deque()
    most_bytes = min(MOST_DECODED_BYTES, decoder.most_bytes())
    try:
        for some in groups(layout, parts, most_bytes, lambda part: layout.chunk_bytes):
            under_way.append(_Group(layout, files, some, target, box, payload))
            if len(under_way) >= _GROUPS_UNDER_WAY:
                under_way.popleft().finish(decoder, failures)
        while under_way:
            under_way.popleft().finish(decoder, failures)
    finally:
        # After an error nothing may write to memory that is given back.
        for group in under_way:
            group.abandon()
    failures.check()


class _Group:
    """Some chunks, from the opening of their files to their elements in the result."""

    def __init__(
        self, layout: ArrayLayout, files: ChunkFiles, parts: list[ChunkPart], target: Target, box: Any, payload: Payload
    ) -> None:
        self._layout = layout
        self._target = target
        self._box = box
        self._payload = payload
        self._chunks, missing = files.find(parts)
        for part in missing:
            target.fill(box, part, layout.fill_value)
        for chunk in self._chunks:
            check_size(layout, chunk)
        # The payload is aligned, not what stands before it.
        rooms = [_aligned(chunk.size + payload.before) for chunk in self._chunks]
        self._encoded = target.scratch(sum(rooms) + _ALIGNMENT)
        target.settle()
        base = _address(self._encoded)
        first = _aligned(base + payload.before) - base - payload.before
        self._starts = first + np.concatenate([[0], np.cumsum(rooms)[:-1]]).astype(np.int64) if rooms else np.zeros(0, np.int64)
        self._sources = (base + payload.before + self._starts).astype(np.uint64)
        reads = [Read(chunk.file, self._encoded, chunk.offset, chunk.size, at) for chunk, at in zip(self._chunks, self._starts.tolist())]
        self._pending = start_reads(reads)

    def finish(self, decoder: Decoder, failures: Failures) -> None:
        """Waits for the reads and decodes. Raises errors of reads; notes damaged chunks."""
        outcomes = self._pending.wait()
        whole: list[StoredChunk] = []
        rows: list[int] = []
        for row, (chunk, outcome) in enumerate(zip(self._chunks, outcomes)):
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome != chunk.size:
                failures.add(chunk, ValueError(f"it was cut while it was read: {outcome} of {chunk.size} bytes"))
            elif chunk.size > self._payload.before + self._payload.behind:
                whole.append(chunk)
                rows.append(row)
            else:
                self._by_cpu(row, chunk, failures)
        if whole:
            self._decode(decoder, whole, rows, failures)

    def _decode(self, decoder: Decoder, chunks: list[StoredChunk], rows: list[int], failures: Failures) -> None:
        chunk_bytes = self._layout.chunk_bytes
        direct = np.array([self._is_direct(decoder, chunk) for chunk in chunks])
        room = _aligned(chunk_bytes)
        apart = self._target.scratch(int((~direct).sum()) * room + _ALIGNMENT)
        start = _aligned(_address(apart)) - _address(apart)
        slots = start + (np.cumsum(~direct) - 1) * room
        here = _address(self._target.memory) + np.array([chunk.part.target_offset for chunk in chunks])
        places = np.where(direct, here, _address(apart) + slots).astype(np.uint64)
        sizes = np.array([chunk.size for chunk in chunks], np.uint64) - np.uint64(self._payload.before + self._payload.behind)
        try:
            good = decoder.decode(self._sources[rows], sizes, places, chunk_bytes)
        except RuntimeError as error:
            _logger.warning("penstock.zarr: the CPU decodes %d chunks: %s", len(chunks), error)
            good = np.zeros(len(chunks), bool)
        for number in np.flatnonzero(~direct & good).tolist():
            at = int(slots[number])
            self._place(chunks[number].part, apart[at : at + chunk_bytes])
        for number in np.flatnonzero(~good).tolist():
            self._by_cpu(rows[number], chunks[number], failures)
        self._target.settle()  # apart may be used again

    def _is_direct(self, decoder: Decoder, chunk: StoredChunk) -> bool:
        """Whether a chunk can be decoded to its place in the result."""
        layout, part = self._layout, chunk.part
        whole = part.pattern.lengths == layout.chunk_shape and part.pattern.runs == 1
        as_it_is = layout.in_order and layout.stored_dtype == self._target.dtype
        return whole and as_it_is and (_address(self._target.memory) + part.target_offset) % decoder.alignment == 0

    def _place(self, part: ChunkPart, decoded: Any) -> None:
        """Puts the wanted part of a decoded chunk into the result, on the device."""
        layout = self._layout
        shape = tuple(layout.chunk_shape[axis] for axis in layout.stored_axes)
        elements = _in_order(self._target.as_array(decoded), layout.stored_dtype, self._target.dtype)
        values = elements.view(self._target.dtype).reshape(shape)
        self._target.assign(self._box, part, values.transpose(np.argsort(layout.stored_axes).tolist())[part.pattern.inner])

    def _by_cpu(self, row: int, chunk: StoredChunk, failures: Failures) -> None:
        """Decodes a chunk that the decoder has refused."""
        at = int(self._starts[row])
        data = np.empty(chunk.size, np.uint8)
        if chunk.size:
            penstock.copy(data, self._encoded[at : at + chunk.size])
        try:
            values = np.ascontiguousarray(decode_alone(self._layout, chunk.part, data), self._target.dtype)
        except ValueError as error:
            failures.add(chunk, error)
            return
        _logger.info("penstock.zarr: the CPU decoded %s", chunk.words)
        there = self._target.scratch(values.nbytes)
        self._target.settle()
        penstock.copy(there, values)
        self._target.assign(self._box, chunk.part, self._target.as_elements(there, values.shape))

    def abandon(self) -> None:
        """Waits for the reads and forgets them."""
        self._pending.wait()


def _in_order(data: Any, stored: np.dtype[Any], wanted: np.dtype[Any]) -> Any:
    """Bytes of elements in the byte order that is wanted."""
    if stored == wanted:
        return data
    width = stored.itemsize // 2 if stored.kind == "c" else stored.itemsize
    return data.reshape(-1, width)[:, ::-1].copy().reshape(-1)


def _aligned(address: int) -> int:
    return -(-address // _ALIGNMENT) * _ALIGNMENT


def _address(memory: Any) -> int:
    return int(penstock._native.resolve(memory, True)[0])
