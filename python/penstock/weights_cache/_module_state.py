"""The state of a module that a program or an engine builds itself: its tensors by name, and the plain values of its attributes."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .._core.torch_storages import is_plain
from ._structure import NotCacheable

__all__ = ["ModuleState", "add_missing", "matches", "set_values", "state_of"]

_VALUES = (bool, int, float, str, type(None))
_LEAST_ADDRESS = 1 << 31


class ModuleState(NamedTuple):
    """- `tensors`: parameters, buffers and tensors that are attributes, by name, without their Python attributes.
    - `values`: attributes of modules and their quantization methods that are numbers, strings, bools or None, by the owner's name. Large integers may
      be addresses, which differ between processes, so they are left out.
    """

    tensors: dict[str, Any]
    values: dict[str, dict[str, Any]]


def state_of(module: torch.nn.Module) -> ModuleState:
    """Raises NotCacheable if the module keeps tensors elsewhere, such as in lists or in objects of other classes."""
    tensors: dict[str, Any] = {}
    values: dict[str, dict[str, Any]] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        attributes = {name: each for name, each in vars(owner).items() if isinstance(each, torch.Tensor)}
        for name, each in {**owner._parameters, **owner._buffers, **attributes}.items():
            if each is not None:
                full_name = f"{prefix}.{name}" if prefix else name
                tensors[full_name] = _plain(full_name, each)
        for path, each in _owners_of_values(prefix, owner):
            values[path] = {name: value for name, value in vars(each).items() if _is_value(value)}
    storages = {each.untyped_storage()._cdata for each in tensors.values()}
    for path, tensor in _other_tensors(module):
        if not is_plain(tensor) or tensor.untyped_storage()._cdata not in storages:
            raise NotCacheable(f"keeps a tensor in {path}, which is not an attribute of a module")
    return ModuleState(tensors, values)


def _is_value(value: Any) -> bool:
    return type(value) in _VALUES and not (type(value) is int and abs(value) >= _LEAST_ADDRESS)


def _plain(name: str, tensor: Any) -> Any:
    found = tensor.detach()
    if type(found).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        found = found.as_subclass(torch.Tensor)
    if not is_plain(found):
        raise NotCacheable(f"has {name}, a {type(tensor).__name__}, which is not a plain tensor")
    return found


def _owners_of_values(prefix: str, module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    yield prefix, module
    method = getattr(module, "quant_method", None)
    if method is not None and hasattr(method, "__dict__"):
        yield f"{prefix}:quant_method", method


def _other_tensors(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields the tensors that are reachable from a module, except those that are attributes of a module."""
    seen: set[int] = set()
    left: list[tuple[str, Any]] = []
    for prefix, owner in module.named_modules():
        seen.add(id(owner))
        skipped = ("_parameters", "_buffers", "_modules")
        left += [(f"{prefix}.{name}", each) for name, each in vars(owner).items() if name not in skipped and not isinstance(each, torch.Tensor)]
    while left:
        path, value = left.pop()
        if isinstance(value, torch.Tensor):
            yield path, value
        elif id(value) not in seen:
            seen.add(id(value))
            left += [(f"{path}.{name}", each) for name, each in _parts_of(value) if type(each) not in _VALUES]


def _parts_of(value: Any) -> Sequence[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(repr(key)[:40], each) for key, each in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(str(i), each) for i, each in enumerate(value)]
    if isinstance(value, types.MethodType):
        return [("__func__", value.__func__), ("__self__", value.__self__)]
    if isinstance(value, functools.partial):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or ())
        return [(name, cell.cell_contents) for name, cell in cells if cell != types.CellType()]
    if isinstance(value, (type, types.ModuleType)) or not hasattr(value, "__dict__") or _is_machinery(value):
        return []
    return list(vars(value).items())


def _is_machinery(value: Any) -> bool:
    """Returns True for objects whose tensors are not weights: process groups and their buffers, streams, locks, loggers."""
    owner = type(value).__module__
    return (owner.startswith(("torch.", "logging", "threading")) or ".distributed." in owner) and not isinstance(value, torch.nn.Module)


def matches(stored: dict[str, Any], storages: Sequence[Any], tensors: dict[str, Any]) -> list[Any] | str:
    """Returns the memory to fill for each stored storage: a storage of `tensors`, or None if the module has no such storage.

    Returns a description of the difference if a tensor differs in type, shape, strides or sharing, or is not stored.

    `stored`: tensors on the meta device, which use `storages`.
    """
    numbers = {each._cdata: i for i, each in enumerate(storages)}
    found: list[Any] = [None] * len(storages)
    owners: dict[int, int] = {}
    for name, own in tensors.items():
        theirs = stored.get(name)
        if theirs is None:
            return f"lacks {name}"
        storage = own.untyped_storage()
        number = numbers[theirs.untyped_storage()._cdata]
        if _facts(own) != _facts(theirs) or storage.nbytes() != storages[number].nbytes():
            return f"has another type or layout of {name}"
        if owners.setdefault(storage._cdata, number) != number or (found[number] or storage)._cdata != storage._cdata:
            return f"shares the memory of {name} differently"
        found[number] = storage
    return found


def _facts(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg()


def add_missing(module: torch.nn.Module, tensors: dict[str, Any], known: dict[str, Any]) -> None:
    """Sets the tensors that the module lacks as attributes."""
    for name, tensor in tensors.items():
        if name not in known:
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, tensor)


def set_values(module: torch.nn.Module, values: dict[str, dict[str, Any]]) -> None:
    """Sets the attributes whose values differ."""
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for path, each in _owners_of_values(prefix, owner):
            for name, value in values.get(path, {}).items():
                own = vars(each).get(name)
                if (type(own) is not type(value) or own != value) and (own is None or _is_value(own)):
                    setattr(each, name, value)
