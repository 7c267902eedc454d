"""load_weights(): loads weights that other processes serve, into existing or new tensors."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .. import _native, pipe
from .._core.batches import in_batches
from .._core.closable import Closable
from .._core.errors import Error, InvalidArgument, TimedOut
from .._core.futures import FIRST_COMPLETED, wait
from .._core.pieces import remade
from .._core.renamed import renamed
from .._tensors.errors import listed
from .._tensors.frameworks import framework_on
from ._deadline import left_until, until
from ._held import Held, Holder, Parts, names_of, part_of
from ._line import Line
from ._local_arrays import have_changed, marks_of, streams_of
from ._relay import Landed, Relay
from ._serve import secret_of
from ._track import Track
from ._transfer_plan import Batch, Plan, made_for, planned
from ._wire import Catalog

__all__ = ["LoadedWeights", "WeightsReceiver", "load_weights"]


class LoadedWeights(NamedTuple):
    """The result of `load_weights()`.

    - `version`: the weights' version.
    - `changed`: False if the servers have nothing newer than `newer_than`; then nothing was loaded.
    - `missing_keys`: names in your module or mapping that no server provides.
    - `unexpected_keys`: names that the servers provide but your module or mapping lacks.
    - `tensors`: the new tensors by name; empty if a module or mapping was filled.
    """

    version: int
    changed: bool
    missing_keys: list[str]
    unexpected_keys: list[str]
    tensors: dict[str, Any]


@renamed(parts="shard")
def load_weights(
    url: str | Sequence[str],
    module: Any = None,
    *,
    device: Any = None,
    framework: str | None = None,
    names: Iterable[str] | None = None,
    shard: Parts | None = None,
    strict: bool = True,
    newer_than: int | None = None,
    at_least: int = 0,
    secret: str | bytes | None = None,
    channels: Sequence[str] = (),
    connections: int = 4,
    timeout: float = 300.0,
) -> LoadedWeights:
    """Loads weights that other processes serve with `serve_weights()`. All tensors are from one version. Blocks.

    Arguments:

    - `url`: the server's URL, or the URLs of several servers that each have all or part of the tensors. Each byte is sent once.
    - `module`: a `torch.nn.Module`, or a mapping from names to PyTorch tensors, NumPy or CuPy arrays, or `DeviceBuffer`s. The tensors are filled in
      place. None creates new tensors, which the result contains.
    - `device`, `framework`: for new tensors, as in `penstock.safetensors.load_file()`.
    - `names`: the tensors to load. None loads all.
    - `shard`: for tensors that are parts of larger ones, as in `serve_weights()`. Not needed for a DTensor.
    - `strict`: True raises an error for names on one side only. With False, the result lists these names, as `load_state_dict()` does.
    - `newer_than`: a version. If the servers have nothing newer, nothing is loaded and `changed` is False.
    - `at_least`: a version. If the servers do not have it yet, the call waits for it.
    - `secret`: None uses the environment variable `PENSTOCK_WEIGHTS_SECRET`.
    - `channels`, `connections`: as for `penstock.pipe.connect()`.
    - `timeout`: seconds for the whole call, including any time between a server's `pause()` and `update()`.

    On a GPU, tensors are written after the work queued on the current stream. When the call returns, every stream sees the values.

    Raises: InvalidArgument with a list of all names, types, shapes and parts that do not match, before anything is written; the errors of
    `penstock.pipe.connect()` (NotFound if no process is listening); TimedOut; Closed if a server exits; Error with code "io" if the peer is not a
    weights server. If tensors may already have been written, the message names them; load again before you use them.
    """
    receiver = WeightsReceiver(
        url,
        module,
        device=device,
        framework=framework,
        names=names,
        shard=shard,
        strict=strict,
        secret=secret,
        channels=channels,
        connections=connections,
    )
    with receiver:
        return receiver.load(newer_than=newer_than, at_least=at_least, timeout=timeout)


class WeightsReceiver(Closable):
    """Loads weights repeatedly over persistent connections, for a process that follows a trainer. Only one thread at a time may use it.

    The arguments are the same as for `load_weights()`. The receiver connects on first use, and reconnects after an error.

    With `relay`, other processes can load from this one, at `relay_url`, while it is still receiving: pass a URL, or True for a unix socket.
    Receivers can thus form a chain in which the first server sends the weights only once. After `load()`, your module must not change until the next
    `load()`, which first waits for processes that are still reading it. Errors are forwarded to them.
    """

    @renamed(parts="shard")
    def __init__(
        self,
        url: str | Sequence[str],
        module: Any = None,
        *,
        device: Any = None,
        framework: str | None = None,
        names: Iterable[str] | None = None,
        shard: Parts | None = None,
        strict: bool = True,
        secret: str | bytes | None = None,
        channels: Sequence[str] = (),
        connections: int = 4,
        relay: str | bool = False,
    ) -> None:
        if module is not None and (device is not None or framework is not None):
            raise InvalidArgument("device= and framework= apply only to new tensors, but module already has tensors", code="invalid_argument")
        self._lines = [Line(each, secret_of(secret), list(channels), connections) for each in _urls(url)]
        self._module, self._shard, self._names, self._strict = module, shard, names_of(names), strict
        self._device, self._framework = device, framework
        self._holder = Holder("module", None, shard)
        self._last: tuple[list[str], list[Held], Plan] | None = None
        if relay and module is None:
            raise InvalidArgument("a relay requires a module or mapping whose tensors it can serve", code="invalid_argument")
        url_here = "unix:" if relay is True else relay
        self._relay = Relay(url_here, channels, secret_of(secret), connections) if url_here else None

    @property
    def relay_url(self) -> str | None:
        """The URL at which other processes can load the received weights, or None."""
        return None if self._relay is None else self._relay.url

    def load(self, *, newer_than: int | None = None, at_least: int = 0, timeout: float = 300.0) -> LoadedWeights:
        """Loads one version. The arguments, result and errors are the same as for `load_weights()`."""
        deadline = until(timeout)
        with self._version(newer_than, at_least, deadline) as (version, changed):
            if not changed:
                return LoadedWeights(version, False, [], [], {})
            if self._module is None:
                return LoadedWeights(version, True, [], [], self._made(self._names, version, deadline))
            plan = self._plan()
            self._fill(plan, version, deadline, self._relay)
            return LoadedWeights(version, True, plan.missing, plan.unexpected, {})

    def load_in_groups(
        self, most_bytes: int, *, newer_than: int | None = None, at_least: int = 0, timeout: float = 300.0
    ) -> Iterator[dict[str, Any]]:
        """Yields dicts of new tensors from one version, for weights that do not fit in memory twice.

        A group has at most `most_bytes` bytes, or is a single larger tensor. The servers keep the version until the iterator ends or is closed. The
        other arguments and the errors are the same as for `load_weights()`.
        """
        if self._module is not None:
            raise InvalidArgument("load_in_groups() creates new tensors: create the receiver without a module", code="invalid_argument")
        return self._in_groups(most_bytes, newer_than, at_least, until(timeout))

    def _in_groups(self, most_bytes: int, newer_than: int | None, at_least: int, deadline: float) -> Iterator[dict[str, Any]]:
        with self._version(newer_than, at_least, deadline) as (version, changed):
            for names in self._groups(most_bytes) if changed else ():
                yield self._made(names, version, deadline)

    def explain(self) -> list[pipe.PipePlan]:
        """Returns, for each connection, which channels transferred tensors, and why others did not."""
        return [each.explain() for each in self._lines]

    def close(self) -> None:
        """Closes the connections and the relay."""
        self._hang_up()
        if self._relay is not None:
            self._relay.close()

    def _hang_up(self) -> None:
        for each in self._lines:
            each.close()

    @contextlib.contextmanager
    def _version(self, newer_than: int | None, at_least: int, deadline: float) -> Iterator[tuple[int, bool]]:
        """Yields the version that all servers keep during the block, and whether it is new. An error closes the connections, which stops all
        transfers.
        """
        try:
            yield self._agreed(-1 if newer_than is None else newer_than, at_least, deadline)
            for each in self._lines:
                each.done()
        except BaseException:
            self._hang_up()
            raise

    def _agreed(self, newer_than: int, at_least: int, deadline: float) -> tuple[int, bool]:
        for name, value in (("newer_than", newer_than), ("at_least", at_least)):
            if not isinstance(value, int) or not -1 <= value < 1 << 53:
                raise InvalidArgument(f"{name} is {value!r}, which is not a version number", code="invalid_argument")
        for each in self._lines:
            each.version = None
        while True:
            behind = [each for each in self._lines if each.version is None or each.version < at_least]
            for each in behind:
                each.ask_catalog(at_least, newer_than, deadline)
            for each in behind:
                each.take_catalog(at_least, newer_than, deadline)
            versions = [each.version for each in self._lines if each.version is not None]
            if max(versions) <= newer_than:
                return min(versions), False
            if min(versions) == max(versions):
                return versions[0], True
            at_least = max(versions)

    def _catalogs(self) -> list[Catalog]:
        return [each.catalog for each in self._lines if each.catalog is not None]

    def _plan(self) -> Plan:
        """Returns the plan for the module. Reuses the last plan if nothing has changed."""
        held = self._holder.held(self._module)
        digests = [each.digest for each in self._lines]
        if self._last is None or self._last[0] != digests or self._last[1] is not held:
            wanted = [each for each in held if self._names is None or each.name in self._names]
            catalogs = self._catalogs()
            self._check_names({each.name for each in held}, catalogs)
            self._last = digests, held, planned(wanted, catalogs, self._names, self._strict, type(self._module).__name__)
        return self._last[2]

    def _made(self, names: set[str] | None, version: int, deadline: float) -> dict[str, Any]:
        """Loads new tensors, and keeps no reference to them."""
        catalogs = self._catalogs()
        self._check_names(set(), catalogs)
        parts = {name: part_of(name, part) for name, part in (self._shard or {}).items()}
        made, held = made_for(catalogs, framework_on(self._framework, self._device), names, parts)
        self._fill(planned(held, catalogs, names, True, "arrays that were created for them"), version, deadline)
        for each in self._lines:
            each.asked = None  # because it refers to the new tensors
        return made

    def _check_names(self, here: set[str], catalogs: list[Catalog]) -> None:
        for argument, names in (("names", self._names), ("shard", self._shard)):
            absent = set(names or ()) - here
            for each in catalogs if absent else ():
                absent -= {row.name for row in each.rows}
            if absent:
                raise InvalidArgument(f"{argument} contains {listed(sorted(absent))}, which neither side has", code="invalid_argument")

    def _groups(self, most_bytes: int) -> Iterator[set[str]]:
        parts = {name: part_of(name, part)[1].shape for name, part in (self._shard or {}).items()}
        sizes = {row.name: math.prod(parts.get(row.name, row.whole)) * row.itemsize for each in self._catalogs() for row in each.rows}
        wanted = [name for name in sizes if self._names is None or name in self._names]
        return map(set, in_batches(wanted, most_bytes, sizes.__getitem__))

    def _fill(self, plan: Plan, version: int, deadline: float, relay: Relay | None = None) -> None:
        landed = None if relay is None else relay.begin(version, plan.held, [each.local for each in plan.landings], deadline)
        try:
            self._receive(plan, version, deadline, landed)
        except BaseException as error:
            if relay is not None and landed is not None:
                relay.fail(landed, error)
            raise

    def _receive(self, plan: Plan, version: int, deadline: float, landed: Landed | None) -> None:
        streams = streams_of(plan.places)
        tracks = [Track(line, batches, streams) for line, batches in zip(self._lines, plan.batches) if batches]
        try:
            for each in tracks:
                each.begin(deadline)
            while under_way := [each for each in tracks if each.is_under_way]:
                _wait_for_one([each.head for each in under_way], deadline)
                for each in under_way:
                    come = each.go_on(deadline)
                    if landed is not None:
                        _settle_apart(come, plan)
                        landed.add(landing.local for batch in come for landing in batch.landings)
            for each in tracks:
                each.end(version, deadline)
        except BaseException as error:
            reason = _reason_of(error, tracks)
            self._hang_up()
            for each in tracks:
                each.stop()
            if isinstance(reason, Error):
                raise remade(reason, f"{reason}; {_touched(plan, tracks)}") from None
            raise
        finally:
            have_changed(plan.filled)
        _settle_apart([batch for of in plan.batches for batch in of], plan)


def _urls(url: str | Sequence[str]) -> list[str]:
    urls = [url] if isinstance(url, str) else list(url)
    if not urls or not all(isinstance(each, str) for each in urls):
        raise TypeError("url must be a str, or a non-empty sequence of str")
    return urls


def _settle_apart(batches: list[Batch], plan: Plan) -> None:
    """Waits until tensors that were received in temporary buffers have been copied to their targets."""
    if any(batch.room for batch in batches):
        for mark in marks_of(plan.places):
            mark.synchronize()


def _wait_for_one(futures: list[_native.Future[Any]], deadline: float) -> None:
    if not wait(futures, left_until(deadline), FIRST_COMPLETED).done:
        raise TimedOut("the weights did not arrive in time", code="timed_out")


def _reason_of(error: BaseException, tracks: list[Track]) -> BaseException:
    """Returns the error that a server sent, if there is one, else the given error."""
    return next((said for said in (each.failure() for each in tracks if each.broken_by is error) if said is not None), error)


def _touched(plan: Plan, tracks: list[Track]) -> str:
    """Describes which tensors have the new values after an error."""
    done = [each for track in tracks for batch in track.done for each in batch.landings]
    begun = {each.name for track in tracks for batch in (*track.done, *track.failed) for each in batch.landings}
    left = {each.name for track in tracks for batch in (*track.failed, *track.left) for each in batch.landings}
    new = {each.name for each in done} - left
    torn = sorted(begun - new)
    if not begun:
        return "no tensor has been written"
    others = f", and {listed(torn, 5)} may be partially written" if torn else ""
    return f"{len(new)} of {len({each.name for each in plan.landings})} tensors have the new values{others}; the others are unchanged"


LoadedWeights.__module__ = WeightsReceiver.__module__ = "penstock.weights"  # their public home, which pickles name
