"""Locates chunks: opens their files, reads shard indexes, and returns offsets and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import penstock
from penstock.zarr._chunk_plan import ArrayLayout, ChunkPart, Shards
from penstock.zarr._codecs import crc32c
from penstock.zarr._files import MISSING, files_at_once
from penstock.zarr._reads import Read, start_reads

__all__ = ["ChunkFiles", "StoredChunk", "damaged", "groups"]

_FIRST_FILES = 16 # number of files in the first group
_MOST_CHUNKS = 8192  # per group: bookkeeping for a chunk and its reads takes about 1 KiB

_NO_CHUNK = 2**64 - 1  # offset and size of a chunk that is missing from a shard


class StoredChunk(NamedTuple):
    """The stored bytes of a chunk."""

    part: ChunkPart
    path: str
    file: Any  # a penstock.File
    offset: int
    size: int

    def without_file(self) -> StoredChunk:
        """Returns a copy without the file, which may then be closed."""
        return self._replace(file=None)

    @property
    def words(self) -> str:
        """Describes the chunk for error messages."""
        return f"chunk {self.part.chunk} at offset {self.offset} in {self.path}"


def damaged(message: str, path: str) -> penstock.InvalidArgument:
    """Returns the error for a damaged chunk file or shard; it is also a ValueError."""
    return penstock.InvalidArgument(message, code="invalid_argument", filename=path)


def groups(parts: Iterable[ChunkPart], most_bytes: int, cost: Callable[[ChunkPart], int]) -> Iterator[list[ChunkPart]]:
    """Yields parts in groups that limit the open files and memory: only a group with a single part may exceed most_bytes.

    The first groups are small, so that the first reads start while later groups' files are being opened.
    """
    limit = files_at_once()
    most_files = min(limit, _FIRST_FILES)
    group: list[ChunkPart] = []
    names: set[str] = set()
    total = 0
    for part in parts:
        adds = cost(part)
        if group and (total + adds > most_bytes or len(group) >= _MOST_CHUNKS or (len(names) >= most_files and part.name not in names)):
            yield group
            group, names, total = [], set(), 0
            most_files = min(limit, most_files * 2)
        group.append(part)
        names.add(part.name)
        total += adds
    if group:
        yield group


@dataclass(frozen=True)
class _Shard:
    path: str
    file: penstock.File
    size: int
    index: np.ndarray[Any, Any]  # offset and size of each chunk, in stored form, because a shard may have millions of chunks


class ChunkFiles:
    """The files in a load. Used by one thread at a time.

    A file is closed when close() is called for its chunk, or once no chunk or request uses it. A group's local files are opened in one call and
    closed in one call, because each call must reacquire the GIL from the decoder threads, which takes longer than opening a file.
    """

    def __init__(self, layout: ArrayLayout) -> None:
        self._layout = layout
        self._shards: dict[str, _Shard | None] = {}  # from the last call, because a group may end within a shard

    def find(self, parts: Sequence[ChunkPart]) -> tuple[list[StoredChunk], list[ChunkPart]]:
        """Returns the chunks that exist, and the parts of chunks that do not. Blocks.

        Raises penstock.Error if a file cannot be opened, and InvalidArgument if a shard's index is damaged.
        """
        if self._layout.shards is None:
            return self._find_files(parts)
        names = list(dict.fromkeys(part.name for part in parts))
        shards = {name: self._shards[name] for name in names if name in self._shards}
        shards.update(self._open_shards([name for name in names if name not in shards], self._layout.shards))
        self._shards = shards
        return _find_in_shards(parts, shards)

    def close(self, chunks: Iterable[StoredChunk]) -> None:
        """Closes the files of chunks that are finished or will never be read. A second call does nothing. Waits for reads in progress.

        Shards stay open, because they may contain chunks in other groups.
        """
        if self._layout.shards is None:
            penstock._native.close_many([chunk.file for chunk in chunks if chunk.file is not None])

    def _find_files(self, parts: Sequence[ChunkPart]) -> tuple[list[StoredChunk], list[ChunkPart]]:
        found: list[StoredChunk] = []
        missing: list[ChunkPart] = []
        for part, (path, file) in zip(parts, self._opened([part.name for part in parts])):
            if file is None:
                missing.append(part)
            else:
                found.append(StoredChunk(part, path, file, 0, file.size()))
        return found, missing

    def _opened(self, names: list[str]) -> Iterable[tuple[str, penstock.File | None]]:
        """Yields each path with its file, or None if it does not exist. Raises the first other error."""
        paths = [self._layout.path_of(name) for name in names]
        if self._layout.open_far is None:
            return zip(paths, _open_local(paths))
        from penstock.zarr import _remote

        run = map if len(paths) == 1 else _remote._openers.map
        return zip(paths, list(run(partial(_open_far, self._layout.open_far), paths)))

    def _open_shards(self, names: list[str], shards: Shards) -> dict[str, _Shard | None]:
        """Opens shard files and reads all their indexes as one batch."""
        opened = dict(zip(names, self._opened(names)))
        reads: dict[str, Read] = {}
        for name, (path, file) in opened.items():
            if file is None:
                continue
            size = file.size()
            if size < shards.index_bytes:
                raise damaged(f"shard {path} has {size} bytes, but its index alone has {shards.index_bytes}", path)
            offset = 0 if shards.index_first else size - shards.index_bytes
            reads[name] = Read(file, np.empty(shards.index_bytes, np.uint8), offset, shards.index_bytes)
        found: dict[str, _Shard | None] = dict.fromkeys(names)
        for (name, read), outcome in zip(reads.items(), start_reads(list(reads.values())).wait() if reads else ()):
            if isinstance(outcome, BaseException):
                raise outcome
            path = opened[name][0]
            if outcome != read.size:
                raise damaged(f"shard {path} was truncated while being read", path)
            found[name] = _Shard(path, read.file, read.file.size(), _index_of(path, read.buffer, shards))
        return found


def _open_local(paths: list[str]) -> list[penstock.File | None]:
    outcomes = penstock._native.open_many(paths)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, MISSING):
            penstock._native.close_many([file for file in outcomes if isinstance(file, penstock.File)])
            raise outcome
    return [None if isinstance(outcome, BaseException) else outcome for outcome in outcomes]


def _open_far(open_one: Callable[[str], penstock.File], path: str) -> penstock.File | None:
    try:
        file = open_one(path)
        file.size()  # queried here, so that threads wait for the servers in parallel
        return file
    except MISSING:
        return None


def _index_of(path: str, data: np.ndarray[Any, Any], shards: Shards) -> np.ndarray[Any, Any]:
    entries = data[:-4] if shards.index_checked else data
    if shards.index_checked:
        told, computed = int.from_bytes(data[-4:].tobytes(), "little"), crc32c(entries)
        if told != computed:
            raise damaged(f"the index of shard {path} is damaged: computed CRC-32C {computed:08x}, stored CRC-32C {told:08x}", path)
    return entries.view(shards.index_dtype).reshape(-1, 2)


def _find_in_shards(parts: Sequence[ChunkPart], shards: dict[str, _Shard | None]) -> tuple[list[StoredChunk], list[ChunkPart]]:
    found: list[StoredChunk] = []
    missing: list[ChunkPart] = []
    entries = _wanted_entries(parts, shards)
    for part in parts:
        shard = shards[part.name]
        offset, size = (_NO_CHUNK, _NO_CHUNK) if shard is None else next(entries[part.name])
        if shard is None or offset == size == _NO_CHUNK:
            missing.append(part)
            continue
        if offset + size > shard.size:
            where = f"the index of shard {shard.path} places chunk {part.chunk} at offset {offset}, with {size} bytes"
            raise damaged(f"{where}, but the file has {shard.size} bytes", shard.path)
        found.append(StoredChunk(part, shard.path, shard.file, offset, size))
    return found, missing


def _wanted_entries(parts: Sequence[ChunkPart], shards: dict[str, _Shard | None]) -> dict[str, Iterator[list[int]]]:
    """Returns, for each shard, its parts' offsets and sizes in order, as Python integers that are converted from NumPy in one step."""
    slots: dict[str, list[int]] = {}
    for part in parts:
        slots.setdefault(part.name, []).append(part.slot)
    return {name: iter(shard.index[slots[name]].tolist()) for name, shard in shards.items() if shard is not None}
