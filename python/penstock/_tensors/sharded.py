"""load_sharded(): loads one model onto several devices in one call; each device gets its part."""

from __future__ import annotations

import fnmatch
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._core.arrays.library import Arena
from .._core.errors import InvalidArgument
from .frameworks import Framework, framework_on
from .load_file import Layout, check_type, check_wanted, part_wanted
from .node_ranks import ModelPlan, NodeRanks, NodeReads
from .reads import Ranges, Reads
from .slices import Part
from .sources import Paths, Source, Sources, StorageOptions, check_names

__all__ = ["OwnReads", "Plan", "Rank", "Shard", "dims_of", "load_sharded", "planned"]

# The dimension to split; None: each device gets the whole tensor.
Shard = Mapping[str, int | None] | Callable[[str, tuple[int, ...]], int | None]


def load_sharded(
    filename: Paths,
    devices: Sequence[Any],
    shard: Shard | None = None,
    framework: str | None = None,
    *,
    names: Iterable[str] | None = None,
    storage_options: StorageOptions | None = None,
) -> list[dict[str, Any]]:
    """Loads a model onto several devices in one call, replicated or split for tensor parallelism. Blocks; KeyboardInterrupt stops it.

    Arguments:

    - `filename`, `framework`, `names`, `storage_options`: as for `load_file()`.
    - `devices`: each rank's device, in rank order. A device may appear more than once.
    - `shard`: maps name patterns as in `fnmatch` ("*.q_proj.weight") to the dimension in which to split tensors into equal parts, one per device. The
      first matching pattern applies; None, or no match, gives the whole tensor to each device. May also be a function that takes a tensor's name
      and shape.

    The file is read once. Each part uses its own GPU's link. A tensor for all devices is read into the first one, and then copied from GPU to GPU if
    they have direct access to each other. All tensors on a device are views of one allocation, each at a multiple of 256 bytes.

    Returns a dict of tensors by name for each device.

    Raises:

    - `InvalidArgument`: a tensor cannot be split into equal parts.
    - the errors of `load_file()`.
    """
    places = [framework_on(framework, each) for each in _checked(devices)]
    with Sources(filename, [each.device for each in places if ":" in each.device], storage_options) as sources:
        ranks = [Rank(number, place) for number, place in enumerate(places)]
        plan = planned(sources, ranks, len(ranks), dims_of(shard), check_names(names), NodeRanks(0, 1, len(ranks)))
        return _filled(ranks, plan)


def dims_of(shard: Shard | None) -> Callable[[str, tuple[int, ...]], int | None]:
    """Returns a function that takes a tensor's name and shape and returns the dimension to split."""
    if shard is None:
        return lambda name, shape: None
    if callable(shard):
        return shard
    if not isinstance(shard, Mapping):
        raise TypeError(f"shard must be a mapping or a callable, not {type(shard).__name__}")
    rules = list(shard.items())

    def find(name: str, shape: tuple[int, ...]) -> int | None:
        return next((dim for pattern, dim in rules if fnmatch.fnmatchcase(name, pattern)), None)

    return find


def _checked(devices: Any) -> list[Any]:
    if isinstance(devices, (str, bytes)) or not isinstance(devices, Iterable):
        raise TypeError(f"devices must be a sequence of devices, not {type(devices).__name__}")
    listed = list(devices)
    if not listed:
        raise InvalidArgument("devices is empty", code="invalid_argument")
    return listed


# Reads run in request order. Interleaving the devices' parts fills the devices at the same time, each over its own link.
_TURN_BYTES = 64 << 20


