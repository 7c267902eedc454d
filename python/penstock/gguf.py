"""GGUF files, llama.cpp's model format: reads their metadata, and loads their tensors into GPU or host memory.

    from penstock import gguf

    with gguf.open("model-Q4_K_M.gguf") as file:
        print(file.metadata["general.architecture"], file.tensors["output.weight"])
        weights = file.load(device="cuda:0", framework="pt")

Unquantized tensors keep their type. Quantized tensors are loaded as stored: as blocks of bytes, for kernels that compute with them. Penstock does not
dequantize.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from . import _native
from ._core.closable import Closable
from ._core.errors import Closed, Error, InvalidArgument
from ._tensors.device_map import Places
from ._tensors.errors import SafetensorError
from ._tensors.header import Header
from ._tensors.load_file import read_tensors
from ._tensors.reads import Links
from ._tensors.sources import Path, Source, check_names

__all__ = ["GGUFError", "GGUFFile", "TensorInfo", "UnknownTensor", "open"]


class GGUFError(Error):
    """The file is not a GGUF file, is damaged, or lacks the requested tensor. A `penstock.Error`, and so an `OSError`."""


class TensorInfo(NamedTuple):
    """A tensor in a file.

    - `type`: ggml's name for the type, such as "Q4_K" or "F16".
    - `shape`: in elements, with the contiguous dimension last, as in NumPy and PyTorch. (The file lists the dimensions in reverse order.)
    - `block_size`: elements in a block; 1 if the type is not quantized.
    - `block_nbytes`: bytes in a block.
    - `nbytes`: bytes in the whole tensor.
    - `offset`: where the tensor starts in the file, in bytes.
    - `file`: the name of the file.
    """

    type: str
    shape: tuple[int, ...]
    block_size: int
    block_nbytes: int
    nbytes: int
    offset: int
    file: str

    @property
    def loaded_shape(self) -> tuple[int, ...]:
        """The shape that `load()` returns. The last dimension of a quantized tensor is the number of bytes in a row."""
        if self.block_size == 1:
            return self.shape
        return *self.shape[:-1], self.shape[-1] // self.block_size * self.block_nbytes


class UnknownTensor(NamedTuple):
    """A tensor whose type this version does not recognize and cannot load.

    - `type`: ggml's number for the type.
    - `shape`: in elements, as in `TensorInfo`.
    - `offset`: where the tensor starts in the file, in bytes.
    - `file`: the name of the file.
    """

    type: int
    shape: tuple[int, ...]
    offset: int
    file: str


class GGUFFile(Closable):
    """An open GGUF model: one file, or several named like "name-00001-of-00003.gguf". Pass any of them.

    A context manager. Thread-safe. A file of a split model with any other name is rejected.

    - `path`: a file name or a URL.
    - `storage_options`: connection options for a URL, as in `penstock.open()`.

    Raises:

    - `GGUFError`: the file is not a complete GGUF file.
    - `NotFound`: some of the model's files are missing; the message names them.
    - `penstock.Error`: reading failed.
    """

    def __init__(self, path: Path, *, storage_options: Mapping[str, Any] | None = None) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path must be a str or an os.PathLike, not {type(path).__name__}")
        self._stack = contextlib.ExitStack()
        self._sources: list[_Source] = []
        try:
            with _told_as(GGUFError, InvalidArgument):
                for name in _native.gguf_files(path):
                    self._sources.append(_Source(name, storage_options=storage_options))
                    self._stack.callback(self._sources[-1].file.close)
                self._check()
        except BaseException:
            self._stack.close()
            raise

    def __repr__(self) -> str:
        return f"<penstock.gguf.GGUFFile {self.files[0]!r}, {len(self.tensors)} tensors>"

    def close(self) -> None:
        """Closes the files. You can still read `metadata` and `tensors`."""
        self._stack.close()

    @property
    def files(self) -> list[str]:
        """The names of the files, in order."""
        return [each.name for each in self._sources]

    @property
    def version(self) -> int:
        """The format version: 2 or 3."""
        return self._sources[0].told.version

    @property
    def alignment(self) -> int:
        """The alignment of the tensors in the file, in bytes."""
        return self._sources[0].told.alignment

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Metadata by key, in file order: int, float, bool, str, and lists of these. For a model in several files, the first file's metadata.

        If a string is not valid UTF-8, its bytes appear as surrogates: `text.encode(errors="surrogateescape")` restores them.
        """
        return self._sources[0].told.metadata

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """The tensors by name, in file order and by position in each file."""
        return {
            name: TensorInfo(word, shape, block_size, block_nbytes, nbytes, offset, each.name)
            for each in self._sources
            for name, word, shape, block_size, block_nbytes, offset, nbytes in each.told.rows()
        }

    @cached_property
    def unknown(self) -> dict[str, UnknownTensor]:
        """Tensors whose type this version does not recognize, by name. They are not in `tensors`."""
        return {
            name: UnknownTensor(number, shape, offset, each.name)
            for each in self._sources
            for name, number, shape, offset in each.told.unknown_rows()
        }

    def load(
        self, names: Iterable[str] | None = None, device: Any = None, framework: str | None = None, *, links: Links | None = None
    ) -> dict[str, Any]:
        """Returns tensors by name, in the order of `tensors`. Blocks; KeyboardInterrupt stops it.

        - `names`: the tensors to load. None loads all tensors except those of unknown types, which a warning lists.
        - `device`, `framework`, `links`: as for `penstock.safetensors.load_file()`.

        F32, F16, BF16, F64, I8, I16, I32 and I64 keep their type and have the shape `TensorInfo.shape`. All other types become uint8 tensors with the
        shape `TensorInfo.loaded_shape`. All tensors on a device are views of one allocation, which lives as long as any of them.

        Raises:

        - `GGUFError`: a tensor is missing or has an unknown type, or the library lacks a type (NumPy needs ml_dtypes for BF16).
        - `ShortRead`: the file was truncated after it was opened.
        - `Closed`: the file is closed.
        - `penstock.Error`: reading failed.
        """
        if any(each.file.closed for each in self._sources):
            raise Closed(f"{self.files[0]}: the file is closed", code="closed", filename=self.files[0])
        with _told_as(InvalidArgument, SafetensorError):
            places = Places(framework, device)
        wanted = check_names(names)
        self._check_unknown(wanted)
        with _told_as(GGUFError, SafetensorError):
            return read_tensors(self._sources, places, None, wanted, links)

    def _check(self) -> None:
        _native.check_gguf_files(self.files, [each.told for each in self._sources])
        if len(self._sources) > 1:
            _native.check_model(self.files, [each.header.told for each in self._sources], {})

    def _check_unknown(self, names: set[str] | None) -> None:
        lost = {name: each for name, each in self.unknown.items() if names is None or name in names}
        if not lost:
            return
        name, first = next(iter(lost.items()))
        more = f" and {len(lost) - 1} more in this file" if len(lost) > 1 else ""
        problem = f'{first.file}: tensor "{name}"{more} cannot be loaded: this version does not support its type, {first.type}'
        if names is not None:
            raise GGUFError(problem, code="unsupported", filename=first.file)
        warnings.warn(f"{problem}; the others were loaded", UserWarning, stacklevel=3)


def open(path: Path, *, storage_options: Mapping[str, Any] | None = None) -> GGUFFile:
    """Opens a GGUF model and reads its metadata. Blocks. The arguments and errors are the same as for `GGUFFile`."""
    return GGUFFile(path, storage_options=storage_options)


class _Source(Source):
    told: _native.GGUFHeader

    def _read_header(self) -> Header:
        self.told = _native.read_gguf(self.file)
        return Header(self.told.tensors)


@contextlib.contextmanager
def _told_as(kind: type[Error], other: type[Error]) -> Iterator[None]:
    """Converts errors from another part of the package to the given kind."""
    try:
        yield
    except other as problem:
        raise kind(str(problem), code=problem.code, filename=problem.filename) from None


def __dir__() -> list[str]:
    return sorted(__all__)
