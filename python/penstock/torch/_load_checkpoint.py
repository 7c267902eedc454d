"""load(): loads a torch.save checkpoint, reading its storages directly into their devices."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .. import _native
from .._core.errors import Error
from .._core.batches import in_batches
from .._core.pieces import Piece, Progress, move_pieces
from .._core.torch_storages import new_storage, reaches, synchronize
from .._core.urls import is_url
from .._core.windows import Part, Window, windows_of
from ._archive import Archive, CheckpointError, Record, is_zip
from ._scan import Wanted, storage_type, wanted_of, wanted_storages
from ._settings import setting

__all__ = ["fallback_reason", "load", "unpickler_of", "weights_only_unpickler"]

_log = logging.getLogger("penstock.torch")


def load(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Returns what `torch.load(f, ...)` returns, but reads the storages directly into their devices. Blocks.

    Arguments:

    - `f`: a file name, or the URL of an object. `torch.load` handles everything else; `fallback_reason()` says why.
    - `map_location`: as for `torch.load`. A function receives storages on the CPU; a name, a device or a dict is faster.
    - `pickle_module`, `mmap`, and other keyword arguments: as for `torch.load`. With `mmap=True`, `torch.load` reads the file.
    - `weights_only`: True unless you pass False or a `pickle_module`. It uses PyTorch's restricted unpickler, with the classes that you allowed with
      `torch.serialization.add_safe_globals()`, and runs no code from the file.
    - `progress`: a function of the bytes done and the total bytes. It is called on this thread.
    - `storage_options`: connection options for a URL, as in `penstock.open()`.

    Tensors that shared storage share it again. The call waits for PyTorch's current streams; you may use the tensors on any stream.

    Raises:

    - `CheckpointError`: the file is incomplete or damaged.
    - `penstock.Error`: reading failed; the message names the file and the storage.
    - `pickle.UnpicklingError`, `EOFError`, `RuntimeError`: as for `torch.load`.
    """
    safe = _weights_only(weights_only, pickle_module)
    if safe and pickle_module is not None:
        raise RuntimeError("Can not safely load weights when explicit pickle_module is specified")
    reason = _reason_before_reading(f, map_location, mmap)
    if reason is None:
        path = os.fspath(f)
        with _native.open(path, storage_options=storage_options) as file:
            archive, reason = _archive_or_reason(file, _native.shown_name(path))
            if archive is not None:
                unpickler = weights_only_unpickler() if safe else pickle_module or pickle
                return _Load(file, archive, f, map_location, progress).run(unpickler, safe, pickle_load_args)
    if isinstance(f, str) and is_url(f):
        problem = f"{_shown(f)}: {reason}, so only torch.load can read it, which does not support URLs; copy it to a local file first"
        raise Error(problem, code="unsupported", filename=_shown(f))
    _log.info("torch.load reads %s: %s", _shown(f), reason)
    if _is_mapped(mmap):
        _check_storages(f, pickle_load_args.get("encoding", "utf-8"))
    with _damage_named(f, safe, map_location):
        return torch.load(f, map_location, pickle_module, weights_only=safe, mmap=mmap, **pickle_load_args)


def fallback_reason(
    f: Any, map_location: Any = None, *, mmap: bool | None = None, storage_options: Mapping[str, Any] | None = None
) -> str | None:
    """Returns why `load()` with these arguments leaves the file to `torch.load`, or None if Penstock reads the file itself. Raises penstock.Error."""
    reason = _reason_before_reading(f, map_location, mmap)
    if reason is None:
        with _native.open(f, storage_options=storage_options) as file:
            _, reason = _archive_or_reason(file, _native.shown_name(f))
    return reason


