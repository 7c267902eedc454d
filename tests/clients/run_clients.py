#!/usr/bin/env python3
"""Runs unchanged clients of NVIDIA cuFile on Penstock's libcufile, and tells of each whether it passed, failed, or was skipped and why.

  nvidia_header     a C program, built with NVIDIA's header and library; started with LD_LIBRARY_PATH and with `penstock run`
  cuda_python       cuda.bindings.cufile of the newest cuda-python 13
  cuda_python_13_2  the same of 13.2, whose header is that of the cuFile which the library stands for
  torch_gds         torch.cuda.gds; needs PyTorch in this Python, and a GPU
  kvikio            KvikIO with CuPy; needs a GPU
  nixl              NIXL's plugins GDS and GDS_MT; memory of a GPU where there is one and CuPy or PyTorch
  fastsafetensors   fastsafetensors with nogds=False, told that /dev/nvidia-fs0 is there; needs it and PyTorch in this Python, and a GPU
  cufile_python     cufile-python, by which LMCache calls cuFile; memory of a GPU where there is one and PyTorch
  lmcache           LMCache's modules of GPUDirect Storage; needs PyTorch in this Python; a slab on a stream needs a GPU
  kv_engines        the calls of the file connectors of llm-d and Mooncake; memory of a GPU where there is one and PyTorch

What a client needs is taken from this Python where it is installed, else from --wheels, else from the package index into a virtual
environment in --work-dir (PyTorch never is: it is too large, and so is what needs it). A download that fails is a reason to skip. On machines without a package
index, --unpacked names a folder with what cufile_python and lmcache need.

Usage: run_clients.py --penstock PENSTOCK --library-dir FOLDER --work-dir FOLDER [--only CLIENT ...] [--wheels FOLDER] [--no-download]
                      [--unpacked FOLDER] [--cc CC]
Exits with 1 when a client failed, with 77 when all were skipped.
"""

import argparse
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import Callable, Optional, Sequence

from client import SKIPPED, why_no_gpu

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = "libcufile.so.0"
CUFILE_WHEEL = "nvidia-cufile==1.17.1.22"
CUDA_WHEEL = "nvidia-cuda-runtime==13.2.86"
CUFILE_PYTHON = "cufile-python==0.2.0"
LMCACHE = ["lmcache==0.5.6", CUFILE_PYTHON, "sortedcontainers", "cachetools", "aiofile", "caio"]
CLIENT_SECONDS = 300
DOWNLOAD_SECONDS = 300

# What cufile.h uses of the CUDA toolkit, where that cannot be had.
CUDA_H = """#ifndef STAND_IN_CUDA_H
#define STAND_IN_CUDA_H
#define CUDA_VERSION 13020
typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_UNKNOWN = 999 } CUresult;
typedef struct CUstream_st* CUstream;
#endif
"""


class Skipped(Exception):
    """Why a client cannot run here."""


class Failed(Exception):
    """What went wrong, with the client's output."""


@dataclasses.dataclass
class Place:
    """Where the clients find Penstock, and where they work."""

    penstock: pathlib.Path
    library_dir: pathlib.Path
    work: pathlib.Path
    wheels: Optional[pathlib.Path]
    download: bool
    cc: str
    packages: Optional[pathlib.Path]

    @property
    def library(self) -> pathlib.Path:
        return self.library_dir / LIBRARY

    def pip(self, python: pathlib.Path, *words: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(python)]
        command += ["--disable-pip-version-check", "--retries", "0", "--timeout", "15", *words, "--quiet"]
        if self.wheels:
            command += ["--no-index", "--find-links", str(self.wheels)]
        elif not self.download:
            raise Skipped("not installed here, and --no-download was given")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
        except subprocess.TimeoutExpired:
            raise Skipped(f"pip {words[0]} took longer than {DOWNLOAD_SECONDS} s") from None
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines() or ["no message"]
            raise Skipped(f"pip {' '.join(words[:1])}: {errors[-1]}")


def imports(python: pathlib.Path, modules: Sequence[str]) -> bool:
    code = "; ".join(f"import {module}" for module in modules)
    return subprocess.run([str(python), "-c", code], capture_output=True).returncode == 0


def environment(place: Place, name: str, packages: Sequence[str], bare: Sequence[str] = ()) -> pathlib.Path:
    """The Python of a virtual environment with these packages, made once. bare: installed without what they depend on."""
    folder = place.work / f"venv-{name}"
    python = folder / "bin" / "python"
    finished = folder / "finished"
    wanted = " ".join([*packages, *bare])
    if finished.exists() and finished.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    # Without a pip of its own, which takes 3 s: this Python's installs into it.
    made = subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], capture_output=True, text=True)
    if made.returncode:
        raise Skipped(f"python3 -m venv: {(made.stdout + made.stderr).strip().splitlines()[-1]}")
    place.pip(python, "install", "--only-binary=:all:", *packages)
    if bare:
        place.pip(python, "install", "--only-binary=:all:", "--no-deps", *bare)
    finished.write_text(wanted)
    return python


