"""`kvikio.zarr`: GDSStore, for the zarr that is installed (2 or 3). See penstock.zarr. No compressors of nvCOMP's."""

from penstock.zarr import GDSStore

__all__ = ["MINIMUM_ZARR_VERSION", "GDSStore", "supported"]

MINIMUM_ZARR_VERSION = "2.15"
"""The oldest zarr that a GDSStore works with; of zarr 3 it is 3.1."""

supported = True
"""Whether the zarr that is installed is one of those: importing this fails where none is."""
