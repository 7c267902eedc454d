"""Chooses the library and device of a call's result, by the same rules for every function that takes a device and a framework."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .devices import Place, device_name, is_cupy_device, is_gpu, is_torch_device, known_device
from .errors import Error, InvalidArgument

__all__ = ["LIBRARIES", "Known", "choose_library"]


class Known:
    """What is known about a library that may not be installed. `words`: values of framework=."""

    __slots__ = ("on_gpus", "on_host", "words")

    def __init__(self, words: tuple[str, ...], *, on_host: bool, on_gpus: bool) -> None:
        self.words, self.on_host, self.on_gpus = words, on_host, on_gpus


# By the name for `import`. The adapter of a library is in _core/arrays/of_NAME.py; a new library is such a module, and a line here.
LIBRARIES = {
    "torch": Known(("pt", "torch", "pytorch"), on_host=True, on_gpus=True),
    "numpy": Known(("np", "numpy"), on_host=True, on_gpus=False),
    "cupy": Known(("cupy",), on_host=False, on_gpus=True),
    "penstock": Known(("bytes",), on_host=True, on_gpus=True),
}


def choose_library(device: Place = None, framework: str | None = None, error: type[Error] = InvalidArgument) -> tuple[str, str]:
    """Returns the library of a result ("torch", "numpy", "cupy", or "penstock" for DeviceBuffers, which are plain bytes) and its device ("host",
    "host:0" or "cuda:N"). Does not import PyTorch or NumPy.

    The first rule that applies decides:

    1. framework= selects the library: "pt" (PyTorch), "np" (NumPy), "cupy" (CuPy), "bytes" (DeviceBuffer).
    2. The device belongs to a library: a torch.device gives PyTorch, a CuPy device gives CuPy, "host:0" gives DeviceBuffers.
    3. The program has imported torch: PyTorch. On a GPU this needs a PyTorch that can use one.
    4. On the host: NumPy.
    5. On a GPU: CuPy if it is installed, else DeviceBuffers.

    If `device` is None, it is the host, or the current GPU for CuPy. Raises `error` for an unknown framework or one that cannot use the device, and
    NotFound for a device that does not exist.
    """
    library = _named(device, framework, error)
    if device is None:
        device = "host" if library is None or LIBRARIES[library].on_host else "cuda"
    name = device_name(device)
    on_gpu = is_gpu(name)
    if library is None:
        library = _default(name)
    if library == "penstock" and name == "host":
        name = "host:0"
    known = LIBRARIES[library]
    if not (known.on_gpus if on_gpu else known.on_host):
        raise error(f"Device {device} is not supported for framework {library}", code="invalid_argument")
    return library, known_device(name)


def _named(device: Place, framework: Any, error: type[Error]) -> str | None:
    if framework is not None:
        for name, known in LIBRARIES.items():
            if isinstance(framework, str) and framework in known.words:
                return name
        words = ", ".join(known.words[0] for known in LIBRARIES.values())
        raise error(f"framework {framework} is invalid: it must be {words} or None", code="invalid_argument")
    if is_torch_device(device):
        return "torch"
    return "cupy" if is_cupy_device(device) else None


def _default(name: str) -> str:
    on_gpu = is_gpu(name)
    if not on_gpu and name != "host":
        return "penstock"
    torch = _imported_torch()
    if torch is not None and (not on_gpu or torch.cuda.is_available()):
        return "torch"
    if not on_gpu:
        return "numpy"
    try:
        importlib.import_module("cupy")
    except ImportError:
        return "penstock"
    return "cupy"


def _imported_torch() -> Any:
    """Returns PyTorch if the program has imported it, else None."""
    return sys.modules.get("torch")
