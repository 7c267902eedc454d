#!/usr/bin/env python3
"""Runs programs that others wrote for NVIDIA cuFile, unchanged, on Penstock's libcufile. Each passes, fails, or is skipped with the reason.

  run_clients.py list                                            what each client needs
  run_clients.py fetch --into FOLDER                             downloads that, and prints the sizes
  run_clients.py run --from FOLDER --work-dir WORK --json FILE   builds and runs the clients without a network; FILE keeps a row for each
  run_clients.py table FILE                                      prints these rows as a table

For another machine, `fetch --python-version 3.12` chooses the wheels for the Python there, and `tar -c FOLDER | split -b 60M - piece.` makes pieces
that `cat piece.* | tar -x` joins. Without --from, `run` downloads what is small, and everything with --fetch all. `run` exits with 1 if a client
failed, and with 77 if all were skipped. Some clients are slow to build; WORK keeps what was built, and must not be below /dev for elbencho.

A client is one file with its run, and one entry of CLIENTS with its needs.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Iterable, Sequence

import cufile_samples
import deepspeed_gds
import elbencho_client
import fio_client
import hdf5_vfd_gds
import kvikio_cpp
import nvidia_header
from client import SKIPPED, why_no_gpu
from harness import CUFILE_WHEEL, LIBRARY, Client, Download, Failed, Needs, Place, Skipped, Source, fetch_client, finish, script, why_not

CUFILE_PYTHON = "cufile-python==0.2.0"
CUDA_PYTHON = ("cuda.bindings.cufile", "numpy")
FASTSAFETENSORS = Needs(modules=("torch", "fastsafetensors"), gpu=True)
NIXL = ("numpy", "nvidia-cuda-runtime-cu12")  # without PyTorch, which NIXL lists as a dependency but does not need
KVIKIO = ("kvikio-cu13==26.10.0", "libkvikio-cu13==26.10.0", "rapids-logger==0.3.0", "cuda-pathfinder", "packaging")
CUCIM = ("cucim-cu13==26.10.0", "lazy-loader")
CUDF_PARTS = ("rmm-cu13==26.10.0", "librmm-cu13==26.10.0", "nvidia-libnvcomp-cu13==5.3.0.16", "nvidia-nvjitlink>=13.3,<14", "nvtx")
CUDF = ("cuda-bindings>=13.0.1,<14", "pylibcudf-cu13==26.10.0", "libcudf-cu13==26.10.0", *CUDF_PARTS, *KVIKIO)
INSTANTTENSOR = Needs(bare=("instanttensor==0.2.2", "safetensors"), modules=("torch",), gpu=True, large=True)
DALI = ("nvidia-dali-cuda130==2.4.0", "astunparse", "gast", "six", "optree", "nvtx", "makefun", "libcst", "pyyaml")
PYTORCH = Source("pytorch/pytorch", "v2.11.0", ("test/test_cuda.py",))
TORCH_TESTS = Needs(bare=("expecttest",), archives=(PYTORCH,), modules=("torch", "psutil"), gpu=True, large=True)
LMCACHE = ("lmcache==0.5.6", CUFILE_PYTHON, "sortedcontainers", "cachetools", "aiofile", "caio")


def lmcache(place: Place, client: Client) -> str:
    _, folder = place.python(client)
    command = [place.penstock, "run", "--", sys.executable, pathlib.Path(__file__).with_name("lmcache_client.py"), "--unpacked", folder]
    return place.run(client, [*command, place.data(client), place.library])


def compiled(*archives: Source | Download, bare: tuple[str, ...] = (), programs: tuple[str, ...] = ()) -> Needs:
    """Returns the needs of a client that is built from these archives. Only `fetch` downloads them, because building takes minutes."""
    return Needs(bare=bare, archives=archives, programs=("make", "g++", *programs), toolkit=True, large=True)


HDF5 = compiled(hdf5_vfd_gds.HDF5, hdf5_vfd_gds.SOURCE, bare=(hdf5_vfd_gds.MPICH,), programs=("cmake",))
ELBENCHO = dataclasses.replace(compiled(*elbencho_client.ARCHIVES, programs=("cmake", "dpkg-deb")), machine="x86_64")  # its Boost is for x86_64
CLIENTS = (
    Client("nvidia_header", nvidia_header.run, Needs(bare=(CUFILE_WHEEL, nvidia_header.CUDA_WHEEL)), "nvidia-cufile"),
    Client("cuda_python", script("cuda_python_cufile.py"), Needs(packages=("cuda-bindings>=13.0,<14", "numpy"), unless=CUDA_PYTHON), "cuda-bindings"),
    Client("cuda_python_13_2", script("cuda_python_cufile.py"), Needs(packages=("cuda-bindings>=13.2,<13.3", "numpy")), "cuda-bindings"),
    Client("torch_gds", script("torch_gds.py"), Needs(modules=("torch",), gpu=True), "torch"),
    Client("kvikio", script("kvikio_client.py"), Needs(bare=KVIKIO, unless=("kvikio",), modules=("cupy",), gpu=True), "kvikio-cu13"),
    Client("nixl", script("nixl_client.py"), Needs(NIXL, bare=("nixl-cu12>=1.5,<1.6",), unless=("nixl", "numpy")), "nixl-cu12"),
    Client("fastsafetensors", script("fastsafetensors_client.py", "--nvidia-fs-node"), FASTSAFETENSORS, "fastsafetensors"),
    Client("cufile_python", script("cufile_python_client.py"), Needs(bare=(CUFILE_PYTHON,)), "cufile-python"),
    Client("lmcache", lmcache, Needs(bare=LMCACHE, modules=("torch", "yaml", "psutil")), "lmcache"),
    Client("fio", fio_client.run, compiled(fio_client.SOURCE), "fio 3.33", 120),
    Client("cufile_samples", cufile_samples.run, compiled(cufile_samples.SOURCE), "MagnumIO 48103b8"),
    Client("kvikio_cpp", kvikio_cpp.run, compiled(kvikio_cpp.SOURCE, bare=KVIKIO), "libkvikio-cu13"),
    Client("torch_gds_tests", script("torch_gds_tests.py", file_of=PYTORCH), TORCH_TESTS, "test_cuda.py of PyTorch 2.11.0"),
    Client("cucim", script("cucim_client.py"), Needs(bare=CUCIM, modules=("cupy",), gpu=True, large=True), "cucim-cu13"),
    Client("cudf", script("cudf_client.py"), Needs(bare=CUDF, modules=("cupy",), gpu=True, large=True), "pylibcudf-cu13"),
    Client("instanttensor", script("instanttensor_client.py"), INSTANTTENSOR, "instanttensor"),
    Client("dali", script("dali_client.py"), Needs(bare=DALI, modules=("cupy",), gpu=True, large=True), "nvidia-dali-cuda130"),
    Client("deepspeed_gds", deepspeed_gds.run, deepspeed_gds.NEEDS, "DeepSpeed 0.19.6", 900),
    Client("hdf5_vfd_gds", hdf5_vfd_gds.run, HDF5, "HDF5 1.14.5, vfd-gds 56df26e"),
    Client("elbencho", elbencho_client.run, ELBENCHO, "elbencho 3.1.10"),
    Client("kv_engines", script("kv_engines_calls.py"), Needs(), "the calls of llm-d and Mooncake"),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """The outcome of one client: result is passed, failed or skipped, and detail the reason or the last line of the output."""

    client: str
    result: str
    version: str
    date: str
    seconds: float
    penstock: str
    gpu: str
    detail: str


def version_of(place: Place, client: Client) -> str:
    """The version of the client's distribution, in its own folder or beside this Python."""
    if not client.version or " " in client.version:
        return client.version
    folder = place.folder(client)
    where = [str(folder / "packages"), *map(str, folder.glob("environment/lib/python*/site-packages")), *sys.path]
    found = next(iter(importlib.metadata.distributions(name=client.version, path=where)), None)
    if found:
        return f"{client.version} {found.version}"
    unpacked = next(place.work.glob(f"{client.version}-[0-9]*"), None)
    return f"{client.version} {unpacked.name.removeprefix(client.version + '-')}" if unpacked else client.version


