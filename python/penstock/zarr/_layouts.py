"""From a zarr array, of zarr 2 or 3, to the layout of its chunk files, or to the reason why only zarr can read it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import zarr

from penstock.zarr._plan import ArrayLayout, Unsupported

__all__ = ["ZARR_MAJOR", "layout_of"]

ZARR_MAJOR = int(zarr.__version__.split(".")[0])

# Kinds of dtype whose elements are plain bytes of one size: bool, numbers, times, and strings of fixed length.
_PLAIN_KINDS = "biufcmMSU"


def layout_of(array: Any) -> ArrayLayout:
    """Raises TypeError for what is no zarr array, Unsupported when its chunks are not plain bytes in local files."""
    if not isinstance(array, zarr.Array):
        raise TypeError(f"penstock.zarr reads a zarr.Array, not a {type(array).__name__}")
    layout = _layout3(array) if ZARR_MAJOR >= 3 else _layout2(array)
    if layout.dtype.kind not in _PLAIN_KINDS:
        raise Unsupported(f"its dtype {layout.dtype} is not of plain elements")
    if not layout.dtype.isnative:
        raise Unsupported(f"its dtype {layout.dtype} is not of this machine's byte order")
    return layout


def _layout3(array: Any) -> ArrayLayout:
    metadata = array.metadata.to_dict()
    if metadata["zarr_format"] == 2:
        _check_v2(metadata)
        chunk_shape = tuple(metadata["chunks"])
        name = _v2_names(metadata.get("dimension_separator", "."))
    else:
        _check_v3(metadata, array.dtype)
        chunk_shape = tuple(metadata["chunk_grid"]["configuration"]["chunk_shape"])
        name = array.metadata.encode_chunk_key
    config = getattr(getattr(array, "async_array", None), "config", None)
    if not getattr(config, "read_missing_chunks", True):
        raise Unsupported("its configuration makes missing chunks an error")
    return ArrayLayout(
        folder=os.path.join(_folder3(array.store), array.path),
        shape=tuple(array.shape),
        chunk_shape=chunk_shape,
        dtype=np.dtype(array.dtype),
        fill_value=array.metadata.fill_value,
        chunk_name=name,
    )


def _folder3(store: Any) -> str:
    from zarr.storage import LocalStore

    from penstock.zarr._store3 import GDSStore

    # A subclass that reads in another way may also store in another way.
    if isinstance(store, LocalStore) and type(store).get in (LocalStore.get, GDSStore.get):
        return os.fspath(store.root)
    raise Unsupported(f"its store is a {type(store).__name__}, not a folder of the local file system")


def _check_v3(metadata: dict[str, Any], dtype: np.dtype[Any]) -> None:
    if metadata["chunk_grid"]["name"] != "regular":
        raise Unsupported(f"its chunk grid is {metadata['chunk_grid']['name']}")
    if metadata.get("storage_transformers"):
        raise Unsupported("it has storage transformers")
    codecs = list(metadata["codecs"])
    names = [codec["name"] for codec in codecs]
    if names != ["bytes"]:
        raise Unsupported(f"its chunks are stored through {', '.join(names)}")
    endian = codecs[0].get("configuration", {}).get("endian", sys.byteorder)
    if endian != sys.byteorder and dtype.itemsize > 1:
        raise Unsupported(f"its chunks are stored {endian}-endian")


def _check_v2(metadata: dict[str, Any]) -> None:
    if metadata.get("compressor") is not None:
        compressor = metadata["compressor"]
        name = compressor["id"] if isinstance(compressor, dict) else compressor.codec_id
        raise Unsupported(f"its chunks are compressed with {name}")
    if metadata.get("filters"):
        raise Unsupported("its chunks are stored through filters")
    if metadata.get("order", "C") != "C" and len(metadata["chunks"]) > 1:
        raise Unsupported("its chunks are stored in Fortran order")


def _v2_names(separator: str) -> Callable[[tuple[int, ...]], str]:
    return lambda coordinates: separator.join(map(str, coordinates)) or "0"


def _layout2(array: Any) -> ArrayLayout:
    from penstock.zarr._store2 import GDSStore

    plain: Any = GDSStore.__base__  # DirectoryStore
    if getattr(array, "_version", 2) != 2:
        raise Unsupported("it is of zarr 2's experimental format 3")
    store = array.chunk_store
    readers = (plain.__getitem__, GDSStore.__getitem__)
    if not (isinstance(store, plain) and type(store).__getitem__ in readers):
        raise Unsupported(f"its store is a {type(store).__name__}, not a folder of the local file system")
    _check_v2(
        {
            "compressor": array.compressor and array.compressor.get_config(),
            "filters": array.filters,
            "order": array.order,
            "chunks": array.chunks,
        }
    )
    return ArrayLayout(
        folder=store.path,
        shape=tuple(array.shape),
        chunk_shape=tuple(array.chunks),
        dtype=np.dtype(array.dtype),
        fill_value=array.fill_value,
        chunk_name=lambda coordinates: store._normalize_key(array._chunk_key(coordinates or (0,))),
    )
