"""What files of tests that read by zarr import in place of the fixture of conftest.py."""

import gc
from collections.abc import Iterator

import pytest

from penstock import _native


@pytest.fixture(scope="module", autouse=True)
def stays_level() -> Iterator[None]:
    """zarr keeps an event loop and its threads; a file of tests leaves nothing of penstock's."""
    yield
    gc.collect()
    _native._settle()
    assert (_native._under_way(), _native._held_memories()) == (0, 0)
