"""KvikIO's Python interface: replace `import kvikio` with `import penstock.kvikio as kvikio`.

It supports both generations of KvikIO's settings (kvikio.defaults). Remote files require libcurl: see is_remote_file_available().
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import penstock
from penstock._core.lazy import importable, lazily
from penstock.kvikio import buffer, cufile, cufile_driver, defaults, mmap, remote_file, statistics, stream, utils
from penstock.kvikio.buffer import bounce_buffer_free, memory_deregister, memory_register
from penstock.kvikio.cufile import (
    CuFile,
    IOFuture,
    IOFutureStream,
    clear_page_cache,
    drop_file_page_cache,
    drop_system_page_cache,
    get_page_cache_info,
)
from penstock.kvikio.defaults import CompatMode
from penstock.kvikio.mmap import Mmap
from penstock.kvikio.remote_file import RemoteEndpointType, RemoteFile, infer_remote_endpoint_type, is_remote_file_available
from penstock.kvikio.statistics import Summary, SummaryMonitor
from penstock.kvikio.stream import stream_deregister, stream_register
from penstock.kvikio.utils import kvikio_deprecation_notice

__all__ = [
    "CompatMode",
    "CuFile",
    "IOFuture",
    "IOFutureStream",
    "Mmap",
    "RemoteEndpointType",
    "RemoteFile",
    "Summary",
    "SummaryMonitor",
    "__git_commit__",
    "__version__",
    "bounce_buffer_free",
    "buffer",
    "clear_page_cache",
    "cufile",
    "cufile_driver",
    "defaults",
    "drop_file_page_cache",
    "drop_system_page_cache",
    "explain",
    "get_page_cache_info",
    "infer_remote_endpoint_type",
    "install",
    "is_remote_file_available",
    "kvikio_deprecation_notice",
    "memory_deregister",
    "memory_register",
    "mmap",
    "remote_file",
    "statistics",
    "stream",
    "stream_deregister",
    "stream_register",
    "uninstall",
    "utils",
]

__version__ = "26.10.00"
"""The version of KvikIO that this interface matches, for programs that compare it. Penstock's own version is penstock.__version__."""

_submodules = {"numpy": "numpy", "zarr": "zarr"}

if TYPE_CHECKING:
    from penstock._patch.kvikio_library import explain, install, uninstall
    from penstock.kvikio import numpy as numpy
    from penstock.kvikio import zarr as zarr
else:
    __getattr__ = lazily(__name__, __name__, {"penstock._patch.kvikio_library": ("explain", "install", "uninstall")}, modules=_submodules)


def __dir__() -> list[str]:
    return sorted({*__all__, *importable(_submodules)})


def _commit_built_from() -> str:
    try:
        return (pathlib.Path(penstock.__file__).parent / "GIT_COMMIT").read_text(encoding="ascii").strip() or "unknown"
    except OSError:
        return "unknown"


__git_commit__ = _commit_built_from()
"""The Penstock commit that this package was built from, in hexadecimal; "unknown" if it was not built from a Git checkout."""
