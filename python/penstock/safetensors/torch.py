"""safetensors.torch over Penstock: names, arguments, results and exceptions are that module's. What differs is in docs/TENSORS.md."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .._pieces import Progress
from .._saving import SaveFuture, save_in_background
from ._devices import DeviceMap
from ._errors import listed
from ._frameworks import framework_on
from ._image import TensorsImage
from ._load import Slices
from ._load import load_file as _load_file
from ._memory import loaded
from ._open import check_backend, safe_open
from ._raw import TensorSpec, deserialize, serialize, serialize_file
from ._reading import Links
from ._save import Tensor, saved, tensor_of, write_file
from ._sources import Path, Paths

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
) -> dict[str, torch.Tensor]:
    """The tensors of a file. See penstock.safetensors.load_file(). backend changes nothing."""
    check_backend(backend)
    return _load_file(filename, device, "pt", device_map=device_map, slices=slices, names=names, links=links)


def load(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors of a file's content, on the host."""
    return loaded(data, framework_on("pt", None))


def save_file(tensors: dict[str, torch.Tensor], filename: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors to a file. See penstock.safetensors.save_file().

    Raises ValueError for tensors that are not contiguous or sparse, and for what is no dict of tensors; RuntimeError for tensors that share memory.
    """
    write_file(_checked(tensors), filename, metadata)


def save_file_async(
    tensors: dict[str, torch.Tensor],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    snapshot: str = "auto",
    *,
    progress: Progress | None = None,
) -> SaveFuture:
    """As save_file(), in the background, of a copy of the tensors: they may be changed as soon as this returns. Not a name of safetensors'.

    snapshot, progress, the order of several saves to one path, and the future are those of penstock.torch.save_async().
    Raises at once what save_file() raises for its arguments.
    """
    return save_in_background(os.fsdecode(filename), TensorsImage(_checked(tensors), metadata, snapshot), progress)


def save(tensors: dict[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The content of a file of these tensors. Raises as save_file()."""
    return saved(_checked(tensors), metadata)


def save_model(model: torch.nn.Module, filename: Path, metadata: dict[str, str] | None = None, force_contiguous: bool = True) -> None:
    """Writes a module's state. Of tensors that share memory one is written, and the metadata says for the others which.

    RuntimeError: none of those that share memory is all of it.
    """
    state = model.state_dict()
    told = metadata
    for kept, others in _removable(state).items():
        told = {} if told is None else told
        for each in others:
            told.setdefault(each, kept)
            del state[each]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(dict(state), filename, told)


def load_model(
    model: torch.nn.Module, filename: Paths, strict: bool = True, device: Any = "cpu", *, backend: str = "mmap"
) -> tuple[set[str], list[str]]:
    """Loads what save_model() has written, by way of device, and by the module's own load_state_dict(). penstock.safetensors.load_into() needs no
    second copy. Returns the names that are missing in the file, and those that the module has not. RuntimeError: strict, and there are some.
    """
    loaded_state = load_file(filename, device, backend=backend)
    removable = _removable(model.state_dict(), preferred=set(loaded_state))
    result = model.load_state_dict(loaded_state, strict=False)
    missing, unexpected = set(result.missing_keys), list(result.unexpected_keys)
    for others in removable.values():
        unexpected += [each for each in others if each not in missing]
        missing -= set(others)
    if strict and (missing or unexpected):
        problems = [f"Missing key(s) in state_dict: {listed(sorted(missing))}"] if missing else []
        problems += [f"Unexpected key(s) in state_dict: {listed(sorted(unexpected))}"] if unexpected else []
        raise RuntimeError("\n    ".join([f"Error(s) in loading state_dict for {type(model).__name__}:", *problems]))
    return missing, unexpected


def storage_ptr(tensor: torch.Tensor) -> int:
    """The address of the storage that a tensor lies in; 0: it has none."""
    return int(tensor.untyped_storage().data_ptr())


def storage_size(tensor: torch.Tensor) -> int:
    """The bytes of the storage that a tensor lies in."""
    return int(tensor.untyped_storage().nbytes())


def _checked(tensors: Any) -> dict[str, Tensor]:
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ValueError(f"sparse tensors cannot be saved: {listed(sparse)}; to_dense() makes them dense, and maybe much larger")
    shared = [sorted(group) for group in _sharing(tensors) if len(group) > 1]
    if shared:
        groups = "; ".join(listed(group) for group in shared)
        raise RuntimeError(f"tensors that share memory would be in the file twice, and be apart once they are loaded: {groups}; save_model() saves one of them")
    scattered = [name for name, tensor in tensors.items() if not tensor.is_contiguous()]
    if scattered:
        raise ValueError(f"non contiguous tensors cannot be saved: {listed(scattered)}; contiguous() makes a copy that can")
    return {name: tensor_of(name, tensor) for name, tensor in tensors.items()}


def _sharing(tensors: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """The names of tensors whose bytes overlap, and each of the others alone."""
    storages: dict[tuple[torch.device, int, int], list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "meta" or tensor.layout != torch.strided:
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() and storage.nbytes():
            key = tensor.device, storage.data_ptr(), storage.nbytes()
            storages.setdefault(key, []).append((tensor.data_ptr(), _end_of(tensor), name))
    groups: list[set[str]] = []
    for spans in storages.values():
        end = 0
        for start, stop, name in sorted(spans):
            if start < end:
                groups[-1].add(name)
            else:
                groups.append({name})
            end = max(end, stop)
    return groups


def _end_of(tensor: torch.Tensor) -> int:
    """The address behind its last element."""
    if tensor.numel() == 0:
        return int(tensor.data_ptr())
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
    return int(tensor.data_ptr() + (last + 1) * tensor.element_size())


def _removable(state: Mapping[str, torch.Tensor], preferred: set[str] | None = None) -> dict[str, list[str]]:
    """Of each group that shares memory, the name to keep: the others. preferred: names to keep rather than the first one."""
    found = {}
    for group in _sharing(state):
        if len(group) < 2:
            continue
        complete = sorted(name for name in group if _is_all_of_its_storage(state[name]))
        if not complete:
            raise RuntimeError(f"none of these tensors, which share memory, is all of it, so that none can be saved for the others: {listed(sorted(group))}")
        kept = next((name for name in complete if preferred is not None and name in preferred), complete[0])
        found[kept] = sorted(group - {kept})
    return found


def _is_all_of_its_storage(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    return bool(tensor.data_ptr() == storage.data_ptr() and tensor.numel() * tensor.element_size() == storage.nbytes())
