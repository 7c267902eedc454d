"""KvikIO's operation totals, counted while a SummaryMonitor exists. penstock.stats() has more totals and always counts.

Each call to a CuFile or Mmap method counts as one operation. A stream-ordered operation ends when check_bytes_done() is called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import time
import weakref
from typing import Any, TypedDict

from penstock._core.forks import forkable_lock

__all__ = ["Summary", "SummaryMonitor", "begin"]

# KvikIO's backends. CUFILE counts CuFile's GPU-direct operations, POSIX its other operations. The two remote backends stay zero.
_BACKENDS = ("POSIX", "CUFILE", "MMAP", "REMOTE_HTTP", "REMOTE_HDFS")
_MAGIC = b"penstock summary 1\n"


class BackendTotals(TypedDict):
    """One backend's totals."""

    num_ops: int
    bytes_transferred: int
    total_duration_ns: int
    num_errors: int


@dataclasses.dataclass(frozen=True)
class Summary:
    """Totals at a point in time or over an interval. Names that end in _ns are nanoseconds, and those in _unix_ns nanoseconds since 1970.

    - `busy_ns`: the time during which at least one operation was running.
    - `total_duration_ns`: the sum of the durations of all operations.
    - `busy_fraction`: busy_ns divided by wall_ns.
    """

    start_unix_ns: int
    end_unix_ns: int
    num_ops: int
    num_reads: int
    num_writes: int
    bytes_requested: int
    bytes_transferred: int
    bytes_read: int
    bytes_written: int
    num_errors: int
    busy_ns: int
    total_duration_ns: int
    by_backend: dict[str, BackendTotals]
    wall_ns: int
    busy_bytes_per_sec: float
    busy_fraction: float
    mean_duration_ns: int
    # The monitor and counting span of this summary; empty for an interval.
    _span: tuple[int, int] | None = dataclasses.field(default=None, repr=False)

    def since(self, previous: Summary) -> Summary:
        """Returns the totals between an earlier summary from the same monitor and this one. Raises ValueError if previous is not a Summary, or was
        created before a reset().
        """
        if self._span is None or previous._span != self._span or previous.end_unix_ns > self.end_unix_ns:
            raise ValueError("previous must be an earlier summary from the same monitor")
        totals = {name: getattr(self, name) - getattr(previous, name) for name in _COUNTED}
        backends = {
            name: {key: of[key] - previous.by_backend[name][key] for key in of} for name, of in self.by_backend.items()  # type: ignore[literal-required]
        }
        return _summary(previous.end_unix_ns, self.end_unix_ns, totals, backends, None)

    def to_json(self) -> str:
        """Returns all fields as a JSON object."""
        return json.dumps({name: value for name, value in dataclasses.asdict(self).items() if name != "_span"})

    def serialize(self) -> bytes:
        """Returns the summary as bytes for deserialize(). since() accepts the result of deserialize()."""
        return _MAGIC + json.dumps(dataclasses.asdict(self)).encode()

    @staticmethod
    def deserialize(data: bytes) -> Summary:
        """Returns the summary that serialize() encoded. Raises ValueError for any other bytes."""
        if not data.startswith(_MAGIC):
            raise ValueError("data is not a serialized Summary")
        try:
            told = json.loads(data[len(_MAGIC) :])
            span = told.pop("_span")
            return Summary(**told, _span=None if span is None else (span[0], span[1]))
        except (TypeError, KeyError, IndexError, ValueError) as error:
            raise ValueError(f"data is not a serialized Summary: {error}") from None

    def report(self) -> str:
        """Returns the summary as text, one line per total."""
        lines = [
            f"KvikIO I/O summary, by Penstock: {self.wall_ns / 1e9:.3f} s, busy {self.busy_fraction:.1%} of the time",
            f"  operations: {self.num_ops} ({self.num_reads} reads, {self.num_writes} writes, {self.num_errors} failed)",
            f"  bytes: {self.bytes_transferred} of {self.bytes_requested} ({self.bytes_read} read, {self.bytes_written} written)",
            f"  while busy: {self.busy_bytes_per_sec / 1e9:.3f} GB/s, {self.mean_duration_ns / 1e3:.1f} us per operation",
        ]
        for name, of in self.by_backend.items():
            lines.append(f"  {name}: {of['num_ops']} operations, {of['bytes_transferred']} bytes, {of['num_errors']} failed")
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.report()


_COUNTED = (
    "num_ops",
    "num_reads",
    "num_writes",
    "bytes_requested",
    "bytes_transferred",
    "bytes_read",
    "bytes_written",
    "num_errors",
    "busy_ns",
    "total_duration_ns",
)


