#!/usr/bin/env python3
"""InstantTensor with its CUFILE back end: files of safetensors with many tensors, compared with the tensors that were saved.

Needs InstantTensor, PyTorch with CUDA, the safetensors library and a GPU.

Usage: penstock run -- python3 instanttensor_client.py FOLDER [LIBRARY]
FOLDER is written to. LIBRARY: the library file that must be in use.
"""

import pathlib
import sys
import time

from client import check, check_library, equal, ok, skip, why_no_gpu

FILES = 3
# The tensors of one file: one of 256 MiB, some of odd sizes, and one without dimensions.
SHAPES = ((128 << 20,), (1000, 1001), (3, 5, 7), (1,), ())


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: instanttensor_client.py FOLDER [LIBRARY]")
    missing = why_no_gpu()
    if missing:
        skip(f"InstantTensor needs a GPU: {missing}")
    try:
        import torch
        from instanttensor import Backend, safe_open
        from safetensors.torch import save_file
    except ImportError as problem:
        skip(f"instanttensor, torch or safetensors cannot be imported: {problem}")
    generator = torch.Generator().manual_seed(1)
    files, saved = [], {}
    for number in range(FILES):
        tensors = {}
        for index, shape in enumerate(SHAPES):
            values = torch.randint(-30000, 30000, shape, dtype=torch.int16, generator=generator)
            tensors[f"part{number}.tensor{index}"] = values
        files.append(str(pathlib.Path(sys.argv[1]) / f"model-{number}.safetensors"))
        save_file(tensors, files[-1])
        saved.update(tensors)

    for what, options in (("one tensor after the other", {}), ("without copies", {"copy": False})):
        found = 0
        began = time.perf_counter()
        with safe_open(files, framework="pt", device=0, backend=Backend.CUFILE, **options) as file:
            equal(sorted(file.keys()), sorted(saved), f"{what}: names")
            for name, tensor in file.tensors():
                equal(tensor.device.type, "cuda", f"{what}: {name} is on")
                check(torch.equal(tensor.cpu(), saved[name]), f"{what}: {name} differs")
                found += 1
        equal(found, len(saved), f"{what}: tensors")
        ok(f"{what}: {found} tensors of {FILES} files in {time.perf_counter() - began:.2f} s")
    check_library(sys.argv[2] if len(sys.argv) == 3 else None)
    total = sum(tensor.nbytes for tensor in saved.values())
    print(f"{2 * len(saved)} tensors, {2 * total / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
