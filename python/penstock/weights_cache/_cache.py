"""WeightsCache: finished weights in a folder. Each entry is a safetensors file that contains storages and a pickle that refers to them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import torch

from .. import _native
from .._core.arrays.of_torch import count_changes
from .._core.batches import in_batches
from .._core.errors import Error, InvalidArgument, PermissionDenied, ShortRead
from .._core.futures import wait
from .._core.pieces import Piece, move_pieces
from .._core.torch_storages import Memory, memory_of, new_storage, reaches, synchronize
from .._tensors.errors import SafetensorError
from .._tensors.reads import Flow, Ranges, Request, read_now
from .._tensors.save_file import Tensor, beginning_of
from .._tensors.sources import Source
from ._digest import Digest, rows_in
from ._module_state import ModuleState, changed_object, matches, objects_of, set_state, state_of
from ._sources import Contents, contents_of, owner_problem_of
from ._structure import NotCacheable, Structure, restored, restored_early, structure_of

__all__ = ["Key", "WeightsCache"]

_Result = TypeVar("_Result")

_log = logging.getLogger("penstock")

_VERSION = "2"
_ENDING = ".safetensors"
_STRUCTURE, _DIGEST = "structure", "~digest"  # names of rows; the digest is the last row, because it is computed while the others are written
_DIGEST_BYTES = 64  # the digest of the storages, then the SHA-256 of the structure and the header's fields
_MOST_STRUCTURE_BYTES = 1 << 30
_GROUP_BYTES = 128 << 20  # storages are checked in groups of this size, while the next group is read
_LARGE_BYTES = 1 << 20  # PyTorch's allocator keeps smaller blocks apart
_CLOCK_NS = 1_000_000_000  # a server's clock may be ahead by this much
_FREE = 1 / 16  # part of the file system that stays free by default


class Key(NamedTuple):
    """The key of an entry: `text` contains everything that determines the weights, and `contents` are the source files that it covers."""

    text: str
    contents: Contents

    @property
    def file(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:40] + _ENDING


class _Unusable(Exception):
    """An entry must not be used. The message says why."""


class _Different(Exception):
    """This process cannot use an entry that is not damaged. The message says why."""


class WeightsCache:
    """Keeps finished weights on disk, so that the next start reads them instead of loading, converting and quantizing again. Thread-safe. Several
    processes may use a folder at once, and may be killed at any time.

    Arguments:

    - `folder`: created if missing. Your user must own it, and no other user may be able to write to it, because entries contain pickles.
    - `capacity_bytes`: the maximum size of all entries; None means half of the file system. The least recently used entries are removed.
    - `free_bytes`: space that the cache leaves free on the file system; None means 1/16 of it.

    Raises: PermissionDenied, InvalidArgument, OSError.
    """

    def __init__(self, folder: str | os.PathLike[str], *, capacity_bytes: int | None = None, free_bytes: int | None = None) -> None:
        for name, value in (("capacity_bytes", capacity_bytes), ("free_bytes", free_bytes)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(f"{name} must be an int (bytes) or None, not {type(value).__name__}")
            if value is not None and value < 0:
                raise InvalidArgument(f"{name} is {value}, but must be at least 0", code="invalid_argument")
        self.folder = os.path.abspath(os.fspath(folder))
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        if (problem := owner_problem_of(os.stat(self.folder))) is not None:
            raise PermissionDenied(f"the weights cache {self.folder} {problem}", code="permission_denied", filename=self.folder)
        room = os.statvfs(self.folder)
        disk_bytes = room.f_blocks * room.f_frsize
        self._capacity = disk_bytes // 2 if capacity_bytes is None else capacity_bytes
        self._free = int(disk_bytes * _FREE) if free_bytes is None else free_bytes

    def key(self, values: Mapping[str, Any], sources: Iterable[str | os.PathLike[str]] = ()) -> Key:
        """Returns the key for some values and the contents of source files. Blocks while new or changed files are read and hashed.

        `values`: everything else that determines the weights, as JSON types: the model, the engine's version, the rank, the quantization.

        `sources`: local files. On tmpfs, the kernel does not record changes through a shared mapping, so they are not noticed.

        Raises TypeError for other types, InvalidArgument for a URL, and OSError if a source is not a regular file or cannot be read.
        """
        contents = contents_of(os.path.join(self.folder, "sources"), sources)
        told = {"values": dict(values), "sources": contents.hashes, "torch": str(torch.__version__), "format": _VERSION}
        return Key(json.dumps(told, sort_keys=True), contents)

    def get(
        self, values: Mapping[str, Any], build: Callable[[], Any], *, sources: Iterable[str | os.PathLike[str]] = (), device: Any = None
    ) -> Any:
        """Returns the stored result of build() for this key, or calls build() and stores its result. See `key()`, `load()` and `save()`."""
        key = self.key(values, sources)
        found = self.load(key, device=device)
        if found is None:
            found = build()
            self.save(key, found)
        return found

    def has(self, key: Key) -> bool:
        """Returns True if there is an entry for the key. It may be damaged."""
        return os.path.lexists(os.path.join(self.folder, key.file))

    def fill(self, key: Key, module: torch.nn.Module, load: Callable[[torch.nn.Module], object]) -> None:
        """Fills the tensors of a module in place from the cache. If the cache lacks them, calls load(module) and stores the module's state.

        load() must fill all parameters. Stores nothing if the next process could not do the same: if load() replaces modules, replaces tensors with others
        that differ in type or layout, or changes attributes other than tensors, numbers, strings, bools and None.
        """
        before = self._state_of(module)
        if before is None:
            load(module)
            return
        kept = _copies_of_buffers(before) if self.has(key) else []
        if self._restore(key, module, before):
            return
        for storage, content in kept:  # a damaged entry has overwritten them, and load() does not fill them
            storage.copy_(content)
        objects = objects_of(module)
        load(module)
        if (after := self._state_of(module)) is None:
            return
        after = after.since(before)
        problem = matches(after, list({each._cdata: each for each in map(torch.Tensor.untyped_storage, after.tensors.values())}.values()), before)
        if isinstance(problem, str):
            _log.warning("weights cache: not stored: load() replaced tensors or modules, and the new state %s", problem)
        elif (changed := changed_object(objects, objects_of(module))) is not None:
            _log.warning("weights cache: not stored: load() changed the attribute %s, and the cache restores only tensors and plain values", changed)
        else:
            self.save(key, tuple(after))

    def restore(self, key: Key, module: torch.nn.Module) -> bool:
        """Fills the tensors of a module in place with the state that `save_state()` stored, and sets its other attributes. Blocks.

        Returns False if there is no such state, or if it differs from the module in more than bytes and values. The module is then unchanged, but
        if reading failed, its tensors have undefined contents.
        """
        before = self._state_of(module)
        return before is not None and self._restore(key, module, before)

    def _restore(self, key: Key, module: torch.nn.Module, before: ModuleState) -> bool:
        found = self._load(key, None, before)
        if found is None:
            return False
        set_state(module, ModuleState(*found), before)
        count_changes(before.tensors.values())
        return True

    def save_state(self, key: Key, module: torch.nn.Module) -> bool:
        """Stores the state of a module for `restore()`: tensors, and attributes that are numbers, strings, bools or None. See `save()`."""
        state = self._state_of(module)
        return state is not None and self.save(key, tuple(state))

    def _state_of(self, module: torch.nn.Module) -> ModuleState | None:
        try:
            return state_of(module)
        except NotCacheable as problem:
            _log.warning("weights cache: not used: %s %s", type(module).__name__, problem)
            return None

    def load(self, key: Key, *, device: Any = None) -> Any:
        """Returns the object that was stored under the key, or None. Blocks.

        Tensors have the strides, aliases and classes that they had. They are on their old devices, or on `device` instead of a GPU.

        Removes an entry that is damaged, incomplete, of another version, or writable by another user. For other errors, logs the error and returns None.
        """
        return self._load(key, None if device is None else torch.device(device), None)

    def _load(self, key: Key, device: Any, into: ModuleState | None) -> Any:
        path = os.path.join(self.folder, key.file)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as problem:
            if problem.errno == errno.ELOOP:
                self._remove(path, None, "is a symbolic link")
            else:
                _log.warning("weights cache: cannot open %s: %s", path, problem)
            return None
        try:
            began = time.perf_counter()
            found, nbytes = _loaded(path, descriptor, key, device, into)
            with contextlib.suppress(OSError):
                os.utime(descriptor)  # records the time of the last use
            _log.info("weights cache: read %d bytes from %s in %.3f s", nbytes, path, time.perf_counter() - began)
            return found
        except _Different as problem:
            _log.warning("weights cache: %s is not used, because it %s", path, problem)
        except _Unusable as problem:
            self._remove(path, descriptor, str(problem))
        except (Error, MemoryError, RuntimeError) as problem:
            _log.warning("weights cache: cannot read %s: %s", path, problem)
        finally:
            os.close(descriptor)
        return None

    def save(self, key: Key, value: Any) -> bool:
        """Stores an object under the key, durably. Blocks. The object's tensors must not change meanwhile.

        Returns False, and logs the reason, if the object cannot be stored exactly, if a source file has changed since `key()`, or if there is no
        room. An existing entry then stays unchanged.
        """
        try:
            began = time.perf_counter()
            nbytes = self._save(key, structure_of(value))
            _log.info("weights cache: wrote %d bytes to %s in %.3f s", nbytes, os.path.join(self.folder, key.file), time.perf_counter() - began)
            return True
        except NotCacheable as problem:
            _log.warning("weights cache: not stored: %s %s", type(value).__name__, problem)
        except (OSError, MemoryError, RuntimeError) as problem:  # PyTorch's OutOfMemoryError is a RuntimeError
            _log.warning("weights cache: not stored: %s", problem)
        return False

    def clear(self) -> None:
        """Removes all entries. Processes that are reading an entry keep it until they are done."""
        with self._locked():
            for _, _, path in self._entries():
                os.unlink(path)

    def _save(self, key: Key, structure: Structure) -> int:
        path = os.path.join(self.folder, key.file)
        image = _Image(key, structure)
        with contextlib.ExitStack() as stack:
            with self._locked():
                self._make_room(image.nbytes, image.nbytes)
                pending = stack.enter_context(_native.PendingFile(path, 0o600))
                fcntl.flock(pending.fileno(), fcntl.LOCK_EX)  # shows other processes that its writer is alive
            with pending.open(direct=not _fits_in_memory(image.nbytes)) as file:  # a file that fits stays in the page cache for the next start
                move_pieces(file, image.pieces(), label=path, write=True, meanwhile=image.end)
                move_pieces(file, [image.digest()], label=path, write=True)
                file.sync()  # before the folder is locked, because it takes long
            with self._locked():
                if not key.contents.are_current():
                    raise NotCacheable("was loaded while its source files changed")
                self._make_room(image.nbytes, 0, path)
                pending.publish()
        return image.nbytes

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Locks the folder against other processes and threads. Hold the lock only for a few system calls."""
        descriptor = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _entries(self) -> list[tuple[int, int, str]]:
        """Returns the time of the last use, the size and the path of each entry, oldest first. Removes unfinished files of writers that were killed."""
        found, now = [], time.time_ns() + _CLOCK_NS
        for each in os.scandir(self.folder):
            with contextlib.suppress(OSError):
                status = each.stat(follow_symlinks=False)
                if each.name.endswith(_ENDING) and not stat.S_ISDIR(status.st_mode):
                    found.append((status.st_mtime_ns if status.st_mtime_ns <= now else 0, status.st_size, each.path))  # 0: the clock was set back
                elif f"{_ENDING}.penstock-" in each.name and not _is_in_use(each.path):
                    os.unlink(each.path)
        return sorted(found)

    def _make_room(self, nbytes: int, disk_bytes: int, replaced: str | None = None) -> None:
        """Removes the least recently used entries until an entry of `nbytes` fits. `disk_bytes`: the space that is still to be written. `replaced`: an
        entry that the new one replaces. Raises NotCacheable if there is no room.
        """
        if nbytes > self._capacity:
            raise NotCacheable(f"needs {nbytes} bytes, and the capacity of {self.folder} is {self._capacity}")
        entries = [each for each in self._entries() if each[2] != replaced]
        total = sum(size for _, size, _ in entries)
        if self._room() + total < disk_bytes:  # checked first, so that no entry is removed in vain
            raise NotCacheable(f"needs {nbytes} bytes, and the file system of {self.folder} must keep {self._free} bytes free")
        while entries and (total + nbytes > self._capacity or self._room() < disk_bytes):
            _, size, path = entries.pop(0)
            os.unlink(path)
            total -= size
            _log.info("weights cache: removed %s, the least recently used entry", path)

    def _room(self) -> int:
        room = os.statvfs(self.folder)
        return room.f_bavail * room.f_frsize - self._free

    def _remove(self, path: str, descriptor: int | None, why: str) -> None:
        _log.warning("weights cache: removed %s, because it %s", path, why)
        with contextlib.suppress(OSError), self._locked():
            if descriptor is None or os.path.samestat(os.lstat(path), os.fstat(descriptor)):  # otherwise, another process has replaced it
                os.unlink(path)


