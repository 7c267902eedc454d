"""stream(): yields tensors from files one at a time, and reads ahead in bounded memory.

Tensors are read in batches; each batch is one allocation, and one request per file. The stream never reuses memory: an allocation returns to the
library's allocator once it is unreferenced, and only then is there space for another batch. A tensor that the caller keeps therefore stays valid.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

from .._core.errors import Error, InvalidArgument
from .._core.forks import forkable_lock
from .._core.futures import wait
from .._core.packing import aligned
from .frameworks import Framework, framework_on
from .load_file import Layout, Slices, check_type, check_wanted, part_wanted
from .reads import Flow, Request, check_bytes
from .slices import Part
from .sources import Paths, Source, Sources, StorageOptions, check_names

__all__ = ["Stream", "stream"]

_default_bytes = 512 << 20
_batch_bytes = 64 << 20
_batch_tensors = 1024
_batches = 8  # minimum number of batches in memory: one that is being consumed, and others that are being read
_takes_between_looks = 16  # number of tensors taken from a batch between checks for freed memory and reads to start


def stream(
    files: Paths,
    names: Iterable[str] | None = None,
    *,
    device: Any = "cpu",
    framework: str | None = None,
    slices: Slices | None = None,
    max_device_bytes: int | None = None,
    max_host_bytes: int | None = None,
    storage_options: StorageOptions | None = None,
) -> Stream:
    """Yields the tensors in safetensors files as (name, tensor) pairs in file order, and reads ahead in bounded memory.

    Arguments:

    - `files`, `names`, `device`, `framework`, `slices`, `storage_options`: as for `load_file()`.
    - `max_device_bytes`: the limit on the stream's GPU memory, for tensors read ahead and tensors that you still hold. None means 512 MiB. It has no
      effect on the host.
    - `max_host_bytes`: on the host, the same limit for host memory. For a GPU, the maximum number of bytes in flight, as for `load_file()`.

    The result is an iterator and a context manager. Only one thread at a time may use it; in any other thread, it raises `InvalidArgument`, and the
    stream continues.

    Tensors are views of allocations of up to 1/8 of the limit (at most 64 MiB). An allocation lives as long as any of its tensors, and the stream
    never reuses it. A tensor that you keep therefore stays valid, and its whole allocation counts towards the limit. If your tensors use up the
    limit, the stream continues with one tensor at a time, and exceeds the limit by at most that tensor. A tensor larger than the limit is read alone.

    `close()`, the end of a `with` block, an error, or leaving the loop stops the reads and frees tensors that you do not hold. The stream does not
    wait for your CUDA stream, except before it reads into memory that was in use there.

    Raises:

    - immediately, the errors of `load_file()` for files, names and device.
    - when it reaches the tensor, a read error or an error in `slices`, which names the file and the tensor, and ends the stream.
    """
    return Stream(files, names, framework_on(framework, device), slices, max_device_bytes, max_host_bytes, storage_options)


class Stream:
    """The iterator that `stream()` returns."""

    def __init__(
        self,
        files: Paths,
        names: Iterable[str] | None,
        place: Framework,
        slices: Slices | None,
        max_device_bytes: int | None,
        max_host_bytes: int | None,
        storage_options: StorageOptions | None = None,
    ) -> None:
        limits = _limits(place, max_device_bytes, max_host_bytes)
        sources = Sources(files, [place.device] if ":" in place.device else [], storage_options)
        try:
            wanted = check_names(names)
            check_wanted(sources.files, wanted, slices)
            tensors = _tensors(sources, place, wanted)
            self._left = len(tensors)
            self._flow = _Flow(_plan(tensors, place, slices), place, limits)
        except BaseException:
            sources.close()
            raise
        self._turn = forkable_lock()
        # Also runs when the interpreter exits. Refers only to the batches, because the flow refers to `slices`, which may refer to the stream.
        self._end = weakref.finalize(self, _end, self._flow.ahead, sources)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> tuple[str, Any]:
        if not self._turn.acquire(blocking=False):
            problem = "another thread is using this stream: only one thread at a time may use it"
            raise InvalidArgument(problem, code="invalid_argument")
        try:
            return self._take()
        finally:
            self._turn.release()

    def _take(self) -> tuple[str, Any]:
        try:
            found = self._flow.take() if self._end.alive else None
        except BaseException:
            self.close()
            raise
        if found is None:
            self.close()
            raise StopIteration
        self._left -= 1
        return found

    def __length_hint__(self) -> int:
        """Returns the number of remaining tensors, provided that no error occurs. Progress bars can call `operator.length_hint()`."""
        return self._left if self._end.alive else 0

    def close(self) -> None:
        """Stops the reads, frees tensors that you do not hold, and closes the files. Tensors that you hold stay valid. A second call does nothing."""
        self._end()
        self._flow.forget()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


class _Limits(NamedTuple):
    """Limits in bytes."""

    memory: int
    under_way: int | None

    @property
    def batch(self) -> int:
        most = min(_batch_bytes, self.memory // _batches)
        return most if self.under_way is None else min(most, self.under_way // 2)


def _limits(place: Framework, max_device_bytes: int | None, max_host_bytes: int | None) -> _Limits:
    check_bytes("max_device_bytes", max_device_bytes, 1)
    if place.device in ("host", "cpu"):
        return _Limits(check_bytes("max_host_bytes", max_host_bytes, 1) or _default_bytes, None)
    return _Limits(max_device_bytes or _default_bytes, check_bytes("max_host_bytes", max_host_bytes))


def _end(ahead: deque[_Batch], sources: Sources) -> None:
    """Stops all reads. Once it returns, nothing accesses the memory."""
    futures = [each.future for batch in ahead for each in batch.requests]
    ahead.clear()
    try:
        for future in reversed(futures):  # the last first: cancelling a read may start the next one
            future.cancel()
        wait(futures)
    finally:
        sources.close()


class _Item(NamedTuple):
    """A tensor to read."""

    source: Source
    row: int
    dtype: Any
    part: Part | None  # None: the whole tensor
    nbytes: int  # bytes of memory, including the copy if the part is cut

    @property
    def end(self) -> int:
        """The tensor's end in the file."""
        return self.source.header.offsets[self.row] + self.source.header.sizes[self.row]


