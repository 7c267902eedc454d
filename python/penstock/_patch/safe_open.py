"""The safe_open that replaces the safetensors library's own while Penstock is installed.

Each file is also opened with the library, which provides the metadata, the memory of CPU tensors, and the errors. Penstock reads tensors that are
loaded onto a GPU. The library handles everything that Penstock does not support.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from .. import _native
from .._core.errors import Error
from .._core.forks import forkable_lock
from .._tensors.ahead import Ahead, Sequence, natural_order
from .._tensors.errors import SafetensorError
from .._tensors.frameworks import framework_on
from .._tensors.node_ranks import NodePlan, NodeReads, node_ranks
from .._tensors.prefetch import PrefetchLoader, TensorMeta, tensor_meta
from .._tensors.safe_open import read_part
from .._tensors.slices import part_of, picks_of
from .._tensors.sources import Source, is_name_of
from .._tensors.types import BITS
from .indexes import is_plain, takes_all
from .library import library_attribute

__all__ = ["DoorFile", "Slice", "counts", "error_of_the_library", "safe_open"]

# This process's counters: what Penstock has read, and what it has left to the library, by reason.
counts: Counter[str] = Counter()
_counting = forkable_lock()
_most_reasons = 100  # some reasons contain a file name

_pytorch = ("pt", "torch", "pytorch")


def _count(what: str, number: int = 1) -> None:
    with _counting:
        counts[what if what in counts or len(counts) < _most_reasons else "left to the library for other reasons"] += number


class safe_open:
    """Like safetensors.safe_open, except that Penstock reads tensors that are loaded onto a GPU.

    Accepts the arguments of any version of the library, and backend even if the installed version lacks it.
    """

    def __init__(self, filename: Any, framework: Any, device: Any = None, **options: Any) -> None:
        library = _library()
        gpu, reason = _gpu_of(framework, device)
        self._device = gpu
        self._closed = False
        self._loader: PrefetchLoader | None = None
        self._inner = _opened(library, filename, framework, "cpu" if gpu is not None else device, options)
        self._file: DoorFile | None = None
        self._noted: DoorFile | None = None  # set if CPU tensors may be moved to a GPU later
        if gpu is not None:
            self._file, reason = DoorFile.find(filename, gpu)
            if self._file is None:  # as without Penstock
                self._inner = _opened(library, filename, framework, device, options)
        elif framework in _pytorch and device in (None, "cpu") and _in_file().gpus_may_be_used():
            self._noted = DoorFile.on_the_way(filename)
        if self._file is None and self._noted is None:  # adds no cost for files that Penstock does not read
            vars(self).update(get_tensor=self._inner.get_tensor, get_slice=self._inner.get_slice)
        _count(_words_of(self._file, self._noted, reason))

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()
        if self._file is not None:
            self._file.end()
        if self._noted is not None:
            self._noted.stop_reading_on()
        self._inner.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def keys(self) -> list[str]:
        """Returns the names of the tensors, sorted."""
        return list(self._inner.keys())

    def offset_keys(self) -> list[str]:
        """Returns the names of the tensors, in offset order."""
        return list(self._inner.offset_keys())

    def metadata(self) -> dict[str, str] | None:
        """Returns the file's metadata."""
        found: dict[str, str] | None = self._inner.metadata()
        return found

    def get_tensor(self, name: str) -> Any:
        """Returns a tensor. Blocks."""
        file, row = self._found(name)
        if file is None or row is None:
            tensor = self._inner.get_tensor(name)
            return tensor if self._noted is None else _in_file().in_file(tensor, self._noted, name)
        with error_of_the_library():
            if self._loader is not None and self._loader.has_whole(name):
                return self._loader.take(name)
            return file.take(row, self._device)

    def get_tensors(self) -> dict[str, Any]:
        """Returns all tensors by name, in offset order. Blocks."""
        if self._file is None or self._closed:
            every = getattr(self._inner, "get_tensors", None)
            found = dict(every()) if every is not None else {name: self._inner.get_tensor(name) for name in self._inner.offset_keys()}
            noted = self._noted
            return found if noted is None else {name: _in_file().in_file(tensor, noted, name) for name, tensor in found.items()}
        with error_of_the_library():
            return self._file.take_all(self._device)

    def get_slice(self, name: str) -> Any:
        """Returns an object that reads the part that you index."""
        file, row = self._found(name)
        inner = self._inner.get_slice(name)
        if self._noted is not None:
            return SliceOnTheWay(inner, self._noted, name)
        return inner if file is None or row is None else Slice(inner, file, row, self._device)

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """Returns a tensor's type, shape and offsets from the header, as safetensors 0.9 does. Reads nothing."""
        theirs = getattr(self._inner, "get_tensor_meta", None)
        if theirs is not None:
            found: TensorMeta = theirs(name)
            return found
        self._inner.get_slice(name)  # raises if there is no such tensor
        source = self._source("get_tensor_meta")
        return tensor_meta(source.header, source.row(name))

    def prefetch(self, plan: Mapping[str, slice | None] | None = None, *, device: Any = None, threads: int = 8) -> PrefetchLoader:
        """Starts reading tensors, or rows of them, into GPU memory, as safetensors 0.9 does. Returns the loader that delivers them.

        device: None means the device that the file was opened for. threads is ignored, because Penstock has its own threads. Raises SafetensorError
        if the GPU does not exist, or if the file lacks a tensor or rows in the plan.
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
        raise _library().SafetensorError(f"{what}: Penstock does not read this file, and this version of the library does not provide {what}")

    def _found(self, name: str) -> tuple[DoorFile | None, int | None]:
        """Returns the file and row of a tensor that Penstock reads."""
        if self._file is None or self._closed or not isinstance(name, str):
            return None, None
        return self._file, self._file.row(name)


class _LibrarySlice:
    """Wraps the result of the library's get_slice(). Subclasses differ in how they read the parts."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def get_shape(self) -> list[int]:
        return list(self._inner.get_shape())

    def get_dtype(self) -> str:
        """Returns the type name in the file, such as "BF16"."""
        return str(self._inner.get_dtype())


