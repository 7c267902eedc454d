"""Plans which server sends which part of each tensor, so that each byte is sent only once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .._core.arrays.library import Facts, View
from .._core.batches import in_batches
from .._core.boxes import Box
from .._core.errors import InvalidArgument, OutOfMemory
from .._core.overlaps import OVERLAP, crossing
from .._core.packing import aligned
from .._tensors.errors import listed
from .._tensors.frameworks import Framework
from .._tensors.types import WORDS
from ._held import Held
from ._local_arrays import Local, Places, local_of, places_of
from ._wire import BATCH_BYTES, GATHERED_BYTES, MOST_IN_BATCH, Catalog, Piece, Row

__all__ = ["Batch", "Landing", "Plan", "made_for", "planned"]

_most_of_one = 4096  # pieces per tensor


class Landing(NamedTuple):
    """A piece of a tensor and its target."""

    piece: Piece
    nbytes: int
    name: str
    local: Local
    view: Any  # part of the array
    memory: Any  # the view's memory; None: not contiguous, so it is received in a temporary buffer
    in_runs: bool  # contiguous on both sides, so no temporary buffer is needed

    @property
    def direct(self) -> bool:
        return self.memory is not None


class Batch(NamedTuple):
    """The pieces in one message."""

    landings: list[Landing]
    room: int  # bytes of temporary buffers


class Plan(NamedTuple):
    batches: list[list[Batch]]  # one list for each server
    missing: list[str]
    unexpected: list[str]
    filled: list[Local]
    places: Places
    held: list[Held]  # the filled tensors, with all their names

    @property
    def landings(self) -> list[Landing]:
        return [each for of in self.batches for batch in of for each in batch.landings]


class _Source(NamedTuple):
    server: int
    number: int # row number
    row: Row


def _sources_of(catalogs: Sequence[Catalog], names: set[str] | None, problems: list[str]) -> dict[str, list[_Source]]:
    found: dict[str, list[_Source]] = {}
    for server, catalog in enumerate(catalogs):
        for number, row in enumerate(catalog.rows):
            if names is None or row.name in names:
                found.setdefault(row.name, []).append(_Source(server, number, row))
    for name, sources in found.items():
        first = sources[0].row
        for each in sources[1:]:
            if (each.row.dtype, each.row.itemsize, each.row.whole) != (first.dtype, first.itemsize, first.whole):
                problems.append(f'"{name}" is {_told(first)} at one server but {_told(each.row)} at another')
                break
    return found


def _told(row: Row) -> str:
    return f"{row.dtype} {list(row.whole)}"


def planned(held: list[Held], catalogs: Sequence[Catalog], names: set[str] | None, strict: bool, into: str) -> Plan:
    """Plans a load into existing tensors. Raises InvalidArgument with a list of everything that does not match."""
    problems: list[str] = []
    sources = _sources_of(catalogs, names, problems)
    loads = [0] * len(catalogs)
    landings: list[list[Landing]] = [[] for _ in catalogs]
    fits: dict[Any, _Fitted] = {}
    for each in held:
        if each.name not in sources:
            continue
        fitted = _fitted(each, sources[each.name][0].row)
        if isinstance(fitted, str):
            problems.append(f'"{each.name}" {fitted}')
            continue
        fits.pop((each.local.key, each.box), None)
        fits[each.local.key, each.box] = fitted  # if several names share memory, the last one wins
    filled = {key: each.local for key, each in fits.items()}
    together = crossing((each.local.device, *each.local.span, i) for i, each in enumerate(fits.values()) if each.local.shape is not None)
    for i, fitted in enumerate(fits.values()):
        _find_pieces(fitted, sources[fitted.name], loads, landings, problems, apart=i in together)
    missing = [each.name for each in held if each.name not in sources and (each.local.key, each.box) not in filled]
    wanted = {each.name for each in held}
    unexpected = [name for name in sources if name not in wanted]
    if strict and missing:
        problems.append(f"missing from the server: {listed(missing)}")
    if strict and unexpected:
        problems.append(f"unexpected from the server: {listed(unexpected)}")
    if problems:
        told = "".join(f"\n    {each}" for each in problems[:100])
        raise InvalidArgument(f"the weights do not match the {into}:{told}", code="invalid_argument")
    there = [each for each in held if (each.local.key, each.box) in filled]
    return Plan([_batches(each) for each in landings], missing, unexpected, list(filled.values()), places_of(filled.values()), there)


class _Fitted(NamedTuple):
    """A requested tensor after its type and shape have been compared."""

    name: str
    itemsize: int
    whole: tuple[int, ...]
    box: Box
    local: Local


def _fitted(held: Held, row: Row) -> _Fitted | str:
    """Compares a tensor with the server's row. If they differ, returns a description of the problem."""
    local = held.local
    if local.problem is not None:
        return f"cannot be filled: it {local.problem}"
    if local.readonly:
        return "cannot be filled: it is read-only"
    if local.repeats:
        return f"cannot be filled: it {OVERLAP}"
    whole, box = held.whole, held.box
    if whole is None or box is None:
        whole, box = row.whole, Box.whole(row.whole)
        if box.size * row.itemsize != local.nbytes:
            return f"has {box.size * row.itemsize} bytes at the server but {local.nbytes} locally"
    elif held.dtype != row.dtype or local.itemsize != row.itemsize:
        return f"is {row.dtype} at the server but {held.dtype} locally"
    elif whole != row.whole:
        return f"has the shape {list(row.whole)} at the server but {list(whole)} locally"
    return _Fitted(held.name, row.itemsize, whole, box, local)


