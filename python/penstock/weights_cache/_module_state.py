"""The state of a module that a program or an engine builds itself: its tensors by name, and the plain values of its attributes."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .._core.torch_memory import problem_of
from .._core.torch_storages import is_plain
from ._structure import NotCacheable

__all__ = ["ModuleState", "changed_object", "matches", "objects_of", "set_state", "state_of"]

_OF_STATE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_VALUES = (bool, int, float, str, type(None))
_LEAST_ADDRESS = 1 << 31


class ModuleState(NamedTuple):
    """- `tensors`: parameters, buffers and tensors that are attributes, by name, without their Python attributes.
    - `kinds`: for each tensor, "parameter", "buffer", "temporary buffer" (not part of the state dict) or "attribute".
    - `classes`: the class of each module, by the module's name.
    - `values`: attributes of modules and their quantization methods that are numbers, strings, bools or None, by the owner's name. Large integers may
      be addresses, which differ between processes, so they are left out.
    - `modes`: `training` of each module, by the name "MODULE:training", and `requires_grad` of each parameter, by its name. Only those to restore.
    - `added`: the tensors that a module may lack. None means any.
    """

    tensors: dict[str, Any]
    kinds: dict[str, str]
    classes: dict[str, str]
    values: dict[str, dict[str, Any]]
    modes: dict[str, bool]
    added: list[str] | None = None

    def since(self, before: ModuleState) -> ModuleState:
        """Returns this state with only the modes that differ from those of an earlier state, and with the names of the new tensors in `added`."""
        modes = {name: value for name, value in self.modes.items() if before.modes.get(name) != value}
        return self._replace(modes=modes, added=[name for name in self.tensors if name not in before.tensors])


def state_of(module: torch.nn.Module) -> ModuleState:
    """Raises NotCacheable if the module has tensors without memory, or keeps tensors elsewhere, such as in lists or in objects of other classes."""
    found = ModuleState({}, {}, {}, {}, {})
    for prefix, owner in module.named_modules(remove_duplicate=False):
        found.classes[prefix] = f"{type(owner).__module__}.{type(owner).__qualname__}"
        found.modes[f"{prefix}:training"] = owner.training
        kinds = dict.fromkeys(owner._parameters, "parameter") | {
            name: "temporary buffer" if name in owner._non_persistent_buffers_set else "buffer" for name in owner._buffers
        }
        attributes = {name: each for name, each in vars(owner).items() if isinstance(each, torch.Tensor)}
        for name, each in {**owner._parameters, **owner._buffers, **attributes}.items():
            if each is not None:
                full_name = f"{prefix}.{name}" if prefix else name
                found.tensors[full_name] = _plain(full_name, each)
                found.kinds[full_name] = kinds.get(name, "attribute")
                if name in owner._parameters:
                    found.modes[full_name] = each.requires_grad
        for path, each in _owners_of_values(prefix, owner):
            found.values[path] = {name: value for name, value in vars(each).items() if _is_value(value) and name != "training"}
    storages = {each.untyped_storage()._cdata for each in found.tensors.values()}
    for path, tensor in _other_tensors(module):
        if not is_plain(tensor) or tensor.untyped_storage()._cdata not in storages:
            raise NotCacheable(f"keeps a tensor in {path}, which is not an attribute of a module")
    return found


def objects_of(module: torch.nn.Module) -> dict[str, Any]:
    """Returns the attributes that a state leaves out, except large integers. Lists, dicts and sets are replaced with lists of their items."""
    return {
        f"{path}.{name}".lstrip("."): _items_of(value)
        for prefix, owner in module.named_modules(remove_duplicate=False)
        for path, each in _owners_of_values(prefix, owner)
        for name, value in vars(each).items()
        if name not in _OF_STATE and type(value) not in _VALUES and not isinstance(value, torch.Tensor)
    }


def changed_object(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Returns the name of an attribute that is new, or whose object or items have changed."""
    return next((name for name, value in after.items() if name not in before or not _is_same(before[name], value)), None)


