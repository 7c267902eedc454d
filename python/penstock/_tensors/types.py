"""The names of element types in safetensors files."""

from __future__ import annotations

__all__ = ["BITS", "NAMES", "WORDS"]

# Bits per element, and the type's name in NumPy, ml_dtypes and PyTorch. None of these has 6-bit types.
_TYPES = {
    "BOOL": (8, "bool"),
    "F4": (4, "float4_e2m1fn_x2"),
    "F6_E2M3": (6, None),
    "F6_E3M2": (6, None),
    "U8": (8, "uint8"),
    "I8": (8, "int8"),
    "F8_E5M2": (8, "float8_e5m2"),
    "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E8M0": (8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "I16": (16, "int16"),
    "U16": (16, "uint16"),
    "F16": (16, "float16"),
    "BF16": (16, "bfloat16"),
    "I32": (32, "int32"),
    "U32": (32, "uint32"),
    "F32": (32, "float32"),
    "C64": (64, "complex64"),
    "F64": (64, "float64"),
    "I64": (64, "int64"),
    "U64": (64, "uint64"),
}
BITS = {word: bits for word, (bits, _) in _TYPES.items()}
NAMES = {word: name for word, (_, name) in _TYPES.items() if name is not None}
WORDS = {name: word for word, name in NAMES.items()}
