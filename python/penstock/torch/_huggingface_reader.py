"""HuggingFaceStorageReader: reads safetensors files, or the parts that a rank needs, for torch.distributed.checkpoint."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint import _hf_utils
from torch.distributed.checkpoint import hf_storage as _hf_storage
from torch.distributed.checkpoint import quantized_hf_storage as _quantized
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, StorageMeta, TensorProperties, TensorStorageMetadata

from .._core.batches import in_batches
from .._core.errors import InvalidArgument
from .._core.urls import is_url, opened_together
from .._tensors.errors import of_file
from .._tensors.frameworks import Framework, framework_on
from .._tensors.load_file import check_type
from .._tensors.safe_open import safe_open
from .._tensors.sources import Source, files_of
from ._checkpoint_folder import CheckpointFolder, in_turns
from ._plan_tensors import by_file, check_targets, done
from ._tensor_reads import TensorRead, read_tensors

__all__ = ["HuggingFaceStorageReader", "QuantizedHuggingFaceStorageReader"]

_most_open = 128  # files that stay open
_most_elements = 2**63 - 1


class HuggingFaceStorageReader(_hf_storage.HuggingFaceStorageReader):  # type: ignore[misc]
    """Reads safetensors files, or the parts that a rank needs, directly into the target tensors, from all files at once.

    Arguments, metadata and results are the same as for `torch.distributed.checkpoint.HuggingFaceStorageReader`. Any program may have written the
    files. `thread_count` has no effect. If a tensor and its target differ in type, the values are converted. The path may be the URL of a folder.
    On a web server, the folder must contain the model's index. `storage_options`: how to reach the server, as in `penstock.open()`.

    Raises `penstock.Error` if reading fails, if files are missing from the folder, or if a tensor is in two files; the message names the file and the
    tensor.
    """

    _sources: dict[str, Source] = {}  # by path; open since read_metadata()

    def __init__(self, path: Any, *arguments: Any, storage_options: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(path, *arguments, **options)
        self.fs = CheckpointFolder(storage_options)
        self.path = self.fs.init_path(path)

    def read_metadata(self) -> Any:
        self._close()
        metadata = Metadata(state_dict_metadata={}, storage_data={}, storage_meta=StorageMeta(load_id=self.load_id))
        try:
            for paths in in_batches(self._paths(), 0, lambda path: 0, _most_open):
                for path, source in zip(paths, self._opened(paths)):
                    self._add_file(metadata, path, source)
            _check_is_whole(metadata, os.fspath(self.path))
        except BaseException:
            self._close()
            raise
        return metadata

    def read_data(self, plan: Any, planner: Any) -> Any:
        try:
            check_targets(plan.items, planner)
            for each in in_turns(by_file(self.storage_data, plan.items), at_once=True):
                self._read_files(each, planner)
        finally:
            self._close()
        return done()

    def reset(self, checkpoint_id: Any = None) -> None:
        self._close()
        super().reset(checkpoint_id)

    def _paths(self) -> list[str]:
        """Returns the checkpoint's files. A web server cannot list a folder, so the model's index must name them."""
        if is_url(self.path) and not self.path.startswith("s3:"):
            return files_of(self.path, self.fs.storage_options)[0]
        return sorted(each for each in self.fs.ls(self.path) if each.endswith(_hf_utils.SUFFIX))

    def _opened(self, paths: Sequence[str]) -> Iterator[Source]:
        return opened_together(paths, lambda path: Source(path, storage_options=self.fs.storage_options), lambda source: source.file.close())

    def _add_file(self, metadata: Any, path: str, source: Source) -> None:
        _add_tensors(metadata, source, framework_on("pt", "cpu"))
        if len(self._sources) < _most_open:
            self._sources[path] = source
        else:
            source.file.close()

    def _read_files(self, files: dict[str, list[Any]], planner: Any) -> None:
        opened = {path: self._sources.pop(path) for path in files if path in self._sources}
        try:
            missing = [path for path in files if path not in opened]
            for path, source in zip(missing, self._opened(missing)):
                opened[path] = source
            found = [_read_of(opened[path], item, planner) for path, items in files.items() for item in items]
            read_tensors([read for read, _ in found])
            for read, item in found:
                planner.commit_tensor(item, read.target)
        finally:
            for each in opened.values():
                each.file.close()

    def _close(self) -> None:
        for each in self._sources.values():
            each.file.close()
        self._sources = {}


class QuantizedHuggingFaceStorageReader(_quantized.QuantizedHuggingFaceStorageReader, HuggingFaceStorageReader):  # type: ignore[misc]
    """Reads quantized safetensors files for `torch.distributed.checkpoint`. The arguments are the same as for PyTorch's class of the same name, and
    `storage_options` as for `HuggingFaceStorageReader`.

    Penstock reads quantized tensors one at a time, and PyTorch dequantizes them. Other tensors are read as in `HuggingFaceStorageReader`.
    """

    def __init__(self, path: Any, *arguments: Any, storage_options: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(path, *arguments, **options)
        self.fs = CheckpointFolder(storage_options)

    def _load_quantization_metadata(self) -> None:
        with self.fs.create_stream(self.fs.concat_path(self.path, _hf_utils._metadata_fn), "rb") as file:
            self._build_weight_scale_mapping(json.load(file).get("weight_map", {}))

    def read_data(self, plan: Any, planner: Any) -> Any:
        check_targets(plan.items, planner)
        plain: list[Any] = []
        for path, items in by_file(self.storage_data, plan.items).items():
            quantized: list[Any] = []
            for each in items:
                (quantized if self._is_tensor_quantized(each.storage_index.fqn) else plain).append(each)
            if quantized:
                with safe_open(path, framework="pt", storage_options=self.fs.storage_options) as file:
                    for each in quantized:
                        self._process_read_request(file, each, planner)
        return HuggingFaceStorageReader.read_data(self, dataclasses.replace(plan, items=plain), planner)


# --- contents of the files


def _add_tensors(metadata: Any, source: Source, place: Framework) -> None:
    header = source.header
    saved = _saved_offsets(source)
    for name, word, told in zip(header.names, header.types, header.shapes):
        dtype = place.dtype(word)
        shape = check_type(source.name, name, word, told, place, dtype)
        offsets = [0] * len(shape) if saved is None else _offsets_of(source, saved, name, shape)
        chunk = ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(shape))
        ends = [offset + length for offset, length in zip(offsets, shape)]
        found = metadata.state_dict_metadata.get(name)
        if found is None:
            found = TensorStorageMetadata(properties=TensorProperties(dtype=dtype), size=torch.Size(ends), chunks=[])
            metadata.state_dict_metadata[name] = found
        elif len(found.size) != len(ends):
            raise of_file(source.name, f'tensor "{name}" has {len(ends)} dimensions in this file, but {len(found.size)} in another file')
        found.size = torch.Size([max(each) for each in zip(found.size, ends)])
        found.chunks.append(chunk)
        index = MetadataIndex(fqn=name, offset=offsets)
        other = metadata.storage_data.get(index)
        if other is not None and 0 not in shape and 0 not in other.shape:
            raise of_file(source.name, f'tensor "{name}" is also in {other.relative_path}: remove one of the two')
        if other is None or 0 not in shape:
            metadata.storage_data[index] = _hf_utils._HFStorageInfo(relative_path=source.name, shape=torch.Size(shape), dtype=dtype)


def _check_is_whole(metadata: Any, folder: str) -> None:
    """Checks that the files contain all elements. Loading would leave missing elements unchanged in the target tensors."""
    for name, each in metadata.state_dict_metadata.items():
        there, wanted = sum(math.prod(chunk.sizes) for chunk in each.chunks), math.prod(each.size)
        if there != wanted:
            problem = f'the files contain {there} of the {wanted} elements of tensor "{name}" of shape {list(each.size)}'
            raise of_file(folder, f"{problem}: files are missing, or are from a different checkpoint")
        if not _lie_apart(each.chunks):
            raise of_file(folder, f'some parts of tensor "{name}" overlap and others are missing: the files are from different checkpoints')


def _lie_apart(chunks: list[Any]) -> bool:
    """Returns True if no two chunks share elements. Compares few pairs if a tensor is cut along one axis or into a grid."""
    boxes = [(tuple(each.offsets), tuple(map(sum, zip(each.offsets, each.sizes)))) for each in chunks if 0 not in each.sizes]
    if len(boxes) < 2:
        return True
    axis = max(range(len(boxes[0][0])), key=lambda axis: len({begin[axis] for begin, _ in boxes}), default=None)
    if axis is None:  # the same scalar is in two files
        return False
    boxes.sort(key=lambda box: box[0][axis])
    near: list[tuple[tuple[int, ...], tuple[int, ...]]] = []  # boxes that extend past the start of the next one
    for begin, end in boxes:
        near = [each for each in near if each[1][axis] > begin[axis]]
        if any(all(a < d and c < b for a, b, c, d in zip(begin, end, *each)) for each in near):
            return False
        near.append((begin, end))
    return True


def _saved_offsets(source: Source) -> dict[str, Any] | None:
    """Returns the offsets of partial tensors as saved by torch.distributed.checkpoint, or None if all tensors are whole."""
    told = (source.header.metadata or {}).get(_hf_utils.CUSTOM_METADATA_KEY)
    if not told:
        return None
    try:
        saved = json.loads(told)
    except (ValueError, RecursionError):
        saved = None
    if not isinstance(saved, dict):
        raise of_file(source.name, f"its {_hf_utils.CUSTOM_METADATA_KEY} is not a JSON object")
    return saved


def _offsets_of(source: Source, saved: dict[str, Any], name: str, shape: tuple[int, ...]) -> list[int]:
    told = saved.get(name)
    offsets = told.get(_hf_utils.SAVED_OFFSETS_KEY) if isinstance(told, dict) else None
    if not isinstance(offsets, list) or len(offsets) != len(shape) or not all(_is_offset(*each) for each in zip(offsets, shape)):
        shown = f"{told!r:.100}"
        raise of_file(source.name, f'{_hf_utils.CUSTOM_METADATA_KEY} contains invalid offsets {shown} for tensor "{name}" of shape {list(shape)}')
    return offsets


def _is_offset(value: Any, length: int) -> bool:
    return type(value) is int and 0 <= value <= _most_elements - length


# --- requests of a plan


def _read_of(source: Source, item: Any, planner: Any) -> tuple[TensorRead, Any]:
    name = item.storage_index.fqn
    row = source.row(name)
    word, place = source.header.types[row], framework_on("pt", "cpu")
    dtype = place.dtype(word)
    shape = check_type(source.name, name, word, source.header.shapes[row], place, dtype)
    offsets, lengths = tuple(item.storage_offsets), tuple(item.lengths)
    if len(offsets) != len(shape) or any(start < 0 or length < 0 or start + length > whole for start, length, whole in zip(offsets, lengths, shape)):
        problem = f'{source.name}: tensor "{name}" has the shape {list(shape)}, so {list(lengths)} starting at {list(offsets)} is out of bounds'
        raise InvalidArgument(problem, code="invalid_argument", filename=source.name)
    target = planner.resolve_tensor(item).detach()
    if tuple(target.size()) != lengths:
        raise AssertionError(f"req {item.storage_index} mismatch sizes {target.size()} vs {torch.Size(lengths)}")
    return TensorRead(source, source.header.offsets[row], dtype, shape, offsets, target), item
