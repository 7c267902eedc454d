"""What requests() tells."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Request"]


class Request(NamedTuple):
    """A request under way. Offset and size in bytes.

    ``offset``: None for one in stream order that its stream has not reached; ``size`` is then the most that it may be.
    ``device``: the name of the device whose memory it is, or "host"; None where that was not looked up yet.
    ``since_ns``: when it began, as time.monotonic_ns(), to within 10 ms.
    ``priority``: "normal" or "background".
    ``of_pipe``: a message of a pipe that is being sent (``write``) or received; ``file`` is who is at the other end, ``offset`` None.
    """

    file: str
    offset: int | None
    size: int
    write: bool
    device: str | None
    since_ns: int
    of_pipe: bool = False
    priority: str = "normal"
