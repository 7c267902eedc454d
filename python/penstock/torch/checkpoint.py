"""Readers and writers for `torch.distributed.checkpoint`. The files are in PyTorch's format: PyTorch can read Penstock's files, and vice versa.

    import torch.distributed.checkpoint as dcp
    from penstock.torch.checkpoint import FileSystemReader, FileSystemWriter

    dcp.save(state_dict, storage_writer=FileSystemWriter("checkpoint"))
    dcp.load(state_dict, storage_reader=FileSystemReader("checkpoint"))

`HuggingFaceStorageReader` and `HuggingFaceStorageWriter` do the same for safetensors files (PyTorch 2.9 and later).
"""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint import filesystem as _filesystem
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from .. import _native
from .._core.arrays.of_torch import count_changes
from .._core.errors import ShortRead
from .._core.packing import aligned
from .._core.pieces import Piece, move_pieces
from .._core.saving import save_image
from .._core.small_files import sync_folder
from .._core.torch_memory import copy_into, span_of_tensor
from .._core.torch_storages import Memory, Snapshot, is_plain, new_storage, reaches, synchronize
from ._blobs import Blob, blobs_of
from ._checkpoint_image import CheckpointImage, piece_of
from ._plan_tensors import by_file, check_sources, check_state, check_targets, done, overlapping, takes_bytes
from ._runs import runs_of
from ._save_checkpoint import plan_of, wants_crc32

__all__ = ["FileSystemReader", "FileSystemWriter"]

if hasattr(torch.distributed.checkpoint, "QuantizedHuggingFaceStorageReader"):  # PyTorch 2.9 and newer
    from ._huggingface_reader import HuggingFaceStorageReader, QuantizedHuggingFaceStorageReader

    from ._huggingface_writer import HuggingFaceStorageWriter

    __all__ += ["HuggingFaceStorageReader", "HuggingFaceStorageWriter", "QuantizedHuggingFaceStorageReader"]

_ALIGNMENT = 4096 # of each tensor's part of a file


class FileSystemReader(_filesystem.FileSystemReader):  # type: ignore[misc]
    """Reads tensors, or the parts that a rank needs, directly into the target tensors.

    The arguments are the same as for `torch.distributed.checkpoint.FileSystemReader`. PyTorch itself reads items that extensions have transformed,
    and items whose targets are not plain tensors. If a tensor has two names, or two tensors overlap, the later one in the plan wins; PyTorch's
    `load()` plans in alphabetical order.

    Raises:

    - `penstock.BufferError`: a target cannot be filled. No tensor has been changed.
    - `penstock.Error`: reading failed; the message names the file and the tensor.
    """

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Reads the items in the plan. Called by PyTorch."""
        left: list[Any] = []
        check_targets(plan.items, planner)
        for relative_path, items in by_file(self.storage_data, plan.items).items():
            path = os.path.join(self.path, relative_path)
            with _native.open(path) as file:
                left += _FileReads(file, path, self.storage_data, planner).run(items)
        if left:
            return super().read_data(dataclasses.replace(plan, items=left), planner)
        return done(None)


class FileSystemWriter(_filesystem.FileSystemWriter):  # type: ignore[misc]
    """Writes tensors directly from their memory, and each file atomically.

    The arguments are the same as for `torch.distributed.checkpoint.FileSystemWriter`. `thread_count` has no effect: with `single_file_per_rank`, each
    rank writes one file, with several threads. Files are always flushed to disk. With extensions, or in the safetensors format, PyTorch itself writes
    the files.

    Raises:

    - `penstock.BufferError`: a tensor has no memory, or is sparse; the message names it. Nothing was written.
    - `penstock.Error`: writing failed.
    """

    def stage(self, state_dict: Any) -> Any:
        """Copies the state for `async_save()`, as PyTorch does. Raises penstock.BufferError for tensors that have no memory."""
        check_state(state_dict)
        return super().stage(state_dict)

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Writes the items in the plan. Called by PyTorch."""
        check_sources(plan.items, planner)
        if self._is_for_torch():
            return super().write_data(plan, planner)
        groups = [list(plan.items)] if self.single_file_per_rank else [[each] for each in plan.items]
        results: list[Any] = []
        for number, items in enumerate(groups):
            name = f"{plan.storage_data.prefix}{number}{_filesystem.DEFAULT_SUFFIX}"
            image = _ItemsImage(items, planner)
            save_image(os.path.join(self.path, name), image)
            for item, offset, nbytes in image.places:
                info = _filesystem._StorageInfo(name, offset, nbytes)
                results.append(WriteResult(index=item.index, size_in_bytes=nbytes, storage_data=info))
        return done(results)

    def finish(self, metadata: Any, results: Any) -> None:
        """Writes the metadata and flushes the folder. Called by PyTorch."""
        super().finish(metadata, results)
        sync_folder(self.path)  # so that the metadata file's directory entry also survives a power failure

    def _is_for_torch(self) -> bool:
        told = getattr(self, "serialization_format", None)
        if told is not None and told != _filesystem.SerializationFormat.TORCH_SAVE:
            return True
        return bool(getattr(getattr(self, "transforms", None), "extensions", None))


