"""GDSStore for zarr 2: a DirectoryStore that reads and writes values through penstock."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import zarr
import zarr.storage

import penstock
from penstock.zarr._files import MISSING, files_at_once, sync_folder, write_memory
from penstock.zarr._places import HOST, Place, place_like
from penstock.zarr._reads import Outcome, Read, start_reads

__all__ = ["GDSStore", "open_cupy_array"]


_zarr: Any = zarr  # its types, which are those of zarr 3 if any are installed
_zarr_storage: Any = zarr.storage


class GDSStore(_zarr_storage.DirectoryStore):  # type: ignore[misc]
    """A zarr 2 store in a local folder, read and written by Penstock.

    A selection's chunks are read in a few large batches, into the kind of memory of the array's `meta_array`: after `zarr.open_array(store,
    meta_array=cupy.empty(()))`, uncompressed chunks are read straight into GPU memory. For a whole uncompressed array, `penstock.zarr.load` is
    several times faster still.

    - `path`, `normalize_keys`, `dimension_separator`: as for DirectoryStore.
    - `compressor_config_overwrite`: the compressor to record in the metadata of new arrays, in place of the array's own.
    - `decompressor_config_overwrite`: the compressor to decode arrays with, in place of the one in their metadata. Both are numcodecs configurations,
      as with KvikIO.
    - `fsync`: whether a write returns only once the value and its directory entry are on disk. Values are renamed into place in either case.

    Raises KeyError for a missing key, and penstock.Error (an OSError) with the file, the offset and the cause. Thread-safe. Keeps no file open.
    """

    default_meta_array: Any = np.empty(())
    """An example of the arrays that getitems() returns by default. Set it to cupy.empty(()) on an instance or a subclass for CuPy arrays."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        normalize_keys: bool = False,
        dimension_separator: str | None = None,
        *,
        compressor_config_overwrite: Mapping[str, Any] | None = None,
        decompressor_config_overwrite: Mapping[str, Any] | None = None,
        fsync: bool = False,
    ) -> None:
        super().__init__(path, normalize_keys=normalize_keys, dimension_separator=dimension_separator)
        self.compressor_config_overwrite = compressor_config_overwrite
        self.decompressor_config_overwrite = decompressor_config_overwrite
        self.fsync = fsync

    def __getitem__(self, key: str) -> Any:
        """Returns the value of a key in host memory: a uint8 NumPy array for a chunk, bytes for JSON."""
        values = self._read([key], HOST)
        if key not in values:
            raise KeyError(key)
        return self._recompressed(key, values[key].tobytes(), self.decompressor_config_overwrite) if _is_metadata(key) else values[key]

    def getitems(self, keys: Sequence[str], *, contexts: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """Returns the values of the keys that exist, as CuPy or NumPy uint8 arrays: like the meta_array in the key's context, or like
        default_meta_array.
        """
        values: dict[str, Any] = {}
        for place, some in _by_place(keys, contexts, self.default_meta_array):
            most = files_at_once()
            for start in range(0, len(some), most):
                values.update(self._read(some[start : start + most], place))
        return {key: values[key] for key in keys if key in values}

    def __setitem__(self, key: str, value: Any) -> None:
        """Writes a value. A value in GPU memory is written straight from there."""
        super().__setitem__(key, self._recompressed(key, value, self.compressor_config_overwrite))
        if self.fsync:
            sync_folder(os.path.dirname(self._path(key)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GDSStore) and self.path == other.path

    __hash__ = None  # type: ignore[assignment]

    def _tofile(self, a: Any, fn: str) -> None:  # called by DirectoryStore with a temporary name
        write_memory(a, fn, fsync=self.fsync)

    def _recompressed(self, key: str, metadata: Any, config: Mapping[str, Any] | None) -> Any:
        """Returns an array's metadata with another compressor, if it has one."""
        if config is None or key.rpartition("/")[2] != ".zarray":
            return metadata
        told = json.loads(bytes(metadata))
        if told.get("compressor") is None:
            return metadata
        return json.dumps({**told, "compressor": dict(config)}, indent=4, sort_keys=True).encode()

    def _path(self, key: str) -> str:
        return os.path.join(self.path, str(self._normalize_key(key)))

    def _read(self, keys: Iterable[str], place: Place) -> dict[str, Any]:
        files: list[penstock.File] = []
        reads: dict[str, Read] = {}
        try:
            for key in keys:
                try:
                    file = penstock.open(self._path(key))
                except MISSING:
                    continue
                files.append(file)
                size = file.size()
                reads[key] = Read(file, place.empty(size), 0, size)
            place.settle()
            outcomes = start_reads(list(reads.values())).wait()
        finally:
            for file in files:
                file.close()
        return {key: _value(read, outcome) for (key, read), outcome in zip(reads.items(), outcomes)}


def open_cupy_array(
    store: str | os.PathLike[str], mode: str = "a", *, compressor: Any = None, meta_array: Any = None, **options: Any
) -> Any:
    """Like zarr.open_array() for a folder, with a GDSStore and values in GPU memory. KvikIO has a function with this name.

    - `mode`, options: as for zarr.open_array().
    - `compressor`: for a new array. The default is none, so chunks go straight to and from the GPU; KvikIO's default is nvCOMP's Snappy.
    - `meta_array`: an example of the memory to use, in place of CuPy's.

    Raises ImportError without CuPy, and TypeError if the path is not a path.
    """
    if meta_array is None:
        import cupy

        meta_array = cupy.empty(())
    if mode not in ("r", "r+"):
        options["compressor"] = compressor
    return _zarr.open_array(GDSStore(os.fspath(store)), mode=mode, meta_array=meta_array, **options)


def _value(read: Read, outcome: Outcome) -> Any:
    if isinstance(outcome, BaseException):
        raise outcome
    return read.buffer[:outcome]


def _is_metadata(key: str) -> bool:
    return key.rpartition("/")[2] in (".zarray", ".zgroup", ".zattrs", ".zmetadata")


def _by_place(keys: Sequence[str], contexts: Mapping[str, Any], otherwise: Any) -> list[tuple[Place, list[str]]]:
    """Groups keys by the memory that their values are wanted in."""
    groups: dict[str, tuple[Place, list[str]]] = {}
    for key in keys:
        example = contexts[key].get("meta_array", otherwise) if key in contexts else otherwise
        kind = type(example).__module__
        if kind not in groups:
            groups[kind] = (place_like(example), [])
        groups[kind][1].append(key)
    return list(groups.values())