class SliceOnTheWay(_LibrarySlice):
    """The result of get_slice() for a file opened for the CPU, if there is a GPU."""

    def __init__(self, inner: Any, file: DoorFile, name: str) -> None:
        super().__init__(inner)
        self._file = file
        self._name = name

    def __getitem__(self, index: Any) -> Any:
        tensor = self._inner[index]
        if takes_all(index):
            return _in_file().in_file(tensor, self._file, self._name)
        shape = self._inner.get_shape()
        if is_plain(index, shape):
            tensor = _in_file().in_file(tensor, self._file, self._name, index, shape)
        if not isinstance(tensor, _in_file().TensorInFile):  # it may share its memory with other tensors of this name
            self._file.touch(self._name)
        return tensor


class Slice(_LibrarySlice):
    """The result of get_slice() for a file opened for a GPU."""

    def __init__(self, inner: Any, file: DoorFile, row: int, device: Any) -> None:
        super().__init__(inner)
        self._file = file
        self._row = row
        self._device = device

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
    """A file from which Penstock reads tensors into any GPU. Thread-safe. A tensor that may be moved to a GPU keeps the file open."""

    def __init__(self, name: str, descriptor: int | None = None, source: Source | None = None, device: Any = None) -> None:
        """Takes an open file.

        `device`: the only device for its tensors; None allows any device that they are moved to.
        """
        self._descriptor = descriptor  # the header is read when the first tensor is moved to a GPU
        self._source = source
        self._is_new = True
        self._lock = forkable_lock()
        self._rows: dict[str, int] | None = None
        self._aheads: dict[Any, Ahead] = {}
        self._touched: set[str] = set()
        self._least_bytes = 0 if descriptor is None else _in_file().LEAST_BYTES
        self._opened_bytes = 0
        self._node_reads: NodeReads | None = None
        self._only_device = device
        self.name = name
        self.folder = os.path.dirname(os.path.abspath(os.fsdecode(name)))
        _register(self, self.folder)
        if descriptor is not None:
            self._opened_bytes = os.fstat(descriptor).st_size
            weakref.finalize(self, os.close, descriptor)

    @classmethod
    def find(cls, filename: Any, device: Any) -> tuple[DoorFile | None, str]:
        """Opens a file for Penstock, or returns None and the reason if Penstock does not read it."""
        try:
            name = os.fspath(filename)
            return cls(name, source=Source(name), device=device), ""
        except (Error, TypeError) as problem:
            return None, str(problem)

    @classmethod
    def on_the_way(cls, filename: Any) -> DoorFile | None:
        """Wraps a file that the library has opened, and keeps using it even if its name is reused. Returns None if the file is gone."""
        try:
            name = os.fsdecode(filename)
            # If the name now refers to a FIFO, do not wait for a writer.
            return cls(name, os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError:
            return None

    @property
    def source(self) -> Source:
        """The open file. Raises SafetensorError if Penstock rejects its content."""
        with self._lock:
            if self._source is None:
                by_name = self._descriptor is None or is_name_of(self.name, self._descriptor)
                self._source = Source(self.name, descriptor=None if by_name else self._descriptor)
            if self._is_new:
                self._is_new = False
                self._share()
            return self._source

    def _share(self) -> None:
        """Lets the ranks of this node read the file once if there are several ranks and the file is not on a local drive."""
        assert self._source is not None
        node = node_ranks()
        reads = _plan_of(self.folder).reads_of(self._source, node) if node.world > 1 else None
        if reads is not None:
            self._source, self._node_reads = reads.source, reads

    def row(self, name: str) -> int | None:
        """Returns a tensor's row, or None for an unknown name or a type that PyTorch lacks; then the library raises the error."""
        header = self.source.header
        if self._rows is None:
            self._rows = {each: row for row, each in enumerate(header.names)}
        row = self._rows.get(name)
        return None if row is None or framework_on("pt", None).dtype(header.types[row]) is None else row

    # --- tensors that were requested on the CPU

    def is_untouched(self, name: str) -> bool:
        """Returns True if the tensor's CPU memory, which all tensors with this name share, cannot have been changed."""
        return name not in self._touched

    def touch(self, name: str) -> None:
        """Marks the tensor as possibly changed, so that its values are read from CPU memory afterwards."""
        self._touched.add(name)
        if self._aheads:
            row = self.row(name)
            for each in list(self._aheads.values()):
                if row is not None:
                    each.forget(row)

    def on_gpu(self, name: str, index: Any, device: Any) -> Any:
        """Returns a tensor, or the part that index selects, in new GPU memory. Returns None if Penstock does not read it."""
        if not self.is_untouched(name):
            return None
        gpu = _known_gpu(device)
        if gpu is None:
            return None
        try:
            row = self.row(name)
        except SafetensorError as problem:
            if self._was_cut():  # accessing truncated mapped memory would kill the process
                with error_of_the_library():
                    raise
            _count(f"tensors left to the library: {problem}")
            return None
        if row is None:
            return None
        with error_of_the_library():
            if index is None:
                return self.take(row, gpu)
            part = self.part(row, index)
            return None if part is None else self.read_part(row, part, gpu)

    def _was_cut(self) -> bool:
        return self._descriptor is not None and os.fstat(self._descriptor).st_size < self._opened_bytes

    # --- reading

    def take(self, row: int, device: Any) -> Any:
        """Returns the whole tensor. Blocks."""
        _count("tensors read into a GPU")
        _count("bytes read into a GPU", self.source.header.sizes[row])
        for each, ahead in list(self._aheads.items()):
            if each != device:
                ahead.forget(row)
        if self._node_reads is not None:
            self._node_reads.request(row, None)
        return self.ahead(device).take(row)

    def take_all(self, device: Any) -> dict[str, Any]:
        header = self.source.header
        _count("tensors read into a GPU", len(header))
        _count("bytes read into a GPU", sum(header.sizes))
        found = self.ahead(device).take_all(range(len(header)))
        return {name: found[row] for row, name in enumerate(header.names)}

    def part(self, row: int, index: Any) -> Any:
        """Returns the part to read, or None if the library must read the part or report the error."""
        header = self.source.header
        shape, bits = header.shapes[row], BITS[header.types[row]]
        if bits % 8 or not is_plain(index, shape):
            return None
        picks = picks_of(index, shape)
        return None if picks is None else part_of(shape, bits // 8, picks)

    def read_part(self, row: int, part: Any, device: Any) -> Any:
        _count("parts of tensors read into a GPU")
        if self._node_reads is not None:
            self._node_reads.request(row, part)
        return read_part(self.source, row, framework_on("pt", device), part)

    def ahead(self, device: Any) -> Ahead:
        found = self._aheads.get(device)
        if found is None:
            _join_all(self, device)
            self.join(device)
            found = self._aheads[device]
        return found

    def join(self, device: Any) -> None:
        """Adds the tensors to the device's read-ahead if the program may request them there. Raises the errors of `source`."""
        if self._only_device not in (None, device):
            return
        source = self.source
        with self._lock:
            if device not in self._aheads:
                self._aheads[device] = Ahead(source, device, least_bytes=self._least_bytes, sequence=_sequence_of(self.folder, device))

    def stop_reading_on(self) -> None:
        """Drops all tensors that were read ahead but not requested."""
        for each in list(self._aheads.values()):
            each.drop()

    def end(self) -> None:
        """Stops reading ahead."""
        for each in list(self._aheads.values()):
            each.end()


# Open files by folder, such as a model's shards. Read-ahead continues from one file to the next.
_files_of: dict[str, weakref.WeakSet[DoorFile]] = {}
_sequences: weakref.WeakValueDictionary[tuple[str, str], Sequence] = weakref.WeakValueDictionary()
_registering = forkable_lock()


def _register(file: DoorFile, folder: str) -> None:
    with _registering:
        for each in [each for each, files in _files_of.items() if not files]:
            del _files_of[each]
        _files_of.setdefault(folder, weakref.WeakSet()).add(file)


# The folder that was read last, and its plan, which outlives the files: vLLM closes each file before it opens the next.
_plan: tuple[str, NodePlan] | None = None


def _plan_of(folder: str) -> NodePlan:
    global _plan
    with _registering:
        if _plan is None or _plan[0] != folder:
            _plan = folder, NodePlan()
        return _plan[1]


def _sequence_of(folder: str, device: Any) -> Sequence:
    with _registering:
        found = _sequences.get((folder, str(device)))
        if found is None or found.has_lost:  # the remaining files are from an earlier load
            found = _sequences[folder, str(device)] = Sequence(device)
        return found


def _join_all(file: DoorFile, device: Any) -> None:
    """Adds all open files in the folder to the read-ahead. If Penstock cannot read a file, its error is raised when one of its tensors is
    requested."""
    with _registering:
        others = sorted(_files_of.get(file.folder, ()), key=lambda each: natural_order(os.fsdecode(each.name)))
    for each in others:
        with suppress(Error):
            each.join(device)


def _in_file() -> Any:
    """Imports the module that requires PyTorch, which the library has already imported by now."""
    from . import tensor_in_file

    return tensor_in_file


def _words_of(file: DoorFile | None, noted: DoorFile | None, reason: str) -> str:
    if file is not None:
        return "files opened for a GPU"
    return "files opened for the CPU, whose tensors may be moved to a GPU" if noted is not None else f"files left to the library: {reason}"


def _known_gpu(device: Any) -> Any:
    """Returns the GPU with its index, or None if Penstock cannot read into it."""
    import torch

    if torch.version.cuda is None or _native.cuda_status() is not None:
        return None
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def _library() -> Any:
    return sys.modules["safetensors"]


def _opened(library: Any, filename: Any, framework: Any, device: Any, options: Mapping[str, Any]) -> Any:
    place = () if device is None else (device,)
    try:
        return library_attribute("safe_open")(filename, framework, *place, **options)
    except TypeError as problem:
        if "backend" not in options or "'backend'" not in str(problem):
            raise
    # Versions before 0.8 do not have the argument.
    given = dict(options)
    if given.pop("backend") not in ("mmap", "pread"):
        raise library.SafetensorError(f"backend {options['backend']} is invalid")
    return library_attribute("safe_open")(filename, framework, *place, **given)


def _gpu_of(framework: Any, device: Any) -> tuple[Any, str]:
    """Returns the GPU that Penstock reads into, or None and the reason."""
    if framework not in _pytorch:
        return None, f"framework {framework}"
    if device is None or device == "cpu":
        return None, "CPU memory"
    if not isinstance(device, (str, int)) or isinstance(device, str) and device != "cuda" and not device.startswith("cuda:"):
        return None, f"device {device}"
    import torch

    if torch.version.cuda is None or not torch.cuda.is_available():
        return None, "PyTorch cannot use CUDA"
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
    """Converts Penstock's errors into errors that are also the library's SafetensorError."""
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
