"""serve_weights(): weights of a process that has them, to processes that want them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from .. import pipe
from .._errors import InvalidArgument
from ._deadline import until
from ._door import Door
from ._held import Holder, Parts, names_of
from ._versions import Snapshot, Version, Versions, check_sendable

__all__ = ["WeightsServer", "secret_of", "serve_weights"]


def secret_of(secret: str | bytes | None) -> str | bytes:
    return os.environ.get("PENSTOCK_WEIGHTS_SECRET", "") if secret is None else secret


def serve_weights(
    weights: Any,
    url: str | None = None,
    *,
    names: Iterable[str] | None = None,
    parts: Parts | None = None,
    snapshot: int = True,
    version: int = 0,
    secret: str | bytes | None = None,
    channels: Sequence[str] = (),
    connections: int = 4,
    receivers: int = 256,
    timeout: float = 300.0,
) -> WeightsServer:
    """Serves the weights of this process to those that call load_weights(). Returns at once; threads in the background serve.

    weights: a torch.nn.Module (its state_dict()), or a mapping of names to tensors of PyTorch, arrays of NumPy or CuPy, or DeviceBuffers.
    url: as for penstock.pipe.listen(): unix:@name, unix:/path, tcp://host:port; None chooses a unix socket, which WeightsServer.url names.
    names: of the tensors that are served; None is all.
    parts: for tensors that are this rank's part of larger ones: the name, and a pair of the whole shape and of slices, one for each dimension
    from the first on. Of a DTensor the part is known.
    snapshot: copies of the weights that the server has on their device: with 1 (True) the program may change the weights at once, and update()
    waits for those that still read the copy; with 2, update() waits only for those that read the version before the last. With 0 (False)
    there is no copy, and the program must not change the weights until pause() has returned.
    version: of these weights. secret: as for penstock.pipe.listen(); None takes the one in the environment variable PENSTOCK_WEIGHTS_SECRET.
    channels, connections: as for penstock.pipe.listen().
    receivers: at most as many at once; others get an error. timeout: seconds that a receiver may hold a version for.

    On a GPU, values are those of the work that the current stream holds when this is called. Raises TypeError, InvalidArgument for what cannot
    be served, and what penstock.pipe.listen() raises.
    """
    return WeightsServer(weights, url, names, parts, snapshot, version, secret, channels, connections, receivers, timeout)


def _check_version(version: Any) -> None:
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 1 << 53:
        raise InvalidArgument(f"version is {version!r}, which is no whole number from 0 on", code="invalid_argument")


class WeightsServer:
    """What serve_weights() returns. Thread-safe; a context manager. Closed when it is dropped."""

    def __init__(
        self,
        weights: Any,
        url: str | None,
        names: Iterable[str] | None,
        parts: Parts | None,
        snapshot: int,
        version: int,
        secret: str | bytes | None,
        channels: Sequence[str],
        connections: int,
        receivers: int,
        timeout: float,
    ) -> None:
        if not isinstance(snapshot, int) or not 0 <= snapshot <= 16:
            raise InvalidArgument(f"snapshot is {snapshot!r}: the number of copies, 0 (False) to 16", code="invalid_argument")
        _check_version(version)
        self._weights, self._holder = weights, Holder("weights", names_of(names), parts)
        self._timeout = timeout
        self._snapshots = [Snapshot() for _ in range(snapshot)]
        self._updating = threading.Lock()
        self._versions = Versions()
        self._versions.publish(self._made(version, weights, self._holder, until(timeout)))
        listener = pipe.listen("unix:" if url is None else url, channels, secret_of(secret), connections)
        self.url: str = listener.url
        self._door = Door(listener, self._versions, receivers, timeout)
        self._close = weakref.finalize(self, Door.close, self._door)  # at the end of the interpreter too

    @property
    def version(self) -> int:
        """That receivers get, or got last where pause() keeps them waiting."""
        return self._versions.latest

    @property
    def receivers(self) -> int:
        """How many are connected."""
        return self._door.connected

    @property
    def refused(self) -> int:
        """The number of processes that connected and gave another secret."""
        return self._door.refused

    def update(self, weights: Any = None, *, parts: Parts | None = None, version: int | None = None, timeout: float | None = None) -> int:
        """Makes a new version of the weights as they are now, which receivers get from then on; those under way get the one that they began
        with. Returns its number: version, which must be higher than the last, or one more than the last.

        weights, parts: others instead, which may differ in everything; those of before may still be read, and must not change until receivers
        have ended (see pause()), unless there are snapshots. With snapshots this waits for receivers as serve_weights() says, for timeout seconds
        at most (None: the server's). Without them it takes the same weights only after pause(). On a GPU, values are those of the work that the
        current stream holds.
        Raises TimedOut, and the version of before goes on; InvalidArgument; Closed; OutOfMemory for a snapshot, and nothing is served until an update().
        """
        deadline = until(self._timeout if timeout is None else timeout)
        with self._updating:
            number = self._versions.latest + 1 if version is None else version
            _check_version(number)
            if number <= self._versions.latest:
                raise InvalidArgument(f"version {number} is not higher than {self._versions.latest}, the last", code="invalid_argument")
            if weights is None and not self._snapshots and self._versions.current is not None:
                raise InvalidArgument("without a snapshot, weights change only between pause() and update()", code="invalid_argument")
            holder = self._holder
            if weights is not None or parts is not None:
                holder = Holder("weights", holder.names, parts)
            weights = self._weights if weights is None else weights
            self._versions.publish(self._made(number, weights, holder, deadline))
            self._weights, self._holder = weights, holder
        return number

    def pause(self, timeout: float | None = None) -> None:
        """Waits until nobody reads the weights, and keeps those who come waiting for the next update(). Then the weights may change.

        timeout: seconds; None: the server's. Raises TimedOut, and all is as before; Closed.
        """
        with self._updating:
            self._versions.withdraw(until(self._timeout if timeout is None else timeout))

    def close(self) -> None:
        """Ends it: receivers under way get an error. pause() before lets them finish."""
        self._close()

    def _made(self, number: int, weights: Any, holder: Holder, deadline: float) -> Version:
        held = holder.held(weights)
        check_sendable(held)
        before = self._versions.last
        if not self._snapshots:
            return Version(number, held, None, before)
        snapshot = self._versions.free_snapshot(self._snapshots, deadline)
        return Version(number, snapshot.take(held), snapshot, before)

    def __enter__(self) -> WeightsServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.weights.WeightsServer of version {self.version} at {self.url}>"
