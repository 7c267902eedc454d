"""Writes parts of tensors to a file that contains the whole tensors."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import _native
from .._core.errors import Error, ShortRead
from .._core.futures import wait
from .._core.pieces import Piece, move_pieces, remade
from .._tensors.reads import Ranges
from .._tensors.save_file import Tensor
from .._tensors.slices import Part

__all__ = ["TensorWrite", "write_tensors"]


class TensorWrite(NamedTuple):
    """A part of a tensor, contiguous in memory."""

    name: str
    tensor: Tensor  # the part
    offset: int  # offset of the whole tensor in the file, in bytes
    part: Part  # position in the whole tensor


def write_tensors(file: _native.File, label: str, writes: Sequence[TensorWrite]) -> None:
    """Writes all parts at once. Blocks. `label`: the file's name for errors.

    Raises penstock.Error, which names the tensor. No write is in progress when it returns.
    """
    filled = [each for each in writes if each.tensor.nbytes]
    scattered = _Scattered(file, label)
    try:
        move_pieces(
            file,
            [_piece_of(each) for each in filled if len(each.part.starts) == 1],
            label=label,
            write=True,
            meanwhile=lambda: scattered.start([each for each in filled if len(each.part.starts) > 1]),
        )
        scattered.finish()
    finally:
        scattered.stop()


def _piece_of(write: TensorWrite) -> Piece:
    memory = write.tensor.memory
    return Piece(_called(write), write.offset + write.part.starts[0], memory.nbytes, memory.address, memory, write.tensor.stream)


def _called(write: TensorWrite) -> str:
    return f'tensor "{write.name}"'


class _Scattered:
    """Parts that are scattered across the file, such as one rank's columns of a matrix."""

    def __init__(self, file: _native.File, label: str) -> None:
        self._file = file
        self._label = label
        self._under_way: list[tuple[_native.Future[list[int]], TensorWrite, array[int]]] = []

    def start(self, writes: Sequence[TensorWrite]) -> None:
        for each in writes:
            ranges = Ranges()
            ranges.add_part(each.offset, each.part, 0)
            future = self._file.pwrite_ranges(each.tensor.memory, ranges.offsets, ranges.sizes, ranges.places)
            self._under_way.append((future, each, ranges.offsets))

    def finish(self) -> None:
        for future, write, offsets in self._under_way:
            self._check(future, write, offsets)

    def stop(self) -> None:
        """Stops all writes. Once it returns, nothing accesses their memory."""
        running = [future for future, _, _ in self._under_way if not future.done()]
        for each in running:
            each.cancel()
        wait(running)

    def _check(self, future: Any, write: TensorWrite, offsets: array[int]) -> None:
        try:
            counts = future.result()
        except Error as error:
            raise remade(error, f"{self._label}: {_called(write)}: {error}") from error
        short = next((at for at, count in enumerate(counts) if count != write.part.run_bytes), None)
        if short is not None:
            message = f"{self._label}: {_called(write)}: wrote {counts[short]} of {write.part.run_bytes} bytes at offset {offsets[short]}"
            raise ShortRead(f"{message}: the file cannot grow", code="short_read", filename=self._label, offset=offsets[short], bytes_done=counts[short])
