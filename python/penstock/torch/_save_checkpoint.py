"""save(), save_async(): write checkpoints for torch.load, atomically."""

from __future__ import annotations

import io
import os
import pickle
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from .._core.errors import BufferError, InvalidArgument
from .._core.pieces import Progress
from .._core.saving import SaveFuture, save_image, save_in_background
from .._core.torch_memory import saved_problem_of
from .._core.torch_storages import Snapshot, memory_of, snapshot_of, synchronize
from ._checkpoint_image import CheckpointImage

__all__ = ["Plan", "plan_of", "save", "save_async", "wants_crc32"]

_PROTOCOL = 2  # as in torch.save


def save(
    obj: object,
    f: str | os.PathLike[str],
    pickle_module: Any = pickle,
    pickle_protocol: int = _PROTOCOL,
    *,
    crc32: bool | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Saves an object to a file as `torch.save` does, but atomically and durably. Blocks. `torch.load` and `load()` can read the file.

    Arguments:

    - `obj`, `pickle_module`, `pickle_protocol`: as for `torch.save`.
    - `f`: a file name, or the URL of an S3 object (s3://BUCKET/KEY). `torch.save` handles everything else.
    - `crc32`: True adds checksums to the archive, which zip tools check but `torch.load` does not. A GPU computes the checksums of its own memory.
      None uses the value of `torch.serialization.set_crc32_options()`, else True.
    - `progress`: a function of the bytes done and the total bytes. It is called on this thread.
    - `storage_options`: connection options for a URL, as in `penstock.open()`.

    Storages on a GPU are written directly from GPU memory, after the work on PyTorch's current streams. The new file is written next to the old one,
    flushed to disk and renamed, so a crash leaves either the old file or the new one, and possibly a temporary file named .NAME.penstock-PID-N. The
    new file gets the old one's owner, group, permissions and attributes, as far as the process may set them.

    Raises:

    - `BufferError`: a tensor's storage was freed or truncated; the message names the tensor. Nothing was written.
    - `penstock.Error`: writing failed; the message names the file and the storage, and the old file is unchanged.
    - pickling errors.
    """
    if _is_for_torch(f):
        torch.save(obj, f, pickle_module, pickle_protocol)
        return
    plan = plan_of(obj, pickle_module, pickle_protocol)
    synchronize(each.device for each in plan.storages)
    contents = Snapshot([memory_of(each) for each in plan.storages], [])
    path = os.fsdecode(f)
    save_image(path, _image_of(path, plan, contents, wants_crc32(crc32)), progress=progress, storage_options=storage_options)


def save_async(
    obj: object,
    f: str | os.PathLike[str],
    snapshot: str = "auto",
    *,
    pickle_module: Any = pickle,
    pickle_protocol: int = _PROTOCOL,
    crc32: bool | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SaveFuture:
    """Saves a copy of the object in the background. Returns a `SaveFuture` as soon as the object is pickled and its storages are copied.

    You may change the tensors once the call has returned. Copies of GPU memory are queued on PyTorch's current streams, so later work on these
    streams does not affect them.

    - `snapshot`: where to copy GPU storages: "device" (the same GPU), "host" (pinned memory), or "auto" (the GPU if at least 1/16 of its memory stays
      free, else pinned memory). CPU storages are copied on the CPU.
    - `progress`: as for `save()`, but called on the writing thread.
    - `obj`, `f`, `pickle_module`, `pickle_protocol`, `crc32`, `storage_options`: as for `save()`.

    Saves to the same path run sequentially.

    Raises `InvalidArgument` if `f` is not the path of a regular file, and pickling errors. The future raises write errors.
    """
    if _is_for_torch(f):
        raise InvalidArgument(f"{f!r:.100} is not the path of a regular file", code="invalid_argument")
    plan = plan_of(obj, pickle_module, pickle_protocol)
    path = os.fsdecode(f)
    image = _image_of(path, plan, snapshot_of(plan.storages, snapshot), wants_crc32(crc32))
    return save_in_background(path, image, progress, storage_options)


def _is_for_torch(f: Any) -> bool:
    if not isinstance(f, (str, os.PathLike)) or getattr(getattr(torch.serialization, "_serialization_tls", None), "skip_data", False):
        return True
    try:
        return not stat.S_ISREG(os.stat(f).st_mode)
    except OSError:
        return False  # the file will be created, or the error will be reported later


def wants_crc32(told: bool | None) -> bool:
    if told is not None:
        return told
    get = getattr(torch.serialization, "get_crc32_options", None)
    return bool(get()) if get is not None else True


def _image_of(path: str, plan: Plan, contents: Snapshot, crc32: bool) -> CheckpointImage:
    # Named as by torch.save: the file's name without its extension.
    name = os.path.splitext(os.path.basename(path))[0]
    folder = name if name.isascii() and 0 < len(name) < 1000 else "archive"
    names = [f"storage data/{key}" for key in range(len(plan.storages))]
    return CheckpointImage(folder, plan.pickled, contents, names, crc32)


# --- the pickle


class Plan(NamedTuple):
    """The pickle and the storages that torch.save would write."""

    pickled: bytes
    storages: list[Any]  # by key; keys count from 0


def plan_of(obj: object, pickle_module: Any, protocol: int) -> Plan:
    buffer = io.BytesIO()
    storages = _Storages(obj)

    class Pickler(pickle_module.Pickler):  # type: ignore[misc]
        def persistent_id(self, each: Any) -> Any:
            return storages.persistent_id(each)

    Pickler(buffer, protocol=protocol).dump(obj)
    return Plan(buffer.getvalue(), storages.found)


class _Storages:
    """The storages that a pickle refers to, each with a key, identified as in torch.save."""

    def __init__(self, obj: object) -> None:
        """`obj` is the pickled object, for the names of its tensors in errors."""
        self._obj = obj
        self.found: list[Any] = []
        self._keys: dict[int, str] = {}
        self._dtypes: dict[int, torch.dtype] = {}  # by address

    def persistent_id(self, each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            problem = saved_problem_of(each)
            if problem is not None:
                raise BufferError(f"{_called(self._obj, each)} {problem}", code="bad_memory")
            return None
        if isinstance(each, torch.storage.TypedStorage):
            storage, dtype, count = each._untyped_storage, each.dtype, each._size()
            kind = getattr(torch, each._pickle_storage_type())
        elif torch.is_storage(each):
            storage, dtype, count = each, torch.uint8, each.nbytes()
            kind = torch.serialization.normalize_storage_type(type(each))
        else:
            return None
        if storage.device.type != "meta" and storage.data_ptr() != 0:
            if self._dtypes.setdefault(storage.data_ptr(), dtype) != dtype:
                raise RuntimeError("Cannot save multiple tensors or storages that view the same data as different types")
        if storage._cdata not in self._keys:
            self._keys[storage._cdata] = str(len(self.found))
            self.found.append(storage)
        return ("storage", kind, self._keys[storage._cdata], torch.serialization.location_tag(storage), count)


def _called(obj: Any, tensor: Any) -> str:
    """Returns a tensor's path in the saved object, or its type and shape if the object's dicts, lists and modules do not contain it."""
    name = _name_in(obj, tensor, 0)
    return f"a tensor of {tensor.dtype} and shape {list(tensor.shape)}" if name is None else f'tensor "{name}"'


def _name_in(value: Any, tensor: Any, depth: int) -> str | None:
    if value is tensor:
        return ""
    if depth > 20:
        return None
    if isinstance(value, torch.nn.Module):
        value = value.state_dict(keep_vars=True)
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    for key, each in parts:
        name = _name_in(each, tensor, depth + 1)
        if name is not None:
            return f"{key}.{name}" if name else str(key)
    return None
