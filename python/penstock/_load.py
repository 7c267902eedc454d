"""load(): a file, or a part of it, as an array of any library on any device."""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from ._arrays import Path, item_type_of, short_read
from ._devices import Place, name_for_torch, number_of
from ._errors import InvalidArgument
from ._tensors import Room, torch_dtype
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
) -> Any:
    """The file's content from offset (bytes) on, as a new array of dtype and shape. Blocks.

    dtype: NumPy's or PyTorch's, or the name of one; None is bytes ("u1"), except that a safetensors file is refused then, unless shape or offset
    is given: penstock.safetensors loads its tensors, and dtype="u1" the bytes of the file with its header. shape: an int or several, of which one may be -1, for as many as there are; None is -1.
    device: "host" or "cpu" gives a NumPy array; "cuda:N", N, or "cuda" for the current device, a CuPy array (where CuPy is not installed, a
    PyTorch tensor if the program has imported torch, else a penstock.DeviceBuffer); a torch.device, or a dtype of PyTorch's, a tensor; "host:0" a
    DeviceBuffer of the bytes, which must be some. On a GPU this waits for what the library's current stream has, in which the memory may have
    been used before; the array may be used in any stream.
    exact: a file that ends before the array does, or within an item, raises ShortRead; else the array has fewer rows (along its first axis).
    Raises penstock.Error, InvalidArgument for a dtype that the library has not, TypeError.
    """
    if offset < 0:
        raise InvalidArgument(f"offset is {offset}: it counts from the beginning of the file", code="invalid_argument")
    maker = _maker_of("u1" if dtype is None else dtype, device)
    wanted = _shape_of(shape)
    with _native.open(path) as file:
        size = file.size()
        if dtype is None and shape is None and offset == 0:
            _refuse_tensors(file, size, path)
        if size == 0:
            content: bytes | None = read_to_the_end(file.read_into, offset, _bytes_wanted(wanted, maker.item_bytes))
            there = len(content or b"")
        else:
            content = None
            there = max(0, size - offset)
        while True:
            found = _fitted(wanted, there, maker.item_bytes, exact, path, offset)
            array, memory = maker.make(found)
            nbytes = math.prod(found) * maker.item_bytes
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


def _refuse_tensors(file: _native.File, size: int, path: Path) -> None:
    """Raises InvalidArgument for a safetensors file: the length of its header, and the header, which is JSON, and spaces."""
    start = bytearray(10)
    if size < len(start) or file.read_into(start) < len(start):
        return
    past = 8 + int.from_bytes(start[:8], "little")
    if bytes(start[8:]) not in (b'{"', b"{}") or past > size:
        return
    end = bytearray(1)
    file.read_into(end, past - 1)
    if bytes(end) in (b"}", b" "):
        name = path if isinstance(path, int) else os.fsdecode(path)
        ways = "penstock.safetensors.load_file(), or penstock.safetensors.torch.load_file(), loads its tensors"
        problem = f'{name} is a safetensors file: {ways}; dtype="u1" (numpy.uint8) loads its bytes, with the header'
        raise InvalidArgument(problem, code="invalid_argument", filename=str(name))


class _Maker(NamedTuple):
    """Makes arrays of a dtype on a device."""

    item_bytes: int
    make: Callable[[tuple[int, ...]], tuple[Any, Any]]  # (shape) -> the array, and its memory as a buffer


def _maker_of(dtype: Any, device: Any) -> _Maker:
    room = Room(device)
    name = room.device
    torch = sys.modules.get("torch")
    if torch is not None and (room.library is torch or isinstance(dtype, torch.dtype)):
        return _maker_of_torch(torch, name, dtype)
    item_type = item_type_of(dtype)
    if room.library is not None:
        return _maker_of_cupy(room.library, name, item_type)
    if name == "host":
        return _Maker(item_type.itemsize, lambda shape: _twice(_numpy_empty(shape, item_type)))
    return _Maker(item_type.itemsize, lambda shape: _twice(_native.device(name).empty(math.prod(shape) * item_type.itemsize)))


def _numpy_empty(shape: tuple[int, ...], item_type: Any) -> Any:
    import numpy

    return numpy.empty(shape, item_type)


def _maker_of_torch(torch: Any, name: str, dtype: Any) -> _Maker:
    found = dtype
    if not isinstance(dtype, torch.dtype):
        found = torch_dtype(torch, dtype if isinstance(dtype, str) else item_type_of(dtype).str)
    if found is None:
        raise InvalidArgument(f"dtype {dtype} is none of PyTorch's", code="invalid_argument")

    def make(shape: tuple[int, ...]) -> tuple[Any, Any]:
        tensor = torch.empty(shape, dtype=found, device=name_for_torch(name))
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()
        return tensor, _native.Pointer(tensor.data_ptr(), tensor.numel() * found.itemsize, tensor)

    return _Maker(found.itemsize, make)


def _maker_of_cupy(cupy: Any, name: str, item_type: Any) -> _Maker:
    if item_type.kind not in "biufc" or not item_type.isnative:
        raise InvalidArgument(f"dtype {item_type} is none of CuPy's", code="invalid_argument")

    def make(shape: tuple[int, ...]) -> tuple[Any, Any]:
        with cupy.cuda.Device(number_of(name)):
            array = cupy.empty(shape, item_type)
            cupy.cuda.get_current_stream().synchronize()
        return _twice(array)

    return _Maker(item_type.itemsize, make)


def _twice(array: Any) -> tuple[Any, Any]:
    return array, array


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
