"""Reads files for the fastsafetensors library (0.3 and later), in programs and in the `fastsafetensors` load formats of vLLM and SGLang.

    import penstock.fastsafetensors

    penstock.fastsafetensors.install()
    with fastsafetensors.fastsafe_open("model.safetensors", device="cuda:0") as file:
        tensor = file.get_tensor("embed.weight")

Under `penstock run`, the program needs no change. Importing this module imports fastsafetensors.
"""

from __future__ import annotations

import functools
import inspect
import threading
from bisect import bisect_right
from collections import Counter
from types import SimpleNamespace
from typing import Any

import fastsafetensors

from . import _native
from ._core.errors import Error
from ._core.futures import wait
from ._patch.replacements import Explanation, Installed
from ._tensors.reads import Flow, Ranges, Request

try:
    from fastsafetensors.copier import base, nogds, registry
    from fastsafetensors.st_types import DeviceType, DType
except ImportError as problem:
    found = getattr(fastsafetensors, "__version__", "of unknown version")
    raise ImportError(f"fastsafetensors {found} has no registry for copiers, so Penstock cannot be added: install fastsafetensors 0.3 or later") from problem

__all__ = ["PenstockCopier", "explain", "install", "register", "uninstall"]

_NAME = "penstock"
# The library's copiers for local files. "fgds", "3fs" and "dstorage" need special hardware or a special file system.
_REPLACED = ("gds", "nogds", "unified")

_lock = threading.Lock()
_before: dict[str, tuple[Any, Any]] = {}  # the library's copiers that install() replaced: the factory, and the class since 0.4
_counts: Counter[str] = Counter()


def install() -> Installed:
    """Replaces the library's copiers for local files in this process: all its loaders then read with Penstock, directly into the memory that the
    library allocates.

    Also does what `register()` does. If Penstock cannot use the GPU, the library's own copier reads the file. A second call does nothing.
    `uninstall()` or the end of a `with install():` block undoes the replacement; loaders that exist stay valid.
    """
    register()
    with _lock:
        if not _before:
            for name in _REPLACED:
                if name in registry._copier_registry:
                    _before[name] = (registry._copier_registry[name], _classes().get(name))
                    _set_copier(name, functools.partial(_constructor, _before[name][0]))
    return Installed(uninstall, explain)


def uninstall() -> None:
    """Restores the library's copiers."""
    with _lock:
        for name, (factory, kind) in _before.items():
            registry._copier_registry[name] = factory
            _classes()[name] = kind
        _before.clear()


def register() -> None:
    """Adds the copier "penstock" to the library's registry, for loaders that name their copier. Changes nothing else."""
    _set_copier(_NAME, functools.partial(_constructor, None))


def explain() -> Explanation:
    """Reports what `install()` has replaced in this process, and what Penstock has read since then."""
    with _lock:
        version = getattr(fastsafetensors, "__version__", "of unknown version")
        return Explanation(bool(_before), version, [f"the copier {name}" for name in _before], dict(_counts), "fastsafetensors")


