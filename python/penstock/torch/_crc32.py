"""Computes zip's CRC-32 with zlib, in several threads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence

from .. import _native
from .._core.torch_storages import Memory

__all__ = ["combined", "crcs32_of"]

_POLYNOMIAL = 0xEDB88320
# Bytes per step. GPU memory is copied to the host in such steps.
_CHUNK_BYTES = 32 << 20
# One thread processes 1 to 3 GB/s.
_THREADS = 8

_Matrix = tuple[int, ...]  # 32 columns of a linear map on 32 bits


def crcs32_of(contents: Sequence[Sequence[Memory]]) -> list[int]:
    """Returns the CRC-32 of each content, a list of memory ranges that must not change. Blocks; uses several threads for large contents."""
    chunks = [(i, chunk) for i, content in enumerate(contents) for each in content for chunk in _chunks(each)]
    left = list(reversed(range(len(chunks))))
    crcs: dict[int, int] = {}

    def work() -> None:
        with contextlib.suppress(IndexError):  # nothing is left
            while True:
                number = left.pop()
                crcs[number] = _crc32_of(chunks[number][1])

    threads = _helpers(work, sum(each.nbytes for _, each in chunks))
    try:
        work()
    finally:
        left.clear()
        for thread in threads:
            thread.join()
    found = [0] * len(contents)
    for number, (i, chunk) in enumerate(chunks):
        crc = crcs[number] if number in crcs else _crc32_of(chunk)  # a helper thread failed
        found[i] = combined(found[i], crc, chunk.nbytes)
    return found


def _crc32_of(memory: Memory) -> int:
    address, nbytes, owner, device = memory
    if device.type == "cpu":
        return zlib.crc32((ctypes.c_char * nbytes).from_address(address))
    copy = bytearray(nbytes)
    _native.copy(copy, _native.Pointer(address, nbytes, owner))
    return zlib.crc32(copy)


def _chunks(memory: Memory) -> Iterable[Memory]:
    """Splits memory into chunks for the threads."""
    starts = range(0, memory.nbytes, _CHUNK_BYTES)
    return [memory._replace(address=memory.address + i, nbytes=min(_CHUNK_BYTES, memory.nbytes - i)) for i in starts]


def _helpers(work: Callable[[], None], nbytes: int) -> list[threading.Thread]:
    found: list[threading.Thread] = []
    for _ in range(min(os.cpu_count() or 1, _THREADS, nbytes // _CHUNK_BYTES) - 1):
        thread = threading.Thread(target=work, name="penstock-crc32")
        try:
            thread.start()
        except RuntimeError:
            break  # the interpreter is exiting, and waiting for the save
        found.append(thread)
    return found


def combined(first: int, second: int, second_nbytes: int) -> int:
    """Returns the CRC-32 of two consecutive ranges, given the CRC of each."""
    return _moved(first, second_nbytes) ^ second


def _moved(register: int, nbytes: int) -> int:
    """Returns the register after `nbytes` zeros."""
    bit = 0
    while nbytes:
        if nbytes & 1:
            register = _times(_power(1 << bit), register)
        nbytes >>= 1
        bit += 1
    return register


@functools.lru_cache(maxsize=64)
def _power(nbytes: int) -> _Matrix:
    """Returns the map for `nbytes` zeros, a power of two."""
    if nbytes == 1:
        columns = [1 << i for i in range(32)]
        for _ in range(8):
            columns = [(each >> 1) ^ (_POLYNOMIAL if each & 1 else 0) for each in columns]
        return tuple(columns)
    half = _power(nbytes // 2)
    return tuple(_times(half, each) for each in half)


def _times(matrix: _Matrix, register: int) -> int:
    found = 0
    for column in matrix:
        if register & 1:
            found ^= column
        register >>= 1
        if not register:
            break
    return found