def _fits_in_memory(nbytes: int) -> bool:
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return nbytes <= int(line.split()[1]) * 1024 // 2
    return False


def _is_in_use(path: str) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _copies_of_buffers(state: ModuleState) -> list[tuple[Any, Any]]:
    """Returns the storages that contain no parameter, each with a copy of its contents on the CPU."""
    parameters = {each.untyped_storage()._cdata for name, each in state.tensors.items() if state.kinds[name] == "parameter"}
    others = {each._cdata: each for each in map(torch.Tensor.untyped_storage, state.tensors.values()) if each._cdata not in parameters}
    return [(each, torch.UntypedStorage(each.nbytes()).copy_(each)) for each in others.values()]


class _Image:
    """The contents of an entry that is being written."""

    def __init__(self, key: Key, structure: Structure) -> None:
        self._structure = structure
        devices = json.dumps([[each.nbytes(), str(each.device)] for each in structure.storages])
        self._metadata = {"penstock.weights_cache": _VERSION, "key": key.text, "storages": devices}
        self._memories = [memory_of(each) for each in structure.storages]
        rows = {f"{i:08d}": Tensor("U8", (each.nbytes(),), each.nbytes(), b"") for i, each in enumerate(structure.storages) if each.nbytes()}
        rows[_STRUCTURE] = Tensor("U8", (len(structure.pickled),), len(structure.pickled), b"")
        rows[_DIGEST] = Tensor("U8", (_DIGEST_BYTES,), _DIGEST_BYTES, b"")
        self._beginning, order = beginning_of(rows, self._metadata)
        self._offsets: dict[str, int] = {}
        self.nbytes = len(self._beginning)
        for name in order:
            self._offsets[name] = self.nbytes
            self.nbytes += rows[name].nbytes
        self._sum = b""

    def pieces(self) -> list[Piece]:
        synchronize(each.device for memories in self._memories for each in memories)
        found = [_piece_of_bytes("header", 0, self._beginning), _piece_of_bytes(_STRUCTURE, self._offsets[_STRUCTURE], self._structure.pickled)]
        for i, memories in enumerate(self._memories):
            found += [Piece(f"storage {i}", self._offsets[f"{i:08d}"], each.nbytes, each.address, each.owner, each.device) for each in memories]
        return found

    def end(self) -> None:
        """Computes the digest. Called while the pieces are being written."""
        digest = Digest()
        row, contents = 0, []
        for memories in self._memories:
            for each in memories:
                contents.append((_bytes_of(each), row))
                row += rows_in(each.nbytes)
        digest.add(contents)
        self._sum = digest.value() + _hash_of(self._metadata, self._structure.pickled)

    def digest(self) -> Piece:
        return _piece_of_bytes(_DIGEST, self._offsets[_DIGEST], self._sum)