def _summary(start: int, end: int, totals: dict[str, int], backends: Any, span: tuple[int, int] | None) -> Summary:
    wall, busy, ops = end - start, totals["busy_ns"], totals["num_ops"]
    return Summary(
        start,
        end,
        **totals,
        by_backend=backends,
        wall_ns=wall,
        busy_bytes_per_sec=totals["bytes_transferred"] * 1e9 / busy if busy else 0.0,
        busy_fraction=busy / wall if wall else 0.0,
        mean_duration_ns=totals["total_duration_ns"] // ops if ops else 0,
        _span=span,
    )


class SummaryMonitor:
    """Counts this process's penstock.kvikio operations, until stop(), the end of its with block, or its deletion. Thread-safe."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._anchor = time.time_ns() - time.monotonic_ns()
        self._span = 0
        self._span_of_work = 0  # changes with each reset() and stop(), so that operations from earlier spans are recognized when they end
        self._under_way = 0
        self._busy_since = 0
        self._stopped: int | None = None
        with _lock:
            self._clear(time.monotonic_ns())
            self._entry = weakref.ref(self, _forget)
            _monitors.append(self._entry)

    def get(self) -> Summary:
        """Returns the totals so far."""
        with _lock:
            now = time.monotonic_ns() if self._stopped is None else self._stopped
            totals = dict(self._totals)
            if self._under_way:
                totals["busy_ns"] += now - self._busy_since
            backends = {name: dict(of) for name, of in self._backends.items()}
            start, end = self._start + self._anchor, now + self._anchor
            return _summary(start, end, totals, backends, (self._number, self._span))

    def reset(self) -> None:
        """Sets the totals to zero."""
        with _lock:
            self._span += 1
            self._clear(max(time.monotonic_ns(), self._start + 1))

    def since(self, previous: Summary) -> Summary:
        """Returns get().since(previous)."""
        return self.get().since(previous)

    def stop(self) -> None:
        """Stops counting and ends the interval. Does nothing if already stopped."""
        with _lock:
            if self._entry in _monitors:
                _monitors.remove(self._entry)
                self._stopped = time.monotonic_ns()
                if self._under_way:
                    self._totals["busy_ns"] += self._stopped - self._busy_since
                    self._under_way = 0
                self._span_of_work += 1

    def __enter__(self) -> SummaryMonitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    # Call these with _lock held.

    def _clear(self, now: int) -> None:
        self._start = now
        self._totals = dict.fromkeys(_COUNTED, 0)
        self._backends = {name: BackendTotals(num_ops=0, bytes_transferred=0, total_duration_ns=0, num_errors=0) for name in _BACKENDS}
        self._under_way = 0
        self._busy_since = 0
        self._span_of_work += 1

    def _begun(self, now: int) -> int:
        if self._under_way == 0:
            self._busy_since = now
        self._under_way += 1
        return self._span_of_work

    def _ended(self, now: int, done: _Operation, moved: int, failed: bool, span: int) -> None:
        if span != self._span_of_work:
            return  # it started before a reset(), or ended after stop()
        self._under_way -= 1
        if self._under_way == 0:
            self._totals["busy_ns"] += now - self._busy_since
        took = now - done.start
        direction = ("num_writes", "bytes_written") if done.is_write else ("num_reads", "bytes_read")
        of = self._backends[done.backend]
        for name, value in (("num_ops", 1), (direction[0], 1), ("bytes_requested", done.requested), ("bytes_transferred", moved)):
            self._totals[name] += value
        for name, value in ((direction[1], moved), ("num_errors", failed), ("total_duration_ns", took)):
            self._totals[name] += value
        of["num_ops"] += 1
        of["bytes_transferred"] += moved
        of["total_duration_ns"] += took
        of["num_errors"] += failed


class _Operation:
    """A running operation."""

    def __init__(self, backend: str, is_write: bool, requested: int) -> None:
        self.backend = backend
        self.is_write = is_write
        self.requested = requested
        with _lock:
            self.start = time.monotonic_ns()
            counting = [entry() for entry in tuple(_monitors)]
            self._told = [(each, each._begun(self.start)) for each in counting if each is not None]

    def end(self, moved: int, failed: bool = False) -> None:
        """Ends the operation. A second call does nothing."""
        with _lock:
            now = time.monotonic_ns()
            told, self._told = self._told, []
            for each, span in told:
                each._ended(now, self, moved, failed, span)


def begin(backend: str, is_write: bool, requested: int) -> _Operation | None:
    """Starts an operation, or returns None if there is no monitor. Called by penstock.kvikio."""
    return _Operation(backend, is_write, requested) if _monitors else None


_lock = forkable_lock()
_monitors: list[weakref.ref[SummaryMonitor]] = []


def _forget(entry: weakref.ref[SummaryMonitor]) -> None:
    """Removes a monitor that was garbage collected. Does not take the lock, because the thread that this interrupts may hold it."""
    with contextlib.suppress(ValueError):
        _monitors.remove(entry)


_numbers = itertools.count(1)


def __dir__() -> list[str]:
    return sorted(__all__)
