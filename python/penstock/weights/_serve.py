"""serve_weights(): serves this process's weights to other processes."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from .. import pipe
from .._core.closable import Closable
from .._core.errors import InvalidArgument
from .._core.renamed import renamed
from ._deadline import until
from ._held import Holder, Parts, names_of
from ._listener import Door
from ._versions import Snapshot, Version, Versions, check_sendable

__all__ = ["WeightsServer", "secret_of", "serve_weights"]


def secret_of(secret: str | bytes | None) -> str | bytes:
    """Returns the secret, or if it is None, the one in the environment."""
    return os.environ.get("PENSTOCK_WEIGHTS_SECRET", "") if secret is None else secret


@renamed(parts="shard")
def serve_weights(
    weights: Any,
    url: str | None = None,
    *,
    names: Iterable[str] | None = None,
    shard: Parts | None = None,
    snapshot: int = True,
    version: int = 0,
    secret: str | bytes | None = None,
    channels: Sequence[str] = (),
    connections: int = 4,
    receivers: int = 256,
    timeout: float = 300.0,
) -> WeightsServer:
    """Serves this process's weights to processes that call `load_weights()`. Returns immediately, and serves in background threads.

    Arguments:

    - `weights`: a `torch.nn.Module` (its `state_dict()`), or a mapping from names to PyTorch tensors, NumPy or CuPy arrays, or `DeviceBuffer`s.
    - `url`: as for `penstock.pipe.listen()`: unix:@name, unix:/path or tcp://host:port. None chooses a unix socket; `WeightsServer.url` contains the
      result.
    - `names`: the tensors to serve. None serves all.
    - `shard`: for tensors that are this rank's part of larger ones: maps a name to the whole tensor's shape and a tuple of slices, one per dimension,
      starting with the first dimension. Not needed for a DTensor.
    - `snapshot`: the number of copies that the server keeps on the device. With 1 (True), you may change the weights at any time, and `update()`
      waits for receivers that are still reading the copy. With 2, `update()` waits only for receivers of the second-to-last version. With 0 (False),
      there is no copy, and you may change the weights only between `pause()` and `update()`.
    - `version`: these weights' version number.
    - `secret`: as for `penstock.pipe.listen()`. None uses the environment variable `PENSTOCK_WEIGHTS_SECRET`.
    - `channels`, `connections`: as for `penstock.pipe.listen()`.
    - `receivers`: the maximum number of connected receivers; additional ones get an error.
    - `timeout`: how long a receiver may hold a version, in seconds.

    On a GPU, the weights are read after the work that is queued on the current stream at the time of the call.

    Raises: TypeError and InvalidArgument for weights that cannot be served, and the errors of `penstock.pipe.listen()`.
    """
    return WeightsServer(weights, url, names, shard, snapshot, version, secret, channels, connections, receivers, timeout)


def _check_version(version: Any) -> None:
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 1 << 53:
        raise InvalidArgument(f"version is {version!r}, which is not an integer of 0 or more", code="invalid_argument")


class WeightsServer(Closable):
    """The server that `serve_weights()` returns. Thread-safe. A context manager; dropping it closes it.

    `url` is the address that receivers connect to.
    """

    def __init__(
        self,
        weights: Any,
        url: str | None,
        names: Iterable[str] | None,
        shard: Parts | None,
        snapshot: int,
        version: int,
        secret: str | bytes | None,
        channels: Sequence[str],
        connections: int,
        receivers: int,
        timeout: float,
    ) -> None:
        if not isinstance(snapshot, int) or not 0 <= snapshot <= 16:
            raise InvalidArgument(f"snapshot is {snapshot!r}: it must be a number of copies from 0 (False) to 16", code="invalid_argument")
        _check_version(version)
        self._weights, self._holder = weights, Holder("weights", names_of(names), shard)
        self._timeout = timeout
        self._snapshots = [Snapshot() for _ in range(snapshot)]
        self._updating = threading.Lock()
        self._versions = Versions()
        self._versions.publish(self._made(version, weights, self._holder, until(timeout)))
        listener = pipe.listen("unix:" if url is None else url, channels, secret_of(secret), connections)
        self.url: str = listener.url
        self._door = Door(listener, self._versions, receivers, timeout)
        self._close = weakref.finalize(self, Door.close, self._door)  # also called when the interpreter exits

    @property
    def version(self) -> int:
        """The version that receivers get. After `pause()`, the version that they got before it."""
        return self._versions.latest

    @property
    def receivers(self) -> int:
        """The number of connected receivers."""
        return self._door.connected

    @property
    def refused(self) -> int:
        """The number of processes that connected with the wrong secret."""
        return self._door.refused

    @renamed(parts="shard")
    def update(self, weights: Any = None, *, shard: Parts | None = None, version: int | None = None, timeout: float | None = None) -> int:
        """Publishes the current weights as a new version, and returns its number. Receivers that are loading finish with the version that they
        started with.

        Arguments:

        - `weights`, `shard`: new weights to serve; names, types and shapes may differ. Without snapshots, the previous weights must not change until
          their receivers are done (see `pause()`).
        - `version`: the number of the new version, which must be higher than the last one. None means the last one plus 1.
        - `timeout`: seconds to wait for receivers, as described under `snapshot` in `serve_weights()`. None uses the server's.

        Without snapshots, you must call `pause()` before you publish the same weights again. On a GPU, the weights are read after the work queued on
        the current stream.

        Raises: TimedOut, in which case the previous version stays; InvalidArgument; Closed; OutOfMemory if there is no memory for a snapshot, in
        which case nothing is served until the next `update()`.
        """
        deadline = until(self._timeout if timeout is None else timeout)
        with self._updating:
            number = self._versions.latest + 1 if version is None else version
            _check_version(number)
            if number <= self._versions.latest:
                raise InvalidArgument(f"version {number} is not higher than the last one, {self._versions.latest}", code="invalid_argument")
            if weights is None and not self._snapshots and self._versions.current is not None:
                raise InvalidArgument("without snapshots, call pause() before you change the weights and update()", code="invalid_argument")
            holder = self._holder
            if weights is not None or shard is not None:
                holder = Holder("weights", holder.names, shard)
            weights = self._weights if weights is None else weights
            self._versions.publish(self._made(number, weights, holder, deadline))
            self._weights, self._holder = weights, holder
        return number

    def pause(self, timeout: float | None = None) -> None:
        """Waits until no receiver is reading the weights, and makes new receivers wait for the next `update()`. Then you may change the weights.

        `timeout` is in seconds; None uses the server's. Raises Closed, and TimedOut, in which case nothing has changed.
        """
        with self._updating:
            self._versions.withdraw(until(self._timeout if timeout is None else timeout))

    def close(self) -> None:
        """Stops the server. Receivers that are loading get an error, unless you call `pause()` first to let them finish."""
        self._close()

    def _made(self, number: int, weights: Any, holder: Holder, deadline: float) -> Version:
        held = holder.held(weights)
        check_sendable(held)
        before = self._versions.last
        if not self._snapshots:
            return Version(number, held, None, before)
        snapshot = self._versions.free_snapshot(self._snapshots, deadline)
        return Version(number, snapshot.take(held), snapshot, before)

    def __repr__(self) -> str:
        return f"<penstock.weights.WeightsServer of version {self.version} at {self.url}>"
