"""Reads parts of tensors from files into existing PyTorch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .. import _native
from .._core.arrays.of_torch import count_changes
from .._core.batches import in_batches
from .._core.packing import packed
from .._core.torch_memory import copy_into, span_of_tensor
from .._core.torch_storages import reaches, synchronize
from .._tensors.frameworks import framework_on
from .._tensors.reads import Ranges, Reads
from .._tensors.slices import Part, part_of
from .._tensors.sources import Source
from ._plan_tensors import overlapping, takes_bytes
from ._runs import Run, runs_of

__all__ = ["TensorRead", "read_tensors"]

_BESIDE_BYTES = 512 << 20  # limit for reads through temporary memory; as much again is in use while it is copied


class TensorRead(NamedTuple):
    """A part of a tensor in a file, and a target with the same shape."""

    source: Source
    offset: int  # offset of the tensor in the file, in bytes
    dtype: torch.dtype
    shape: tuple[int, ...]  # shape of the whole tensor
    starts: tuple[int, ...]  # the part's first element in each dimension
    target: Any  # detached tensor

    def part(self) -> Part:
        picks = [slice(start, start + length) for start, length in zip(self.starts, self.target.size())]
        return part_of(self.shape, self.dtype.itemsize, picks)

    def runs(self) -> list[Run] | None:
        """Returns the runs of bytes that are contiguous in the file and in the target, which has a different memory order."""
        whole = torch.empty(self.shape, dtype=self.dtype, device="meta")
        for axis, (start, length) in enumerate(zip(self.starts, self.target.size())):
            whole = whole.narrow(axis, start, length)
        return runs_of(whole, self.target)


def read_tensors(reads: Sequence[TensorRead]) -> None:
    """Fills all targets. Blocks.

    Targets that have the file's type are filled directly, all at once. Others are read into temporary memory on their device, and copied from there
    while more is being read. If targets share memory, the last one wins. On a GPU, the call waits for the current stream. If it raises
    penstock.Error, the content of the targets is undefined.
    """
    direct, beside = _sorted(reads)
    synchronize(each.target.device for each, _ in direct)
    under_way = [Reads()]
    try:
        _start_direct(direct, under_way[0])
        last: _Beside | None = None
        for group in in_batches(beside, _BESIDE_BYTES, lambda each: each[1].nbytes):
            following = _Beside(group)
            under_way.append(following.reads)
            following.start()
            if last is not None:
                last.finish()
            last = following
        if last is not None:
            last.finish()
        under_way[0].wait()
    finally:
        for each in under_way:
            each.stop()
    count_changes([each.target for each, _ in direct])


_Direct = list[tuple[TensorRead, "Part | list[Run]"]]


def _sorted(reads: Sequence[TensorRead]) -> tuple[_Direct, list[tuple[TensorRead, Part]]]:
    """Separates in-place reads, sorted by file offset, from reads through temporary memory, in their original order."""
    direct: _Direct = []
    beside: list[tuple[TensorRead, Part]] = []
    together = overlapping([each.target for each in reads])
    for number, each in enumerate(reads):
        part = each.part()
        if not part.nbytes:
            continue
        way: Part | list[Run] | None = part
        if number in together or each.target.dtype != each.dtype or not takes_bytes(each.target) or part.cut is not None:
            way = None
        elif not each.target.is_contiguous():
            way = each.runs()
        if way is None:
            beside.append((each, part))
        else:
            direct.append((each, way))
    direct.sort(key=lambda each: each[0].offset)
    return direct, beside


def _start_direct(direct: _Direct, reads: Reads) -> None:
    groups: dict[tuple[int, torch.device], _Direct] = {}
    for each in direct:
        groups.setdefault((id(each[0].source), each[0].target.device), []).append(each)
    for group in groups.values():
        starts, ends = zip(*(span_of_tensor(each.target) for each, _ in group))
        first, end = min(starts), max(ends)
        ranges = Ranges()
        for read, way in group:
            _add(ranges, read, way, read.target.data_ptr() - first)
        reads.start(group[0][0].source, _native.Pointer(first, end - first, group), ranges)


def _add(ranges: Ranges, read: TensorRead, way: Part | list[Run], place: int) -> None:
    if isinstance(way, Part):
        ranges.add_part(read.offset, way, place)
    else:
        ranges.add_all([read.offset + each.source for each in way], [each.nbytes for each in way], [place + each.target for each in way])


# --- through temporary memory


class _Beside:
    """Tensors that are read into one temporary allocation per device, and copied into their targets."""

    def __init__(self, group: list[tuple[TensorRead, Part]]) -> None:
        self.reads = Reads()
        self._group = group
        self._found: list[tuple[TensorRead, Part, Any]] = []

    def start(self) -> None:
        by_device: dict[torch.device, list[tuple[TensorRead, Part]]] = {}
        for each in self._group:
            device = each[0].target.device
            by_device.setdefault(device if reaches(device) else torch.device("cpu"), []).append(each)
        for device, group in by_device.items():
            self._start_on(device, group)

    def _start_on(self, device: torch.device, group: list[tuple[TensorRead, Part]]) -> None:
        places, total = packed(part.nbytes for _, part in group)
        arena = framework_on("pt", device).arena(total)
        ranges: dict[int, tuple[Source, Ranges]] = {}
        for (read, part), place in zip(group, places):
            ranges.setdefault(id(read.source), (read.source, Ranges()))[1].add_part(read.offset, part, place)
            view: dict[str, Any] = {}
            arena.views([("", read.dtype, part.shape, place, part.nbytes)], view)
            self._found.append((read, part, view[""]))
        for source, each in ranges.values():
            self.reads.start(source, arena.memory, each)

    def finish(self) -> None:
        self.reads.wait()
        for read, part, array in self._found:
            copy_into(read.target, array if part.cut is None else array[part.cut])
        self._found = []  # frees the memory
        self._group = []
