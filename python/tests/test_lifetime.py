"""Everything may be dropped at any time, in any order, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import _native

NBYTES = 3_000_001


@pytest.fixture
def path(tmp_path: Path, pattern: Any) -> Path:
    name = tmp_path / "file"
    name.write_bytes(pattern(NBYTES))
    return name


def settled() -> None:
    gc.collect()
    _native._settle()


@pytest.mark.parametrize("order", list(itertools.permutations(["future", "file", "buffer"])), ids="-".join)
def test_the_three_may_be_dropped_in_any_order(memory: Any, path: Path, order: tuple[str, ...]) -> None:
    before = (_native._under_way(), _native._held_memories())
    for _ in range(20):
        held: dict[str, Any] = {"file": penstock.open(path), "buffer": memory.empty(NBYTES)}
        held["future"] = held["file"].pread(held["buffer"])
        for name in order:
            del held[name]
    settled()
    assert (_native._under_way(), _native._held_memories()) == before


def test_a_dropped_write_is_done(memory: Any, tmp_path: Path, pattern: Any) -> None:
    path = tmp_path / "written"
    penstock.open(path, "w").pwrite(memory.of(pattern(NBYTES)))
    settled()
    assert path.read_bytes() == pattern(NBYTES)


def test_a_request_keeps_its_buffer_until_it_has_ended(path: Path) -> None:
    class Array(np.ndarray[Any, Any]):
        pass

    target = np.zeros(NBYTES, np.uint8).view(Array)
    gone = weakref.ref(target)
    with penstock.open(path) as file:
        future = file.pread(target)
        del target
        assert future.result() == NBYTES
        assert gone() is None  # with the result, not with the future
        target = np.zeros(NBYTES, np.uint8).view(Array)
        gone = weakref.ref(target)
        file.pread(target)
        del target
        settled()
        assert gone() is None


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "dropped"])
def test_a_request_that_nobody_waits_for_lets_go(path: Path, is_kept: bool) -> None:
    before = (_native._under_way(), _native._held_memories())
    with penstock.open(path) as file:
        futures = [file.pread(bytearray(1000), i) for i in range(50)]
        while not all(future.done() for future in futures):
            time.sleep(0.001)
        if not is_kept:
            del futures
            assert _native._held_memories() == before[1]
        until = time.monotonic() + 60
        while _native._held_memories() != before[1] and time.monotonic() < until:
            time.sleep(0.001)
        assert _native._held_memories() == before[1]
        if is_kept:
            assert [future.result() for future in futures] == [1000] * 50
            del futures
        settled()
        assert _native._under_way() == before[0]


def test_requests_whose_threads_stop_waiting_are_reported(path: Path) -> None:
    """A thread that waits for a request reports it. One that gives up leaves that to the module's thread."""
    before = (_native._under_way(), _native._held_memories())
    with penstock.open(path) as file:
        for timeout in (0, 1e-6, 1e-5, 1e-4):
            futures = [file.pread(bytearray(NBYTES)) for _ in range(20)]
            for future in futures:
                with contextlib.suppress(TimeoutError):
                    future.result(timeout)
            del future
            until = time.monotonic() + 60
            while _native._held_memories() != before[1] and time.monotonic() < until:
                time.sleep(0.001)
            assert _native._held_memories() == before[1]
            del futures
        settled()
        assert _native._under_way() == before[0]


def test_a_request_lets_go_when_it_fails(path: Path) -> None:
    class Owner:
        pass

    owner = Owner()
    gone = weakref.ref(owner)
    freed = penstock.device("host:0").empty(1 << 20)
    pointer = penstock.Pointer(freed.ptr, 1 << 20, owner)
    del freed, owner
    with penstock.open(path) as file:
        future = file.pread(pointer)
        del pointer
        assert isinstance(future.exception(), penstock.Error)
        assert gone() is None


def test_a_refused_request_holds_nothing(path: Path) -> None:
    target = np.zeros(10, np.uint8)
    count = sys.getrefcount(target)
    with penstock.open(path) as file:
        for _ in range(10):
            with pytest.raises(ValueError):
                file.pread(target, 0, 11)
            with pytest.raises(ValueError):
                file.read_into(target, 0, 11)
            with pytest.raises(ValueError):
                file.pread_many([(target, 0), (target, 0, 11)])
            with pytest.raises(ValueError):
                file.read_on_stream(target, None, 0, 11)
    gc.collect()
    assert sys.getrefcount(target) == count


