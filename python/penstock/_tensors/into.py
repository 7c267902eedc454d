"""load_into(): loads tensors from files into existing tensors."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _native
from .._core.arrays.library import Library
from .._core.overlaps import crossing
from .._core.packing import packed
from .errors import Mismatch, listed
from .frameworks import Framework
from .load_file import Slices, check_wanted, part_wanted
from .plain_targets import PlainTargets
from .reads import Links, Ranges, Reads
from .slices import Part
from .sources import Paths, Source, Sources, StorageOptions
from .targets import Target, target_of

__all__ = ["LoadResult", "load_into"]


class LoadResult(NamedTuple):
    """The names that are on one side only, as returned by `torch.nn.Module.load_state_dict()`.

    - `missing_keys`: names in the target that are not in the files.
    - `unexpected_keys`: names in the files that are not in the target.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_into(
    filename: Paths,
    target: Any,
    *,
    strict: bool = True,
    convert: bool = False,
    slices: Slices | None = None,
    links: Links | None = None,
    storage_options: StorageOptions | None = None,
) -> LoadResult:
    """Loads tensors from safetensors files into existing tensors. Blocks.

    Arguments:

    - `filename`, `slices`, `links`, `storage_options`: as for `load_file()`.
    - `target`: a `torch.nn.Module` (parameters and buffers), or a mapping of names to PyTorch tensors, NumPy or CuPy arrays or `DeviceBuffer`s.
    - `strict`: True raises `Mismatch` for names on one side only; False returns them. Of tensors that share memory, only one must be in the files.
    - `convert`: True converts tensors of a different type on their device; False raises `Mismatch` for them.

    Contiguous tensors that have the file's type are filled directly, and others through temporary memory on their device. On a GPU, the call waits
    for the current stream.

    Raises:

    - `Mismatch`: names, shapes or types do not match; the message lists them all, and no tensor has been changed.
    - `SafetensorError` and other file errors: no tensor has been changed.
    - `penstock.Error`: reading failed or was interrupted; the content of the tensors is then undefined.
    """
    with Sources(filename, storage_options=storage_options) as sources:
        check_wanted(sources.files, None, slices)
        targets, others = _state_of(target)
        plain = PlainTargets.find(sources, targets) if slices is None and not others else None
        if plain is not None:
            plain.fill(links)
            return LoadResult([], [])
        plan = _planned(sources, type(target).__name__, targets, others, strict, convert, slices)
        _fill(plan.steps, links)
        return plan.result


class _Step(NamedTuple):
    """A tensor in a file, and its target."""

    source: Source
    row: int
    target: Target
    part: Part | None
    direct: bool
    place: Framework
    dtype: Any  # in the file
    shape: tuple[int, ...]


class _Plan(NamedTuple):
    steps: list[_Step]
    result: LoadResult