def unpacked(place: Place, package: str) -> pathlib.Path:
    """The content of a wheel, fetched once."""
    folder = place.work / package.replace("==", "-")
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=place.work) as scratch:
        place.pip(pathlib.Path(sys.executable), "download", "--no-deps", "--only-binary=:all:", package, "--dest", scratch)
        wheel = next(pathlib.Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(pathlib.Path(scratch) / "content")
        try:
            os.rename(pathlib.Path(scratch) / "content", folder)
        except OSError:
            if not folder.is_dir():  # else another run was faster
                raise
    return folder


def installed(place: Place, name: str, packages: Sequence[str]) -> pathlib.Path:
    """A folder for PYTHONPATH with these packages and nothing of what they depend on, fetched once; or the one that the user has."""
    if place.packages:
        return place.packages
    folder = place.work / f"packages-{name}"
    finished = folder / "finished"
    wanted = " ".join(packages)
    if not finished.exists() or finished.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        place.pip(pathlib.Path(sys.executable), "install", "--no-deps", "--only-binary=:all:", "--target", str(folder), *packages)
        finished.write_text(wanted)
    return folder


def run(place: Place, command: Sequence[object], library_path: str = "", python_path: str = "") -> str:
    """The output of a client that passed. Its working directory is empty before and must be after."""
    environ = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH")}
    inherited = os.environ.get("LD_LIBRARY_PATH", "")  # may lead to libcuda.so.1
    paths = [path for path in (library_path, inherited) if path]
    if paths:
        environ["LD_LIBRARY_PATH"] = ":".join(paths)
    if python_path:
        environ["PYTHONPATH"] = ":".join(path for path in (python_path, os.environ.get("PYTHONPATH", "")) if path)
    with tempfile.TemporaryDirectory(dir=place.work) as scratch:
        try:
            words = [str(word) for word in command]
            done = subprocess.run(words, capture_output=True, text=True, timeout=CLIENT_SECONDS, env=environ, cwd=scratch)
        except subprocess.TimeoutExpired as problem:
            raise Failed(f"still running after {CLIENT_SECONDS} s\n{problem.stdout or ''}{problem.stderr or ''}") from None
        left = sorted(os.listdir(scratch))
    output = done.stdout + done.stderr
    if done.returncode == SKIPPED:
        raise Skipped(output.strip().splitlines()[-1].removeprefix("skipped: "))
    if done.returncode:
        raise Failed(f"exit code {done.returncode}\n{output}")
    if left:
        raise Failed(f"left in its working directory: {', '.join(left)}\n{output}")
    return output


def scratch_folder(place: Place, name: str) -> pathlib.Path:
    folder = place.work / f"data-{name}"
    folder.mkdir(exist_ok=True)
    return folder


# --- the clients


def cuda_header(place: Place) -> pathlib.Path:
    try:
        return next(unpacked(place, CUDA_WHEEL).rglob("cuda.h")).parent
    except Skipped:
        folder = place.work / "stand-in"
        folder.mkdir(exist_ok=True)
        (folder / "cuda.h").write_text(CUDA_H)
        return folder


def nvidia_header(place: Place) -> str:
    if not shutil.which(place.cc):
        raise Skipped(f"no C compiler {place.cc}")
    nvidia = unpacked(place, CUFILE_WHEEL)
    theirs = next(nvidia.rglob(LIBRARY))
    header = next(nvidia.rglob("cufile.h"))
    cuda_h = cuda_header(place)
    program = place.work / "nvidia_header"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-isystem", header.parent, "-isystem", cuda_h]
    # Their library may need what this machine lacks; the program itself needs its SONAME only.
    libraries = [theirs, "-Wl,--allow-shlib-undefined", "-ldl"]
    command = [str(word) for word in (place.cc, *flags, HERE / "nvidia_header.c", "-o", program, *libraries)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        raise Failed(f"does not compile with NVIDIA's header\n{built.stderr}")
    folder = scratch_folder(place, "nvidia_header")
    arguments = [program, folder, place.library]
    first = run(place, arguments, library_path=str(place.library_dir))
    second = run(place, [place.penstock, "run", "--", *arguments], library_path=str(theirs.parent))
    where = "a stand-in" if cuda_h.name == "stand-in" else CUDA_WHEEL
    by_path = f"with LD_LIBRARY_PATH:\n{first}"
    by_command = f"with penstock run, NVIDIA's library on LD_LIBRARY_PATH:\n{second}"
    return f"{CUFILE_WHEEL}, cuda.h from {where}\n{by_path}{by_command}"


def python_client(place: Place, name: str, script: str, python: pathlib.Path, *options: str) -> str:
    return run(place, [place.penstock, "run", *options, "--", python, HERE / script, scratch_folder(place, name), place.library])


def cuda_python(place: Place) -> str:
    python = pathlib.Path(sys.executable)
    if not imports(python, ["cuda.bindings.cufile", "numpy"]):
        python = environment(place, "cuda_python", ["cuda-bindings>=13.0,<14", "numpy"])
    return python_client(place, "cuda_python", "cuda_python_cufile.py", python)


def cuda_python_13_2(place: Place) -> str:
    python = environment(place, "cuda_python_13_2", ["cuda-bindings>=13.2,<13.3", "numpy"])
    return python_client(place, "cuda_python_13_2", "cuda_python_cufile.py", python)


def torch_gds(place: Place) -> str:
    return python_client(place, "torch_gds", "torch_gds.py", pathlib.Path(sys.executable))


def kvikio(place: Place) -> str:
    python = pathlib.Path(sys.executable)
    if not imports(python, ["cupy", "kvikio"]):
        missing = why_no_gpu()
        if missing:
            raise Skipped(f"KvikIO needs a GPU: {missing}")
        python = environment(place, "kvikio", ["kvikio-cu13"])  # brings CuPy and NumPy
    return python_client(place, "kvikio", "kvikio_client.py", python)


def nixl(place: Place) -> str:
    python = pathlib.Path(sys.executable)
    if not any(imports(python, [name, "numpy"]) for name in ("nixl", "nixl_cu12", "nixl_cu13")):
        # Without PyTorch, which it names and does not need.
        python = environment(place, "nixl", ["numpy", "nvidia-cuda-runtime-cu12"], ["nixl-cu12>=1.5,<1.6"])
    return python_client(place, "nixl", "nixl_client.py", python)


def fastsafetensors(place: Place) -> str:
    return python_client(place, "fastsafetensors", "fastsafetensors_client.py", pathlib.Path(sys.executable), "--nvidia-fs-node")


def cufile_python(place: Place) -> str:
    folder = installed(place, "cufile_python", [CUFILE_PYTHON])
    script = [place.penstock, "run", "--", sys.executable, HERE / "cufile_python_client.py"]
    return run(place, [*script, scratch_folder(place, "cufile_python"), place.library], python_path=str(folder))


def lmcache(place: Place) -> str:
    if not imports(pathlib.Path(sys.executable), ["torch", "yaml", "psutil"]):
        raise Skipped("torch, yaml or psutil cannot be imported")
    folder = installed(place, "lmcache", LMCACHE)
    script = [place.penstock, "run", "--", sys.executable, HERE / "lmcache_client.py", "--unpacked", folder]
    return run(place, [*script, scratch_folder(place, "lmcache"), place.library])


def kv_engines(place: Place) -> str:
    return python_client(place, "kv_engines", "kv_engines_calls.py", pathlib.Path(sys.executable))


CLIENTS: dict[str, Callable[[Place], str]] = {
    client.__name__: client
    for client in (nvidia_header, cuda_python, cuda_python_13_2, torch_gds, kvikio, nixl, fastsafetensors, cufile_python, lmcache, kv_engines)
}


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", type=pathlib.Path, required=True, help="the penstock command")
    parser.add_argument("--library-dir", type=pathlib.Path, required=True, help=f"the folder of Penstock's {LIBRARY}")
    parser.add_argument("--work-dir", type=pathlib.Path, required=True, help="kept: environments, wheels, programs")
    parser.add_argument("--only", action="append", choices=CLIENTS, help="this client; may be given several times")
    parser.add_argument("--wheels", type=pathlib.Path, help="a folder of wheels to install from, instead of the package index")
    parser.add_argument("--no-download", action="store_true")
    parser.add_argument("--unpacked", type=pathlib.Path, help="a folder with cufile, lmcache and what it needs, instead of a download")
    parser.add_argument("--cc", default="cc")
    given = parser.parse_args()
    place = Place(given.penstock.absolute(), given.library_dir.absolute(), given.work_dir.absolute(),
                  given.wheels.absolute() if given.wheels else None, not given.no_download, given.cc,
                  given.unpacked.absolute() if given.unpacked else None)
    for needed in (place.penstock, place.library):
        if not needed.exists():
            parser.error(f"{needed} does not exist")
    place.work.mkdir(parents=True, exist_ok=True)

    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name in given.only or CLIENTS:
        try:
            output = CLIENTS[name](place)
            counts["passed"] += 1
            print(f"{name}: passed\n{indented(output)}", flush=True)
        except Skipped as why:
            counts["skipped"] += 1
            print(f"{name}: skipped: {why}", flush=True)
        except Failed as what:
            counts["failed"] += 1
            print(f"{name}: failed\n{indented(str(what))}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    if counts["failed"]:
        return 1
    return 0 if counts["passed"] else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
