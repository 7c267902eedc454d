"""The result of requests()."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Request"]


class Request(NamedTuple):
    """A running request. Offset and size are in bytes.

    - `offset`: None for a stream-ordered request that the stream has not reached yet; `size` is then an upper limit.
    - `device`: the device that owns the memory, or "host"; None if it is not known yet.
    - `since_ns`: when the request started, on the time.monotonic_ns() clock, to within 10 ms.
    - `priority`: "normal" or "background".
    - `of_pipe`: True for a pipe message that is being sent (`write`) or received; `file` is then the peer, and `offset` is None.
    """

    file: str
    offset: int | None
    size: int
    write: bool
    device: str | None
    since_ns: int
    of_pipe: bool = False
    priority: str = "normal"


Request.__module__ = "penstock"  # its public home, which pickles name
