"""save() and save_file(): write tensor files that are byte-identical to the safetensors library's."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .. import _native
from .._core.arrays import library_for
from .._core.arrays.library import Library
from .._core.devices import is_gpu
from .._core.errors import BufferError, InvalidArgument
from .._core.urls import in_order
from .errors import SafetensorError
from .sources import Path
from .types import NAMES, WORDS

__all__ = ["Tensor", "beginning_of", "saved", "save_file", "settle", "shape_in_file", "tensor_of", "word_of", "write_file"]

_QUANTIZED = ("qint8", "qint32", "quint8", "quint4x2", "quint2x4")  # PyTorch's quantized types


class Tensor(NamedTuple):
    """A tensor to save."""

    word: str  # safetensors type
    shape: tuple[int, ...]  # in elements of this type
    nbytes: int
    memory: Any  # buffer of its bytes; unused if it is empty
    stream: tuple[Library, str] | None = None  # library and GPU whose current stream may still be writing it


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Writes tensors to a safetensors file atomically and durably. Blocks.

    Arguments:

    - `tensors`: PyTorch tensors, NumPy or CuPy arrays, or `DeviceBuffer`s (saved as bytes), by name. On a GPU, the call waits for the current stream.
      Tensors are written in place; non-contiguous ones are first copied in C order.
    - `filename`: the name of the file, or the URL of an S3 object (s3://BUCKET/KEY).
    - `metadata`: strings by name, stored in the header.
    - `storage_options`: connection options for a URL, as in `penstock.open()`. `{"overwrite": False}` keeps an existing object.

    An existing file is replaced atomically once all bytes are on disk, and unchanged if anything fails. The new file gets the old file's owner,
    group, permissions and attributes, as far as the process may set them.

    Raises:

    - `SafetensorError`: the format cannot represent a tensor. Nothing was written.
    - `BufferError`: a tensor has no memory. Nothing was written.
    - `TypeError`: names or metadata are not strings. Nothing was written.
    - `FileExistsError`: the object exists, and `overwrite` is False.
    - `penstock.Error`: writing failed, or the name refers to a FIFO, a device or a folder.
    """
    write_file({name: tensor_of(name, value) for name, value in _checked(tensors).items()}, filename, metadata, storage_options)


def write_file(
    tensors: Mapping[str, Tensor], filename: Path, metadata: Mapping[str, str] | None, storage_options: Mapping[str, Any] | None = None
) -> None:
    beginning, order = beginning_of(tensors, metadata)
    settle(tensors.values())
    requests: list[tuple[Any, int, int]] = [(beginning, 0, len(beginning))]
    place = len(beginning)
    for name in order:
        each = tensors[name]
        if each.nbytes:
            requests.append((each.memory, place, each.nbytes))
            place += each.nbytes
    with _native.PendingFile(filename, storage_options=storage_options) as pending:
        with pending.open(direct=True) as file:  # bypasses the page cache if possible, because the data is flushed to disk immediately
            if pending.is_object:
                file.truncate(place)
            for group in in_order(requests, lambda each: each[2]) if pending.is_object else [requests]:
                _write_all(file, group)
        pending.publish()


def _write_all(file: _native.File, requests: list[tuple[Any, int, int]]) -> None:
    writing = file.pwrite_many(requests)
    try:
        writing.result()
    except BaseException:  # including KeyboardInterrupt: nothing writes after this function returns
        writing.cancel()
        writing.exception()
        raise


def saved(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> bytes:
    beginning, order = beginning_of(tensors, metadata)
    settle(tensors.values())
    return b"".join([beginning, *(_on_host(tensors[name]) for name in order if tensors[name].nbytes)])


def tensor_of(name: Any, value: Any) -> Tensor:
    """Describes an array from any library. Each error names the tensor.

    Raises SafetensorError if the format does not support the value's type or layout, BufferError if the value has no memory (on PyTorch's meta device
    NotImplementedError, as the safetensors library does), and TypeError if it is not a tensor.
    """
    library = library_for(f'tensor "{name}"', value)
    if not library.indexes:
        return Tensor("U8", (value.nbytes,), value.nbytes, value)
    _check(name, value, library.problem_of(value, wrappers=True))
    word = word_of(name, library.dtype_name(value.dtype))
    shape = shape_in_file(name, word, tuple(value.shape))
    plain = library.plain(value)
    if library.is_wrapper(value):  # its own methods may have created a plain array
        _check(name, value, library.problem_of(plain))
    device = library.device_of(plain)
    memory = library.memory(plain, readonly=True) if plain.nbytes else b""
    return Tensor(word, shape, plain.nbytes, memory, (library, device) if is_gpu(device) else None)


def _checked(tensors: Any) -> Mapping[str, Any]:
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors must be a mapping of names to tensors, not {type(tensors).__name__}")
    return tensors


def word_of(name: Any, dtype: str) -> str:
    """Returns the safetensors type for a NumPy or PyTorch type name, or None if it is unknown. `name`: the tensor's name, for the error."""
    word = WORDS.get(dtype)
    if word is None and dtype in _QUANTIZED:
        raise _wrong(name, "is quantized, and files cannot represent its scales: pass dequantize(), or int_repr() and the scales as separate tensors")
    if word is None:
        who = "" if name is None else f'tensor "{name}": '
        raise SafetensorError(f'{who}Unknown dtype "{dtype}". Supported dtypes: {", ".join(NAMES.values())}', code="invalid_argument")
    return word


def shape_in_file(name: Any, word: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape in the file. PyTorch counts two 4-bit elements as one. `name`: the tensor's name, for the error."""
    if word != "F4":
        return shape
    if not shape:
        raise _wrong(name, "contains two 4-bit elements but has no dimension for them: pass reshape(1)")
    return (*shape[:-1], shape[-1] * 2)


def _check(name: Any, value: Any, problem: str | None) -> None:
    if problem is None:
        return
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        raise _wrong(name, problem)
    if value.device.type == "meta":
        raise NotImplementedError(f'tensor "{name}" {problem}')
    if value.is_nested or value.layout != torch.strided:
        raise _wrong(name, problem)
    raise BufferError(f'tensor "{name}" {problem}', code="bad_memory")


def _wrong(name: Any, problem: str) -> SafetensorError:
    return SafetensorError(f'tensor "{name}" {problem}', code="invalid_argument")


def settle(tensors: Iterable[Tensor]) -> None:
    """Waits for the current streams, which may still be computing or copying values."""
    for library, device in {each.stream for each in tensors if each.stream is not None}:
        library.settle(device)


def beginning_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> tuple[bytes, list[str]]:
    """Returns the file's header, and the names in offset order."""
    for name in tensors:
        if not isinstance(name, str):
            raise TypeError(f"the names of tensors must be str, not {type(name).__name__}")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping of str to str, not {type(metadata).__name__}")
    rows = tensors.values()
    try:
        beginning, order, _, _ = _native.make_safetensors(
            tensors, (each.word for each in rows), (each.shape for each in rows), None if metadata is None else dict(metadata)
        )
    except InvalidArgument as problem:
        raise SafetensorError(str(problem), code=problem.code) from None
    names = list(tensors)
    return beginning, [names[place] for place in order]


def _on_host(tensor: Tensor) -> Any:
    if isinstance(tensor.memory, _native.Pointer) and _native.describe(tensor.memory)["device"] is None:
        return (ctypes.c_char * tensor.nbytes).from_address(tensor.memory.address)
    copy = bytearray(tensor.nbytes)
    _native.copy(copy, tensor.memory)
    return copy
