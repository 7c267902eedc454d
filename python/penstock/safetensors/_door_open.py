"""What stands for the safetensors library's safe_open once Penstock is installed in its place.

Each file is opened with the library too, which says what is in it, gives memory of the CPU, and raises what it raises. Penstock reads what goes to a
GPU. So whatever Penstock does not know is the library's as before.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from .. import _native
from .._errors import Error
from ._ahead import Ahead
from ._errors import SafetensorError
from ._frameworks import framework_on
from ._open import read_part
from ._prefetch import PrefetchLoader, TensorMeta, tensor_meta
from ._slices import part_of, picks_of
from ._sources import Source
from ._types import BITS

__all__ = ["DoorFile", "Slice", "counts", "error_of_the_library", "safe_open"]

# Of this process: what Penstock has read, and what it has left to the library, by the reason.
counts: Counter[str] = Counter()

_pytorch = ("pt", "torch", "pytorch")


class safe_open:
    """safetensors.safe_open, with Penstock reading what goes to a GPU.

    filename, framework, device and every other argument are the library's, of any of its versions; backend is taken also where the library has none.
    """

    def __init__(self, filename: Any, framework: Any, device: Any = None, **options: Any) -> None:
        library = _library()
        gpu, reason = _gpu_of(framework, device)
        self._device = gpu
        self._closed = False
        self._loader: PrefetchLoader | None = None
        self._inner = _opened(library, filename, framework, "cpu" if gpu is not None else device, options)
        self._file: DoorFile | None = None
        if gpu is not None:
            self._file, reason = DoorFile.find(filename)
        if gpu is not None and self._file is None:  # as it would be without Penstock
            self._inner = _opened(library, filename, framework, device, options)
        counts["files, for a GPU" if self._file is not None else f"files left to the library: {reason}"] += 1

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._closed = True
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()
        if self._file is not None:
            self._file.stop_reading_on()
        self._inner.__exit__(kind, value, traceback)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return list(self._inner.keys())

    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their bytes."""
        return list(self._inner.offset_keys())

    def metadata(self) -> dict[str, str] | None:
        """What the file tells besides its tensors."""
        found: dict[str, str] | None = self._inner.metadata()
        return found

    def get_tensor(self, name: str) -> Any:
        """A tensor. Blocks."""
        file, row = self._found(name)
        if file is None or row is None:
            return self._inner.get_tensor(name)
        with error_of_the_library():
            if self._loader is not None and self._loader.has_whole(name):
                return self._loader.take(name)
            return file.take(row, self._device)

    def get_tensors(self) -> dict[str, Any]:
        """All of them, by their names, in the order of their bytes. Blocks."""
        if self._file is None or self._closed:
            every = getattr(self._inner, "get_tensors", None)
            return dict(every()) if every is not None else {name: self._inner.get_tensor(name) for name in self._inner.offset_keys()}
        with error_of_the_library():
            return self._file.take_all(self._device)

    def get_slice(self, name: str) -> Any:
        """A tensor to take a part of, which is what is read then."""
        file, row = self._found(name)
        inner = self._inner.get_slice(name)
        return inner if file is None or row is None else Slice(inner, file, row, self._device)

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """What the header says of a tensor. Reads nothing. As safetensors 0.9."""
        theirs = getattr(self._inner, "get_tensor_meta", None)
        if theirs is not None:
            found: TensorMeta = theirs(name)
            return found
        self._inner.get_slice(name)  # raises where there is none
        source = self._source("get_tensor_meta")
        return tensor_meta(source.header, source.row(name))

    def prefetch(self, plan: Mapping[str, slice | None] | None = None, *, device: Any = None, threads: int = 8) -> PrefetchLoader:
        """Begins to read tensors, or rows of them, into a GPU, and returns what hands them out. As safetensors 0.9.

        device: None is the one that the file was opened for. threads is ignored: Penstock has its own for all files.
        Raises SafetensorError: there is no such GPU, or the plan names what the file has not.
        """
        gpu, reason = (self._device, "") if device is None else _gpu_of("pt", device)
        if gpu is None:
            raise _library().SafetensorError(f"prefetch is only compatible with cuda devices{': ' + reason if reason else ''}")
        source = self._source("prefetch")
        with error_of_the_library():
            loader = PrefetchLoader(source, gpu, plan)
        if gpu == self._device:
            self._loader = loader
        return loader

    def _source(self, what: str) -> Source:
        if self._file is not None and not self._closed:
            return self._file.source
        if self._closed:
            raise _library().SafetensorError("File is closed")
        raise _library().SafetensorError(f"{what}: Penstock does not read this file, and this version of the library has no {what}")

    def _found(self, name: str) -> tuple[DoorFile | None, int | None]:
        """The row of a tensor that Penstock reads."""
        if self._file is None or self._closed or not isinstance(name, str):
            return None, None
        return self._file, self._file.row(name)


class Slice:
    """What get_slice() gives of a file that is read into a GPU."""

    def __init__(self, inner: Any, file: DoorFile, row: int, device: Any) -> None:
        self._inner = inner
        self._file = file
        self._row = row
        self._device = device

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def get_shape(self) -> list[int]:
        return list(self._inner.get_shape())

    def get_dtype(self) -> str:
        """As the file has it, such as "BF16"."""
        return str(self._inner.get_dtype())

    def __getitem__(self, index: Any) -> Any:
        if takes_all(index):
            with error_of_the_library():
                return self._file.take(self._row, self._device)
        part = self._file.part(self._row, index)
        if part is None:
            return self._inner[index].to(self._device)
        with error_of_the_library():
            return self._file.read_part(self._row, part, self._device)


