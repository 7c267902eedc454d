"""Reads tensors ahead: each batch of reads includes the next tensors before the program requests them."""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Numbers
from typing import Any

from .. import _native
from .._core.errors import Error
from .frameworks import Framework, framework_on
from .load_file import check_type
from .reads import Ranges, Reads
from .slices import Part
from .sources import Source

__all__ = ["Ahead", "Sequence", "most_ahead_bytes", "natural_order"]

_batch_bytes = 64 << 20
_batch_tensors = 1024
_default_ahead_bytes = 512 << 20
_near = 8  # positions: a request this close after the last one counts as predicted, even if several threads interleave


def most_ahead_bytes() -> int:
    """Returns the limit on bytes read ahead per device, across all files: PENSTOCK_SAFETENSORS_AHEAD_MIB."""
    told = os.environ.get("PENSTOCK_SAFETENSORS_AHEAD_MIB", "")
    return int(told) << 20 if told.isascii() and told.isdigit() else _default_ahead_bytes


class Ahead:
    """Read-ahead from one file into one PyTorch device. Thread-safe."""

    def __init__(
        self,
        source: Source,
        device: Any,
        rows_of: Mapping[int, Part] | None = None,
        least_bytes: int = 0,
        sequence: Sequence | None = None,
    ) -> None:
        """Adds the file to the sequence.

        - `device`: a torch.device with an index.
        - `rows_of`: for some tensors, the rows to read, which must be contiguous bytes.
        - `least_bytes`: smaller tensors are not read ahead.
        - `sequence`: the sequence that the file belongs to; None for a standalone file.
        """
        self.source = source
        self._device = device
        self._pieces = _Pieces(source, rows_of or {})
        self._place: Framework = framework_on("pt", device)
        self._waiting: dict[int, _Batch] = {}  # tensors that have been or are being read, but have not been requested, by row
        self._waiting_bytes = 0
        self._asked = {row for row, nbytes in enumerate(source.header.sizes) if nbytes < least_bytes}
        self._sequence = Sequence(device) if sequence is None else sequence
        self._lock = self._sequence.lock
        self.first = self._sequence.add(self)  # the number of its first tensor

    def take(self, row: int) -> Any:
        """Returns the tensor, with the file's type. Blocks until it is read. The caller becomes its only owner."""
        with self._lock:
            batch = self._waiting.pop(row, None)
            if batch is not None:
                self._waits_for(-self._pieces.nbytes(row))
            self._asked.add(row)
        was_waiting = batch is not None
        if batch is None:
            batch = self._batch([row])
            batch.start()
        with self._lock:
            following = self._sequence.read_on(self, row, was_waiting)
        if following:
            self._start_following(following)
        try:
            tensor = batch.take(row)
        except (Error, RuntimeError):
            if not was_waiting:
                raise
            return self.take_all([row])[row]  # it could not be read together with its neighbours
        batch.used_in_current_stream(tensor)
        return tensor

    def take_all(self, rows: Numbers[int]) -> dict[int, Any]:
        """Returns several tensors, read in one batch."""
        batch = self._batch(rows)
        batch.start()
        return {row: batch.take(row) for row in rows}

    def begin(self, rows: Numbers[int]) -> None:
        """Starts reading only these tensors. take() returns each of them."""
        with self._lock:
            self._asked.update(set(range(len(self.source.header))).difference(rows))
            batches = self.wait_for([row for row in rows if row not in self._waiting])
        for each in batches:
            each.start()

    def _start_following(self, batches: Iterable[_Batch]) -> None:
        """Starts batches of read-ahead. If there is no memory for one of them, drops all that was read ahead."""
        try:
            for each in batches:
                each.start()
        except (Error, RuntimeError):  # such as PyTorch's OutOfMemoryError: the requested tensor is already there
            with self._lock:
                self._sequence.give_up()

    def forget(self, row: int) -> None:
        """Drops a tensor that will not be requested on this device."""
        with self._lock:
            self._drop(row)
            self._asked.add(row)

    def drop(self) -> None:
        """Drops all tensors read ahead."""
        with self._lock:
            self.drop_all()

    def end(self) -> None:
        """Stops reading ahead."""
        with self._lock:
            self.drop_all()
            self._asked.update(range(len(self.source.header)))

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def nbytes(self, row: int) -> int:
        """Returns the number of bytes to read for the tensor."""
        return self._pieces.nbytes(row)

    # --- with the sequence's lock held

    def is_to_come(self, row: int) -> bool:
        """Returns True if the tensor has been neither requested nor read."""
        return row not in self._asked and row not in self._waiting

    def wait_for(self, rows: Iterable[int]) -> list[_Batch]:
        """Returns the batches that read the tensors. The caller starts them once it has released the lock."""
        batches = []
        for group in self._groups(rows):
            batch = self._batch(group)
            batches.append(batch)
            for row in group:
                self._waiting[row] = batch
                self._waits_for(self._pieces.nbytes(row))
        return batches

    def drop_all(self) -> int:
        """Drops all tensors read ahead, and returns their total size in bytes."""
        nbytes = self._waiting_bytes
        for row in list(self._waiting):
            self._drop(row)
        self._sequence.unwanted(nbytes)
        return nbytes

    def _drop(self, row: int) -> None:
        batch = self._waiting.pop(row, None)
        if batch is not None:
            batch.drop(row)
            self._waits_for(-self._pieces.nbytes(row))

    def _waits_for(self, nbytes: int) -> None:
        """Adds to the count of waiting bytes; nbytes may be negative."""
        self._waiting_bytes += nbytes
        self._sequence.waits_for(nbytes)

    def _groups(self, rows: Iterable[int]) -> Iterator[list[int]]:
        group: list[int] = []
        nbytes = 0
        for row in rows:
            if group and (nbytes >= _batch_bytes or len(group) >= _batch_tensors):
                yield group
                group, nbytes = [], 0
            group.append(row)
            nbytes += self._pieces.nbytes(row)
        if group:
            yield group

    def _batch(self, rows: Numbers[int]) -> _Batch:
        return _Batch(self._pieces, self._place, self._device, rows)


