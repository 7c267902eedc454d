"""serialize(), serialize_file() and deserialize(): tensors as memory addresses and bytes, without an array library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _native
from .._core.errors import BufferError
from .._tensors.errors import SafetensorError
from .._tensors.header import header_of_bytes
from .._tensors.save_file import Tensor, saved, word_of, write_file
from .._tensors.sources import Path
from .._tensors.types import BITS

__all__ = ["TensorSpec", "deserialize", "serialize", "serialize_file"]


class TensorSpec:
    """A tensor to save, as memory at an address.

    - `dtype`: the type's name in NumPy, ml_dtypes or PyTorch.
    - `shape`: the number of elements in each dimension.
    - `data_ptr`: the address. The memory must stay valid until the tensor is saved.
    - `data_len`: bytes at the address.
    """

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        """Raises SafetensorError for a type that the format does not support."""
        self.dtype = word_of(None, dtype)
        self.shape = list(shape)
        if self.dtype == "F4":  # PyTorch counts two elements as one
            self.shape[-1:] = [self.shape[-1] * 2] if self.shape else [2]
        self.data_ptr = data_ptr
        self.data_len = data_len

    def __repr__(self) -> str:
        return f"TensorSpec(dtype={self.dtype!r}, shape={self.shape}, data_ptr={self.data_ptr}, data_len={self.data_len})"


def serialize(tensor_dict: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the content of a file with these tensors. Raises SafetensorError if a tensor's bytes and shape do not match."""
    return saved(_tensors_of(tensor_dict), metadata)


def serialize_file(tensor_dict: Mapping[str, TensorSpec], filename: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors to a file, as `save_file()` does. Raises SafetensorError if a tensor's bytes and shape do not match."""
    write_file(_tensors_of(tensor_dict), filename, metadata)


def deserialize(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Returns each tensor's name with its "dtype" (the type name in the file), "shape" and "data". Raises SafetensorError for damaged content."""
    header = header_of_bytes(data)
    content = memoryview(data)
    rows = zip(header.names, header.types, header.shapes, header.offsets, header.sizes)
    return [
        (name, {"shape": list(shape), "dtype": word, "data": bytearray(content[offset : offset + nbytes])})
        for name, word, shape, offset, nbytes in rows
    ]


def _tensors_of(tensor_dict: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
    return {name: _tensor_of(name, each) for name, each in tensor_dict.items()}


def _tensor_of(name: str, spec: TensorSpec) -> Tensor:
    if not isinstance(spec, TensorSpec):
        raise TypeError(f'tensor "{name}" must be a TensorSpec, not {type(spec).__name__}')
    wanted = math.prod(spec.shape) * BITS[spec.dtype]
    if wanted != spec.data_len * 8:
        problem = f'tensor "{name}" of type {spec.dtype} and shape {spec.shape} requires {wanted / 8:g} bytes, but data_len is {spec.data_len}'
        raise SafetensorError(problem, code="invalid_argument")
    if spec.data_len and not spec.data_ptr:
        raise BufferError(f'tensor "{name}": data_ptr is 0, but data_len is {spec.data_len}', code="bad_memory")
    memory = _native.Pointer(spec.data_ptr, spec.data_len, spec, True) if spec.data_len else b""
    return Tensor(spec.dtype, tuple(spec.shape), spec.data_len, memory)


TensorSpec.__module__ = "penstock.safetensors"  # its public home, which pickles name
