"""Huge pages for large arrays on the host."""

from __future__ import annotations

import ctypes
import mmap

__all__ = ["ask_for_huge_pages"]

_huge_from = 4 << 20
_libc = ctypes.CDLL(None)


def ask_for_huge_pages(address: int, nbytes: int) -> None:
    """Requests huge pages, as NumPy does for its arrays. With small pages, a large allocation's page faults take as long as reading its bytes."""
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if length >= _huge_from:
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)  # only advice, which the kernel may ignore
