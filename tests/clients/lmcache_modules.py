"""LMCache's own modules of GPUDirect Storage, out of its unpacked wheel, without the rest of what LMCache needs.

Real: every module that does the work (storage_backend.gds_backend, memory_allocators, memory_management, gpu_connector.gds_context and gds_backends,
distributed.config and memory_manager.gds_l1_memory_manager, and what these import). Replaced:
  - the __init__ of the packages in PACKAGES, which import all of LMCache's connectors and back ends; the packages keep their modules
  - LMCache's compiled extensions (lmcache_native, and device_ops of the package), which none of these modules calls: a call fails
  - the LIBRARIES, of telemetry, HTTP and encryption, also where they are installed
LMCache does without nvtx and opentelemetry where they are not installed.
sortedcontainers, cachetools, aiofile, PyYAML and psutil are what they are, and must be there.
"""

import importlib
import importlib.abc
import importlib.machinery
import pathlib
import sys
import types
from typing import Any, Optional
from unittest import mock

PACKAGES = ("lmcache", "lmcache.v1", "lmcache.v1.platform", "lmcache.v1.gpu_connector", "lmcache.v1.storage_backend", "lmcache.v1.distributed",
            "lmcache.v1.distributed.memory_manager")
EXTENSION = "lmcache.lmcache_native"
LIBRARIES = ("prometheus_client", "cpuinfo", "aiohttp", "requests", "cryptography")


class StandIn(types.ModuleType):
    """A module in which every name is a mock."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        kind = mock.NonCallableMagicMock if self.__name__ == EXTENSION else mock.MagicMock
        made = kind(name=f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the extension and the libraries."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        if name != EXTENSION and name.partition(".")[0] not in LIBRARIES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        made = StandIn(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def make_package(name: str, folder: pathlib.Path) -> types.ModuleType:
    """The package without what its __init__ does."""
    made = types.ModuleType(name)
    made.__path__ = [str(folder.joinpath(*name.split(".")))]
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, made)
    return made


def use_modules_of(folder: pathlib.Path) -> None:
    """Has `import lmcache...` find the modules below the folder. Raises ImportError where LMCache is not there.

    folder: holds lmcache/, and the Python packages that it needs. LMCache is told that its device is CUDA's.
    """
    if not (folder / "lmcache" / "v1").is_dir():
        raise ImportError(f"no lmcache/v1 in {folder}")
    import torch

    sys.path.insert(0, str(folder))
    sys.meta_path.insert(0, StandIns())
    made = {name: make_package(name, folder) for name in PACKAGES}
    made["lmcache"].__dict__.update(torch_dev=torch.cuda, torch_device_type="cuda", device_ops=StandIn(EXTENSION))
    cuda = importlib.import_module("lmcache.v1.platform.devices.cuda").CudaDeviceSpec()
    notifier = importlib.import_module("lmcache.v1.platform.event_notifier").create_event_notifier
    made["lmcache.v1.platform"].__dict__.update(get_device_spec=lambda kind: cuda if kind == "cuda" else None, current_device_spec=cuda,
                                                torch_dev=torch.cuda, torch_device_type="cuda", create_event_notifier=notifier)
