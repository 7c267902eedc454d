#!/usr/bin/env python3
"""Measures how fast whole models are loaded and saved on a GPU: penstock.safetensors and penstock.torch, compared with common libraries.

    bench/tensors_bench.py                       all rows, with files of 4.4 and 2.4 GB in a temporary folder
    bench/tensors_bench.py --folder DIR --scale 0.05 --json

Two files: "big" has 90 tensors of 48 MiB; "moe" has 4,096 tensors, of which three in four have 768 KiB and the fourth has 514 bytes, so that few
are aligned in the file. Each row has its own processes; the loaded bytes are compared with the file. GB/s are 10^9 bytes per second and include
everything except `import torch` and CUDA's context. "first" is a process's first call, "then" the best of its later ones. Hot rows run in several
processes, and the best of each counts. The ceiling is a 64 MiB copy from pinned memory, measured in the same processes.

For cold rows and saves, the ceiling is what a plain program reads from the disk with O_DIRECT, or writes with O_DIRECT and fdatasync. The speed of
a virtual machine's disk changes within seconds, so these rows consist of three rounds in one process. Each round measures the ceiling and, right
after it, the call; the fraction is that of the best call to the best ceiling. Each round of a cold row drops the file from the page cache before the
call, and also measures a plain program that reads through the page cache. That can be far slower, because memory that was returned to the host is
added again one page at a time. "after cold" is the first call of a new process right after that row, whose last call may or may not have left the
file in the page cache.

"large", 18,867 tensors with 60 GB in total, is created and read only if --rows names it; three of its tensors are compared.

Libraries that cannot be imported are skipped, with the reason. Without a GPU, there are only load_file into host memory, and a ceiling for cold rows
and saves.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MIB = 1 << 20


def sizes_of(kind: str, scale: float) -> list[int]:
    if kind == "big":
        return [48 * MIB] * max(2, round(90 * scale))
    if kind == "large":
        return [3180 * 1024] * max(2, round(18_867 * scale))
    return [768 * 1024, 768 * 1024, 768 * 1024, 514] * max(1, round(1024 * scale))


def make_file(path: Path, kind: str, scale: float) -> None:
    """Creates a safetensors file of random bytes: BF16, or U8 if a tensor has an odd number of bytes."""
    sizes = sizes_of(kind, scale)
    header: dict[str, Any] = {}
    at = 0
    for number, size in enumerate(sizes):
        dtype, count = ("BF16", size // 2) if size > 514 else ("U8", size)
        header[f"model.layers.{number // 8}.part.{number % 8}.weight"] = {"dtype": dtype, "shape": [count], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random_bytes = memoryview(os.urandom(64 * MIB))
    with open(path, "wb", buffering=0) as file, ThreadPoolExecutor(8) as threads:
        file.write(len(text).to_bytes(8, "little") + text)
        starts = itertools.accumulate(sizes, initial=8 + len(text))

        def write(number: int, size: int, at: int) -> None:
            start = number * 7919 % (len(random_bytes) - max(sizes))
            assert os.pwrite(file.fileno(), random_bytes[start : start + size], at) == size

        list(threads.map(write, range(len(sizes)), sizes, starts))


def drop_from_cache(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(8 * MIB)
        while file.readinto(buffer):
            pass


# --- in a process of its own


def link_ceiling(torch: Any) -> float:
    if not torch.cuda.is_available():
        return 0.0
    host = torch.empty(64 * MIB, dtype=torch.uint8).pin_memory()
    device = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    best = 0.0
    for _ in range(4):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(16):
            device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, 16 * 64 * MIB / (time.perf_counter() - began) / 1e9)
    return best


def by_threads(count: int, chunk: int, nbytes: int, mover: Callable[[], Callable[[int], Any]]) -> None:
    """Each thread takes the next chunk until none are left. mover: called by each thread; returns the function that moves the chunk at an offset."""
    lock, next_at = threading.Lock(), [0]

    def work() -> None:
        move = mover()
        while True:
            with lock:
                at, next_at[0] = next_at[0], next_at[0] + chunk
            if at >= nbytes:
                return
            move(at)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def direct_ceiling(path: Path, nbytes: int, write: bool) -> float:
    """Returns the GB/s of four threads with O_DIRECT, which take consecutive 4 MiB chunks."""
    nbytes = nbytes // (16 * MIB) * 16 * MIB
    flags = os.O_DIRECT | (os.O_WRONLY | os.O_CREAT if write else os.O_RDONLY)
    fd = os.open(path, flags, 0o644)
    move = os.pwritev if write else os.preadv

    def mover() -> Callable[[int], Any]:
        buffer = mmap.mmap(-1, 4 * MIB)
        if write:
            buffer[:] = os.urandom(4 * MIB)
        return lambda at: move(fd, [buffer], at)

    began = time.perf_counter()
    by_threads(4, 4 * MIB, nbytes, mover)
    if write:
        os.fdatasync(fd)
    seconds = time.perf_counter() - began
    os.close(fd)
    return nbytes / seconds / 1e9


def cached_ceiling(path: Path, nbytes: int) -> float:
    """Returns the GB/s of two threads through the page cache, which take consecutive 1 MiB chunks."""
    fd = os.open(path, os.O_RDONLY)

    def mover() -> Callable[[int], Any]:
        buffer = bytearray(MIB)
        return lambda at: os.preadv(fd, [buffer], at)

    began = time.perf_counter()
    by_threads(2, MIB, nbytes, mover)
    seconds = time.perf_counter() - began
    os.close(fd)
    return nbytes / seconds / 1e9


# For cold rows and saves: the ceiling and the call of each.
ROUNDS = 3


def compare(torch: Any, path: Path, loaded: dict[str, Any], some: set[str] | None = None) -> None:
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        names = file.keys()
        assert sorted(names) == sorted(loaded), "other names than the safetensors library finds"
        for name in some or names:
            expected, found = file.get_tensor(name), loaded[name].cpu()
            assert found.dtype == expected.dtype and found.shape == expected.shape, name
            assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), f"{name} differs"


def loader(peer: str, path: Path, device: str) -> Callable[[], dict[str, Any]]:
    if peer == "penstock":
        from penstock.safetensors.torch import load_file

        return lambda: load_file(str(path), device=device)
    if peer == "safetensors":
        from safetensors.torch import load_file as reference

        return lambda: reference(str(path), device=device)
    if peer == "instanttensor":
        import instanttensor

        def load() -> dict[str, Any]:
            os.environ.setdefault("INSTANTTENSOR_BACKEND", "MMAP")
            with instanttensor.safe_open(str(path), framework="pt", device=device) as file:
                return dict(file.tensors())

        return load
    raise ValueError(peer)


def child(row: str, peer: str, path: Path, repeat: int) -> dict[str, Any]:
    import torch

    gpu = torch.cuda.is_available()
    device = "cuda:0" if gpu else "cpu"
    if gpu:
        torch.empty(1, device=device)
        torch.cuda.synchronize()
    nbytes = path.stat().st_size
    told: dict[str, Any] = {"row": row, "peer": peer, "file": path.name}
    times: list[float] = []
    cpus: list[float] = []

    def timed(call: Callable[[], Any]) -> Any:
        cpu, began = time.process_time(), time.perf_counter()
        result = call()
        if gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        cpus.append(time.process_time() - cpu)
        return result

    if row == "cold":
        load = loader(peer, path, device)
        ceilings: list[float] = []
        cached_ceilings: list[float] = []
        for number in range(ROUNDS):
            loaded = None
            drop_from_cache(path)
            cached_ceilings.append(cached_ceiling(path, nbytes))
            drop_from_cache(path)
            ceilings.append(direct_ceiling(path, nbytes, False))
            drop_from_cache(path)
            loaded = timed(load)
            if number == 0:  # not in the last: comparing brings the file into the page cache
                compare(torch, path, loaded)
        told.update(ceiling=max(ceilings), cached_ceiling=max(cached_ceilings))
    elif row in ("load", "after cold"):
        load = loader(peer, path, device)
        loaded = timed(load)
        compare(torch, path, loaded)
        if row == "load":
            for _ in range(repeat):
                loaded = None
                loaded = timed(load)
    elif row == "large":
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        loaded = timed(loader(peer, path, device))
        told["device_peak_mib_beyond"] = round((torch.cuda.max_memory_reserved() - nbytes) / MIB) if gpu else None
        names = list(loaded)
        compare(torch, path, loaded, {names[0], names[len(names) // 2], names[-1]})
        loaded = None
        loaded = timed(loader(peer, path, device))
    elif row == "stream":
        from penstock.safetensors import stream

        def consume() -> int:
            done = 0
            for _, tensor in stream(str(path), device=device):
                done += tensor.float().numel() if tensor.dtype == torch.bfloat16 else tensor.numel()
            return done

        for _ in range(repeat + 1):
            timed(consume)
    elif row in ("dcp load", "dcp save"):
        move_checkpoint(torch, row, peer, path, device, timed, repeat, told)
    elif row == "load_into":
        from penstock.safetensors import load_into
        from safetensors.torch import load_file as reference

        loaded = {name: torch.zeros_like(each) for name, each in reference(str(path), device=device).items()}
        for _ in range(repeat + 1):
            timed(lambda: load_into(str(path), loaded))
        compare(torch, path, loaded)
    elif row == "save":
        loaded = loader("penstock", path, device)()
        target = path.with_suffix(".saved")

        def save() -> None:
            if peer == "penstock":
                from penstock.safetensors.torch import save_file

                save_file(loaded, str(target))
            elif peer == "safetensors":
                from safetensors.torch import save_file as reference_save

                reference_save({name: each.contiguous() for name, each in loaded.items()}, str(target))
            elif peer == "penstock.torch":
                import penstock.torch

                penstock.torch.save(loaded, str(target))
            else:
                torch.save(loaded, str(target))
            if not peer.startswith("penstock"):  # which have done so
                fd = os.open(target, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)

        raw = path.with_suffix(".raw")
        ceilings = []
        for _ in range(ROUNDS):
            raw.unlink(missing_ok=True)
            ceilings.append(direct_ceiling(raw, nbytes, True))
            raw.unlink()
            target.unlink(missing_ok=True)
            timed(save)
        told["ceiling"] = max(ceilings)
        if "torch" in peer:
            found = torch.load(str(target), weights_only=True)
            assert all(torch.equal(found[name].cpu().view(torch.uint8), each.cpu().view(torch.uint8)) for name, each in loaded.items())
        else:
            compare(torch, target, loaded)
        target.unlink()
    if "ceiling" not in told:
        told["ceiling"] = link_ceiling(torch)
    told["first"] = nbytes / times[0] / 1e9
    if len(times) > 1:
        told["then"] = nbytes / min(times[1:]) / 1e9
    told["cpu_s_per_gb"] = min(cpus) / nbytes * 1e9
    if peer.startswith("penstock"):
        import penstock

        told["pinned_mib"] = penstock.stats()["pinned_peak_bytes"] // MIB
    return told


def move_checkpoint(
    torch: Any, row: str, peer: str, path: Path, device: str, timed: Callable[[Callable[[], Any]], Any], repeat: int, told: dict[str, Any]
) -> None:
    """torch.distributed.checkpoint with its safetensors files, of one rank."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file as reference

    if peer == "penstock":
        from penstock.torch import checkpoint as storage
    else:
        from torch.distributed import checkpoint as storage
    folder = path.with_suffix(".checkpoint")
    folder.mkdir(exist_ok=True)
    state = reference(str(path), device=device)
    if row == "dcp load":
        link = folder / "model.safetensors"
        link.unlink(missing_ok=True)
        os.link(path, link)
        expected, state = state, {name: torch.zeros_like(each) for name, each in state.items()}
        for _ in range(repeat + 1):
            timed(lambda: dcp.load(state, storage_reader=storage.HuggingFaceStorageReader(str(folder)), no_dist=True))
        assert all(torch.equal(state[name].view(torch.uint8), each.view(torch.uint8)) for name, each in expected.items())
    else:
        ceilings = []
        raw = path.with_suffix(".raw")
        for _ in range(ROUNDS):
            raw.unlink(missing_ok=True)
            ceilings.append(direct_ceiling(raw, path.stat().st_size, True))
            raw.unlink()
            shutil.rmtree(folder)
            folder.mkdir()
            timed(lambda: save_checkpoint(dcp, storage, peer, state, folder))
        told["ceiling"] = max(ceilings)
    shutil.rmtree(folder)


