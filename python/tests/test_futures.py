"""Requests that do not block: results, callbacks, asyncio, waiting for several."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _native

NBYTES = 1_000_003


@pytest.fixture
def path(tmp_path: Path, pattern: Any) -> Path:
    name = tmp_path / "file"
    name.write_bytes(pattern(NBYTES))
    return name


def test_a_future_returns_the_count(memory: Any, path: Path, pattern: Any) -> None:
    target = memory.empty(NBYTES)
    with penstock.open(path) as file:
        future = file.pread(target)
        assert future.result() == NBYTES
        assert future.result(0) == NBYTES  # any number of times
        assert future.exception() is None
        assert future.done()
        assert not future.cancel()
        assert "ended" in repr(future)
        assert file.pread(target, NBYTES - 5, 100).result() == 5
    assert memory.bytes(target) == pattern(NBYTES)[-5:] + pattern(NBYTES)[5:]


def test_a_write_is_there_when_its_future_has_ended(memory: Any, path: Path, pattern: Any) -> None:
    with penstock.open(path, "r+") as file:
        futures = [file.pwrite(memory.of(pattern(50_000)[::-1]), i * 100_000, 40_000, 7) for i in range(10)]
        assert [future.result() for future in futures] == [40_000] * 10
    expected = bytearray(pattern(NBYTES))
    for i in range(10):
        expected[i * 100_000 : i * 100_000 + 40_000] = pattern(50_000)[::-1][7:40_007]
    assert path.read_bytes() == expected


def test_many_futures_at_once_each_bring_their_bytes(memory: Any, path: Path, pattern: Any) -> None:
    targets = [memory.empty(9_001) for _ in range(200)]
    with penstock.open(path) as file:
        futures = [file.pread(target, i * 4_999) for i, target in enumerate(targets)]
        counts = [future.result() for future in futures]
    for i, (target, count) in enumerate(zip(targets, counts)):
        expected = pattern(NBYTES)[i * 4_999 : i * 4_999 + 9_001]
        assert count == len(expected)
        assert memory.bytes(target)[:count] == expected


def test_thousands_of_small_futures_end_each_on_its_own(memory: Any, path: Path, pattern: Any) -> None:
    count, size = 3_000, 2_048
    expected = pattern(NBYTES)
    target = memory.empty(count * size)
    forced = "staged" if isinstance(target, penstock.DeviceBuffer) else "posix"
    called: list[Any] = []
    with penstock.open(path) as file:
        futures = []
        for i in range(count):
            # Some end early, some past the end; some are for a path of their own, which lies behind another door of the engine.
            offset = NBYTES - 100 if i % 100 == 1 else NBYTES + i if i % 100 == 2 else i * 331
            futures.append(file.pread(target, offset, size, i * size, path=forced if i % 100 == 3 else None))
            if i % 3 == 0:
                futures[-1].add_done_callback(called.append)
            if i % 100 == 4:
                with pytest.raises(penstock.Error):
                    file.pwrite(target, 0, size).result()
        dropped = [file.pread(memory.empty(size), i * 331) for i in range(100)]
        del dropped
        counts = [future.result() for future in futures]
        seen = memory.bytes(target)
        for i, done in enumerate(counts):
            assert done == (100 if i % 100 == 1 else 0 if i % 100 == 2 else size)
            begin = NBYTES - 100 if i % 100 == 1 else i * 331
            assert seen[i * size : i * size + done] == expected[begin : begin + done]
    _native._settle()
    assert len(called) == len(set(map(id, called))) == count // 3


def test_a_callback_is_called_once_with_its_future(memory: Any, path: Path) -> None:
    called = threading.Event()
    seen: list[Any] = []

    def callback(future: Any) -> None:
        seen.append((future, future.done(), future.result()))
        called.set()

    with penstock.open(path) as file:
        future = file.pread(memory.empty(NBYTES))
        future.add_done_callback(callback)
        assert called.wait(60)
        late: list[Any] = []
        future.result()
        future.add_done_callback(late.append)  # ended and told: at once
        assert late == [future]
    assert seen == [(future, True, NBYTES)]


def test_callbacks_come_in_the_order_they_were_added(path: Path) -> None:
    called: list[int] = []
    last = threading.Event()
    with penstock.open(path) as file:
        future = file.pread(bytearray(NBYTES))
        for i in range(20):
            future.add_done_callback(lambda _, i=i: called.append(i))
        future.add_done_callback(lambda _: last.set())
        assert last.wait(60)
    assert called == list(range(20))


def test_what_a_callback_raises_goes_to_the_hook(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    heard = threading.Event()

    def hook(unraisable: Any) -> None:
        told.append((unraisable.exc_type, str(unraisable.exc_value)))
        heard.set()

    def callback(_: Any) -> None:
        raise LookupError("from the callback")

    monkeypatch.setattr(sys, "unraisablehook", hook)
    with penstock.open(path) as file:
        file.pread(bytearray(100)).add_done_callback(callback)
        assert heard.wait(60)
    assert told == [(LookupError, "from the callback")]


def test_a_callback_may_start_and_wait_for_another_request(path: Path, pattern: Any) -> None:
    done = threading.Event()
    second = bytearray(1000)
    with penstock.open(path) as file:

        def callback(_: Any) -> None:
            file.pread(second, 500).result()
            done.set()

        file.pread(bytearray(1000)).add_done_callback(callback)
        assert done.wait(60)
    assert second == pattern(NBYTES)[500:1500]


def test_a_future_is_awaited(memory: Any, path: Path, pattern: Any) -> None:
    async def read() -> list[int]:
        with penstock.open(path) as file:
            first, second = memory.empty(NBYTES), memory.empty(5000)
            counts = await asyncio.gather(file.pread(first), file.pread(second, 77))
            again = file.pread(second, 77)
            again.result()
            counts.append(await again)  # ended before
            assert memory.bytes(first) == pattern(NBYTES)
            assert memory.bytes(second) == pattern(NBYTES)[77:5077]
            return list(counts)

    assert asyncio.run(read()) == [NBYTES, 5000, 5000]


def test_an_awaited_error_is_raised(tmp_path: Path) -> None:
    async def write() -> None:
        with penstock.open(tmp_path / "read_only", "w") as file:
            await file.pread(bytearray(10))

    with pytest.raises(PermissionError):
        asyncio.run(write())


def test_cancelling_the_task_cancels_the_request(path: Path) -> None:
    async def read() -> Any:
        with penstock.open(path) as file:
            future = file.pread_many([(bytearray(NBYTES), 0)] * 50)

            async def wait() -> Any:
                return await future

            task = asyncio.ensure_future(wait())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return future

    future = asyncio.run(read())
    assert future.exception(60) is None or isinstance(future.exception(), penstock.Cancelled)


def test_the_loop_may_close_before_the_request_ends(path: Path) -> None:
    async def start(file: penstock.File) -> Any:
        future = file.pread(bytearray(NBYTES))
        task = asyncio.ensure_future(_await(future))
        await asyncio.sleep(0)
        del task
        return future

    async def _await(future: Any) -> None:
        await future

    with penstock.open(path) as file:
        future = asyncio.run(start(file))
        error = future.exception(60)
    assert error is None or isinstance(error, penstock.Cancelled)


def test_wait_sorts_the_ended_from_the_others(memory: Any, path: Path) -> None:
    with penstock.open(path) as file:
        futures = [file.pread(memory.empty(10_000), i) for i in range(20)]
        done, not_done = penstock.wait(futures)
        assert (done, not_done) == (set(futures), set())
        assert penstock.wait([]) == (set(), set())
        first = penstock.wait([file.pread(memory.empty(NBYTES)) for _ in range(5)], return_when=penstock.FIRST_COMPLETED)
        assert len(first.done) >= 1 and len(first.done) + len(first.not_done) == 5
        penstock.wait(first.not_done)
    with pytest.raises(ValueError, match="return_when"):
        penstock.wait([], return_when="SOMETIME")


def test_wait_stops_at_the_first_failure(path: Path, tmp_path: Path) -> None:
    with penstock.open(path) as good, penstock.open(tmp_path / "write_only", "w") as bad:
        failing = bad.pread(bytearray(10))
        done, not_done = penstock.wait([failing, *(good.pread(bytearray(100)) for _ in range(3))], 60, "FIRST_EXCEPTION")
        assert failing in done
        penstock.wait(not_done)


def test_as_completed_yields_each_once(memory: Any, path: Path) -> None:
    with penstock.open(path) as file:
        futures = [file.pread(memory.empty(20_000), i * 17) for i in range(30)]
        seen = list(penstock.as_completed(futures, 60))
    assert len(seen) == 30
    assert set(seen) == set(futures)
    assert all(future.result() == 20_000 for future in seen)


def test_futures_of_threads_do_not_mix(memory: Any, path: Path, pattern: Any) -> None:
    wrong: list[int] = []

    def work(file: penstock.File, seed: int) -> None:
        for i in range(20):
            target = memory.empty(3_001)
            offset = (seed * 7919 + i * 104_729) % (NBYTES - 3_001)
            if file.pread(target, offset).result() != 3_001 or memory.bytes(target) != pattern(NBYTES)[offset : offset + 3_001]:
                wrong.append(offset)

    with penstock.open(path) as file:
        threads = [threading.Thread(target=work, args=(file, seed)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_waiting_in_vain_leaves_nothing_behind(path: Path) -> None:
    told: list[Any] = []
    with penstock.open(path) as file:
        future = file.pread_many([(bytearray(NBYTES), 0)] * 300)
        future.add_done_callback(told.append)
        before = sys.getrefcount(future)
        for timeout in (0, -1, 1e-9):
            for _ in range(50):
                done, not_done = penstock.wait([future], timeout)
                assert done | not_done == {future}
                try:
                    assert list(penstock.as_completed([future], timeout)) == [future]
                except TimeoutError as error:
                    assert not isinstance(error, penstock.Error)
                some = penstock.as_completed([future], 60)
                del some
        del done, not_done
        if not future.done():
            assert sys.getrefcount(future) < before + 50  # a callback that stayed would hold its future
        assert penstock.wait([future]).done == {future}
    _native._settle()
    assert told == [future]


@pytest.mark.parametrize("timeout", [1e30, float("inf"), 1e9])
def test_a_time_out_may_be_as_long_as_one_likes(path: Path, timeout: float) -> None:
    with penstock.open(path) as file:
        assert len(penstock.wait([file.pread(bytearray(1000)) for _ in range(3)], timeout).done) == 3
        assert len(list(penstock.as_completed([file.pread(bytearray(1000)) for _ in range(3)], timeout))) == 3
        assert file.pread(bytearray(1000)).result(timeout) == 1000
        assert file.pread(bytearray(1000)).exception(timeout) is None


def test_a_time_out_is_a_number(path: Path) -> None:
    with penstock.open(path) as file:
        future = file.pread(bytearray(1000))
        for call in (penstock.wait, lambda *a: list(penstock.as_completed(*a))):
            with pytest.raises(ValueError, match="number"):
                call([future], float("nan"))
        with pytest.raises(ValueError, match="number"):
            file.pread_many([(bytearray(NBYTES), 0)] * 300).result(float("nan"))


def test_a_time_out_of_a_task_cancels_the_request(path: Path) -> None:
    async def read(file: penstock.File, timeout: float) -> Any:
        future = file.pread_many([(bytearray(NBYTES), 0)] * 300)
        try:
            await asyncio.wait_for(_result(future), timeout)
        except asyncio.TimeoutError:  # of a name of its own before Python 3.11
            pass
        return future

    async def _result(future: Any) -> Any:
        return await future

    with penstock.open(path) as file:
        for timeout in (0, 1e-6, 1e-3):
            future = asyncio.run(read(file, timeout))
            assert future.exception(60) is None or isinstance(future.exception(), penstock.Cancelled)


def test_requests_queued_behind_many_others_time_out_on_time(memory: Any, path: Path) -> None:
    target = memory.empty(NBYTES)
    with penstock.open(path) as file:
        futures = [file.pread(target) for _ in range(200)]
        for future in reversed(futures):
            for call in (future.result, future.exception):
                try:
                    call(1e-6)
                except TimeoutError as error:
                    assert not isinstance(error, penstock.Error)
        done, not_done = penstock.wait(futures, 1e-6)
        assert done | not_done == set(futures)
        assert [future.result() for future in futures] == [NBYTES] * 200


def test_concurrent_futures_waits_for_them(memory: Any, path: Path) -> None:
    with penstock.open(path) as file, concurrent.futures.ThreadPoolExecutor(1) as pool:
        ours = [file.pread(memory.empty(10_000), i) for i in range(20)]
        others: list[Any] = [pool.submit(int, 5)]
        done, not_done = concurrent.futures.wait(ours + others, 60)
        assert (done, not_done) == (set(ours + others), set())
        assert all(isinstance(future, concurrent.futures.Future) and isinstance(future, penstock.Future) for future in ours)
        assert not any(future.running() or future.cancelled() for future in ours)
        again = concurrent.futures.wait(ours, 60, concurrent.futures.FIRST_COMPLETED)
        assert again.done == set(ours)
        futures = [file.pread(memory.empty(NBYTES)) for _ in range(10)] + [file.pread(memory.empty(1))] * 2
        seen = list(concurrent.futures.as_completed(futures + others, 60))
        assert len(seen) == 12 and set(seen) == set(futures + others)
        assert sum(future.result() for future in seen) == 10 * NBYTES + 1 + 5


def test_concurrent_futures_stops_at_the_first_failure(path: Path, tmp_path: Path) -> None:
    with penstock.open(path) as good, penstock.open(tmp_path / "write_only", "w") as bad:
        futures = [bad.pread(bytearray(10)), *(good.pread(bytearray(100)) for _ in range(3))]
        done, not_done = concurrent.futures.wait(futures, 60, concurrent.futures.FIRST_EXCEPTION)
        assert futures[0] in done
        assert isinstance(futures[0].exception(), PermissionError) and not futures[0].cancelled()
        concurrent.futures.wait(not_done)


def test_concurrent_futures_times_out(path: Path) -> None:
    with penstock.open(path) as file:
        future = file.pread_many([(bytearray(NBYTES), 0)] * 300)
        done, not_done = concurrent.futures.wait([future], 0)
        assert done | not_done == {future}
        try:
            assert list(concurrent.futures.as_completed([future], 0)) == [future]
        except concurrent.futures.TimeoutError:
            pass
        assert concurrent.futures.wait([future]).done == {future}
        assert list(concurrent.futures.as_completed([future])) == [future]


def test_what_was_cancelled_says_so(path: Path) -> None:
    with penstock.open(path) as file:
        for _ in range(100):
            future = file.pread_many([(bytearray(NBYTES), 0)] * 100)
            future.cancel()
            concurrent.futures.wait([future])
            assert future.cancelled() == isinstance(future.exception(), penstock.Cancelled)
            if future.cancelled():
                break
        else:
            pytest.fail("each of them had ended before it could be cancelled")


def test_asyncio_wraps_them(memory: Any, path: Path, tmp_path: Path) -> None:
    async def read() -> None:
        with penstock.open(path) as file, penstock.open(tmp_path / "write_only", "w") as bad:
            wrapped = asyncio.wrap_future(file.pread(memory.empty(NBYTES)))
            assert asyncio.isfuture(wrapped)
            assert await wrapped == NBYTES
            with pytest.raises(PermissionError):
                await asyncio.wrap_future(bad.pread(bytearray(10)))
            future = file.pread_many([(bytearray(NBYTES), 0)] * 100)
            cancelled = asyncio.wrap_future(future)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert future.exception(60) is None or future.cancelled()

    asyncio.run(read())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork() beside threads
def test_a_forked_child_does_not_wait_for_those_of_its_parent(path: Path) -> None:
    with penstock.open(path) as file:
        future = file.pread_many([(bytearray(NBYTES), 0)] * 300)
        other = file.pread_many([(bytearray(NBYTES), 0)] * 300)
        concurrent.futures.wait([other], 0)
        child = os.fork()
        if child == 0:
            ended = concurrent.futures.wait([future, other]).done == {future, other}
            os._exit(0 if ended else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        concurrent.futures.wait([future, other])


def test_a_forked_child_does_not_wait_for_what_had_ended_but_was_not_told(path: Path) -> None:
    with penstock.open(path) as file:
        ended = file.pread(bytearray(NBYTES))
        while not ended.done():
            pass
        concurrent.futures.wait([ended], 0)  # is to be told by the parent's thread, which waits for the GIL
        child = os.fork()
        if child == 0:
            os._exit(0 if concurrent.futures.wait([ended]).done == {ended} else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_who_has_not_imported_concurrent_futures_sees_the_class() -> None:
    script = """
import sys, penstock
with penstock.open(sys.argv[1]) as file:
    future = file.pread(bytearray(10))
    future.result()
    assert "concurrent.futures" not in sys.modules
    assert future.__class__ is penstock.Future
    import concurrent.futures
    assert future.__class__ is concurrent.futures.Future and type(future) is penstock.Future
"""
    subprocess.run([sys.executable, "-c", script, __file__], check=True, timeout=60)


def test_a_callback_that_is_added_just_after_the_end_is_called(path: Path, pattern: Any) -> None:
    """Whenever it comes: before the request has been reported, while somebody else waits, or after."""
    path.write_bytes(pattern(4096))
    with penstock.open(path) as file:
        for i in range(300):
            called = threading.Event()
            future = file.pread(bytearray(4096))
            if i % 3 == 0:
                future.result()
            elif i % 3 == 1:
                while not future.done():
                    pass
            future.add_done_callback(lambda _ended, called=called: called.set())
            assert called.wait(30), i