class DoorFile:
    """A file that Penstock reads tensors of, for any GPU. Any thread may use it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._rows = {name: row for row, name in enumerate(source.header.names)}
        self._aheads: dict[Any, Ahead] = {}

    @classmethod
    def find(cls, filename: Any) -> tuple[DoorFile | None, str]:
        """None, and why: Penstock does not read this file."""
        try:
            return cls(Source(os.fspath(filename))), ""
        except SafetensorError as problem:
            return None, str(problem)
        except (Error, TypeError) as problem:
            return None, str(problem)

    def row(self, name: str) -> int | None:
        """None: the library is to say what is wrong with it, or has a type that PyTorch has not."""
        row = self._rows.get(name)
        if row is None or framework_on("pt", None).dtype(self.source.header.types[row]) is None or self.source.header.types[row] == "F4":
            return None
        return row

    def take(self, row: int, device: Any) -> Any:
        """All of a tensor. Blocks."""
        counts["tensors read into a GPU"] += 1
        counts["bytes read into a GPU"] += self.source.header.sizes[row]
        for each, ahead in list(self._aheads.items()):
            if each != device:
                ahead.forget(row)
        return self.ahead(device).take(row)

    def take_all(self, device: Any) -> dict[str, Any]:
        header = self.source.header
        counts["tensors read into a GPU"] += len(header)
        counts["bytes read into a GPU"] += sum(header.sizes)
        found = self.ahead(device).take_all(range(len(header)))
        return {name: found[row] for row, name in enumerate(header.names)}

    def part(self, row: int, index: Any) -> Any:
        """None: the library is to take it, or to say what is wrong with it."""
        header = self.source.header
        shape, bits = header.shapes[row], BITS[header.types[row]]
        if bits % 8 or not _is_plain(index, shape):
            return None
        picks = picks_of(index, shape)
        return None if picks is None else part_of(shape, bits // 8, picks)

    def read_part(self, row: int, part: Any, device: Any) -> Any:
        counts["parts of tensors read into a GPU"] += 1
        return read_part(self.source, row, framework_on("pt", device), part)

    def ahead(self, device: Any) -> Ahead:
        found = self._aheads.get(device)
        return found if found is not None else self._aheads.setdefault(device, Ahead(self.source, device))

    def is_not_for_gpus(self, row: int) -> None:
        """A tensor that stays on the CPU."""
        for each in list(self._aheads.values()):
            each.forget(row)

    def stop_reading_on(self) -> None:
        """Lets go of all that was read and nobody has asked for."""
        for each in list(self._aheads.values()):
            each.drop()


def takes_all(index: Any) -> bool:
    """..., (), [:] and tuples of these."""
    whole = slice(None)
    return index is Ellipsis or index == () or (isinstance(index, slice) and index == whole)


def _is_plain(index: Any, shape: tuple[int, ...]) -> bool:
    """Ints and slices within the tensor, as all versions of the library take them."""
    items = index if isinstance(index, tuple) else (index,)
    if len(items) > len(shape):
        return False
    return all(_is_within(each, length) for each, length in zip(items, shape))


def _is_within(each: Any, length: int) -> bool:
    if isinstance(each, slice):
        start, stop = 0 if each.start is None else each.start, length if each.stop is None else each.stop
        return each.step in (None, 1) and type(start) is int and type(stop) is int and 0 <= start <= stop <= length
    return type(each) is int and -length <= each < length


def _library() -> Any:
    return sys.modules["safetensors"]


def _opened(library: Any, filename: Any, framework: Any, device: Any, options: Mapping[str, Any]) -> Any:
    from . import original

    given = dict(options)
    if "backend" in given and not _takes_backend():
        if given.pop("backend") not in ("mmap", "pread"):
            raise library.SafetensorError(f"backend {options['backend']} is invalid")
    place = () if device is None else (device,)
    return original.safe_open(filename, framework, *place, **given)


@functools.cache
def _takes_backend() -> bool:
    """Versions 0.8 and newer do."""
    return tuple(int(each) for each in _library().__version__.split(".")[:2]) >= (0, 8)


def _gpu_of(framework: Any, device: Any) -> tuple[Any, str]:
    """The GPU that Penstock reads into; None, and why not."""
    if framework not in _pytorch:
        return None, f"framework {framework}"
    if device is None or device == "cpu":
        return None, "memory of the CPU"
    if not isinstance(device, (str, int)) or isinstance(device, str) and device != "cuda" and not device.startswith("cuda:"):
        return None, f"device {device}"
    import torch

    if torch.version.cuda is None or not torch.cuda.is_available():
        return None, "PyTorch has no CUDA here"
    problem = _native.cuda_status()
    if problem is not None:
        return None, problem
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device("cuda", 0) if device == "cuda" else torch.device(device)
    except RuntimeError:
        return None, f"device {device}"
    return (found, "") if found.index is not None and found.index < torch.cuda.device_count() else (None, f"device {device}")


@contextmanager
def error_of_the_library() -> Iterator[None]:
    """Errors of Penstock's are the library's SafetensorError as well."""
    try:
        yield
    except Error as problem:
        theirs = _library().SafetensorError
        if isinstance(problem, theirs):
            raise
        fields = {name: getattr(problem, name) for name in ("code", "domain", "native", "filename", "offset", "bytes_done")}
        raise _kind_of(type(problem), theirs)(str(problem), **fields) from None


_kinds: dict[str, Callable[..., Exception]] = {}


def _kind_of(ours: type[Error], theirs: type[Exception]) -> Callable[..., Exception]:
    found = _kinds.get(ours.__qualname__)
    if found is None:
        found = _kinds[ours.__qualname__] = type(ours.__name__, (ours, theirs), {"__module__": ours.__module__, "__doc__": ours.__doc__})
    return found
