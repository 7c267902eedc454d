"""Builds nvidia_header.c with NVIDIA's header and library, and runs it on Penstock's library: by LD_LIBRARY_PATH and by `penstock run`."""

import pathlib
import shutil

from harness import CUFILE_WHEEL, HERE, LIBRARY, Client, Failed, Place, Skipped, finish

CUDA_WHEEL = "nvidia-cuda-runtime==13.2.86"

# The CUDA declarations that cufile.h uses, for machines without the toolkit.
CUDA_H = """#ifndef STAND_IN_CUDA_H
#define STAND_IN_CUDA_H
#define CUDA_VERSION 13020
typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_UNKNOWN = 999 } CUresult;
typedef struct CUstream_st* CUstream;
#endif
"""


def cuda_header(place: Place, client: Client) -> pathlib.Path:
    try:
        return next(place.unpacked(client, CUDA_WHEEL).rglob("cuda.h")).parent
    except Skipped:
        folder = place.folder(client) / "stand-in"
        folder.mkdir(exist_ok=True)
        (folder / "cuda.h").write_text(CUDA_H)
        return folder


def run(place: Place, client: Client) -> str:
    if not shutil.which(place.cc):
        raise Skipped(f"no C compiler {place.cc}")
    nvidia = place.unpacked(client, CUFILE_WHEEL)
    theirs = next(nvidia.rglob(LIBRARY))
    header = next(nvidia.rglob("cufile.h"))
    cuda_h = cuda_header(place, client)
    program = place.folder(client) / "nvidia_header"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-isystem", header.parent, "-isystem", cuda_h]
    # NVIDIA's library may have dependencies that this machine lacks; the program itself needs only its SONAME.
    built = finish([place.cc, *flags, HERE / "nvidia_header.c", "-o", program, theirs, "-Wl,--allow-shlib-undefined", "-ldl"], client.seconds)
    if built.code:
        raise Failed(f"does not compile with NVIDIA's header\n{built.output}")
    arguments = [program, place.data(client), place.library]
    first = place.run(client, arguments, library_path=str(place.library_dir))
    second = place.run(client, [place.penstock, "run", "--", *arguments], library_path=str(theirs.parent))
    where = "a stand-in" if cuda_h.name == "stand-in" else CUDA_WHEEL
    return f"cuda.h from {where}\nwith LD_LIBRARY_PATH:\n{first}with penstock run, NVIDIA's library on LD_LIBRARY_PATH:\n{second}"