@contextlib.contextmanager
def _damage_named(f: Any, safe: bool, map_location: Any) -> Iterator[None]:
    """Reports damage found while unpickling. For a damaged pickle, PyTorch's restricted unpickler raises KeyError, UnicodeDecodeError or others
    without the file's name. Exceptions from the caller's code (map_location, classes of an unrestricted pickle, a file object) are not changed.
    """
    if not safe or not isinstance(f, (str, os.PathLike)) or _is_callable(map_location):
        yield
        return
    try:
        yield
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, MemoryError, ImportError):
        raise
    except Exception as problem:
        name = os.fspath(_shown(f))
        told = f"{name}: not a torch.save checkpoint, or a damaged one: {type(problem).__name__}: {problem}"
        raise CheckpointError(told, code="invalid_argument", filename=name) from problem


def _is_callable(map_location: Any) -> bool:
    return map_location is not None and not isinstance(map_location, (str, bytes, torch.device, dict))


# --- files that torch.load reads


def _shown(f: Any) -> Any:
    return _native.shown_name(f) if isinstance(f, (str, os.PathLike)) else f


def _reason_before_reading(f: Any, map_location: Any, mmap: bool | None) -> str | None:
    if not isinstance(f, (str, os.PathLike)):
        return f"{type(f).__name__} is not a file path"
    if _is_mapped(mmap):
        return "mmap=True requests tensors that are read on first access"
    if str(f).endswith(".safetensors"):
        return "a safetensors file is not a torch.save checkpoint"
    if str(map_location) == "meta":
        return "tensors on the meta device have no bytes"
    if getattr(getattr(torch.serialization, "_serialization_tls", None), "skip_data", False):
        return "torch.serialization.skip_data() requests tensors without their bytes"
    if torch._guards.detect_fake_mode(None) is not None:
        return "fake tensors have no bytes"
    return None


def _is_mapped(mmap: bool | None) -> bool:
    return bool(mmap or (mmap is None and setting("load", "mmap")))


def _check_storages(f: Any, encoding: str) -> None:
    """Checks storage sizes. If a storage is too short, PyTorch maps the bytes after it as if they were part of it."""
    if not isinstance(f, (str, os.PathLike)) or not os.path.isfile(f):
        return
    with _native.open(f) as file:
        archive, _ = _archive_or_reason(file, _native.shown_name(f))
        if archive is not None:
            archive.offsets(_record_of(archive, each) for each in wanted_storages(archive.read("data.pkl"), encoding))


def _record_of(archive: Archive, storage: Wanted) -> Record:
    """Returns the record of a storage. Raises CheckpointError if it is missing or too short."""
    record = archive.record(f"data/{storage.key}")
    if storage.nbytes > record.nbytes:
        raise archive.broken(f"storage {record.name} has {record.nbytes} bytes, but the pickle expects {storage.nbytes}")
    return record


def _archive_or_reason(file: Any, path: str) -> tuple[Archive | None, str | None]:
    if is_url(file.name):
        (file,) = windows_of([Part(file, 0, file.size())], _EDGES)
    if not is_zip(file):
        return None, "it is not a zip archive (PyTorch 1.5 and older, and _use_new_zipfile_serialization=False, write a different format)"
    archive = Archive(file, path)
    if "constants.pkl" in archive.records:
        return None, "it is a TorchScript archive"
    for record in archive.records.values():
        if not record.stored:
            return None, f"record {record.name} is compressed or encrypted"
    if "version" in archive.records and archive.read("version").strip() not in _VERSIONS:
        return None, f"its version {archive.read('version')[:20]!r} is not supported"
    return archive, None


# Bytes to read at the start (the pickle) and at the end (the directory) of a checkpoint on a server.
_EDGES = (64 << 10, 64 << 10)
_VERSIONS = {str(each).encode() for each in range(1, 11)}


def _weights_only(told: bool | None, pickle_module: Any) -> bool:
    """Applies the environment variables as torch.load does. A pickle_module without weights_only means unrestricted unpickling."""
    words = ("1", "y", "yes", "true")
    always = os.getenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0").lower() in words
    never = os.getenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0").lower() in words
    if always and never:
        raise RuntimeError("TORCH_FORCE_WEIGHTS_ONLY_LOAD and TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD are both set")
    if told is None:
        return always or (not never and pickle_module is None)
    return always or told


