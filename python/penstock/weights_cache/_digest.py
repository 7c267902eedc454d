"""A digest of storages. GPUs and CPUs compute the same value, at the speed of their memory and without a copy.

Definition. The bytes of each storage, padded with zeros to whole rows of 4096 bytes, are read as rows of 512 little-endian 64-bit integers. The rows of
all storages are numbered in order, from 0. Let w[r, j] be word j of row r, h[r, j] = w[r, j] >> 32 (arithmetic), and m(i) an odd 64-bit number that
depends on i alone: output i (from 0) of splitmix64 with seed 0, with its lowest bit set. The digest consists of four sums modulo 2**64:

    sum of m(r) * w[r, j]    sum of m(r) * h[r, j]    sum of m(j) * w[r, j]    sum of m(j) * h[r, j]

Limits. It detects damage: each change within one 8-byte word, and other changes, such as rows that are missing, zeroed or exchanged, except by
coincidence. It does not protect against someone who can write to the file and knows the definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .. import _native
from .._core.batches import in_batches
from ._sources import in_threads

__all__ = ["Digest", "rows_in"]

_ROW_BYTES = 4096
_TASK_BYTES = 2048 * _ROW_BYTES  # per task of a thread

_Part = tuple[int, int, int]  # address, number of bytes, and number of the first row


def rows_in(nbytes: int) -> int:
    return -(-nbytes // _ROW_BYTES)


class Digest:
    """Sums over the storages added so far, in any order. On GPUs they are computed on the current stream, and add() does not block.

    `devices`: the kernel is loaded for these GPUs now. Otherwise, the first add() loads it, and copies to the GPU wait meanwhile.
    """

    def __init__(self, devices: Iterable[torch.device] = ()) -> None:
        self._sums: list[Sequence[int]] = []
        self._gpu_sums: dict[torch.cuda.Stream, Any] = {}  # tensors with four integers each
        for each in devices:
            if each.type == "cuda":
                self._add_on_gpu(each, [])

    def add(self, contents: Sequence[tuple[Any, int]]) -> None:
        """Adds one-dimensional tensors of bytes, each with the number of its first row."""
        by_device: dict[torch.device, list[_Part]] = {}
        for content, row in contents:
            by_device.setdefault(content.device, []).append((content.data_ptr(), content.numel(), row))
        for device, parts in by_device.items():
            if device.type == "cuda":
                self._add_on_gpu(device, parts)
            else:
                tasks = [task for part in parts for task in _tasks_of(part)]
                self._sums += in_threads(_native.digest_of, list(in_batches(tasks, _TASK_BYTES, lambda each: each[1])))

    def _add_on_gpu(self, device: torch.device, parts: list[_Part]) -> None:
        stream = torch.cuda.current_stream(device)
        sums = self._gpu_sums.get(stream)
        if sums is None:  # PyTorch would load a kernel to fill it on the GPU
            sums = torch.empty(4, dtype=torch.int64, device=device).copy_(torch.zeros(4, dtype=torch.int64, device="cpu"), non_blocking=True)
            self._gpu_sums[stream] = sums
        _native.add_to_digest(parts, sums.data_ptr(), stream.cuda_stream)

    def value(self) -> bytes:
        """Returns the digest. Waits for the GPUs."""
        gpu_sums = []
        for stream, sums in self._gpu_sums.items():
            with torch.cuda.stream(stream):
                gpu_sums.append(sums.tolist())
        return b"".join((sum(each) % 2**64).to_bytes(8, "little") for each in zip((0, 0, 0, 0), *self._sums, *gpu_sums))


def _tasks_of(part: _Part) -> list[_Part]:
    address, nbytes, row = part
    return [(address + at, min(_TASK_BYTES, nbytes - at), row + at // _ROW_BYTES) for at in range(0, nbytes, _TASK_BYTES)]
