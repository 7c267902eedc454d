"""Finds the storages that a pickle refers to, without running any code from it."""

from __future__ import annotations

import copyreg
import io
import pickle
import re
from typing import Any, NamedTuple

import torch

__all__ = ["Wanted", "storage_type", "wanted_of", "wanted_storages"]


class Wanted(NamedTuple):
    """A storage, as described in the pickle."""

    key: str
    dtype: torch.dtype
    nbytes: int
    location: str


def storage_type(name: Any) -> Any:
    """Returns a stand-in for torch.FloatStorage or a similar class, with its dtype, or None if the name is not a storage class."""
    if type(name) is str and "Storage" in name:
        try:
            return torch.serialization.StorageType(name)
        except KeyError:
            pass
    return None


def wanted_of(persistent_id: Any) -> Wanted:
    """Parses a persistent id. Raises ValueError if it is not a storage's id."""
    if not isinstance(persistent_id, tuple) or len(persistent_id) != 5:
        raise ValueError(f"a storage's persistent id must be a tuple of five items, not {persistent_id!r:.100}")
    word, kind, key, location, count = persistent_id
    if _text(word) != "storage":
        raise ValueError(f"only persistent ids of 'storage' are supported, not {word!r:.100}")
    if type(count) is not int or count < 0:
        raise ValueError(f"a storage's number of items must be an int, not {count!r:.100}")
    dtype = torch.uint8 if kind is torch.UntypedStorage else getattr(kind, "dtype", None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"a storage's type must be a PyTorch storage type, not {kind!r:.100}")
    return Wanted(_text(key), dtype, count * dtype.itemsize, _text(location))


def wanted_storages(pickled: bytes, encoding: str) -> list[Wanted]:
    """Returns each storage once, in the order in which unpickling requests them; fewer or none if the pickle cannot be interpreted.

    Nothing that the pickle refers to is imported or called: all objects that it builds are of a class that does nothing.
    """
    if not _is_bounded(pickled):
        return []
    found = _Scan(pickled, encoding)
    # From this cache, the unpickler would take objects that the program has registered by number, without calling find_class().
    if getattr(copyreg, "_extension_cache", None):
        return []
    try:
        found.load()
    except Exception:  # the real unpickler will raise the error again
        pass
    return list(found.wanted.values())


# Opcodes grouped by argument: none, a fixed number of bytes, or lines.
_FIXED = (
    rb"[(012NRQabdelostu)}\]\x81\x85-\x89\x8f-\x94\x97\x98]|[Khq\x80\x82].|[M\x83]..|[Jj\x84].{4}|[G\x95].{8}|[FILPSVg][^\n]*\n|[ci][^\n]*\n[^\n]*\n"
)
# Opcodes followed by a byte count and that many bytes; the value is the size of the count.
_COUNT_BYTES = {**dict.fromkeys(b"CU\x8a\x8c", 1), **dict.fromkeys(b"BTX\x8b", 4), **dict.fromkeys(b"\x8d\x8e\x96", 8)}


def _is_bounded(pickled: bytes) -> bool:
    """Returns True if memo numbers do not exceed about the size of the pickle. Python's unpickler allocates memory up to the largest number, so a
    damaged number could consume gigabytes.
    """
    high, middle = len(pickled) >> 24, len(pickled) >> 16
    put = b"r..%b%b" % ((b".", _up_to(high)) if high else (_up_to(middle), rb"\x00"))
    put_text = rb"p[0-9]{1,%d}\n" % len(str(len(pickled)))
    run = re.compile(rb"(?:%b|%b|%b){0,1000}" % (put, _FIXED, put_text), re.DOTALL)
    at = 0
    while at < len(pickled):
        after = run.match(pickled, at)
        assert after is not None  # because the pattern also matches an empty run
        if after.end() > at:
            at = after.end()
            continue
        width = _COUNT_BYTES.get(pickled[at])
        if width is None:
            return pickled[at : at + 1] == b"."
        at += 1 + width + int.from_bytes(pickled[at + 1 : at + 1 + width], "little")
    return True


def _up_to(last: int) -> bytes:
    return rb"[\x00-\x%02x]" % min(last, 255)


class _Nothing:
    """Replaces every class, function and object."""

    def __new__(cls, *_: Any, **__: Any) -> _Nothing:
        return object.__new__(cls)

    def __call__(self, *_: Any, **__: Any) -> _Nothing:
        return self

    def __setstate__(*_: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None: ...

    def extend(self, values: Any) -> None: ...

    def add(self, value: Any) -> None: ...


class _Untyped:
    """Replaces torch.UntypedStorage, which would allocate memory if it were called."""

    dtype = torch.uint8


class _Scan(pickle.Unpickler):
    def __init__(self, pickled: bytes, encoding: str) -> None:
        super().__init__(io.BytesIO(pickled), encoding=encoding)
        self.wanted: dict[str, Wanted] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage"):
            if name == "UntypedStorage":
                return _Untyped()
            if (found := storage_type(name)) is not None:
                return found
        return _Nothing

    def persistent_load(self, persistent_id: Any) -> Any:
        wanted = wanted_of(persistent_id)
        self.wanted.setdefault(wanted.key, wanted)
        return _Nothing()


def _text(word: Any) -> str:
    """Decodes a name, which is a bytes object in pickles from Python 2."""
    if isinstance(word, bytes):
        return word.decode("ascii")
    if not isinstance(word, str):
        raise ValueError(f"a name in a persistent id must be a string, not {word!r:.100}")
    return word
