"""Finds the tensors in a module or mapping: their names, their parts of whole tensors, and their arrays."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .._core.boxes import Box, chunk_of
from .._core.errors import InvalidArgument
from .._tensors.errors import listed, meant
from ._local_arrays import Local, local_of

__all__ = ["Held", "Holder", "Parts", "names_of", "part_of"]

# Maps a tensor's name to the whole tensor's shape and this process's slices, one for each dimension, starting with the first.
Parts = Mapping[str, tuple[Iterable[int], Any]]


class Held(NamedTuple):
    """A tensor in this process. `dtype` and `whole` are None for a DeviceBuffer, whose bytes may be of any type. `box` is the part of the whole
    tensor that this process has; None for a DeviceBuffer.
    """

    name: str
    dtype: str | None
    whole: tuple[int, ...] | None
    box: Box | None
    local: Local


def names_of(names: Iterable[str] | None) -> set[str] | None:
    if names is None:
        return None
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise TypeError(f"names must be an iterable of names, not {type(names).__name__}")
    return set(names)


class Holder:
    """Finds the tensors in a module or mapping. If nothing has changed, quickly returns the previous list."""

    def __init__(self, argument: str, names: set[str] | None, parts: Parts | None) -> None:
        self._argument = argument  # the name in error messages
        self.names, self.parts = names, parts
        self._values: list[tuple[str, Any, Any]] = []
        self._held: list[Held] | None = None

    def held(self, weights: Any) -> list[Held]:
        """Returns the tensors in the order of the module or mapping. Raises TypeError, and InvalidArgument for unknown names and parts that do not
        match.
        """
        found = _tensors_of(weights, self._argument)
        values = [(name, value, _layout_of(value)) for name, value in found.items()]
        if self._held is None or not _are_same(values, self._values):
            self._held = None
            self._held = self._found(found)
            self._values = values
        return self._held

    def _found(self, found: Mapping[str, Any]) -> list[Held]:
        for kind, asked in (("names", self.names), ("shard", self.parts)):
            absent = [each for each in asked or () if each not in found]
            if absent:
                raise _wrong(f"{kind} contains {listed(sorted(map(str, absent)))}, not found in {self._argument}{meant(map(str, absent), found)}")
        return [_held(name, value, self.parts) for name, value in found.items() if self.names is None or name in self.names]


def _layout_of(value: Any) -> Any:
    """Returns the properties that can change while the object stays the same, for example by `param.data = ...`. None: examine the array again."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is None or not isinstance(value, torch.Tensor):
        return (value.shape, value.strides, value.dtype) if numpy is not None and isinstance(value, numpy.ndarray) else ()
    if _is_spread(value):
        with torch.no_grad():
            value = value.to_local()
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device.type == "meta" or value.layout != torch.strided:
        return None
    try:
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    except RuntimeError:  # for example tensors inside vmap()
        return None


def _are_same(values: list[tuple[str, Any, Any]], before: list[tuple[str, Any, Any]]) -> bool:
    return len(values) == len(before) and all(
        name == name_before and value is value_before and layout is not None and layout == layout_before
        for (name, value, layout), (name_before, value_before, layout_before) in zip(values, before)
    )


def _tensors_of(weights: Any, argument: str) -> Mapping[str, Any]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(weights, torch.nn.Module):
        return {name: value for name, value in weights.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}
    if not isinstance(weights, Mapping):
        raise TypeError(f"{argument} must be a torch.nn.Module or a mapping of names to tensors, not {type(weights).__name__}")
    for name in weights:
        if not isinstance(name, str):
            raise TypeError(f"the names in {argument} must be str, not {type(name).__name__}")
    return weights


def _held(name: str, value: Any, parts: Parts | None) -> Held:
    spread = _spread_over_ranks(name, value)
    if spread is not None:
        whole, box, value = spread
    local = local_of(name, value)
    if parts is not None and name in parts:
        if spread is not None:
            raise _wrong(f'shard contains "{name}", which is a DTensor: omit it, because Penstock determines its part')
        whole, box = part_of(name, parts[name])
        if local.shape is None:
            raise _wrong(f'shard contains "{name}", which is a DeviceBuffer and has no dtype: pass an array')
    elif spread is None:
        if local.shape is None:
            return Held(name, None, None, None, local)
        whole, box = local.shape, Box.whole(local.shape)
    if local.shape != box.shape:
        raise _wrong(f'"{name}" has the local shape {list(local.shape or ())}, but its part is {box} of {list(whole)}')
    return Held(name, local.dtype, whole, box, local)


def part_of(name: str, part: Any) -> tuple[tuple[int, ...], Box]:
    try:
        shape, slices = part
        whole = tuple(operator.index(each) for each in shape)
        cuts = (slices,) if isinstance(slices, slice) else tuple(slices)
        ranges = [each.indices(extent) for each, extent in zip(cuts, whole)]
    except (TypeError, ValueError, AttributeError):
        raise TypeError(f'shard["{name}"] must be a pair of the whole shape and a tuple of slices, one for each dimension, not {part!r}') from None
    if len(cuts) > len(whole) or any(step != 1 or stop < start for start, stop, step in ranges):
        raise _wrong(f'shard["{name}"]: {slices!r} must be slices with a step of 1 within {list(whole)}')
    ranges += [(0, extent, 1) for extent in whole[len(ranges) :]]
    return whole, Box(tuple(start for start, _, _ in ranges), tuple(stop - start for start, stop, _ in ranges))


def _is_spread(value: Any) -> bool:
    """Returns True for a DTensor."""
    tensor_module = sys.modules.get("torch.distributed.tensor")
    return tensor_module is not None and isinstance(value, tensor_module.DTensor)


def _spread_over_ranks(name: str, value: Any) -> tuple[tuple[int, ...], Box, Any] | None:
    """Returns a DTensor's shape, this rank's part and the local tensor, or None for other values."""
    if not _is_spread(value):
        return None
    tensor_module = sys.modules["torch.distributed.tensor"]
    whole = tuple(value.shape)
    for each in value.placements:
        if type(each) not in (tensor_module.Shard, tensor_module.Replicate):
            raise _wrong(f'"{name}" is a DTensor with the placement {each}, which does not assign parts to ranks: call redistribute() first')
    coordinate = value.device_mesh.get_coordinate()
    local = value.detach().to_local()
    if coordinate is None:  # this rank is not in the mesh
        return whole, Box((0,) * len(whole), tuple(local.shape)), local
    cuts = [
        (each.dim if isinstance(each, tensor_module.Shard) else None, value.device_mesh.size(axis), coordinate[axis])
        for axis, each in enumerate(value.placements)
    ]
    return whole, chunk_of(whole, cuts), local


def _wrong(message: str) -> InvalidArgument:
    return InvalidArgument(message, code="invalid_argument")
