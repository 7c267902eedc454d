"""load_into() in the usual case: PyTorch's tensors, one for each of the files', of its type and shape, contiguous, with memory of its own.

Whether it is that is found out by columns, since tensor by tensor it would take as long as reading does. All other cases are _into.py's, which
also tells what is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from .. import _native
from ._frameworks import framework_on
from ._reading import Ranges, Reads
from ._sources import Source, Sources
from ._targets import count_changes, settle_torch

__all__ = ["PlainTargets"]


class PlainTargets:
    """Of a mapping of names and tensors. find() makes one."""

    def __init__(self) -> None:
        self._of: list[tuple[Source, list[Any], list[int]]] = []  # tensors and addresses, in the order of the file
        self._begin = self._end = 0  # of the memory that they lie in, and others too

    @staticmethod
    def find(sources: Sources, targets: Mapping[str, Any]) -> PlainTargets | None:
        """None: it is another case."""
        torch = sys.modules.get("torch")
        if torch is None or not set(map(type, targets.values())) <= {torch.Tensor, torch.nn.Parameter}:
            return None
        if sum(len(each.header.names) for each in sources) != len(targets):
            return None
        found = PlainTargets()
        for source in sources:
            header = source.header
            if not header.names:
                continue
            try:
                tensors = [targets[name] for name in header.names]
            except KeyError:
                return None
            if not _fit(torch, header.types, header.shapes, tensors):
                return None
            found._of.append((source, tensors, list(map(torch.Tensor.data_ptr, tensors))))
        return found if found._are_apart() else None

    def fill(self) -> None:
        """Blocks. When it fails, what is in the tensors is not known."""
        settle_torch({each.device for _, tensors, _ in self._of for each in tensors})
        reads = Reads()
        try:
            for source, tensors, addresses in self._of:
                ranges = Ranges()
                begin = self._begin
                ranges.add_all(source.header.offsets, source.header.sizes, [address - begin for address in addresses])
                reads.start(source, _native.Pointer(begin, self._end - begin, tensors), ranges)
            for _, tensors, _ in self._of:
                count_changes(tensors)
        except BaseException:
            reads.stop()
            raise
        reads.wait()

    def _are_apart(self) -> bool:
        spans = sorted(span for source, _, addresses in self._of for span in zip(addresses, source.header.sizes) if span[1])
        if spans:
            self._begin, self._end = spans[0][0], sum(spans[-1])
        return all(address + nbytes <= following[0] for (address, nbytes), following in zip(spans, spans[1:]))


def _fit(torch: Any, words: list[str], shapes: list[tuple[int, ...]], tensors: list[Any]) -> bool:
    if {each.layout for each in tensors} != {torch.strided} or not {each.type for each in set(map(attrgetter("device"), tensors))} <= {"cpu", "cuda"}:
        return False
    if "F4" in words:  # of which PyTorch counts two as one
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
