"""Tensors of one file for one device, one after the other: each batch of reads takes the next ones along before they are asked for.

A program that moves tensors one by one would wait for each. The bytes of those that it is likely to ask for next are on their way meanwhile, each
in an allocation of its own, so that the memory of a tensor that nobody asks for can be let go of by itself.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import _native
from .._errors import Error
from ._frameworks import Framework, framework_on
from ._load import check_type
from ._reading import Ranges, Reads
from ._slices import Part
from ._sources import Source

__all__ = ["Ahead", "most_ahead_bytes"]

_batch_bytes = 64 << 20
_batch_tensors = 1024
_default_ahead_bytes = 512 << 20
_near = 8  # places: what comes so little later was foreseen, also where several threads ask in turns


def most_ahead_bytes() -> int:
    """Of tensors that nobody has asked for yet, on one device, of all files together: PENSTOCK_SAFETENSORS_AHEAD_MIB."""
    told = os.environ.get("PENSTOCK_SAFETENSORS_AHEAD_MIB", "")
    return int(told) << 20 if told.isascii() and told.isdigit() else _default_ahead_bytes


class Ahead:
    """Of one file and one device of PyTorch. Any thread may use it."""

    def __init__(self, source: Source, device: Any, rows_of: Mapping[int, Part] | None = None, least_bytes: int = 0) -> None:
        """device: a torch.device with its number. rows_of: tensors of which only so many rows are wanted, each one run of bytes.

        least_bytes: smaller tensors are not read before they are asked for.
        """
        self._source = source
        self._device = device
        self._pieces = _Pieces(source, rows_of or {})
        self._place: Framework = framework_on("pt", device)
        self._lock = threading.Lock()
        self._waiting: dict[int, _Batch] = {}  # rows that are read, or being read, and not asked for
        self._waiting_bytes = 0
        self._orders: list[_Order] = []
        self._asked = {row for row, nbytes in enumerate(source.header.sizes) if nbytes < least_bytes}
        self._last: int | None = None
        self._steps = 0.0  # from one to the next, the last ones counting most
        self._depth = 0  # bytes to have waiting: nothing before two have been asked for in an order that is known
        self._unwanted_bytes = 0
        self._wanted_bytes = 0
        _Neighbours.of(device).add(self)

    def take(self, row: int) -> Any:
        """The tensor, of the file's type. Blocks until its bytes are there. Whoever has it is its only owner."""
        with self._lock:
            batch = self._waiting.pop(row, None)
            was_waiting = batch is not None
            if batch is None:
                batch = self._start([row])
            else:
                self._waiting_bytes -= self._pieces.nbytes(row)
            tensor = batch.tensors.pop(row)
            self._read_on(row, was_waiting)
        try:
            batch.wait()
        except Error:
            if not was_waiting:
                raise
            return self._alone(row)  # its neighbours' bytes did not come
        batch.used_in_current_stream(tensor)
        return tensor

    def take_all(self, rows: Sequence[int]) -> dict[int, Any]:
        """Several at once, as fast as a whole file."""
        with self._lock:
            batch = self._start(rows)
        batch.wait()
        return batch.tensors

    def start(self, rows: Sequence[int]) -> None:
        """Begins to read these: take() gives each then."""
        with self._lock:
            for group in self._groups([row for row in rows if row not in self._waiting]):
                self._wait_for(group)

    def forget(self, row: int) -> None:
        """Nobody will ask this device for it."""
        with self._lock:
            self._drop(row)
            self._asked.add(row)

    def drop(self) -> int:
        """Lets go of all that waits. Returns the bytes."""
        with self._lock:
            return self._drop_all()

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    # --- under the lock

    def _alone(self, row: int) -> Any:
        with self._lock:
            batch = self._start([row])
        batch.wait()
        return batch.tensors[row]

    def _drop(self, row: int) -> None:
        batch = self._waiting.pop(row, None)
        if batch is not None:
            batch.tensors.pop(row)
            self._waiting_bytes -= self._pieces.nbytes(row)

    def _drop_all(self) -> int:
        nbytes = self._waiting_bytes
        for row in list(self._waiting):
            self._drop(row)
        self._unwanted_bytes += nbytes
        return nbytes

    def _read_on(self, row: int, was_waiting: bool) -> None:
        self._asked.add(row)
        nbytes = self._pieces.nbytes(row)
        if was_waiting:
            self._wanted_bytes += nbytes
        most = most_ahead_bytes()
        order = self._foreseen(row)
        if order is None or not most:
            return
        if self._unwanted_bytes > _batch_bytes + self._wanted_bytes:  # this program asks for few of them
            return
        self._depth = min(most, max(_batch_bytes, self._depth * 2 if was_waiting else self._depth))
        if not was_waiting:
            order.front = order.rank[row] + 1
        room = self._depth - self._waiting_bytes
        if room < min(self._depth // 2, _batch_bytes):
            return
        rows = order.next_rows(room, self._pieces, self._asked, self._waiting)
        _Neighbours.of(self._device).make_room(self, sum(self._pieces.nbytes(each) for each in rows), most)
        try:
            for group in self._groups(rows):
                self._wait_for(group)
        except Exception as problem:  # such as PyTorch's OutOfMemoryError: what was asked for is there
            if not isinstance(problem, (RuntimeError, Error)):
                raise
            self._drop_all()
            self._depth = 0

    def _foreseen(self, row: int) -> _Order | None:
        """The order that the program asks in; None: not known yet."""
        last, self._last = self._last, row
        if last is None or len(self._source.header) < 2:
            return None
        if not self._orders:
            names = self._source.header.names
            by_name = sorted(range(len(names)), key=lambda each: _natural(names[each]))
            self._orders = [_Order(range(len(names))), _Order(by_name)]
        self._steps = self._steps * 0.9 + 1
        for each in self._orders:
            each.score = each.score * 0.9 + (0 < each.rank[row] - each.rank[last] <= _near)
        best = max(self._orders, key=lambda each: each.score)
        return best if best.score >= self._steps / 2 else None

    def _groups(self, rows: Sequence[int]) -> Iterable[list[int]]:
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

    def _wait_for(self, rows: Sequence[int]) -> None:
        batch = self._start(rows)
        for row in rows:
            self._waiting[row] = batch
            self._waiting_bytes += self._pieces.nbytes(row)

    def _start(self, rows: Sequence[int]) -> _Batch:
        return _Batch(self._pieces, self._place, self._device, rows)


class _Pieces:
    """What is wanted of each tensor: all of it, or some rows."""

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
    """Some tensors, each an allocation of its own, filled by one request."""

    def __init__(self, pieces: _Pieces, place: Framework, device: Any, rows: Sequence[int]) -> None:
        import torch

        source, header = pieces.source, pieces.source.header
        self.tensors: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._reads: Reads | None = Reads()
        self._problem: BaseException | None = None
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        for row in rows:
            dtype = place.dtype(header.types[row])
            shape = check_type(source.name, header.names[row], header.types[row], pieces.shape(row), place, dtype)
            self.tensors[row] = torch.empty(shape, dtype=dtype, device=device)
        if self._stream is not None:
            self._stream.synchronize()  # the memory may have been used before, by what is in the stream still
        filled = [row for row in rows if pieces.nbytes(row)]
        if not filled:
            return
        addresses = [self.tensors[row].data_ptr() for row in filled]
        begin = min(addresses)
        end = max(address + pieces.nbytes(row) for address, row in zip(addresses, filled))
        ranges = Ranges()
        ranges.add_all([pieces.offset(row) for row in filled], [pieces.nbytes(row) for row in filled], [each - begin for each in addresses])
        self._reads.start(source, _native.Pointer(begin, end - begin, tuple(self.tensors.values())), ranges)

    def wait(self) -> None:
        """Raises what reading raised, each time."""
        with self._lock:
            if self._reads is not None:
                try:
                    self._reads.wait()
                except Error as problem:
                    self._problem = problem
                self._reads = None
            if self._problem is not None:
                raise self._problem

    def used_in_current_stream(self, tensor: Any) -> None:
        """Its memory is of the stream that was current when reading began: the allocator hears of another one."""
        if self._stream is None:
            return
        import torch

        current = torch.cuda.current_stream(tensor.device)
        if current != self._stream:
            tensor.record_stream(current)


class _Order:
    """One in which the tensors may be asked for."""

    def __init__(self, rows: Iterable[int]) -> None:
        self.rows = list(rows)
        self.rank = [0] * len(self.rows)
        for place, row in enumerate(self.rows):
            self.rank[row] = place
        self.front = 0  # where reading on goes on
        self.score = 0.0

    def next_rows(self, nbytes: int, pieces: _Pieces, asked: set[int], waiting: dict[int, Any]) -> list[int]:
        """Those that follow, of so many bytes at most."""
        found: list[int] = []
        while self.front < len(self.rows):
            row = self.rows[self.front]
            if row not in asked and row not in waiting:
                if pieces.nbytes(row) > nbytes:
                    break
                nbytes -= pieces.nbytes(row)
                found.append(row)
            self.front += 1
        return found


_digits = re.compile(r"(\d+)")


def _natural(name: str) -> list[Any]:
    """layers.2 before layers.10, as programs go through layers."""
    return [(0, int(each)) if each.isdigit() else (1, each) for each in _digits.split(name)]


class _Neighbours:
    """All files that one device reads ahead of: they share its budget."""

    _every: dict[str, _Neighbours] = {}
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._files: weakref.WeakSet[Ahead] = weakref.WeakSet()

    @classmethod
    def of(cls, device: Any) -> _Neighbours:
        with cls._lock:
            return cls._every.setdefault(str(device), cls())

    def add(self, file: Ahead) -> None:
        with self._lock:
            self._files.add(file)

    def make_room(self, asker: Ahead, nbytes: int, most: int) -> None:
        """Lets go of what other files have waiting, as far as that is more than the budget. Called under the asker's lock."""
        with self._lock:
            others = [each for each in self._files if each is not asker]
        excess = sum(each.waiting_bytes for each in others) + asker.waiting_bytes + nbytes - most
        for each in others:
            if excess <= 0:
                return
            if each.waiting_bytes and each._lock.acquire(blocking=False):  # whoever holds it is being asked just now
                try:
                    excess -= each._drop_all()
                finally:
                    each._lock.release()
