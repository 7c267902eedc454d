"""Buffer registration as in KvikIO. Penstock never requires it."""

from __future__ import annotations

from typing import Any

import penstock
from penstock import _native
from penstock._core.forks import forkable_lock
from penstock._cufile.codes import OpError, cuFileError
from penstock._cufile.driver import driver
from penstock._cufile.library import calls, words
from penstock.kvikio import defaults
from penstock.kvikio._buffer_checks import is_device_memory, require_device_memory

__all__ = ["bounce_buffer_free", "memory_deregister", "memory_register"]


def memory_register(buf: Any) -> None:
    """Registers the whole device allocation that contains buf, as penstock.cufile.buf_register() does.

    The allocation must stay valid until you have called memory_deregister() as many times as memory_register(). Other modules' registrations are not
    affected.

    Raises ValueError ("Non-CUDA buffers not supported") for host memory, and RuntimeError if the memory cannot be used or cufile.json cannot be read.
    """
    require_device_memory(buf)
    base, nbytes = _allocation_of(buf)
    if nbytes == 0:
        return
    try:
        driver.use()
    except cuFileError as error:
        raise RuntimeError(f"memory_register: {error}") from error
    if _own.add(base):
        return
    status = calls.buf_register(base, nbytes, 0)
    if status != 0:
        _own.remove(base)
    _check("memory_register", status, OpError.CU_FILE_MEMORY_ALREADY_REGISTERED)


def memory_deregister(buf: Any) -> None:
    """Undoes one memory_register() call for any buffer in the same allocation. Does nothing if this module has not registered the allocation.

    Raises ValueError as memory_register() does.
    """
    require_device_memory(buf)
    base, _ = _allocation_of(buf)
    if _own.remove(base):
        _check("memory_deregister", calls.buf_deregister(base), *_not_registered)


class _Registrations:
    """Counts the times that this module has registered each allocation since the driver was opened."""

    def __init__(self) -> None:
        self._lock = forkable_lock()
        self._opening = 0
        self._counts: dict[int, int] = {}

    def add(self, base: int) -> bool:
        """Counts a registration. Returns True if the allocation was already registered."""
        with self._lock:
            self._forget_stale()
            count = self._counts.get(base, 0)
            self._counts[base] = count + 1
            return count > 0

    def remove(self, base: int) -> bool:
        """Removes a registration. Returns True if it was the last one, so that the allocation must be deregistered."""
        with self._lock:
            self._forget_stale()
            count = self._counts.pop(base, 0)
            if count > 1:
                self._counts[base] = count - 1
            return count == 1

    def _forget_stale(self) -> None:
        """Clears the counts if the driver was closed, because that deregisters everything."""
        opening = _native._cufile_opening()
        if opening != self._opening:
            self._opening = opening
            self._counts.clear()


_own = _Registrations()
_not_registered = (
    OpError.CU_FILE_MEMORY_NOT_REGISTERED,
    OpError.CU_FILE_DRIVER_NOT_INITIALIZED,
    OpError.CU_FILE_DRIVER_CLOSING,
)


def _allocation_of(buf: Any) -> tuple[int, int]:
    """Returns the allocation's base and size in bytes. An allocation of several mappings counts only up to the end of buf."""
    try:
        facts = penstock.describe(buf)
        address, nbytes = penstock._native.resolve(buf)
    except penstock.Error as error:
        if isinstance(error, ValueError):
            raise
        raise RuntimeError(str(error)) from error
    base = facts["base"] or address
    return base, max(facts["nbytes"] or 0, address + nbytes - base)


def _check(what: str, status: int, *accepted: int) -> None:
    if status != 0 and status not in accepted:
        raise RuntimeError(f"{what}: {words(status)}")


def bounce_buffer_free() -> int:
    """Frees pinned staging memory that is not in use, as penstock.trim() does, and returns the number of bytes freed.

    If the program has set bounce_buffer_size, this returns the same number as KvikIO: the size of one buffer for each thread that KvikIO would have
    used since then. penstock.stats()["pinned_bytes"] is the amount of pinned memory that Penstock has allocated.
    """
    global _count
    freed = penstock.trim()
    with _lock:
        counted, _count = _size * _count, 0
        told = _size if defaults.get("bounce_buffer_size") != defaults.default_of("bounce_buffer_size") else 0
    return counted if counted or told else freed


# KvikIO keeps a buffer of bounce_buffer_size for each of its threads that has accessed device memory, and frees all of these buffers when the size
# changes.
_lock = forkable_lock()
_size = 0  # size of each buffer; guarded by _lock, like _count
_count = 0


def note_transfer(buf: Any, size: int | None) -> None:
    """Counts the buffers of a transfer. If `size` is None, all of buf is transferred. Ignores objects that are not buffers."""
    global _size, _count
    bytes_of_each = defaults.current("bounce_buffer_size")
    if bytes_of_each == defaults.default_of("bounce_buffer_size"):
        return
    try:
        if not is_device_memory(buf):
            return
        nbytes = penstock._native.resolve(buf)[1] if size is None else size
    except (TypeError, ValueError):
        return
    tasks = -(-nbytes // defaults.get("task_size"))
    at_work = min(tasks, defaults.get("num_threads"))
    with _lock:
        _count = max(_count, at_work) if bytes_of_each == _size else at_work
        _size = bytes_of_each


def __dir__() -> list[str]:
    return sorted(__all__)
