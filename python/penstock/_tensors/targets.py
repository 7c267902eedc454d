"""Existing tensors as targets for loading."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from .. import _native
from .._core.arrays.library import span_of
from .._core.numpy_masks import mask_problem_of
from .._core.torch_memory import OVERLAP, copy_into, is_wrapper, may_overlap, target_problem_of
from .frameworks import Framework, framework_on

__all__ = ["Target", "count_changes", "crossing", "settle_torch", "target_of"]


class Target:
    """A tensor to fill. `problem` is the reason why it cannot be filled."""

    problem: str | None = None
    shape: tuple[int, ...] | None = None  # None: bytes without a shape
    dtype: Any = None
    nbytes = 0
    device = "host"  # device name, with the library's name if streams matter
    address = 0
    span: tuple[int, int] = (0, 0)  # the address of its first byte, and the address after its last
    is_plain = True  # contiguous and writable: bytes may be read directly into it
    same_as: Any = None  # equal for targets that share the same memory

    def place(self) -> Framework:
        raise NotImplementedError

    def memory(self) -> Any:
        raise NotImplementedError

    def settle(self) -> None:
        """Waits for the device's current stream."""

    def assign(self, array: Any) -> None:
        """Copies an array from the same library, with the same shape, into the target, converting the type if necessary."""
        raise NotImplementedError

    @staticmethod
    def have_changed(targets: list[Any]) -> None:
        """Reports that the bytes of these targets, all of the same class, have changed."""


def target_of(name: str, value: Any) -> Target:
    """Describes a target. Raises TypeError if it is not a tensor."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _OfTorch(value)
    library = type(value).__module__.partition(".")[0]
    numpy, cupy = sys.modules.get("numpy"), sys.modules.get("cupy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _OfNumpy(value)
    if cupy is not None and library == "cupy" and isinstance(value, cupy.ndarray):
        return _OfCupy(cupy, value)
    if isinstance(value, _native.DeviceBuffer):
        return _OfBuffer(value)
    raise TypeError(f'target "{name}" must be a PyTorch tensor, a NumPy or CuPy array, or a penstock.DeviceBuffer, not {type(value).__name__}')


def crossing(spans: Iterable[tuple[Any, int, int, int]]) -> set[int]:
    """Returns the numbers of spans that may overlap another span. A span is (device, first address, address past the last byte, number)."""
    found: set[int] = set()
    last: tuple[Any, int, int] | None = None  # device, end, number
    for device, start, end, number in sorted(each for each in spans if each[1] < each[2]):
        if last is not None and last[0] == device and start < last[1]:
            found |= {last[2], number}
        if last is None or last[0] != device or end > last[1]:
            last = device, end, number
    return found


def settle_torch(devices: Iterable[Any]) -> None:
    """Waits for the current stream of each GPU among these devices."""
    for device in devices:
        if device.type == "cuda":
            sys.modules["torch"].cuda.current_stream(device).synchronize()


def count_changes(tensors: list[Any]) -> None:
    """Notifies autograd that the values of these PyTorch tensors have changed."""
    counted = [each for each in tensors if not each.is_inference()]
    increment = sys.modules["torch"].autograd.graph.increment_version
    try:
        increment(counted)
    except (AttributeError, TypeError):  # older versions accept only one tensor at a time
        for each in counted:
            increment(each)


class _OfTorch(Target):
    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self.dtype = tensor.dtype
        self.device = str(tensor.device)
        self.same_as = id(tensor)
        self.problem = target_problem_of(tensor)
        if self.problem is not None:
            return
        self.shape = tuple(tensor.shape)
        self.nbytes = tensor.numel() * tensor.element_size()
        dispatched = is_wrapper(tensor)  # for example, a tensor that is distributed across GPUs
        self.is_plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg() and not dispatched
        if not dispatched and self.nbytes:
            self.address = tensor.data_ptr()
            size = tensor.element_size()
            self.span = span_of(self.address, self.shape, [each * size for each in tensor.stride()], size)
            self.same_as = (self.device, self.address, self.shape, tuple(tensor.stride()), self.dtype, tensor.is_conj(), tensor.is_neg())

    def place(self) -> Framework:
        return _place("pt", self.device)

    def memory(self) -> Any:
        return _native.Pointer(self.address, self.nbytes, self._tensor)

    def settle(self) -> None:
        settle_torch([self._tensor.device])

    def assign(self, array: Any) -> None:
        copy_into(self._tensor, array)

    @staticmethod
    def have_changed(targets: list[Any]) -> None:
        count_changes([each._tensor for each in targets])


class _OfNumpy(Target):
    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.nbytes = array.nbytes
        self.address = array.ctypes.data
        self.is_plain = array.flags.c_contiguous
        self.same_as = (self.address, self.shape, array.strides, array.dtype) if self.nbytes else id(array)
        self.span = span_of(self.address, self.shape, array.strides, array.itemsize)
        if not array.flags.writeable:
            self.problem = "is read-only in memory"
        elif may_overlap(array.shape, array.strides):
            self.problem = OVERLAP
        else:
            self.problem = mask_problem_of(array)

    def place(self) -> Framework:
        return _place("np", "host")

    def memory(self) -> Any:
        return self._array

    def assign(self, array: Any) -> None:
        sys.modules["numpy"].copyto(self._array, array, casting="unsafe")


class _OfCupy(Target):
    def __init__(self, cupy: Any, array: Any) -> None:
        self._cupy = cupy
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.nbytes = array.nbytes
        self.device = f"cuda:{array.device.id} of CuPy"
        self.address = array.data.ptr
        self.is_plain = array.flags.c_contiguous
        self.span = span_of(self.address, self.shape, array.strides, array.itemsize)
        self.same_as = (self.device, self.address, self.shape, array.strides, array.dtype) if self.nbytes else id(array)
        if may_overlap(array.shape, array.strides):
            self.problem = OVERLAP

    def place(self) -> Framework:
        return _place("cupy", f"cuda:{self._array.device.id}")

    def memory(self) -> Any:
        return self._array

    def settle(self) -> None:
        with self._array.device:
            self._cupy.cuda.get_current_stream().synchronize()

    def assign(self, array: Any) -> None:
        with self._array.device:
            self._cupy.copyto(self._array, array, casting="unsafe")


class _OfBuffer(Target):
    def __init__(self, buffer: _native.DeviceBuffer) -> None:
        self._buffer = buffer
        self.nbytes = buffer.nbytes
        self.device = f"{buffer.device} of penstock"
        self.address = buffer.ptr
        self.span = (self.address, self.address + self.nbytes)
        self.same_as = (self.device, self.address, self.nbytes)

    def place(self) -> Framework:
        return _place("bytes", self._buffer.device)

    def memory(self) -> Any:
        return self._buffer


_places: dict[tuple[str, str], Framework] = {}


def _place(framework: str, device: str) -> Framework:
    found = _places.get((framework, device))
    if found is None:
        found = _places[framework, device] = framework_on(framework, device)
    return found
