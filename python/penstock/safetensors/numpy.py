"""The functions of `safetensors.numpy` on Penstock, with the same names, arguments and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy

from .._tensors.frameworks import framework_on
from .._tensors.load_file import Slices, check_backend
from .._tensors.load_file import load_file as _load_file
from .._tensors.safe_open import safe_open
from .._tensors.save_file import save_file as _save_file
from .._tensors.save_file import saved, tensor_of
from .._tensors.sources import Path, Paths, StorageOptions
from ._from_bytes import loaded
from ._serialize import TensorSpec, deserialize, serialize, serialize_file

__all__ = [
    "TensorSpec",
    "deserialize",
    "load",
    "load_file",
    "safe_open",
    "save",
    "save_file",
    "serialize",
    "serialize_file",
]


def load_file(
    filename: Paths,
    *,
    backend: str = "mmap",
    slices: Slices | None = None,
    names: Iterable[str] | None = None,
    storage_options: StorageOptions | None = None,
) -> dict[str, numpy.ndarray[Any, Any]]:
    """Loads a file's tensors as NumPy arrays. See `penstock.safetensors.load_file()`. `backend` has no effect."""
    check_backend(backend)
    return _load_file(filename, None, "np", slices=slices, names=names, storage_options=storage_options)


def load(data: bytes) -> dict[str, numpy.ndarray[Any, Any]]:
    """Returns the tensors in a file's content. Raises SafetensorError for damaged content."""
    return loaded(data, framework_on("np", None))


def save_file(
    tensor_dict: Mapping[str, numpy.ndarray[Any, Any]],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Writes arrays to a file. See `penstock.safetensors.save_file()`."""
    _save_file(tensor_dict, filename, metadata, storage_options=storage_options)


def save(tensor_dict: Mapping[str, numpy.ndarray[Any, Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the content of a file with these arrays. Raises SafetensorError for an array that the format cannot represent."""
    return saved({name: tensor_of(name, value) for name, value in tensor_dict.items()}, metadata)


def __dir__() -> list[str]:
    return sorted(__all__)
