"""Checks the zstd frames (RFC 8878) of many chunks without decoding them: all chunks at once, reading a few bytes of each at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from penstock.zarr._limits import COMPRESSED, MAGIC, MOST_OF_BLOCK, RESERVED, RLE

__all__ = ["Fetch", "whole_frames"]

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
Fetch: TypeAlias = Callable[[Numbers], Any]  # returns the bytes at the given positions, as a uint8 array of the same shape

_MAGIC = np.frombuffer(MAGIC, np.uint8)
_LONGEST_HEADER = 18
_MOST_OF_WINDOW = 1 << 27  # the largest window that zstd's own decoder accepts by default
_LEAST_COMPRESSED = 2
# zstd writes 128 KiB blocks and splits some of them at high levels. Each block costs a pass over all chunks.
_BLOCKS_PER_FULL_ONE = 16
_BLOCKS_BESIDES = 64
_MOST_ROUNDS = 8192


def whole_frames(fetch: Fetch, starts: Numbers, sizes: Numbers, decoded_bytes: int) -> Flags:
    """Returns True for each chunk that is one complete frame of decoded_bytes, with a plausible number of blocks, the last of which ends where the
    chunk ends.

    The chunks' `starts` and `sizes` are in bytes; sizes must be at least 1. The contents of blocks are not checked.
    """
    at, most_of_block, is_checked, good = _headers(fetch, starts, sizes, decoded_bytes)
    least, most = np.zeros_like(at), np.zeros_like(at)
    walking = np.flatnonzero(good)
    for _ in range(min(_MOST_ROUNDS, _BLOCKS_BESIDES + _BLOCKS_PER_FULL_ONE * (decoded_bytes // MOST_OF_BLOCK))):
        reaches = at[walking] + 3 <= sizes[walking]
        good[walking[~reaches]] = False
        walking = walking[reaches]
        if not walking.size:
            break
        header = fetch((starts + at)[walking, None] + np.arange(3)).astype(np.int64) @ (1, 1 << 8, 1 << 16)
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        is_compressed = kind == COMPRESSED
        least[walking] += np.where(is_compressed, 0, size)
        most[walking] += np.where(is_compressed, most_of_block[walking], size)
        at[walking] += 3 + np.where(kind == RLE, 1, size)
        is_long_enough = ~is_compressed | (size >= _LEAST_COMPRESSED)
        good[walking] &= (kind != RESERVED) & (size <= most_of_block[walking]) & is_long_enough
        walking = walking[good[walking] & (is_last == 0)]
    good[walking] = False  # more blocks than zstd would write
    whole: Flags = good & (at + 4 * is_checked == sizes) & (least <= decoded_bytes) & (decoded_bytes <= most)
    return whole


def _headers(fetch: Fetch, starts: Numbers, sizes: Numbers, decoded_bytes: int) -> tuple[Numbers, Numbers, Numbers, Flags]:
    """Returns, for each chunk, where its blocks start, the largest decoded size of a block, whether a 4-byte checksum follows, and whether the header
    is valid.
    """
    # RFC 8878, 3.1.1.1: a magic number, a descriptor, an optional window and dictionary ID, then the size.
    head = fetch(starts[:, None] + np.minimum(np.arange(_LONGEST_HEADER), sizes[:, None] - 1)).astype(np.uint64)
    descriptor, window = head[:, 4].astype(np.int64), _windows(head[:, 5].astype(np.int64))
    is_single = descriptor >> 5 & 1
    window[is_single == 1] = decoded_bytes
    size_bytes = np.where(descriptor >> 6 == 0, is_single, 1 << (descriptor >> 6))
    size_at = 5 + (1 - is_single)
    places = np.arange(8)
    size = np.take_along_axis(head, size_at[:, None] + places, axis=1)
    told = np.where(places < size_bytes[:, None], size << (8 * places).astype(np.uint64), 0).sum(axis=1, dtype=np.uint64)
    told += np.where(size_bytes == 2, 256, 0).astype(np.uint64)
    blocks = size_at + size_bytes
    is_plain = (descriptor & 0x0B == 0) & ((window <= _MOST_OF_WINDOW) | (is_single == 1))  # no reserved bit, no dictionary
    good = (head[:, :4] == _MAGIC).all(axis=1) & is_plain & (size_bytes > 0) & (told == decoded_bytes) & (blocks <= sizes)
    return blocks, np.minimum(window, MOST_OF_BLOCK), descriptor >> 2 & 1, good


def _windows(descriptors: Numbers) -> Numbers:
    # RFC 8878, 3.1.1.1.2: a five-bit exponent and a three-bit mantissa (eighths).
    base = np.int64(1) << (10 + (descriptors >> 3))
    windows: Numbers = base + (base >> 3) * (descriptors & 7)
    return windows