def test_blocking_calls_hold_nothing(memory: Any, path: Path) -> None:
    target = memory.empty(5000)
    count = sys.getrefcount(target)
    with penstock.open(path, "r+") as file:
        for _ in range(50):
            file.read_into(target)
            file.write_from(target)
            file.read_many([(target, 0)])
            file.read_ranges(target, [0], [10])
            file.pread(target).result()
            file.pread_many([(target, 0)]).result()
    assert sys.getrefcount(target) == count


def test_a_file_lives_as_long_as_its_requests(path: Path, pattern: Any) -> None:
    target = bytearray(NBYTES)
    future = penstock.open(path).pread(target)
    assert future.result() == NBYTES
    assert target == pattern(NBYTES)


def test_a_closed_file_has_no_request_under_way(memory: Any, path: Path, pattern: Any) -> None:
    targets = [memory.empty(NBYTES) for _ in range(5)]
    file = penstock.open(path)
    futures = [file.pread(target) for target in targets]
    file.close()
    assert all(memory.bytes(target) == pattern(NBYTES) for target in targets)
    assert [future.result() for future in futures] == [NBYTES] * 5


def test_dropped_files_are_closed(path: Path) -> None:
    def count() -> int:
        names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum(os.path.exists(name) and os.path.samefile(name, path) for name in names)

    assert count() == 0
    files = [penstock.open(path) for _ in range(10)]
    for file in files:
        file.pread(bytearray(10))
    assert count() >= 10
    del files, file
    settled()
    assert count() == 0


def test_a_callback_may_hold_its_future(path: Path) -> None:
    class Holder:
        future: Any = None

        def __call__(self, _: Any) -> None:
            pass

    holder = Holder()
    gone = weakref.ref(holder)
    with penstock.open(path) as file:
        holder.future = file.pread(bytearray(1000))
        holder.future.add_done_callback(holder)
    del holder
    settled()
    assert gone() is None


def test_a_pointer_in_a_ring_is_collected() -> None:
    class Owner:
        pointer: Any = None

    owner = Owner()
    gone = weakref.ref(owner)
    owner.pointer = penstock.Pointer(0, 0, owner)
    del owner
    gc.collect()
    assert gone() is None


def test_requests_on_streams_may_be_dropped(device_memory: Any, path: Path) -> None:
    before = _native._held_memories()
    for _ in range(20):
        penstock.open(path).read_on_stream(device_memory.of(bytes(100_000)), None)
    last = penstock.open(path).read_on_stream(device_memory.of(bytes(10)), None)
    last.wait(60)
    del last
    for _ in range(1000):
        if _native._held_memories() == before:
            break
        settled()
        penstock.open(path).read_on_stream(device_memory.of(bytes(10)), None).wait(60)
    assert _native._held_memories() <= before + 1


def test_dropping_at_random_leaves_nothing(memory: Any, path: Path, pattern: Any) -> None:
    seed = random.randrange(1 << 32)
    numbers = random.Random(seed)
    before = (_native._under_way(), _native._held_memories())
    held: list[Any] = []
    for _ in range(400):
        file = penstock.open(path)
        buffer = memory.empty(numbers.choice([10, 5_000, 200_000]))
        future = numbers.choice([lambda: file.pread(buffer), lambda: file.pread_many([(buffer, 0), (buffer, 7)])])()  # noqa: F821
        if numbers.random() < 0.3:
            future.cancel()
        if numbers.random() < 0.3:
            future.add_done_callback(held.append)
        held += numbers.sample([file, buffer, future], numbers.randrange(4))
        if numbers.random() < 0.3:
            numbers.shuffle(held)
            del held[: len(held) // 2]
    del file, buffer, future
    held.clear()
    settled()
    held.clear()
    settled()
    assert (_native._under_way(), _native._held_memories()) == before, f"seed {seed}"


def test_threads_may_drop_what_others_hold(memory: Any, path: Path) -> None:
    before = (_native._under_way(), _native._held_memories())

    def work() -> None:
        for _ in range(50):
            future = penstock.open(path).pread(memory.empty(20_000))
            shared.append(future)
            if len(shared) > 10:
                del shared[:5]

    shared: list[Any] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.clear()
    settled()
    assert (_native._under_way(), _native._held_memories()) == before


# --- the interpreter's end: in processes of their own, which nanobind's check for leaks watches too


def run(code: str, *arguments: Any, returncode: int = 0) -> str:
    script = "import sys, os, threading, atexit, asyncio, gc\nimport numpy as np\nimport penstock\n" + textwrap.dedent(code)
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stderr) == (returncode, "")
    return ended.stdout


