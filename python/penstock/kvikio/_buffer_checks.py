"""Checks of buffers and numbers that KvikIO performs in addition to Penstock's own."""

from __future__ import annotations

from typing import Any

import penstock
from penstock._core import arrays

__all__ = ["check_not_negative", "is_device_memory", "require_device_memory", "settle"]


def check_not_negative(**values: int | None) -> None:
    """Raises OverflowError, which names the argument, for a negative number. Accepts None."""
    for name, value in values.items():
        if value is not None and value < 0:
            raise OverflowError(f"{name}: can't convert negative value {value}")


def is_device_memory(buf: Any) -> bool:
    """Returns True if buf is device memory, including the host device's. Raises TypeError or ValueError if buf is not a buffer."""
    if isinstance(buf, penstock.DeviceBuffer) or _has_device_interface(buf):
        return True
    return bool(penstock.describe(buf)["kind"] == "device")


def _has_device_interface(buf: Any) -> bool:
    try:
        return hasattr(buf, "__cuda_array_interface__")
    except RuntimeError:  # raised by PyTorch 2.11 for tensors without strides
        return False


def require_device_memory(buf: Any) -> None:
    """Raises ValueError with KvikIO's message if buf is host memory."""
    if not is_device_memory(buf):
        raise ValueError("Non-CUDA buffers not supported")


def settle(buf: Any) -> None:
    """Waits for earlier work on the default stream of a CuPy or PyTorch array, as KvikIO does."""
    arrays.settle(buf, stream=0)
