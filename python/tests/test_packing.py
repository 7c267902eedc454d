"""Tests the placing of arrays in one allocation."""

from __future__ import annotations

import pytest

from penstock._core.packing import ALIGNMENT, aligned, packed


@pytest.mark.parametrize(
    "sizes,alignment,start,starts,end",
    [
        ([], 256, 0, [], 0),
        ([], 256, 512, [], 512),
        ([1], 256, 0, [0], 256),
        ([256, 257, 0, 5], 256, 0, [0, 256, 768, 768], 1024),
        ([3, 3], 4096, 8192, [8192, 12288], 16384),
        ([1 << 40, 1], 64, 0, [0, 1 << 40], (1 << 40) + 64),
        (iter([1, 1]), 2, 0, [0, 2], 4),
    ],
)
def test_sizes_start_one_after_another_at_multiples_of_the_alignment(sizes: list[int], alignment: int, start: int, starts: list[int], end: int) -> None:
    assert packed(sizes, alignment, start) == (starts, end)


def test_tensors_start_at_multiples_of_the_engine_s_alignment() -> None:
    assert packed([1, 1]) == ([0, ALIGNMENT], 2 * ALIGNMENT)
    assert [aligned(each) for each in (0, 1, ALIGNMENT, ALIGNMENT + 1)] == [0, ALIGNMENT, ALIGNMENT, 2 * ALIGNMENT]
