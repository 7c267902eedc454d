"""HuggingFaceStorageWriter: writes torch.distributed.checkpoint's safetensors files, as shards of each rank, or as whole files by all ranks
together."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import _hf_utils
from torch.distributed.checkpoint import hf_storage as _hf_storage
from torch.distributed.checkpoint.storage import WriteResult

from .. import _native
from .._core.shared_file import SharedFile, abandon, open_shared, remove_left
from .._core.torch_storages import reaches
from .._tensors.save_file import Tensor, settle, tensor_of, write_file
from .._tensors.slices import Part, part_of
from ._model_files import ModelFile, check_plans, index_of, model_files
from ._plan_tensors import check_sources, done, wrong
from ._stager import DeviceStager
from ._tensor_writes import TensorWrite, write_tensors

__all__ = ["HuggingFaceStorageWriter"]


class HuggingFaceStorageWriter(DeviceStager, _hf_storage.HuggingFaceStorageWriter):  # type: ignore[misc]
    """Writes safetensors files directly from the tensors' memory, each file atomically. Use a writer for one save at a time.

    - `path`, `fqn_to_index_mapping`: as for `torch.distributed.checkpoint.HuggingFaceStorageWriter`.
    - `save_distributed`, `enable_consolidation`: with only `save_distributed`, each rank writes its own files. Otherwise, all ranks write their parts
      into the whole model's files at the same time, in one pass, and must have access to the folder.
    - `snapshot`: where `async_save()` copies GPU tensors: "device" (the same GPU), "host" (pinned memory), or "auto" (the GPU if it has enough
      memory, else pinned memory).
    - `thread_count`, `thread_count_consolidation`, `token`: no effect.

    The whole model's files have hidden names until all ranks have finished. model.safetensors.index.json is renamed last.

    Raises `penstock.Error`, which names the file and the tensor. If a save fails, the old files remain.
    """

    def __init__(
        self,
        path: str,
        fqn_to_index_mapping: dict[str, int] | None = None,
        thread_count: int = 1,
        save_distributed: bool = False,
        enable_consolidation: bool = False,
        thread_count_consolidation: int = 1,
        *,
        token: Any = None,
        snapshot: str = "auto",
    ) -> None:
        super().__init__(
            snapshot=snapshot,
            path=path,
            fqn_to_index_mapping=fqn_to_index_mapping,
            thread_count=thread_count,
            save_distributed=save_distributed,
            enable_consolidation=enable_consolidation,
            thread_count_consolidation=thread_count_consolidation,
        )
        self._save: _Save | None = None  # on the coordinator, while the files have hidden names
        self._set_path(path)

    def reset(self, checkpoint_id: Any = None) -> None:
        self._drop()
        super().reset(checkpoint_id)
        if checkpoint_id:
            self._set_path(checkpoint_id)

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        self._drop()
        if self._has_own_files():
            return self._prepared_shards(plans)
        self._check_is_together(plans)
        if not all(getattr(each, "usable", True) for each in plans):
            raise wrong("the plans of all ranks are required, but a planner with enable_plan_caching=True omits some of them")
        files = model_files(plans, self.fqn_to_index_mapping, self._metadata_of)
        self._save = _Save(os.fspath(self.path), files, sum(len(each.items) for each in plans))
        return [dataclasses.replace(each, storage_data=self._save.part_of_rank(each)) for each in plans]

    def write_data(self, plan: Any, planner: Any) -> Any:
        self.wait_for_copies()
        folder = os.fspath(self.path)
        if self._has_own_files():
            check_sources(plan.items, planner)
            return done(self._write_shards(folder, plan, planner))
        try:
            check_sources(plan.items, planner)
            return done(_write_parts(folder, plan, planner))
        except BaseException:
            self._drop()
            for each in plan.storage_data.files:
                abandon(os.path.join(folder, each.name), each.hidden)
            raise

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        if self._has_own_files():
            return
        save, self._save = self._save, None
        if save is None:
            raise wrong("this save was abandoned, because a newer save was started with the same writer")
        with contextlib.closing(save):
            save.check([each.storage_data for of_rank in results for each in of_rank])
            save.publish()

    def _has_own_files(self) -> bool:
        """Returns True if each rank writes its own files."""
        return bool(self.save_distributed and not self.enable_consolidation)

    def _set_path(self, path: Any) -> None:
        self.path = self.fs.init_path(path)
        if self.enable_consolidation:
            self.consolidated_output_path = str(path)

    def _drop(self) -> None:
        save, self._save = self._save, None
        if save is not None:
            save.close()

    def _check_is_together(self, plans: Sequence[Any]) -> None:
        world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        if not getattr(self, "use_collectives", True) and world > 1 and len(plans) == 1:
            raise wrong("use_collectives=False is not supported if ranks write the same files; with only save_distributed=True, each rank writes its own files")

    def _metadata_of(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        if self.enable_consolidation:
            return {_hf_utils.FORMAT_KEY: _hf_utils.FORMAT_VALUE}
        return _sharding_info({name: [0] * len(shape) for name, shape in shapes.items()})

    # --- files of each rank

    def _prepared_shards(self, plans: list[Any]) -> list[Any]:
        check_plans(plans, self.fqn_to_index_mapping)
        prepared = super().prepare_global_plan(plans)
        if not getattr(self, "use_collectives", True) and self.rank is not None:
            for each in prepared:  # only this rank's plan, as if this rank were the first
                each.storage_data["shard_index"] = self.rank + 1
        return list(prepared)

    def _write_shards(self, folder: str, plan: Any, planner: Any) -> list[Any]:
        results = []
        indexes = plan.storage_data.get("fqn_to_index_mapping")
        highest = max(indexes.values()) if indexes else 1
        buckets: Any = self._split_by_storage_plan(indexes, plan.items)
        for number, items in buckets.items():
            name = _hf_utils._gen_file_name(number, highest, plan.storage_data["shard_index"])
            tensors = _shards_of(name, items, planner)
            write_file(tensors, os.path.join(folder, name), _sharding_info({each.index.fqn: list(each.tensor_data.chunk.offsets) for each in items}))
            results += [_result(item, _Written(name, 0, tensors[item.index.fqn].nbytes, "")) for item in items]
        return results


def _sharding_info(offsets: dict[str, list[int]]) -> dict[str, str]:
    told = {name: {_hf_utils.SAVED_OFFSETS_KEY: each} for name, each in offsets.items()}
    return {
        _hf_utils.CUSTOM_METADATA_KEY: json.dumps(told),
        _hf_utils.DCP_VERSION_KEY: str(_hf_utils.HF_DCP_VERSION),
        _hf_utils.FORMAT_KEY: _hf_utils.FORMAT_VALUE,
    }


def _result(item: Any, written: _Written) -> Any:
    return WriteResult(index=item.index, size_in_bytes=written.length, storage_data=written)


def _tensor(item: Any, planner: Any) -> Tensor:
    """Returns an item's tensor. Raises if it differs from the plan, because the offsets of the file's other tensors depend on its size."""
    data, name, planned = planner.resolve_data(item).detach(), item.index.fqn, item.tensor_data
    if tuple(data.size()) != tuple(planned.chunk.sizes) or data.dtype != planned.properties.dtype:
        is_ = f"is {data.dtype} of {list(data.size())}"
        raise wrong(f'tensor "{name}" {is_} now, but {planned.properties.dtype} of {list(planned.chunk.sizes)} in the plan')
    return tensor_of(name, data if reaches(data.device) else data.cpu())


def _shards_of(file: str, items: Sequence[Any], planner: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for each in items:
        if each.index.fqn in found:
            raise wrong(f'{file}: this rank has several parts of tensor "{each.index.fqn}", but a file can contain only one')
        found[each.index.fqn] = _tensor(each, planner)
    return found


# --- files of all ranks


class _Written(NamedTuple):
    """A rank's report about an item that it has written."""

    relative_path: str
    offset: int  # offset of its first byte in the file
    length: int
    save: str