def gpu_name() -> str:
    """Asks the CUDA driver, because not every machine has nvidia-smi."""
    if why_no_gpu():
        return "none"
    name = ctypes.create_string_buffer(128)
    error = ctypes.CDLL("libcuda.so.1").cuDeviceGetName(name, len(name), 0)
    return name.value.decode() if not error else f"CUDA error {error}"


def run_client(place: Place, client: Client) -> tuple[str, str]:
    """The result, and the output or the reason."""
    try:
        missing = why_not(client.needs)
        if missing:
            return "skipped", missing
        return "passed", client.run(place, client)
    except Skipped as why:
        return "skipped", str(why)
    except Failed as what:
        return "failed", str(what)
    except (OSError, subprocess.SubprocessError, StopIteration) as problem:  # one client never stops the others
        return "failed", f"the runner: {problem!r}"


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines())


def table(rows: Iterable[Row]) -> str:
    lines = ["| client | result | version | date | seconds | GPU | Penstock | detail |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = (row.client, row.result, row.version, row.date, f"{row.seconds:.1f}", row.gpu, row.penstock, row.detail)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def read_rows(file: pathlib.Path) -> dict[str, Row]:
    return {row["client"]: Row(**row) for row in json.loads(file.read_text())} if file.exists() else {}


def run(place: Place, clients: Sequence[Client], file: pathlib.Path | None) -> int:
    place.work.mkdir(parents=True, exist_ok=True)
    penstock = finish([place.penstock, "--version"], 60).output.strip().removeprefix("penstock ")
    gpu = gpu_name()
    rows = []
    for client in clients:
        began = time.monotonic()
        result, text = run_client(place, client)
        lines = text.strip().splitlines() or [""]
        detail = lines[0] if result == "failed" else lines[-1]
        date = datetime.date.today().isoformat()
        seconds = round(time.monotonic() - began, 1)
        rows.append(Row(client.name, result, version_of(place, client), date, seconds, penstock, gpu, detail.strip()[:200]))
        print(f"{client.name}: skipped: {text}" if result == "skipped" else f"{client.name}: {result}\n{indented(text)}", flush=True)
        if file:  # after each client, so that a run that is cut off leaves what it found
            kept = {**read_rows(file), **{row.client: row for row in rows}}
            file.write_text(json.dumps([dataclasses.asdict(row) for row in kept.values()], indent=1) + "\n")
    print(table(rows))
    results = [row.result for row in rows]
    print(", ".join(f"{results.count(result)} {result}" for result in ("passed", "failed", "skipped")))
    if "failed" in results:
        return 1
    return 0 if "passed" in results else SKIPPED


def fetch(clients: Sequence[Client], into: pathlib.Path, python_version: str) -> int:
    place, total, failed = Place(pathlib.Path(), pathlib.Path(), into), 0, False
    for client in clients:
        try:
            files = fetch_client(place, client, into, python_version)
        except (Skipped, Failed) as problem:
            failed = True
            print(f"{client.name}: not fetched: {problem}", flush=True)
            continue
        sizes = {file.relative_to(into): file.stat().st_size for file in files}
        total += sum(sizes.values())
        print(f"{client.name}: {sum(sizes.values()) / 1e6:.1f} MB{'' if files else ' more'}", flush=True)
        for name, size in sizes.items():
            print(f"    {size / 1e6:8.1f} MB  {name}")
    print(f"{total / 1e6:.1f} MB in {into}")
    return 1 if failed else 0


def main() -> int:
    by_name = {client.name: client for client in CLIENTS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list").add_argument("--names", action="store_true", help="only their names")
    fetching = commands.add_parser("fetch")
    fetching.add_argument("--into", type=pathlib.Path, required=True, help="the folder for `run --from`")
    fetching.add_argument("--python-version", default="", help="of the Python that will run the clients, if it is not this one's: 3.12")
    running = commands.add_parser("run")
    running.add_argument("--penstock", type=pathlib.Path, help="the penstock command; by default, the one on PATH")
    running.add_argument("--library-dir", type=pathlib.Path, help=f"the folder of Penstock's {LIBRARY}; by default, that of the command")
    running.add_argument("--work-dir", type=pathlib.Path, required=True, help="kept: environments, builds, data")
    running.add_argument("--from", dest="fetched", type=pathlib.Path, help="the folder that `fetch` filled; nothing is downloaded then")
    running.add_argument("--fetch", choices=("none", "small", "all"), default="small", help="without --from: what may be downloaded")
    running.add_argument("--json", type=pathlib.Path, help="adds the rows to this file; a client's old row is replaced")
    running.add_argument("--cc", default="cc")
    running.add_argument("--python", type=pathlib.Path, help="runs this program instead of the current Python, if the file exists")
    for each in (fetching, running):
        each.add_argument("--only", action="append", choices=by_name, metavar="CLIENT", help="this client; may be given several times")
    commands.add_parser("table").add_argument("file", type=pathlib.Path, help="of `run --json`")
    given = parser.parse_args()

    if given.command == "list":
        print("\n".join(client.name if given.names else f"{client.name:18}{client.needs.words() or 'nothing'}" for client in CLIENTS))
        return 0
    if given.command == "table":
        print(table(read_rows(given.file).values()))
        return 0
    if given.command == "run" and given.python and given.python.exists() and given.python != pathlib.Path(sys.executable):
        os.execv(given.python, [given.python, *sys.argv])
    clients = [by_name[name] for name in given.only] if given.only else CLIENTS
    if given.command == "fetch":
        return fetch(clients, given.into.absolute(), given.python_version)
    penstock = given.penstock or shutil.which("penstock")
    if not penstock:
        parser.error("penstock is not on PATH; give --penstock")
    penstock = pathlib.Path(penstock).absolute()
    library_dir = given.library_dir or library_folder(penstock)
    for needed in (penstock, library_dir / LIBRARY):
        if not needed.exists():
            parser.error(f"{needed} does not exist")
    fetched = given.fetched.absolute() if given.fetched else None
    return run(Place(penstock, library_dir.absolute(), given.work_dir.absolute(), fetched, given.fetch, given.cc), clients, given.json)


def library_folder(penstock: pathlib.Path) -> pathlib.Path:
    """Where `penstock run` finds the library."""
    preload = finish([penstock, "run", "--", "/usr/bin/printenv", "LD_PRELOAD"], 60).output
    return pathlib.Path(preload.split(":")[0].strip()).parent


if __name__ == "__main__":
    sys.exit(main())