def save_checkpoint(dcp: Any, storage: Any, peer: str, state: dict[str, Any], folder: Path) -> None:
    """Saves durably, in standard safetensors files."""
    names = dict.fromkeys(state, 1)
    writer = storage.HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=names, save_distributed=True, enable_consolidation=True)
    dcp.save(state, storage_writer=writer, no_dist=True)
    for each in folder.glob("*.safetensors"):
        if peer != "penstock":
            fd = os.open(each, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)


# --- the rows


HOT = ("load", "load_into", "stream", "dcp load")


def rows(folder: Path) -> Iterator[tuple[str, str, Path]]:
    big, moe = folder / "big.safetensors", folder / "moe.safetensors"
    for path in (big, moe):
        for peer in ("penstock", "safetensors", "instanttensor"):
            yield "load", peer, path
    yield "load_into", "penstock", moe
    yield "large", "penstock", folder / "large.safetensors"
    yield "stream", "penstock", big
    yield "stream", "penstock", moe
    for peer in ("penstock", "torch"):
        yield "dcp load", peer, big
        yield "dcp save", peer, big
    for peer in ("penstock", "safetensors"):
        yield "cold", peer, big
        yield "after cold", peer, big
    for peer in ("penstock", "penstock.torch", "safetensors", "torch"):
        yield "save", peer, big


