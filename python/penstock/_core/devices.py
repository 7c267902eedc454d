"""Resolves device names, for every function that takes a device.

    host, cpu                   host memory
    host:0                      the host device: memory that simulates a GPU's
    cuda:1, 1                   a GPU by its number
    cuda                        CUDA's current device, as in PyTorch or CuPy if one of them is loaded

A torch.device, a CuPy Device and a penstock.Device are accepted, too.
"""

from __future__ import annotations

import ctypes
import operator
import os
import sys
from typing import Any

from .. import _native
from .errors import InvalidArgument

__all__ = ["Place", "device_name", "is_cupy_device", "is_gpu", "is_torch_device", "known_device", "name_for_torch", "number_of"]

# Accepted devices: a name, a number, or another library's device.
Place = Any

_words_of_host = {"cpu": "host", "cpu:0": "host", "host": "host"}


def device_name(device: Place, argument: str = "device") -> str:
    """Returns "host", "host:0" or "cuda:1" for any spelling. Does not check that the device exists, and returns unknown names unchanged.

    Raises TypeError if the value does not name a device, and InvalidArgument if its number is negative.
    """
    if is_torch_device(device):
        device = str(device)
    elif isinstance(device, _native.Device):
        device = device.name
    if isinstance(device, str):
        if device == "cuda":
            return f"cuda:{_current_gpu()}"
        prefix, _, number = device.partition(":")
        is_gpu_number = prefix == "cuda" and len(number) < 10 and number.isascii() and number.isdigit()
        return f"cuda:{int(number)}" if is_gpu_number else _words_of_host.get(device, device)
    number = device.id if is_cupy_device(device) else device
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise TypeError(f"{argument} must be a str, an int, a torch.device or a CuPy Device, not {type(device).__name__}")
    found = operator.index(number)
    if found < 0:
        raise InvalidArgument(f"{argument} is {found}: GPU numbers start at 0", code="invalid_argument")
    return f"cuda:{found}"


_known = {"host"}


def known_device(device: Place, argument: str = "device") -> str:
    """Returns the name of an existing device. Raises NotFound, which lists the existing devices, and the errors that device_name() raises."""
    name = device_name(device, argument)
    if name not in _known:
        _native.device(name)
        _known.add(name)
    return name


def is_gpu(name: str) -> bool:
    return name.startswith("cuda:")


def number_of(name: str) -> int:
    """Returns the number of the GPU with this name."""
    return int(name.partition(":")[2])


def name_for_torch(name: str) -> str:
    """Returns PyTorch's name for a device. PyTorch treats memory of the host device as CPU memory."""
    return name if is_gpu(name) else "cpu"


def is_torch_device(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.device)


def is_cupy_device(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "Device" and kind.__module__.partition(".")[0] == "cupy"


def _current_gpu() -> int:
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    if _native.cuda_status() is not None:
        return 0  # known_device() reports why
    return int(cupy.cuda.runtime.getDevice()) if cupy is not None else _current_of_driver()


def _current_of_driver() -> int:
    """Returns the device of the calling thread's context, which the CUDA runtime sets too; 0 if there is none."""
    number = ctypes.c_int(0)
    driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
    return number.value if driver.cuCtxGetDevice(ctypes.byref(number)) == 0 else 0
