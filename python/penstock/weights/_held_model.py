"""A model's weights in memory that other processes can map: memory of a device, or sealed memory on the host."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import mmap
import os
from collections.abc import Iterator
from typing import Any

from .. import _native
from .._core.arrays.library import View
from .._core.arrays.of_numpy import numpy_dtype
from .._core.devices import is_gpu
from .._core.errors import Error, OutOfMemory
from .._core.packing import ALIGNMENT
from .._holding.listing import Listing, Tensor, error_of, seal
from .._holding.source_files import SourceFile, describe_file, wait_until_settled
from .._tensors.frameworks import framework_on
from .._tensors.header import read_header
from .._tensors.load_file import Layout, check_type
from .._tensors.reads import Reads
from .._tensors.sources import Source, Sources
from .._tensors.types import NAMES

__all__ = ["HeldModel"]


class HeldModel:
    """Loads a model of safetensors files on construction. `device` is a name such as "host", "host:0" or "cuda:1".

    - `memory`: a `DeviceBuffer`, or on the host a private mapping.
    - `descriptor`: the descriptor of host memory; -1 for a device.
    """

    def __init__(self, model: str, device: str) -> None:
        self.device, self.descriptor = device, -1
        try:
            self._load(model)
        except BaseException:
            self.close()
            raise

    def _load(self, model: str) -> None:
        device = self.device
        with Sources(model, [device] if is_gpu(device) else []) as sources:
            self._files = list(sources)
            before = [_facts_of(each) for each in self._files]
            wait_until_settled(before)
            before = [_unless_partial(each, facts) for each, facts in zip(self._files, before)]
            layout = Layout(framework_on("bytes", device))
            for each in self._files:
                layout.add_whole(each, each.rows_of(None))
            self._nbytes = max(layout.nbytes, ALIGNMENT)  # empty memory cannot be mapped
            self.memory = self._host_memory(layout) if device == "host" else self._device_memory(layout)
            after = [_facts_of(each) for each in self._files]
            for file, one, other in zip(self._files, before, after):
                if one is not None and one != other:
                    raise _changed(file)
            self.listing = Listing(self._nbytes, before, list(self._tensors(layout)))

    def _device_memory(self, layout: Layout) -> Any:
        memory = _native.device(self.device).empty(self._nbytes)
        _read(layout, memory)
        return memory

    def _host_memory(self, layout: Layout) -> mmap.mmap:
        nbytes = self._nbytes
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if nbytes > there:  # the kernel accepts any size, and kills a process later
            raise OutOfMemory(f"the model has {nbytes} bytes, but this machine has only {there} bytes of memory", code="out_of_memory")
        try:
            self.descriptor = os.memfd_create("penstock-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.truncate(self.descriptor, nbytes)
            with contextlib.closing(mmap.mmap(self.descriptor, nbytes)) as writable:
                with contextlib.suppress(OSError):
                    writable.madvise(mmap.MADV_HUGEPAGE)
                _read(layout, writable)
            seal(self.descriptor)
            return mmap.mmap(self.descriptor, nbytes, access=mmap.ACCESS_COPY)
        except OSError as problem:
            raise error_of(problem, f"{nbytes} bytes of shared memory for the model") from None

    def _tensors(self, layout: Layout) -> Iterator[Tensor]:
        headers = itertools.chain.from_iterable(
            zip(each.header.names, each.header.types, each.header.shapes, itertools.repeat(number)) for number, each in enumerate(self._files)
        )
        for (name, word, shape, number), row in zip(headers, layout.rows()):
            assert name == row[0]
            yield Tensor(name, word, tuple(shape), row[3], row[4], number)

    def arrays(self) -> dict[str, Any]:
        """Returns the tensors as arrays: on the host of NumPy if it has their types, because PyTorch takes seconds to import; otherwise of PyTorch if it is
        installed, else of CuPy or NumPy. Raises SafetensorError if the library lacks a type.
        """
        on_gpu = is_gpu(self.device)
        words = {each.dtype for each in self.listing.tensors}
        is_plain = not on_gpu and all(numpy_dtype(NAMES.get(each, "")) is not None for each in words)
        other = "cupy" if on_gpu else "np"
        place = framework_on("pt" if not is_plain and importlib.util.find_spec("torch") is not None else other, self.device)
        rows: list[View] = []
        for each in self.listing.tensors:
            dtype = place.dtype(each.dtype)
            shape = check_type(self._files[each.file].name, each.name, each.dtype, each.shape, place, dtype)
            rows.append((each.name, dtype, shape, each.start, each.nbytes))
        found: dict[str, Any] = {}
        place.library.arena_over(self.memory, self.device).views(rows, found)
        return found

    def share(self) -> tuple[dict[str, Any], int]:
        """Returns what a reader must know to map the memory, and the descriptor to pass, or -1. The caller closes the descriptor."""
        if self.descriptor >= 0:
            return {"device": "host"}, os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        handle, offset, _, descriptor = _native.share_memory(self.memory)
        facts = {"device": self.device, "uuid": _native.device(self.device).uuid, "handle": handle.hex(), "offset": offset}
        return facts, descriptor

    def close(self) -> None:
        """Closes the descriptor of host memory. The memory is freed with the last array."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _facts_of(source: Source) -> SourceFile | None:
    """Returns None for a file on a server."""
    try:
        descriptor = source.file.fileno()
    except Error:
        return None
    with contextlib.suppress(OSError):  # a write through a mapping updates the file's times only if its page was clean before
        os.fdatasync(descriptor)
    return describe_file(descriptor, source.name)


def _unless_partial(source: Source, facts: SourceFile | None) -> SourceFile | None:
    """Returns None for a file if the model's index lists only some of its tensors. Raises Error if the header has changed since it was read."""
    if facts is None:
        return None
    now, then = read_header(source.file, source.name), source.header
    if len(now) == len(then) and (now.names, now.types, now.shapes, now.offsets) != (then.names, then.types, then.shapes, then.offsets):
        raise _changed(source)
    return facts if len(now) == len(then) else None


def _changed(source: Source) -> Error:
    return Error(f"{source.name} changed while it was loaded: start again", code="io", filename=source.name)


def _read(layout: Layout, memory: Any) -> None:
    reads = Reads()
    try:
        for source, ranges in layout.taken_ranges():
            reads.start(source, memory, ranges)
    except BaseException:
        reads.stop()
        raise
    reads.wait()
