"""load_file(): loads tensors from one or more files onto one or more devices, whole or in part."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._core.arrays.library import SURE_DIMENSIONS, Arena, View
from .._core.errors import InvalidArgument
from .._core.first_load import first_load
from .._core.packing import ALIGNMENT, aligned, packed
from .device_map import DeviceMap, Places
from .errors import SafetensorError, listed, meant
from .frameworks import Framework
from .reads import Links, Ranges, Reads, check_bytes
from .sources import Paths, Source, Sources, StorageOptions, check_names
from .types import BITS

if TYPE_CHECKING:
    from .slices import Part

__all__ = ["Layout", "Slices", "check_backend", "check_type", "check_wanted", "load_file", "part_wanted", "read_tensors"]

# (dim, rank, world), or an index of slices and ints; None: the whole tensor.
Slices = Mapping[str, Any] | Callable[[str, tuple[int, ...]], Any]

_MOST_ELEMENTS = 1 << 59  # product of the non-zero dimensions: byte strides of 16-byte elements must fit into 64 bits


def load_file(
    filename: Paths,
    device: Any = None,
    framework: str | None = None,
    *,
    device_map: DeviceMap | None = None,
    slices: Slices | None = None,
    names: Iterable[str] | None = None,
    links: Links | None = None,
    max_host_bytes: int | None = None,
    storage_options: StorageOptions | None = None,
) -> dict[str, Any]:
    """Loads tensors from safetensors files, by name, in file order. Blocks; KeyboardInterrupt stops it.

    Arguments:

    - `filename`: a file; a list of files; an index (model.safetensors.index.json), with its shards; or a folder that contains any of these. Each may
      be a URL.
    - `device`: "cpu", "cuda:1", the number of a GPU, a `torch.device`, or "host:0". None means the host, or with `framework="cupy"` the current GPU.
    - `framework`: "pt" (PyTorch), "np" (NumPy), "cupy" (CuPy), "bytes" (`DeviceBuffer`), or None to choose as `penstock.load()` does.
    - `device_map`: devices by module or tensor name, or a function of the name. The longest key that is the tensor's name, or a prefix of it up to a
      dot, applies; "" matches all names. Tensors without an entry go to `device`.
    - `slices`: the parts to load, by tensor name: `(dim, rank, world)` for one rank's part, or a tuple of slices; or a function that takes a
      tensor's name and shape and returns one of these, or None for the whole tensor. Only the parts, and short gaps between them, are read.
    - `names`: the tensors to load. None loads all.
    - `links`: how many PCIe links may load one GPU, 1 to 8: its own, and those of GPUs with direct access to it. Each link uses 32 MiB of its GPU's
      memory and creates a context there. None or "auto": the links of GPUs that the program already uses through the library.
    - `max_host_bytes`: the maximum number of bytes in flight, at least 1 MiB. On the way to a GPU, they occupy pinned staging buffers from a
      process-wide pool. None means as many as the pool allows.
    - `storage_options`: connection options for URLs, as in `penstock.open()`.

    All tensors on a device are views of one allocation from the library, which lives as long as any of them. On a GPU, the call waits for the current
    stream, because memory from the allocator may still be in use there. You may use the tensors on any stream.

    Raises:

    - `SafetensorError`: a file is not a safetensors file, a name is missing, or the library does not support a type.
    - `InvalidArgument`: a slice does not fit its tensor.
    - `penstock.Error`: reading failed, for example `FileNotFoundError` or `ShortRead`.
    """
    with first_load.of(filename, device):
        first_load.mark("modules")
        places = Places(framework, device, device_map)
        most_bytes = check_bytes("max_host_bytes", max_host_bytes)
        with Sources(filename, places.devices(), storage_options) as sources:
            first_load.mark("header")
            return read_tensors(sources, places, slices, check_names(names), links, most_bytes)


def read_tensors(
    sources: Iterable[Source],
    places: Places,
    slices: Slices | None,
    names: set[str] | None,
    links: Links | None = None,
    most_bytes: int | None = None,
) -> dict[str, Any]:
    """Reads tensors from open files. `most_bytes` limits the bytes in flight."""
    files = list(sources)
    check_wanted(files, names, slices)
    layouts = _Layouts()
    for source in files:
        header = source.header
        rows = source.rows_of(names)
        if slices is None:
            for place, mine in places.split(header, rows).items():
                layouts.of(place).add_whole(source, mine)
        else:
            _lay_out_parts(source, rows, places, slices, layouts)
    found: dict[str, Any] = {}
    if len(layouts.every) > 1:  # in file order, not device order
        found = dict.fromkeys(name for each in files for name in each.header.names if names is None or name in names)
    reads = Reads(links, most_bytes)
    try:
        first_load.reads_begin()
        arenas = [(each, each.started(reads)) for each in layouts.every.values()]
        for layout, arena in arenas:  # while the reads run
            arena.views(layout.rows(), found)
    except BaseException:
        reads.stop()
        raise
    reads.wait()
    for layout in layouts.every.values():
        for name, cut in layout.cuts.items():
            found[name] = layout.place.library.copied(found[name][cut])
    return found


class _Whole:
    """All tensors of a file. Their descriptions are created while the reads run."""

    def __init__(self, source: Source, place: Framework, types: dict[str, Any], starts: bytes) -> None:
        self._source, self._place, self._types, self._starts = source, place, types, starts

    def rows(self) -> Iterable[View]:
        header = self._source.header
        shapes = _checked_shapes(self._source, self._place, self._types, header.names, header.types, header.shapes, header.sizes)
        return zip(header.names, [self._types[word] for word in header.types], shapes, array("q", self._starts), header.sizes)


class _Columns:
    """Names, types, shapes, starts and bytes as columns, because many thousands of row objects would slow the garbage collector."""

    def __init__(self) -> None:
        self._all: tuple[list[Any], ...] = ([], [], [], [], [])

    def add(self, *columns: Sequence[Any]) -> None:
        for mine, more in zip(self._all, columns):
            mine += more

    def rows(self) -> Iterable[View]:
        return zip(*self._all)


class Layout:
    """One device's tensors, one after another."""

    def __init__(self, place: Framework) -> None:
        self.place = place
        self.nbytes = 0
        self._blocks: list[_Whole | _Columns] = []
        self.cuts: dict[str, tuple[Any, ...]] = {}  # indexes to apply to tensors after reading
        self.ranges: list[tuple[Source, Ranges]] = []

    def add_whole(self, source: Source, rows: Sequence[int]) -> None:
        if len(rows) < len(source.header) or not self._add_file(source):
            self._add_rows(source, rows)

    def _add_file(self, source: Source) -> bool:
        """Adds a whole file. Returns False if each tensor must be checked."""
        header = source.header
        types = {word: self.place.dtype(word) for word in header.told.kinds()}
        if "F4" in types or None in types.values():
            return False
        self.nbytes, starts, ranges = header.told.place(ALIGNMENT, self.nbytes)
        self._blocks.append(_Whole(source, self.place, types, starts))
        self._ranges_of(source).add_packed(ranges)
        return True

    def _add_rows(self, source: Source, rows: Sequence[int]) -> None:
        header = source.header
        every: Any = (header.names, header.types, header.shapes, header.offsets, header.sizes)
        names, words, shapes, offsets, sizes = ([column[row] for row in rows] for column in every)
        types = {word: self.place.dtype(word) for word in set(words)}
        taken = _checked_shapes(source, self.place, types, names, words, shapes, sizes)
        starts, self.nbytes = packed(sizes, start=self.nbytes)
        self._columns().add(names, [types[word] for word in words], taken, starts, sizes)
        self._ranges_of(source).add_all(offsets, sizes, starts)

    def add_part(self, source: Source, row: int, dtype: Any, part: Part, is_read: bool = True) -> int:
        """Adds a part, and returns its offset in the memory. `is_read`: False if the caller reads the part itself."""
        header = source.header
        name, start = header.names[row], self.nbytes
        self.nbytes = start + aligned(part.nbytes)
        self._columns().add([name], [dtype], [part.shape], [start], [part.nbytes])
        if is_read:
            self._ranges_of(source).add_part(header.offsets[row], part, start)
        if part.cut is not None:
            self.cuts[name] = part.cut
        return start

    def rows(self) -> Iterable[View]:
        return itertools.chain.from_iterable(each.rows() for each in self._blocks)

    def started(self, reads: Reads) -> Arena:
        """Allocates the memory and starts reading into it. The first load of a process may already be reading."""
        if len(self.ranges) == 1 and (early := first_load.early(self.ranges[0][0].file)) is not None:
            reads.adopt(*self.ranges[0], early.future)
            first_load.hand_over()
            return self.place.library.arena_over(early.memory, self.place.device)
        arena = self.place.arena(self.nbytes)
        for source, ranges in self.ranges:
            reads.start(source, arena.memory, ranges)
        return arena

    def taken_ranges(self) -> list[tuple[Source, Ranges]]:
        """Returns the ranges added so far; the caller reads them."""
        taken, self.ranges = self.ranges, []
        return taken

    def _columns(self) -> _Columns:
        last = self._blocks[-1] if self._blocks else None
        if not isinstance(last, _Columns):
            last = _Columns()
            self._blocks.append(last)
        return last

    def _ranges_of(self, source: Source) -> Ranges:
        if not self.ranges or self.ranges[-1][0] is not source:
            self.ranges.append((source, Ranges()))
        return self.ranges[-1][1]