class Sequence:
    """The tensors of files that belong together, in each order in which a program may request them. Does not keep files open."""

    def __init__(self, device: Any) -> None:
        self.lock = threading.Lock()
        self._device = device
        self._files: list[weakref.ref[Ahead]] = []
        self._starts: list[int] = []  # global number of each file's first tensor
        self._file_of: list[int] = []  # by global tensor number
        self._names: list[str] = []  # by global tensor number, for sorting; arbitrary for a closed file
        self._last: int | None = None
        self._orders: list[_Order] = []
        self._steps = 0.0  # average step from one tensor to the next, with recent steps weighted most
        self._waiting_bytes = 0
        self._has_lost = self._counts_anew = False
        self._depth = 0  # bytes to keep waiting: 0 until two tensors have been requested in a known order
        self._unwanted_bytes = 0
        self._wanted_bytes = 0
        _Neighbours.of(device).add(self)

    def add(self, file: Ahead) -> int:
        """Adds a file, and returns the number of its first tensor. Add files that are opened together in name order."""
        with self.lock:
            start = len(self._file_of)
            self._file_of += [len(self._files)] * len(file.source.header)
            self._starts.append(start)
            self._files.append(weakref.ref(file, self._lose))
            for each in self._orders:
                each.clear()
            return start

    @property
    def has_lost(self) -> bool:
        """True if some of the files are closed."""
        return self._has_lost

    @property
    def waiting_bytes(self) -> int:
        """The total bytes of tensors that have been or are being read, but have not been requested."""
        return self._waiting_bytes

    def _lose(self, _: weakref.ref[Ahead]) -> None:
        """Records that a file is gone, with all its waiting tensors. May be called at any point and under any lock."""
        self._has_lost = self._counts_anew = True

    # --- with the lock held

    def read_on(self, file: Ahead, row: int, was_waiting: bool) -> list[_Batch]:
        """Returns the batches that read the next tensors, after one was requested. The caller starts them once it has released the lock."""
        nbytes = file.nbytes(row)
        if was_waiting:
            self._wanted_bytes += nbytes
        most = most_ahead_bytes()
        order = self._foreseen(file.first + row)
        if order is None or not most:
            return []
        if self._unwanted_bytes > _batch_bytes + self._wanted_bytes:  # the program requests few of the tensors
            return []
        self._depth = min(most, max(_batch_bytes, 2 * nbytes, self._depth * 2 if was_waiting else self._depth))
        if self._counts_anew:
            self._counts_anew = False
            self._waiting_bytes = sum(each.waiting_bytes for each in self._living())
        room = self._depth - self._waiting_bytes
        if room < min(self._depth // 2, _batch_bytes):
            return []
        rows = self._next(order, file.first + row, room)
        _Neighbours.of(self._device).make_room(self, sum(each.nbytes(number) for each, number in rows), most)
        found: list[_Batch] = []
        for each, group in itertools.groupby(rows, key=lambda found: found[0]):
            found += each.wait_for([number for _, number in group])
        return found

    def give_up(self) -> None:
        """Drops all tensors read ahead, and starts again with few."""
        self.drop_all()
        self._depth = 0

    def waits_for(self, nbytes: int) -> None:
        """Adds to the count of waiting bytes; nbytes may be negative."""
        self._waiting_bytes += nbytes

    def unwanted(self, nbytes: int) -> None:
        """Counts bytes that were read but then dropped."""
        self._unwanted_bytes += nbytes
        for each in self._orders:
            each.forget_begun()

    def drop_all(self) -> int:
        return sum(each.drop_all() for each in self._living())

    def _living(self) -> Iterator[Ahead]:
        return (file for each in self._files if (file := each()) is not None)

    def _foreseen(self, number: int) -> _Order | None:
        """Returns the order in which the program requests tensors, or None if it is not known yet."""
        last, self._last = self._last, number
        if last is None:
            return None
        if not self._orders:
            self._orders = [_Order(self._as_they_lie), _Order(self._by_name)]
        self._steps = self._steps * 0.9 + 1
        for each in self._orders:
            each.score = each.score * 0.9 + (0 < each.rank(number) - each.rank(last) <= _near)
        best = max(self._orders, key=lambda each: each.score)
        return best if best.score >= self._steps / 2 else None

    def _as_they_lie(self) -> Numbers[int]:
        return range(len(self._file_of))

    def _by_name(self) -> Numbers[int]:
        for number in range(len(self._names), len(self._file_of)):
            at = self._file_of[number]
            file = self._files[at]()
            self._names.append("" if file is None else natural_order(file.source.header.names[number - self._starts[at]]))
        return sorted(range(len(self._names)), key=self._names.__getitem__)

    def _next(self, order: _Order, number: int, room: int) -> list[tuple[Ahead, int]]:
        """Returns the tensors that follow, up to `room` bytes."""
        found: list[tuple[Ahead, int]] = []
        for each in order.not_begun_after(number):
            at = self._file_of[each]
            file, row = self._files[at](), each - self._starts[at]
            if file is not None and file.is_to_come(row):
                room -= file.nbytes(row)
                if room < 0:
                    break
                found.append((file, row))
            order.has_begun(each)
        return found


class _Pieces:
    """The part of each tensor to read: all of it, or some rows."""

    def __init__(self, source: Source, rows_of: Mapping[int, Part]) -> None:
        self.source = source
        self._rows_of = rows_of

    def nbytes(self, row: int) -> int:
        part = self._rows_of.get(row)
        return self.source.header.sizes[row] if part is None else part.nbytes

    def offset(self, row: int) -> int:
        part = self._rows_of.get(row)
        return self.source.header.offsets[row] + (part.starts[0] if part is not None and part.starts else 0)

    def shape(self, row: int) -> tuple[int, ...]:
        part = self._rows_of.get(row)
        return self.source.header.shapes[row] if part is None else part.shape


class _Batch:
    """Several tensors, each with its own allocation, that one request fills. Thread-safe.

    The first thread that needs one of them allocates all of them and starts the reads. Neither is done under a lock, because both may wait.
    """

    def __init__(self, pieces: _Pieces, place: Framework, device: Any, rows: Numbers[int]) -> None:
        self._pieces, self._place, self._device = pieces, place, device
        self._lock = threading.Lock()  # of the next two
        self._rows = dict.fromkeys(rows)  # the tensors that are still wanted, in order
        self._is_begun = False
        self._started = threading.Event()
        self._tensors: dict[int, Any] = {}
        self._reads: Reads | None = None
        self._problem: Exception | None = None
        self._stream: Any = None

    def start(self) -> None:
        """Allocates the tensors and starts the reads. If another thread does so, waits until it has. Raises the error of either on every call."""
        if self._begins():
            try:
                self._begin()
            except BaseException as problem:
                self._problem = problem if isinstance(problem, Exception) else Error("the thread that read ahead was interrupted")
                raise
            finally:
                self._started.set()
        else:
            self._started.wait()
            if self._problem is not None:
                raise self._problem

    def take(self, row: int) -> Any:
        """Returns a tensor, and gives it up. Blocks until the batch is read. Raises the error of the batch on every call."""
        if not self._started.is_set():
            self.start()
        reads = self._reads
        if reads is not None:
            try:
                reads.wait()
            except Error as problem:
                self._problem = problem
            self._reads = None
        if self._problem is not None:
            raise self._problem
        return self._tensors.pop(row)

    def drop(self, row: int) -> None:
        """Discards a tensor that will not be taken."""
        with self._lock:
            self._rows.pop(row)
        self._tensors.pop(row, None)

    def _begins(self) -> bool:
        with self._lock:
            is_begun, self._is_begun = self._is_begun, True
            return not is_begun

    def used_in_current_stream(self, tensor: Any) -> None:
        """Notifies the allocator if the tensor is used on a different stream from the one that was current when reading started."""
        if self._stream is None:
            return
        import torch

        current = torch.cuda.current_stream(tensor.device)
        if current != self._stream:
            tensor.record_stream(current)

    def _begin(self) -> None:
        import torch

        pieces, source, header = self._pieces, self._pieces.source, self._pieces.source.header
        with self._lock:
            rows = list(self._rows)
        self._stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        tensors: dict[int, Any] = {}
        for row in rows:
            dtype = self._place.dtype(header.types[row])
            shape = check_type(source.name, header.names[row], header.types[row], pieces.shape(row), self._place, dtype)
            tensors[row] = torch.empty(shape, dtype=dtype, device=self._device)
        if self._stream is not None:
            self._stream.synchronize()  # work that is still queued in the stream may use the memory
        filled = [row for row in rows if pieces.nbytes(row)]
        if filled:
            addresses = [tensors[row].data_ptr() for row in filled]
            begin = min(addresses)
            end = max(address + pieces.nbytes(row) for address, row in zip(addresses, filled))
            ranges = Ranges()
            ranges.add_all([pieces.offset(row) for row in filled], [pieces.nbytes(row) for row in filled], [each - begin for each in addresses])
            reads = Reads()
            reads.start(source, _native.Pointer(begin, end - begin, tuple(tensors.values())), ranges)
            self._reads = reads
        with self._lock:
            self._tensors = {row: tensor for row, tensor in tensors.items() if row in self._rows}


class _Order:
    """One order in which a program may request the tensors, by their numbers."""

    def __init__(self, made: Callable[[], Numbers[int]]) -> None:
        self._made = made  # returns the order of the tensors in all files added so far
        self._numbers: Numbers[int] | None = None
        self._ranks: Numbers[int] = ()
        self._begun = range(0)  # ranks with no tensors left to read, so that requests need not check each one
        self.score = 0.0

    def clear(self) -> None:
        """Discards the order after files were added."""
        self._numbers = None
        self.forget_begun()

    def forget_begun(self) -> None:
        """Forgets which ranks have been started, after tensors were dropped and may be read again."""
        self._begun = range(0)

    def has_begun(self, number: int) -> None:
        """Extends the started ranks by the next one."""
        self._begun = range(self._begun.start, self._ranks[number] + 1)

    def rank(self, number: int) -> int:
        self._every()
        return self._ranks[number]

    def not_begun_after(self, number: int) -> Iterator[int]:
        every = self._every()
        first = self._ranks[number] + 1
        if not self._begun.start <= first <= self._begun.stop:
            self._begun = range(first, first)
        return (every[rank] for rank in range(self._begun.stop, len(every)))

    def _every(self) -> Numbers[int]:
        if self._numbers is None:
            self._numbers = self._made()
            if isinstance(self._numbers, range):
                self._ranks = self._numbers
            else:
                ranks = [0] * len(self._numbers)
                for rank, number in enumerate(self._numbers):
                    ranks[number] = rank
                self._ranks = ranks
        return self._numbers


_digits = re.compile(r"0*([0-9]+)")


def natural_order(name: str) -> str:
    """Returns a sort key that puts layers.2 before layers.10. Each number is preceded by its length, in one character."""
    return _digits.sub(lambda found: chr(min(len(found[1]), sys.maxunicode)) + found[1], name)


class _Neighbours:
    """All sequences that read ahead into one device. They share a memory budget."""

    _every: dict[str, _Neighbours] = {}
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._sequences: weakref.WeakSet[Sequence] = weakref.WeakSet()

    @classmethod
    def of(cls, device: Any) -> _Neighbours:
        with cls._lock:
            return cls._every.setdefault(str(device), cls())

    def add(self, sequence: Sequence) -> None:
        with self._lock:
            self._sequences.add(sequence)

    def make_room(self, asker: Sequence, nbytes: int, most: int) -> None:
        """Drops waiting tensors of other sequences until the budget is met. Call it with the asker's lock held."""
        with self._lock:
            others = [each for each in self._sequences if each is not asker]
        excess = sum(each.waiting_bytes for each in others) + asker.waiting_bytes + nbytes - most
        for each in others:
            if excess <= 0:
                return
            if each.waiting_bytes and each.lock.acquire(blocking=False):  # if another thread holds the lock, that sequence is serving a request
                try:
                    excess -= each.drop_all()
                finally:
                    each.lock.release()
