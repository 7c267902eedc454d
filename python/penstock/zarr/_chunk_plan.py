"""Plans the reads of `load`: maps an array and a selection to byte ranges in chunk files. Pure arithmetic; does not open files.

All sizes and offsets are in bytes unless their names indicate otherwise. Stateless, so any thread may use it.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "SMALLEST_RUN_BYTES",
    "ArrayLayout",
    "ChunkPart",
    "FileParts",
    "Pattern",
    "Region",
    "Shards",
    "Unsupported",
    "chunk_parts",
    "region_of",
]

# If a chunk's rows would be scattered in pieces smaller than this, the whole chunk is read and then copied, because below this size a piece costs
# more (about a microsecond) than the copy.
SMALLEST_RUN_BYTES = 4096

Int64Array = npt.NDArray[np.int64]


class Unsupported(Exception):
    """The reason why an array or a selection is left to zarr. `str()` is a clause that fits after "because"."""


@dataclass(frozen=True)
class Shards:
    """Describes how an array's shard files store chunks: with an index of offsets and sizes at one end of each file."""

    chunks: tuple[int, ...]  # number per file along each axis
    index_bytes: int  # size as stored, including the checksum
    index_dtype: np.dtype[Any]  # dtype of the offsets and sizes
    index_checked: bool  # True: a 4-byte CRC-32C follows them
    index_first: bool  # True: at the start of the file; False: at the end


@dataclass(frozen=True)
class ArrayLayout:
    """Describes an array whose chunks are in files: one per file, or many per shard."""

    path_of: Callable[[str], str]  # maps a file's name to its path
    open_far: Callable[[str], Any] | None  # opens such a path on a server as a penstock.File; None: the files are local
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]  # shape of the unit of decoding: within shards, their inner chunks
    dtype: np.dtype[Any] # the array's dtype
    fill_value: Any  # None: zeros
    chunk_name: Callable[[tuple[int, ...]], str]  # maps a file's coordinates in the file grid to its name
    stored_dtype: np.dtype[Any]  # the dtype in the byte order of the chunks
    stored_axes: tuple[int, ...]  # the chunk's axes in storage order
    codecs: tuple[Any, ...] = ()  # _codecs.ByteCodec objects in encoding order
    shards: Shards | None = None

    @property
    def far(self) -> bool:
        """True if the files are on a server."""
        return self.open_far is not None

    @property
    def chunk_bytes(self) -> int:
        """The size of a decoded chunk in bytes. Chunks at the edges are padded to the same size."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    @property
    def file_shape(self) -> tuple[int, ...]:
        """The number of elements in a file along each axis."""
        if self.shards is None:
            return self.chunk_shape
        return tuple(map(operator.mul, self.chunk_shape, self.shards.chunks))

    @property
    def in_order(self) -> bool:
        """True if a decoded chunk is in C order."""
        return self.stored_axes == tuple(range(len(self.chunk_shape)))


@dataclass(frozen=True)
class Region:
    """A box of an array: for each axis, a start and a length in elements, and whether the axis remains in the result."""

    start: tuple[int, ...]
    lengths: tuple[int, ...]
    kept: tuple[bool, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result, without axes selected by an integer."""
        return tuple(length for length, kept in zip(self.lengths, self.kept) if kept)


