"""Penstock reads files into GPU memory and host memory, writes them back, and sends tensors between processes.

    import numpy as np
    import penstock

    array = np.empty(1 << 20, dtype=np.uint8)
    with penstock.open("data.bin") as file:
        count = file.read_into(array)              # blocks
        future = file.pread(array, offset=4096)    # does not block: future.result(), or await future

A buffer is a NumPy or CuPy array, a PyTorch tensor, a bytearray or memoryview, a DeviceBuffer from `penstock.device("cuda:0").empty(nbytes)`, a
`penstock.Pointer(address, nbytes)`, or any object with `__cuda_array_interface__` or `__dlpack__`.
"""

from __future__ import annotations

import atexit as _atexit
import copyreg as _copyreg
import time as _time
import weakref as _weakref
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from ._core import interpreter as _interpreter  # noqa: F401  # first, because it may reject the interpreter
from . import _core, _native
from ._core.errors import (
    BufferError,
    Cancelled,
    Closed,
    Error,
    FileExists,
    InvalidArgument,
    IsADirectory,
    NotAFile,
    NotFound,
    OutOfMemory,
    PermissionDenied,
    ShortRead,
    TimedOut,
)
from ._core.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, DoneAndNotDone, as_completed, wait
from ._core.lazy import importable as _importable
from ._core.lazy import lazily as _lazily
from ._native import (
    Device,
    DeviceBuffer,
    File,
    Future,
    PinnedRange,
    Pointer,
    StreamResult,
    __version__,
    advice,
    copy,
    cuda_status,
    describe,
    device,
    devices,
    gpu_direct_status,
    list_remote,
    pread_many,
    pwrite_many,
    read_tree,
    requests,
    stats,
    summary,
    trim,
)

# The public submodules, which are imported on first use, and the library that each needs.
_submodules = {
    "cuda_bindings": "",
    "cufile": "",
    "fastsafetensors": "fastsafetensors",
    "gds": "",
    "gguf": "",
    "kv": "",
    "kvikio": "",
    "lmcache": "lmcache",
    "lmcache_connector": "lmcache",
    "pipe": "",
    "safetensors": "",
    "sglang": "sglang",
    "torch": "torch",
    "vllm": "",
    "vllm_weights": "vllm",
    "weights": "",
    "weights_cache": "torch",
    "zarr": "zarr",
}

if _TYPE_CHECKING:
    import os as _os
    from collections.abc import Callable as _Callable
    from collections.abc import Mapping as _Mapping

    from . import cuda_bindings as cuda_bindings
    from . import cufile as cufile
    from . import fastsafetensors as fastsafetensors
    from . import gds as gds
    from . import gguf as gguf
    from . import kv as kv
    from . import kvikio as kvikio
    from . import lmcache as lmcache
    from . import lmcache_connector as lmcache_connector
    from . import pipe as pipe
    from . import safetensors as safetensors
    from . import sglang as sglang
    from . import torch as torch
    from . import vllm as vllm
    from . import vllm_weights as vllm_weights
    from . import weights as weights
    from . import weights_cache as weights_cache
    from . import zarr as zarr
    from ._core.plan import Plan, PlanPart
    from ._core.quiescing import quiesce
    from ._core.requests import Request
    from ._files.load import load, load_sharded
    from ._files.raw_arrays import fromfile, tofile
    from ._files.save import save
    from ._native import _Cache, _Mode
    from .weights import attach_weights, load_weights, serve_weights
else:
    __getattr__ = _lazily(
        __name__,
        __name__,
        {
            "._core.plan": ("Plan", "PlanPart"),
            "._core.quiescing": ("quiesce",),
            "._core.requests": ("Request",),
            "._files.load": ("load", "load_sharded"),
            "._files.raw_arrays": ("fromfile", "tofile"),
            "._files.save": ("save",),
            ".weights": ("attach_weights", "load_weights", "serve_weights"),
        },
        modules=_submodules,
    )

__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "FIRST_EXCEPTION",
    "BufferError",
    "Cancelled",
    "Closed",
    "Device",
    "DeviceBuffer",
    "DoneAndNotDone",
    "Error",
    "File",
    "FileExists",
    "Future",
    "InvalidArgument",
    "IsADirectory",
    "PinnedRange",
    "NotAFile",
    "NotFound",
    "OutOfMemory",
    "PermissionDenied",
    "Plan",
    "PlanPart",
    "Pointer",
    "Request",
    "ShortRead",
    "StreamResult",
    "TimedOut",
    "__version__",
    "advice",
    "as_completed",
    "attach_weights",
    "copy",
    "cuda_status",
    "describe",
    "device",
    "devices",
    "fromfile",
    "gpu_direct_status",
    "kv",
    "list_remote",
    "load",
    "load_sharded",
    "load_weights",
    "open",
    "pread_many",
    "pwrite_many",
    "quiesce",
    "read_tree",
    "requests",
    "save",
    "serve_weights",
    "stats",
    "summary",
    "trim",
    "tofile",
    "wait",
]

# The arguments of open() for each file that cannot be reopened from its path and mode alone.
_openings: _weakref.WeakKeyDictionary[File, tuple[_Any, dict[str, _Any]]] = _weakref.WeakKeyDictionary()


def open(
    path: str | bytes | _os.PathLike[str] | _os.PathLike[bytes] | int,
    mode: _Mode = "r",
    *,
    direct: bool = False,
    cache: _Cache | None = None,
    immutable: bool = False,
    bytes_per_second: int = 0,
    storage_options: _Mapping[str, _Any] | None = None,
) -> File:
    file = _native.open(
        path, mode, direct=direct, cache=cache, immutable=immutable, bytes_per_second=bytes_per_second, storage_options=storage_options
    )
    if direct or cache is not None or immutable or bytes_per_second or storage_options is not None or file.name is not path:
        options = {"direct": direct, "cache": cache, "immutable": immutable, "bytes_per_second": bytes_per_second}
        _openings[file] = (path, {**options, "storage_options": None if storage_options is None else dict(storage_options)})
    return file


# Drops the first line, a signature with less precise types.
open.__doc__ = (_native.open.__doc__ or "").partition("\n\n")[2] + """

A File can be pickled and copied, for example with the dataset of a DataLoader. The pickle contains its path, mode, options and position, and the
receiving process opens the file again. Pickling raises TypeError if the file is closed, was opened from a descriptor, has mode "w" or "x" (which
would truncate or create the file), or if its URL or storage_options may contain a secret. Credentials from the environment or a profile are not
pickled: each process looks up its own."""


def _reduce_file(file: File) -> tuple[_Callable[..., File], tuple[_Any, ...]]:
    from ._core.pickling import reduce_file

    return reduce_file(file)


_copyreg.pickle(File, _reduce_file)


def __dir__() -> list[str]:
    return sorted({*__all__, *_importable(_submodules)})


# Stops running requests before Python exits, because they hold references to Python objects.
_atexit.register(_native._finish)
_core.package_seconds += _time.perf_counter()
