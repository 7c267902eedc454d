"""A digest of storages. GPUs and CPUs compute the same value, at the speed of their memory and without a copy.

Definition. The bytes of each storage, padded with zeros to whole rows of 4096 bytes, are read as rows of 512 little-endian 64-bit integers. The rows of
all storages are numbered in order, from 0. Let w[r, j] be word j of row r, h[r, j] = w[r, j] >> 32 (arithmetic), and m(i) an odd 64-bit number that
depends on i alone. The digest consists of four sums modulo 2**64:

    sum of m(r) * w[r, j]    sum of m(r) * h[r, j]    sum of m(j) * w[r, j]    sum of m(j) * h[r, j]

Limits. It detects damage: each change within one 8-byte word, and other changes, such as rows that are missing, zeroed or exchanged, except by
coincidence. It does not protect against someone who can write to the file and knows the definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .._core.batches import in_batches
from ._sources import in_threads

__all__ = ["Digest", "ROW_BYTES", "rows_in"]

ROW_BYTES = 4096
_WORDS = ROW_BYTES // 8


class _Limits(NamedTuple):
    """- `step_rows`: rows per step. A GPU should start few kernels. On a CPU, a step fits into its cache, and is too small for PyTorch's own threads,
      which are slow on busy machines.
    - `gathered_rows`: smaller storages, and the ends of storages, are gathered in groups of this size.
    """

    step_rows: int
    gathered_rows: int


_LIMITS = {"cpu": _Limits(60, 60), "cuda": _Limits(16384, 4096)}
_TASK_PARTS = 40  # steps per task of a thread


def rows_in(nbytes: int) -> int:
    return -(-nbytes // ROW_BYTES)


class Digest:
    """Sums over the storages added so far, in any order. On GPUs the sums run on the current stream, and add() does not block."""

    def __init__(self) -> None:
        self._sums: list[Any] = []  # tensors with four integers each

    def add(self, contents: Sequence[tuple[Any, int]]) -> None:
        """Adds one-dimensional tensors of bytes, each with the number of its first row."""
        by_device: dict[torch.device, list[tuple[Any, int]]] = {}
        for content, row in contents:
            if content.numel():
                by_device.setdefault(content.device, []).append((content, row))
        for device, own in by_device.items():
            parts = _parts(own, _LIMITS[device.type])
            if device.type == "cpu" and len(parts) > _TASK_PARTS:
                self._sums += in_threads(_sums_of, [parts[i : i + _TASK_PARTS] for i in range(0, len(parts), _TASK_PARTS)])
            else:
                self._sums.append(_sums_of(parts))

    def value(self) -> bytes:
        """Returns the digest. Waits for the GPUs."""
        total = [0, 0, 0, 0]
        for each in self._sums:
            total = [(a + b) & (1 << 64) - 1 for a, b in zip(total, each.tolist())]
        return b"".join(each.to_bytes(8, "little") for each in total)


_Part = list[tuple[Any, int]]  # either one content of whole rows, or several to gather, each with the number of its first row


def _parts(contents: Sequence[tuple[Any, int]], limits: _Limits) -> list[_Part]:
    parts: list[_Part] = []
    small: _Part = []
    step, gathered = limits.step_rows * ROW_BYTES, limits.gathered_rows * ROW_BYTES
    for content, row in contents:
        nbytes = content.numel()
        whole = nbytes - nbytes % ROW_BYTES if nbytes >= gathered and content.data_ptr() % 8 == 0 else 0
        parts += [[(content[i : min(i + step, whole)], row + i // ROW_BYTES)] for i in range(0, whole, step)]
        small += [(content[i : i + gathered], row + i // ROW_BYTES) for i in range(whole, nbytes, gathered)]
    return parts + list(in_batches(small, gathered, lambda each: rows_in(each[0].numel()) * ROW_BYTES))


def _sums_of(parts: list[_Part]) -> Any:
    """Returns the four sums of parts on one device."""
    device = parts[0][0][0].device
    counts = [sum(rows_in(each.numel()) for each, _ in part) for part in parts]
    with torch.inference_mode():
        rows = torch.empty((2, sum(counts)), dtype=torch.int64, device=device)  # the sums of each row
        columns = torch.zeros((2, _WORDS), dtype=torch.int64, device=device)
        numbers = torch.empty(sum(counts), dtype=torch.int64, device=device)
        done = 0
        for part, count in zip(parts, counts):
            place = slice(done, done + count)
            if len(part) == 1:
                torch.arange(part[0][1], part[0][1] + count, out=numbers[place])
            else:
                row_numbers = [number for each, row in part for number in range(row, row + rows_in(each.numel()))]
                numbers[place] = torch.tensor(row_numbers, dtype=torch.int64, device="cpu")
            words = _words_of(part, device)
            for own, sums, column in zip((words, words >> 32), rows, columns):
                torch.sum(own, 1, out=sums[place])
                column += own.sum(0)
            done += count
        return torch.cat([(rows * _factors(numbers)).sum(1), (columns * _factors(torch.arange(_WORDS, device=device))).sum(1)])


def _words_of(part: _Part, device: torch.device) -> Any:
    """Returns a part as rows of integers: a view, or a copy if it must be gathered."""
    found = part[0][0]
    if len(part) > 1 or found.numel() % ROW_BYTES or found.data_ptr() % 8:
        zeros = torch.zeros(ROW_BYTES, dtype=torch.uint8, device=device)
        found = torch.cat([piece for content, _ in part for piece in (content, zeros[: -content.numel() % ROW_BYTES])])
    return found.view(torch.int64).view(-1, _WORDS)


def _factors(numbers: Any) -> Any:
    """Returns m(i) for each number, the finalizer of splitmix64 with its lowest bit set."""
    found = (numbers + 1) * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found = (found ^ ((found >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    return (found ^ ((found >> 31) & ((1 << 33) - 1))) | 1


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
