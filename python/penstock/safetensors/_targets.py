"""Tensors that are there already and are to be filled."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from .. import _native
from ._frameworks import Framework, framework_on

__all__ = ["Target", "count_changes", "settle_torch", "target_of"]


class Target:
    """One of them. What it cannot be filled for is in problem."""

    problem: str | None = None
    shape: tuple[int, ...] | None = None  # None: bytes without one
    dtype: Any = None
    nbytes = 0
    device = "host"  # its name, with that of the library where streams matter
    address = 0
    is_plain = True  # contiguous and writable: bytes may be read into it as they are
    same_as: Any = None  # equal for those that are one and the same memory

    def place(self) -> Framework:
        raise NotImplementedError

    def memory(self) -> Any:
        raise NotImplementedError

    def settle(self) -> None:
        """Waits for what the current stream of its device has."""

    def assign(self, array: Any) -> None:
        """Copies an array of its library and shape into it, converting where the types differ."""
        raise NotImplementedError

    @staticmethod
    def have_changed(targets: list[Any]) -> None:
        """The bytes of these, all of one class, are others now."""


def target_of(name: str, value: Any) -> Target:
    """TypeError: it is no tensor."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _OfTorch(torch, value)
    library = type(value).__module__.partition(".")[0]
    numpy, cupy = sys.modules.get("numpy"), sys.modules.get("cupy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _OfNumpy(value)
    if cupy is not None and library == "cupy" and isinstance(value, cupy.ndarray):
        return _OfCupy(cupy, value)
    if isinstance(value, _native.DeviceBuffer):
        return _OfBuffer(value)
    raise TypeError(f'target "{name}" is no tensor of PyTorch, array of NumPy or CuPy, or penstock.DeviceBuffer, but {type(value).__name__}')


def settle_torch(devices: Iterable[Any]) -> None:
    """Waits for what the current streams of these have, as far as they are GPUs."""
    for device in devices:
        if device.type == "cuda":
            sys.modules["torch"].cuda.current_stream(device).synchronize()


def count_changes(tensors: list[Any]) -> None:
    """Autograd hears that the values of these, of PyTorch, are others now."""
    counted = [each for each in tensors if not each.is_inference()]
    increment = sys.modules["torch"].autograd.graph.increment_version
    try:
        increment(counted)
    except (AttributeError, TypeError):  # older ones take one at a time
        for each in counted:
            increment(each)


class _OfTorch(Target):
    def __init__(self, torch: Any, tensor: Any) -> None:
        self._torch = torch
        self._tensor = tensor
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device = str(tensor.device)
        self.same_as = id(tensor)
        if tensor.device.type not in ("cpu", "cuda"):
            self.problem = f"is on the device {tensor.device.type} in memory, which has no bytes to fill: give it some first, as with to_empty()"
            return
        if tensor.layout != torch.strided:
            self.problem = f"is of the layout {tensor.layout} in memory"
            return
        self.nbytes = tensor.numel() * tensor.element_size()
        dispatched = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # such as one that is spread over GPUs
        self.is_plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg() and not dispatched
        if not dispatched and self.nbytes:
            self.address = tensor.data_ptr()
            if not self.address:
                self.problem = "has no memory: its storage has been let go of"
                return
            self.same_as = (self.device, self.address, self.shape, tuple(tensor.stride()), self.dtype, tensor.is_conj(), tensor.is_neg())

    def place(self) -> Framework:
        return _place("pt", self.device)

    def memory(self) -> Any:
        return _native.Pointer(self.address, self.nbytes, self._tensor)

    def settle(self) -> None:
        settle_torch([self._tensor.device])

    def assign(self, array: Any) -> None:
        with self._torch.no_grad():
            self._tensor.copy_(array)

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
        if not array.flags.writeable:
            self.problem = "is read-only in memory"

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
        self.same_as = (self.device, self.address, self.shape, array.strides, array.dtype) if self.nbytes else id(array)

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
