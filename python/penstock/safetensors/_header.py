"""What stands in front of a tensor file's bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import _native
from .._errors import InvalidArgument
from ._errors import SafetensorError

__all__ = ["Header", "header_of_bytes", "read_header"]


class Header(NamedTuple):
    """The tensors in the order of their bytes, each a row of the columns."""

    names: list[str]
    types: list[str]  # as the file has them, such as "BF16"
    shapes: list[tuple[int, ...]]
    offsets: list[int]  # bytes, from the beginning of the file
    sizes: list[int]  # bytes
    metadata: dict[str, str] | None


def read_header(file: _native.File, name: str) -> Header:
    """Raises SafetensorError for what is no such file, and what reading raises."""
    try:
        told = _native.read_safetensors(file)
    except InvalidArgument as problem:
        raise SafetensorError(str(problem), code=problem.code, filename=name) from None
    return Header(*told.columns(), told.metadata)


def header_of_bytes(data: Any) -> Header:
    try:
        told = _native.parse_safetensors(data)
    except InvalidArgument as problem:
        raise SafetensorError(f"the data: {problem}", code=problem.code) from None
    return Header(*told.columns(), told.metadata)
