"""Stream registration as in KvikIO. Penstock does not require it."""

from __future__ import annotations

from typing import Any

__all__ = ["stream_deregister", "stream_register"]

_known_flags = 0xF  # cuFile's flags: fixed buffer offset, fixed file offset, fixed size, page-aligned inputs


def stream_register(stream: Any, flags: int) -> None:
    """Accepts a stream and cuFile's stream flags (0 to 15), which have no effect here. Raises ValueError for other flags."""
    if flags & ~_known_flags:
        raise ValueError(f"stream_register: flags must be 0 to {_known_flags}, not {flags}")


def stream_deregister(stream: Any) -> None:
    """Accepts a stream, registered or not."""


def __dir__() -> list[str]:
    return sorted(__all__)
