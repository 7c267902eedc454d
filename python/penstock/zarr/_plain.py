"""Reads chunks that need no decoding directly from the files into their places in the result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.zarr._chunk_plan import ArrayLayout, ChunkPart
from penstock.zarr._reads import Outcome, Pending, Read, run_in_order, start_reads
from penstock.zarr._stored import ChunkFiles, StoredChunk, damaged, groups
from penstock.zarr._targets import Target

__all__ = ["read_plain"]

# The amount of staging memory in use at a time, into which chunks with scattered rows are read (more only if a single chunk is larger).
_STAGED_BYTES_PER_WINDOW = 64 << 20
_WINDOWS_UNDER_WAY = 3


def read_plain(layout: ArrayLayout, parts: Iterable[ChunkPart], target: Target, box: Any) -> None:
    """Fills the target. Its box may be None if no part is scattered. Raises the errors of load()."""
    files = ChunkFiles(layout)
    some_parts = groups(parts, _STAGED_BYTES_PER_WINDOW, _staged_bytes)
    run_in_order((_Window(layout, files, some, target, box) for some in some_parts), _WINDOWS_UNDER_WAY)


def _staged_bytes(part: ChunkPart) -> int:
    return part.pattern.span_bytes if part.pattern.scattered else 0


class _Window:
    """A group of chunks, from opening their files to storing their bytes in the result."""

    def __init__(self, layout: ArrayLayout, files: ChunkFiles, parts: list[ChunkPart], target: Target, box: Any) -> None:
        self._layout = layout
        self._files = files
        self._target = target
        self._box = box
        self._reads: list[Read] = []
        self._sources: list[StoredChunk] = []  # the chunk of each read
        self._staged: list[tuple[ChunkPart, Any]] = []
        self._pending: Pending | None = None
        self._chunks, missing = files.find(parts)
        for part in missing:
            target.fill(box, part, layout.fill_value)
        chunk_bytes = layout.chunk_bytes
        for chunk in self._chunks:
            self._add(chunk, chunk_bytes)
        if self._staged:
            target.settle()

    def start(self) -> None:
        """Starts the reads."""
        self._pending = start_reads(self._reads)

    def finish(self) -> None:
        """Waits for the reads and copies staged chunks. Raises the first error."""
        assert self._pending is not None
        outcomes = self._pending.wait()
        self._files.close(self._chunks)
        self._check(outcomes)
        for part, rows in self._staged:
            inside = tuple(
                slice(inner.start - span.start, inner.stop - span.start)
                for inner, span in zip(part.pattern.inner, part.pattern.span_slices)
            )
            shape = tuple(s.stop - s.start for s in part.pattern.span_slices)
            self._target.assign(self._box, part, self._target.as_elements(rows, shape)[inside])

    def abandon(self) -> None:
        """Waits for the reads and discards them."""
        if self._pending is not None:
            self._pending.end()
        self._files.close(self._chunks)

    def _add(self, chunk: StoredChunk, chunk_bytes: int) -> None:
        if chunk.size != chunk_bytes:
            where = f"chunk file {chunk.path}" if self._layout.shards is None else chunk.words
            raise damaged(f"{where} has {chunk.size} bytes, but a chunk of this array has {chunk_bytes}", chunk.path)
        part, file, memory = chunk.part, chunk.file, self._target.memory
        pattern = part.pattern
        if pattern.scattered:
            rows = self._target.scratch(pattern.span_bytes)
            self._staged.append((part, rows))
            reads = [Read(file, rows, chunk.offset + pattern.span_offset, pattern.span_bytes, 0)]
        elif pattern.runs == 1:
            reads = [Read(file, memory, chunk.offset + int(pattern.file_offsets[0]), pattern.run_bytes, part.target_offset)]
        else:
            places = (pattern.target_offsets + part.target_offset).tolist()
            offsets = (pattern.file_offsets + chunk.offset).tolist()
            reads = [Read(file, memory, offset, pattern.run_bytes, place) for offset, place in zip(offsets, places)]
        self._reads += reads
        self._sources += [chunk] * len(reads)

    def _check(self, outcomes: list[Outcome]) -> None:
        for outcome, read, chunk in zip(outcomes, self._reads, self._sources):
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome != read.size:
                raise damaged(f"chunk file {chunk.path} was truncated while being read: {outcome} of {read.size} bytes at {read.offset}", chunk.path)
