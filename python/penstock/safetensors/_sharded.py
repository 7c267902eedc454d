"""load_sharded(): one model for several devices in one call, each of which gets its part."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .._errors import InvalidArgument
from ._frameworks import Framework, framework_on
from ._load import Layout, check_type, check_wanted, part_wanted
from ._reading import Ranges, Reads
from ._slices import Part
from ._sources import Paths, Source, Sources, check_names

__all__ = ["Shard", "dims_of", "load_sharded"]

# The dimension that a tensor is cut in; None: everyone gets all of it.
Shard = Mapping[str, int | None] | Callable[[str, tuple[int, ...]], int | None]


def load_sharded(
    filename: Paths,
    devices: Sequence[Any],
    shard: Shard | None = None,
    framework: str | None = None,
    *,
    names: Iterable[str] | None = None,
) -> list[dict[str, Any]]:
    """The tensors of safetensors files, for each of several devices a dict of its parts, as tensor parallel has them. Blocks; KeyboardInterrupt
    stops it.

    filename, framework, names: as for load_file(). devices: of the ranks, in their order; one may come twice.
    shard: patterns of tensors' names, as of fnmatch ("*.q_proj.weight"), and the dimension that those are cut in, in equal parts, one for each
    device; the first that fits counts, and None there, or no pattern, gives all of the tensor to every device. Or a callable of name and shape.

    The file is read once: a part by the device that has it, over its own link; what everyone gets by the first device, from which it goes on
    from GPU to GPU, where these reach each other. The tensors of a device are views of one allocation, each at a multiple of 256 bytes.
    Raises InvalidArgument where a tensor cannot be cut so, and what load_file() raises.
    """
    places = [framework_on(framework, each) for each in _checked(devices)]
    with Sources(filename, [each.device for each in places if ":" in each.device]) as sources:
        return _read(sources, places, dims_of(shard), check_names(names))


def dims_of(shard: Shard | None) -> Callable[[str, tuple[int, ...]], int | None]:
    """By name and shape, the dimension."""
    if shard is None:
        return lambda name, shape: None
    if callable(shard):
        return shard
    if not isinstance(shard, Mapping):
        raise TypeError(f"shard is a mapping or a callable, not {type(shard).__name__}")
    rules = list(shard.items())

    def find(name: str, shape: tuple[int, ...]) -> int | None:
        return next((dim for pattern, dim in rules if fnmatch.fnmatchcase(name, pattern)), None)

    return find


def _checked(devices: Any) -> list[Any]:
    if isinstance(devices, (str, bytes)) or not isinstance(devices, Iterable):
        raise TypeError(f"devices is a sequence of devices, not {type(devices).__name__}")
    listed = list(devices)
    if not listed:
        raise InvalidArgument("devices is empty", code="invalid_argument")
    return listed


class _Rank:
    """What one device gets: what all get first, at the same places everywhere, and its parts behind it."""

    def __init__(self, place: Framework) -> None:
        self.place = place
        self.own = Layout(place)
        self.passing = Layout(place)  # tensors that are read as a whole and then cut


def _read(
    sources: Sources, places: list[Framework], dim_of: Callable[[str, tuple[int, ...]], int | None], names: set[str] | None
) -> list[dict[str, Any]]:
    check_wanted(sources.files, names, None)
    ranks = [_Rank(each) for each in places]
    cut: list[tuple[Source, int, list[Part]]] = []
    order: dict[str, Any] = {}
    for source in sources:
        header = source.header
        rows = range(len(header.names)) if names is None else [row for row, name in enumerate(header.names) if name in names]
        order.update(dict.fromkeys(header.names[row] for row in rows))
        parts_of = [_parts_of(source, row, places, dim_of) for row in rows]
        whole = [row for row, parts in zip(rows, parts_of) if parts is None]
        for rank in ranks:
            rank.own.add_whole(source, whole)
        cut += [(source, row, parts) for row, parts in zip(rows, parts_of) if parts is not None]
    whole_ranges = [rank.own.taken_ranges() for rank in ranks][0]  # which are all the same
    for source, row, parts in cut:
        for rank, part in zip(ranks, parts):
            layout = rank.own if part.cut is None else rank.passing
            dtype = rank.place.dtype(source.header.types[row])
            layout.add_part(source, row, dtype, part)
    return _filled(ranks, whole_ranges, order)


def _parts_of(
    source: Source, row: int, places: list[Framework], dim_of: Callable[[str, tuple[int, ...]], int | None]
) -> list[Part] | None:
    """For each rank; None: all of it for everyone."""
    header = source.header
    name, word = header.names[row], header.types[row]
    shapes = [check_type(source.name, name, word, header.shapes[row], each, each.dtype(word)) for each in places]
    dim = dim_of(name, shapes[0])
    if dim is None or len(places) == 1:
        return None
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f'shard gives {dim!r} for tensor "{name}", which is neither a dimension nor None')
    exact = not all(each.indexes for each in places)
    found = []
    for rank, shape in enumerate(shapes):
        part = part_wanted(source, name, word, shape, {name: (dim, rank, len(places))}, exact)
        assert part is not None
        found.append(part)
    return found


def _filled(ranks: list[_Rank], whole: list[tuple[Source, Ranges]], order: dict[str, Any]) -> list[dict[str, Any]]:
    reads = Reads()
    results: list[dict[str, Any]] = []
    passed: list[dict[str, Any]] = []
    try:
        arenas = [rank.place.arena(rank.own.nbytes) for rank in ranks]
        passing = [rank.place.arena(rank.passing.nbytes) for rank in ranks]
        for source, ranges in whole:
            reads.start(source, arenas[0].memory, ranges, [each.memory for each in arenas[1:]])
        for rank, arena in zip(ranks, arenas):
            for source, ranges in rank.own.ranges:
                reads.start(source, arena.memory, ranges)
        # A tensor that is cut later is the same for everyone.
        for source, ranges in ranks[0].passing.ranges:
            reads.start(source, passing[0].memory, ranges, [each.memory for each in passing[1:]])
        for rank, arena, room in zip(ranks, arenas, passing):  # while the bytes come
            results.append(dict(order))
            arena.views(rank.own.rows(), results[-1])
            passed.append({})
            room.views(rank.passing.rows(), passed[-1])
    except BaseException:
        reads.stop()
        raise
    reads.wait()
    for rank, found, room_views in zip(ranks, results, passed):
        for name, part in rank.passing.cuts.items():
            found[name] = rank.place.copied(room_views[name][part])
    return results
