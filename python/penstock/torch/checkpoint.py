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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint import filesystem as _filesystem
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from .. import _native
from .._core.arrays.of_torch import count_changes
from .._core.batches import in_batches
from .._core.errors import ShortRead
from .._core.packing import aligned
from .._core.pieces import Batch, Piece, move_batches
from .._core.saving import save_image
from .._core.small_files import sync_folder
from .._core.torch_memory import copy_into, span_of_tensor
from .._core.torch_storages import Memory, Snapshot, is_plain, new_storage, reaches, synchronize
from .._core.urls import is_url
from .._core.windows import Part, Window, held_bytes, windows_of
from ._blobs import Blob, blob_of
from ._checkpoint_folder import CheckpointFolder, in_turns, opened
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
_HELD_BYTES = 256 << 20  # limit for parts of files that are in memory at once
_SHORT_BYTES = 256 << 10  # on a server, shorter runs cost more than the bytes between them


class FileSystemReader(_filesystem.FileSystemReader):  # type: ignore[misc]
    """Reads tensors, or the parts that a rank needs, directly into the target tensors.

    The arguments are the same as for `torch.distributed.checkpoint.FileSystemReader`. The path may also be the URL of a folder on a server, such as
    s3://BUCKET/CHECKPOINT; all items of all files are then requested together. `storage_options`: how to reach the server, as in `penstock.open()`.

    PyTorch itself reads items that extensions have transformed, and items whose targets are not plain tensors. If a tensor has two names, or two
    tensors overlap, the later one in the plan wins; PyTorch's `load()` plans in alphabetical order.

    Raises:

    - `penstock.BufferError`: a target cannot be filled. No tensor has been changed.
    - `penstock.Error`: reading failed; the message names the file and the tensor.
    """

    def __init__(self, path: Any, *arguments: Any, storage_options: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(path, *arguments, **options)
        self.fs = CheckpointFolder(storage_options)
        self.path = self.fs.init_path(path)

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Reads the items in the plan. Called by PyTorch."""
        left: list[Any] = []
        check_targets(plan.items, planner)
        infos = self.storage_data
        for files in in_turns({os.path.join(self.path, name): items for name, items in by_file(infos, plan.items).items()}, is_url(self.path)):
            with opened(files, self.fs.storage_options) as found:
                every = [_Wanted(path, item, infos[item.storage_index], found[path]) for path, items in files.items() for item in items]
                for batch in in_batches(every, _HELD_BYTES, lambda each: held_bytes(each.part())):
                    left += _Reads(planner).run(batch)
        if left:
            return super().read_data(dataclasses.replace(plan, items=left), planner)
        return done(None)

    def _slice_file(self, file: Any, sinfo: Any) -> Any:
        if not isinstance(file, _native.File):
            return super()._slice_file(file, sinfo)
        content = bytearray(sinfo.length)  # with one request, because PyTorch reads it in small steps
        return io.BytesIO(content[: file.read_into(content, sinfo.offset)])


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


class _Wanted(NamedTuple):
    """An item of a plan, and its place in a file."""

    path: str
    item: Any
    info: Any
    file: _native.File

    def part(self) -> Part:
        return Part(self.file, self.info.offset, self.info.length)


class _Reads:
    """Items of a plan, from one or several files, that are read at once."""

    def __init__(self, planner: Any) -> None:
        self._planner = planner
        self._pieces: dict[str, list[Piece]] = {}  # by path
        self._copies: list[tuple[Any, memoryview]] = []  # target memory, and bytes that are already there
        self._devices: set[torch.device] = set()  # of the targets
        self._later: list[Callable[[], object]] = []  # actions to run after all reads
        self._changed: list[Any] = []  # tensors that were read in place

    def run(self, every: Sequence[_Wanted]) -> list[Any]:
        """Reads the items, and returns those that PyTorch must read."""
        left = [each.item for each in every if getattr(each.info, "transform_descriptors", None)]
        mine = [each for each in every if not getattr(each.info, "transform_descriptors", None)]
        for each in mine:
            if each.item.type == LoadItemType.BYTE_IO:
                self._read_raw(each)
        tensors = [each for each in mine if each.item.type != LoadItemType.BYTE_IO]
        found: list[tuple[_Wanted, Window, Blob, Any]] = []
        for each, window in zip(tensors, windows_of([each.part() for each in tensors])):
            blob = blob_of(window, each.path, each.info.offset)
            if blob is None:
                left.append(each.item)
            else:
                found.append((each, window, blob, self._planner.resolve_tensor(each.item).detach()))
        together = overlapping([target for *_, target in found])
        for number, row in enumerate(found):
            self._read_tensor(*row, in_place=number not in together)
        synchronize(self._devices)
        files = {each.path: each.file for each in every}
        move_batches([Batch(files[path], pieces, path) for path, pieces in self._pieces.items()], meanwhile=self._copy)
        count_changes(self._changed)
        for finish in self._later:
            finish()
        return left

    def _copy(self) -> None:
        for memory, content in self._copies:
            _native.copy(memory, content)

    def _read_raw(self, wanted: _Wanted) -> None:
        item, info = wanted.item, wanted.info
        content = bytearray(info.length)
        if info.length:
            self._pieces.setdefault(wanted.path, []).append(piece_of(info.offset, content, f"object {item.storage_index.fqn}"))
        self._later.append(lambda: self._planner.load_bytes(item, io.BytesIO(bytes(content))))

    def _read_tensor(self, wanted: _Wanted, window: Window, blob: Blob, target: Any, in_place: bool) -> None:
        item = wanted.item
        source = _narrowed(blob.tensor, item.storage_offsets, item.lengths)
        if target.size() != source.size():
            raise AssertionError(f"req {item.storage_index} mismatch sizes {target.size()} vs {source.size()}")
        self._later.append(lambda: self._planner.commit_tensor(item, target))
        if source.numel() == 0:
            return
        runs = None
        if target.dtype == source.dtype and takes_bytes(target) and in_place:
            runs = runs_of(source, target)
        if runs is not None and not (is_url(wanted.path) and len(runs) > 1 and _span_bytes(source) < len(runs) * _SHORT_BYTES):
            self._changed.append(target)
            for run in runs:
                address = target.data_ptr() + run.target
                self._add(wanted, window, blob, blob.offset + run.source, run.nbytes, address, target, target.device)
            return
        self._read_beside(wanted, window, blob, source, target)

    def _read_beside(self, wanted: _Wanted, window: Window, blob: Blob, source: Any, target: Any) -> None:
        """Reads the storage range that contains the part into temporary memory, and copies the part from there."""
        first = source.storage_offset() * source.element_size()
        nbytes = _span_bytes(source)
        storage = new_storage(nbytes, target.device if reaches(target.device) else torch.device("cpu"))
        self._add(wanted, window, blob, blob.offset + first, nbytes, storage.data_ptr(), storage, storage.device)

        def copy() -> None:
            content = torch.empty(0, dtype=source.dtype, device=storage.device).set_(storage, 0, source.size(), source.stride())
            copy_into(target, content)

        self._later.insert(len(self._later) - 1, copy)

    def _add(self, wanted: _Wanted, window: Window, blob: Blob, offset: int, nbytes: int, address: int, owner: Any, device: Any) -> None:
        name = f"tensor {wanted.item.storage_index.fqn}"
        if offset + nbytes > blob.offset + blob.nbytes:
            message = f"{wanted.path}: {name}: its storage has {blob.nbytes} bytes, but {offset + nbytes - blob.offset} are needed"
            raise ShortRead(message, code="short_read", filename=wanted.path, offset=blob.offset)
        self._devices.add(device)
        content = window.held(offset - wanted.info.offset, nbytes)
        if content is not None:
            self._copies.append((_native.Pointer(address, nbytes, owner), content))
            return
        self._pieces.setdefault(wanted.path, []).append(Piece(name, offset, nbytes, address, owner, device))


def _span_bytes(source: Any) -> int:
    start, end = span_of_tensor(source)
    return end - start


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
