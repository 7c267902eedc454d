"""penstock.kvikio.statistics: what a monitor counts."""

from __future__ import annotations

import copy
import gc
import json
import pathlib
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock import kvikio
from penstock.kvikio import cufile

SIZE = 100_000


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    return path


def test_each_call_is_an_operation(file: pathlib.Path, memory: Any) -> None:
    buffer = memory.empty(SIZE)
    with kvikio.CuFile(file, "r+") as opened, kvikio.SummaryMonitor() as monitor:
        opened.read(buffer)
        opened.write(buffer, size=10)
        opened.pread(buffer, file_offset=SIZE - 7).get()
        opened.pwrite(buffer, size=4096).get()
        seen = monitor.get()
    assert (seen.num_ops, seen.num_reads, seen.num_writes, seen.num_errors) == (4, 2, 2, 0)
    assert (seen.bytes_requested, seen.bytes_read, seen.bytes_written) == (2 * SIZE + 4106, SIZE + 7, 4106)
    assert seen.bytes_transferred == seen.bytes_read + seen.bytes_written
    assert set(seen.by_backend) == {"POSIX", "CUFILE", "MMAP", "REMOTE_HTTP", "REMOTE_HDFS"}
    assert seen.by_backend["POSIX"]["num_ops"] == 4
    assert 0 < seen.busy_ns <= seen.wall_ns and seen.total_duration_ns <= seen.busy_ns
    assert seen.mean_duration_ns == seen.total_duration_ns // 4
    assert 0 < seen.busy_fraction <= 1 and seen.busy_bytes_per_sec > 0


