"""The functions of `penstock.load()`, one for each kind of file.

A file's content determines its kind, not its name. The table of kinds is in src/tensors/file_kinds.cc.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import _native
from .._core.devices import name_for_torch
from .._core.errors import Error, InvalidArgument
from .._core.libraries import choose_library
from .._core.urls import is_url
from .._core.windows import Window
from .npy import load_npy

__all__ = ["KINDS", "Content", "Kind", "Request", "find_kind"]


class Request(NamedTuple):
    """The arguments of `penstock.load()`. Other functions can open `path` too."""

    path: str
    device: Any
    framework: str | None
    names: list[str] | None
    storage_options: Mapping[str, Any] | None


@dataclass
class Content:
    """An open file. `name` is for messages. `window`: the file with the parts that are already in memory."""

    file: _native.File
    size: int
    name: str
    window: Window | None = None


class Kind(NamedTuple):
    """What `penstock.load()` does with a kind of file. `takes_names`: `penstock.load(names=)` works."""

    load: Callable[[Content, Request], Any]
    takes_names: bool = False


def find_kind(content: Content) -> _native.FileKind | None:
    """Returns the kind of a file, or None if `penstock.load()` treats it as plain bytes."""
    if is_url(content.file.name) and content.name.endswith(".npz"):  # so that the directory of the archive is read only once
        from .npz import has_arrays, window_of

        content.window = window_of(content.file, content.size)
        if has_arrays(content.window):
            return next(kind for kind in _native.file_kinds() if kind.word == "npz")
    kind = _native.find_file_kind(content.file)
    return kind if kind is not None and kind.reader else None


# --- loading


def _load_npy(content: Content, request: Request) -> Any:
    return load_npy(content.file, content.name, request.device, request.framework)


def _load_npz(content: Content, request: Request) -> Any:
    from .npz import load_npz  # imports zipfile, which other kinds of files do not need

    return load_npz(content.file, content.name, request.device, request.names, request.framework, content.window)


def _load_safetensors(content: Content, request: Request) -> Any:
    from .._tensors.device_map import Places
    from .._tensors.load_file import read_tensors
    from .._tensors.sources import Source

    places = Places(request.framework, request.device)
    source = Source(content.name, places.devices(), file=content.file)
    return read_tensors([source], places, None, None if request.names is None else set(request.names))


def _load_gguf(content: Content, request: Request) -> Any:
    from .. import gguf

    with gguf.open(request.path, storage_options=request.storage_options) as file:
        return file.load(request.names, request.device, request.framework)


def _load_checkpoint(content: Content, request: Request) -> Any:
    """Loads a checkpoint. The result contains PyTorch objects, whatever libraries the program has imported."""
    library, device = choose_library(request.device, request.framework or "pt")
    if library != "torch" or device.startswith("host:"):
        problem = f'{content.name} is a torch.save checkpoint, which contains PyTorch tensors: use framework="pt" (or None) and a GPU or "cpu"'
        raise InvalidArgument(problem, code="invalid_argument", filename=content.name)
    try:
        from ..torch import load
    except ImportError as error:
        raise ImportError(f"{content.name} is a torch.save checkpoint: install PyTorch (pip install torch) to load it", name="torch") from error
    import pickle

    try:
        return load(request.path, name_for_torch(device), weights_only=True, storage_options=request.storage_options)
    except (pickle.UnpicklingError, EOFError) as problem:
        if isinstance(problem, Error):
            raise
        said = _cause_of(str(problem))
        problem_of_file = (
            f"{content.name} is a torch.save checkpoint that is damaged, or contains more than tensors and plain values ({said}); "
            "if you trust the file, load it with penstock.torch.load(path, weights_only=False)"
        )
        raise InvalidArgument(problem_of_file, code="invalid_argument", filename=content.name) from problem


def _cause_of(problem: str) -> str:
    """Returns the reason in the text of an unpickling error, without PyTorch's advice."""
    reason = re.search(r"WeightsUnpickler error: (.*?)(?:\. Please|$)", problem, re.MULTILINE)
    return reason[1] if reason else problem.strip().partition("\n")[0]


def _load_index(content: Content, request: Request) -> Any:
    """Loads the tensors of all files listed in the index. load_file() loads an index of safetensors files."""
    text = bytearray(content.size)
    files, promised = _native.shards_of_index(bytes(text[: content.file.read_into(text)]), request.path)
    if all(_native.shown_name(file).endswith(".safetensors") for file in files):
        from ..safetensors import load_file

        return load_file(request.path, request.device, request.framework, names=request.names, storage_options=request.storage_options)
    if request.names is not None:
        _refuse_names(content.name, "the index of a model stored as PyTorch checkpoints")
    found: dict[str, Any] = {}
    for file in files:
        found.update(_load_shard(file, request))
    missing = [name for name in promised if name not in found]
    if missing:
        problem = f'{content.name}: no file contains the tensor "{missing[0]}"' + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        raise InvalidArgument(problem, code="not_found", filename=content.name)
    return {name: found[name] for name in promised}


def _load_shard(file: str, request: Request) -> dict[str, Any]:
    with _native.open(file, storage_options=request.storage_options if _native.is_url(file) else None) as opened:
        content = Content(opened, opened.size(), _native.shown_name(file))
        kind = find_kind(content)
        if kind is None or kind.word not in KINDS or kind.word == "index":  # an index may not list indexes, such as itself
            raise InvalidArgument(f"{content.name}: not a torch.save checkpoint", code="invalid_argument", filename=content.name)
        loaded = KINDS[kind.word].load(content, request._replace(path=file))
    if not isinstance(loaded, dict):
        raise InvalidArgument(f"{content.name}: does not contain a dict of tensors", code="invalid_argument", filename=content.name)
    return loaded


def _refuse_names(name: str, kind: str) -> None:
    problem = f"{name} is {kind}; names= works only with .npz, safetensors and GGUF files"
    raise InvalidArgument(problem, code="invalid_argument", filename=name)


# --- the table. C++ recognizes these kinds and others, which load() rejects.

KINDS: dict[str, Kind] = {
    "safetensors": Kind(_load_safetensors, True),
    "index": Kind(_load_index, True),
    "gguf": Kind(_load_gguf, True),
    "npy": Kind(_load_npy),
    "npz": Kind(_load_npz, True),
    "checkpoint": Kind(_load_checkpoint),
}
