#!/usr/bin/env python3
"""torch.cuda.gds over libcufile: the examples of its documentation, unaligned offsets and a large storage, compared byte for byte.

Needs PyTorch with CUDA, and a GPU.

Usage: penstock run -- python3 torch_gds.py FOLDER [LIBRARY]
FOLDER is written to. LIBRARY: the library file that must be in use.
"""

import os
import pathlib
import sys
import tempfile

from client import check, check_library, ok, skip, why_no_gpu

GPU_MISSING = why_no_gpu()
if GPU_MISSING is not None:
    skip(f"torch.cuda.gds needs a GPU: {GPU_MISSING}")
try:
    import torch
except ImportError as problem:
    skip(f"torch cannot be imported: {problem}")
if not torch.cuda.is_available():
    skip(f"this torch ({torch.__version__}) does not use CUDA here")
if not hasattr(torch.cuda, "gds") or not hasattr(torch.cuda.gds, "GdsFile"):
    skip(f"this torch ({torch.__version__}) has no torch.cuda.gds.GdsFile")

from torch.cuda.gds import GdsFile, gds_deregister_buffer, gds_register_buffer  # noqa: E402


def check_documented_example(folder: pathlib.Path) -> None:
    """As the docstring of GdsFile has it."""
    name = str(folder / "example")
    src1 = torch.randn(1024, device="cuda")
    src2 = torch.randn(2, 1024, device="cuda")
    file = GdsFile(name, os.O_CREAT | os.O_RDWR)
    file.save_storage(src1.untyped_storage(), offset=0)
    file.save_storage(src2.untyped_storage(), offset=src1.nbytes)
    dest1 = torch.empty(1024, device="cuda")
    dest2 = torch.empty(2, 1024, device="cuda")
    file.load_storage(dest1.untyped_storage(), offset=0)
    file.load_storage(dest2.untyped_storage(), offset=src1.nbytes)
    check(torch.equal(src1, dest1) and torch.equal(src2, dest2), "the documented example: storages differ")
    wanted = src1.cpu().numpy().tobytes() + src2.cpu().numpy().tobytes()
    check(pathlib.Path(name).read_bytes() == wanted, "the documented example: the file differs")
    file.deregister_handle()
    file.register_handle()
    dest1.zero_()
    torch.cuda.synchronize()  # loads follow no stream
    file.load_storage(dest1.untyped_storage(), offset=0)
    check(torch.equal(src1, dest1), "after registering the file anew: storages differ")


def check_registered_buffers(folder: pathlib.Path) -> None:
    """As the docstrings of gds_register_buffer and gds_deregister_buffer have it, and with bytes moved in between."""
    src = torch.randn(1024, device="cuda")
    dest = torch.empty(1024, device="cuda")
    gds_register_buffer(src.untyped_storage())
    gds_register_buffer(dest.untyped_storage())
    file = GdsFile(str(folder / "registered"), os.O_CREAT | os.O_RDWR)
    file.save_storage(src.untyped_storage(), offset=4096)
    file.load_storage(dest.untyped_storage(), offset=4096)
    check(torch.equal(src, dest), "registered buffers: storages differ")
    gds_deregister_buffer(src.untyped_storage())
    gds_deregister_buffer(dest.untyped_storage())


def check_large(folder: pathlib.Path) -> None:
    """256 MiB and some bytes, at an offset that is aligned to nothing."""
    size, offset = (256 << 20) + 4321, 777
    src = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
    dest = torch.zeros_like(src)
    torch.cuda.synchronize()
    file = GdsFile(str(folder / "large"), os.O_CREAT | os.O_RDWR)
    file.save_storage(src.untyped_storage(), offset=offset)
    file.load_storage(dest.untyped_storage(), offset=offset)
    check(torch.equal(src, dest), "a large storage differs")
    check((folder / "large").stat().st_size == offset + size, "the size of the file")


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: torch_gds.py FOLDER [LIBRARY]")
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as scratch:
        folder = pathlib.Path(scratch)
        check_documented_example(folder)
        ok(f"torch {torch.__version__} on {torch.cuda.get_device_name(0)}: the documented example")
        check_library(sys.argv[2] if len(sys.argv) == 3 else None)
        check_registered_buffers(folder)
        ok("registered buffers")
        check_large(folder)
        ok("256 MiB at offset 777")


if __name__ == "__main__":
    main()