class PenstockCopier(base.CopierInterface):  # type: ignore[misc,unused-ignore]
    """Reads one file, or parts of it, into memory that the library allocates on the CPU or a GPU. The library creates and calls it.

    Reads into GPU memory start after the work that is queued on the current stream, and have ended when a call returns the tensors. With
    `allow_inflight`, the library waits for each tensor when it is used. `use_buf_register` and `max_copy_block_size` have no effect, because Penstock
    needs no registration and divides reads itself.

    Raises penstock.Error, which names the file and the tensor. After an error and after `finish_io()`, nothing writes to the memory.
    """

    def __init__(self, metadata: Any, device: Any, framework: Any, flow: Flow) -> None:
        self.metadata = metadata
        self._device = device
        self._framework = framework
        self._flow = flow
        self._file: Any = None
        self._runs: list[tuple[int, int]] | None = None  # None: all tensors
        self._names: set[str] | None = None
        self._allocation_bytes: int | None = None
        self._first = metadata.header_length  # offset in the file of the buffer's first byte
        self._ends: list[int] = []  # file offsets at which the requests end
        self._requests: list[Request] = []
        self._done: list[bool] = []

    def set_byte_ranges(self, byte_ranges: Any) -> None:
        self._runs = base.validated_byte_ranges(self.metadata, byte_ranges)

    def set_chunk(self, byte_ranges: Any, names: set[str], allocation_size: int | None = None) -> None:
        self._runs = base.validated_byte_ranges(self.metadata, byte_ranges)
        self._names = names
        self._allocation_bytes = base.validated_chunk_allocation_size(self._runs, allocation_size)

    @classmethod
    def chunk_transient_multiplier(cls, paths: list[str]) -> int:
        return 1

    @classmethod
    def fixed_device_overhead(cls, paths: list[str]) -> int:
        return 0

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> Any:
        header_bytes, size = self.metadata.header_length, self.metadata.size_bytes
        runs = [(header_bytes, size)] if self._runs is None else self._runs
        if self._names is None:
            nbytes = size - header_bytes
        else:
            self._first = runs[0][0] if runs else header_bytes
            nbytes = self._allocation_bytes or (runs[-1][1] - self._first if runs else 0)
        file = _native.open(self.metadata.src)
        try:
            self._file = _described(file, self.metadata)
            memory = self._framework.alloc_tensor_memory(nbytes, self._device)
        except BaseException:
            file.close()
            raise
        try:
            self._settle()
            self._start(runs, _native.Pointer(memory.get_base_address(), nbytes, memory))
        except BaseException:
            self.finish_io()
            self._framework.free_tensor_memory(memory, self._device)
            raise
        return memory

    def wait_io(self, gbuf: Any, dtype: Any = DType.AUTO, noalign: bool = False, owner: Any = None) -> Any:
        try:
            for request in self._requests:
                request.check()
        finally:
            self.finish_io()
        return self._views(gbuf, dtype, owner)

    def finish_io(self) -> None:
        """Cancels the reads that are still running, and closes the file. Tensors that have been waited for stay valid."""
        running = [request.future for request in self._requests if not request.future.done()]
        for future in running:
            future.cancel()
        wait(running)
        self._ends, self._requests, self._done = [], [], []
        if self._file is not None:
            self._file.file.close()

    def enable_tensor_readiness(self) -> bool:
        return True

    def prepare_tensors(self, gbuf: Any, owner: Any = None) -> Any:
        return self._views(gbuf, DType.AUTO, owner)

    def wait_tensor(self, name: str) -> None:
        start, end = (self.metadata.header_length + each for each in self.metadata.tensors[name].data_offsets)
        number = bisect_right(self._ends, start)
        while start < end:
            if number == len(self._ends) or self._requests[number].offsets[0] > start:
                raise ValueError(f'{self.metadata.src}: tensor "{name}" was not selected, so it was not read')
            if not self._done[number]:
                self._requests[number].check()
                self._done[number] = True
            start, number = self._ends[number], number + 1

    def _settle(self) -> None:
        """Waits for the current stream, because memory from the allocator may still be in use there."""
        if self._device.type != DeviceType.CPU:
            wait_for = getattr(self._framework, "synchronize_current_stream", None) or self._framework.synchronize  # the former since 0.5
            wait_for(self._device)

    def _start(self, runs: list[tuple[int, int]], memory: Any) -> None:
        for start, end in runs:
            for offset in range(start, end, _native.MOST_MODEL_REQUEST_BYTES):
                nbytes = min(_native.MOST_MODEL_REQUEST_BYTES, end - offset)
                ranges = Ranges()
                ranges.add_all([offset], [nbytes], [offset - self._first])
                self._requests.append(self._flow.add(self._file, memory, ranges))
                self._ends.append(offset + nbytes)
                self._done.append(False)
        _count("files")
        _count("bytes", sum(end - start for start, end in runs))

    def _views(self, memory: Any, dtype: Any, owner: Any) -> Any:
        options = {"dtype": dtype} if owner is None else {"dtype": dtype, "owner": owner}  # the library knows owners since 0.5
        if self._names is None:
            return self.metadata.get_tensors(memory, self._device, self._first, **options)
        return self.metadata._get_tensors(memory, self._device, self._first, names=self._names, **options)


def _constructor(theirs: Any, device: Any, **options: Any) -> Any:
    """Returns the function that the library calls for each file of a loader. `theirs`: the factory of the copier that Penstock replaces, or None."""
    problem = _native.cuda_status() if device.type != DeviceType.CPU else None
    if problem is not None and theirs is None:
        raise Error(f"the copier {_NAME} cannot read into {device.as_str()}: {problem}", code="unsupported")
    if problem is not None:
        _count(f"loaders that use the library's own copier: {problem}")
        return theirs(device, **options)
    flow = Flow()

    def construct(metadata: Any, device: Any, framework: Any) -> PenstockCopier:
        if device.type != DeviceType.CPU and framework.get_name() != "pytorch":  # the library itself then allocates memory with CUDA
            load = nogds.load_library_func
            load(framework) if inspect.signature(load).parameters else load()
        return PenstockCopier(metadata, device, framework, flow)

    return construct


def _set_copier(name: str, factory: Any) -> None:
    if hasattr(registry, "_copier_class_registry"):  # 0.4 and later
        registry.register_copier_constructor(name, PenstockCopier)(factory)
    else:
        registry.register_copier_constructor(name)(factory)


def _classes() -> dict[str, Any]:
    classes: dict[str, Any] = getattr(registry, "_copier_class_registry", {})
    return classes


def _count(what: str, number: int = 1) -> None:
    with _lock:
        _counts[what] += number


def _described(file: Any, metadata: Any) -> Any:
    """Returns the open file with the names for Penstock's errors. The library has checked that the tensors are contiguous, in this order."""
    places = [each.data_offsets for each in metadata.tensors.values()]
    header = SimpleNamespace(
        names=list(metadata.tensors),
        offsets=[metadata.header_length + start for start, _ in places],
        sizes=[end - start for start, end in places],
    )
    return SimpleNamespace(file=file, name=metadata.src, header=header)


def __dir__() -> list[str]:
    return sorted(__all__)
