"""save(), save_async(): checkpoints that torch.load reads, whole under their name or not there."""

from __future__ import annotations

import io
import os
import pickle
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from .._errors import BufferError, InvalidArgument
from .._pieces import Progress
from .._saving import SaveFuture, save_image, save_in_background
from .._torch_memory import saved_problem_of
from ._image import CheckpointImage
from ._memory import Snapshot, memory_of, snapshot_of, synchronize

__all__ = ["Plan", "plan_of", "save", "save_async", "wants_crc32"]

_PROTOCOL = 2  # torch.save's


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
    """Saves obj to the file f as torch.save does, for torch.load and load() to read. Blocks.

    Storages on GPUs are written straight from there, after what PyTorch's current streams have. The file is written beside the one that it
    replaces, forced to the disk and then given its name: whatever happens, there is the old file or the new one, whole. A process that is killed
    may leave a file called .NAME.penstock-PID-N. The new file has owner, group, permissions and attributes of the one that it replaces, as far as this
    process may set them.
    crc32: whether the zip archive has its members' checksums, which torch.load does not look at, and zip tools do; None: as
    torch.serialization.set_crc32_options() has it, else yes. Of GPUs' memory the GPU computes them.
    f may be the URL of an object of S3 (s3://BUCKET/KEY); storage_options: as for penstock.open().
    progress(bytes_done, bytes_total) is called on this thread. What is no path of a regular file goes to torch.save.
    Raises penstock.Error, which names the file and the storage, and what pickling raises. A tensor whose storage was freed or cut raises BufferError,
    which names it, before anything is written; torch.save would write a file that torch.load refuses.
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
    """As save(), in the background: returns once obj is pickled and the copy of its storages is made, or on a GPU queued.

    Tensors may be changed from then on: by the CPU at once, by a GPU in the streams that were PyTorch's current ones. snapshot: where the copy of a
    GPU's storages is: "device" on that GPU, "host" in pinned memory, "auto" on the GPU if it has room, else pinned. Those of the CPU are copied there.
    progress is called on the thread that writes; the future's progress tells the same. Several saves to one path come one after the other.
    Raises what save() raises while pickling; InvalidArgument where f is no path of a regular file.
    """
    if _is_for_torch(f):
        raise InvalidArgument(f"{f!r:.100} is no path of a regular file", code="invalid_argument")
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
        return False  # it is to be made, or the error will come


def wants_crc32(told: bool | None) -> bool:
    if told is not None:
        return told
    get = getattr(torch.serialization, "get_crc32_options", None)
    return bool(get()) if get is not None else True


def _image_of(path: str, plan: Plan, contents: Snapshot, crc32: bool) -> CheckpointImage:
    # As torch.save names it: the file's name without its ending.
    name = os.path.splitext(os.path.basename(path))[0]
    folder = name if name.isascii() and 0 < len(name) < 1000 else "archive"
    names = [f"storage data/{key}" for key in range(len(plan.storages))]
    return CheckpointImage(folder, plan.pickled, contents, names, crc32)


# --- the pickle


class Plan(NamedTuple):
    """What torch.save writes of an object."""

    pickled: bytes
    storages: list[Any]  # by their keys, which count from 0


def plan_of(obj: object, pickle_module: Any, protocol: int) -> Plan:
    buffer = io.BytesIO()
    storages = _Storages(obj)

    class Pickler(pickle_module.Pickler):  # type: ignore[misc]
        def persistent_id(self, each: Any) -> Any:
            return storages.persistent_id(each)

    Pickler(buffer, protocol=protocol).dump(obj)
    return Plan(buffer.getvalue(), storages.found)


class _Storages:
    """The storages that a pickle speaks of, each under a key, as torch.save tells them apart."""

    def __init__(self, obj: object) -> None:
        """obj: what is pickled, for the names of its tensors in errors."""
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
    """A tensor by its name in what is saved, or by its type and shape if it is nowhere in its dicts, lists and modules."""
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
