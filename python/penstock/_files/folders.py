"""Chooses, by name, the file or files in a folder that penstock.load() loads as a model. Each file's content determines how it is loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .. import _native
from .._core.errors import Error, InvalidArgument, NotFound, PermissionDenied

__all__ = ["files_of_folder", "files_of_url"]


class _Other(NamedTuple):
    """A kind of folder that penstock.load() does not load."""

    marks: tuple[str, ...]  # files that only such folders contain
    name: str
    reader: str


_OTHERS = (
    _Other(("zarr.json", ".zarray", ".zgroup"), "a Zarr store", "penstock.zarr.load()"),
    _Other((".metadata",), "a torch.distributed.checkpoint checkpoint", "penstock.torch.checkpoint.FileSystemReader"),
    _Other(("saved_model.pb",), "a TensorFlow SavedModel", "tensorflow.saved_model.load()"),
)

# In order of preference. Each line lists extensions, and the name to prefer if several files have one of them.
_MODELS: tuple[tuple[tuple[str, ...], str], ...] = (
    ((".safetensors.index.json",), "model.safetensors.index.json"),
    ((".safetensors",), "model.safetensors"),
    ((".bin.index.json",), "pytorch_model.bin.index.json"),
    ((".bin", ".pt", ".pth", ".ckpt"), "pytorch_model.bin"),
    ((".gguf",), ""),
)
_shard = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)", re.DOTALL)


def files_of_folder(folder: str) -> list[str]:
    """Returns the paths of the files to load. Raises NotFound if the folder contains no model or shards are missing, and InvalidArgument if it
    contains several models.
    """
    return [os.path.join(folder, name) for name in _chosen(sorted(os.listdir(folder)), folder)]


def files_of_url(url: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    """Returns the URLs of the files to load for a URL that may be a folder; empty if there is no model there."""
    try:
        found = _native.find_model(url, storage_options)
    except (NotFound, PermissionDenied):
        names = _listed(url, storage_options)
        return [_below(url, name) for name in _chosen(names, _native.shown_name(url))] if names else []
    return [] if found == url else [found]


def _below(url: str, name: str) -> str:
    return f"{url.rstrip('/')}/{name}"


def _listed(url: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    """Returns the names of the objects in a folder; empty if the server does not list them."""
    folder = _below(url, "")
    try:
        rows = _native.list_remote(folder, storage_options=storage_options, one_level=True)
    except (Error, NotImplementedError):
        return []
    return sorted(name.rstrip("/").rpartition("/")[2] for name, _ in rows)


def _chosen(names: Sequence[str], folder: str) -> list[str]:
    for other in _OTHERS:
        if any(mark in names for mark in other.marks):
            raise InvalidArgument(f"{folder} is {other.name}: read it with {other.reader}", code="invalid_argument", filename=folder)
    for endings, usual in _MODELS:
        fitting = [name for name in names if name.endswith(endings)]
        if usual in fitting:
            return [usual]
        sets = _shard_sets(fitting)
        if len(sets) == 1:
            return _whole(*next(iter(sets.items())), folder)
        if len(fitting) == 1:
            return fitting
        if fitting:
            listed = ", ".join(fitting[:20]) + (f" and {len(fitting) - 20} more" if len(fitting) > 20 else "")
            raise InvalidArgument(f"{folder}: the folder has several models; pass the path of one: {listed}", code="invalid_argument", filename=folder)
    endings_wanted = ", ".join(ending for endings, _ in _MODELS for ending in endings if not ending.endswith(".json"))
    raise NotFound(f"{folder}: the folder contains no model file, with the extension {endings_wanted}", code="not_found", filename=folder)


def _shard_sets(names: Sequence[str]) -> dict[tuple[str, str, str], list[str]]:
    """Groups names such as "model-00001-of-00003.safetensors" by their common part."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for name in names:
        match = _shard.fullmatch(name)
        if match is not None:
            found.setdefault((match[1], match[3], match[4]), []).append(name)
    return found


def _whole(common: tuple[str, str, str], shards: list[str], folder: str) -> list[str]:
    stem, count, ending = common
    wanted = [f"{stem}-{number:05}-of-{count}{ending}" for number in range(1, min(int(count), 1 + 100 * len(shards)) + 1)]
    missing = [name for name in wanted if name not in shards]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise NotFound(f"{folder}: shards of the model are missing: {missing[0]}{more}", code="not_found", filename=folder)
    return wanted[:1] if ending == ".gguf" else wanted  # opening one GGUF file opens the others