def test_what_goes_gpu_direct_is_cufiles(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = penstock.device("host:0").empty(1 << 20)
    monkeypatch.setattr(cufile, "direct_problem", lambda file, write: None)
    monkeypatch.setattr(penstock, "gpu_direct_status", lambda: None)

    def carriers(act: Callable[[kvikio.CuFile], object]) -> set[str]:
        with kvikio.CuFile(file, "r+") as opened, kvikio.SummaryMonitor() as monitor:
            act(opened)
            return {name for name, of in monitor.get().by_backend.items() if of["num_ops"] > 0}

    assert carriers(lambda opened: opened.read(device)) == {"CUFILE"}
    assert carriers(lambda opened: opened.pwrite(device).get()) == {"CUFILE"}
    assert carriers(lambda opened: opened.read(bytearray(1 << 20))) == {"POSIX"}
    assert carriers(lambda opened: opened.read(device, size=128 << 10)) == {"POSIX"}  # may come from the page cache
    assert carriers(lambda opened: opened.raw_read_async(device, 0).check_bytes_done()) == {"POSIX"}
    with kvikio.defaults.set("gds_threshold", 2 << 20):
        assert carriers(lambda opened: opened.read(device)) == {"POSIX"}
        assert carriers(lambda opened: opened.raw_read(device)) == {"CUFILE"}  # takes no threshold
    with kvikio.defaults.set("compat_mode", kvikio.CompatMode.ON):
        assert carriers(lambda opened: opened.read(device)) == {"POSIX"}


def test_a_threshold_keeps_smaller_requests_off_the_direct_path(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device, host = penstock.device("host:0").empty(1 << 20), bytearray(1 << 20)
    for direct, threshold, buffer, size, path in (
        (True, 1 << 20, device, None, None),
        (True, (1 << 20) + 1, device, None, "staged"),
        (True, 1 << 20, device, 200_000, "staged"),
        (True, 1 << 20, device, 128 << 10, "staged"),
        (True, 16 << 10, device, 4096, "staged"),
        (True, 16 << 10, device, (16 << 10) - 1, "staged"),
        (True, 16 << 10, device, 16 << 10, None),
        (True, 16 << 10, device, None, None),
        (True, 0, device, 0, None),
        (True, 0, device, None, None),
        (True, 1 << 20, host, 200_000, None),
        (True, 16 << 10, host, 4096, None),
        (False, 1 << 20, device, 200_000, None),  # nothing is GPU-direct
    ):
        monkeypatch.setattr(penstock, "gpu_direct_status", lambda: None if direct else "no nvidia-fs")
        assert cufile._forced_path(buffer, size, threshold) == path


def test_operations_on_streams_end_when_they_are_checked(file: pathlib.Path, device_memory: Any) -> None:
    buffer = device_memory.empty(4096)
    monitor = kvikio.SummaryMonitor()
    with kvikio.CuFile(file, "r+") as opened:
        read = opened.raw_read_async(buffer, 0)
        assert monitor.get().num_ops == 0
        assert read.check_bytes_done() == 4096 == read.check_bytes_done()
        opened.raw_write(buffer)
    seen = monitor.get()
    assert (seen.num_ops, seen.bytes_read, seen.bytes_written, seen.by_backend["POSIX"]["num_ops"]) == (2, 4096, 4096, 2)


def test_reads_of_a_mapped_file_are_its_own(file: pathlib.Path) -> None:
    with kvikio.SummaryMonitor() as monitor:
        kvikio.Mmap(file).read(bytearray(SIZE))
    assert monitor.get().by_backend["MMAP"]["bytes_transferred"] == SIZE


def test_failures_are_counted_once(file: pathlib.Path) -> None:
    monitor = kvikio.SummaryMonitor()
    with kvikio.CuFile(file, "r") as opened:
        with pytest.raises(RuntimeError):
            opened.write(bytes(10))
        with pytest.raises(RuntimeError):
            opened.pwrite(bytes(10)).get()
    seen = monitor.get()
    assert (seen.num_ops, seen.num_errors, seen.bytes_transferred, seen.bytes_requested) == (2, 2, 0, 20)


def test_nothing_is_counted_without_a_monitor_or_after_its_end(file: pathlib.Path) -> None:
    with kvikio.CuFile(file) as opened:
        with kvikio.SummaryMonitor() as monitor:
            opened.read(bytearray(8))
        first = monitor.get()
        opened.read(bytearray(8))
        monitor.stop()
        assert monitor.get() == first and first.num_ops == 1
        late = kvikio.SummaryMonitor()
        future = opened.pread(bytearray(8))
        late.stop()
        future.get()
    assert late.get().num_ops in (0, 1) and late.get() == late.get()


def test_monitors_are_independent_and_may_begin_anew(file: pathlib.Path) -> None:
    outer = kvikio.SummaryMonitor()
    with kvikio.CuFile(file) as opened:
        opened.read(bytearray(8))
        inner = kvikio.SummaryMonitor()
        opened.read(bytearray(8))
    before = outer.get()
    assert (before.num_ops, inner.get().num_ops) == (2, 1)
    outer.reset()
    assert outer.get().num_ops == 0 and outer.get().start_unix_ns > before.start_unix_ns
    assert inner.get().num_ops == 1
    for wrong in (before, inner.get()):
        with pytest.raises(ValueError, match="earlier summary"):
            outer.since(wrong)


def test_intervals_add_up(file: pathlib.Path) -> None:
    monitor = kvikio.SummaryMonitor()
    first = baseline = monitor.get()
    intervals = []
    with kvikio.CuFile(file) as opened:
        for _ in range(3):
            opened.read(bytearray(100))
            now = monitor.get()
            intervals.append(now.since(baseline))
            baseline = now
    assert [each.num_ops for each in intervals] == [1, 1, 1]
    assert sum(each.bytes_read for each in intervals) == 300
    assert sum(each.busy_ns for each in intervals) == baseline.busy_ns - first.busy_ns
    assert [each.start_unix_ns for each in intervals[1:]] == [each.end_unix_ns for each in intervals[:-1]]
    with pytest.raises(ValueError, match="earlier summary"):
        baseline.since(intervals[0])


def test_summaries_survive_as_bytes_and_words(file: pathlib.Path) -> None:
    monitor = kvikio.SummaryMonitor()
    kvikio.CuFile(file).read(bytearray(8))
    seen = monitor.get()
    data = seen.serialize()
    again = kvikio.Summary.deserialize(data)
    assert again == seen == pickle.loads(pickle.dumps(seen)) == copy.deepcopy(seen)
    assert monitor.since(again).num_ops == 0
    for wrong in (data[:-1], b"other", data[:19] + b"{}"):
        with pytest.raises(ValueError, match="not a serialized Summary"):
            kvikio.Summary.deserialize(wrong)
    told = json.loads(seen.to_json())
    assert told["num_ops"] == 1 and abs(time.time_ns() - told["start_unix_ns"]) < 60e9 and "_span" not in told
    assert "KvikIO I/O summary" in str(seen) and "1 reads" in seen.report() and "num_ops=1" in repr(seen)


def test_a_monitor_that_is_dropped_counts_no_more(file: pathlib.Path) -> None:
    monitors = kvikio.statistics._monitors
    gc.collect()
    before = len(monitors)
    monitor = kvikio.SummaryMonitor()
    assert len(monitors) == before + 1
    del monitor
    gc.collect()
    assert len(monitors) == before
