"""Waits for several futures, and awaits one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .._native import Future
from .forks import forkable_lock


if TYPE_CHECKING:
    import asyncio

    from .._native import File

__all__ = ["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION", "DoneAndNotDone", "as_completed", "wait"]

T = TypeVar("T")

# The same constants as in concurrent.futures.
FIRST_COMPLETED = "FIRST_COMPLETED"
FIRST_EXCEPTION = "FIRST_EXCEPTION"
ALL_COMPLETED = "ALL_COMPLETED"


class DoneAndNotDone(NamedTuple):
    """The result of wait()."""

    done: set[Future[Any]]
    not_done: set[Future[Any]]


DoneAndNotDone.__module__ = "penstock"  # its public home, which pickles name


class _Ended:
    """Yields each future once it is done. Call close() to stop early."""

    def __init__(self, futures: Iterable[Future[Any]], timeout: float | None) -> None:
        """`timeout`: in seconds from now, for all futures together. Raises ValueError if it is not a number."""
        if timeout is not None and timeout != timeout:
            raise ValueError("timeout is not a number")
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self.waiting = set(futures)
        self._process = os.getpid()
        self._ended: SimpleQueue[Future[Any]] = SimpleQueue()
        self._tell = self._ended.put  # keep this one object, because _forget_callback() compares by identity
        for future in self.waiting:
            future.add_done_callback(self._tell)

    def next(self) -> Future[Any] | None:
        """Removes the next future from `waiting` and returns it. Returns None after the timeout."""
        if os.getpid() != self._process:
            return self.waiting.pop()  # a generator inherited by a forked child receives no callbacks, so all futures count as done
        future = None
        while future not in self.waiting:  # otherwise its callback arrived after _found_done() returned it
            try:
                future = self._ended.get(timeout=self._time_left())
            except Empty:
                return self._found_done()
        self.waiting.discard(future)
        return future

    def close(self) -> None:
        for future in self.waiting:
            future._forget_callback(self._tell)

    def _time_left(self) -> float | None:
        if self._deadline is None:
            return None
        return min(max(0.0, self._deadline - time.monotonic()), threading.TIMEOUT_MAX)

    def _found_done(self) -> Future[Any] | None:
        """Returns a future that is done but whose callback has not arrived."""
        future = next((each for each in self.waiting if each.done()), None)
        if future is not None:
            future._forget_callback(self._tell)
            self.waiting.discard(future)
        return future


def wait(
    futures: Iterable[Future[Any]], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> DoneAndNotDone:
    """Blocks until all futures are done, one is done, or one fails. `timeout` is in seconds; None waits forever.

    Returns the set of futures that are done, and the set of the others. Raises ValueError for an unknown `return_when`.
    """
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        raise ValueError(f"return_when must be ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION, not {return_when!r}")
    done: set[Future[Any]] = set()
    ended = _Ended(futures, timeout)
    try:
        while ended.waiting:
            future = ended.next()
            if future is None:
                break
            done.add(future)
            if return_when == FIRST_COMPLETED or (return_when == FIRST_EXCEPTION and future.exception() is not None):
                break
    finally:
        ended.close()
    return DoneAndNotDone(done, ended.waiting)


def as_completed(futures: Iterable[Future[T]], timeout: float | None = None) -> Iterator[Future[T]]:
    """Yields each future once it is done. Raises TimeoutError after `timeout` seconds."""
    ended = _Ended(futures, timeout)
    try:
        while ended.waiting:
            future = ended.next()
            if future is None:
                raise TimeoutError(f"{len(ended.waiting)} requests have not finished yet")
            yield future
    finally:
        ended.close()


class Shown:
    """The attributes of a future that wait() and as_completed() in concurrent.futures read. Created by penstock._native."""

    __slots__ = ("condition", "state", "waiters")

    def __init__(self) -> None:
        self.condition = threading.Condition(forkable_lock())
        self.state = "RUNNING"  # waiters rely on the condition being held during changes and notifications
        self.waiters: list[Any] = []

    def tell(self, future: Future[Any]) -> None:
        """Notifies the waiters that the future is done."""
        cancelled = future.cancelled()
        failed = not cancelled and future.exception() is not None
        with self.condition:
            self.state = "CANCELLED_AND_NOTIFIED" if cancelled else "FINISHED"
            for waiter in self.waiters:
                if cancelled:
                    waiter.add_cancelled(future)
                elif failed:
                    waiter.add_exception(future)
                else:
                    waiter.add_result(future)
            self.condition.notify_all()


async def itself(file: File) -> File:
    """Returns the file, for `async with`."""
    return file


async def close(file: File) -> None:
    """Closes the file without blocking the event loop while requests are running. For `async with`."""
    import asyncio

    await asyncio.get_running_loop().run_in_executor(None, file.close)


async def await_future(future: Future[T]) -> T:
    """Returns the result without blocking the event loop. Cancelling the task cancels the request. Called by penstock._native."""
    import asyncio

    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    future.add_done_callback(lambda _: _wake(loop, waiter))
    try:
        await waiter
    except asyncio.CancelledError:
        future.cancel()
        raise
    return future.result()


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_finish, waiter)
    except RuntimeError:
        pass  # the loop was closed, so no task is waiting


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
