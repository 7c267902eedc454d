"""load(): a file, or a part of it, as an array of any library on any device."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import _native
from ._arrays import Path, short_read
from ._devices import Place
from ._errors import InvalidArgument
from ._makers import maker_of
from ._npy import MAGIC, load_npy
from ._unsized import read_to_the_end

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = ["load", "load_sharded"]


def load_sharded(
    filename: Any, devices: Sequence[Place], shard: Any = None, framework: str | None = None, *, names: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """A model's tensors onto several devices in one call: penstock.safetensors.load_sharded()."""
    from .safetensors import load_sharded as of_safetensors

    return of_safetensors(filename, devices, shard, framework, names=names)


def load(
    path: Path,
    dtype: DTypeLike | Any = None,
    shape: int | Sequence[int] | None = None,
    *,
    device: Place = "host",
    offset: int = 0,
    exact: bool = True,
    names: Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """The file's content from offset (bytes) on, as a new array of dtype and shape; or the array, or arrays, of a file of NumPy's. Blocks.

    dtype: NumPy's or PyTorch's, or the name of one; None is bytes ("u1"), and besides, where neither shape nor offset is given, the kind of the
    file counts, which dtype="u1" loads with its header:
    - of numpy.save (.npy): its array, with its own dtype and shape, read straight to the device. In Fortran's order it is the transpose of an
      array in C's order ("host:0" has the bytes as they are). Structured dtypes, dates and text are NumPy's alone.
    - of numpy.savez (.npz): a dict of its arrays by their names. The CPU inflates those of numpy.savez_compressed, and compares their checksums;
      stored ones are read straight from the file, unchecked. A member that is no array, such as one of Python objects, is left out with a warning.
    - safetensors and GGUF files and checkpoints of torch.save are refused: penstock.safetensors, penstock.gguf and penstock.torch load them.
    The content decides, not the name. A file named .npy or .npz with other contents is refused.
    shape: an int or several, of which one may be -1, for as many as there are; None is -1.
    device: "host" or "cpu" gives a NumPy array; "cuda:N", N, or "cuda" for the current device, a CuPy array (where CuPy is not installed, a
    PyTorch tensor if the program has imported torch, else a penstock.DeviceBuffer); a torch.device, or a dtype of PyTorch's, a tensor; "host:0" a
    DeviceBuffer of the bytes, which must be some. On a GPU this waits for what the library's current stream has, in which the memory may have
    been used before; the array may be used in any stream.
    exact: a file that ends before the array does, or within an item, raises ShortRead; else the array has fewer rows (along its first axis).
    names: of the arrays of a .npz file that are wanted; the others are not read. None is all.
    storage_options: how a server is reached and where what it sends is kept, as those of penstock.open().
    Raises penstock.Error; InvalidArgument for a dtype that the library has not, for a file of NumPy's that is damaged, and for one that holds
    Python objects, which are a pickle; TypeError.
    """
    if offset < 0:
        raise InvalidArgument(f"offset is {offset}: it counts from the beginning of the file", code="invalid_argument")
    maker = maker_of("u1" if dtype is None else dtype, device)
    wanted = _shape_of(shape)
    keys = _keys_of(names)
    with _native.open(path, storage_options=storage_options) as file:
        size = file.size()
        if dtype is None and shape is None and offset == 0 and size > 0:
            found = _load_by_kind(file, size, path, device, keys)
            if found is not None:
                return found
        if keys is not None:
            problem = f"{_name_of(path)}: names= selects arrays of a .npz file, and this file is not one (dtype, shape and offset cannot be combined with it)"
            raise InvalidArgument(problem, code="invalid_argument")
        if size == 0 and dtype is None and shape is None and offset == 0:
            _check_ending(_name_of(path))
        if size == 0:
            content: bytes | None = read_to_the_end(file.read_into, offset, _bytes_wanted(wanted, maker.item_bytes))
            there = len(content or b"")
        else:
            content = None
            there = max(0, size - offset)
        while True:
            fitted = _fitted(wanted, there, maker.item_bytes, exact, path, offset)
            array, memory = maker.make(fitted)
            nbytes = math.prod(fitted) * maker.item_bytes
            if content is not None:
                done = nbytes
                if nbytes:
                    address, _ = _native.resolve(content)
                    _native.copy(memory, _native.Pointer(address, nbytes, content, True))
            else:
                done = file.read_into(memory, offset, nbytes) if nbytes else 0
            if done == nbytes:
                return array
            there = done  # the file has been cut since


def _load_by_kind(file: _native.File, size: int, path: Path, device: Any, names: list[str] | None) -> Any:
    """What is in a file of arrays; None for all others. Raises InvalidArgument for a file of tensors, which has loaders of its own."""
    start = bytearray(10)
    count = file.read_into(start)
    name = _name_of(path)
    if start.startswith(MAGIC) and names is None:
        return load_npy(file, name, device)
    if start.startswith((b"PK\3\4", b"PK\5\6")):
        from ._npz import load_zip  # with zipfile, which other files do not need

        found = load_zip(file, name, device, names)
        if found is not None:
            return found
    if start.startswith(b"GGUF"):
        _refuse(name, "GGUF", "penstock.gguf.open() loads its tensors")
    if count == len(start) and _is_safetensors(file, size, start):
        _refuse(name, "safetensors", "penstock.safetensors.load_file(), or penstock.safetensors.torch.load_file(), loads its tensors")
    if names is None:
        _check_ending(name)
    return None


def _check_ending(name: str) -> None:
    """Of a file that is none of NumPy's: refuses a name that says so."""
    ending = name[-4:].lower()
    if ending in (".npy", ".npz"):
        problem = f'{name}: it does not begin as {ending} files do: it is damaged, or of another kind; dtype="u1" (numpy.uint8) loads its bytes'
        raise InvalidArgument(problem, code="invalid_argument", filename=name)


def _name_of(path: Path) -> str:
    """For messages."""
    return str(path) if isinstance(path, int) else _native.shown_name(path)


def _keys_of(names: Any) -> list[str] | None:
    if names is None:
        return None
    if isinstance(names, (str, bytes)) or not hasattr(names, "__iter__"):
        raise TypeError(f"names are several str, not {type(names).__name__}")
    found = list(names)
    for each in found:
        if not isinstance(each, str):
            raise TypeError(f"names are str, not {type(each).__name__}")
    return found


def _is_safetensors(file: _native.File, size: int, start: bytearray) -> bool:
    """The length of its header, and the header, which is JSON, and spaces."""
    past = 8 + int.from_bytes(start[:8], "little")
    if bytes(start[8:]) not in (b'{"', b"{}") or past > size:
        return False
    end = bytearray(1)
    file.read_into(end, past - 1)
    return bytes(end) in (b"}", b" ")


def _refuse(name: str, kind: str, ways: str) -> NoReturn:
    problem = f'{name} is a {kind} file: {ways}; dtype="u1" (numpy.uint8) loads its bytes, with the header'
    raise InvalidArgument(problem, code="invalid_argument", filename=name)


def _shape_of(shape: int | Sequence[int] | None) -> tuple[int, ...]:
    """-1 at most once."""
    if shape is None:
        return (-1,)
    if isinstance(shape, (str, bytes)) or not (hasattr(shape, "__index__") or hasattr(shape, "__iter__")):
        raise TypeError(f"shape is an int, a sequence of int or None, not {type(shape).__name__}")
    lengths: Sequence[Any] = [shape] if hasattr(shape, "__index__") else list(shape)
    for each in lengths:
        if not hasattr(each, "__index__"):
            raise TypeError(f"shape holds int, not {type(each).__name__}")
    found = tuple(operator.index(each) for each in lengths)
    if any(each < -1 for each in found) or found.count(-1) > 1:
        raise InvalidArgument(f"shape is {found}: lengths are 0 or more, and one may be -1", code="invalid_argument")
    if -1 in found and 0 in found:
        raise InvalidArgument(f"shape is {found}: any length would do for -1 beside a 0", code="invalid_argument")
    return found


def _bytes_wanted(shape: tuple[int, ...], item_bytes: int) -> int | None:
    return None if -1 in shape else math.prod(shape) * item_bytes


def _fitted(wanted: tuple[int, ...], there: int, item_bytes: int, exact: bool, path: Path, offset: int) -> tuple[int, ...]:
    """The shape of what there is. Raises ShortRead where that is not what is wanted."""
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
