"""What KvikIO needs to know of a buffer beyond what Penstock checks itself."""

from __future__ import annotations

from typing import Any

import penstock

__all__ = ["is_device_memory", "require_device_memory"]


def is_device_memory(buf: Any) -> bool:
    """Whether buf is memory of a device; the host device counts. TypeError, ValueError: buf is no buffer."""
    if isinstance(buf, penstock.DeviceBuffer) or hasattr(buf, "__cuda_array_interface__"):
        return True
    return bool(penstock.describe(buf)["kind"] == "device")


def require_device_memory(buf: Any) -> None:
    """ValueError, in KvikIO's words, when buf is host memory."""
    if not is_device_memory(buf):
        raise ValueError("Non-CUDA buffers not supported")
