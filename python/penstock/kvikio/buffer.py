"""KvikIO's registration of buffers. Penstock needs none: these check their argument, and cost nothing."""

from __future__ import annotations

from typing import Any

from penstock.kvikio._bounce_buffers import free
from penstock.kvikio._memory import require_device_memory

__all__ = ["bounce_buffer_free", "memory_deregister", "memory_register"]


def memory_register(buf: Any) -> None:
    """Accepts device memory, in any state. ValueError: "Non-CUDA buffers not supported" for host memory."""
    require_device_memory(buf)


def memory_deregister(buf: Any) -> None:
    """Accepts device memory, registered or not. ValueError as for memory_register()."""
    require_device_memory(buf)


def bounce_buffer_free() -> int:
    """Gives pinned staging memory that no request is using back to the system, as penstock.trim(), and returns its bytes.

    Where the program has set bounce_buffer_size, it returns what KvikIO would: the bytes of as many buffers of that size as its threads
    would have used since. How much memory Penstock holds is told by penstock.stats()["pinned_bytes"].
    """
    return free()
