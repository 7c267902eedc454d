"""The header of tensor files."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from .. import _native
from .._core.errors import InvalidArgument
from .errors import SafetensorError

__all__ = ["Header", "header_of_bytes", "read_header"]


class Header:
    """The tensors in a header, in offset order, as columns.

    A column is built on first use, because building it for thousands of tensors takes about as long as reading them.
    """

    def __init__(self, told: _native.TensorHeader) -> None:
        self.told = told

    def __len__(self) -> int:
        return len(self.told)

    @cached_property
    def names(self) -> list[str]:
        return self.told.names()

    @cached_property
    def types(self) -> list[str]:
        """The type names in the file, such as "BF16"."""
        return self.told.dtypes()

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        return self.told.shapes()

    @cached_property
    def offsets(self) -> list[int]:
        """The offsets from the start of the file, in bytes."""
        return self.told.offsets()

    @cached_property
    def sizes(self) -> list[int]:
        """The sizes in bytes."""
        return self.told.sizes()

    @property
    def metadata(self) -> dict[str, str] | None:
        return self.told.metadata


def read_header(file: _native.File, name: str) -> Header:
    """Reads the header of an open file. Raises SafetensorError if it is not a safetensors file."""
    try:
        return Header(_native.read_safetensors(file))
    except InvalidArgument as problem:
        raise SafetensorError(str(problem), code=problem.code, filename=name) from None


def header_of_bytes(data: Any) -> Header:
    try:
        return Header(_native.parse_safetensors(data))
    except InvalidArgument as problem:
        raise SafetensorError(f"the data: {problem}", code=problem.code) from None
