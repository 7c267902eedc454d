"""`kvikio.zarr`: GDSStore for the installed zarr (2 or 3). See penstock.zarr. nvCOMP's compressors are not available."""

from typing import TYPE_CHECKING

import penstock.zarr
from penstock.zarr import GDSStore

__all__ = ["MINIMUM_ZARR_VERSION", "GDSStore", "supported"]

MINIMUM_ZARR_VERSION = "2.15"
"""The oldest zarr that a GDSStore works with; of zarr 3 it is 3.1."""

if not TYPE_CHECKING and hasattr(penstock.zarr, "open_cupy_array"):  # zarr 2 is installed
    from penstock.zarr import open_cupy_array

    __all__ += ["open_cupy_array"]

supported = True
"""Whether the installed zarr is supported. Always True: importing this module fails otherwise."""


def __dir__() -> list[str]:
    return sorted(__all__)