# --- reads


class _FileReads:
    """A plan's items in one file."""

    def __init__(self, file: Any, path: str, storage_data: Any, planner: Any) -> None:
        self._file = file
        self._path = path
        self._infos = storage_data
        self._planner = planner
        self._pieces: list[Piece] = []
        self._later: list[Any] = []  # actions to run after all reads
        self._changed: list[Any] = []  # tensors that were read in place

    def run(self, items: Sequence[Any]) -> list[Any]:
        """Reads the items, and returns those that PyTorch must read."""
        left = [each for each in items if getattr(self._info(each), "transform_descriptors", None)]
        raw = [each for each in items if each not in left and each.type == LoadItemType.BYTE_IO]
        tensors = [each for each in items if each not in left and each.type != LoadItemType.BYTE_IO]
        for each in raw:
            self._read_raw(each)
        ranges = [(self._info(each).offset, self._info(each).length) for each in tensors]
        found: list[tuple[Any, Blob, Any]] = []
        for item, blob in zip(tensors, blobs_of(self._file, self._path, ranges)):
            if blob is None:
                left.append(item)
            else:
                found.append((item, blob, self._planner.resolve_tensor(item).detach()))
        together = overlapping([target for _, _, target in found])
        for number, each in enumerate(found):
            self._read_tensor(*each, in_place=number not in together)
        synchronize(each.device for each in self._pieces if isinstance(each.device, torch.device))
        move_pieces(self._file, self._pieces, label=self._path)
        count_changes(self._changed)
        for finish in self._later:
            finish()
        return left

    def _info(self, item: Any) -> Any:
        return self._infos[item.storage_index]

    def _read_raw(self, item: Any) -> None:
        info = self._info(item)
        content = bytearray(info.length)
        if info.length:
            self._pieces.append(piece_of(info.offset, content, f"object {item.storage_index.fqn}"))
        self._later.append(lambda: self._planner.load_bytes(item, io.BytesIO(bytes(content))))

    def _read_tensor(self, item: Any, blob: Blob, target: Any, in_place: bool) -> None:
        name = f"tensor {item.storage_index.fqn}"
        source = _narrowed(blob.tensor, item.storage_offsets, item.lengths)
        if target.size() != source.size():
            raise AssertionError(f"req {item.storage_index} mismatch sizes {target.size()} vs {source.size()}")
        self._later.append(lambda: self._planner.commit_tensor(item, target))
        if source.numel() == 0:
            return
        runs = None
        if target.dtype == source.dtype and takes_bytes(target) and in_place:
            runs = runs_of(source, target)
        if runs is not None:
            self._changed.append(target)
            for run in runs:
                address = target.data_ptr() + run.target
                self._add(name, blob, blob.offset + run.source, run.nbytes, address, target, target.device)
            return
        self._read_beside(name, blob, source, target)

    def _read_beside(self, name: str, blob: Blob, source: Any, target: Any) -> None:
        """Reads the storage range that contains the part into temporary memory, and copies the part from there."""
        first = source.storage_offset() * source.element_size()
        start, end = span_of_tensor(source)
        nbytes = end - start
        storage = new_storage(nbytes, target.device if reaches(target.device) else torch.device("cpu"))
        self._add(name, blob, blob.offset + first, nbytes, storage.data_ptr(), storage, storage.device)

        def copy() -> None:
            content = torch.empty(0, dtype=source.dtype, device=storage.device).set_(storage, 0, source.size(), source.stride())
            copy_into(target, content)

        self._later.insert(len(self._later) - 1, copy)

    def _add(self, name: str, blob: Blob, offset: int, nbytes: int, address: int, owner: Any, device: Any) -> None:
        if offset + nbytes > blob.offset + blob.nbytes:
            message = f"{self._path}: {name}: its storage has {blob.nbytes} bytes, but {offset + nbytes - blob.offset} are needed"
            raise ShortRead(message, code="short_read", filename=self._path, offset=blob.offset)
        self._pieces.append(Piece(name, offset, nbytes, address, owner, device))


