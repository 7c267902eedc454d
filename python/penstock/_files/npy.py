"""Reads NumPy's .npy files: parses the header, and reads the bytes directly into an array of any library on any device."""

from __future__ import annotations

import ast
import math
import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from .._core.errors import InvalidArgument, ShortRead
from .._core.pieces import Piece, move_pieces
from .._core.windows import Window
from .makers import maker_of

if TYPE_CHECKING:
    import numpy

__all__ = ["MAGIC", "ObjectArray", "NpyHeader", "empty_like_header", "load_npy", "piece_of", "read_header", "reader_of"]

MAGIC = b"\x93NUMPY"

_BEGINNING_BYTES = len(MAGIC) + 2
# For each version: the size of the header's length field, and the header's encoding.
_VERSIONS = {(1, 0): ("<H", "latin1"), (2, 0): ("<I", "latin1"), (3, 0): ("<I", "utf-8")}
_MOST_HEADER_BYTES = 10_000  # NumPy's own limit, because Python's parser can crash the process on longer text
_MOST_DIMENSIONS = 64
_MOST_BYTES = (1 << 63) - 1


class ObjectArray(InvalidArgument):
    """Raised for an array of Python objects."""


class NpyHeader(NamedTuple):
    dtype: numpy.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool  # the first dimension is contiguous
    offset: int  # where the items start, counted from the start of the header

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def load_npy(file: _native.File, name: str, device: Any, framework: str | None = None) -> Any:
    """Returns the array in a file. Other bytes may follow it. Blocks. `name`: the file's name, for errors.

    Raises InvalidArgument for a file of another kind, for Python objects, and for a dtype that the library does not support; ShortRead for a
    truncated file.
    """
    size = file.size()
    header = read_header(reader_of(file, 0, size), name)
    there = max(0, size - header.offset)
    if there < header.nbytes:
        problem = f"{name}: the file is truncated: it has only {there} of the array's {header.nbytes} bytes, which start at offset {header.offset}"
        raise ShortRead(problem, code="short_read", filename=name, offset=header.offset, bytes_done=there)
    array, memory = empty_like_header(header, device, framework, name)
    if header.nbytes:
        move_pieces(file, [piece_of("the array", header.offset, header.nbytes, memory)], label=name)
    return array


def read_header(read: Callable[[int], bytes], name: str) -> NpyHeader:
    """Parses a header. read(n) returns the next n bytes, or fewer at the end. `name`: for errors. Raises InvalidArgument for an invalid header.
    """
    text, offset = _read_text(read, name)
    fields = _fields_of(text, name)
    shape, is_fortran = _shape_of(fields["shape"], name), fields["fortran_order"]
    if not isinstance(is_fortran, bool):
        raise _wrong(name, "fortran_order in its header must be True or False")
    dtype = _dtype_of(fields["descr"], name)
    if math.prod(each for each in shape if each) * dtype.itemsize > _MOST_BYTES:
        raise _wrong(name, f"its shape {shape} is too large for any memory")
    return NpyHeader(dtype, shape, is_fortran, offset)


def empty_like_header(header: NpyHeader, device: Any, framework: str | None, name: str) -> tuple[Any, Any]:
    """Returns a new array for the header, and its memory. Raises InvalidArgument for a dtype that the library does not support."""
    try:
        array, memory = maker_of(header.dtype, device, framework).make(header.shape[::-1] if header.is_fortran else header.shape)
    except ValueError as problem:  # including InvalidArgument
        raise _wrong(name, str(problem)) from None
    if header.is_fortran and len(header.shape) > 1 and not isinstance(array, _native.DeviceBuffer):
        array = array.permute(*range(array.ndim - 1, -1, -1)) if hasattr(array, "permute") else array.T  # PyTorch has permute(), NumPy has T
    return array, memory


def piece_of(name: str, offset: int, nbytes: int, memory: Any) -> Piece:
    """Returns the piece that reads a file range into memory from empty_like_header()."""
    address, _ = _native.resolve(memory, True)
    return Piece(name, offset, nbytes, address, memory)