def test_nothing_leaks_at_the_end(path: Path) -> None:
    code = """
        file = penstock.open(sys.argv[1])
        device = penstock.device("host:0").empty(1000)
        array = np.zeros(1000, np.uint8)
        file.read_into(array)
        futures = [file.pread(device), file.pread_many([(array, 0)])]
        futures[0].add_done_callback(print)
        result = file.read_on_stream(device, None)
        result.wait()
        try:
            file.read_into(b"abc")
        except penstock.Error as error:
            kept = error
        async def read():
            return await file.pread(array)
        asyncio.run(read())
        plan = file.explain()
        pointer = penstock.Pointer(0, 0, owner=file)
    """
    assert "penstock.Future" in run(code, path)


def test_what_is_under_way_at_the_end_is_done(tmp_path: Path) -> None:
    path = tmp_path / "written"
    code = """
        file = penstock.open(sys.argv[1], "w")
        source = penstock.device("host:0").empty(50_000_000)
        source.copy_from(b"\\x5a" * 50_000_000)
        future = file.pwrite(source)
        called = future.add_done_callback(lambda future: print(future.result()))
    """
    assert run(code, path) == "50000000\n"
    assert path.read_bytes() == b"\x5a" * 50_000_000


@pytest.mark.parametrize("kept", ["", "globals().update(kept=(files, buffers, futures))"])
def test_dropping_everything_at_the_end_is_safe(path: Path, kept: str) -> None:
    code = f"""
        def begin():
            files = [penstock.open(sys.argv[1]) for _ in range(20)]
            buffers = [np.zeros({NBYTES}, np.uint8) for _ in files] + [penstock.device("host:0").empty({NBYTES}) for _ in files]
            futures = [file.pread(buffer) for file, buffer in zip(files * 2, buffers)]
            {kept}
        begin()
    """
    for _ in range(3):
        run(code, path)


def test_requests_after_the_end_has_begun_are_done(path: Path) -> None:
    code = """
        import atexit
        from penstock import _native
        def last():
            target = bytearray(1000)
            file = penstock.open(sys.argv[1])
            future = file.pread(target)
            future.add_done_callback(lambda future: print("called", future.result()))
            print(future.result(), file.read_into(target), file.pread_many([(target, 0)]).result())
        atexit.unregister(_native._finish)
        atexit.register(last)
        atexit.register(_native._finish)  # runs before last()
    """
    assert run(code, path) == "called 1000\n1000 1000 [1000]\n"


def test_an_end_by_an_exception_or_by_exit_is_clean(path: Path) -> None:
    begin = "file = penstock.open(sys.argv[1]); futures = [file.pread(np.zeros(100_000, np.uint8)) for _ in range(50)]\n"
    run(begin + "sys.exit(3)", path, returncode=3)
    run(begin + "os._exit(4)", path, returncode=4)


def test_a_daemon_thread_at_work_does_not_spoil_the_end(path: Path) -> None:
    code = """
        def work():
            file = penstock.open(sys.argv[1])
            target = bytearray(100_000)
            while True:
                file.pread(target).result()
                started.set()
        started = threading.Event()
        threading.Thread(target=work, daemon=True).start()
        started.wait()
    """
    script = "import sys, threading\nimport penstock\n" + textwrap.dedent(code)
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr  # what the thread holds when it is stopped, leaks


def test_a_loop_of_requests_does_not_grow(memory: Any, path: Path) -> None:
    async def read(file: penstock.File, target: Any) -> None:
        await asyncio.gather(*(file.pread(target, i) for i in range(10)))

    def rounds(count: int) -> None:
        with penstock.open(path) as file:
            target = memory.empty(5000)
            for _ in range(count):
                file.pread(target).result()
                file.read_many([(target, 0)] * 10)
                asyncio.run(read(file, target))

    def objects() -> int:
        settled()
        return len(gc.get_objects())

    rounds(5)
    before = objects()
    rounds(50)
    assert objects() <= before + 20


BUFFERS_OF_A_PROGRAM = """
import sys, numpy, penstock
file = penstock.open(sys.argv[1])  # which lives as long as the module, and the module as long as its classes
device_buffer = penstock.device("host:0").empty(10)
class Array(numpy.ndarray): pass
class Exporter:
    def __init__(self): self.content = numpy.zeros(1000, "u1")
    @property
    def __array_interface__(self): return self.content.__array_interface__
class Unknown: pass
for buffer in numpy.zeros(1000, "u1").view(Array), Exporter(), Unknown(), type("Made", (Array,), {})(1000):
    try: file.read_into(buffer)
    except (TypeError, penstock.Error): pass
"""


def test_classes_of_the_program_that_were_buffers_leave_nothing_to_tell_at_the_end(path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", BUFFERS_OF_A_PROGRAM, str(path)], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
