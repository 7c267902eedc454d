"""Pickles of objects without the bytes of their tensors: the pickle refers to the storages of the tensors by number."""

from __future__ import annotations

import collections
import io
import pickle
import types
from typing import Any, NamedTuple

import torch

from .._core.torch_memory import problem_of
from .._core.torch_storages import reaches

__all__ = ["NotCacheable", "Structure", "restored", "restored_early", "structure_of"]


class NotCacheable(Exception):
    """An object that cannot be stored exactly. The message says why, phrased to follow the object's name."""


class Structure(NamedTuple):
    """An object as a pickle and the storages of its tensors. Tensors that share memory share a storage."""

    pickled: bytes
    storages: list[Any]


def structure_of(value: Any) -> Structure:
    """Splits an object into a pickle and storages. Raises NotCacheable if the pickle would not restore the same object, or if Penstock cannot access a
    tensor's memory.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    try:
        pickler.dump(value)
        pickled = buffer.getvalue()
        restored(pickled, pickler.storages)  # proves that a later process can import its classes and rebuild its tensors
    except NotCacheable:
        raise
    except Exception as problem:  # __reduce__ and __setstate__ of the object's classes may raise any exception
        raise NotCacheable(f"cannot be pickled: {type(problem).__name__}: {problem}") from problem
    return Structure(pickled, pickler.storages)


def restored(pickled: bytes, storages: list[Any]) -> Any:
    """Restores an object. Its tensors use the given storages."""
    return _Unpickler(io.BytesIO(pickled), storages).load()


def restored_early(pickled: bytes, storages: list[Any]) -> Any:
    """Restores an object before the contents of the storages have been read. Returns None if a class or function in the pickle could use them."""
    try:
        return _EarlyUnpickler(io.BytesIO(pickled), storages).load()
    except _TooEarly:
        return None


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=4)
        self.storages: list[Any] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, torch.storage.TypedStorage):
            return self._number_of(value._untyped_storage), value.dtype
        if isinstance(value, torch.UntypedStorage):
            return self._number_of(value), torch.uint8  # as in torch.save: _rebuild_tensor_v3 expects a TypedStorage
        if isinstance(value, torch.Tensor):
            _check(value)
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.MethodType):  # pickle looks methods up by name, and libraries bind partial functions to instances
            return _bound, (value.__func__, value.__self__)
        return NotImplemented

    def _number_of(self, storage: Any) -> int:
        if not reaches(storage.device):
            raise NotCacheable(f"has a tensor on the device {storage.device}, whose memory Penstock cannot access")
        key = storage._cdata
        if key not in self._numbers:
            self._numbers[key] = len(self.storages)
            self.storages.append(storage)
        return self._numbers[key]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, storages: list[Any]) -> None:
        super().__init__(file)
        self._storages = storages

    def persistent_load(self, found: Any) -> Any:
        number, dtype = found
        return torch.storage.TypedStorage(wrap_storage=self._storages[number], dtype=dtype, _internal=True)


class _TooEarly(Exception):
    pass


class _EarlyUnpickler(_Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if callable(found) and not any(found is each for each in _EARLY) and not _is_plain_class(found):
            raise _TooEarly
        return found


def _is_plain_class(found: Any) -> bool:
    """Returns True if unpickling an instance only sets its attributes, and runs no code of the class."""
    return (
        isinstance(found, type)
        and all(getattr(found, each) is getattr(object, each) for each in ("__new__", "__reduce__", "__reduce_ex__", "__hash__"))
        and getattr(found, "__setstate__", None) in (None, torch.nn.Module.__setstate__)
        and not any("__slots__" in vars(each) for each in found.__mro__)
    )


def _bound(function: Any, owner: Any) -> Any:
    return types.MethodType(function, owner)


# The functions and classes that pickles of tensors name, and others that do not use the contents of tensors.
_EARLY = [collections.OrderedDict, torch.Size, torch.device, _bound]
_EARLY += [getattr(torch._utils, f"_rebuild_{each}", None) for each in ("tensor_v2", "tensor_v3", "parameter", "parameter_with_state")]


def _check(tensor: Any) -> None:
    """Raises NotCacheable for properties that PyTorch's own pickles lose, and for tensors that exceed their storage, because rebuilding would grow it."""
    if tensor.layout is torch.strided and not tensor.is_nested and tensor.device.type in ("cpu", "cuda"):
        if (problem := problem_of(tensor, wrappers=True)) is not None:
            raise NotCacheable(f"has a tensor that {problem}")
    if tensor.grad_fn is not None:
        raise NotCacheable("has a tensor that belongs to an autograd graph: store it after training, or detach the tensor")
    if getattr(tensor, "_backward_hooks", None):
        raise NotCacheable("has a tensor with hooks, which a pickle does not contain")
    if tensor.is_leaf and tensor.grad is not None:
        raise NotCacheable("has a parameter with a gradient, which a pickle does not contain: call zero_grad(set_to_none=True) first")
