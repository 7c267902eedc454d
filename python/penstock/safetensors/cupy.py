"""The functions of `penstock.safetensors.numpy`, for CuPy. The safetensors library has no such module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import cupy  # noqa: F401  # without CuPy, this module is useless

from .._tensors.device_map import DeviceMap
from .._tensors.frameworks import framework_on
from .._tensors.load_file import Slices
from .._tensors.load_file import load_file as _load_file
from .._tensors.reads import Links
from .._tensors.save_file import save_file as _save_file
from .._tensors.save_file import saved, tensor_of
from .._tensors.sources import Path, Paths, StorageOptions
from ._from_bytes import loaded

__all__ = ["load", "load_file", "save", "save_file"]


def load_file(
    filename: Paths,
    device: Any = None,
    *,
    device_map: DeviceMap | None = None,
    slices: Slices | None = None,
    names: Iterable[str] | None = None,
    links: Links | None = None,
    max_host_bytes: int | None = None,
    storage_options: StorageOptions | None = None,
) -> dict[str, Any]:
    """Loads a file's tensors as CuPy arrays. See `penstock.safetensors.load_file()`.

    - `device`: "cuda:1" or a number. None means the current GPU.
    """
    return _load_file(
        filename,
        device,
        "cupy",
        device_map=device_map,
        slices=slices,
        names=names,
        links=links,
        max_host_bytes=max_host_bytes,
        storage_options=storage_options,
    )


def load(data: bytes, device: Any = None) -> dict[str, Any]:
    """Loads the tensors in a file's content onto the device."""
    return loaded(data, framework_on("cupy", device))


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Writes arrays to a file, directly from GPU memory. See `penstock.safetensors.save_file()`."""
    _save_file(tensors, filename, metadata, storage_options=storage_options)


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the content of a file with these arrays. Raises SafetensorError for an array that the format cannot represent."""
    return saved({name: tensor_of(name, value) for name, value in tensors.items()}, metadata)


def __dir__() -> list[str]:
    return sorted(__all__)