def _item(source: Source, row: int, dtype: Any, part: Part | None) -> _Item:
    if part is None:
        return _Item(source, row, dtype, part, aligned(source.header.sizes[row]))
    return _Item(source, row, dtype, part, aligned(part.nbytes) * (1 if part.cut is None else 2))


_Tensor = tuple[Source, int, Any, tuple[int, ...]]  # source, row, and the library's type and shape


def _tensors(sources: Sources, place: Framework, names: set[str] | None) -> list[_Tensor]:
    """Returns the tensors to stream. Raises SafetensorError if the library lacks a type."""
    found = []
    for source in sources:
        header = source.header
        for row in source.rows_of(names):
            word = header.types[row]
            dtype = place.dtype(word)
            found.append((source, row, dtype, check_type(source.name, header.names[row], word, header.shapes[row], place, dtype)))
    return found


def _plan(tensors: Iterable[_Tensor], place: Framework, slices: Slices | None) -> Iterator[_Item]:
    """Plans each tensor just before it is read, because there may be many ranges in all slices together."""
    return (_item(source, row, dtype, _part(source, row, shape, place, slices)) for source, row, dtype, shape in tensors)


def _part(source: Source, row: int, shape: tuple[int, ...], place: Framework, slices: Slices | None) -> Part | None:
    if slices is None:
        return None
    header = source.header
    return part_wanted(source, header.names[row], header.types[row], shape, slices, exact=not place.indexes)


class _Flow:
    """Reads ahead and returns tensors. Used by one thread at a time."""

    def __init__(self, plan: Iterator[_Item], place: Framework, limits: _Limits) -> None:
        self._groups = _grouped(plan, limits.batch)
        self._items: list[_Item] = []  # the next ones, which have no memory yet
        self._nbytes = 0  # of these
        self._problem: Exception | None = None  # why there are no further ones
        self._place = place
        self._limits = limits
        self._reads = Flow(None, limits.under_way)
        self._held = _Held()
        self.ahead: deque[_Batch] = deque()
        self._current: _Batch | None = None
        self._taken = 0  # tensors taken from the current batch
        self._is_short = False  # out of memory; stays True until the current batch is consumed

    def take(self) -> tuple[str, Any] | None:
        """Returns the next tensor, or None at the end."""
        if self._taken <= 1 or self._taken % _takes_between_looks == 0:  # by the second tensor, the caller may have freed the previous batch
            self._read_on()
        if self._current is None:
            if not self.ahead:
                if self._problem is not None:
                    raise self._problem
                return None
            batch = self.ahead[0]
            batch.start(self._reads)
            self._start_settled()
            batch.wait()
            self._current, self._taken = self.ahead.popleft(), 0
        self._taken += 1
        found = self._current.take(self._held)
        if self._current.is_consumed():  # the caller now owns the memory
            self.forget()
        return found

    def forget(self) -> None:
        """Drops the current batch."""
        self._current = None
        self._taken = 0
        self._is_short = False

    def _coming(self) -> list[_Item]:
        if not self._items and self._problem is None:
            try:
                self._items = next(self._groups, [])
                self._nbytes = sum(each.nbytes for each in self._items)
            except Exception as problem:  # `slices` may raise any exception, which is raised after all earlier tensors have been returned
                self._problem = problem
        return self._items

    def _read_on(self) -> None:
        """Allocates as many batches as memory allows, and starts their reads."""
        while (items := self._coming()) and not self._is_short:
            self._held.look()
            idle = self._current is None and not self.ahead
            if self._held.nbytes + self._nbytes > self._limits.memory:
                if not idle:
                    break
                items = items[:1]
            if not self._begin(items, idle):
                break
        self._start_settled()

    def _begin(self, items: list[_Item], idle: bool) -> bool:
        """Allocates a batch. Returns False if the device is currently out of memory. `idle`: nothing else holds memory, so waiting would not help."""
        try:
            batch = _Batch(items, self._place)
        except (MemoryError, RuntimeError, Error):  # PyTorch's OutOfMemoryError is a RuntimeError
            if not idle:
                self._is_short = True
                return False
            if len(items) == 1:
                raise
            return self._begin(items[:1], idle)
        self._held.add(batch.nbytes, batch.held)
        self.ahead.append(batch)
        self._items = self._items[len(items) :]
        self._nbytes -= batch.nbytes
        return True

    def _start_settled(self) -> None:
        """Starts the reads of batches whose memory may be written to."""
        for batch in self.ahead:
            if not batch.started and not batch.settled():
                return
            batch.start(self._reads)


