#!/usr/bin/env python3
"""fastsafetensors with nogds=False: a file of tensors to a GPU through Penstock's copier, and through cuFile, compared byte for byte.

fastsafetensors asks for the device node of nvidia-fs, /dev/nvidia-fs0, before it asks for cuFile, and does without cuFile where the node is missing: start
this with `penstock run --nvidia-fs-node`. Needs fastsafetensors, PyTorch with CUDA, and a GPU.

Usage: penstock run --nvidia-fs-node -- python3 fastsafetensors_client.py FOLDER [LIBRARY]
FOLDER is written to. LIBRARY: the library file that must be in use.
"""

import ctypes
import json
import os
import pathlib
import sys
import tempfile
import warnings

from client import check, check_library, equal, ok, skip, why_no_gpu

if not os.path.exists("/dev/nvidia-fs0"):
    skip("/dev/nvidia-fs0 is missing, and fastsafetensors asks for it: `penstock run --nvidia-fs-node` says that it is there")
GPU_MISSING = why_no_gpu()
if GPU_MISSING is not None:
    skip(f"fastsafetensors uses cuFile for a GPU only: {GPU_MISSING}")
try:
    import torch
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup
except ImportError as problem:
    skip(f"fastsafetensors or torch cannot be imported: {problem}")
if not torch.cuda.is_available():
    skip(f"this torch ({torch.__version__}) does not use CUDA here")

MIB = 1 << 20


def write_tensors(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    """A safetensors file: the length of the header, the header, the bytes."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.numpy().tobytes())


class Counters:
    """What the library has read, by cuFile's own statistics of level 1, whose first words are the reads that went well and those that did not."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        for name, *arguments in (("cuFileSetStatsLevel", 1), ("cuFileDriverOpen",), ("cuFileStatsStart",), ("cuFileStatsReset",)):
            call = getattr(self._library, name)
            call.restype = ctypes.c_uint64  # two ints in a register
            equal(call(*arguments) & 0xFFFFFFFF, 0, name)

    def reads(self) -> tuple[int, int]:
        room = (ctypes.c_uint64 * 1024)()
        call = self._library.cuFileGetStatsL1
        call.restype = ctypes.c_uint64
        equal(call(room) & 0xFFFFFFFF, 0, "cuFileGetStatsL1")
        return room[0], room[1]


def load(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    loader = SafeTensorsFileLoader(SingleGroup(), "cuda:0", nogds=False)
    loader.add_filenames({0: [str(path)]})
    buffers = loader.copy_files_to_device()
    for name, wanted in tensors.items():
        found = buffers.get_tensor(name)
        check(found.device.type == "cuda", f"{name} lies on {found.device}")
        check(torch.equal(found.cpu(), wanted), f"{name} differs")
    buffers.close()
    loader.close()


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: fastsafetensors_client.py FOLDER [LIBRARY]")
    counters = Counters(sys.argv[2] if len(sys.argv) == 3 else "libcufile.so.0")
    torch.manual_seed(1)
    tensors = {"large": torch.randn(16, MIB), "odd": torch.randn(333, 7), "one": torch.randn(1), "square": torch.randn(1024, 1024)}
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as scratch, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # by which it says that it goes without cuFile
        path = pathlib.Path(scratch) / "model.safetensors"
        write_tensors(path, tensors)
        copier = sys.modules.get("penstock.fastsafetensors")  # which `penstock run` installs
        if copier is not None:
            load(path, tensors)
            equal(copier.explain().counts.get("files"), 1, "files that Penstock's copier read")
            copier.uninstall()
        load(path, tensors)
    done, failed = counters.reads()
    check(done > 0, "nothing was read through cuFile")
    equal(failed, 0, "reads that failed")
    ok(f"{len(tensors)} tensors in {done} reads")
    check_library(sys.argv[2] if len(sys.argv) == 3 else None)


if __name__ == "__main__":
    main()