def weights_only_unpickler() -> Any:
    from torch import _weights_only_unpickler

    return _weights_only_unpickler


# --- devices of storages


class _Places:
    """Places storages according to map_location, through the functions that torch.load uses."""

    def __init__(self, map_location: Any) -> None:
        self._map_location = map_location
        self._devices: dict[str, torch.device] = {}

    def direct(self, location: str) -> torch.device | None:
        """Returns the device on which to create a storage and into which to read it, or None if it is read on the CPU and then moved by place()."""
        if self._is_callable():
            return None
        name = self._mapped(location)
        if name not in self._devices:
            # PyTorch's registry maps and checks the location of an empty storage.
            self._devices[name] = torch.serialization.default_restore_location(torch.UntypedStorage(0), name).device
        device = self._devices[name]
        return device if reaches(device) else None

    def place(self, storage: Any, location: str) -> Any:
        """Returns the storage with its bytes at its final location."""
        if self._is_callable():
            placed = self._map_location(storage, location)
            if placed is not None:
                return placed
            return torch.serialization.default_restore_location(storage, location)
        return torch.serialization.default_restore_location(storage, self._mapped(location))

    def _is_callable(self) -> bool:
        return _is_callable(self._map_location)

    def _mapped(self, location: str) -> Any:
        if self._map_location is None:
            return location
        if isinstance(self._map_location, dict):
            return self._map_location.get(location, location)
        return str(self._map_location) if isinstance(self._map_location, torch.device) else self._map_location


# --- one checkpoint

_HELD_BYTES = 256 << 20  # limit for storages that are in memory twice
_SMALL_BYTES = 1 << 20
_HEADER_BYTES = 4096  # enough for the local header of a record


def _near_bytes(record: Record) -> int:
    """Returns how many bytes of a record to read together with its header."""
    return _HEADER_BYTES + (record.nbytes if record.nbytes < _SMALL_BYTES else 0)


class _UnknownByteOrder(CheckpointError, ValueError):
    """Also a ValueError, like the error that torch.load raises."""


