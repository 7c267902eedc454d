#!/usr/bin/env python3
"""Measures other libraries for `penstock bench --report`, each in its own process. `penstock` contains this program and runs it.

    bench/report_peers.py --file FILE --device cuda:0 --sizes 4096,1048576 --out FILE.json

Writes {"peers": [...]}: for each library its state (measured, absent, failed), the measured call, how to install it if it is absent, and the
points {series: hot or cold, call_bytes, gb_per_s, us, cpu_s_per_gb}, or rows of two benchmarks in this folder: python_bench.py and
cufile_vs_nvidia/compare.py. One thread makes one call after another; the bytes of the last call are compared with the file.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

MIB = 1 << 20
Reader = Callable[[int, int], Any]  # offset and size; returns what was read
Opened = tuple[Reader, Callable[[Any], bytes], Callable[[], None]]  # read, return the bytes, close


class Absent(Exception):
    pass


def module(name: str) -> Any:
    try:
        return __import__(name, fromlist=["_"])
    except ImportError as error:
        raise Absent(str(error)) from error


# --- the libraries: each function opens a file for a device


def open_penstock(path: Path, device: str, most: int) -> Opened:
    penstock = module("penstock")
    target = penstock.device(device).empty(most)
    file = penstock.open(path)

    def read(offset: int, size: int) -> Any:
        if file.read_into(target, offset=offset, size=size) != size:
            raise SystemExit("a read returned fewer bytes than requested")
        return size

    return read, lambda size: target.to_host()[:size], file.close


def open_kvikio(path: Path, device: str, most: int) -> Opened:
    kvikio, cupy = module("kvikio"), module("cupy")
    if not device.startswith("cuda"):
        raise Absent("it reads only into GPUs, and this machine has none")
    target = cupy.empty(most, dtype=cupy.uint8)
    file = kvikio.CuFile(str(path), "r")

    def read(offset: int, size: int) -> Any:
        if file.read(target[:size], file_offset=offset) != size:
            raise SystemExit("a read returned fewer bytes than requested")
        return size

    return read, lambda size: target[:size].get().tobytes(), file.close


def open_torch(path: Path, device: str, most: int) -> Opened:
    torch = module("torch")
    where = torch_device(torch, device)
    mapped = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)

    def read(offset: int, size: int) -> Any:
        found = mapped[offset : offset + size].to(where, copy=True)
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        return found

    return read, bytes_of_tensor, lambda: None


def open_safetensors(path: Path, device: str, most: int) -> Opened:
    """Opens a file that contains one tensor for each call; the offset selects the tensor."""
    safetensors = module("safetensors")
    if not device.startswith("cuda"):
        module("numpy")
        arrays = safetensors.safe_open(str(path), framework="np")
        return lambda offset, size: arrays.get_tensor(f"t{offset // size}").copy(), lambda array: array.tobytes(), lambda: None
    torch = module("torch")
    where = torch_device(torch, device)
    opened = safetensors.safe_open(str(path), framework="pt", device=str(where))

    def read(offset: int, size: int) -> Any:
        tensor = opened.get_tensor(f"t{offset // size}")
        torch.cuda.synchronize(where)
        return tensor

    return read, bytes_of_tensor, lambda: None


def bytes_of_tensor(tensor: Any) -> bytes:
    there = tensor.cpu()
    return ctypes.string_at(there.data_ptr(), there.numel())


def torch_device(torch: Any, device: str) -> Any:
    if not device.startswith("cuda"):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Absent("this PyTorch was built without CUDA")
    return torch.device(device)


# name: the function that opens a file, the package whose version is reported, the call, how to install it
CURVES: dict[str, tuple[Callable[..., Opened], str, str, str]] = {
    "Penstock, Python": (open_penstock, "penstock", "penstock.open(file).read_into(target, offset, size)", "pip install . in Penstock's sources"),
    "KvikIO": (open_kvikio, "kvikio", "kvikio.CuFile(file).read(array, file_offset)", "pip install kvikio-cu13 cupy-cuda13x"),
    "PyTorch": (open_torch, "torch", "torch.from_file(file)[range].to(device, copy=True)", "pip install torch"),
    "safetensors": (open_safetensors, "safetensors", "safe_open(file).get_tensor(name), one tensor per call", "pip install safetensors torch; without a GPU, numpy instead of torch"),
}  # fmt: skip
NVIDIA, PROGRAMS = "NVIDIA libcufile", "Rows from Python"


# --- measuring one library


def make_cold(path: Path) -> bool:
    """Drops the file from the page cache. Returns False if it stays there."""
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return True  # this file system cannot tell
    return False


def make_hot(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(16 * MIB):
            pass


def safetensors_file(folder: Path, source: Path, size: int, count: int) -> Path:
    """Creates a safetensors file with the source's first bytes as tensors of this size."""
    header = json.dumps({f"t{i}": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]} for i in range(count)}).encode()
    header += b" " * (-len(header) % 8)
    made = folder / "data.safetensors"
    with open(source, "rb") as bytes_in, open(made, "wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for _ in range(count):
            out.write(bytes_in.read(size))
        out.flush()
        os.fsync(out.fileno())
    return made


def measure_calls(path: Path, source: Path, opener: Callable[..., Opened], device: str, size: int, count: int, cold: bool, repeats: int) -> dict[str, Any] | None:
    seconds, cpu = [], []
    for repeat in range(repeats + (0 if cold else 1)):
        if cold and not make_cold(path):
            return None
        if not cold:
            make_hot(path)
        read, look, close = opener(path, device, size)
        began_cpu, began = time.process_time(), time.perf_counter()
        for i in range(count):
            last = read(i * size, size)
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
        seen = bytes(look(last))
        close()
        del read, look, close, last  # mapped pages cannot be dropped from the page cache
        with open(source, "rb") as file:
            if os.pread(file.fileno(), size, (count - 1) * size) != seen:
                raise SystemExit(f"calls of {size} bytes: the bytes are wrong")
    if not cold:
        seconds, cpu = seconds[1:], cpu[1:]  # the first run was a warm-up
    middle = statistics.median_low(seconds)
    spent = cpu[seconds.index(middle)]
    return {"series": "cold" if cold else "hot", "call_bytes": size, "gb_per_s": size * count / middle / 1e9, "us": middle / count * 1e6,
            "cpu_s_per_gb": spent / (size * count) * 1e9}  # fmt: skip


def measure_one(name: str, given: argparse.Namespace) -> dict[str, Any]:
    opener, package, call, install = CURVES[name]
    version = str(getattr(module(package), "__version__", ""))
    points = []
    room = given.file.stat().st_size
    with tempfile.TemporaryDirectory(prefix="penstock-peers-", dir=given.file.parent) as folder:
        for size in given.sizes:
            for cold in (False, True):
                most = (200 if given.quick else 1000) if cold else (1000 if given.quick else 5000)
                count = min(max(2, (16 if given.quick else 256) * MIB // size), most, room // size)
                if count == 0:
                    continue
                path = safetensors_file(Path(folder), given.file, size, count) if name == "safetensors" else given.file
                point = measure_calls(path, given.file, opener, given.device, size, count, cold, 1 if given.quick else 3)
                points += [point] if point else []
    return {"name": name, "state": "measured", "version": version, "call": call, "points": points}


# --- measuring all libraries


def child(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Measures one library in its own process. Returns its result, or the reason for its failure."""
    _, _, call, install = CURVES[name]
    command = [sys.executable, __file__, "--one", name, "--file", str(given.file), "--device", given.device]
    command += ["--sizes", ",".join(map(str, given.sizes)), *(["--quick"] if given.quick else [])]
    told = {"name": name, "call": call, "install": install}
    ended = run(command, given)
    if isinstance(ended, str):
        return {**told, "state": "failed", "reason": ended}
    try:
        return {**told, **json.loads(ended.stdout.splitlines()[-1])}
    except (IndexError, ValueError):
        return {**told, "state": "failed", "reason": last_words(ended)}


def run(command: list[str], given: argparse.Namespace) -> subprocess.CompletedProcess[str] | str:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=given.timeout, cwd=given.file.parent)
    except subprocess.TimeoutExpired:
        return f"still running after {given.timeout} s"


def last_words(ended: subprocess.CompletedProcess[str]) -> str:
    return (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]


def by_compare(given: argparse.Namespace) -> dict[str, Any]:
    """Measures NVIDIA's library, Penstock's replacement and the C++ interface with the rows of cufile_vs_nvidia/compare.py."""
    compare = given.programs / "cufile_vs_nvidia/compare.py"
    told: dict[str, Any] = {"name": NVIDIA, "call": "cuFileRead, by bench/cufile_vs_nvidia/compare.py", "program": "bench/cufile_vs_nvidia/compare.py",
            "install": "apt-get install libcufile-13-0 (NVIDIA's repository of CUDA packages), or pip install nvidia-cufile; "
                       "then, in Penstock's sources, cmake --build build/release --target penstock_cufile_bench"}  # fmt: skip
    if not given.device.startswith("cuda"):
        return {**told, "state": "absent", "reason": "it reads only into GPUs, and this machine has none"}
    for needed in (compare, given.cufile_bench, given.own_cufile):
        if not needed.is_file():
            return {**told, "state": "absent", "reason": f"{needed} does not exist"}
    with tempfile.TemporaryDirectory(prefix="penstock-peers-", dir=given.file.parent) as folder:
        found = Path(folder) / "figures.json"
        command = [sys.executable, str(compare), "--bench", str(given.cufile_bench), "--ours", str(given.own_cufile), "--file", str(Path(folder) / "data"),
                   "--size-mib", str(256 if given.quick else 1024), "--rounds", "1", "--repeats", "1" if given.quick else "3", "--json", str(found)]  # fmt: skip
        command += [word for wheel in nvidia_wheels() for word in ("--nvidia", wheel)]
        ended = run(command, given)
        if isinstance(ended, str) or not found.is_file():
            return {**told, "state": "failed", "reason": ended if isinstance(ended, str) else last_words(ended)}
        figures = json.loads(found.read_text())
    rows = []
    for row, by_label in figures["figures"].items():
        for label, figure in by_label.items():
            middle = statistics.median(figure["medians"])
            cpu = statistics.median(figure["cpu"]) if figure["cpu"] else None
            rows.append({"row": f"{row}, {label}", "ours": label in ("ours", "native"), "us" if figure["unit"] == "us" else "gb_per_s": middle, "cpu_s_per_gb": cpu})
    labels = sorted({label for by_label in figures["figures"].values() for label in by_label if label.startswith("nvidia")})
    if not labels:
        reason = next(iter(figures["failures"].values()), "NVIDIA's libcufile.so.0 was not found")
        return {**told, "state": "absent", "reason": reason, "rows": rows}
    return {**told, "state": "measured", "version": ", ".join(labels), "rows": rows}


def nvidia_wheels() -> list[str]:
    """Returns the libraries of nvidia-cufile packages that pip has installed."""
    return [str(each) for folder in sys.path for each in Path(folder).glob("nvidia/**/libcufile.so.0")]


def by_python_bench(given: argparse.Namespace) -> dict[str, Any]:
    """Measures the rows of python_bench.py, including those of PyTorch's GdsFile and KvikIO."""
    program = given.programs / "python_bench.py"
    told: dict[str, Any] = {"name": PROGRAMS, "call": "bench/python_bench.py: KvikIO, torch.cuda.gds and Penstock's replacements for them",
                            "program": "bench/python_bench.py", "install": "pip install . in Penstock's sources, and numpy"}  # fmt: skip
    if not program.is_file():
        return {**told, "state": "absent", "reason": f"{program} does not exist"}
    try:
        module("penstock"), module("numpy")
    except Absent as error:
        return {**told, "state": "absent", "reason": str(error)}
    command = [sys.executable, str(program), "--json", "--size", "64M" if given.quick else "1G", "--repeat", "1" if given.quick else "5"]
    ended = run([*command, "--device", given.device, "--folder", str(given.file.parent)], given)
    if isinstance(ended, str) or ended.returncode:
        return {**told, "state": "failed", "reason": ended if isinstance(ended, str) else last_words(ended)}
    listed = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    rows = [{"row": each.pop("name"), **each} for each in listed]
    for row in rows:
        row["ours"] = row["row"].startswith(("penstock", "10000 random", "4 KiB read_into"))
    left_out = "; ".join(f"{row['row']}: {row['skipped']}" for row in rows if row["skipped"])
    return {**told, "state": "measured", "rows": [row for row in rows if not row["skipped"]], "reason": f"skipped: {left_out}" if left_out else ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True, help="the file to read; never written")
    parser.add_argument("--device", default="host:0")
    parser.add_argument("--sizes", type=lambda text: [int(each) for each in text.split(",")], required=True, help="call sizes in bytes: a,b,c")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, help="file for the result (default: stdout)")
    parser.add_argument("--programs", type=Path, default=Path(__file__).resolve().parent, help="the folder bench of Penstock's sources")
    parser.add_argument("--cufile-bench", type=Path, default=Path("penstock_cufile_bench"), help="path of the program penstock_cufile_bench")
    parser.add_argument("--own-cufile", type=Path, default=Path("libcufile.so.0"), help="path of Penstock's libcufile")
    parser.add_argument("--timeout", type=int, default=120, help="time limit for each library, in seconds")
    parser.add_argument("--one", choices=list(CURVES), help="measure only this library, in this process")
    given = parser.parse_args()
    given.file = given.file.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that subprocess.run kills the process that it has started
    if given.one:
        try:
            told = measure_one(given.one, given)
        except Absent as error:
            told = {"name": given.one, "state": "absent", "reason": str(error)}
        print(json.dumps(told))
        return 0
    text = json.dumps({"peers": [by_compare(given), *[child(name, given) for name in CURVES], by_python_bench(given)]}, indent=2) + "\n"
    given.out.write_text(text) if given.out else print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