class _Layouts:
    """One layout per device, and one for tensors that are cut after reading, whose memory is temporary."""

    def __init__(self) -> None:
        self.every: dict[tuple[Framework, bool], Layout] = {}

    def of(self, place: Framework, passing: bool = False) -> Layout:
        found = self.every.get((place, passing))
        if found is None:
            found = self.every[place, passing] = Layout(place)
        return found


def _lay_out_parts(source: Source, rows: Sequence[int], places: Places, slices: Slices, layouts: _Layouts) -> None:
    header = source.header
    for row in rows:
        name, word = header.names[row], header.types[row]
        place = places.of(name)
        dtype = place.dtype(word)
        shape = check_type(source.name, name, word, header.shapes[row], place, dtype)
        part = part_wanted(source, name, word, shape, slices, exact=not place.indexes)
        if part is None:
            layouts.of(place).add_whole(source, [row])
        else:
            layouts.of(place, part.cut is not None).add_part(source, row, dtype, part)


def _checked_shapes(
    source: Source,
    place: Framework,
    types: dict[str, Any],
    names: Sequence[str],
    words: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    sizes: Sequence[int],
) -> Sequence[tuple[int, ...]]:
    """Returns the shapes of the tensors. Checks them individually only if one of them may be invalid or differ from the file's."""
    if "F4" in types or None in types.values() or 0 in sizes or max(map(len, shapes), default=0) > SURE_DIMENSIONS:
        return [check_type(source.name, *row, place, types[row[1]]) for row in zip(names, words, shapes)]
    return shapes