class _Load:
    def __init__(self, file: Any, archive: Archive, f: Any, map_location: Any, progress: Progress | None) -> None:
        self._file = file
        self._archive = archive
        self._path = os.fspath(f)
        self._shown = _native.shown_name(self._path)
        self._map_location = map_location
        self._places = _Places(map_location)
        self._progress = progress
        self._swaps = self._is_of_other_byte_order()
        self._loaded: dict[tuple[str, int], Any] = {}

    def run(self, unpickler: Any, safe: bool, arguments: dict[str, Any]) -> Any:
        arguments.setdefault("encoding", "utf-8")
        pickled = self._archive.read("data.pkl")
        # Read all bytes before unpickling, because code that rebuilds an object may access them.
        with _damage_named(self._path, safe, self._map_location):
            wanted = wanted_storages(pickled, arguments["encoding"])
        self._read(wanted)
        wrapped = unpickler_of(unpickler)(io.BytesIO(pickled), **arguments)
        wrapped.persistent_load = self._persistent_load
        try:
            with _with_map_location(self._map_location), _damage_named(self._path, safe, self._map_location):
                result = wrapped.load()
            _validate_sparse(safe)
        except pickle.UnpicklingError as error:
            raise (self._as_torch_tells(error) if safe else error) from None
        return result

    def _is_of_other_byte_order(self) -> bool:
        if "byteorder" in self._archive.records:
            order = self._archive.read("byteorder")
            if order not in (b"little", b"big"):
                raise _UnknownByteOrder(f"{self._shown}: Unknown endianness type: {order[:20]!r}", code="invalid_argument", filename=self._shown)
            return order.decode() != sys.byteorder
        told = torch.serialization.get_default_load_endianness()
        if told is torch.serialization.LoadEndianness.NATIVE:
            return False
        return sys.byteorder != ("big" if told is torch.serialization.LoadEndianness.BIG else "little")

    def _persistent_load(self, persistent_id: Any) -> Any:
        wanted = wanted_of(persistent_id)
        # An empty record may be requested with several sizes, each with its own storage. Storages that the first pass missed are read here too.
        if (wanted.key, wanted.nbytes) not in self._loaded:
            self._read([wanted])
        storage = self._loaded[wanted.key, wanted.nbytes]
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=wanted.dtype, _internal=True)

    def _read(self, wanted: list[Wanted]) -> None:
        found = [(each, _record_of(self._archive, each)) for each in wanted]
        window = self._archive.file
        if not isinstance(window, Window):
            self._read_batch(found, None, self._progress)
            return
        # From a server, small storages are read together with their headers.
        total, done = sum(each.nbytes for each in wanted), 0

        def report(count: int, _: int) -> None:
            if self._progress is not None:
                self._progress(done + count, total)

        for batch in in_batches(found, _HELD_BYTES, lambda each: _near_bytes(each[1])):
            window.fetch((record.header_offset, _near_bytes(record)) for _, record in batch)
            self._read_batch(batch, window, report)
            window.release()
            done += sum(each.nbytes for each, _ in batch)
            report(0, total)

    def _read_batch(self, found: list[tuple[Wanted, Record]], window: Window | None, progress: Progress | None) -> None:
        """`window`: contains some of the storages."""
        offsets = self._archive.offsets([record for _, record in found])
        pieces, later, copies = [], [], []
        for (each, record), offset in zip(found, offsets):
            device = None if self._swaps else self._places.direct(each.location)
            storage = new_storage(each.nbytes, device or torch.device("cpu"))
            piece = Piece(f"storage {record.name}", offset, each.nbytes, storage.data_ptr(), storage, storage.device)
            content = window.held(offset, each.nbytes) if window is not None and each.nbytes else None
            if content is None:
                pieces.append(piece)
            else:
                copies.append((piece, content))
            if device is None:
                later.append((each, storage))
            self._loaded[each.key, each.nbytes] = storage
        synchronize([each.device for each in pieces] + [each.device for each, _ in copies])
        for piece, content in copies:
            _native.copy(_native.Pointer(piece.address, piece.nbytes, piece.owner), content)
        move_pieces(self._file, pieces, label=self._shown, progress=progress)
        for each, storage in later:
            if self._swaps:
                storage.byteswap(each.dtype)
            self._loaded[each.key, each.nbytes] = self._places.place(storage, each.location)

    def _as_torch_tells(self, error: pickle.UnpicklingError) -> BaseException:
        """Returns PyTorch's own error, which explains what to do, by loading the same file without its storages."""
        try:
            torch.load(self._path, map_location="meta", weights_only=True)
        except pickle.UnpicklingError as told:
            return told
        except Exception:
            pass
        return error


def unpickler_of(module: Any) -> Any:
    class Unpickler(module.Unpickler):  # type: ignore[misc]
        def find_class(self, module_name: str, name: str) -> Any:
            if (found := storage_type(name)) is not None:
                return found
            return super().find_class("torch._tensor" if module_name == "torch.tensor" else module_name, name)

    return Unpickler


@contextlib.contextmanager
def _with_map_location(map_location: Any) -> Iterator[None]:
    """Sets map_location in PyTorch's thread-local state, where the code that rebuilds tensors without storage reads it."""
    holder = getattr(torch.serialization, "_serialization_tls", None) or getattr(torch._utils, "_thread_local_state", None)
    if holder is None:
        yield
        return
    holder.map_location = map_location
    try:
        yield
    finally:
        holder.map_location = None


def _validate_sparse(safe: bool) -> None:
    validate = torch._utils._validate_loaded_sparse_tensors
    if "weights_only" in inspect.signature(validate).parameters:
        validate(weights_only=safe)
    else:
        validate()
