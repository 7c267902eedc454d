"""Penstock: bytes between files, GPU memory and host memory at the speed of the hardware.

    import numpy as np
    import penstock

    array = np.empty(1 << 20, dtype=np.uint8)
    with penstock.open("data.bin") as file:
        count = file.read_into(array)              # blocks
        future = file.pread(array, offset=4096)    # does not: future.result(), or await future

A buffer is anything that is memory: NumPy and CuPy arrays, PyTorch tensors, bytearray, memoryview, what has __cuda_array_interface__ or
__dlpack__, memory of penstock.device("cuda:0").empty(nbytes), and penstock.Pointer(address, nbytes).
"""

from __future__ import annotations

import atexit as _atexit
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _interpreter as _interpreter  # first: it may refuse
from . import _native
from ._errors import (
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
from ._futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, DoneAndNotDone, as_completed, wait
from ._lazy import importable as _importable
from ._lazy import lazily as _lazily
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
    open,
    pread_many,
    pwrite_many,
    requests,
    stats,
    summary,
    trim,
)

# The public submodules, which are imported on first use, and the library that each needs.
_submodules = {
    "cuda_bindings": "",
    "cufile": "",
    "gds": "",
    "gguf": "",
    "kv": "",
    "kvikio": "",
    "lmcache": "lmcache",
    "pipe": "",
    "safetensors": "",
    "sglang": "sglang",
    "torch": "torch",
    "vllm": "",
    "vllm_weights": "vllm",
    "weights": "",
    "zarr": "zarr",
}

if _TYPE_CHECKING:
    from . import cuda_bindings as cuda_bindings
    from . import cufile as cufile
    from . import gds as gds
    from . import gguf as gguf
    from . import kv as kv
    from . import kvikio as kvikio
    from . import lmcache as lmcache
    from . import pipe as pipe
    from . import safetensors as safetensors
    from . import sglang as sglang
    from . import torch as torch
    from . import vllm as vllm
    from . import vllm_weights as vllm_weights
    from . import weights as weights
    from . import zarr as zarr
    from ._arrays import fromfile, tofile
    from ._load import load, load_sharded
    from ._plan import Plan, PlanPart
    from ._requests import Request
    from .weights import load_weights, serve_weights
else:
    __getattr__ = _lazily(
        __name__,
        __name__,
        {
            "_arrays": ("fromfile", "tofile"),
            "_load": ("load", "load_sharded"),
            "_plan": ("Plan", "PlanPart"),
            "_requests": ("Request",),
            "weights": ("load_weights", "serve_weights"),
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
    "requests",
    "serve_weights",
    "stats",
    "summary",
    "trim",
    "tofile",
    "wait",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *_importable(_submodules)})


# Before Python ends, what is under way ends: requests hold on to objects of Python.
_atexit.register(_native._finish)
