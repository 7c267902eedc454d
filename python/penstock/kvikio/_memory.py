"""What KvikIO needs to know of a buffer beyond what Penstock checks itself."""

from __future__ import annotations

import sys
from typing import Any

import penstock

__all__ = ["is_device_memory", "require_device_memory", "settle"]


def is_device_memory(buf: Any) -> bool:
    """Whether buf is memory of a device; the host device counts. TypeError, ValueError: buf is no buffer."""
    if isinstance(buf, penstock.DeviceBuffer) or _has_device_interface(buf):
        return True
    return bool(penstock.describe(buf)["kind"] == "device")


def _has_device_interface(buf: Any) -> bool:
    try:
        return hasattr(buf, "__cuda_array_interface__")
    except RuntimeError:  # PyTorch 2.11 raises it for tensors without strides
        return False


def require_device_memory(buf: Any) -> None:
    """ValueError, in KvikIO's words, when buf is host memory."""
    if not is_device_memory(buf):
        raise ValueError("Non-CUDA buffers not supported")


def settle(buf: Any) -> None:
    """Waits for work that was queued before on the default stream of an array of CuPy or PyTorch, as KvikIO does."""
    library = type(buf).__module__.partition(".")[0]
    if library == "cupy":
        with buf.device:
            sys.modules["cupy"].cuda.Stream.null.synchronize()
    elif library == "torch" and buf.device.type == "cuda":
        sys.modules["torch"].cuda.default_stream(buf.device).synchronize()
