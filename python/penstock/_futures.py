"""Waiting for several futures, and awaiting one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ._native import Future

if TYPE_CHECKING:
    import asyncio

__all__ = ["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION", "DoneAndNotDone", "as_completed", "wait"]

T = TypeVar("T")

# The words of concurrent.futures.
FIRST_COMPLETED = "FIRST_COMPLETED"
FIRST_EXCEPTION = "FIRST_EXCEPTION"
ALL_COMPLETED = "ALL_COMPLETED"


class DoneAndNotDone(NamedTuple):
    """What wait() returns."""

    done: set[Future[Any]]
    not_done: set[Future[Any]]


class _Ended:
    """Collects futures as they end."""

    def __init__(self, futures: Iterable[Future[Any]]) -> None:
        self._changed = threading.Condition()
        self._ended: deque[Future[Any]] = deque()
        for future in futures:
            future.add_done_callback(self._add)

    def _add(self, future: Future[Any]) -> None:
        with self._changed:
            self._ended.append(future)
            self._changed.notify()

    def next(self, deadline: float | None) -> Future[Any] | None:
        """The next one; None when the deadline (of time.monotonic) comes first."""
        with self._changed:
            while not self._ended:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
            return self._ended.popleft()


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def wait(
    futures: Iterable[Future[Any]], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> DoneAndNotDone:
    """Blocks until the futures have ended: all, the first, or the first that failed. timeout in seconds; None waits on.

    Returns the sets of those that have ended and of the others. Raises ValueError for an unknown return_when.
    """
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        raise ValueError(f"return_when is ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION, not {return_when!r}")
    deadline = _deadline(timeout)
    done: set[Future[Any]] = set()
    not_done = set(futures)
    ended = _Ended(not_done)
    while not_done:
        future = ended.next(deadline)
        if future is None:
            break
        not_done.discard(future)
        done.add(future)
        if return_when == FIRST_COMPLETED or (return_when == FIRST_EXCEPTION and future.exception() is not None):
            break
    return DoneAndNotDone(done, not_done)


def as_completed(futures: Iterable[Future[T]], timeout: float | None = None) -> Iterator[Future[T]]:
    """The futures as they end, each once. Raises TimeoutError where timeout, in seconds, passes first."""
    deadline = _deadline(timeout)
    waiting = set(futures)
    ended = _Ended(waiting)
    while waiting:
        future = ended.next(deadline)
        if future is None:
            raise TimeoutError(f"{len(waiting)} requests have not ended yet")
        waiting.discard(future)
        yield future


async def await_future(future: Future[T]) -> T:
    """The result, without blocking the running loop. Cancelling the task cancels the request. Called by penstock._native."""
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
        pass  # the loop was closed: nobody waits any more


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
