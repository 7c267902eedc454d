"""load_into() in the common case: contiguous PyTorch tensors, each with the file's type and shape and its own memory.

C++ code checks the tensors, or, for older PyTorch, column-wise code, because checking each tensor in Python would take as long as the reads. into.py
handles all other cases and reports the errors.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from .. import _native
from .._core.arrays import library_named
from .._core.torch_memory import lie_in_their_storages
from .frameworks import framework_on
from .reads import Links, Ranges, Reads
from .sources import Source, Sources

__all__ = ["PlainTargets"]


class PlainTargets:
    """A mapping of names to tensors that load_into() can fill directly. Created by find()."""

    def __init__(self) -> None:
        self._devices: set[Any] = set()
        self._reads: list[tuple[Source, list[Any], Ranges]] = []  # tensors in file order
        self._begin = self._end = 0  # the address range that contains them, and possibly other memory

    @staticmethod
    def find(sources: Sources, targets: Mapping[str, Any]) -> PlainTargets | None:
        """Returns the targets, or None if this is not the common case."""
        torch = sys.modules.get("torch")
        if torch is None or sum(len(each.header) for each in sources) != len(targets):
            return None
        found = PlainTargets()
        return found if found._find_by_dlpack(torch, sources, targets) or found._find_by_columns(torch, sources, targets) else None

    def fill(self, links: Links | None) -> None:
        """Fills the tensors. Blocks. After an error, their content is undefined."""
        library = library_named("torch")
        for device in self._devices:
            library.settle(str(device))
        reads = Reads(links)
        try:
            for source, tensors, ranges in self._reads:
                reads.start(source, _native.Pointer(self._begin, self._end - self._begin, tensors), ranges)
            for _, tensors, _ in self._reads:
                library.have_changed(tensors)
        except BaseException:
            reads.stop()
            raise
        reads.wait()

    def _find_by_dlpack(self, torch: Any, sources: Sources, targets: Mapping[str, Any]) -> bool:
        """Uses DLPack's C functions (PyTorch 2.10 and later), which are ten times faster."""
        if not isinstance(targets, dict) or type(targets) not in (dict, OrderedDict):  # other mappings may look up names in their own way
            return False
        headers = [each.header.told for each in sources]
        found = _native.find_plain_tensors(headers, targets, (torch.Tensor, torch.nn.Parameter))
        if found is None:
            return False
        self._begin, self._end, files = found
        if any(any(map(torch.Tensor.is_neg, tensors)) for tensors, _ in files):
            return False
        for source, (tensors, packed) in zip(sources, files):
            ranges = Ranges()
            ranges.add_packed(packed)
            self._devices.update(each.device for each in tensors[:1])  # all are on the same device
            self._reads.append((source, tensors, ranges))
        return True

    def _find_by_columns(self, torch: Any, sources: Sources, targets: Mapping[str, Any]) -> bool:
        if not set(map(type, targets.values())) <= {torch.Tensor, torch.nn.Parameter}:
            return False
        found: list[tuple[Source, list[Any], list[int]]] = []  # files with their tensors and the tensors' addresses
        for source in sources:
            header = source.header
            if not header.names:
                continue
            try:
                tensors = [targets[name] for name in header.names]
            except KeyError:
                return False
            if not _fit(torch, header.types, header.shapes, tensors):
                return False
            if not lie_in_their_storages(tensors, header.sizes):
                return False
            found.append((source, tensors, list(map(torch.Tensor.data_ptr, tensors))))
        spans = sorted(span for source, _, addresses in found for span in zip(addresses, source.header.sizes) if span[1])
        if spans and not spans[0][0]:
            return False
        if any(following[0] < address + nbytes for (address, nbytes), following in zip(spans, spans[1:])):
            return False
        if spans:
            self._begin, self._end = spans[0][0], sum(spans[-1])
        for source, tensors, addresses in found:
            ranges = Ranges()
            ranges.add_all(source.header.offsets, source.header.sizes, [address - self._begin for address in addresses])
            self._devices.update(map(attrgetter("device"), tensors))
            self._reads.append((source, tensors, ranges))
        return True


def _fit(torch: Any, words: list[str], shapes: list[tuple[int, ...]], tensors: list[Any]) -> bool:
    if any(map(attrgetter("is_nested"), tensors)):  # nested tensors have no shape
        return False
    if {each.layout for each in tensors} != {torch.strided} or not {each.type for each in set(map(attrgetter("device"), tensors))} <= {"cpu", "cuda"}:
        return False
    if "F4" in words:  # PyTorch counts two of them as one
        return False
    here = framework_on("pt", "cpu")
    types = {word: here.dtype(word) for word in set(words)}
    return (
        [types[word] for word in words] == list(map(attrgetter("dtype"), tensors))
        and shapes == list(map(attrgetter("shape"), tensors))
        and all(map(torch.Tensor.is_contiguous, tensors))
        and not any(map(torch.Tensor.is_neg, tensors))
        and not any(map(torch.Tensor.is_conj, tensors))
    )