def reader_of(file: _native.File | Window, begin: int, end: int) -> Callable[[int], bytes]:
    """Returns the `read` argument of read_header() for a byte range of a file."""
    at = begin

    def read(count: int) -> bytes:
        nonlocal at
        found = bytearray(max(0, min(count, end - at)))
        done = file.read_into(found, at) if found else 0
        at += done
        return bytes(found[:done])

    return read


def _read_text(read: Callable[[int], bytes], name: str) -> tuple[str, int]:
    """Returns the header's text, and the offset after it."""
    beginning = read(_BEGINNING_BYTES)
    if len(beginning) < _BEGINNING_BYTES or not beginning.startswith(MAGIC):
        raise _wrong(name, "it does not start with the .npy magic string")
    version = (beginning[-2], beginning[-1])
    if version not in _VERSIONS:
        raise _wrong(name, f"version {version[0]}.{version[1]} of the .npy format is not supported; supported versions are 1.0, 2.0 and 3.0")
    form, encoding = _VERSIONS[version]
    (length,) = struct.unpack(form, _read_all(read, struct.calcsize(form), name))
    if length > _MOST_HEADER_BYTES:
        raise _wrong(name, f"its header is {length} bytes long, but the limit is {_MOST_HEADER_BYTES}")
    text = _read_all(read, length, name)
    try:
        return text.decode(encoding), _BEGINNING_BYTES + struct.calcsize(form) + length
    except UnicodeDecodeError as problem:
        raise _wrong(name, f"its header cannot be decoded: {problem}") from None


def _read_all(read: Callable[[int], bytes], count: int, name: str) -> bytes:
    found = read(count)
    if len(found) < count:
        raise _wrong(name, "it is truncated within its header")
    return found


# NumPy under Python 2 wrote integers as "3L". Strings are not changed.
_string_or_long = re.compile(r"""('[^'\\\n]*'|"[^"\\\n]*")|\b(\d+)L\b""")


def _fields_of(text: str, name: str) -> dict[str, Any]:
    if "L" in text:
        text = _string_or_long.sub(lambda found: found[1] or found[2], text)
    try:
        fields = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as problem:
        raise _wrong(name, f"its header is not a Python dict: {str(problem)[:100]}") from None
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise _wrong(name, "its header must contain exactly the fields descr, fortran_order and shape")
    return fields


def _shape_of(told: Any, name: str) -> tuple[int, ...]:
    if not isinstance(told, tuple) or not all(type(each) is int and 0 <= each <= _MOST_BYTES for each in told):
        raise _wrong(name, "the shape in its header is not a tuple of lengths")
    if len(told) > _MOST_DIMENSIONS:
        raise _wrong(name, f"its shape has {len(told)} dimensions, but the limit is {_MOST_DIMENSIONS}")
    return told


def _dtype_of(descr: Any, name: str) -> numpy.dtype[Any]:
    import numpy

    try:
        found: numpy.dtype[Any] = numpy.lib.format.descr_to_dtype(descr)
    except (ValueError, SyntaxError, TypeError, KeyError, IndexError, OverflowError, MemoryError, RecursionError) as problem:
        raise _wrong(name, f"descr in its header is not a dtype: {str(problem)[:100]}") from None
    if found.subdtype is not None:  # NumPy expands a subarray type into extra dimensions
        raise _wrong(name, f"descr in its header describes elements that are arrays: {found}")
    if found.hasobject:
        raise _wrong(
            name,
            "it contains pickled Python objects, which Penstock does not read because a pickle can run any code; if you trust the file, "
            "load it with numpy.load(allow_pickle=True)",
            ObjectArray,
        )
    return found


def _wrong(name: str, problem: str, kind: type[InvalidArgument] = InvalidArgument) -> InvalidArgument:
    return kind(f"{name}: {problem}", code="invalid_argument", filename=name)