def _find_pieces(
    wanted: _Fitted, sources: list[_Source], loads: list[int], landings: list[list[Landing]], problems: list[str], *, apart: bool
) -> None:
    """Assigns the pieces of a tensor to servers. If several servers have a piece, the one with the fewest bytes to send is chosen.

    `apart`: the pieces pass through temporary buffers and are copied in the order of the names.
    """
    left = [wanted.box] if wanted.box.size else []
    for source in sorted(sources, key=lambda each: loads[each.server]):
        still: list[Box] = []
        for box in left:
            common = box.common(source.row.box)
            if common is None:
                still.append(box)
                continue
            still += box.without(common)
            landings[source.server] += _landings(wanted, source, common, apart)
            loads[source.server] += common.size * wanted.itemsize
        left = still
        if len(left) > _most_of_one:
            problems.append(f'"{wanted.name}" consists of more than {_most_of_one} pieces')
            return
    if left:
        more = f" and {len(left) - 1} other parts" if len(left) > 1 else ""
        problems.append(f'"{wanted.name}": no server has {left[0]}{more} of {list(wanted.whole)}')


def _landings(wanted: _Fitted, source: _Source, box: Box, apart: bool) -> list[Landing]:
    row, local = source.row, wanted.local
    lands_in_a_run = local.is_contiguous and box.is_run_in(wanted.box)
    together = lands_in_a_run and not apart and row.is_contiguous and box.is_run_in(row.box)
    boxes = [box] if together else box.pieces(max(1, GATHERED_BYTES // wanted.itemsize))
    if local.shape is None and not lands_in_a_run:
        raise InvalidArgument(f'"{wanted.name}" is a DeviceBuffer, in which {box} of {list(wanted.whole)} is not one contiguous range', code="invalid_argument")
    return [_landing(wanted, source, each, apart) for each in boxes]


def _landing(wanted: _Fitted, source: _Source, box: Box, apart: bool) -> Landing:
    view = wanted.local.cut(wanted.box, box, wanted.itemsize)
    library = wanted.local.library
    memory = library.memory(view) if library.is_contiguous(view) and not apart else None
    in_runs = memory is not None and source.row.is_contiguous and box.is_run_in(source.row.box)
    return Landing(Piece(source.number, box), box.size * wanted.itemsize, wanted.name, wanted.local, view, memory, in_runs)


def _batches(landings: list[Landing]) -> list[Batch]:
    """Groups pieces into messages. Pieces that need no temporary buffer come first."""
    in_runs = [each for each in landings if each.in_runs]
    gathered = [each for each in landings if not each.in_runs]
    together = [Batch(each, 0) for each in _messages(in_runs, BATCH_BYTES)]
    return together + [Batch(each, sum(one.nbytes for one in each if not one.direct)) for each in _messages(gathered, GATHERED_BYTES)]


def _messages(landings: list[Landing], most_bytes: int) -> Iterator[list[Landing]]:
    return in_batches(landings, most_bytes, lambda each: each.nbytes, MOST_IN_BATCH)


# --- new tensors


def made_for(catalogs: Sequence[Catalog], place: Framework, names: set[str] | None, parts: Any) -> tuple[dict[str, Any], list[Held]]:
    """Creates new tensors for everything that the servers have, or only for `names`; tensors in `parts` get only their part."""
    problems: list[str] = []
    sources = _sources_of(catalogs, names, problems)
    rows: list[View] = []
    boxes: dict[str, tuple[Row, Box]] = {}
    total = 0
    for name, of in sources.items():
        row = of[0].row
        whole, box = parts.get(name, (row.whole, Box.whole(row.whole)))
        dtype = place.dtype(WORDS.get(row.dtype, row.dtype))
        if dtype is None or getattr(dtype, "itemsize", row.itemsize) != row.itemsize:
            problems.append(f'"{name}" is {_told(row)}, which {place.name} does not support: pass a mapping that contains a tensor for it')
        elif whole != row.whole:
            problems.append(f'"{name}" has the shape {list(row.whole)} at the server but {list(whole)} in shard')
        boxes[name] = row, box
        nbytes = box.size * row.itemsize
        rows.append((name, dtype, box.shape, total, nbytes))
        total += aligned(nbytes)
    if problems:
        raise InvalidArgument("the weights cannot be loaded:" + "".join(f"\n    {each}" for each in problems[:100]), code="invalid_argument")
    _check_room(total, place)
    found: dict[str, Any] = {}
    place.arena(total).views(rows, found)
    return found, [_held_of_made(name, found[name], *boxes[name], place) for name in found]


def _check_room(nbytes: int, place: Framework) -> None:
    """Rejects sizes above the machine's memory, because the kernel would accept an allocation of any size that a server claims."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if nbytes > there and ":" not in place.device:
        raise OutOfMemory(f"the weights require {nbytes} bytes, but this machine has only {there} bytes of memory", code="out_of_memory")


def _held_of_made(name: str, array: Any, row: Row, box: Box, place: Framework) -> Held:
    local = Local(place.library, Facts(array)) if isinstance(array, bytes) else local_of(name, array)  # there are no empty DeviceBuffers
    return Held(name, None, None, None, local) if local.shape is None else Held(name, row.dtype, row.whole, box, local)
