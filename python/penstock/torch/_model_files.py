"""Plans the safetensors files of a model that several ranks save together: each file's tensors, and their offsets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch.distributed.checkpoint._hf_utils import _gen_file_name
from torch.distributed.checkpoint.planner import WriteItemType

from .. import _native
from .._tensors.errors import listed
from .._tensors.save_file import shape_in_file, word_of
from ._plan_tensors import wrong

__all__ = ["ModelFile", "check_plans", "index_of", "model_files"]


MetadataOf = Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, str]]


class ModelFile(NamedTuple):
    """One of the model's files."""

    name: str
    beginning: bytes  # the header
    nbytes: int
    places: dict[str, tuple[int, int]]  # offset and byte count of each tensor in the file


class _Tensor:
    """A tensor, as described by the ranks' plans."""

    def __init__(self, name: str, data: Any) -> None:
        self.dtype = data.properties.dtype
        self.size = tuple(data.size)
        self._name = name
        self._planned = 0  # elements in the plans so far

    def add(self, data: Any) -> None:
        offsets, sizes = tuple(data.chunk.offsets), tuple(data.chunk.sizes)
        if data.properties.dtype != self.dtype or tuple(data.size) != self.size:
            raise wrong(f'tensor "{self._name}" is {self.dtype} of {list(self.size)} on one rank, but {data.properties.dtype} of {list(data.size)} on another')
        if len(offsets) != len(self.size) or any(at < 0 or n < 0 or at + n > all_ for at, n, all_ in zip(offsets, sizes, self.size)):
            raise wrong(f'tensor "{self._name}" has the shape {list(self.size)}, so a part of {list(sizes)} at {list(offsets)} is out of bounds')
        self._planned += math.prod(sizes)

    def check_is_whole(self) -> None:
        wanted = math.prod(self.size)
        if self._planned != wanted:
            raise wrong(f'the ranks save {self._planned} elements of tensor "{self._name}", which has {wanted}: some parts are missing or overlap')


def model_files(plans: Sequence[Any], indexes: Mapping[str, int] | None, metadata_of: MetadataOf) -> list[ModelFile]:
    """Returns the files for all ranks' plans.

    - `indexes`: the number of each tensor's file, starting at 1. None means that all tensors are in one file.
    - `metadata_of`: returns a file's metadata for its tensors' shapes.

    Raises InvalidArgument for plans that do not cover whole tensors, or contain items other than tensors; SafetensorError for types that the format
    does not support.
    """
    check_plans(plans, indexes)
    tensors = _tensors_of(plans)
    files: dict[int, list[str]] = {}
    for name in tensors:
        files.setdefault(1 if indexes is None else _index_of(indexes, name), []).append(name)
    highest = 1 if indexes is None else max(indexes.values(), default=1)
    found = []
    for number, names in sorted(files.items()):
        metadata = metadata_of({name: tensors[name].size for name in names})
        found.append(_file_of(_gen_file_name(number, highest), names, tensors, metadata))
    return found


def index_of(files: Sequence[ModelFile]) -> dict[str, Any]:
    """Returns the content of model.safetensors.index.json."""
    total = sum(nbytes for file in files for _, nbytes in file.places.values())
    return {"metadata": {"total_size": total}, "weight_map": {name: file.name for file in files for name in file.places}}


def check_plans(plans: Sequence[Any], indexes: Mapping[str, int] | None) -> None:
    """Raises InvalidArgument if a plan contains items that are not tensors, such as numbers, or a tensor without a file."""
    objects = sorted({item.index.fqn for plan in plans for item in plan.items if item.type == WriteItemType.BYTE_IO})
    if objects:
        raise wrong(f"safetensors files can contain only tensors, not Python objects: {listed(objects)}")
    if indexes is not None:
        for name in {item.index.fqn for plan in plans for item in plan.items}:
            _index_of(indexes, name)


def _tensors_of(plans: Sequence[Any]) -> dict[str, _Tensor]:
    found: dict[str, _Tensor] = {}
    for plan in plans:
        for item in plan.items:
            name = item.index.fqn
            if name not in found:
                found[name] = _Tensor(name, item.tensor_data)
            found[name].add(item.tensor_data)
    for each in found.values():
        each.check_is_whole()
    return found


def _index_of(indexes: Mapping[str, int], name: str) -> int:
    number = indexes.get(name)
    if not isinstance(number, int) or number < 1:
        raise wrong(f'fqn_to_index_mapping maps tensor "{name}" to {number!r}, which is not an integer of 1 or more')
    return number


def _file_of(name: str, names: list[str], tensors: Mapping[str, _Tensor], metadata: Mapping[str, str]) -> ModelFile:
    words = [word_of(each, str(tensors[each].dtype).removeprefix("torch.")) for each in names]
    shapes = [shape_in_file(each, word, tensors[each].size) for word, each in zip(words, names)]
    beginning, order, offsets, sizes = _native.make_safetensors(names, words, shapes, dict(metadata))
    places = {names[at]: (offset, nbytes) for at, offset, nbytes in zip(order, offsets, sizes)}
    return ModelFile(name, beginning, len(beginning) + sum(sizes), places)

