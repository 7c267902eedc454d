"""`kvikio.zarr`: GDSStore for zarr. See penstock.zarr. nvCOMP's compressors are not available."""

from penstock.zarr import GDSStore

__all__ = ["MINIMUM_ZARR_VERSION", "GDSStore", "supported"]

MINIMUM_ZARR_VERSION = "3.1"
"""The oldest zarr that a GDSStore works with."""

supported = True
"""True if the installed zarr is supported. Always True, because importing this module fails otherwise."""


def __dir__() -> list[str]:
    return sorted(__all__)
