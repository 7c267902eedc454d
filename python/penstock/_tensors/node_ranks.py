"""Reads for the ranks of one node: the kernel fetches what they need into the page cache, so that a server sends each byte to the node once.

Each rank fetches a share of what all of them need next. Every layer is expected to be split like the layers before it.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from .._core.errors import Error
from .._core.forks import forkable_lock
from .ahead import most_ahead_bytes
from .slices import Part
from .sources import Source

__all__ = ["ModelPlan", "NodePlan", "NodeRanks", "NodeReads", "node_ranks", "ranges_of_node"]

_page_bytes = os.sysconf("SC_PAGE_SIZE")  # a gap that is too short to contain a whole page is read too
_fetched_bytes = 128 << 10  # the kernel fetches at most this much per call
_most_ahead_bytes = 256 << 20  # limit per node for bytes that are fetched before the ranks request them
_most_parts = 16  # per tensor

_number = re.compile(r"\d+")
_shard = re.compile(r"-(\d+)-of-(?=\d+\.safetensors$)")

Range = tuple[int, int]  # offset and length
_Kind = tuple[str, str, tuple[int, ...]]  # name without the first number, type and shape


class NodeRanks(NamedTuple):
    rank: int  # of this process on its node
    world: int  # processes on this node that load the same model
    devices: int = 1  # of each process; each device gets a part
    is_job: bool = False  # True if no other node loads the model

    @property
    def parts(self) -> int:
        """The number of parts of a tensor that the node needs."""
        return self.world * self.devices


def node_ranks() -> NodeRanks:
    """Returns the ranks of this node: from the variables of torchrun, else from torch.distributed, with one rank per GPU."""
    world, rank, job = _variable("LOCAL_WORLD_SIZE"), _variable("LOCAL_RANK"), _variable("WORLD_SIZE")
    torch = sys.modules.get("torch")
    if world is None and torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        job = torch.distributed.get_world_size()
        world = min(job, torch.cuda.device_count())
        rank = torch.distributed.get_rank() if rank is None else rank
    return NodeRanks((rank or 0) % world, world, is_job=job == world) if world else NodeRanks(0, 1)


def _variable(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 6 else None


def ranges_of_node(nbytes: int, part: Part | None, world: int) -> list[Range]:
    """Returns the ranges of a tensor that the ranks of a node need if one of them needs this part; None: the whole tensor.

    `nbytes`: the tensor's size. Offsets are relative to the tensor's start. The ranks are assumed to need adjacent parts.
    """
    if part is None or not part.nbytes:
        return _shares(0, nbytes if part is None else 0, world)
    stride = part.starts[1] - part.starts[0] if len(part.starts) > 1 else nbytes
    inside = part.starts[0] % stride
    before = inside // part.run_bytes % world * part.run_bytes  # bytes of the node's range before this rank's run
    length = min(part.run_bytes * world, stride - inside + before)
    if len(part.starts) == 1 or stride - length < _page_bytes:
        return _shares(part.starts[0] - before, part.starts[-1] - part.starts[0] + length, world)
    return [(start - before, length) for start in part.starts]


def _shares(offset: int, nbytes: int, world: int) -> list[Range]:
    step = max(1, -(-nbytes // world))
    return [(offset + at, min(step, nbytes - at)) for at in range(0, nbytes, step)]


class NodePlan:
    """The parts of a model's tensors that this process needs, by name without the first number, which is the layer's number. Thread-safe."""

    def __init__(self) -> None:
        self._lock = forkable_lock()  # guards the members below
        self._parts: dict[_Kind, dict[Range, Part | None]] = {}
        self._next: NodeReads | None = None  # the shard after the one that is being read
        self._next_name = ""

    def kinds_of(self, source: Source) -> list[_Kind]:
        """Returns the kind of each tensor of a file. Tensors of one kind have the same parts."""
        header = source.header
        return [(_number.sub("", name, count=1), word, tuple(shape)) for name, word, shape in zip(header.names, header.types, header.shapes)]

    def add(self, kind: _Kind, part: Part | None) -> bool:
        """Returns True if the kind was not known."""
        with self._lock:
            known = self._parts.setdefault(kind, {})
            is_new = not known
            place = (0, 0) if part is None or not part.starts else (part.starts[0], part.nbytes)
            if len(known) < _most_parts and place not in known:
                known[place] = None if part is None else part.in_little_memory()
            return is_new

    def knows(self, kind: _Kind) -> bool:
        return kind in self._parts

    def parts(self, kind: _Kind) -> list[Part | None]:
        """Returns the parts that this process will need, if it has read such a tensor before."""
        with self._lock:
            return list(self._parts.get(kind, {}).values())

    def reads_of(self, source: Source, node: NodeRanks) -> NodeReads | None:
        """Returns the reads of a file, or None if the file is on a local drive or at a URL, or if PENSTOCK_CACHE is not auto."""
        kept = source.in_page_cache()
        if kept is None:
            return None
        with self._lock:
            following, self._next = self._next, None
        reads = NodeReads(kept, self, node)
        if following is not None and os.path.samestat(os.fstat(following.source.file.fileno()), os.fstat(kept.file.fileno())):
            reads.goes_on(following)
        return reads

    def after(self, source: Source, node: NodeRanks) -> NodeReads | None:
        """Returns the reads of the next shard, if there is one and it is not open yet."""
        name = _shard.sub(lambda found: f"-{int(found[1]) + 1:0{len(found[1])}}-of-", source.name)
        with self._lock:
            if name not in (source.name, self._next_name):
                self._next, self._next_name = None, name
                with suppress(Error):  # it is reported if the program opens the file
                    kept = Source(name).in_page_cache()
                    self._next = None if kept is None else NodeReads(kept, self, node)
            return self._next


class ModelPlan:
    """The plan of a process that knows all of its parts in advance."""

    def __init__(self, node: NodeRanks) -> None:
        self._node = node._replace(is_job=False)  # fetches only what is in the plan
        self._files: dict[str, NodeReads | None] = {}
        self._parts: dict[tuple[str, int], Part] = {}

    def reads_of(self, source: Source, row: int, part: Part) -> NodeReads | None:
        """Adds a part. Returns None if this process reads the part alone, because it is one range, or because the file is on a local drive or at a URL."""
        if self._node.parts == 1 or len(part.starts) == 1:
            return None
        if source.name not in self._files:
            kept = source.in_page_cache()
            self._files[source.name] = None if kept is None else NodeReads(kept, self, self._node)
        found = self._files[source.name]
        if found is not None:
            self._parts.setdefault((source.name, row), part)
        return found

    def kinds_of(self, source: Source) -> list[tuple[str, int]]:
        return [(source.name, row) for row in range(len(source.header))]

    def add(self, kind: Any, part: Part | None) -> bool:
        return False

    def knows(self, kind: Any) -> bool:
        return kind in self._parts

    def parts(self, kind: Any) -> list[Part | None]:
        part = self._parts.get(kind)
        return [] if part is None else [part]

    def after(self, source: Source, node: NodeRanks) -> NodeReads | None:
        names = list(self._files)
        following = names.index(source.name) + 1
        return self._files[names[following]] if following < len(names) else None


class NodeReads:
    """Fetches the parts of one file that the ranks of the node need. Thread-safe."""

    def __init__(self, source: Source, plan: NodePlan | ModelPlan, node: NodeRanks) -> None:
        """`source`: reads through the page cache."""
        self.source = source
        self._plan, self._node = plan, node
        self._kinds: list[Any] = plan.kinds_of(source)
        self._next_of_kind = [len(self._kinds)] * len(self._kinds)
        rows = dict.fromkeys(self._kinds, len(self._kinds))
        for row in reversed(range(len(self._kinds))):
            self._next_of_kind[row], rows[self._kinds[row]] = rows[self._kinds[row]], row
        self._lock = forkable_lock()  # guards the members below
        self._ahead: dict[int, int] = {}  # sizes of the tensors that were fetched but not requested yet, by row
        self._ahead_bytes = 0  # their sum
        self._begun: set[int] = set()  # tensors that were fetched or requested
        self._in_order = 0  # all tensors before this row were requested
        self._requested: set[int] = set()  # requested rows after that one
        self._looked_at = range(0)  # rows that are fetched, or of unknown kinds
        self._needed_all = False  # the value of needs_all when they were looked at

    def goes_on(self, before: NodeReads) -> None:
        """Takes over what was fetched of the same file. Not its header: the file may have been written since."""
        with before._lock:
            ahead, begun = dict(before._ahead), set(before._begun)
        with self._lock:
            rows = range(len(self.source.header))
            self._ahead, self._begun = {row: size for row, size in ahead.items() if row in rows}, begun
            self._ahead_bytes = sum(self._ahead.values())

    def request(self, row: int, part: Part | None) -> None:
        """Call this before a part is read. Fetches what several ranks need, and this rank's share of the following tensors."""
        is_new_kind = self._plan.add(self._kinds[row], part)
        with self._lock:
            is_new = row not in self._begun
        has_columns = part is not None and len(part.starts) > 1
        if is_new or has_columns:
            ranges = self._ranges(row, [part])
            first = len(ranges) * self._node.rank // self._node.world
            # Each rank starts with its share, so all shares are fetched at once. Long ranges are read in long pieces anyway.
            self._fetch(ranges[first:] + ranges[:first], sys.maxsize if has_columns else _most_ahead_bytes // self._node.world)
        with self._lock:
            # No longer count earlier tensors that were not requested: they are skipped, or are still in the page cache when they are requested.
            for each in [row, *itertools.takewhile(row.__ge__, self._ahead)]:
                self._ahead_bytes -= self._ahead.pop(each, 0)
            self._begun.add(row)
            self._requested.add(row)
            while self._in_order in self._requested:
                self._requested.discard(self._in_order)
                self._in_order += 1
            # If the program has requested every tensor so far, the ranks of all nodes together need all of the following ones.
            needs_all = self._node.is_job and self._in_order == row + 1
        room = self._fetch_following(row, min(_most_ahead_bytes, most_ahead_bytes()), needs_all, is_new_kind)
        following = self._plan.after(self.source, self._node) if room > 0 else None
        if following is not None:
            following._fetch_following(-1, room, needs_all, is_new_kind)

    def _fetch_following(self, row: int, room: int, needs_all: bool, is_new_kind: bool) -> int:
        """Fetches this rank's share of the tensors after this row. Returns how much of `room` is left at the end of the file.

        - `needs_all`: fetches all tensors, including those of unknown kinds.
        - `is_new_kind`: True if the kind of this row was unknown. For row -1, it is about a row in the file before this one.
        """
        rows, room = self._following(row, room, needs_all, is_new_kind)
        for each in rows:
            ranges = self._ranges(each, self._plan.parts(self._kinds[each]) or [None])
            first, last = (len(ranges) * rank // self._node.world for rank in (self._node.rank, self._node.rank + 1))
            self._fetch(ranges[first:last])
        return room

    def _following(self, row: int, room: int, needs_all: bool, is_new_kind: bool) -> tuple[list[int], int]:
        found: list[int] = []
        sizes = self.source.header.sizes
        with self._lock:
            room -= self._ahead_bytes
            first, past = self._looked_at.start, self._looked_at.stop
            if needs_all != self._needed_all or not first <= row + 1 <= past or is_new_kind and row < 0:
                first = past = row + 1
            again = itertools.takewhile(past.__gt__, self._same_kind(row)) if is_new_kind and row >= 0 else ()
            first = row + 1 if is_new_kind else first
            for each in itertools.chain(again, range(past, len(sizes))):
                if each not in self._begun and (needs_all or self._plan.knows(self._kinds[each])):
                    if sizes[each] > room:
                        room, past = 0, each
                        break
                    room -= sizes[each]
                    self._begun.add(each)
                    self._ahead[each] = sizes[each]
                    self._ahead_bytes += sizes[each]
                    found.append(each)
                past = max(past, each + 1)
            self._looked_at, self._needed_all = range(first, past), needs_all
        return found, max(room, 0)

    def _same_kind(self, row: int) -> Iterator[int]:
        while (row := self._next_of_kind[row]) < len(self._kinds):
            yield row

    def _ranges(self, row: int, parts: Iterable[Part | None]) -> list[Range]:
        header = self.source.header
        return [(header.offsets[row] + at, length) for part in parts for at, length in ranges_of_node(header.sizes[row], part, self._node.parts)]

    def _fetch(self, ranges: Iterable[Range], most_bytes: int = sys.maxsize) -> None:
        """Asks the kernel to fetch ranges into the page cache. It skips bytes that are there or are being read already."""
        descriptor = self.source.file.fileno()
        with suppress(OSError):  # some file systems reject this advice
            for offset, length in ranges:
                length = min(length, most_bytes)
                most_bytes -= length
                for at in range(0, length, _fetched_bytes):
                    os.posix_fadvise(descriptor, offset + at, min(_fetched_bytes, length - at), os.POSIX_FADV_WILLNEED)