def _items_of(value: Any) -> Any:
    if isinstance(value, dict):
        return [each for item in value.items() for each in item]
    return list(value) if type(value) in (list, tuple, set, frozenset) else value


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is list and type(other) is list:
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one is other or (type(one) is type(other) and type(one) in _VALUES and one == other)


def _is_value(value: Any) -> bool:
    return type(value) in _VALUES and not (type(value) is int and abs(value) >= _LEAST_ADDRESS)


def _plain(name: str, tensor: Any) -> Any:
    if (problem := problem_of(tensor, wrappers=True)) is not None:
        raise NotCacheable(f"has {name}, which {problem}")
    found = tensor.detach()
    if type(found).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        found = found.as_subclass(torch.Tensor)
    if not is_plain(found):
        raise NotCacheable(f"has {name}, a {type(tensor).__name__}, which is not a plain tensor: pass a function that returns the module")
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
        left += [(f"{prefix}.{name}", each) for name, each in vars(owner).items() if name not in _OF_STATE and not isinstance(each, torch.Tensor)]
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


def matches(stored: ModuleState, storages: Sequence[Any], own: ModuleState) -> list[Any] | str:
    """Returns the memory to fill for each stored storage: a storage of `own`, or None if the module has no such storage.

    Returns a description of the difference if a tensor differs in kind, type, shape, strides or sharing, or is missing on one side.

    `stored`: its tensors are on the meta device, and use `storages`.
    """
    if stored.classes != own.classes:
        names = [name for name in {**stored.classes, **own.classes} if stored.classes.get(name) != own.classes.get(name)]
        return f"has another class for the module {names[0]!r}"
    for name in stored.tensors:
        if name not in own.tensors and stored.added is not None and name not in stored.added:
            return f"has {name}, which the module lacks"
    numbers = {each._cdata: i for i, each in enumerate(storages)}
    found: list[Any] = [None] * len(storages)
    owners: dict[int, int] = {}
    for name, tensor in own.tensors.items():
        theirs = stored.tensors.get(name)
        if theirs is None:
            return f"lacks {name}"
        storage = tensor.untyped_storage()
        number = numbers[theirs.untyped_storage()._cdata]
        if stored.kinds[name] != own.kinds[name] or _facts(tensor) != _facts(theirs) or storage.nbytes() != storages[number].nbytes():
            return f"has another type or layout for {name}"
        if owners.setdefault(storage._cdata, number) != number or (found[number] or storage)._cdata != storage._cdata:
            return f"shares the memory of {name} differently"
        found[number] = storage
    return found


def _facts(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg()


def set_state(module: torch.nn.Module, stored: ModuleState, own: ModuleState) -> None:
    """Adds the tensors that the module lacks, and sets the values and modes that differ. `own`: the module's state."""
    for full_name, tensor in stored.tensors.items():
        if full_name not in own.tensors:
            prefix, _, name = full_name.rpartition(".")
            _add(module.get_submodule(prefix), name, tensor, stored.kinds[full_name])
    for prefix, owner in module.named_modules(remove_duplicate=False):
        owner.training = stored.modes.get(f"{prefix}:training", owner.training)
        for path, each in _owners_of_values(prefix, owner):
            for name, value in stored.values.get(path, {}).items():
                current = vars(each).get(name)
                if (type(current) is not type(value) or current != value) and (current is None or _is_value(current)):
                    setattr(each, name, value)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad != stored.modes.get(name, parameter.requires_grad):
            parameter.requires_grad_(stored.modes[name])


def _add(owner: torch.nn.Module, name: str, tensor: Any, kind: str) -> None:
    if kind == "parameter":
        setattr(owner, name, torch.nn.Parameter(tensor, requires_grad=False))
        return
    owner._parameters.pop(name, None)  # its value is None
    if kind == "attribute":
        setattr(owner, name, tensor)
    else:
        vars(owner).pop(name, None)
        owner.register_buffer(name, tensor, persistent=kind == "buffer")
