"""A digest of storages that a GPU and a CPU compute alike, at the speed of their memory and without a copy.

Definition. The bytes of each storage, padded with zeros to whole rows of 4096 bytes, are read as rows of 512 little-endian 64-bit integers. The rows of
all storages are numbered in order, from 0. Let w[r, j] be word j of row r, h[r, j] = w[r, j] >> 32 (arithmetic), and m(i) an odd 64-bit number that
depends on i alone. The digest consists of four sums modulo 2**64:

    sum of m(r) * w[r, j]    sum of m(r) * h[r, j]    sum of m(j) * w[r, j]    sum of m(j) * h[r, j]

Limits. It detects damage: each change within one 8-byte word, and other changes, such as rows that are missing, zeroed or exchanged, except by
coincidence. It does not protect against someone who may write to the file and knows the definition.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

__all__ = ["Digest", "ROW_BYTES", "rows_in"]

ROW_BYTES = 4096
_WORDS = ROW_BYTES // 8
# Bytes per step. A CPU keeps them in its caches; a GPU should start few kernels. Smaller storages and ends of storages are gathered first.
_STEP_BYTES = {"cpu": 1 << 20, "cuda": 64 << 20}
_GATHERED_BYTES = 16 << 20


def rows_in(nbytes: int) -> int:
    return -(-nbytes // ROW_BYTES)


class Digest:
    """Sums over the storages added so far, in any order. On GPUs the sums run on the current stream, so add() does not block there."""

    def __init__(self) -> None:
        self._sums: list[Any] = []  # tensors with four integers each

    def add(self, contents: Sequence[tuple[Any, int]]) -> None:
        """Adds one-dimensional tensors of bytes, each with the number of its first row."""
        by_device: dict[torch.device, list[tuple[Any, int]]] = {}
        for content, row in contents:
            if content.numel():
                by_device.setdefault(content.device, []).append((content, row))
        with torch.inference_mode():
            for device, own in by_device.items():
                self._add(device, own)

    def value(self) -> bytes:
        """Returns the digest. Waits for the GPUs."""
        total = [0, 0, 0, 0]
        for each in self._sums:
            total = [(a + b) & (1 << 64) - 1 for a, b in zip(total, each.tolist())]
        return b"".join(each.to_bytes(8, "little") for each in total)

    def _add(self, device: torch.device, contents: list[tuple[Any, int]]) -> None:
        parts: list[tuple[Any, int]] = []
        step = _STEP_BYTES.get(device.type, _GATHERED_BYTES)
        small = []
        for content, row in contents:
            nbytes = content.numel()
            aligned = nbytes - nbytes % ROW_BYTES if nbytes >= 1 << 20 and content.data_ptr() % 8 == 0 else 0
            parts += [(content[i : min(i + step, aligned)].view(torch.int64).view(-1, _WORDS), row + i // ROW_BYTES) for i in range(0, aligned, step)]
            small += [(content[i : i + _GATHERED_BYTES], row + i // ROW_BYTES) for i in range(aligned, nbytes, _GATHERED_BYTES)]
        count = sum(len(words) for words, _ in parts) + sum(rows_in(each.numel()) for each, _ in small)
        sums = torch.empty((2, count), dtype=torch.int64, device=device)  # of each row
        columns = torch.zeros((2, _WORDS), dtype=torch.int64, device=device)
        numbers = torch.empty(count, dtype=torch.int64, device=device)
        done = 0
        for words, row in parts:
            past = done + len(words)
            torch.arange(row, row + len(words), out=numbers[done:past])
            _sum(words, sums[:, done:past], columns)
            done = past
        for group in _groups(small):
            words = _gathered(group, device)
            past = done + len(words)
            rows = [number for each, row in group for number in range(row, row + rows_in(each.numel()))]
            numbers[done:past] = torch.tensor(rows, dtype=torch.int64, device="cpu")
            _sum(words, sums[:, done:past], columns)
            done = past
        self._sums.append(torch.cat([(sums * _factors(numbers)).sum(1), (columns * _column_factors(device)).sum(1)]))


def _sum(words: Any, sums: Any, columns: Any) -> None:
    high = words >> 32
    torch.sum(words, 1, out=sums[0])
    torch.sum(high, 1, out=sums[1])
    columns[0] += words.sum(0)
    columns[1] += high.sum(0)


def _groups(small: list[tuple[Any, int]]) -> Iterator[list[tuple[Any, int]]]:
    from .._core.batches import in_batches

    return in_batches(small, _GATHERED_BYTES, lambda each: rows_in(each[0].numel()) * ROW_BYTES)


def _gathered(group: list[tuple[Any, int]], device: torch.device) -> Any:
    """Returns copies of the contents as rows."""
    zeros = torch.zeros(ROW_BYTES, dtype=torch.uint8, device=device)
    pieces = [piece for content, _ in group for piece in (content, zeros[: -content.numel() % ROW_BYTES]) if piece.numel()]
    return torch.cat(pieces).view(torch.int64).view(-1, _WORDS)


def _factors(numbers: Any) -> Any:
    """Returns m(i) for each number, the finalizer of splitmix64 with its lowest bit set."""
    found = (numbers + 1) * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found = (found ^ ((found >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    return (found ^ ((found >> 31) & ((1 << 33) - 1))) | 1


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


@functools.lru_cache(16)
def _column_factors(device: torch.device) -> Any:
    return _factors(torch.arange(_WORDS, device=device))
