"""Determines the layout of a zarr array's chunk files, or the reason why only zarr can read it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import zarr

from penstock.zarr._chunk_plan import ArrayLayout, Unsupported
from penstock.zarr._codecs import Stored, byte_codecs2, stored3

__all__ = ["layout_of", "layout_of_metadata"]

# dtype kinds whose elements are plain bytes of a fixed size: bool, numbers, times, fixed-length strings, and records of these.
_PLAIN_KINDS = "biufcmMSUV"


def layout_of(array: Any) -> ArrayLayout:
    """Returns an array's layout. Raises TypeError if it is not a zarr array, and Unsupported if only zarr can read its chunks."""
    if not isinstance(array, zarr.Array):
        raise TypeError(f"array must be a zarr.Array, not {type(array).__name__}")
    config = getattr(getattr(array, "async_array", None), "config", None)
    if not getattr(config, "read_missing_chunks", True):
        raise Unsupported("its configuration treats missing chunks as errors")
    return layout_of_metadata(array.metadata, array.store, array.path)


def layout_of_metadata(metadata: Any, store: Any, folder: str) -> ArrayLayout:
    """Returns an array's layout. File names are paths below the store's folder. Raises the errors of layout_of()."""
    try:
        dtype, stored, name = _stored_of(metadata)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # zarr decides whether such metadata is invalid, and reports the error.
        raise Unsupported(f"its metadata could not be read ({type(error).__name__}: {error})") from error
    path_of, open_far = _files_of(store, folder)
    return ArrayLayout(
        path_of=path_of,
        open_far=open_far,
        shape=tuple(metadata.shape),
        chunk_shape=stored.chunk_shape,
        dtype=dtype,
        fill_value=_fill_value(metadata),
        chunk_name=name,
        stored_dtype=stored.dtype,
        stored_axes=stored.axes,
        codecs=stored.codecs,
        shards=stored.shards,
    )


def _stored_of(metadata: Any) -> tuple[np.dtype[Any], Stored, Callable[[tuple[int, ...]], str]]:
    """Returns the dtype, the storage format of chunks, and the function that names files. Raises Unsupported, or any exception for malformed
    metadata."""
    told = metadata.to_dict()
    if told["zarr_format"] == 2:
        dtype = _plain_dtype(metadata.dtype.to_native_dtype())
        chunk_shape = tuple(told["chunks"])
        codecs = byte_codecs2(told.get("filters"), told.get("compressor"))
        stored = Stored(chunk_shape, dtype, _axes2(told.get("order", "C"), chunk_shape), codecs, None)
        name = _v2_names(told.get("dimension_separator", "."))
    else:
        dtype = _plain_dtype(metadata.data_type.to_native_dtype())
        _check_v3(told)
        stored = stored3(told["codecs"], tuple(told["chunk_grid"]["configuration"]["chunk_shape"]), dtype)
        name = metadata.encode_chunk_key
    if 0 in stored.chunk_shape and 0 not in metadata.shape:
        raise Unsupported("its chunks have no elements")
    if math.prod(stored.chunk_shape) * dtype.itemsize >= 1 << 63:
        raise Unsupported("its chunks are too large for any memory")
    return dtype, stored, name


def _fill_value(metadata: Any) -> Any:
    """Returns the fill value for missing chunks. Format 2 allows null: zarr then uses the dtype's default, which for dates is NaT, not zero."""
    if metadata.fill_value is not None or metadata.zarr_format != 2:
        return metadata.fill_value
    return metadata.dtype.default_scalar()


def _plain_dtype(dtype: Any) -> np.dtype[Any]:
    """Raises Unsupported if elements are not plain bytes of a fixed size."""
    found: np.dtype[Any] = np.dtype(dtype)
    if found.kind not in _PLAIN_KINDS or found.hasobject or found.itemsize == 0:
        raise Unsupported(f"its dtype {found} is not a plain data type")
    return found


def _files_of(store: Any, folder: str) -> tuple[Callable[[str], str], Callable[[str], Any] | None]:
    """Returns the function that names an array's files, and the function that opens them on a server."""
    from zarr.storage import LocalStore

    from penstock.zarr._remote import RemoteStore
    from penstock.zarr._store3 import GDSStore

    # A subclass that reads values differently may also store them differently.
    if isinstance(store, LocalStore) and type(store).get in (LocalStore.get, GDSStore.get):
        root = os.path.join(os.fspath(store.root), folder)
        return (lambda name: os.path.join(root, name)), None
    if isinstance(store, RemoteStore) and type(store).get is RemoteStore.get:
        below = f"{folder}/" if folder else ""
        return (lambda name: store._path(below + name)), store._files._open
    raise Unsupported(f"its store is a {type(store).__name__}, not a local folder or a RemoteStore")


def _check_v3(metadata: dict[str, Any]) -> None:
    if metadata["chunk_grid"]["name"] != "regular":
        raise Unsupported(f"its chunk grid is {metadata['chunk_grid']['name']}")
    if metadata.get("storage_transformers"):
        raise Unsupported("it has storage transformers")


def _axes2(order: str, chunk_shape: tuple[int, ...]) -> tuple[int, ...]:
    axes = range(len(chunk_shape))
    return tuple(axes if order == "C" else reversed(axes))


def _v2_names(separator: str) -> Callable[[tuple[int, ...]], str]:
    return lambda coordinates: separator.join(map(str, coordinates)) or "0"
