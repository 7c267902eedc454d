"""Reads chunks that a GPU decodes: reads batches of encoded chunks into GPU memory, where they are decoded and stored in the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

import penstock
from penstock._core.packing import aligned
from penstock.zarr._chunk_plan import ArrayLayout, ChunkPart
from penstock.zarr._coded import Failures, chunks_in_groups, decode_alone
from penstock.zarr._nvcomp import Payload
from penstock.zarr._reads import Outcome, Pending, Read, run_in_order, start_reads
from penstock.zarr._stored import ChunkFiles, StoredChunk
from penstock.zarr._targets import Target

__all__ = ["MOST_DECODED_BYTES", "Decoder", "read_on_gpu"]

# Decoded bytes per call of the decoder (more only if a single chunk is larger); with fewer chunks, parts of a GPU would be idle. GPU memory also
# contains the result, the encoded bytes of these chunks and, for zstd, three times this size for nvCOMP, and the encoded bytes of the batches that
# are being read while others are decoded. The number of chunks in a batch is limited by the number of files that may be open.
MOST_DECODED_BYTES = 1 << 30
_MOST_BATCH_BYTES = 256 << 20
_BATCHES_UNDER_WAY = 3

_ALIGNMENT = 256 # of chunks in GPU memory; sufficient for every algorithm

_logger = logging.getLogger("penstock")


class Decoder(Protocol):
    """Decodes chunks in a device's memory. Implemented by _nvcomp.Nvcomp."""

    alignment: int  # of encoded and decoded chunks; a power of two

    def most_bytes(self) -> int: ...

    def decode(
        self, sources: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any], places: np.ndarray[Any, Any], chunk_bytes: int
    ) -> np.ndarray[Any, Any]: ...


def read_on_gpu(layout: ArrayLayout, parts: Iterable[ChunkPart], target: Target, box: Any, decoder: Decoder, payload: Payload) -> None:
    """Fills the target, which must be an array on a device. Raises the errors of load().

    The CPU decodes incomplete chunks and chunks that the decoder rejects, and reports an error if they are damaged.
    """
    files = ChunkFiles(layout)
    most_bytes = min(MOST_DECODED_BYTES, decoder.most_bytes())
    work = _Work(layout, target, box, payload)

    def add(batch: _Batch) -> None:
        work.add(batch)
        if work.nbytes >= most_bytes:
            work.decode(decoder)

    batch_bytes, decoded = min(_MOST_BATCH_BYTES, most_bytes), _aligned(layout.chunk_bytes)
    some_chunks = chunks_in_groups(layout, files, parts, target, box, batch_bytes, decoded, lambda chunk: _room_of(chunk, payload))
    run_in_order((_Batch(files, some, target, payload, add) for some in some_chunks), _BATCHES_UNDER_WAY + 1)
    work.decode(decoder)
    work.failures.check()


def _room_of(chunk: StoredChunk, payload: Payload) -> int:
    """Returns the number of bytes reserved for an encoded chunk. The payload is aligned, not the bytes before it."""
    return _aligned(chunk.size + payload.before)


class _Batch:
    """A batch of encoded chunks that is read into device memory."""

    def __init__(self, files: ChunkFiles, chunks: list[StoredChunk], target: Target, payload: Payload, add: Callable[[_Batch], None]) -> None:
        self._files = files
        self._add = add
        self.chunks = chunks
        rooms = [_room_of(chunk, payload) for chunk in chunks]
        self.nbytes = sum(rooms)
        self.encoded = target.scratch(self.nbytes + _ALIGNMENT)
        target.settle()
        base = _address(self.encoded)
        first = _aligned(base + payload.before) - base - payload.before
        self.starts = first + np.cumsum([0, *rooms])[:-1]
        self.payloads = (base + payload.before + self.starts).astype(np.uint64)
        self._pending: Pending | None = None

    def start(self) -> None:
        """Starts the reads."""
        reads = [Read(chunk.file, self.encoded, chunk.offset, chunk.size, at) for chunk, at in zip(self.chunks, self.starts.tolist())]
        self._pending = start_reads(reads)

    def finish(self) -> None:
        self._add(self)

    def wait(self) -> list[Outcome]:
        """Waits until all reads are complete, then releases the files."""
        assert self._pending is not None
        outcomes = self._pending.wait()
        self._files.close(self.chunks)
        self.chunks = [chunk.without_file() for chunk in self.chunks]
        return outcomes

    def abandon(self) -> None:
        """Waits until none of the batch's reads is in progress."""
        if self._pending is not None:
            self._pending.end()
        self._files.close(self.chunks)


class _Encoded(NamedTuple):
    """An encoded chunk in device memory."""

    chunk: StoredChunk
    memory: Any  # the batch's memory
    at: int  # offset in memory
    payload: np.uint64  # device address