def _narrowed(tensor: Any, offsets: Sequence[int], lengths: Sequence[int]) -> Any:
    for i, (offset, length) in enumerate(zip(offsets, lengths)):
        if length < tensor.size(i):
            tensor = tensor.narrow(i, offset, length)
    return tensor


# --- writes


class _ItemsImage:
    """A plan's items, placed consecutively, as a penstock._core.saving.Image."""

    def __init__(self, items: Sequence[Any], planner: Any) -> None:
        self.places: list[tuple[Any, int, int]] = []  # item, offset and bytes
        self._images: list[CheckpointImage] = []
        self._raw: list[Piece] = []
        devices = []
        end = 0
        for item in sorted(items, key=lambda each: bool(each.type != WriteItemType.BYTE_IO)):
            data = planner.resolve_data(item)
            name = f"tensor {item.index.fqn}" if item.type != WriteItemType.BYTE_IO else f"object {item.index.fqn}"
            content = data.getvalue() if item.type == WriteItemType.BYTE_IO else None if is_plain(data) else _saved_by_torch(data)
            if content is not None:
                offset, nbytes = end, len(content)
                if content:
                    self._raw.append(piece_of(offset, content, name))
            else:
                offset = aligned(end, _ALIGNMENT)
                image = _image_of_tensor(data.detach(), name, offset)
                self._images.append(image)
                devices.append(data.device)
                nbytes = image.nbytes
            self.places.append((item, offset, nbytes))
            end = offset + nbytes
        synchronize(devices)

    def pieces(self) -> Sequence[Piece]:
        return [*self._raw, *(piece for image in self._images for piece in image.pieces())]

    def rest(self) -> Sequence[Piece]:
        return [piece for image in self._images for piece in image.rest()]


def _saved_by_torch(data: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(data.detach().cpu(), buffer)
    return buffer.getvalue()


def _image_of_tensor(tensor: Any, name: str, start: int) -> CheckpointImage:
    """Returns the image that torch.save would write for a CPU tensor with its own storage."""
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    if not reaches(tensor.device):
        tensor = tensor.cpu()
    # The memory of this tensor is never read.
    alike = torch.empty(tensor.size(), dtype=tensor.dtype, device="cpu")
    plan = plan_of(alike, pickle, 2)
    nbytes = tensor.numel() * tensor.element_size()
    own = [Memory(tensor.data_ptr(), nbytes, tensor.untyped_storage(), tensor.device)] if nbytes else []
    return CheckpointImage("archive", plan.pickled, Snapshot([own], []), [name], wants_crc32(None), start)


def __dir__() -> list[str]:
    return sorted(__all__)