class Rank:
    """One rank's tensors: first the common ones, at the same offsets in every rank, then its own parts."""

    def __init__(self, number: int, place: Framework) -> None:
        self.number = number
        self.place = place
        self.own = Layout(place)
        self.passing = Layout(place)  # tensors that are read completely and then cut
        self.columns: list[tuple[NodeReads, int, Part, int]] = []  # parts of `own` that the ranks of the node read together: reads, row, part, offset in memory

    def views(self, own: Arena, passing: Arena, names: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the tensors, in the order of the names, and those that must still be cut."""
        found: dict[str, Any] = dict.fromkeys(names)
        uncut: dict[str, Any] = {}
        own.views(self.own.rows(), found)
        passing.views(self.passing.rows(), uncut)
        return found, uncut

    def cut(self, found: dict[str, Any], uncut: dict[str, Any]) -> dict[str, Any]:
        for name, part in self.passing.cuts.items():
            found[name] = self.place.library.copied(uncut[name][part])
        return found


class OwnReads(Reads):
    """Reads the ranks' own parts. Columns are read in wait(), a few tensors at a time, because the ranks of the node fetch them together."""

    _most_tensors = 2  # in flight; meanwhile, the kernel fetches the tensors after them

    def __init__(self, ranks: Sequence[Rank], arenas: Sequence[Arena]) -> None:
        super().__init__()
        self._columns = [(each, arena.memory) for each, arena in zip(ranks, arenas)]

    def wait(self) -> None:
        under_way: deque[Reads] = deque()
        try:
            for turn in itertools.zip_longest(*([(*each, memory) for each in rank.columns] for rank, memory in self._columns)):
                for reads, row, part, place, memory in filter(None, turn):
                    reads.request(row, part)
                    ranges = Ranges()
                    ranges.add_part(reads.source.header.offsets[row], part, place)
                    under_way.append(Reads())
                    under_way[-1].start(reads.source, memory, ranges)
                while len(under_way) > self._most_tensors * len(turn):
                    under_way[0].wait()
                    under_way.popleft()
            for each in under_way:
                each.wait()
            super().wait()
        finally:
            for each in under_way:
                each.stop()
            self.stop()


class Plan(NamedTuple):
    """The reads for some of the ranks."""

    whole: list[tuple[Source, Ranges]]  # common tensors, at the same offsets in each rank's memory
    whole_bytes: int  # size of that memory, from its start
    dims: dict[str, int | None]  # the split dimension of each tensor, in file order


def planned(sources: Sources, ranks: list[Rank], world: int, dim_of: Callable[[str, tuple[int, ...]], int | None], names: set[str] | None, node: NodeRanks) -> Plan:
    """`node`: the ranks that read the files on this node."""
    check_wanted(sources.files, names, None)
    cut: list[tuple[Source, int, list[Part]]] = []
    dims: dict[str, int | None] = {}

    def noted(name: str, shape: tuple[int, ...]) -> int | None:
        dims[name] = dim_of(name, shape)
        return dims[name]

    for source in sources:
        rows = source.rows_of(names)
        parts_of = [_parts_of(source, row, ranks, world, noted) for row in rows]
        for rank in ranks:
            rank.own.add_whole(source, [row for row, parts in zip(rows, parts_of) if parts is None])
        cut += [(source, row, parts) for row, parts in zip(rows, parts_of) if parts is not None]
    whole_bytes = ranks[0].own.nbytes
    whole = [rank.own.taken_ranges() for rank in ranks][0]  # the same for all ranks
    together = ModelPlan(node)
    for source, row, parts in cut:
        for rank, part in zip(ranks, parts):
            layout = rank.own if part.cut is None else rank.passing
            reads = together.reads_of(source, row, part) if part.cut is None else None
            place = layout.add_part(source, row, rank.place.dtype(source.header.types[row]), part, is_read=reads is None)
            if reads is not None:
                rank.columns.append((reads, row, part, place))
    return Plan(whole, whole_bytes, dims)


def _parts_of(
    source: Source, row: int, ranks: list[Rank], world: int, dim_of: Callable[[str, tuple[int, ...]], int | None]
) -> list[Part] | None:
    """Returns each rank's part, or None if every rank gets the whole tensor."""
    header = source.header
    name, word = header.names[row], header.types[row]
    shapes = [check_type(source.name, name, word, header.shapes[row], each.place, each.place.dtype(word)) for each in ranks]
    dim = dim_of(name, shapes[0])
    if dim is None or world == 1:
        return None
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f'shard returned {dim!r} for tensor "{name}", which is neither a dimension nor None')
    exact = not all(each.place.indexes for each in ranks)
    found = []
    for rank, shape in zip(ranks, shapes):
        part = part_wanted(source, name, word, shape, {name: (dim, rank.number, world)}, exact)
        assert part is not None
        found.append(part.in_little_memory())
    return found


def _filled(ranks: list[Rank], plan: Plan) -> list[dict[str, Any]]:
    arenas = [rank.place.arena(rank.own.nbytes) for rank in ranks]
    reads = OwnReads(ranks, arenas)
    try:
        passing = [rank.place.arena(rank.passing.nbytes) for rank in ranks]
        for source, ranges in plan.whole:
            reads.start(source, arenas[0].memory, ranges, [each.memory for each in arenas[1:]])
        turns = [
            [(source, arena.memory, turn) for source, ranges in rank.own.ranges for turn in ranges.in_turns(_TURN_BYTES)]
            for rank, arena in zip(ranks, arenas)
        ]
        for each in itertools.chain.from_iterable(itertools.zip_longest(*turns)):
            if each is not None:
                reads.start(*each)
        # A tensor that is cut later is read completely for every rank.
        for source, ranges in ranks[0].passing.ranges:
            reads.start(source, passing[0].memory, ranges, [each.memory for each in passing[1:]])
        found = [rank.views(arena, room, plan.dims) for rank, arena, room in zip(ranks, arenas, passing)]  # while the reads run
    except BaseException:
        reads.stop()
        raise
    reads.wait()
    return [rank.cut(*each) for rank, each in zip(ranks, found)]
