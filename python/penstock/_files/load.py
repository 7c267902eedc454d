"""load(): loads a file of any kind, or part of its bytes, as tensors of any library on any device."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import _native
from .._core.devices import Place
from .._core.errors import InvalidArgument, NotAFile, NotFound, PermissionDenied
from .._core.unsized import read_to_the_end
from .._core.urls import is_url
from .folders import files_of_folder, files_of_url
from .kinds import KINDS, Content, Request, find_kind
from .makers import maker_of
from .raw_arrays import Path, short_read

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = ["load", "load_sharded"]


def load_sharded(
    filename: Any, devices: Sequence[Place], shard: Any = None, framework: str | None = None, *, names: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Loads a model onto several devices in one call. The same as `penstock.safetensors.load_sharded()`."""
    from ..safetensors import load_sharded as of_safetensors

    return of_safetensors(filename, devices, shard, framework, names=names)


def load(
    path: Path,
    dtype: DTypeLike | Any = None,
    shape: int | Sequence[int] | None = None,
    *,
    device: Place = "host",
    framework: str | None = None,
    offset: int = 0,
    exact: bool = True,
    names: Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Loads a file, a folder or a URL: a model's tensors, NumPy arrays, or the bytes of any other file. Blocks.

    Without `dtype`, `shape` and `offset`, the file's content determines what you get:

    - safetensors files, and the index of a model in several files: a dict of tensors by name, as returned by `penstock.safetensors.load_file()`.
    - GGUF files: a dict of tensors by name, as returned by `penstock.gguf.open(path).load()`.
    - PyTorch checkpoints (.pt, .bin): the result of `penstock.torch.load(path, device, weights_only=True)`. This needs PyTorch.
    - .npy files: the array with its own dtype and shape. An array in Fortran order is the transpose of one in C order (on "host:0": the bytes in file
      order). Strings, dates, records and non-native byte orders load only as NumPy arrays on the host.
    - .npz files: a dict of arrays by name. The CPU decompresses members written by `numpy.savez_compressed` and verifies their checksums. Stored
      members are read directly, without verification. Members that are not arrays are skipped with a warning.
    - a folder: the model that it contains, with or without an index.
    - any other file: its bytes (dtype "u1").

    Arguments:

    - `dtype`: a NumPy or PyTorch dtype, or its name. With `dtype`, `shape` or `offset`, the file is read as a raw array of this type; `dtype="u1"`
      loads the bytes of any file. `dtype` never converts. For the file types above, a `dtype` wider than one byte is rejected unless `shape` or
      `offset` is also given.
    - `shape`: an int or a sequence of ints. One of them may be -1, meaning as many items as the file has. None means -1.
    - `device`: "host" or "cpu"; "cuda:N", N, or "cuda" for the current GPU; a `torch.device`; or "host:0", the simulated GPU.
    - `framework`: "pt" (PyTorch), "np" (NumPy), "cupy" (CuPy), "bytes" (`DeviceBuffer`), or None; see below.
    - `offset`: where the array starts in the file, in bytes.
    - `exact`: True raises `ShortRead` if the file ends before the array does, or within an item. False returns fewer rows (first axis).
    - `names`: the tensors to read from a safetensors or GGUF file, or the arrays from a .npz file. None reads all.
    - `storage_options`: connection and cache options for a URL, as for `penstock.open()`.

    If `framework` is None, the first rule that applies determines the result's library:

    1. The device implies a library: a `torch.device` gives PyTorch, a CuPy device CuPy, and "host:0" a `DeviceBuffer`.
    2. The program has imported PyTorch, or `dtype` is a PyTorch dtype: PyTorch.
    3. The device is the host: NumPy.
    4. The device is a GPU: CuPy if installed, else `DeviceBuffer`.

    On a GPU, the call waits for the library's current stream, because memory from the allocator may still be in use there. You may use the
    result on any stream.

    Raises:

    - `InvalidArgument`: a dtype that the library does not support, `dtype` for a file whose tensors have their own, a damaged file, a file whose
      extension does not match its content, or a format that needs another reader (TorchScript, HDF5, pickles, Zarr stores); the message names the
      reader.
    - `NotFound`: no such file, or a folder without a model.
    - `ShortRead`: see `exact`.
    - `ImportError`: the library is not installed.
    - `TypeError`: an argument has the wrong type.
    - `penstock.Error`: reading failed.
    """
    if offset < 0:
        raise InvalidArgument(f"offset is {offset}: it must be 0 or more", code="invalid_argument")
    maker = maker_of("u1" if dtype is None else dtype, device, framework)
    wanted = _shape_of(shape)
    keys = _keys_of(names)
    by_kind = dtype is None and shape is None and offset == 0
    request = Request(_text_of(path), device, framework, keys, storage_options)
    is_url_of_folder = by_kind and is_url(path) and _name_of(path).endswith("/")  # even if there is an empty object of that name as a folder marker
    if is_url_of_folder and (files := _files_at(path, storage_options)):
        return _load_files(files, request)
    try:
        opened = _native.open(path, storage_options=storage_options)
    except (NotAFile, NotFound, PermissionDenied):
        if by_kind and not is_url_of_folder and (files := _files_at(path, storage_options)):
            return _load_files(files, request)
        if not by_kind and _local_folder(path):
            problem = f"{_name_of(path)} is a folder: dtype, shape and offset apply only to plain data files"
            raise InvalidArgument(problem, code="invalid_argument", filename=_name_of(path)) from None
        raise
    with opened as file:
        size = file.size()
        if by_kind and size > 0:
            content = Content(file, size, _name_of(path))
            kind = find_kind(content)
            if kind is not None:
                return _load_kind(content, kind, request)
            if keys is None:
                _check_ending(content.name)
        elif size > 0 and shape is None and offset == 0 and maker.item_bytes > 1:
            _refuse_to_convert(file, size, path)
        if keys is not None:
            problem = f"{_name_of(path)}: {_NAMES_ARE_FOR}, and not together with dtype, shape or offset"
            raise InvalidArgument(problem, code="invalid_argument")
        if size == 0 and by_kind:
            _check_ending(_name_of(path))
        if size == 0:
            text: bytes | None = read_to_the_end(file.read_into, offset, _bytes_wanted(wanted, maker.item_bytes))
            there = len(text or b"")
        else:
            text = None
            there = max(0, size - offset)
        while True:
            fitted = _fitted(wanted, there, maker.item_bytes, exact, path, offset)
            array, memory = maker.make(fitted)
            nbytes = math.prod(fitted) * maker.item_bytes
            if text is not None:
                done = nbytes
                if nbytes:
                    address, _ = _native.resolve(text)
                    _native.copy(memory, _native.Pointer(address, nbytes, text, True))
            else:
                done = file.read_into(memory, offset, nbytes) if nbytes else 0
            if done == nbytes:
                return array
            there = done  # the file was truncated while it was being read


def _load_kind(content: Content, kind: _native.FileKind, request: Request) -> Any:
    _refuse_without_loader(content.name, kind)
    if request.names is not None and not KINDS[kind.word].takes_names:
        problem = f"{content.name} is {kind.name}; {_NAMES_ARE_FOR}"
        raise InvalidArgument(problem, code="invalid_argument", filename=content.name)
    return KINDS[kind.word].load(content, request)


def _refuse_without_loader(name: str, kind: _native.FileKind) -> None:
    if kind.word not in KINDS:
        problem = f'{name} is {kind.name}: use {kind.reader}; or load its bytes with dtype="u1" (numpy.uint8)'
        raise InvalidArgument(problem, code="invalid_argument", filename=name)


def _endings() -> list[str]:
    return [ending for kind in _native.file_kinds() for ending in kind.endings]


def _refuse_to_convert(file: _native.File, size: int, path: Path) -> None:
    """Raises InvalidArgument for a file of tensors, which a dtype would read as raw data.

    At a URL, this looks only at objects that are named as files of tensors are, because it costs a request.
    """
    name = _name_of(path)
    if is_url(path) and not name.lower().endswith((*_endings(), ".bin")):
        return
    kind = find_kind(Content(file, size, name))
    if kind is not None:
        _refuse_without_loader(name, kind)
        problem = (
            f"{name} is {kind.name}, and dtype= does not convert tensors: load it without dtype=, then convert each tensor. "
            'To read it as raw data, use dtype="u1" (numpy.uint8), shape= or offset='
        )
        raise InvalidArgument(problem, code="invalid_argument", filename=name)


_NAMES_ARE_FOR = "names= works only with .npz, safetensors and GGUF files"


def _files_at(path: Path, storage_options: Mapping[str, Any] | None) -> list[str]:
    """Returns the model files in a folder, or at a URL that refers to a folder; empty if path is neither."""
    if not isinstance(path, int) and is_url(path):
        return files_of_url(os.fsdecode(path), storage_options)
    folder = _local_folder(path)
    return files_of_folder(folder) if folder and os.access(folder, os.R_OK) else []


def _local_folder(path: Path) -> str:
    """Returns the folder that a path or a file:// URL refers to; empty if it is not a folder."""
    name = "" if isinstance(path, int) else _native.file_path(path)
    return name if os.path.isdir(name) else ""


def _load_files(files: Sequence[str], request: Request) -> Any:
    """Loads one file, or the shards of a model."""
    options = request.storage_options
    if len(files) > 1 and all(_native.shown_name(file).endswith(".safetensors") for file in files):
        from ..safetensors import load_file

        return load_file(files, request.device, request.framework, names=request.names, storage_options=options)
    loaded = [
        load(file, device=request.device, framework=request.framework, names=request.names, storage_options=options) for file in files
    ]
    if len(loaded) == 1:
        return loaded[0]
    found: dict[str, Any] = {}
    for file, tensors in zip(files, loaded):
        twice = next((name for name in tensors if name in found), None) if isinstance(tensors, dict) else ""
        if twice is not None:
            problem = f'tensor "{twice}" is in two files of the model' if isinstance(tensors, dict) else "does not contain a dict of tensors"
            raise InvalidArgument(f"{_native.shown_name(file)}: {problem}", code="invalid_argument", filename=_native.shown_name(file))
        found.update(tensors)
    return found


def _text_of(path: Path) -> str:
    """Returns a path that other functions can open. For a descriptor, this is a path in /proc."""
    return f"/proc/self/fd/{path}" if isinstance(path, int) else os.fsdecode(path)


def _check_ending(name: str) -> None:
    """Raises InvalidArgument for a file of unknown kind that has the extension of a known kind."""
    ending = next((each for each in _endings() if name.lower().endswith(each)), None)
    if ending is not None:
        problem = f'{name}: does not start like a {ending} file, so it is damaged or of another kind; load its bytes with dtype="u1" (numpy.uint8)'
        raise InvalidArgument(problem, code="invalid_argument", filename=name)


def _name_of(path: Path) -> str:
    """Returns the name of the file for messages."""
    return str(path) if isinstance(path, int) else _native.shown_name(path)


def _keys_of(names: Any) -> list[str] | None:
    if names is None:
        return None
    if isinstance(names, (str, bytes)) or not hasattr(names, "__iter__"):
        raise TypeError(f"names must be an iterable of str, not {type(names).__name__}")
    found = list(names)
    for each in found:
        if not isinstance(each, str):
            raise TypeError(f"names must be str, not {type(each).__name__}")
    return found


def _shape_of(shape: int | Sequence[int] | None) -> tuple[int, ...]:
    """Checks a shape: ints, with -1 at most once."""
    if shape is None:
        return (-1,)
    if isinstance(shape, (str, bytes)) or not (hasattr(shape, "__index__") or hasattr(shape, "__iter__")):
        raise TypeError(f"shape must be an int, a sequence of int or None, not {type(shape).__name__}")
    lengths: Sequence[Any] = [shape] if hasattr(shape, "__index__") else list(shape)
    for each in lengths:
        if not hasattr(each, "__index__"):
            raise TypeError(f"the lengths in shape must be int, not {type(each).__name__}")
    found = tuple(operator.index(each) for each in lengths)
    if any(each < -1 for each in found) or found.count(-1) > 1:
        raise InvalidArgument(f"shape is {found}: each length must be 0 or more, and one of them may be -1", code="invalid_argument")
    if -1 in found and 0 in found:
        raise InvalidArgument(f"shape is {found}: -1 is ambiguous if another length is 0", code="invalid_argument")
    return found


def _bytes_wanted(shape: tuple[int, ...], item_bytes: int) -> int | None:
    return None if -1 in shape else math.prod(shape) * item_bytes


def _fitted(wanted: tuple[int, ...], there: int, item_bytes: int, exact: bool, path: Path, offset: int) -> tuple[int, ...]:
    """Returns the shape of the array that the file's bytes can fill. Raises ShortRead if they do not match the requested shape."""
    if -1 in wanted:
        row_bytes = item_bytes * math.prod(each for each in wanted if each != -1)
        rows, rest = divmod(there, row_bytes)
        if rest and exact:
            raise short_read(path, offset, there, (rows + 1) * row_bytes)
        return tuple(rows if each == -1 else each for each in wanted)
    nbytes = math.prod(wanted) * item_bytes
    if there >= nbytes:
        return wanted
    if exact or not wanted:
        raise short_read(path, offset, there, nbytes)
    return there // (nbytes // wanted[0]), *wanted[1:]
