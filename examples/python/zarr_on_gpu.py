#!/usr/bin/env python3
"""Writes a zarr array through penstock's store, then reads all of it and a box of it into the memory of a GPU.

    zarr_on_gpu.py [FOLDER]        FOLDER: where to make the array (default: a temporary folder)

Where there is no GPU, the host device "host:0" stands in for it. Needs zarr 3, and cupy for a GPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import numpy as np
import zarr

import penstock
from penstock.zarr import GDSStore, explain, load


def main(folder: str) -> None:
    device = penstock.devices()[0].name  # "cuda:0", or "host:0"

    # An uncompressed array is what load() reads by itself. Everything else works too, at zarr's speed.
    data = np.random.default_rng(1).random((64, 256, 256), dtype=np.float32)
    array = zarr.create_array(GDSStore(folder), shape=data.shape, chunks=(4, 256, 256), dtype="f4", compressors=None)
    array[...] = data

    show("all of it", array, ..., device, data)
    show("a box of it", array, (slice(10, 30), slice(None), slice(64, 192)), device, data)
    show("every second plane", array, slice(None, None, 2), device, data)

    # zarr itself reads through the store too: with zarr.config.enable_gpu(), into GPU memory.
    again = zarr.open_array(GDSStore(folder), mode="r")
    print(f"zarr reads the same through the store: {np.array_equal(np.asarray(again[5]), data[5])}")


def show(what: str, array: zarr.Array[Any], selection: Any, device: str, data: np.ndarray[Any, Any]) -> None:
    print(f"{what}: {explain(array, selection)}")
    start = time.perf_counter()
    result = load(array, selection, device=device)
    took = time.perf_counter() - start
    right = np.array_equal(on_host(result, data[selection].shape), data[selection])
    print(f"  {result.nbytes / 1e6:.1f} MB in the memory of {device} after {took * 1e3:.1f} ms; as written: {right}")
    if not right:
        sys.exit("the data is not what was written")


def on_host(result: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A NumPy array of what lies on a device: a cupy array, or the host device's memory."""
    if isinstance(result, penstock.DeviceBuffer):
        return np.frombuffer(result.to_host(), np.float32).reshape(shape)
    return np.asarray(result.get())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