def best_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Combines the results of several processes that ran the same row."""
    best = dict(runs[0])
    for key in ("first", "then", "ceiling"):
        if key in best:
            best[key] = max(each[key] for each in runs)
    best["cpu_s_per_gb"] = min(each["cpu_s_per_gb"] for each in runs)
    if best["ceiling"]:
        best["fraction"] = max(best["first"], best.get("then", 0)) / best["ceiling"]
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="folder for the files, which are kept (default: a temporary folder)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the files' sizes")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--processes", type=int, default=3, help="processes per hot row")
    parser.add_argument("--rows", help="rows to run, separated by commas (default: all)")
    parser.add_argument("--peers", help="libraries to measure, separated by commas (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        row, peer, path = args.child
        print(json.dumps(child(row, peer, Path(path), args.repeat)))
        return 0
    with tempfile.TemporaryDirectory(prefix="penstock-tensors-") as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("big", "moe"):
            path = folder / f"{kind}.safetensors"
            if not path.exists():
                make_file(path, kind, args.scale)
        failed = False
        for row, peer, path in rows(folder):
            if (args.rows and row not in args.rows.split(",")) or (args.peers and peer not in args.peers.split(",")):
                continue
            if row == "large":
                if not args.rows:
                    continue
                if not path.exists():
                    make_file(path, "large", args.scale)
            drop_from_cache(path) if row == "cold" else None if row == "after cold" else warm(path)
            command = [sys.executable, __file__, "--repeat", str(args.repeat), "--child", row, peer, str(path)]
            runs = [subprocess.run(command, capture_output=True, text=True) for _ in range(args.processes if row in HOT else 1)]
            done = next((each for each in runs if each.returncode != 0), runs[0])
            if done.returncode != 0:
                reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
                failed = failed or "ModuleNotFoundError" not in reason
                print(json.dumps({"row": row, "peer": peer, "file": path.name, "skipped": reason}) if args.json else
                      f"{row:<11}{peer:<15}{path.stem:<5}skipped: {reason}", flush=True)
                continue
            told = best_of([json.loads(each.stdout.splitlines()[-1]) for each in runs])
            if args.json:
                print(json.dumps(told), flush=True)
                continue
            ceiling = told["ceiling"]

            def figure(key: str) -> str:
                if key not in told:
                    return ""
                return f"{key} {told[key]:6.1f} GB/s" + (f" ({told[key] / ceiling:4.2f})" if ceiling else "")

            print(f"{row:<11}{peer:<15}{path.stem:<5}{figure('first'):<27}{figure('then'):<27}{told['cpu_s_per_gb']:.3f} CPU s/GB"
                  + (f"  of {ceiling:.1f} GB/s" if ceiling else "")
                  + (f", {told['device_peak_mib_beyond']} MiB of the GPU beside the tensors" if told.get("device_peak_mib_beyond") is not None else "")
                  + (f", through the page cache {told['cached_ceiling']:.1f}" if "cached_ceiling" in told else ""), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
