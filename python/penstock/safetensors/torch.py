"""The functions of `safetensors.torch` on Penstock, with the same names, arguments, results and exceptions, plus a few extra arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .._core.first_load import first_load
from .._core.lazy import lazily

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._tensors.device_map import DeviceMap
    from .._tensors.load_file import Slices
    from .._tensors.reads import Links
    from .._tensors.safe_open import safe_open
    from .._tensors.sources import Paths, StorageOptions
    from ._serialize import TensorSpec, deserialize, serialize, serialize_file
    from ._torch_models import load_model, save_model
    from ._torch_save import save, save_file, save_file_async
else:
    __getattr__ = lazily(
        __name__,
        __package__,
        {
            ".._tensors.safe_open": ("safe_open",),
            "._serialize": ("TensorSpec", "deserialize", "serialize", "serialize_file"),
            "._torch_models": ("load_model", "save_model"),
            "._torch_save": ("save", "save_file", "save_file_async"),
        },
    )

__all__ = [
    "TensorSpec",
    "deserialize",
    "load",
    "load_file",
    "load_model",
    "safe_open",
    "save",
    "save_file",
    "save_file_async",
    "save_model",
    "serialize",
    "serialize_file",
    "storage_ptr",
    "storage_size",
]


def load_file(
    filename: Paths,
    device: Any = "cpu",
    *,
    backend: str = "mmap",
    device_map: DeviceMap | None = None,
    slices: Slices | None = None,
    names: Iterable[str] | None = None,
    links: Links | None = None,
    max_host_bytes: int | None = None,
    storage_options: StorageOptions | None = None,
) -> dict[str, torch.Tensor]:
    """Loads a file's tensors as PyTorch tensors. See `penstock.safetensors.load_file()`. `backend` has no effect."""
    as_is = all(each is None for each in (device_map, slices, names, links, max_host_bytes, storage_options))
    with first_load.of(filename, device, as_torch=as_is):
        from .._tensors.load_file import check_backend
        from .._tensors.load_file import load_file as load

        check_backend(backend)
        return load(
            filename,
            device,
            "pt",
            device_map=device_map,
            slices=slices,
            names=names,
            links=links,
            max_host_bytes=max_host_bytes,
            storage_options=storage_options,
        )


def load(data: bytes) -> dict[str, torch.Tensor]:
    """Returns the tensors in a file's content, on the host. Raises SafetensorError for damaged content."""
    from .._tensors.frameworks import framework_on
    from ._from_bytes import loaded

    return loaded(data, framework_on("pt", None))


def storage_ptr(tensor: torch.Tensor) -> int:
    """Returns the address of a tensor's storage; 0 for a tensor without storage."""
    return int(tensor.untyped_storage().data_ptr())


def storage_size(tensor: torch.Tensor) -> int:
    """Returns the size of a tensor's storage, in bytes."""
    return int(tensor.untyped_storage().nbytes())


def __dir__() -> list[str]:
    return sorted(__all__)


first_load.imports_end()
