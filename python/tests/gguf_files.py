"""A small writer of GGUF files, for tests: every number can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["BLOCKS", "PLAIN", "Tensor", "array", "gguf", "pair", "string", "tensor_info"]

# Names of types, in the order of their numbers, and their formats as struct has them.
_FORMATS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?", "string": "", "array": "", "u64": "Q", "i64": "q", "f64": "d"}
_NUMBERS = {name: number for number, name in enumerate(_FORMATS)}

# Types of elements: number, elements and bytes of a block.
BLOCKS = {
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q8_1": (9, 32, 40),
    "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "Q8_K": (15, 256, 292),
    "IQ2_XXS": (16, 256, 66), "IQ2_XS": (17, 256, 74), "IQ3_XXS": (18, 256, 98), "IQ1_S": (19, 256, 50), "IQ4_NL": (20, 32, 18),
    "IQ3_S": (21, 256, 110), "IQ2_S": (22, 256, 82), "IQ4_XS": (23, 256, 136), "IQ1_M": (29, 256, 56), "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66),
    "MXFP4": (39, 32, 17), "NVFP4": (40, 64, 36), "Q1_0": (41, 128, 18),
}  # fmt: skip
PLAIN = {"F32": (0, 1, 4), "F16": (1, 1, 2), "I8": (24, 1, 1), "I16": (25, 1, 2), "I32": (26, 1, 4), "I64": (27, 1, 8), "F64": (28, 1, 8), "BF16": (30, 1, 2)}


class Tensor(NamedTuple):
    name: str
    type: str
    shape: tuple[int, ...]  # of elements, the dimension whose elements lie side by side last
    content: bytes


def string(text: str | bytes) -> bytes:
    content = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(content)) + content


def array(kind: str, items: Sequence[Any]) -> bytes:
    return struct.pack("<IQ", _NUMBERS[kind], len(items)) + b"".join(_value(kind, each) for each in items)


def pair(key: str, kind: str, value: Any) -> bytes:
    """A member of the metadata. An array is given as bytes of array()."""
    return string(key) + struct.pack("<I", _NUMBERS[kind]) + _value(kind, value)


def tensor_info(name: str, dimensions: Sequence[int], number: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, number, offset)


def gguf(pairs: Sequence[bytes] = (), tensors: Sequence[Tensor] = (), *, version: int = 3, alignment: int = 32) -> bytes:
    """A whole file. alignment: that a member of pairs tells, or 32."""
    infos, data = [], b""
    for name, kind, shape, content in tensors:
        data += bytes(-len(data) % alignment)
        infos.append(tensor_info(name, shape[::-1], (BLOCKS | PLAIN)[kind][0], len(data)))
        data += content
    beginning = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(pairs)) + b"".join([*pairs, *infos])
    return beginning + bytes(-len(beginning) % alignment) + data


def _value(kind: str, value: Any) -> bytes:
    if kind == "array":
        return bytes(value)
    return string(value) if kind == "string" else struct.pack("<" + _FORMATS[kind], value)
