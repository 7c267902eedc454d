"""KvikIO's registration of buffers. Penstock needs none: these check their argument, and cost nothing."""

from __future__ import annotations

from typing import Any

import penstock
from penstock.kvikio._memory import require_device_memory

__all__ = ["bounce_buffer_free", "memory_deregister", "memory_register"]


def memory_register(buf: Any) -> None:
    """Accepts device memory, in any state. ValueError: "Non-CUDA buffers not supported" for host memory."""
    require_device_memory(buf)


def memory_deregister(buf: Any) -> None:
    """Accepts device memory, registered or not. ValueError as for memory_register()."""
    require_device_memory(buf)


def bounce_buffer_free() -> int:
    """Gives pinned staging memory that no request is using back to the system, and returns its bytes, as penstock.trim().

    Penstock's staging memory is shared by all files and threads; its size follows the requests and not bounce_buffer_size.
    """
    return penstock.trim()
