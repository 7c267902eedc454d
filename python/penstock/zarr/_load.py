"""`load`: a whole zarr array, or a box of it, in one go from its chunk files into host or GPU memory."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import penstock
from penstock._devices import Place
from penstock.zarr._files import MISSING, files_at_once
from penstock.zarr._layouts import layout_of
from penstock.zarr._plan import ArrayLayout, ChunkPart, Region, Unsupported, chunk_parts, region_of
from penstock.zarr._reads import Outcome, Pending, Read, start_reads
from penstock.zarr._targets import Target, target_for

__all__ = ["Explanation", "explain", "load"]

# Chunks whose rows are scattered are read whole into memory of their own: so much of it is in use at a time, but for one chunk.
_STAGED_BYTES_PER_WINDOW = 64 << 20
_WINDOWS_UNDER_WAY = 2


@dataclass(frozen=True)
class Explanation:
    """What load() would do. `str()` is a sentence."""

    direct: bool  # False: zarr's own pipeline reads it
    reason: str
    nbytes: int  # of the result; of the whole array where zarr reads it
    chunks: int  # files to read, 0 where zarr reads it
    ranges: int  # in those files
    staged_chunks: int  # of chunks: read whole and copied, because their pieces are small

    def __str__(self) -> str:
        if not self.direct:
            return f"zarr's own pipeline reads it, because {self.reason}"
        staged = f", {self.staged_chunks} of them through a copy" if self.staged_chunks else ""
        return f"{self.nbytes} bytes from {self.ranges} ranges of {self.chunks} chunk files{staged}: {self.reason}"


def explain(array: Any, selection: Any = ...) -> Explanation:
    """Whether load() reads a selection of an array by itself or leaves it to zarr, and why. Opens no chunk.

    Raises TypeError when array is no zarr array.
    """
    try:
        layout = layout_of(array)
        region = region_of(selection, layout.shape)
    except Unsupported as reason:
        return Explanation(False, str(reason), int(array.nbytes), 0, 0, 0)
    chunks = ranges = staged = 0
    for part in chunk_parts(layout, region):
        chunks += 1
        ranges += 1 if part.pattern.scattered else part.pattern.runs
        staged += part.pattern.scattered
    nbytes = math.prod(region.shape) * layout.dtype.itemsize
    return Explanation(True, "its chunks are plain bytes in local files", nbytes, chunks, ranges, staged)


def load(array: Any, selection: Any = ..., *, device: Place = None, out: Any = None) -> Any:
    """Reads a zarr array, or a selection of it, into memory. Blocks.

    Uncompressed chunks in local files (zarr 3: codecs exactly [bytes], in this machine's byte order; zarr 2: no compressor,
    no filters, C order) go straight from their files to their places in the result, as few large batches. Everything else
    is read by zarr and then moved; explain() says which, and why. Missing chunks give the fill value.

    array: a zarr.Array (zarr 2 or 3).
    selection: what array[...] takes; numbers, slices with step 1 and an ellipsis go the fast way.
    device: where the result goes: None, "cpu" or "host" for a NumPy array, "cuda:N", N or "cuda" for a cupy array, "host:0" for a
        penstock.DeviceBuffer of the host device, an imitation of a GPU in host memory; it holds the elements in C order.
    out: memory to fill and return instead: a NumPy or cupy array of the result's shape and dtype, or any buffer that
        penstock takes, of exactly the result's bytes. C-contiguous.

    The result is C-contiguous; of a selection of one element it is an array with no axes. Where an axis is selected by a
    number it is gone, as with NumPy.

    Raises TypeError when array is no zarr array or out has another dtype; ValueError when out has another size or shape,
    is not contiguous, or does not fit device, and when a chunk file has not the size of a chunk; ImportError when "cuda:N"
    is asked for without cupy; penstock.Error when a file cannot be read, or (a ValueError too) when an empty result is asked
    for on "host:0", where memory has at least one byte. What is in out is then undefined.
    """
    try:
        layout = layout_of(array)
        region = region_of(selection, layout.shape)
    except Unsupported:
        return _load_by_zarr(array, selection, device, out)
    target = target_for(region.shape, layout.dtype, device, out)
    if target.nbytes:
        _read(layout, region, target)
    return target.result


def _load_by_zarr(array: Any, selection: Any, device: Place, out: Any) -> Any:
    values = np.asanyarray(_on_host(array[selection]))
    target = target_for(values.shape, values.dtype, device, out)
    if target.nbytes:
        target.assign_all(values)
    return target.result


def _on_host(values: Any) -> Any:
    # zarr.config.enable_gpu() makes zarr return cupy arrays.
    return values.get() if hasattr(values, "__cuda_array_interface__") else values


def _read(layout: ArrayLayout, region: Region, target: Target) -> None:
    parts = list(chunk_parts(layout, region))
    if not target.is_array and any(part.pattern.scattered for part in parts):
        # Memory that this process cannot index: put together on the host, and moved at once.
        host = target_for(region.shape, layout.dtype, None, None)
        _read(layout, region, host)
        target.assign_all(host.result)
        return
    target.prepare()
    box = target.as_box(region.lengths)
    under_way: deque[_Window] = deque()
    try:
        for some in _windows(parts):
            under_way.append(_Window(layout, some, target, box))
            if len(under_way) >= _WINDOWS_UNDER_WAY:
                under_way.popleft().finish()
        while under_way:
            under_way.popleft().finish()
    finally:
        # After an error nothing may write to the result any more.
        for window in under_way:
            window.abandon()
    target.settle()


def _windows(parts: Iterable[ChunkPart]) -> Iterator[list[ChunkPart]]:
    """Parts in groups that bound the files and the memory in use."""
    most = files_at_once()
    window: list[ChunkPart] = []
    staged = 0
    for part in parts:
        cost = part.pattern.span_bytes if part.pattern.scattered else 0
        if window and (len(window) == most or staged + cost > _STAGED_BYTES_PER_WINDOW):
            yield window
            window, staged = [], 0
        window.append(part)
        staged += cost
    if window:
        yield window


class _Window:
    """Some chunks, from the opening of their files to their bytes in the result."""

    def __init__(self, layout: ArrayLayout, parts: list[ChunkPart], target: Target, box: Any) -> None:
        self._layout = layout
        self._target = target
        self._box = box
        self._files: list[penstock.File] = []
        self._reads: list[Read] = []
        self._sources: list[ChunkPart] = []  # of the reads
        self._staged: list[tuple[ChunkPart, Any]] = []
        self._pending: Pending | None = None
        try:
            for part in parts:
                self._open(part)
            if self._staged:
                target.settle()
        except BaseException:
            self._close()
            raise
        self._pending = start_reads(self._reads)

    def finish(self) -> None:
        """Waits for the reads and copies what was staged. Raises the first error."""
        try:
            self._check(self._ended())
            for part, rows in self._staged:
                inside = tuple(
                    slice(inner.start - span.start, inner.stop - span.start)
                    for inner, span in zip(part.pattern.inner, part.pattern.span_slices)
                )
                self._box[part.outer] = rows[inside]
        finally:
            self._close()

    def abandon(self) -> None:
        """Waits for the reads and forgets them."""
        self._ended()
        self._close()

    def _open(self, part: ChunkPart) -> None:
        path = os.path.join(self._layout.folder, part.name)
        try:
            file = penstock.open(path)
        except MISSING:
            self._target.fill(self._box, part, self._layout.fill_value)
            return
        self._files.append(file)
        size = file.size()
        if size != self._layout.chunk_bytes:
            raise ValueError(f"chunk file {path} has {size} bytes, a chunk of this array {self._layout.chunk_bytes}")
        pattern = part.pattern
        if pattern.scattered:
            shape = tuple(s.stop - s.start for s in pattern.span_slices)
            rows = self._target.scratch(shape)
            self._staged.append((part, rows))
            self._add(part, Read(file, rows, pattern.span_offset, pattern.span_bytes, 0))
        elif pattern.runs == 1:
            self._add(part, Read(file, self._target.memory, int(pattern.file_offsets[0]), pattern.run_bytes, part.target_offset))
        else:
            places = (pattern.target_offsets + part.target_offset).tolist()
            for offset, place in zip(pattern.file_offsets.tolist(), places):
                self._add(part, Read(file, self._target.memory, offset, pattern.run_bytes, place))

    def _add(self, part: ChunkPart, read: Read) -> None:
        self._reads.append(read)
        self._sources.append(part)

    def _ended(self) -> list[Outcome]:
        return self._pending.wait() if self._pending is not None else []

    def _check(self, outcomes: list[Outcome]) -> None:
        for outcome, read, part in zip(outcomes, self._reads, self._sources):
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome != read.size:
                path = os.path.join(self._layout.folder, part.name)
                raise ValueError(f"chunk file {path} was cut while it was read: {outcome} of {read.size} bytes at {read.offset}")

    def _close(self) -> None:
        files, self._files = self._files, []
        for file in files:
            file.close()