class _Work:
    """Holds chunks that have been read until the decoder is called."""

    def __init__(self, layout: ArrayLayout, target: Target, box: Any, payload: Payload) -> None:
        self.failures = Failures()
        self._layout = layout
        self._target = target
        self._box = box
        self._payload = payload
        self._ready: list[_Encoded] = []
        self._encoded_bytes = 0  # total size of the batches that the ready chunks keep alive

    @property
    def nbytes(self) -> int:
        """Returns the chunks' size on the device, encoded or decoded, whichever is larger."""
        return max(self._encoded_bytes, len(self._ready) * _aligned(self._layout.chunk_bytes))

    def add(self, batch: _Batch) -> None:
        """Waits for a batch. Raises its read errors; records truncated chunks."""
        self._encoded_bytes += batch.nbytes
        outcomes = batch.wait()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        whole = self._whole(batch)
        for number, outcome in enumerate(outcomes):
            chunk = batch.chunks[number]
            encoded = _Encoded(chunk, batch.encoded, int(batch.starts[number]), batch.payloads[number])
            if outcome != chunk.size:
                self.failures.add(chunk, ValueError(f"truncated while being read: {outcome} of {chunk.size} bytes"))
            elif whole[number]:
                self._ready.append(encoded)
            else:
                self._by_cpu(encoded)

    def _whole(self, batch: _Batch) -> np.ndarray[Any, Any]:
        """Returns which chunks of a completed batch may be passed to the decoder."""
        around = self._payload.before + self._payload.behind
        sizes = np.array([chunk.size for chunk in batch.chunks]) - around
        whole: np.ndarray[Any, Any] = sizes > 0
        if self._payload.whole is not None and whole.any():
            looked_at = np.flatnonzero(whole)
            starts = batch.starts[looked_at] + self._payload.before
            whole[looked_at] = self._payload.whole(
                lambda positions: self._target.fetch(batch.encoded, positions), starts, sizes[looked_at], self._layout.chunk_bytes
            )
        return whole

    def decode(self, decoder: Decoder) -> None:
        """Decodes the ready chunks and stores them in the result. Blocks."""
        ready, self._ready, self._encoded_bytes = self._ready, [], 0
        if not ready:
            return
        chunks = [encoded.chunk for encoded in ready]
        chunk_bytes = self._layout.chunk_bytes
        base = _address(self._target.memory)
        direct = np.array([self._is_direct(chunk, base, decoder.alignment) for chunk in chunks])
        room = _aligned(chunk_bytes)
        apart = self._target.scratch(int((~direct).sum()) * room + _ALIGNMENT)
        start = _aligned(_address(apart)) - _address(apart)
        slots = start + (np.cumsum(~direct) - 1) * room
        here = base + np.array([chunk.part.target_offset for chunk in chunks])
        places = np.where(direct, here, _address(apart) + slots).astype(np.uint64)
        sizes = np.array([chunk.size for chunk in chunks], np.uint64) - np.uint64(self._payload.before + self._payload.behind)
        try:
            good = decoder.decode(np.array([encoded.payload for encoded in ready], np.uint64), sizes, places, chunk_bytes)
        except RuntimeError as error:
            _logger.warning("penstock.zarr: the CPU decodes %d chunks: %s", len(chunks), error)
            good = np.zeros(len(chunks), bool)
        for number in np.flatnonzero(~direct & good).tolist():
            at = int(slots[number])
            self._place(chunks[number].part, apart[at : at + chunk_bytes])
        for number in np.flatnonzero(~good).tolist():
            self._by_cpu(ready[number])
        self._target.settle()  # `apart` may be reused

    def _is_direct(self, chunk: StoredChunk, base: int, alignment: int) -> bool:
        """Returns True if a chunk can be decoded directly into its place in the result, which starts at base."""
        layout, part = self._layout, chunk.part
        whole = part.pattern.lengths == layout.chunk_shape and part.pattern.runs == 1
        as_it_is = layout.in_order and layout.stored_dtype == self._target.dtype
        return whole and as_it_is and (base + part.target_offset) % alignment == 0

    def _place(self, part: ChunkPart, decoded: Any) -> None:
        """Copies the selected part of a decoded chunk into the result, on the device."""
        layout = self._layout
        shape = tuple(layout.chunk_shape[axis] for axis in layout.stored_axes)
        elements = _in_order(self._target.as_array(decoded), layout.stored_dtype, self._target.dtype)
        values = elements.view(self._target.dtype).reshape(shape)
        self._target.assign(self._box, part, values.transpose(np.argsort(layout.stored_axes).tolist())[part.pattern.inner])

    def _by_cpu(self, encoded: _Encoded) -> None:
        """Decodes a chunk that the decoder has rejected, on the CPU."""
        chunk = encoded.chunk
        data = np.empty(chunk.size, np.uint8)
        if chunk.size:
            penstock.copy(data, encoded.memory[encoded.at : encoded.at + chunk.size])
        try:
            values = np.ascontiguousarray(decode_alone(self._layout, chunk.part, data), self._target.dtype)
        except ValueError as error:
            self.failures.add(chunk, error)
            return
        _logger.info("penstock.zarr: the CPU decoded %s", chunk.words)
        there = self._target.scratch(values.nbytes)
        self._target.settle()
        penstock.copy(there, values)
        self._target.assign(self._box, chunk.part, self._target.as_elements(there, values.shape))


def _in_order(data: Any, stored: np.dtype[Any], wanted: np.dtype[Any]) -> Any:
    """Converts the bytes of elements to the result's byte order."""
    if stored == wanted:
        return data
    width = stored.itemsize // 2 if stored.kind == "c" else stored.itemsize
    return data.reshape(-1, width)[:, ::-1].copy().reshape(-1)


def _aligned(address: int) -> int:
    return aligned(address, _ALIGNMENT)


def _address(memory: Any) -> int:
    return int(penstock._native.resolve(memory, True)[0])
