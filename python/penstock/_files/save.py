"""save(): writes tensors and arrays to a file in the format selected by its extension."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

from .. import _native
from .._core.arrays import library_of
from .._core.errors import InvalidArgument
from .._core.pieces import Piece
from .._core.saving import save_image

__all__ = ["save"]

_Options = Mapping[str, Any] | None


def save(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes], obj: Any, *, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Writes an object to a file atomically and durably. Blocks. `penstock.load(path)` loads it.

    The extension of `path` selects the format:

    - .safetensors: a dict of tensors by name, as for `penstock.safetensors.save_file()`.
    - .pt, .pth, .ckpt: any object that `torch.save` accepts, as for `penstock.torch.save()`. Requires PyTorch.
    - .npy: one array or tensor. .npz: a dict of them. Both copy the bytes to the host first, and never write pickles.

    Arguments:

    - `path`: the name of the file, or the URL of an S3 object.
    - `obj`: a PyTorch tensor, a NumPy or CuPy array, a `DeviceBuffer`, or a dict of them by name; for a checkpoint, any object.
    - `storage_options`: connection options for a URL, as for `penstock.open()`.

    To write only an array's bytes, to a file with any name, use `penstock.tofile(array, path)`.

    Raises:

    - `InvalidArgument`: a different extension, or an array whose type the format does not support.
    - `TypeError`: an object of the wrong kind for the format.
    - `ImportError`: PyTorch, which checkpoints require, is not installed.
    - `penstock.Error`: writing failed; an existing file with that name is unchanged.
    """
    text = os.fsdecode(path)
    shown = _native.shown_name(text)
    writer = next((write for ending, write in _WRITERS.items() if shown.lower().endswith(ending)), None)
    if writer is None:
        problem = f"{shown}: the extension selects the format and must be one of {', '.join(_WRITERS)}; to write plain bytes, use penstock.tofile()"
        raise InvalidArgument(problem, code="invalid_argument", filename=shown)
    writer(text, shown, obj, storage_options)


def _save_safetensors(path: str, shown: str, obj: Any, options: _Options) -> None:
    from ..safetensors import save_file

    save_file(_dict_of(obj, shown, ".safetensors"), path, storage_options=options)


def _save_checkpoint(path: str, shown: str, obj: Any, options: _Options) -> None:
    try:
        from ..torch import save as save_by_torch
    except ImportError as error:
        raise ImportError(f"{shown}: install PyTorch (pip install torch) to save a checkpoint", name="torch") from error
    save_by_torch(obj, path, storage_options=options)


def _save_npy(path: str, shown: str, obj: Any, options: _Options) -> None:
    if isinstance(obj, Mapping):
        raise TypeError(f"{shown}: a .npy file contains one array, not {type(obj).__name__}; save a dict of arrays to a .npz file")
    content = io.BytesIO()
    _write_array(content, "the array", obj, shown)
    _write(path, content, options)


def _save_npz(path: str, shown: str, obj: Any, options: _Options) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name, value in _dict_of(obj, shown, ".npz").items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_array(member, f'array "{name}"', value, shown)
    _write(path, content, options)


_WRITERS: dict[str, Callable[[str, str, Any, _Options], None]] = {
    ".safetensors": _save_safetensors,
    ".pt": _save_checkpoint,
    ".pth": _save_checkpoint,
    ".ckpt": _save_checkpoint,
    ".npy": _save_npy,
    ".npz": _save_npz,
}


def _dict_of(obj: Any, shown: str, ending: str) -> Mapping[str, Any]:
    if not isinstance(obj, Mapping):
        raise TypeError(f"{shown}: to save a {ending} file, pass a dict of arrays by name, not {type(obj).__name__}")
    wrong = next((name for name in obj if not isinstance(name, str)), None)
    if wrong is not None:
        raise TypeError(f"{shown}: the names of arrays must be str, not {type(wrong).__name__}")
    return obj


def _write_array(to: Any, label: str, value: Any, shown: str) -> None:
    import numpy

    array = _on_host(label, value, shown)
    if array.dtype.hasobject or array.dtype.isbuiltin == 2:  # 2: an ml_dtypes type, which the file would store as untyped bytes
        raise _unsupported(label, array.dtype, shown)
    numpy.lib.format.write_array(to, array, allow_pickle=False)


def _on_host(label: str, value: Any, shown: str) -> Any:
    """Converts the value to a NumPy array."""
    import numpy

    library = library_of(value)
    if library is not None:
        try:
            return library.to_numpy(value)
        except TypeError:
            raise _unsupported(label, value.dtype, shown) from None
    if isinstance(value, (numpy.generic, bool, int, float, complex, list, tuple)):
        return numpy.asarray(value)
    raise TypeError(f"{shown}: {label} must be an array or a tensor, not {type(value).__name__}")


def _unsupported(label: str, dtype: Any, shown: str) -> InvalidArgument:
    problem = f"{shown}: {label} has the dtype {dtype}, which NumPy files cannot represent: save it to a .safetensors or .pt file"
    return InvalidArgument(problem, code="invalid_argument", filename=shown)


class _Bytes:
    """A file whose bytes are already in memory."""

    def __init__(self, content: Any) -> None:
        address, nbytes = _native.resolve(content)
        self._piece = Piece("the file", 0, nbytes, address, content)

    def pieces(self) -> list[Piece]:
        return [self._piece]

    def rest(self) -> list[Piece]:
        return []


def _write(path: str, content: io.BytesIO, options: _Options) -> None:
    save_image(path, _Bytes(content.getvalue()), storage_options=options)