def _help_for(word: str, library: str) -> str:
    """Suggests what the caller can do about a type that the library lacks."""
    if library == "NumPy" and word not in ("F4", "F6_E2M3", "F6_E3M2"):
        return 'pip install ml_dtypes, or load it with PyTorch (import torch first, or framework="pt")'
    if library != "PyTorch" and word == "F4":
        return 'load it with PyTorch (import torch first, or framework="pt")'
    return 'load its bytes with framework="bytes"'


def check_type(file: str, name: str, word: str, shape: tuple[int, ...], place: Framework, dtype: Any) -> tuple[int, ...]:
    """Returns the tensor's shape in the library. Raises SafetensorError if the library does not support the type or the shape."""
    if dtype is None:
        problem = f'tensor "{name}" has the type {word}, which {place.name} does not support: {_help_for(word, place.name)}'
        raise SafetensorError(f"{file}: {problem}", code="invalid_argument", filename=file)
    try:
        if 0 in shape and math.prod(each for each in shape if each) > _MOST_ELEMENTS:  # the file contains the bytes of all other shapes
            raise ValueError("too large for any memory")
        return place.shape(word, shape)
    except ValueError as problem:
        message = f'{file}: tensor "{name}" has the type {word} and shape {str(list(shape)):.200}: {problem}'
        raise SafetensorError(message, code="invalid_argument", filename=file) from None


def check_wanted(files: list[Source], names: set[str] | None, slices: Slices | None) -> None:
    """Raises SafetensorError for names that no file contains."""
    asked = dict.fromkeys(sorted(names) if names is not None else ())
    if isinstance(slices, Mapping):
        asked.update(dict.fromkeys(slices))
    elif slices is not None and not callable(slices):
        raise TypeError(f"slices must be a mapping or a callable, not {type(slices).__name__}")
    if asked:
        there = {name for each in files for name in each.header.names}
        missing = [name for name in asked if name not in there]
        if missing:
            where = files[0].name if len(files) == 1 else f"{len(files)} files"
            told = f"{listed(map(str, missing))}{meant(map(str, missing), there)}"
            raise SafetensorError(f"{where}: File does not contain tensor {told}", code="not_found")


def part_wanted(
    source: Source, name: str, word: str, shape: tuple[int, ...], slices: Slices, exact: bool
) -> Part | None:
    """Returns the part that slices requests, or None for the whole tensor. Raises InvalidArgument if the tensor has no such part."""
    from .slices import part_of, picks_of, shard_of  # only for slices

    asked = slices.get(name) if isinstance(slices, Mapping) else slices(name, shape)
    if asked is None:
        return None
    try:
        if isinstance(asked, tuple) and len(asked) == 3 and all(isinstance(each, int) for each in asked):
            asked = shard_of(shape, *asked)
        picks = picks_of(asked, shape)
        if picks is None:
            raise ValueError(f"{asked!r} is not (dim, rank, world) or a tuple of slices with steps of 1 or more")
        if BITS[word] % 8 and word != "F4" or word == "F4" and exact:
            raise ValueError(f"elements of type {word} do not start at byte boundaries")
        return part_of(shape, max(1, BITS[word] // 8), picks, exact)
    except (ValueError, IndexError) as problem:
        raise InvalidArgument(
            f'{source.name}: slices for tensor "{name}" of shape {list(shape)}: {problem}', code="invalid_argument", filename=source.name
        ) from None


def check_backend(backend: str) -> None:
    if backend not in ("mmap", "pread"):
        raise SafetensorError(f"backend {backend} is invalid: it must be mmap or pread, which have the same effect", code="invalid_argument")


first_load.imports_end()
