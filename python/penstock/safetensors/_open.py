"""safe_open(): a tensor file whose tensors, or parts of them, are read when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from .. import _native
from .._devices import is_gpu
from ._devices import Places
from ._errors import SafetensorError
from ._frameworks import Framework, framework_on, only_view
from ._load import check_backend, check_type, read_tensors
from ._prefetch import PrefetchLoader, TensorMeta, tensor_meta
from ._reading import Ranges, Reads, read_now
from ._slices import Part, part_of, picks_of
from ._sources import Path, Source, StorageOptions, check_names
from ._types import BITS

__all__ = ["Slice", "read_part", "safe_open"]


class safe_open:
    """A safetensors file. A context manager; any thread may use it.

    framework, device: as for load_file().
    backend: that of the safetensors library, "mmap" or "pread", which changes nothing here.
    storage_options: how the server of a URL is reached, as penstock.open() takes them.
    It can be pickled and copied, as a File of penstock.open() can: the arguments travel, and the file is opened again on arrival.
    Raises SafetensorError for what is no such file, penstock.Error.
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
            raise TypeError(f"filename is a str or an os.PathLike of one, not {type(filename).__name__}")
        self._places = Places(framework, device)
        self._place = self._places.of("")
        self._opened: Source | None = Source(os.fspath(filename), storage_options=storage_options)
        self._arguments = (filename, framework, device, None if storage_options is None else dict(storage_options))

    def __reduce__(self) -> tuple[Callable[..., safe_open], tuple[Any, ...]]:
        from .._pickling import path_to_pickle, refuse, storage_options_to_pickle

        filename, framework, device, storage_options = self._arguments
        description = f"safe_open {_native.shown_name(filename)}"
        if self._opened is None:
            refuse(description, "it is closed")
        if storage_options is not None:
            storage_options = storage_options_to_pickle(description, storage_options)
        return _open_again, (path_to_pickle(description, filename), framework, device, storage_options)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._opened = None  # slices may have it still

    @property
    def _source(self) -> Source:
        if self._opened is None:
            raise SafetensorError("File is closed", code="closed")
        return self._opened

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self._source.header.names)

    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their bytes."""
        return list(self._source.header.names)

    def metadata(self) -> dict[str, str] | None:
        """What the file tells besides; None where it has no place for that."""
        found = self._source.header.metadata
        return None if found is None else dict(found)

    def get_tensor(self, name: str) -> Any:
        """A tensor. Blocks."""
        source = self._source
        return read_part(source, source.row(name), self._place, None)

    def get_tensors(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Those of these names, or all, in the order of their bytes, as load_file() reads them. Blocks."""
        return read_tensors([self._source], self._places, None, check_names(names))

    def get_slice(self, name: str) -> Slice:
        """A tensor to take a part of, which is what is read then."""
        source = self._source
        return Slice(source, source.row(name), self._place)

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """What the header says of a tensor. Reads nothing."""
        source = self._source
        return tensor_meta(source.header, source.row(name))

    def prefetch(self, plan: Mapping[str, slice | None] | None = None, *, device: Any = None, threads: int = 8) -> PrefetchLoader:
        """Begins to read tensors of PyTorch, or rows of them, into a GPU, and returns what hands each out once.

        plan: names, and the rows of the first dimension or None for all; None is every tensor. device: None is the one that the file was opened for.
        threads is ignored: Penstock has its own for all files. Raises SafetensorError: it is no GPU, or the file has not what the plan names.
        """
        place = self._place if device is None else framework_on("pt", device)
        if place.name != "PyTorch" or not is_gpu(place.device):
            raise SafetensorError(f"prefetch reads tensors of PyTorch into a GPU, not {place.name}'s on {place.device}", code="invalid_argument")
        import torch

        return PrefetchLoader(self._source, torch.device(place.device), plan)


def _open_again(filename: Path, framework: str | None, device: Any, storage_options: StorageOptions | None) -> safe_open:
    return safe_open(filename, framework, device, storage_options=storage_options)


class Slice:
    """A tensor of a file. Indexing it reads the part and gives it as an array of its own; it may outlive the safe_open() that it is of.

    Ints, slices with steps of 1 and more and an Ellipsis read what they name. For anything else the whole tensor is read, and indexed by its library.
    """

    def __init__(self, source: Source, row: int, place: Framework) -> None:
        self._source = source
        self._row = row
        self._place = place

    def get_shape(self) -> list[int]:
        return list(self._source.header.shapes[self._row])

    def get_dtype(self) -> str:
        """As the file has it, such as "BF16"."""
        return self._source.header.types[self._row]

    @property
    def nbytes(self) -> int:
        """Of all of it. Not in the safetensors library."""
        return self._source.header.sizes[self._row]

    def __getitem__(self, index: Any) -> Any:
        word = self.get_dtype()
        place = self._place
        name = self._source.header.names[self._row]
        shape = check_type(self._source.name, name, word, self._source.header.shapes[self._row], place, place.dtype(word))
        picks = picks_of(index, shape)
        if not place.indexes and (picks is None or BITS[word] % 8):
            raise SafetensorError(f'tensor "{name}": {index!r} of type {word} is nothing that can be read without a library', code="invalid_argument")
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
    return array if part.cut is None else place.copied(array[part.cut])
