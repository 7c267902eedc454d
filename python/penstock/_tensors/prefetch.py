"""safe_open(...).prefetch() as in safetensors 0.9: reads tensors into GPU memory, and delivers each one once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from .ahead import Ahead
from .errors import SafetensorError, of_file
from .header import Header
from .slices import part_of, picks_of
from .sources import Source
from .types import BITS

__all__ = ["PrefetchLoader", "PrefetchPlan", "TensorMeta", "tensor_meta"]

# Tensor names, and the rows of the first dimension; None: all rows.
PrefetchPlan = dict[str, slice | None]


class TensorMeta:
    """A tensor's entry in a file's header. `data_offsets` are bytes from the end of the header."""

    def __init__(self, dtype: str, shape: list[int], data_offsets: tuple[int, int]) -> None:
        self.dtype = dtype
        self.shape = shape
        self.data_offsets = data_offsets

    def __repr__(self) -> str:
        return f"TensorMeta(dtype={self.dtype!r}, shape={self.shape}, data_offsets={self.data_offsets})"


def tensor_meta(header: Header, row: int) -> TensorMeta:
    start = header.offsets[row] - header.offsets[0]
    return TensorMeta(header.types[row], list(header.shapes[row]), (start, start + header.sizes[row]))


class PrefetchLoader:
    """The tensors in a prefetch plan, which are being read into GPU memory. `take()` and iteration return each of them once.

    A context manager. Thread-safe. Each tensor has its own allocation.
    """

    def __init__(self, source: Source, device: Any, plan: Mapping[str, slice | None] | None) -> None:
        """Raises SafetensorError if the file lacks a tensor in the plan, or a slice does not select rows with a step of 1."""
        self._source = source
        self._lock = threading.Lock()
        header = source.header
        wanted = dict.fromkeys(header.names) if plan is None else dict(plan)
        self._rows = {name: source.row(name) for name in wanted}
        self._parts = {self._rows[name]: _rows_of(source, self._rows[name], each) for name, each in wanted.items() if each is not None}
        self._names = sorted(self._rows, key=self._rows.__getitem__)
        self._left = set(self._names)
        self._ahead: Ahead | None = Ahead(source, device, self._parts)
        self._ahead.begin(sorted(self._rows.values()))

    def names(self) -> list[str]:
        """Returns the names in the plan, in file order."""
        return list(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def has_whole(self, name: str) -> bool:
        """Returns True if the whole tensor can still be taken."""
        with self._lock:
            return self._ahead is not None and name in self._left and self._rows[name] not in self._parts

    def take(self, name: str) -> Any:
        """Returns a tensor, or its rows. Blocks until it is read. Raises SafetensorError if it is not in the plan, or has already been taken."""
        with self._lock:
            ahead = self._ahead
            if ahead is None:
                raise SafetensorError("the loader is closed", code="closed")
            if name not in self._rows:
                raise of_file(self._source.name, f"tensor {name} is not in the plan", code="not_found")
            if name not in self._left:
                raise of_file(self._source.name, f"tensor {name} has already been delivered")
            self._left.remove(name)
        return ahead.take(self._rows[name])

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for name in self._names:
            if name in self._left:
                yield name, self.take(name)

    def close(self) -> None:
        """Frees the tensors that were not taken."""
        with self._lock:
            ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.end()

    def __enter__(self) -> PrefetchLoader:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def _rows_of(source: Source, row: int, asked: Any) -> Any:
    header = source.header
    name, shape, word = header.names[row], header.shapes[row], header.types[row]
    if not isinstance(asked, slice) or asked.step not in (None, 1):
        raise of_file(source.name, f'tensor "{name}": the plan must contain None or a slice with a step of 1, not {asked!r}')
    if not shape or BITS[word] % 8:
        raise of_file(source.name, f'tensor "{name}" of type {word} and shape {list(shape)} has no rows that can be read separately')
    picks = picks_of(asked, shape)
    assert picks is not None
    return part_of(shape, BITS[word] // 8, picks)


TensorMeta.__module__ = PrefetchLoader.__module__ = "penstock.safetensors"  # their public home, which pickles name
