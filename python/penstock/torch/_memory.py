"""Storages as memory that Penstock moves, and copies of them that stay as they are while a program goes on."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from .. import _native
from .._errors import InvalidArgument

__all__ = ["Memory", "Snapshot", "memory_of", "new_storage", "reaches", "snapshot_of", "synchronize"]

# PyTorch's allocator of pinned memory rounds up to powers of two: a snapshot takes blocks of this size, which are one.
_BLOCK_BYTES = 256 << 20
# What a snapshot on a GPU has to leave free there, as a part of the GPU's memory.
_LEFT_FREE = 1 / 16


class Memory(NamedTuple):
    """A range of memory."""

    address: int
    nbytes: int
    owner: Any  # keeps it alive: a torch.UntypedStorage that it is a part of; a tensor for pinned memory
    device: torch.device


class Snapshot(NamedTuple):
    """Copies of storages. They are complete once the events have come about."""

    contents: list[list[Memory]]  # of each storage, one range after the other
    events: list[Any]

    def wait(self) -> None:
        for each in self.events:
            each.synchronize()


def reaches(device: torch.device) -> bool:
    """Whether Penstock moves bytes from and to memory there."""
    return device.type == "cpu" or (device.type == "cuda" and _reaches_gpus())


@functools.cache
def _reaches_gpus() -> bool:
    return torch.version.cuda is not None and _native.cuda_status() is None  # ROCm's devices are called cuda, too


def new_storage(nbytes: int, device: torch.device) -> Any:
    if device.type == "cpu":
        return torch.UntypedStorage(nbytes)
    with torch.cuda.device(device):
        return torch.UntypedStorage(nbytes, device=device)


def memory_of(storage: Any) -> list[Memory]:
    """The storage's own memory, or that of a copy on the CPU where Penstock does not reach it."""
    if not reaches(storage.device):
        storage = storage.cpu()
    return [Memory(storage.data_ptr(), storage.nbytes(), storage, storage.device)] if storage.nbytes() else []


def synchronize(devices: Iterable[torch.device]) -> None:
    """Waits for PyTorch's current streams of the GPUs among them: memory of its allocator may be in use there until then."""
    for device in set(devices):
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()


def snapshot_of(storages: Sequence[Any], where: str) -> Snapshot:
    """Copies of storages, made after what the current streams have, and before what they get from now on; of the CPU's at once.

    where: "device": on the GPU that a storage is on; "host": in pinned memory; "auto": on the GPU where that leaves a sixteenth of its memory free,
    else pinned. Raises InvalidArgument for another word; torch.OutOfMemoryError for "device".
    """
    if where not in ("auto", "device", "host"):
        raise InvalidArgument(f"snapshot is 'auto', 'device' or 'host', not {where!r}", code="invalid_argument")
    contents: list[list[Memory]] = [[] for _ in storages]
    events = []
    for device in {each.device for each in storages}:
        own = [i for i, each in enumerate(storages) if each.device == device and each.nbytes()]
        made = _copies([storages[i] for i in own], device, where)
        for i, ranges in zip(own, made):
            contents[i] = ranges
        if device.type == "cuda":
            with torch.cuda.device(device):
                events.append(torch.cuda.current_stream().record_event())
    return Snapshot(contents, events)


def _copies(storages: Sequence[Any], device: torch.device, where: str) -> list[list[Memory]]:
    if device.type == "cpu":
        return [memory_of(each.clone()) for each in storages]
    if not reaches(device):
        return [memory_of(each.cpu()) for each in storages]
    if where == "device" or (where == "auto" and _has_room(device, sum(each.nbytes() for each in storages))):
        try:
            return [memory_of(each.clone()) for each in storages]
        except torch.cuda.OutOfMemoryError:
            if where == "device":
                raise
    return _pinned_copies(storages)


def _has_room(device: torch.device, nbytes: int) -> bool:
    free, total = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return bool(free + cached // 2 - nbytes >= total * _LEFT_FREE)  # of what is cached some is in pieces too small


def _pinned_copies(storages: Sequence[Any]) -> list[list[Memory]]:
    """Packed into blocks, one storage after the other."""
    left = sum(each.nbytes() for each in storages)
    block, used = None, 0
    found = []
    for storage in storages:
        source = _bytes_of(storage)
        ranges: list[Memory] = []
        start = 0
        while start < source.numel():
            if block is None or used == block.numel():
                block, used = torch.empty(min(left, _BLOCK_BYTES), dtype=torch.uint8, pin_memory=True), 0
            count = min(source.numel() - start, block.numel() - used)
            block[used : used + count].copy_(source[start : start + count], non_blocking=True)
            ranges.append(Memory(block.data_ptr() + used, count, block, torch.device("cpu")))
            start, used, left = start + count, used + count, left - count
        found.append(ranges)
    return found


def _bytes_of(storage: Any) -> Any:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