def _grouped(plan: Iterator[_Item], most_bytes: int) -> Iterator[list[_Item]]:
    """Yields the tensors of each batch."""
    group: list[_Item] = []
    nbytes = 0
    try:
        for item in plan:
            if group and (len(group) == _batch_tensors or nbytes + item.nbytes > most_bytes):
                yield group
                group, nbytes = [], 0
            group.append(item)
            nbytes += item.nbytes
    except Exception:  # of the tensor after those in the group
        if group:
            yield group
        raise
    if group:
        yield group


class _Batch:
    """Tensors that are read together, into one allocation."""

    def __init__(self, items: list[_Item], place: Framework) -> None:
        self.left: list[tuple[str, Any]] = []  # in reverse order
        self.started = False
        self._items = items
        self._place = place
        self._layout = _laid_out(items, place)
        self._arena = place.unsettled_arena(self._layout.nbytes)
        self.requests: list[Request] = []
        self._problem: Error | None = None  # of the tensor after those in `left`
        self.nbytes = sum(each.nbytes for each in items)
        self.held = self._arena.held() if self._layout.nbytes else lambda: False

    def settled(self) -> bool:
        return self._arena.settled()

    def start(self, reads: Flow) -> None:
        """Starts reading, after waiting for the work that was queued on the current stream at allocation."""
        if self.started:
            return
        self.started = True
        self._arena.settle()
        try:
            for source, ranges in self._layout.taken_ranges():
                if ranges.sizes:
                    self.requests.append(reads.add(source, self._arena.memory, ranges))
        except Error as problem:  # raised when it is this tensor's turn
            self._problem = problem
            return
        found: dict[str, Any] = {}
        self._arena.views(self._layout.rows(), found)
        self.left = list(reversed(found.items()))

    def wait(self) -> None:
        """Waits for the reads. After an error, only the tensors before the one that failed are left."""
        for each in self.requests:
            try:
                each.check()
            except Error as problem:
                self._problem = problem
                good = next(i for i, item in enumerate(self._items) if item.source is each.source and item.end > (problem.offset or 0))
                del self.left[: len(self.left) - good]
                return

    def is_consumed(self) -> bool:
        return not self.left and self._problem is None

    def take(self, held: _Held) -> tuple[str, Any]:
        """Returns the next tensor. Raises the error of the first one that could not be read."""
        if not self.left:
            assert self._problem is not None
            raise self._problem
        name, tensor = self.left.pop()
        self._arena.use()
        cut = self._layout.cuts.get(name)
        return name, tensor if cut is None else self._cut(tensor[cut], held)

    def _cut(self, part: Any, held: _Held) -> Any:
        """Returns a copy in its own allocation."""
        arena = self._place.unsettled_arena(part.nbytes)
        if part.nbytes:
            held.add(part.nbytes, arena.held())
        return self._place.library.copied_into(arena, part)


def _laid_out(items: list[_Item], place: Framework) -> Layout:
    layout = Layout(place)
    for (source, whole), group in itertools.groupby(items, lambda each: (each.source, each.part is None)):
        if whole:
            layout.add_whole(source, [each.row for each in group])
        else:
            for each in group:
                assert each.part is not None
                layout.add_part(source, each.row, each.dtype, each.part)
    return layout


class _Held:
    """Allocated memory that is still referenced."""

    _looks = 64  # checks per call, so that callers that keep thousands of tensors do not wait for a check of each one

    def __init__(self) -> None:
        self.nbytes = 0
        self._every: deque[tuple[int, Callable[[], bool]]] = deque()

    def add(self, nbytes: int, held: Callable[[], bool]) -> None:
        self.nbytes += nbytes
        self._every.append((nbytes, held))

    def look(self) -> None:
        """Subtracts memory that has been freed since the last call."""
        for _ in range(min(self._looks, len(self._every))):
            nbytes, held = self._every.popleft()
            if held():
                self._every.append((nbytes, held))
            else:
                self.nbytes -= nbytes


Stream.__module__ = "penstock.safetensors"  # its public home, which pickles name