def _state_of(target: Any) -> tuple[Mapping[str, Any], set[str]]:
    """Returns the values to fill, and the names of a module's entries that are not tensors and so cannot be in tensor files."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.nn.Module):
        state = target.state_dict(keep_vars=True)
        return state, {name for name, value in state.items() if not isinstance(value, torch.Tensor)}
    if not isinstance(target, Mapping):
        raise TypeError(f"target must be a torch.nn.Module or a mapping of names to tensors, not {type(target).__name__}")
    return target, set()


def _planned(
    sources: Sources, into: str, targets: Mapping[str, Any], others: set[str], strict: bool, convert: bool, slices: Slices | None
) -> _Plan:
    rows = {name: (source, row) for source in sources for row, name in enumerate(source.header.names)}
    known = {name: target_of(name, value) for name, value in targets.items() if name not in others}
    problems: list[str] = []
    steps: dict[Any, _Step] = {}
    for name, target in known.items():
        if name not in rows:
            continue
        if target.problem is not None:
            problems.append(f'"{name}" {target.problem}')
            continue
        found = _step(*rows[name], target, convert, slices)
        if isinstance(found, str):
            problems.append(f'"{name}" {found}')
        else:
            steps.pop(target.same_as, None)
            steps[target.same_as] = found  # if several names share memory, the last one wins, as with sequential copies
    missing = [name for name in targets if name not in rows and not (name in known and known[name].same_as in steps)]
    unexpected = [name for name in rows if name not in known]
    if strict and missing:
        problems.append(f"missing from the file: {listed(missing)}")
    if strict and unexpected:
        problems.append(f"unexpected in the file: {listed(unexpected)}")
    if problems:
        told = "".join(f"\n    {each}" for each in problems)
        raise Mismatch(f"{sources.name} does not match the {into}:{told}", code="invalid_argument", filename=sources.name)
    return _Plan(_apart(list(steps.values())), LoadResult(missing, unexpected))


def _step(source: Source, row: int, target: Target, convert: bool, slices: Slices | None) -> _Step | str:
    """Returns the step that fills a target, or a description of the problem."""
    header = source.header
    name, word, shape = header.names[row], header.types[row], header.shapes[row]
    place = target.place()
    dtype = place.dtype(word)
    if dtype is None:
        return f"has the type {word} in the file, which {place.name} does not support"
    try:
        shape = place.shape(word, shape)
    except ValueError as problem:
        return f"has the type {word} and shape {list(shape)} in the file: {problem}"
    part = None if slices is None else part_wanted(source, name, word, shape, slices, exact=not place.indexes)
    if part is not None:
        nbytes = part.nbytes
        shape = part.shape if part.cut is None else _shape_after(part)
    else:
        nbytes = header.sizes[row]
    if target.shape is None:  # memory without a shape
        return _Step(source, row, target, part, True, place, dtype, shape) if nbytes == target.nbytes else (
            f"has {nbytes} bytes in the file but {target.nbytes} in memory"
        )
    if shape != target.shape:
        return f"has the shape {list(shape)} in the file but {list(target.shape)} in memory"
    same = dtype == target.dtype
    if not same and not convert:
        return f"has the type {word} in the file but {target.dtype} in memory, and convert is False"
    direct = same and target.is_plain and (part is None or part.cut is None)
    return _Step(source, row, target, part, direct, place, dtype, shape)


def _shape_after(part: Part) -> tuple[int, ...]:
    """Returns the shape after applying part.cut."""
    assert part.cut is not None
    return tuple(len(range(*cut.indices(length))) for cut, length in zip(part.cut, part.shape) if isinstance(cut, slice))


def _apart(steps: list[_Step]) -> list[_Step]:
    """Marks targets that overlap others, so that they are filled sequentially from temporary memory. DeviceBuffers do not support that."""
    together = crossing((each.target.device, *each.target.span, i) for i, each in enumerate(steps) if each.place.indexes)
    return [each._replace(direct=False) if i in together else each for i, each in enumerate(steps)]


def _fill(steps: list[_Step], links: Links | None) -> None:
    for settle in {each.target.device: each.target.settle for each in steps if each.direct}.values():
        settle()
    reads = Reads(links)
    try:
        _start_direct(steps, reads)
        indirect = _start_others([each for each in steps if not each.direct], reads)
    except BaseException:
        reads.stop()
        raise
    reads.wait()
    for step, array in indirect:
        step.target.assign(array if step.part is None or step.part.cut is None else array[step.part.cut])
    changed: dict[Library, list[Any]] = {}
    for step in steps:
        if step.direct:
            changed.setdefault(step.target.library, []).append(step.target.array)
    for library, arrays in changed.items():
        library.have_changed(arrays)


def _start_direct(steps: list[_Step], reads: Reads) -> None:
    requests: dict[int, tuple[Source, list[tuple[int, int, int]]]] = {}
    for step in steps:
        header = step.source.header
        offset, size = header.offsets[step.row], header.sizes[step.row]
        if not step.direct or not step.target.nbytes:
            continue
        if step.part is not None:
            ranges = Ranges()
            ranges.add_part(offset, step.part, 0)
            reads.start(step.source, step.target.memory(), ranges)
        else:
            requests.setdefault(id(step.source), (step.source, []))[1].append((offset, size, step.target.address))
    # Creating a memory object per tensor would take longer than reading, so one object covers all addresses. The steps keep the targets alive.
    for source, each in requests.values():
        each.sort()
        offsets, sizes, addresses = zip(*each)
        first = min(addresses)
        ranges = Ranges()
        ranges.add_all(offsets, sizes, [address - first for address in addresses])
        last = max(address + size for _, size, address in each)
        reads.start(source, _native.Pointer(first, last - first, steps), ranges)


def _start_others(steps: list[_Step], reads: Reads) -> list[tuple[_Step, Any]]:
    """Reads the indirect steps' tensors into one temporary allocation per device."""
    by_device: dict[str, list[_Step]] = {}
    for step in steps:
        by_device.setdefault(f"{step.place.name} {step.place.device}", []).append(step)
    arrays = []
    for group in by_device.values():
        sizes = [each.part.nbytes if each.part is not None else each.source.header.sizes[each.row] for each in group]
        starts, total = packed(sizes)
        arena = group[0].place.arena(total)
        ranges: dict[int, tuple[Source, Ranges]] = {}
        for step, size, start in zip(group, sizes, starts):
            into = ranges.setdefault(id(step.source), (step.source, Ranges()))[1]
            offset = step.source.header.offsets[step.row]
            if step.part is not None:
                into.add_part(offset, step.part, start)
            else:
                into.add_all([offset], [size], [start])
            shape = step.shape if step.part is None else step.part.shape
            found: dict[str, Any] = {}
            arena.views([("", step.dtype, shape, start, size)], found)
            arrays.append((step, found[""]))
        for source, each in ranges.values():
            reads.start(source, arena.memory, each)
    return arrays


LoadResult.__module__ = "penstock.safetensors"  # its public home, which pickles name
