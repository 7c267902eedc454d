"""The arrays that contain weights (PyTorch, NumPy, CuPy and DeviceBuffers): examines, slices and copies them in stream order."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from .. import _native
from .._core.arrays import library_named
from .._core.arrays.library import View
from .._core.boxes import Box
from .._core.devices import number_of
from .._core.numpy_masks import mask_problem_of
from .._core.overlaps import may_overlap, span_of
from .._core.packing import aligned
from .._core.torch_memory import copy_into, problem_of
from .._tensors.frameworks import framework_on

__all__ = ["Local", "Places", "copy_all", "handles_for", "have_changed", "local_of", "marks_of", "places_of", "quiet_streams", "rooms_for", "streams_of"]


@functools.lru_cache(256)
def _word_for(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


class Local:
    """An array in this process."""

    dtype: str | None = None  # None: bytes of any type
    shape: tuple[int, ...] | None = None  # None: bytes
    itemsize = 1  # bytes
    nbytes = 0
    device = "host"  # "host", "host:0" or "cuda:1"
    library = "penstock"
    key: Any  # equal for arrays that share the same memory
    problem: str | None = None  # why the array cannot be read or filled
    readonly = False
    is_contiguous = True
    repeats = False  # elements may share memory
    span: tuple[int, int] = (0, 0)  # the first address, and the address past the last byte

    def __init__(self, array: Any) -> None:
        self.array = array
        self.key = id(self)

    def cut(self, frame: Box, box: Box, itemsize: int) -> Any:
        """Returns a view of a box in this array, which represents the frame."""
        return self.array if box == frame else self.array[box.index_in(frame)]

    @staticmethod
    def contiguous(view: Any) -> bool:
        return True

    @staticmethod
    def memory(view: Any) -> Any:
        """Returns the memory of a contiguous view in the form that pipes process fastest."""
        return view

    @staticmethod
    def copied(view: Any) -> Any:
        """Returns a contiguous copy, queued on the current stream."""
        raise AssertionError("DeviceBuffers are contiguous")

    @staticmethod
    def room_for(view: Any) -> Any:
        """Allocates contiguous memory of the same shape and type."""
        raise AssertionError("DeviceBuffers are contiguous")

    @staticmethod
    def put(view: Any, source: Any) -> None:
        """Copies into the view on the current stream."""
        raise AssertionError("DeviceBuffers are contiguous")


class _OfTorch(Local):
    library = "pt"

    def __init__(self, tensor: Any) -> None:
        super().__init__(tensor)
        self.dtype = _word_for(tensor.dtype)
        self.problem = problem_of(tensor)
        if tensor.is_quantized:
            self.problem = "is quantized, so its scales would be lost: pass int_repr() and the scales as separate tensors"
        try:
            self.shape = tuple(tensor.shape)
        except RuntimeError:  # the tensor has no shape
            self.shape = ()
        if self.problem is not None:
            return
        self.array = tensor.detach()
        self.itemsize = tensor.element_size()
        self.nbytes = tensor.numel() * self.itemsize
        self.device = str(tensor.device) if tensor.is_cuda else "host"
        self.is_contiguous = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        if self.nbytes:
            self.key = (self.device, tensor.data_ptr(), self.shape, tensor.stride(), self.dtype, tensor.is_conj(), tensor.is_neg())
            self.span = span_of(tensor.data_ptr(), self.shape, [each * self.itemsize for each in tensor.stride()], self.itemsize)
        self.repeats = not self.is_contiguous and may_overlap(self.shape, tensor.stride())

    @staticmethod
    def contiguous(view: Any) -> bool:
        return bool(view.is_contiguous()) and not view.is_conj() and not view.is_neg()

    @staticmethod
    def memory(view: Any) -> Any:
        return _native.Pointer(view.data_ptr(), view.numel() * view.element_size(), view)

    @staticmethod
    def copied(view: Any) -> Any:
        torch = sys.modules["torch"]
        return view.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)

    @staticmethod
    def room_for(view: Any) -> Any:
        torch = sys.modules["torch"]
        return torch.empty(view.shape, dtype=view.dtype, device=view.device)

    @staticmethod
    def put(view: Any, source: Any) -> None:
        copy_into(view, source)


class _OfNumpy(Local):
    library = "np"

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        _take_facts(self, array)
        self.readonly = not array.flags.writeable
        if self.nbytes:
            self.key = (array.ctypes.data, array.shape, array.strides, self.dtype)
            self.span = span_of(array.ctypes.data, array.shape, array.strides, array.itemsize)
        if array.dtype.hasobject:
            self.problem = "has elements that are Python objects"

    @staticmethod
    def contiguous(view: Any) -> bool:
        return bool(view.flags.c_contiguous)

    @staticmethod
    def memory(view: Any) -> Any:
        return _native.Pointer(view.ctypes.data, view.nbytes, view)

    @staticmethod
    def copied(view: Any) -> Any:
        return view.copy(order="C")

    @staticmethod
    def room_for(view: Any) -> Any:
        return sys.modules["numpy"].empty(view.shape, view.dtype)

    @staticmethod
    def put(view: Any, source: Any) -> None:
        view[...] = source


class _OfCupy(Local):
    library = "cupy"

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        _take_facts(self, array)
        self.device = f"cuda:{array.device.id}"
        if self.nbytes:
            self.key = (self.device, array.data.ptr, array.shape, array.strides, self.dtype)
            self.span = span_of(array.data.ptr, array.shape, array.strides, array.itemsize)

    @staticmethod
    def contiguous(view: Any) -> bool:
        return bool(view.flags.c_contiguous)

    @staticmethod
    def memory(view: Any) -> Any:
        return _native.Pointer(view.data.ptr, view.nbytes, view)

    @staticmethod
    def copied(view: Any) -> Any:
        with view.device:
            return view.copy(order="C")

    @staticmethod
    def room_for(view: Any) -> Any:
        with view.device:
            return sys.modules["cupy"].empty(view.shape, view.dtype)

    @staticmethod
    def put(view: Any, source: Any) -> None:
        with view.device:
            view[...] = source


def _take_facts(local: Local, array: Any) -> None:
    local.dtype, local.shape = _word_for(array.dtype), array.shape
    local.itemsize, local.nbytes = array.dtype.itemsize, array.nbytes
    local.is_contiguous = array.flags.c_contiguous
    local.repeats = not local.is_contiguous and may_overlap(array.shape, array.strides)
    local.problem = "has zero-byte elements" if not local.itemsize else mask_problem_of(array)


class _OfBuffer(Local):
    def __init__(self, buffer: _native.DeviceBuffer) -> None:
        super().__init__(buffer)
        self.nbytes = buffer.nbytes
        self.device = buffer.device
        self.key = (self.device, buffer.ptr, self.nbytes)

    def cut(self, frame: Box, box: Box, itemsize: int) -> Any:
        """Returns a contiguous range of bytes. Other boxes cannot be extracted from bytes."""
        start = box.offset_in(frame) * itemsize
        return self.array[start : start + box.size * itemsize]


def local_of(name: str, value: Any) -> Local:
    """Returns the array as a Local. Raises TypeError if the value is not an array."""
    torch, numpy, cupy = (sys.modules.get(each) for each in ("torch", "numpy", "cupy"))
    if torch is not None and isinstance(value, torch.Tensor):
        return _OfTorch(value)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _OfNumpy(value)
    if cupy is not None and isinstance(value, cupy.ndarray):
        return _OfCupy(value)
    if isinstance(value, _native.DeviceBuffer):
        return _OfBuffer(value)
    raise TypeError(f'"{name}" must be a PyTorch tensor, a NumPy or CuPy array, or a penstock.DeviceBuffer, not {type(value).__name__}')


# --- copies of several arrays


def copy_all(locals_: list[Local], copies: list[Any]) -> None:
    """Copies arrays into memory from `rooms_for()`. PyTorch and CuPy copy on their current streams."""
    by_torch: dict[str, tuple[list[Any], list[Any]]] = {}
    for copy, each in zip(copies, locals_):
        if each.library == "pt":
            targets, sources = by_torch.setdefault(each.device, ([], []))
            targets.append(copy)
            sources.append(each.array)
    for targets, sources in by_torch.values():
        _copy_of_torch(targets, sources)
    for copy, each in zip(copies, locals_):
        if each.library == "penstock" and each.nbytes:
            _native.copy(copy, each.array)
        elif each.library in ("np", "cupy"):
            each.put(copy, each.array)


def rooms_for(locals_: list[Local]) -> list[Any]:
    """Allocates contiguous arrays like these, in the same order, as views of one allocation per device."""
    rows: dict[tuple[str, str], list[View]] = {}
    ends: dict[tuple[str, str], int] = {}
    for at, each in enumerate(locals_):
        place = (each.library, each.device)
        start = ends.get(place, 0)
        dtype = each.array.dtype if each.dtype is not None else None
        rows.setdefault(place, []).append((str(at), dtype, each.shape or (), start, each.nbytes))
        ends[place] = start + aligned(each.nbytes)
    found: dict[str, Any] = {}
    with _ordinary_tensors():
        for (library, device), of in rows.items():
            framework_on("bytes" if library == "penstock" else library, device).arena(ends[library, device]).views(of, found)
    return [found[str(at)] for at in range(len(locals_))]


def _ordinary_tensors() -> contextlib.AbstractContextManager[Any]:
    """Turns off inference mode, because PyTorch rejects writes to inference tensors outside it."""
    torch = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None else torch.inference_mode(False)


def _copy_of_torch(targets: list[Any], sources: list[Any]) -> None:
    torch = sys.modules["torch"]
    with torch.no_grad():
        together = getattr(torch, "_foreach_copy_", None)
        if together is not None:
            together(targets, sources)
            return
        for target, source in zip(targets, sources):
            target.copy_(source)


# --- streams


Places = list[tuple[str, str]]  # pairs of a library and a GPU on which it has arrays


def places_of(locals_: Iterable[Local]) -> Places:
    return sorted({(each.library, each.device) for each in locals_ if each.library in ("pt", "cupy") and each.device.startswith("cuda:")})


def marks_of(places: Places) -> list[Any]:
    """Records an event on each current stream, and returns the events."""
    return [_mark(*each) for each in places]


def streams_of(places: Places) -> dict[tuple[str, str], int]:
    """Returns the handle of each current stream."""
    return {each: _current_stream(*each) for each in places}


def _current_stream(library: str, device: str) -> int:
    if library == "pt":
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(number_of(device)):
        return int(cupy.cuda.get_current_stream().ptr)


def handles_for(locals_: Iterable[Local], streams: dict[tuple[str, str], int]) -> list[int]:
    """Returns the handle of each array's stream. The list is empty if all use the default stream."""
    return [streams.get((each.library, each.device), 0) for each in locals_] if streams else []


def _mark(library: str, device: str) -> Any:
    if library == "pt":
        return sys.modules["torch"].cuda.current_stream(device).record_event()
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(number_of(device)):
        return cupy.cuda.get_current_stream().record()


@functools.cache
def _quiet_stream(library: str, device: str) -> Any:
    if library == "pt":
        return sys.modules["torch"].cuda.Stream(device)
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(number_of(device)):
        return cupy.cuda.Stream(non_blocking=True)


@contextlib.contextmanager
def quiet_streams(places: Places) -> Iterator[None]:
    """Makes Penstock's own streams current in this thread, so that sending does not wait for the program's work on the default stream."""
    with contextlib.ExitStack() as stack:
        for library, device in places:
            stream = _quiet_stream(library, device)
            if library == "pt":
                stack.enter_context(sys.modules["torch"].cuda.stream(stream))
            else:
                stack.enter_context(sys.modules["cupy"].cuda.Device(number_of(device)))
                stack.enter_context(stream)
        yield


def have_changed(locals_: Iterable[Local]) -> None:
    """Notifies PyTorch's autograd that the values have changed."""
    tensors = [each.array for each in locals_ if each.library == "pt"]
    if tensors:
        library_named("torch").have_changed(tensors)
