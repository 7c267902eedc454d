"""Requests that nobody stands waiting for end all the same. Run by test_nobody_waits.py, in a process of its own: a hang ends it.

Usage: python nobody_waits.py FILE WAY MEMORY CORES REQUESTS

FILE is made. CORES is how many cores the process may use, which the engine chooses its lanes by. REQUESTS is about how many are begun. What
is at work is printed as it begins: the last line names what hangs.
"""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

WAY, MEMORY = sys.argv[2:4]
CORES, REQUESTS = map(int, sys.argv[4:6])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])

import penstock  # noqa: E402 - the engine sees the cores as they are now
from penstock import _native  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
FILE_BYTES = 8 * MIB
SIZES = (4 * KIB, 64 * KIB, 128 * KIB, MIB)
BATCH_SIZES = (4 * KIB, 64 * KIB)
IN_BATCH = 8
DEPTHS = (1, 8)  # so many are under way at once
HANG_S = float(os.environ.get("PENSTOCK_TEST_WATCHDOG", "60"))  # for one round

CONTENT = bytes(i * 2654435761 >> 13 & 255 for i in range(65_521)) * (FILE_BYTES // 65_521 + 1)
CONTENT = CONTENT[:FILE_BYTES]


# --- memory, whose bytes can be set and looked at


class Memory:
    def empty(self, nbytes: int) -> Any:
        return bytearray(nbytes)

    def of(self, content: bytes) -> Any:
        buffer = self.empty(len(content))
        penstock.copy(buffer, content)
        return buffer

    def bytes(self, buffer: Any) -> bytes:
        seen = bytearray(len(buffer))
        penstock.copy(seen, buffer)
        return bytes(seen)


class DeviceMemory(Memory):
    def __init__(self, name: str) -> None:
        self._device = penstock.device(name)

    def empty(self, nbytes: int) -> Any:
        return self._device.empty(nbytes)


class CupyMemory(Memory):
    def empty(self, nbytes: int) -> Any:
        import cupy

        array = cupy.zeros(nbytes, cupy.uint8)
        cupy.cuda.Stream.null.synchronize()
        return array


class TorchMemory(Memory):
    def empty(self, nbytes: int) -> Any:
        import torch

        tensor = torch.zeros(nbytes, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        return tensor


def memory_named(name: str) -> Memory:
    if name == "host":
        return Memory()
    if name == "cupy":
        return CupyMemory()
    return TorchMemory() if name == "torch" else DeviceMemory(name)


# --- the ways not to wait. Each takes futures under way, and returns when all have ended, or at once.


def by_await(futures: list[Any]) -> None:
    async def gather() -> None:
        await asyncio.gather(*futures)

    asyncio.run(gather())


def by_wait(futures: list[Any]) -> None:
    assert not penstock.wait(futures).not_done


def by_as_completed(futures: list[Any]) -> None:
    assert len(list(penstock.as_completed(futures))) == len(futures)


def by_done(futures: list[Any]) -> None:
    while not all(future.done() for future in futures):
        time.sleep(0)  # lets the others have the GIL


def by_callbacks(futures: list[Any]) -> None:
    called = threading.Semaphore(0)
    for future in futures:
        future.add_done_callback(lambda _: called.release())
    for _ in futures:
        called.acquire()


def by_expiring_results(futures: list[Any]) -> None:
    for future, timeout in zip(futures, itertools.cycle((0, 1e-4))):
        while True:
            try:
                future.result(timeout)
                break
            except TimeoutError:
                time.sleep(0)


def by_cancelling(futures: list[Any]) -> None:
    for future in futures:
        future.cancel()
    by_done(futures)


def not_at_all(futures: list[Any]) -> None:
    futures.clear()


WAYS: dict[str, Callable[[list[Any]], None]] = {
    "await": by_await,
    "wait": by_wait,
    "as_completed": by_as_completed,
    "done": by_done,
    "callbacks": by_callbacks,
    "expiring": by_expiring_results,
    "cancelled": by_cancelling,
    "dropped": not_at_all,
    "close": lambda _: None,  # and the file is closed while they are under way
    "kvikio": by_done,
}


# --- files


class PenstockFile:
    def __init__(self, path: str) -> None:
        self._file = penstock.open(path, "r+")
        self.close = self._file.close

    def begin(self, buffer: Any, offset: int, size: int, is_write: bool) -> Any:
        return (self._file.pwrite if is_write else self._file.pread)(buffer, offset, size)

    def begin_batch(self, parts: list[tuple[Any, ...]], is_write: bool) -> Any:
        return (self._file.pwrite_many if is_write else self._file.pread_many)(parts)


class KvikioFuture:
    def __init__(self, future: Any) -> None:
        self.done = future.done
        self.result = future.get


class KvikioFile:
    begin_batch = None  # it has none

    def __init__(self, path: str) -> None:
        from penstock import kvikio

        self._file = kvikio.CuFile(path, "r+")
        self.close = self._file.close

    def begin(self, buffer: Any, offset: int, size: int, is_write: bool) -> KvikioFuture:
        return KvikioFuture((self._file.pwrite if is_write else self._file.pread)(buffer, size, offset))


def open_file(path: str) -> Any:
    return KvikioFile(path) if WAY == "kvikio" else PenstockFile(path)


# --- what is done


def offsets(size: int) -> Iterator[int]:
    """Places in the file that do not overlap soon; every third at no page's start."""
    room = FILE_BYTES - size - 4096
    for i in itertools.count():
        yield i * size % room // 4096 * 4096 + (77 if i % 3 == 2 else 0)


class Round:
    """Some requests of one kind, under way at once."""

    def __init__(self, memory: Memory, size: int, is_write: bool, in_batch: int) -> None:
        self._memory = memory
        self._size = size
        self._is_write = is_write
        self._in_batch = in_batch
        self._places = offsets(size * max(1, in_batch))

    def run(self, file: Any, count: int) -> None:
        begun = [self._begin(file) for _ in range(count)]
        futures = [future for future, _ in begun]
        WAYS[WAY](futures)
        if not futures or WAY == "close":
            return
        for future, parts in begun:
            self._check(future, parts)

    def _begin(self, file: Any) -> tuple[Any, list[tuple[Any, int]]]:
        first = next(self._places)
        size = self._size
        # What is written is what is there already: the file stays as it is, whatever is cancelled.
        parts = [
            (self._memory.of(CONTENT[at : at + size]) if self._is_write else self._memory.empty(size), at)
            for at in range(first, first + size * max(1, self._in_batch), size)
        ]
        if self._in_batch:
            return file.begin_batch([(buffer, at, size) for buffer, at in parts], self._is_write), parts
        return file.begin(parts[0][0], first, size, self._is_write), parts

    def _check(self, future: Any, parts: list[tuple[Any, int]]) -> None:
        try:
            counts = future.result()
        except penstock.Cancelled:
            assert WAY == "cancelled"
            return
        assert counts == ([self._size] * len(parts) if self._in_batch else self._size), counts
        for buffer, at in parts:
            assert self._memory.bytes(buffer) == CONTENT[at : at + self._size], at


def drop_from_cache(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def main() -> None:
    path = sys.argv[1]
    with open(path, "wb") as made:
        made.write(CONTENT)
    memory = memory_named(MEMORY)
    kinds = [(size, is_write, 0) for size in SIZES for is_write in (False, True)]
    if WAY != "kvikio":
        kinds += [(size, is_write, IN_BATCH) for size in BATCH_SIZES for is_write in (False, True)]
    steps = list(itertools.product((True, False), kinds, DEPTHS))
    for is_cold, (size, is_write, in_batch), depth in steps:
        each = max(1, in_batch)
        rounds = max(1, REQUESTS // (len(steps) * depth * each))
        what = f"{rounds} x {depth} {'cold' if is_cold else 'warm'} {'writes' if is_write else 'reads'} of {each} x {size}"
        print(f"{WAY}, {MEMORY}, {CORES} cores: {what}", flush=True)
        some = Round(memory, size, is_write, in_batch)
        file = open_file(path)
        for _ in range(rounds):
            # Begun anew each time: so long for a round, however many there are.
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            if is_cold:
                drop_from_cache(path)
            some.run(file, depth)
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        file.close()
        del file
    _native._settle()
    assert _native._held_memories() == 0
    with open(path, "rb") as made:
        assert made.read() == CONTENT
    print("all ended", flush=True)
    # The watchdog stays: Python's own end waits for requests too.


if __name__ == "__main__":
    main()
