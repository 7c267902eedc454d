"""The package's native half asks for no function that tools/wheels could not link for the oldest glibc of the wheels."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

import penstock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packaging" / "manylinux"))
import glibc_stubs  # noqa: E402


@pytest.mark.skipif(
    platform.machine() not in glibc_stubs.TARGETS or platform.libc_ver()[0] != "glibc", reason="wheels are made with glibc on x86-64 and aarch64 only"
)
def test_the_native_half_links_with_the_oldest_glibc_of_the_wheels() -> None:
    native = Path(penstock._native.__file__)
    assert glibc_stubs.complaints([native]) == []