def _piece_of_bytes(name: str, offset: int, content: bytes) -> Piece:
    address, nbytes = _native.resolve(content, False)[:2]
    return Piece(name, offset, nbytes, address, content)


def _bytes_of(memory: Memory) -> Any:
    return torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory.owner, 0, (memory.nbytes,), (1,))


def _hash_of(metadata: Mapping[str, str], pickled: bytes) -> bytes:
    found = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    found.update(pickled)
    return found.digest()


def _loaded(path: str, descriptor: int, key: Key, device: Any, into: ModuleState | None) -> tuple[Any, int]:
    """Returns the object in an entry, and the number of bytes read. Raises _Unusable if the entry must not be used."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise _Unusable("is not a file")
    if (problem := owner_problem_of(status)) is not None:
        raise _Unusable(problem)
    try:
        source = Source(path, descriptor=descriptor)
        try:
            return _read(source, key, device, into), status.st_size
        finally:
            source.file.close()
    except (SafetensorError, ShortRead) as problem:
        raise _Unusable(f"is damaged: {problem}") from problem


def _read(source: Source, key: Key, device: Any, into: ModuleState | None) -> Any:
    metadata = source.header.metadata or {}
    if metadata.get("penstock.weights_cache") != _VERSION:
        raise _Unusable("has another version")
    if metadata.get("key") != key.text:
        raise _Unusable("belongs to another key")
    pickled, told = (_content_of(source, name) for name in (_STRUCTURE, _DIGEST))
    if len(told) != _DIGEST_BYTES or told[32:] != _hash_of(metadata, pickled):
        raise _Unusable("is damaged")
    places = json.loads(metadata["storages"])
    storages: list[Any] = [None] * len(places)
    if into is not None:
        metas = [torch.UntypedStorage(nbytes, device="meta") for nbytes, _ in places]
        own = matches(ModuleState(*_restored(restored, pickled, metas)), metas, into)
        if isinstance(own, str):
            raise _Different(own)
        storages = own
    new = _new_storages([place for place, own in zip(places, storages) if own is None], device)
    storages = [new.pop(0) if own is None else own for own in storages]
    early, digest = _read_storages(source, storages, lambda: _restored(restored_early, pickled, storages))
    if digest != told[:32]:
        raise _Unusable("is damaged: its contents do not match their digest")
    return early if early is not None else _restored(restored, pickled, storages)


def _restored(how: Callable[[bytes, list[Any]], Any], pickled: bytes, storages: list[Any]) -> Any:
    try:
        return how(pickled, storages)
    except (MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as problem:
        raise _Unusable(f"cannot be unpickled: {type(problem).__name__}: {problem}") from problem


def _content_of(source: Source, name: str) -> bytes:
    row = source.row(name)
    size = source.header.sizes[row]
    if size > _MOST_STRUCTURE_BYTES:
        raise _Unusable("is damaged")
    content = bytearray(size)
    read_now(source, content, source.header.offsets[row], size)
    return bytes(content)


def _new_storages(told: list[tuple[int, str]], device: Any) -> list[Any]:
    """Creates the storages. Those of a GPU share one block of its allocator, because a new block for each would take longer than reading."""
    places = [torch.device(name) if device is None or not name.startswith("cuda") else device for _, name in told]
    for each in set(places):
        if not reaches(each) or (each.type == "cuda" and (each.index or 0) >= torch.cuda.device_count()):
            raise _Different(f"needs the device {each}, which this process cannot use")
        if each.type == "cuda":
            large = sum(-(-nbytes // 512) * 512 for (nbytes, _), place in zip(told, places) if place == each and nbytes > _LARGE_BYTES)
            with contextlib.suppress(torch.cuda.OutOfMemoryError):  # no free block is this large
                torch.empty(large, dtype=torch.uint8, device=each)
    return [new_storage(nbytes, place) for (nbytes, _), place in zip(told, places)]


def _read_storages(source: Source, storages: list[Any], meanwhile: Callable[[], _Result]) -> tuple[_Result, bytes]:
    """Reads the storages, and calls meanwhile() during the reads. Returns its result and the digest of the storages. Each group's digest is computed
    while the next groups are read.
    """
    rows, row = [], 0
    for each in storages:
        rows.append(row)
        row += rows_in(each.nbytes())
    by_device: dict[Any, list[int]] = {}
    for i, each in enumerate(storages):
        if each.nbytes():
            by_device.setdefault(each.device, []).append(i)
    synchronize(by_device)
    flow, requests, digest = Flow(), [], Digest(by_device)
    try:
        for own in by_device.values():
            for group in in_batches(own, _GROUP_BYTES, lambda i: storages[i].nbytes()):
                requests.append((group, _started(flow, source, storages, group)))
        result = meanwhile()
        for group, request in requests:
            request.check()
            digest.add([(_bytes_of(memory_of(storages[i])[0]), rows[i]) for i in group])
    finally:
        running = [request.future for _, request in requests if not request.future.done()]
        for each in running:
            each.cancel()
        wait(running)
    return result, digest.value()


def _started(flow: Flow, source: Source, storages: list[Any], group: list[int]) -> Request:
    """Starts reading a group's storages. One memory object covers them all."""
    header = source.header
    offsets, sizes = zip(*((header.offsets[found], header.sizes[found]) for found in (source.row(f"{i:08d}") for i in group)))
    addresses = [storages[i].data_ptr() for i in group]
    if any(size != storages[i].nbytes() for i, size in zip(group, sizes)):
        raise _Unusable("is damaged")
    first = min(addresses)
    ranges = Ranges()
    ranges.add_all(offsets, sizes, [address - first for address in addresses])
    last = max(address + size for address, size in zip(addresses, sizes))
    return flow.add(source, _native.Pointer(first, last - first, [storages[i] for i in group]), ranges)