def region_of(selection: Any, shape: tuple[int, ...]) -> Region:
    """Returns the box that a selection of integers, slices with step 1 and an ellipsis describes.

    Raises Unsupported for every other selection, including those that zarr rejects, so that zarr reports the error.
    """
    items = list(selection) if isinstance(selection, tuple) else [selection]
    ellipses = [at for at, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1:
        raise Unsupported("the selection has more than one ellipsis")
    given = len(items) - len(ellipses)
    if given > len(shape):
        raise Unsupported(f"the selection has {given} axes, but the array has {len(shape)}")
    at = ellipses[0] if ellipses else given
    items[at : at + 1] = [slice(None)] * (len(shape) - given)
    axes = [_axis_of(item, size) for item, size in zip(items, shape)]
    return Region(tuple(a[0] for a in axes), tuple(a[1] for a in axes), tuple(a[2] for a in axes))


def _axis_of(item: Any, size: int) -> tuple[int, int, bool]:
    if isinstance(item, slice):
        start, stop, step = item.indices(size)
        if step != 1:
            raise Unsupported(f"the selection has a step of {step}")
        return start, max(0, stop - start), True
    if isinstance(item, (bool, np.bool_)):
        raise Unsupported("the selection has a mask")
    try:
        index = operator.index(item)
    except TypeError:
        raise Unsupported(f"the selection has a {type(item).__name__}") from None
    if not -size <= index < size:
        raise Unsupported(f"the selection has the index {index} for an axis of length {size}")
    return index % size, 1, False


@dataclass(frozen=True)
class Pattern:
    """Describes where the selected part of a chunk is in the chunk's file and in the result.

    Chunks in a selection's interior share one pattern: they differ only in where they start in the result.
    """

    inner: tuple[slice, ...]  # in elements, within the chunk
    lengths: tuple[int, ...]
    run_bytes: int
    file_offsets: Int64Array  # offset of each run
    target_offsets: Int64Array  # offset of each run from the chunk's start in the result
    span_slices: tuple[slice, ...]  # smallest box of whole rows in the file that contains the part
    span_offset: int  # offset of that box in the file
    span_bytes: int

    @property
    def runs(self) -> int:
        return len(self.file_offsets)

    @property
    def scattered(self) -> bool:
        """True if the runs are so small that it is faster to read the whole span and copy from it."""
        return self.runs > 1 and self.run_bytes < SMALLEST_RUN_BYTES


_Patterns = dict[tuple[tuple[int, int], ...], Pattern]  # by the part's place in the chunk


class ChunkPart(NamedTuple):
    """The selected part of a chunk."""

    name: str # name of the chunk's file
    slot: int  # index of the chunk in a shard
    chunk: tuple[int, ...]  # coordinates in the chunk grid
    pattern: Pattern
    target_offset: int  # start of the part in the result
    outer: tuple[slice, ...]  # place in the result, in elements, including dropped axes


class _Piece(NamedTuple):
    """An axis's contribution to a chunk part."""

    number: int
    place: tuple[int, int]  # first element within the chunk, and length
    target_offset: int  # in bytes
    outer: slice


def _pieces(start: int, length: int, chunk: int, target_stride: int, target_start: int = 0) -> list[_Piece]:
    """Returns the pieces of an axis's chunks that overlap a range, in order. The first one is at target_start in the result."""
    stop = start + length
    pieces = []
    for index in range(start // chunk, -(-stop // chunk)):
        first, last = max(start, index * chunk), min(stop, (index + 1) * chunk)
        outer = slice(target_start + first - start, target_start + last - start)
        pieces.append(_Piece(index, (first - index * chunk, last - first), outer.start * target_stride, outer))
    return pieces


def chunk_parts(layout: ArrayLayout, region: Region) -> Iterator[ChunkPart]:
    """Yields the parts of a region, grouped by file. Yields nothing for an empty region."""
    if 0 in region.lengths:
        return
    strides = _strides(region.lengths, layout.dtype.itemsize)
    axes = [_pieces(*each) for each in zip(region.start, region.lengths, layout.chunk_shape, strides)]
    yield from _parts(layout, region, _by_file(axes, layout.shards), {})


def _parts(layout: ArrayLayout, region: Region, chunks: Iterable[tuple[_Piece, ...]], patterns: _Patterns, name: str | None = None) -> Iterator[ChunkPart]:
    """Yields a part for each chunk's pieces. `name`: the name of their file; None: determined for each chunk."""
    # Microseconds matter here: transferring a 1 MiB chunk over a link takes 20.
    for pieces in chunks:
        chunk, place, offsets, outer = zip(*pieces) if pieces else ((), (), (), ())
        pattern = patterns.get(place)
        if pattern is None:
            pattern = patterns[place] = _pattern(layout, region, place)
        slot = 0 if layout.shards is None else _slot(chunk, layout.shards)
        yield ChunkPart(name or _file_of(layout, chunk), slot, chunk, pattern, sum(offsets), outer)


def _by_file(axes: Sequence[list[_Piece]], shards: Shards | None) -> Iterator[tuple[_Piece, ...]]:
    """Yields the chunks, as one piece of each axis, file by file, in C order. Does not store them, because there may be millions."""
    if shards is None:
        yield from itertools.product(*axes)
        return
    for file in itertools.product(*map(_files_of_axis, axes, shards.chunks)):
        yield from itertools.product(*file)


def _files_of_axis(pieces: list[_Piece], chunks: int) -> list[list[_Piece]]:
    """Groups an axis's pieces by file. A file has this many chunks along the axis."""
    return [list(some) for _, some in itertools.groupby(pieces, lambda piece: piece.number // chunks)]


class FileParts:
    """The parts of each file, for callers that provide the range of each file and its place in a result. Used by one thread at a time."""

    def __init__(self, layout: ArrayLayout, lengths: tuple[int, ...]) -> None:
        """`lengths`: the result's length along each axis, including dropped axes."""
        self._layout = layout
        self._region = Region((0,) * len(lengths), lengths, ())
        self._strides = _strides(lengths, layout.dtype.itemsize)
        self._patterns: _Patterns = {}

    def of(self, name: str, ranges: Sequence[tuple[int, int, int]]) -> Iterator[ChunkPart]:
        """Returns a file's parts. `ranges` contains, for each axis, the first element in the file, the count, and the first element in the result."""
        layout = self._layout
        axes = [_pieces(first, length, size, stride, to) for (first, length, to), size, stride in zip(ranges, layout.chunk_shape, self._strides)]
        return _parts(layout, self._region, itertools.product(*axes), self._patterns, name)


def _file_of(layout: ArrayLayout, chunk: tuple[int, ...]) -> str:
    """Returns the name of a chunk's file."""
    if layout.shards is None:
        return layout.chunk_name(chunk)
    return layout.chunk_name(tuple(index // count for index, count in zip(chunk, layout.shards.chunks)))


def _slot(chunk: tuple[int, ...], shards: Shards) -> int:
    slot = 0
    for index, count in zip(chunk, shards.chunks):
        slot = slot * count + index % count
    return slot


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = [itemsize]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * length)
    return tuple(reversed(strides)) if shape else ()


def _pattern(layout: ArrayLayout, region: Region, place: tuple[tuple[int, int], ...]) -> Pattern:
    chunk_shape, itemsize = layout.chunk_shape, layout.dtype.itemsize
    firsts = tuple(first for first, _ in place)
    lengths = tuple(length for _, length in place)
    chunk_strides = _strides(chunk_shape, itemsize)
    target_strides = _strides(region.lengths, itemsize)

    # run_axis and later axes are contiguous in the file and in the result, because all axes after run_axis are completely selected.
    run_axis = len(lengths)
    whole = True
    while whole and run_axis > 0:
        run_axis -= 1
        whole = lengths[run_axis] == chunk_shape[run_axis] == region.lengths[run_axis]
    run_bytes = math.prod(lengths[run_axis:]) * itemsize

    # The span: axes before span_axis are selected by one index each, span_axis by a range, and later axes completely.
    span_axis = 0
    while span_axis < len(lengths) - 1 and lengths[span_axis] == 1:
        span_axis += 1
    span_slices = tuple(
        slice(first, first + length) if axis <= span_axis else slice(0, chunk_shape[axis])
        for axis, (first, length) in enumerate(place)
    )
    start = sum(first * stride for first, stride in zip(firsts, chunk_strides))
    span_offset = sum(s.start * stride for s, stride in zip(span_slices, chunk_strides))
    return Pattern(
        inner=tuple(slice(first, first + length) for first, length in place),
        lengths=lengths,
        run_bytes=run_bytes,
        file_offsets=start + _steps(lengths[:run_axis], chunk_strides[:run_axis]),
        target_offsets=_steps(lengths[:run_axis], target_strides[:run_axis]),
        span_slices=span_slices,
        span_offset=span_offset,
        span_bytes=math.prod(s.stop - s.start for s in span_slices) * itemsize,
    )


def _steps(lengths: tuple[int, ...], strides: tuple[int, ...]) -> Int64Array:
    """Returns the offsets of a box's rows, in C order."""
    offsets = np.zeros(1, dtype=np.int64)
    for length, stride in zip(lengths, strides):
        offsets = np.add.outer(offsets, np.arange(length, dtype=np.int64) * stride).reshape(-1)
    return offsets
