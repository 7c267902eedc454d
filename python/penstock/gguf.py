"""GGUF files, as llama.cpp has models: their settings and vocabulary, and their tensors, read into a GPU or the host at the speed of the hardware.

    from penstock import gguf

    with gguf.open("model-Q4_K_M.gguf") as file:
        print(file.metadata["general.architecture"], file.tensors["output.weight"])
        weights = file.load(device="cuda:0", framework="pt")

Types that are not quantised become arrays of that type. Quantised tensors come as they are in the file, blocks of bytes, for kernels that
compute with them: nothing is dequantised here.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, NamedTuple

from . import _native
from ._errors import Closed, Error, InvalidArgument
from .safetensors._devices import Places
from .safetensors._errors import SafetensorError
from .safetensors._header import Header
from .safetensors._load import read_tensors
from .safetensors._reading import Links
from .safetensors._sources import Path, Source, check_names

__all__ = ["GGUFError", "GGUFFile", "TensorInfo", "UnknownTensor", "open"]


class GGUFError(Error):
    """A file that is not what GGUF files are, or something asked of one that it has not. A penstock.Error, so an OSError."""


class TensorInfo(NamedTuple):
    """A tensor in a file.

    type: ggml's name, such as "Q4_K", "F16". shape: of elements, the last dimension being the one whose elements lie side by side (files list the
    dimensions the other way round). block_size: elements of a block, 1 where the type is not quantised; block_nbytes: its bytes.
    offset: of the tensor's first byte in the file, in bytes. file: its name.
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
        """That load() gives: of a quantised tensor the last dimension is the bytes of a row."""
        if self.block_size == 1:
            return self.shape
        return *self.shape[:-1], self.shape[-1] // self.block_size * self.block_nbytes


class UnknownTensor(NamedTuple):
    """A tensor of a type that this version does not know, and cannot load.

    type: ggml's number. shape: of elements, as in TensorInfo. offset: of its first byte in the file, in bytes. file: its name.
    """

    type: int
    shape: tuple[int, ...]
    offset: int
    file: str


class GGUFFile:
    """A model in a GGUF file, or in several that are called "name-00001-of-00003.gguf": any of them stands for all. A context manager; any thread
    may use it. A file that is part of a model and has another name is refused.

    storage_options: how the server of a URL is reached, as penstock.open() takes them.
    Raises GGUFError for what is no such file, or not whole; NotFound, naming the files of a model that are not there; penstock.Error.
    """

    def __init__(self, path: Path, *, storage_options: Mapping[str, Any] | None = None) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path is a str or an os.PathLike of one, not {type(path).__name__}")
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

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.gguf.GGUFFile {self.files[0]!r}, {len(self.tensors)} tensors>"

    def close(self) -> None:
        """metadata and tensors can be asked for still."""
        self._stack.close()

    @property
    def files(self) -> list[str]:
        """The names of the files, in their order."""
        return [each.name for each in self._sources]

    @property
    def version(self) -> int:
        """Of the format: 2 or 3."""
        return self._sources[0].told.version

    @property
    def alignment(self) -> int:
        """Of the tensors in the file, in bytes."""
        return self._sources[0].told.alignment

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """By key, in the order of the file: int, float, bool, str, and lists of these. Of several files that of the first, which has all.

        Bytes that are no UTF-8 stand in a str as surrogates: text.encode(errors="surrogateescape") gives them.
        """
        return self._sources[0].told.metadata

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """By name, in the order of the files and of their bytes in each."""
        return {
            name: TensorInfo(word, shape, block_size, block_nbytes, nbytes, offset, each.name)
            for each in self._sources
            for name, word, shape, block_size, block_nbytes, offset, nbytes in each.told.rows()
        }

    @cached_property
    def unknown(self) -> dict[str, UnknownTensor]:
        """Tensors of types that this version does not know, by name. They are not among tensors."""
        return {
            name: UnknownTensor(number, shape, offset, each.name)
            for each in self._sources
            for name, number, shape, offset in each.told.unknown_rows()
        }

    def load(
        self, names: Iterable[str] | None = None, device: Any = None, framework: str | None = None, *, links: Links | None = None
    ) -> dict[str, Any]:
        """Tensors by their names, in the order of tensors. Blocks; KeyboardInterrupt stops it.

        names: of those wanted; None is all. device, framework and links: as for penstock.safetensors.load_file(): "cpu", "cuda:0", a torch.device,
        "host:0"; "pt", "np", "cupy" or "bytes".
        F32, F16, BF16, F64, I8, I16, I32 and I64 come as tensors of that type and of TensorInfo.shape, all others as uint8 and of
        TensorInfo.loaded_shape. They are views of one allocation, which lives as long as any of them.
        Tensors of unknown types are left out, with a warning that names them.
        Raises GGUFError for names that are not there or of an unknown type, and for a type that the library does not support
        (NumPy supports BF16 if ml_dtypes is installed);
        ShortRead where a file was cut meanwhile; Closed; penstock.Error.
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
        more = f" and {len(lost) - 1} more of the file" if len(lost) > 1 else ""
        problem = f'{first.file}: tensor "{name}"{more} cannot be loaded: its type, {first.type}, is unknown to this version'
        if names is not None:
            raise GGUFError(problem, code="unsupported", filename=first.file)
        warnings.warn(f"{problem}; the others are loaded", UserWarning, stacklevel=3)


def open(path: Path, *, storage_options: Mapping[str, Any] | None = None) -> GGUFFile:
    """Opens a GGUF file, or all of a model in several, and reads what stands before the tensors. Blocks. Takes and raises what GGUFFile does."""
    return GGUFFile(path, storage_options=storage_options)


class _Source(Source):
    told: _native.GGUFHeader

    def _read_header(self) -> Header:
        self.told = _native.read_gguf(self.file)
        return Header(self.told.tensors)


@contextlib.contextmanager
def _told_as(kind: type[Error], other: type[Error]) -> Iterator[None]:
    """Of other parts of the library, whose errors are others."""
    try:
        yield
    except other as problem:
        raise kind(str(problem), code=problem.code, filename=problem.filename) from None


def __dir__() -> list[str]:
    return sorted(__all__)
