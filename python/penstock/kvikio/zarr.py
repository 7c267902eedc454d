"""`kvikio.zarr`: GDSStore, for the zarr that is installed (2 or 3). See penstock.zarr."""

from penstock.zarr import GDSStore

__all__ = ["GDSStore"]