class _HiddenFile(NamedTuple):
    name: str
    hidden: str
    nbytes: int


class _RankPart(NamedTuple):
    """The information that a rank needs to write its parts."""

    save: str
    files: list[_HiddenFile]
    places: dict[str, tuple[int, int]]  # by tensor name: index in `files`, and offset in that file


class _Save:
    """The coordinator's view of the files while they are being written."""

    def __init__(self, folder: str, files: list[ModelFile], items: int) -> None:
        self._name = uuid.uuid4().hex
        self._folder = folder
        self._files = files
        self._items = items
        self._numbers = {name: number for number, file in enumerate(files) for name in file.places}  # the index of each tensor's file
        self._shared: list[SharedFile] = []
        remove_left(folder)
        try:
            for each in files:
                self._shared.append(SharedFile(os.path.join(folder, each.name), each.beginning, each.nbytes))
        except BaseException:
            self.close()
            raise

    def part_of_rank(self, plan: Any) -> _RankPart:
        wanted = {item.index.fqn for item in plan.items}
        used = {old: new for new, old in enumerate(sorted({self._numbers[name] for name in wanted}))}
        hidden = [_HiddenFile(self._files[at].name, self._shared[at].hidden, self._files[at].nbytes) for at in used]
        places = {name: (used[at], self._files[at].places[name][0]) for name, at in ((name, self._numbers[name]) for name in wanted)}
        return _RankPart(self._name, hidden, places)

    def check(self, written: Sequence[Any]) -> None:
        """Checks that everything in the plan was written for this save."""
        mine = [each for each in written if getattr(each, "save", None) == self._name]
        if len(mine) != len(written) or len(mine) != self._items:
            raise wrong(f"{self._folder}: {len(mine)} of {self._items} parts were written for this save, and {len(written) - len(mine)} for another")

    def publish(self) -> None:
        for each in self._shared:
            each.publish()
        _write_index(os.path.join(self._folder, _hf_utils._metadata_fn), index_of(self._files))

    def close(self) -> None:
        """Removes files that were not published."""
        for each in self._shared:
            each.drop()


def _write_index(path: str, content: dict[str, Any]) -> None:
    with _native.PendingFile(path) as pending:
        with pending.open() as file:
            file.write_from(json.dumps(content, indent=2).encode())
        pending.publish()


def _write_parts(folder: str, plan: Any, planner: Any) -> list[Any]:
    part: _RankPart = plan.storage_data
    results: list[Any] = []
    for number, file in enumerate(part.files):
        items = [each for each in plan.items if part.places[each.index.fqn][0] == number]
        writes = [_write_of(each, part.places[each.index.fqn][1], planner) for each in items]
        settle(each.tensor for each in writes)
        path = os.path.join(folder, file.name)
        with open_shared(path, file.hidden, file.nbytes) as opened:
            write_tensors(opened, path, writes)
        for item, write in zip(items, writes):
            first = write.offset + (write.part.starts[0] if write.part.starts else 0)
            results.append(_result(item, _Written(file.name, first, write.tensor.nbytes, part.save)))
    return results


def _write_of(item: Any, offset: int, planner: Any) -> TensorWrite:
    tensor = _tensor(item, planner)
    return TensorWrite(item.index.fqn, tensor, offset, _part_of(item))


def _part_of(item: Any) -> Part:
    data = item.tensor_data
    picks = [slice(start, start + length) for start, length in zip(data.chunk.offsets, data.chunk.sizes)]
    return part_of(tuple(data.size), data.properties.dtype.itemsize, picks, exact=True)
