"""Reads chunks that the CPU decodes: reads batches into host memory, decodes them in threads, and stores them in the result."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

import numpy as np

import penstock
from penstock._core.batches import in_batches
from penstock.zarr._chunk_plan import ArrayLayout, ChunkPart
from penstock.zarr._codecs import decode
from penstock.zarr._limits import most_encoded
from penstock.zarr._reads import Outcome, Pending, Read, run_in_order, start_reads
from penstock.zarr._stored import ChunkFiles, StoredChunk, damaged, groups
from penstock.zarr._targets import Target
from penstock.zarr._threads import Pool

__all__ = ["MOST_DECODED_BYTES", "Failures", "chunks_in_groups", "decode_alone", "read_coded", "threads"]

# The decoded size of a group of chunks in bytes (larger only if a single chunk is), and the number of groups in progress: one is being read, one
# decoded and one copied to the device. Peak memory is three times this size plus the encoded bytes of three groups. A group's encoded bytes exceed
# this size by at most a quarter, because incompressible data grows slightly when it is encoded.
MOST_DECODED_BYTES = 64 << 20
_GROUPS_UNDER_WAY = 3

_MOST_THREADS = 64
_TASKS_PER_THREAD = 4  # per group, because chunks take different times to decode

def threads() -> int:
    """Returns the number of decoder threads: one per core that the process may use."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


_decoders = Pool(threads(), "penstock-zarr-decode")


class Failures:
    """Collects damaged chunks. The other chunks are still read before the first failure is raised."""

    def __init__(self) -> None:
        self._first: penstock.InvalidArgument | None = None
        self._others = 0

    def add(self, chunk: StoredChunk, error: Exception) -> None:
        """Records a damaged chunk by name. Only one thread at a time may call this."""
        if self._first is not None:
            self._others += 1
            return
        self._first = damaged(f"{chunk.words}: {error}", chunk.path)
        self._first.__cause__ = error

    def check(self) -> None:
        """Raises InvalidArgument if a chunk was damaged."""
        if self._first is None:
            return
        if self._others:
            more = damaged(f"{self._first} (and {self._others} more chunks)", self._first.filename)
            raise more from self._first.__cause__
        raise self._first


def read_coded(layout: ArrayLayout, parts: Iterable[ChunkPart], target: Target, box: Any) -> None:
    """Fills the target, which must be an array. Raises the errors of load()."""
    files = ChunkFiles(layout)
    failures = Failures()
    memory = _Memory(_Spare(lambda nbytes: np.empty(nbytes, np.uint8)), _Spare(target.staging))
    some_chunks = chunks_in_groups(layout, files, parts, target, box, MOST_DECODED_BYTES, layout.chunk_bytes, lambda chunk: chunk.size)
    run_in_order((_Group(layout, files, some, target, box, memory, failures) for some in some_chunks), _GROUPS_UNDER_WAY)
    failures.check()


