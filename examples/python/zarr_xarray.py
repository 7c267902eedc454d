#!/usr/bin/env python3
"""Opens a zarr store with xarray through penstock, and reads a part of it.

    zarr_xarray.py [FOLDER]        FOLDER: where to make the store (default: a temporary folder)

Needs zarr 3 and xarray. For objects on servers: RemoteStore("s3://bucket/data.zarr") in place of GDSStore(folder).
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np
import xarray

import penstock.zarr
from penstock.zarr import GDSStore


def main(folder: str) -> None:
    penstock.zarr.install()  # before arrays are opened: zarr then reads whole selections through penstock

    days, rows, columns = 40, 180, 360
    values = np.random.default_rng(1).random((days, rows, columns), dtype=np.float32)
    made = xarray.Dataset({"temperature": (("day", "latitude", "longitude"), values)}, coords={"day": np.arange(days)})
    made.to_zarr(GDSStore(folder), mode="w", encoding={"temperature": {"chunks": (4, 90, 360)}})

    # chunks=None: xarray reads what is asked for when it is asked for, without Dask.
    found = xarray.open_zarr(GDSStore(folder, read_only=True), chunks=None)
    week = found["temperature"].isel(day=slice(7, 14), latitude=slice(30, 120)).values
    right = np.array_equal(week, values[7:14, 30:120])
    print(f"{found['temperature'].nbytes / 1e6:.1f} MB in the store, {week.nbytes / 1e6:.1f} MB read; as written: {right}")
    if not right:
        sys.exit("the data is not what was written")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
