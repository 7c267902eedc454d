"""Storages as memory that Penstock can transfer, and copies of storages that stay unchanged while the program continues."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from .. import _native
from .arrays import library_named
from .errors import InvalidArgument

__all__ = ["Memory", "Snapshot", "has_room", "is_plain", "memory_of", "new_storage", "reaches", "snapshot_of", "snapshot_of_bytes", "synchronize"]

# PyTorch's pinned allocator rounds up to powers of two, so a snapshot uses blocks of this size.
_BLOCK_BYTES = 256 << 20
# A snapshot on a GPU must leave this fraction of the GPU's memory free.
_LEFT_FREE = 1 / 16


class Memory(NamedTuple):
    """A range of memory."""

    address: int
    nbytes: int
    owner: Any  # keeps it alive: the torch.UntypedStorage that contains it, or a tensor for pinned memory
    device: torch.device


class Snapshot(NamedTuple):
    """Copies of storages. They are complete once the events have completed."""

    contents: list[list[Memory]]  # the consecutive ranges of each storage
    events: list[Any]

    def wait(self) -> None:
        for each in self.events:
            each.synchronize()


def reaches(device: torch.device) -> bool:
    """Returns True if Penstock can transfer bytes to and from the device's memory."""
    return device.type == "cpu" or (device.type == "cuda" and _reaches_gpus())


def is_plain(tensor: Any) -> bool:
    """Returns True if the tensor's elements are the bytes given by its address and strides: not a subclass, not sparse, not quantized."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and not tensor.is_quantized


@functools.cache
def _reaches_gpus() -> bool:
    return torch.version.cuda is not None and _native.cuda_status() is None  # ROCm devices are also called cuda


def new_storage(nbytes: int, device: torch.device) -> Any:
    if device.type == "cpu":
        return torch.UntypedStorage(nbytes)
    with torch.cuda.device(device):
        return torch.UntypedStorage(nbytes, device=device)


def memory_of(storage: Any) -> list[Memory]:
    """Returns the storage's memory, or a CPU copy's memory if Penstock cannot access the device."""
    if not reaches(storage.device):
        storage = storage.cpu()
    return [Memory(storage.data_ptr(), storage.nbytes(), storage, storage.device)] if storage.nbytes() else []


def synchronize(devices: Iterable[torch.device]) -> None:
    """Waits for PyTorch's current streams on the GPUs among the devices, because memory from the allocator may still be in use there."""
    for device in set(devices):
        library_named("torch").settle(str(device))


def snapshot_of(storages: Sequence[Any], where: str) -> Snapshot:
    """Copies storages: those on GPUs on the current streams, those on the CPU immediately.

    `where` is "device" (the storage's own GPU), "host" (pinned memory), or "auto" (the GPU if 1/16 of its memory stays free, else pinned memory).
    Raises InvalidArgument for any other value, and torch.OutOfMemoryError for "device".
    """
    return snapshot_of_bytes([_bytes_of(each) if reaches(each.device) else _bytes_of(each.cpu()) for each in storages], where)


def snapshot_of_bytes(sources: Sequence[Any], where: str) -> Snapshot:
    """Copies one-dimensional tensors of bytes on devices that Penstock can access, as snapshot_of() copies storages."""
    if where not in ("auto", "device", "host"):
        raise InvalidArgument(f"snapshot must be 'auto', 'device' or 'host', not {where!r}", code="invalid_argument")
    contents: list[list[Memory]] = [[] for _ in sources]
    events = []
    for device in {each.device for each in sources}:
        own = [i for i, each in enumerate(sources) if each.device == device and each.numel()]
        for i, ranges in zip(own, _copies([sources[i] for i in own], device, where)):
            contents[i] = ranges
        if device.type == "cuda":
            events.append(library_named("torch").mark(str(device)))
    return Snapshot(contents, events)


def _copies(sources: Sequence[Any], device: torch.device, where: str) -> list[list[Memory]]:
    if device.type == "cpu":
        return [_memory_of_copy(each) for each in sources]
    if where == "device" or (where == "auto" and has_room(device, sum(each.numel() for each in sources))):
        try:
            return [_memory_of_copy(each) for each in sources]
        except torch.cuda.OutOfMemoryError:
            if where == "device":
                raise
    return _pinned_copies(sources)


def _memory_of_copy(source: Any) -> list[Memory]:
    return memory_of(source.clone().untyped_storage())


def has_room(device: torch.device, nbytes: int) -> bool:
    """Returns True if a GPU can hold `nbytes` more bytes for a snapshot and keep enough memory free."""
    free, total = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return bool(free + cached // 2 - nbytes >= total * _LEFT_FREE)  # some of the cached memory is too fragmented


def _pinned_copies(sources: Sequence[Any]) -> list[list[Memory]]:
    """Copies the sources, packed into pinned blocks."""
    left = sum(each.numel() for each in sources)
    block, used = None, 0
    found = []
    for source in sources:
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