def chunks_in_groups(
    layout: ArrayLayout, files: ChunkFiles, parts: Iterable[ChunkPart], target: Target, box: Any,
    most_bytes: int, decoded: int, encoded: Callable[[StoredChunk], int],
) -> Iterator[list[StoredChunk]]:  # fmt: skip
    """Yields chunks in groups whose decoded and encoded bytes (plus a quarter) are bounded. Fills the parts of missing chunks."""
    for some in groups(parts, most_bytes, lambda part: decoded):
        chunks, missing = files.find(some)
        for part in missing:
            target.fill(box, part, layout.fill_value)
        for chunk in chunks:
            _check_size(layout, chunk)
        yield from in_batches(chunks, most_bytes + most_bytes // 4, encoded)


def _check_size(layout: ArrayLayout, chunk: StoredChunk) -> None:
    """Raises InvalidArgument if a chunk is larger than any codec's output can be."""
    most = most_encoded(layout.chunk_bytes)
    if chunk.size > most:
        raise damaged(f"{chunk.words} has {chunk.size} bytes, but an encoded chunk of this array has at most {most}", chunk.path)


def decode_alone(layout: ArrayLayout, part: ChunkPart, data: Any) -> Any:
    """Decodes one chunk and returns the selected part as a NumPy array in stored_dtype, valid until this thread decodes another chunk.

    Raises ValueError if the bytes are damaged.
    """
    found = decode(layout.codecs, data, _scratch(layout.chunk_bytes))
    return _as_chunk(layout, found)[part.pattern.inner]


def _as_chunk(layout: ArrayLayout, found: np.ndarray[Any, Any]) -> Any:
    stored_shape = tuple(layout.chunk_shape[axis] for axis in layout.stored_axes)
    return found.view(layout.stored_dtype).reshape(stored_shape).transpose(np.argsort(layout.stored_axes))


_of_thread = threading.local()


def _scratch(nbytes: int) -> np.ndarray[Any, Any]:
    """Returns this thread's scratch memory, which the next chunk reuses."""
    kept: np.ndarray[Any, Any] | None = getattr(_of_thread, "scratch", None)
    if kept is None or len(kept) != nbytes:
        kept = _of_thread.scratch = np.empty(nbytes, np.uint8)
    return kept


class _Spare:
    """Keeps the host memory of finished groups for later groups, because new memory costs a page fault per page."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._free: list[Any] = []

    def take(self, nbytes: int) -> Any:
        """Returns at least this many bytes of memory."""
        for number, memory in enumerate(self._free):
            if len(memory) >= nbytes:
                return self._free.pop(number)
        if self._free:
            self._free.pop()  # too small, so drop it
        return self._make(nbytes)

    def give(self, memory: Any) -> None:
        """Takes back memory that is no longer in use."""
        self._free.append(memory)


class _Memory(NamedTuple):
    encoded: _Spare
    decoded: _Spare  # memory that the device can copy from quickly


class _Group:
    """A group of chunks, from opening their files to storing their elements in the result."""

    def __init__(
        self, layout: ArrayLayout, files: ChunkFiles, chunks: list[StoredChunk], target: Target, box: Any, memory: _Memory, failures: Failures
    ) -> None:
        self._layout = layout
        self._files = files
        self._target = target
        self._box = box
        self._memory = memory
        self._failures = failures
        self._tasks: list[Future[list[tuple[StoredChunk, Exception]]]] = []
        self._decoding = threading.Event()
        self._problem: BaseException | None = None
        self._chunks = chunks
        self._encoded = memory.encoded.take(sum(chunk.size for chunk in self._chunks))
        self._starts = _starts([chunk.size for chunk in self._chunks])
        self._make_places()
        self._pending: Pending | None = None
        self._closed = False  # True: no further task may start
        self._lock = threading.Lock()  # guards _closed and the list of tasks

    def start(self) -> None:
        """Starts the reads; the chunks are decoded when the reads complete."""
        reads = [Read(chunk.file, self._encoded, chunk.offset, chunk.size, at) for chunk, at in zip(self._chunks, self._starts)]
        self._pending = start_reads(reads)
        self._pending.when_done(self._decode)

    def _make_places(self) -> None:
        """Chooses where parts are decoded: in the result or, for a device, in memory that is then copied there, with contiguous parts first."""
        if self._target.on_host:
            return
        self._chunks.sort(key=lambda chunk: chunk.part.pattern.runs > 1)
        sizes = [math.prod(chunk.part.pattern.lengths) * self._target.dtype.itemsize for chunk in self._chunks]
        self._starts = _starts([chunk.size for chunk in self._chunks])
        self._places = _starts(sizes)
        self._sizes = sizes
        self._decoded = self._memory.decoded.take(sum(sizes))

    def _decode(self, outcomes: list[Outcome]) -> None:
        """Passes the chunks to the decoders. Runs on the thread that completes the reads."""
        try:
            step = max(1, -(-len(outcomes) // (threads() * _TASKS_PER_THREAD)))
            with self._lock:
                for first in range(0, 0 if self._closed else len(outcomes), step):
                    self._tasks.append(_decoders.submit(self._decode_some, range(first, min(first + step, len(outcomes))), outcomes))
        except BaseException as error:  # a thread could not be started
            self._problem = error
        finally:
            self._decoding.set()

    def _decode_some(self, numbers: range, outcomes: list[Outcome]) -> list[tuple[StoredChunk, Exception]]:
        failed: list[tuple[StoredChunk, Exception]] = []
        for number in numbers:
            chunk, outcome = self._chunks[number], outcomes[number]
            if isinstance(outcome, BaseException):
                raise outcome
            try:
                if outcome != chunk.size:
                    raise ValueError(f"truncated while being read: {outcome} of {chunk.size} bytes")
                self._decode_one(number, chunk)
            except ValueError as error:
                failed.append((chunk, error))
        return failed

    def _decode_one(self, number: int, chunk: StoredChunk) -> None:
        layout, part = self._layout, chunk.part
        data = self._encoded[self._starts[number] : self._starts[number] + chunk.size]
        place = self._piece(number, part)
        whole = part.pattern.lengths == layout.chunk_shape and layout.in_order and layout.stored_dtype == self._target.dtype
        if whole and place.flags.c_contiguous:
            flat = place.reshape(-1).view(np.uint8)
            found = decode(layout.codecs, data, flat)
            if found is not flat:
                flat[...] = found
            return
        place[...] = decode_alone(layout, part, data)

    def _piece(self, number: int, part: ChunkPart) -> Any:
        """Returns the memory for a chunk's part, as an array."""
        if self._target.on_host:
            return self._box[part.outer + (...,)]  # a view, even if there are no axes
        at = self._places[number]
        return self._decoded[at : at + self._sizes[number]].view(self._target.dtype).reshape(part.pattern.lengths)

    def finish(self) -> None:
        """Waits until the group has been stored in the result. Raises read errors; records damaged chunks."""
        bad: set[int] = set()
        self._decoding.wait()
        self._files.close(self._chunks)
        wait(self._tasks)  # waits for all tasks before raising one's error
        for task in self._tasks:
            for chunk, error in task.result():
                self._failures.add(chunk, error)
                bad.add(id(chunk))
        if self._problem is not None:
            raise self._problem
        if not self._target.on_host:
            self._upload(bad)
            self._memory.decoded.give(self._decoded)
        self._memory.encoded.give(self._encoded)

    def _upload(self, bad: set[int]) -> None:
        """Copies decoded parts to the device. Adjacent parts are combined into one copy; parts with scattered rows are copied through device
        memory."""
        apart = [number for number, chunk in enumerate(self._chunks) if chunk.part.pattern.runs > 1]
        whole = len(self._chunks) - len(apart)
        self._upload_whole([number for number in range(whole) if id(self._chunks[number]) not in bad])
        if not apart:
            return
        start = self._places[apart[0]]
        nbytes = sum(self._sizes) - start
        there = self._target.scratch(nbytes)
        self._target.settle()
        penstock.copy(there, self._decoded[start : start + nbytes])
        for number in apart:
            chunk, at = self._chunks[number], self._places[number] - start
            if id(chunk) not in bad:
                rows = self._target.as_elements(there[at : at + self._sizes[number]], chunk.part.pattern.lengths)
                self._target.assign(self._box, chunk.part, rows)

    def _upload_whole(self, numbers: list[int]) -> None:
        run: list[int] | None = None  # source offset, target offset, length
        for number in numbers:
            here, there, size = self._places[number], self._chunks[number].part.target_offset, self._sizes[number]
            if run is not None and (here, there) == (run[0] + run[2], run[1] + run[2]):
                run[2] += size
                continue
            self._copy(run)
            run = [here, there, size]
        self._copy(run)

    def _copy(self, run: list[int] | None) -> None:
        if run is not None:
            here, there, size = run
            penstock.copy(self._target.memory[there : there + size], self._decoded[here : here + size])

    def abandon(self) -> None:
        """Waits until none of the group's operations is in progress. Ctrl-C may have interrupted start() or finish() at any point."""
        if self._pending is not None:
            self._pending.end()
        with self._lock:
            self._closed = True
        wait(self._tasks)
        self._files.close(self._chunks)


def _starts(sizes: list[int]) -> list[int]:
    starts = [0]
    for size in sizes[:-1]:
        starts.append(starts[-1] + size)
    return starts[: len(sizes)]
