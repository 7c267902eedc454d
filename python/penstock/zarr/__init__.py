"""Zarr arrays through Penstock: `load` reads and decodes all or part of an array; `GDSStore` and `RemoteStore` are stores for zarr.

    store = penstock.zarr.GDSStore("data.zarr")
    array = zarr.open_array(store, path="temperature")
    values = penstock.zarr.load(array, device="cuda:0")     # a CuPy array
    print(penstock.zarr.explain(array))                     # how load() reads it, and why
    penstock.zarr.install()                                 # zarr's array[...] reads and decodes as load() does
    store = penstock.zarr.RemoteStore("s3://bucket/data.zarr")  # read-only

This module requires zarr: `pip install "penstock[zarr]"`.
"""

from __future__ import annotations

try:
    import zarr as _zarr
except ImportError as error:
    raise ImportError('penstock.zarr requires zarr: pip install "penstock[zarr]"', name="zarr") from error

if tuple(int(number) for number in _zarr.__version__.split(".")[:2]) < (3, 1):
    raise ImportError(f"penstock.zarr requires zarr 3.1 or newer, but zarr {_zarr.__version__} is installed", name="zarr")

from penstock.zarr._load_array import Explanation, explain, load
from penstock.zarr._pipeline import CodecPipeline, install
from penstock.zarr._remote import RemoteStore
from penstock.zarr._store3 import GDSStore

__all__ = ["CodecPipeline", "Explanation", "GDSStore", "RemoteStore", "explain", "install", "load"]


def __dir__() -> list[str]:
    return sorted(__all__)
