"""safe_open(): a tensor file whose tensors, or parts of tensors, are read on request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import _native
from .._core.arrays.library import only_view
from .._core.devices import is_gpu
from .device_map import Places
from .errors import SafetensorError
from .frameworks import Framework, framework_on
from .load_file import check_backend, check_type, read_tensors
from .prefetch import PrefetchLoader, TensorMeta, tensor_meta
from .reads import Ranges, Reads, read_now
from .slices import Part, part_of, picks_of
from .sources import Path, Source, StorageOptions, check_names
from .types import BITS

__all__ = ["Slice", "read_part", "safe_open"]


class safe_open:
    """An open safetensors file. A context manager. Thread-safe.

    - `filename`: the name of the file, or a URL.
    - `framework`, `device`: as for `load_file()`.
    - `backend`: accepted for compatibility ("mmap" or "pread"); it has no effect.
    - `storage_options`: connection options for a URL, as in `penstock.open()`.

    You can pickle and copy the object: the copy opens the file again.

    Raises `SafetensorError` if the file is not a safetensors file, and `penstock.Error` if it cannot be opened or read.
    """

    def __init__(
        self,
        filename: Path,
        framework: str | None,
        device: Any = None,
        *,
        backend: str = "mmap",
        storage_options: StorageOptions | None = None,
    ) -> None:
        check_backend(backend)
        if not isinstance(filename, (str, os.PathLike)):
            raise TypeError(f"filename must be a str or an os.PathLike, not {type(filename).__name__}")
        self._places = Places(framework, device)
        self._place = self._places.of("")
        self._opened: Source | None = Source(os.fspath(filename), storage_options=storage_options)
        self._arguments = (filename, framework, device, None if storage_options is None else dict(storage_options))

    def __reduce__(self) -> tuple[Callable[..., safe_open], tuple[Any, ...]]:
        from .._core.pickling import path_to_pickle, refuse, storage_options_to_pickle

        filename, framework, device, storage_options = self._arguments
        description = f"safe_open {_native.shown_name(filename)}"
        if self._opened is None:
            refuse(description, "it is closed")
        if storage_options is not None:
            storage_options = storage_options_to_pickle(description, storage_options)
        return _open_again, (path_to_pickle(description, filename), framework, device, storage_options)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened = None  # slices may still use it

    @property
    def _source(self) -> Source:
        if self._opened is None:
            raise SafetensorError("File is closed", code="closed")
        return self._opened

    def keys(self) -> list[str]:
        """Returns the names of the tensors, sorted."""
        return sorted(self._source.header.names)

    def offset_keys(self) -> list[str]:
        """Returns the names of the tensors, in offset order."""
        return list(self._source.header.names)

    def metadata(self) -> dict[str, str] | None:
        """Returns the file's metadata; None if it has none."""
        found = self._source.header.metadata
        return None if found is None else dict(found)

    def get_tensor(self, name: str) -> Any:
        """Reads a tensor. Blocks. Raises SafetensorError for an unknown name."""
        source = self._source
        return read_part(source, source.row(name), self._place, None)

    def get_tensors(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Reads several tensors, or all of them, at once, in offset order, as `load_file()` does. Blocks."""
        return read_tensors([self._source], self._places, None, check_names(names))

    def get_slice(self, name: str) -> Slice:
        """Returns a `Slice`, which reads the part that you index."""
        source = self._source
        return Slice(source, source.row(name), self._place)

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """Returns a tensor's type, shape and offsets from the header. Reads nothing."""
        source = self._source
        return tensor_meta(source.header, source.row(name))

    def prefetch(self, plan: Mapping[str, slice | None] | None = None, *, device: Any = None, threads: int = 8) -> PrefetchLoader:
        """Starts reading PyTorch tensors, or rows of them, into GPU memory. The returned loader delivers each of them once.

        - `plan`: the rows to read (slices of the first dimension, or None for all), by tensor name. None reads every tensor.
        - `device`: the GPU. None means the device with which the file was opened.
        - `threads`: ignored; Penstock has its own threads.

        Raises `SafetensorError` if the device is not a GPU, or if the file lacks a tensor or rows in the plan.
        """
        place = self._place if device is None else framework_on("pt", device)
        if place.name != "PyTorch" or not is_gpu(place.device):
            raise SafetensorError(f"prefetch reads PyTorch tensors into a GPU, not {place.name} arrays on {place.device}", code="invalid_argument")
        import torch

        return PrefetchLoader(self._source, torch.device(place.device), plan)


def _open_again(filename: Path, framework: str | None, device: Any, storage_options: StorageOptions | None) -> safe_open:
    return safe_open(filename, framework, device, storage_options=storage_options)


class Slice:
    """A tensor in an open file. Indexing it reads the part and returns a new array. It may outlive its `safe_open`.

    Ints, slices with positive steps and an Ellipsis read only the bytes that they select. Any other index reads the whole tensor, which the library
    then indexes.
    """

    def __init__(self, source: Source, row: int, place: Framework) -> None:
        self._source = source
        self._row = row
        self._place = place

    def get_shape(self) -> list[int]:
        """Returns the shape of the whole tensor."""
        return list(self._source.header.shapes[self._row])

    def get_dtype(self) -> str:
        """Returns the type name in the file, such as "BF16"."""
        return self._source.header.types[self._row]

    @property
    def nbytes(self) -> int:
        """The size of the whole tensor in bytes. The safetensors library lacks this attribute."""
        return self._source.header.sizes[self._row]

    def __getitem__(self, index: Any) -> Any:
        word = self.get_dtype()
        place = self._place
        name = self._source.header.names[self._row]
        shape = check_type(self._source.name, name, word, self._source.header.shapes[self._row], place, place.dtype(word))
        picks = picks_of(index, shape)
        if not place.indexes and (picks is None or BITS[word] % 8):
            raise SafetensorError(f'tensor "{name}": reading {index!r} of type {word} requires a library', code="invalid_argument")
        if picks is None:
            return read_part(self._source, self._row, place, None)[index]
        part = part_of(shape, max(1, BITS[word] // 8), picks, not place.indexes, place.device in ("host", "cpu"))
        return read_part(self._source, self._row, place, part)


def read_part(source: Source, row: int, place: Framework, part: Part | None) -> Any:
    header = source.header
    name, word = header.names[row], header.types[row]
    dtype = place.dtype(word)
    shape = check_type(source.name, name, word, header.shapes[row], place, dtype)
    if part is None:
        nbytes = header.sizes[row]
        arena = place.arena(nbytes)
        read_now(source, arena.memory, header.offsets[row], nbytes)
        return only_view(arena, dtype, shape, nbytes)
    arena = place.arena(part.nbytes)
    if len(part.starts) == 1:
        read_now(source, arena.memory, header.offsets[row] + part.starts[0], part.run_bytes)
    else:
        ranges, reads = Ranges(), Reads()
        ranges.add_part(header.offsets[row], part, 0)
        reads.start(source, arena.memory, ranges)
        reads.wait()
    array = only_view(arena, dtype, part.shape, part.nbytes)
    return array if part.cut is None else place.library.copied(array[part.cut])


Slice.__module__ = safe_open.__module__ = "penstock.safetensors"  # their public home, which pickles name
