"""The kinds of files that `penstock.load()` recognizes, and the function that loads each.

The table `KINDS` has one line for each kind. A file's content determines its kind, not its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from .._core.devices import name_for_torch
from .._core.errors import Error, InvalidArgument
from .._core.libraries import choose_library
from .npy import MAGIC, load_npy

if TYPE_CHECKING:
    import zipfile

__all__ = ["ENDINGS", "KINDS", "Content", "Kind", "Request", "find_kind"]

_BEGINNING_BYTES = 64
_LEGACY_CHECKPOINT = b"\x80\2\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_PICKLES = (b"\x80\4\x95", b"\x80\5\x95", *(b"\x80" + version + first for version in (b"\2", b"\3") for first in (b"}", b"]", b"(", b"c", b"K", b"X")))


class Request(NamedTuple):
    """The arguments of `penstock.load()`. Other functions can open `path` too."""

    path: str
    device: Any
    framework: str | None
    names: list[str] | None
    storage_options: Mapping[str, Any] | None


class Content:
    """The first bytes of an open file and, if it is an archive, its members. `name` is for messages."""

    def __init__(self, file: _native.File, size: int, name: str) -> None:
        self.file, self.size, self.name = file, size, name
        beginning = bytearray(_BEGINNING_BYTES)
        count = file.read_into(beginning)
        self.beginning = bytes(beginning[:count])

    @property
    def last_byte(self) -> bytes:
        return self.bytes_at(self.size - 1, 1)

    def bytes_at(self, offset: int, count: int) -> bytes:
        buffer = bytearray(count)
        return bytes(buffer[: self.file.read_into(buffer, offset)])

    @cached_property
    def archive(self) -> zipfile.ZipFile | None:
        """The archive, or None if the file is not a zip archive. Raises InvalidArgument if an archive of arrays or tensors is truncated."""
        if not self.beginning.startswith((b"PK\3\4", b"PK\5\6")):
            return None
        from .npz import open_archive  # imports zipfile, which other kinds of files do not need

        return open_archive(self.file, self.name)

    @cached_property
    def members(self) -> list[str]:
        """The names of the archive's members; empty if the file is not an archive."""
        return [] if self.archive is None else self.archive.namelist()

    def has_member(self, name: str) -> bool:
        """Returns True if any folder in the archive contains a member with this name."""
        return any(member.rpartition("/")[2] == name for member in self.members)


class Kind(NamedTuple):
    """A kind of file.

    - `name`: with its article, such as "a GGUF file".
    - `matches`: recognizes the kind.
    - `load`: None if `penstock.load()` cannot load the kind.
    - `reader`: the call that reads such files.
    - `takes_names`: True if `penstock.load(names=)` works.
    - `ending`: the usual extensions of such files.
    """

    name: str
    matches: Callable[[Content], bool]
    load: Callable[[Content, Request], Any] | None
    reader: str
    takes_names: bool = False
    ending: tuple[str, ...] = ()


def find_kind(content: Content) -> Kind | None:
    """Returns the first kind that matches, or None if the file is plain bytes."""
    return next((kind for kind in KINDS if kind.matches(content)), None)


# --- recognition


def _begins_with(*magic: bytes) -> Callable[[Content], bool]:
    return lambda content: content.beginning.startswith(magic)


def _is_safetensors(content: Content) -> bool:
    """Returns True if the file starts with a header length and the header looks like JSON."""
    beginning = content.beginning
    end = 8 + int.from_bytes(beginning[:8], "little")
    return beginning[8:10] in (b'{"', b"{}") and end <= content.size and content.bytes_at(end - 1, 1) in (b"}", b" ")


def _is_index(content: Content) -> bool:
    """Returns True for JSON with a weight_map, which names the file of each tensor."""
    if not content.beginning.lstrip().startswith(b"{") or content.size > _native.MOST_MODEL_INDEX_BYTES:
        return False
    text = content.bytes_at(0, content.size)
    try:
        return b'"weight_map"' in text and isinstance(json.loads(text).get("weight_map"), dict)
    except (ValueError, RecursionError):
        return False


def _is_npz(content: Content) -> bool:
    if content.archive is None:
        return False
    if any(member.endswith(".npy") for member in content.members):
        return True
    return content.name.lower().endswith(".npz") and not _is_checkpoint(content)  # numpy.savez() without arrays creates an empty archive


def _is_checkpoint(content: Content) -> bool:
    return content.has_member("data.pkl") or content.beginning.startswith(_LEGACY_CHECKPOINT)


def _is_torchscript(content: Content) -> bool:
    return content.has_member("data.pkl") and content.has_member("constants.pkl")


def _is_exported(content: Content) -> bool:
    return content.has_member("archive_format") and content.has_member("archive_version")


def _is_pickle(content: Content) -> bool:
    return content.beginning.startswith(_PICKLES) and content.last_byte == b"."


# --- loading


def _load_npy(content: Content, request: Request) -> Any:
    return load_npy(content.file, content.name, request.device, request.framework)


def _load_npz(content: Content, request: Request) -> Any:
    from .npz import load_npz

    assert content.archive is not None
    return load_npz(content.file, content.archive, content.name, request.device, request.names, request.framework)


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
    files, promised = _native.shards_of_index(content.bytes_at(0, content.size), request.path)
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
        if kind is None or kind.load is None:
            raise InvalidArgument(f"{content.name}: not a torch.save checkpoint", code="invalid_argument", filename=content.name)
        loaded = kind.load(content, request._replace(path=file))
    if not isinstance(loaded, dict):
        raise InvalidArgument(f"{content.name}: does not contain a dict of tensors", code="invalid_argument", filename=content.name)
    return loaded


def _refuse_names(name: str, kind: str) -> None:
    problem = f"{name} is {kind}; names= works only with .npz, safetensors and GGUF files"
    raise InvalidArgument(problem, code="invalid_argument", filename=name)


# --- the table. The first kind that matches applies.

KINDS: tuple[Kind, ...] = (
    Kind("a safetensors file", _is_safetensors, _load_safetensors, "penstock.safetensors.load_file()", True, (".safetensors",)),
    Kind("the index of a model", _is_index, _load_index, "penstock.safetensors.load_file()", True, (".index.json",)),
    Kind("a GGUF file", _begins_with(b"GGUF"), _load_gguf, "penstock.gguf.open()", True, (".gguf",)),
    Kind("a NumPy array (.npy)", _begins_with(MAGIC), _load_npy, "numpy.load()", False, (".npy",)),
    Kind("an archive of NumPy arrays (.npz)", _is_npz, _load_npz, "numpy.load()", True, (".npz",)),
    Kind("a TorchScript archive", _is_torchscript, None, "torch.jit.load()"),
    Kind("an exported PyTorch program", _is_exported, None, "torch.export.load()"),
    Kind("a torch.save checkpoint", _is_checkpoint, _load_checkpoint, "penstock.torch.load()", False, (".pt", ".pth", ".ckpt")),
    Kind("a Python pickle", _is_pickle, None, "pickle.load(), only if you trust the file, because a pickle can run any code"),
    Kind("an HDF5 file", _begins_with(b"\x89HDF\r\n\x1a\n"), None, "h5py.File()"),
    Kind("a git-lfs pointer, not the file itself", _begins_with(b"version https://git-lfs.github.com/spec/"), None, "`git lfs pull`, which replaces it"),
)
ENDINGS = tuple(ending for kind in KINDS for ending in kind.ending)
