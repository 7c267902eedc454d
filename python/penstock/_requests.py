"""The result of requests()."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Request"]


class Request(NamedTuple):
    """A running request. Offset and size are in bytes.

    - `offset`: None for a stream-ordered request that its stream has not reached; `size` is then an upper limit.
    - `device`: the device of the memory, or "host"; None if it is not known yet.
    - `since_ns`: when it began, in the clock of time.monotonic_ns(), to within 10 ms.
    - `priority`: "normal" or "background".
    - `of_pipe`: True for a message of a pipe that is being sent (`write`) or received; `file` is then the other end, and `offset` is None.
    """

    file: str
    offset: int | None
    size: int
    write: bool
    device: str | None
    since_ns: int
    of_pipe: bool = False
    priority: str = "normal"
