"""Tests that every function with a device argument accepts every spelling of a device: of the host, and of a GPU. Without a GPU, all must report it missing.

Usage: device_names.py

Works in the current folder, with the Penstock of this Python. Uses PyTorch, CuPy, NumPy and zarr if they are installed. Prints a line for each
function and name, and exits with 1 if a name was rejected.
"""

from __future__ import annotations

import importlib
import json
import struct
import sys
from pathlib import Path
from typing import Any, Callable

import penstock
import penstock.safetensors

NBYTES = 4096
FILE = "names.bin"
TENSORS = "names.safetensors"

failures: list[str] = []


def has(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def make_files() -> None:
    Path(FILE).write_bytes(bytes(range(256)) * (NBYTES // 256))
    header = json.dumps({"weight": {"dtype": "U8", "shape": [NBYTES], "data_offsets": [0, NBYTES]}}).encode()
    Path(TENSORS).write_bytes(struct.pack("<Q", len(header)) + header + Path(FILE).read_bytes())


def zarr_array() -> Any:
    import numpy
    import zarr

    array = zarr.create_array("names.zarr", shape=NBYTES, chunks=NBYTES // 4, dtype="u1", compressors=None, overwrite=True)
    array[:] = numpy.fromfile(FILE, "u1")
    return array


def read_into(device: Any) -> None:
    with penstock.open(FILE) as file:
        assert file.read_into(penstock.device(device).empty(NBYTES)) == NBYTES


def explain(device: Any) -> None:
    with penstock.open(FILE) as file:
        file.explain(device=device)


def functions() -> dict[str, Callable[[Any], Any]]:
    found: dict[str, Callable[[Any], Any]] = {"penstock.device": read_into, "File.explain": explain}
    if has("numpy"):
        found["penstock.load"] = lambda device: penstock.load(FILE, device=device)
        found["penstock.fromfile"] = lambda device: penstock.fromfile(FILE, device=device)
        found["penstock.safetensors.load_file"] = lambda device: penstock.safetensors.load_file(TENSORS, device=device)
        found["penstock.safetensors.stream"] = lambda device: dict(penstock.safetensors.stream(TENSORS, framework=None, device=device))
    if has("numpy") and has("zarr"):
        from penstock.zarr import load

        array = zarr_array()
        found["penstock.zarr.load"] = lambda device: load(array, device=device)
    if has("torch"):
        from penstock.safetensors.torch import load_file

        found["penstock.safetensors.torch.load_file"] = lambda device: load_file(TENSORS, device=device)
    return found


def names_of_the_host() -> dict[str, Any]:
    names: dict[str, Any] = {'"cpu"': "cpu", '"host"': "host", '"host:0"': "host:0"}
    if has("torch"):
        import torch

        names['torch.device("cpu")'] = torch.device("cpu")
    return names


def names_of_the_gpu() -> dict[str, Any]:
    names: dict[str, Any] = {'"cuda"': "cuda", '"cuda:0"': "cuda:0", "0": 0}
    if has("torch"):
        import torch

        names['torch.device("cuda", 0)'] = torch.device("cuda", 0)
    if has("cupy") and penstock.cuda_status() is None:
        import cupy

        names["cupy.cuda.Device(0)"] = cupy.cuda.Device(0)
    return names


# Of an error where there is no GPU: no driver, no CuPy to make an array with, or a PyTorch without CUDA.
REASONS = ("driver", "cupy", "torch not compiled with cuda")
EXCEPT = {("penstock.safetensors.torch.load_file", '"host:0"'): "PyTorch has no tensors on the host device"}


def note(function: str, name: str, wrong: str) -> None:
    if wrong:
        failures.append(f"{function}({name}): {wrong}")
    print(f"{'FAILED' if wrong else 'ok':8}{function}({name}){': ' + wrong if wrong else ''}")


def is_taken(function: str, call: Callable[[Any], Any], name: str, device: Any) -> None:
    if (function, name) in EXCEPT:
        return
    try:
        call(device)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is noted
        note(function, name, f"{type(error).__name__}: {error}")
    else:
        note(function, name, "")


def is_missed(function: str, call: Callable[[Any], Any], name: str, device: Any) -> None:
    """An error that says what is missing, and not that a type or a name is unknown."""
    try:
        call(device)
    except (penstock.Error, ImportError, RuntimeError, AssertionError) as error:
        said = str(error).lower()
        note(function, name, "" if any(each in said for each in REASONS) else f"does not say why: {error}")
    except Exception as error:  # noqa: BLE001
        note(function, name, f"{type(error).__name__}: {error}")
    else:
        note(function, name, "was taken on a machine without a GPU")


def main() -> int:
    make_files()
    has_gpu = penstock.cuda_status() is None
    for function, call in functions().items():
        for name, device in names_of_the_host().items():
            is_taken(function, call, name, device)
        for name, device in names_of_the_gpu().items():
            (is_taken if has_gpu else is_missed)(function, call, name, device)
    print(f"{len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
