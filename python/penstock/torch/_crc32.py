"""Computes zip's CRC-32, for host memory with zlib, and for GPU memory on the GPU."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .._core.torch_storages import Memory

__all__ = ["bytes_of", "combined", "crc32_of_tensor", "crcs32_of"]

_POLYNOMIAL = 0xEDB88320
_ALL_ONES = 0xFFFFFFFF
# Bytes per step. A GPU needs twice as much temporary memory.
_CHUNK_BYTES = 32 << 20
# Below this, the CPU is faster than a GPU, which needs hundreds of kernels.
_SMALL_BYTES = 2 << 20
# One thread processes 1 to 3 GB/s.
_THREADS = 8

_Matrix = tuple[int, ...]  # 32 columns of a linear map on 32 bits


def crcs32_of(contents: Sequence[Sequence[Memory]]) -> list[int]:
    """Returns the CRC-32 of each content, a list of memory ranges that must not change. Blocks; uses several threads for large contents."""
    parts = [_Part(i, piece) for i, content in enumerate(contents) for each in content for piece in _chunks(each)]
    left = list(reversed(parts))
    threads = _helpers(left, sum(each.memory.nbytes for each in parts if each.memory.device.type == "cpu"))
    try:
        _work(left)
    finally:
        left.clear()
        for thread in threads:
            thread.join()
    found = [0] * len(contents)
    for part in parts:
        found[part.index] = combined(found[part.index], part.crc(), part.memory.nbytes)
    return found


class _Part:
    """A part of a content, and its checksum once it has been computed."""

    def __init__(self, index: int, memory: Memory) -> None:
        self.index, self.memory = index, memory
        self._crc: int | None = None

    def look(self) -> None:
        on_host = self.memory.device.type == "cpu"
        self._crc = _of_host(self.memory.address, self.memory.nbytes) if on_host else _of_gpu(self.memory)

    def crc(self) -> int:
        if self._crc is None:  # a helper thread failed
            self.look()
        assert self._crc is not None
        return self._crc


def _chunks(memory: Memory) -> Iterable[Memory]:
    """Splits memory into chunks for the threads. GPU memory is not split."""
    if memory.device.type != "cpu" or memory.nbytes <= _CHUNK_BYTES:
        return [memory]
    starts = range(0, memory.nbytes, _CHUNK_BYTES)
    return [memory._replace(address=memory.address + i, nbytes=min(_CHUNK_BYTES, memory.nbytes - i)) for i in starts]


def _work(left: list[_Part]) -> None:
    while True:
        try:
            part = left.pop()
        except IndexError:
            return
        part.look()


def _helpers(left: list[_Part], host_bytes: int) -> list[threading.Thread]:
    found: list[threading.Thread] = []
    for _ in range(min(os.cpu_count() or 1, _THREADS, host_bytes // _CHUNK_BYTES) - 1):
        thread = threading.Thread(target=_work, args=(left,), name="penstock-crc32")
        try:
            thread.start()
        except RuntimeError:
            break  # the interpreter is exiting, and waiting for the save
        found.append(thread)
    return found


def combined(first: int, second: int, second_nbytes: int) -> int:
    """Returns the CRC-32 of two consecutive ranges, given the CRC of each."""
    return _moved(first, second_nbytes) ^ second


def _of_host(address: int, nbytes: int) -> int:
    return zlib.crc32((ctypes.c_char * nbytes).from_address(address))


def _of_gpu(memory: Memory) -> int:
    with torch.cuda.device(memory.device), torch.cuda.stream(_stream_on(memory.device)):
        content = bytes_of(memory)
        if memory.nbytes < _SMALL_BYTES:
            on_host = content.cpu()
            return _of_host(on_host.data_ptr(), memory.nbytes)
        return crc32_of_tensor(content)


def bytes_of(memory: Memory) -> Any:
    """Returns a memory range as a tensor of bytes."""
    offset = memory.address - memory.owner.data_ptr()
    return torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory.owner, offset, (memory.nbytes,), (1,))


@functools.lru_cache(maxsize=None)
def _stream_on(device: torch.device) -> Any:
    """Returns one cached stream per device, because PyTorch's allocator keeps separate memory for each stream."""
    return torch.cuda.Stream(device)


def crc32_of_tensor(content: Any) -> int:
    """Computes the CRC-32 of a one-dimensional tensor of bytes on any device, on its current stream.

    A CRC is linear in the bytes, except for the inversions at the start and end. It can therefore be combined from the CRCs of pairs of words, of
    pairs of pairs, and so on, one level at a time.
    """
    nbytes = content.numel()
    whole, rest = divmod(nbytes, _CHUNK_BYTES)
    starts = ([0] if rest else []) + [rest + i * _CHUNK_BYTES for i in range(whole)]
    registers = [_register_of(content[start : rest if start < rest else start + _CHUNK_BYTES]) for start in starts]
    found = 0
    for each in torch.stack(registers).tolist() if registers else []:
        found = _moved(found, _CHUNK_BYTES) ^ (each & _ALL_ONES)
    return found ^ _moved(_ALL_ONES, nbytes) ^ _ALL_ONES


def _register_of(content: Any) -> Any:
    """Returns the CRC register after at most one chunk, starting from 0, as a tensor with one signed 32-bit integer."""
    words = 1
    while words * 4 < content.numel():
        words *= 2
    padded = torch.zeros(words * 4, dtype=torch.uint8, device=content.device)
    padded[words * 4 - content.numel() :] = content  # leading zeros change nothing
    found, span = padded.view(torch.int32), 4
    while found.numel() > 1:
        found = _apply(found[0::2], span) ^ found[1::2]
        span *= 2
    return _apply(found, 4)[0]


def _apply(registers: Any, nbytes: int) -> Any:
    tables = _tables_on(nbytes, registers.device)
    found = torch.index_select(tables[0], 0, registers & 0xFF)
    for i in range(1, 4):
        found ^= torch.index_select(tables[i], 0, (registers >> (8 * i)) & 0xFF)
    return found


@functools.lru_cache(maxsize=256)
def _tables_on(nbytes: int, device: torch.device) -> Any:
    return torch.tensor(_tables(nbytes), dtype=torch.int64).to(torch.int32).to(device)


@functools.lru_cache(maxsize=64)
def _tables(nbytes: int) -> list[list[int]]:
    """Returns, for each byte of a register and each of its values, the register after `nbytes` zeros."""
    matrix = _power(nbytes)
    found = []
    for byte in range(4):
        values = [0] * 256
        for value in range(1, 256):
            low = value & -value
            values[value] = values[value ^ low] ^ matrix[8 * byte + low.bit_length() - 1]
        found.append([each - (1 << 32) if each >= 1 << 31 else each for each in values])
    return found


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
