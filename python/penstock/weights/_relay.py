"""Serves a receiver's tensors while more of them are arriving."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Iterable, Sequence

from .. import pipe
from .._core.errors import Closed, TimedOut
from ._deadline import left_until
from ._held import Held
from ._listener import Door
from ._local_arrays import Local
from ._versions import Version, Versions, check_sendable

__all__ = ["Relay"]


_receivers = 256
_timeout = 300.0  # seconds for which a receiver may hold a version


class Landed:
    """Tracks which of a version's tensors have arrived. Thread-safe."""

    def __init__(self, pieces: Iterable[Local]) -> None:
        """`pieces` contains the target array of each piece that will arrive."""
        self._changed = threading.Condition()
        self._left = collections.Counter(each.key for each in pieces)
        self._failed: str | None = None

    def add(self, pieces: Iterable[Local]) -> None:
        with self._changed:
            self._left.subtract(each.key for each in pieces)
            self._changed.notify_all()

    def fail(self, reason: str) -> None:
        with self._changed:
            self._failed = reason
            self._changed.notify_all()

    def wait_for(self, locals_: Iterable[Local], deadline: float) -> None:
        """Waits until arrays are complete. Raises TimedOut, and Closed if the rest will not arrive."""
        keys = [each.key for each in locals_]
        with self._changed:
            while any(self._left[key] > 0 for key in keys):
                left = left_until(deadline)
                if self._failed is not None:
                    raise Closed(f"the relay did not receive all weights: {self._failed}", code="closed")
                if not left:
                    raise TimedOut("the relay did not receive the weights in time", code="timed_out")
                self._changed.wait(left)


class Relay:
    """Serves a receiver's tensors, in the version that the receiver has or is loading."""

    def __init__(self, url: str, channels: Sequence[str], secret: str | bytes, connections: int) -> None:
        self._versions = Versions()
        self._door = Door(pipe.listen(url, channels, secret, connections), self._versions, _receivers, _timeout)
        self.url = self._door.url
        self.close = weakref.finalize(self, Door.close, self._door)

    def begin(self, number: int, held: list[Held], pieces: Iterable[Local], deadline: float) -> Landed:
        """Waits until no process is reading the tensors that will be overwritten, then serves the new version. If it raises TimedOut, nothing has
        changed.
        """
        check_sendable(held)
        self._versions.withdraw(deadline)
        landed = Landed(pieces)
        self._versions.publish(Version(number, held, None, self._versions.last, landed))
        return landed

    def fail(self, landed: Landed, problem: BaseException) -> None:
        """Rejects new readers, and sends an error to current ones."""
        landed.fail(str(problem) or type(problem).__name__)
        self._versions.withdraw_now()
