#!/usr/bin/env python3
"""Measures what requires two or more GPUs: one table, with the commit, the machine and the ceilings of the same run.

    python two_gpus_bench.py --folder /dev/shm/two             # all GPUs
    python two_gpus_bench.py --devices cuda:0,cuda:0 --gb 1    # two processes on one GPU: only checks that it runs

Builds nothing. Requires penstock and, for the Python rows, torch and cupy. Rows whose libraries are missing, rows that fail and rows that exceed
their time limit say so. Takes at most nine minutes (--minutes); rows that would start too late are listed as skipped.

Rows. pipes: `penstock pipe-bench` between the first two GPUs, with receives posted, and one message at a time without, next to a bare copy. peers:
PyTorch tensors from Python: Penstock with and without posted receives, NCCL, NIXL and torch.distributed.rpc, and Penstock with expandable segments.
links: one file into one GPU over one link, two, and all. sharded: one model to all GPUs: whole into each, and divided. weights: tensors of one
process into those of another. resharded: rows from two processes into the columns of one. chain: one buffer to four receivers, which use the GPUs
in turn. cpu: CPU seconds per GB of a hot file into one GPU, and into all GPUs at once.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GB = 10**9


def told(command: list[str], seconds: float, **environment: str) -> str:
    """Returns a program's output. Raises CalledProcessError or TimeoutExpired."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env={**os.environ, **environment})
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise RuntimeError(f"{Path(command[0]).name} {Path(command[1]).name}: {last}")
    return done.stdout


def gpus() -> int:
    import penstock

    return sum(each.name.startswith("cuda") for each in penstock.devices())


def machine() -> str:
    import penstock

    commit = (Path(penstock.__file__).parent / "GIT_COMMIT").read_text().strip()
    names = {line.split(":", 1)[1].split("(")[0].strip() for line in told(["nvidia-smi", "-L"], 20).splitlines()} if penstock.cuda_status() is None else {"no GPU"}
    return f"{', '.join(sorted(names))}; {os.cpu_count()} CPU cores; kernel {os.uname().release}; penstock {commit}"


# --- pipes


def pipes(devices: list[str], seconds: float) -> Iterator[str]:
    command = [sys.executable, "-m", "penstock", "pipe-bench", "--from", devices[0], "--to", devices[1], "--sizes", "4KiB,64KiB,1MiB,16MiB,1GiB"]
    found = json.loads(told([*command, "--seconds", "0.4", "--json", "-q"], seconds))
    yield f"channels: {', '.join(each['name'] for each in found['channels'] if each['refusal'] is None)}"
    for row in found["rows"]:
        yield (
            f"{row['bytes'] / 1024:>9.0f} KiB  one way {row['one_way_us']:>8.1f} us (bare {row['bare_copy_us']:.1f}: {row['bare_copy_us'] / row['one_way_us']:.2f})  "
            f"not posted {row['unposted_one_way_us']:>8.1f} us  "
            f"many {row['gb_per_s']:>6.1f} GB/s (bare {row['bare_gb_per_s']:.1f}: {row['gb_per_s'] / row['bare_gb_per_s']:.2f}) at {row['cpu_s_per_gb']:.3f} CPU s/GB  "
            f"{row['channel']}{'' if row['verified'] else '  WRONG BYTES'}"
        )


def peers(devices: list[str], seconds: float) -> Iterator[str]:
    yield from told([sys.executable, str(HERE / "pipe_peers_bench.py")], seconds).splitlines()


def expandable(devices: list[str], seconds: float) -> Iterator[str]:
    yield from told([sys.executable, str(HERE / "pipe_peers_bench.py"), "penstock"], seconds, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True").splitlines()


def chain(devices: list[str], seconds: float) -> Iterator[str]:
    example = HERE.parent / "examples" / "python" / "pipe_fan_out.py"
    yield from told([sys.executable, str(example), "4", "8192", ",".join(devices)], seconds).splitlines()


# --- files


def median_of(call: Callable[[], Any], times: int = 5) -> tuple[float, float, float]:
    """Seconds of the first, the median of later ones, and CPU seconds of one of these."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
        if len(taken) == 1:
            cpu = time.process_time()
    return taken[0], statistics.median(taken[1:]), (time.process_time() - cpu) / (times - 1)


def figure(label: str, nbytes: int, call: Callable[[], Any]) -> str:
    first, later, cpu = median_of(call)
    return f"{label:<40} first {nbytes / first / GB:>6.1f}, later {nbytes / later / GB:>6.1f} GB/s at {cpu / (nbytes / GB):.3f} CPU s/GB"


def in_child(row: str, devices: list[str], file: Path) -> Iterator[str]:
    """In a process of its own: what one row has made ready is not another's."""
    import torch

    import penstock
    from penstock.safetensors import load_sharded
    from penstock.safetensors.torch import load_file

    nbytes = file.stat().st_size
    on = [torch.empty(1 << 20, dtype=torch.uint8, device=each if each.startswith("cuda") else "cpu") for each in devices]
    if on[0].is_cuda:
        pinned = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
        target = torch.empty_like(pinned, device=devices[0])
        target.copy_(pinned)
        _, later, _ = median_of(lambda: (target.copy_(pinned), torch.cuda.synchronize()), 20)
        yield f"ceiling: {pinned.nbytes / later / GB:.1f} GB/s, copies of 64 MiB from pinned memory to {devices[0]}"
    if row == "links":
        counts = sorted({1, 2, len(devices)}) if on[0].is_cuda else (None,)
        for links in counts:
            yield figure(f"load_file, links={links}", nbytes, lambda links=links: load_file(file, devices[0], links=links))
        with penstock.open(file) as opened:
            memory = torch.empty(nbytes, dtype=torch.uint8, device=on[0].device)
            for links in counts:
                yield figure(f"one read into one tensor, links={links}", nbytes, lambda links=links: opened.pread_ranges(memory, [0], [nbytes], [0], links=links).result())
    elif row == "sharded":
        yield figure("load_file to the first alone", nbytes, lambda: load_file(file, devices[0]))
        yield figure(f"load_sharded, all of it to {len(devices)}", len(devices) * nbytes, lambda: load_sharded(file, devices, framework="pt"))
        yield figure(f"load_sharded, cut in {len(devices)}", nbytes, lambda: load_sharded(file, devices, {"*": 0}, "pt"))
    elif row == "resharded":
        yield from resharded(devices, file)
    elif row == "cpu":
        with penstock.open(file) as opened:
            memories = [torch.empty(nbytes, dtype=torch.uint8, device=each.device) for each in on]
            yield figure("one read, into one GPU", nbytes, lambda: opened.read_into(memories[0]))

            def all_of_them() -> None:
                for each in [opened.pread(memory) for memory in memories]:
                    each.result()

            yield figure(f"{len(on)} reads at once, into all", len(on) * nbytes, all_of_them)


def weights(gb: float, devices: list[str], seconds: float) -> Iterator[str]:
    """Loads one process's weights into another process's tensors."""
    there, here = (each.replace("cpu", "host") for each in devices[:2])
    for shape in ("llama", "moe"):
        command = [sys.executable, str(HERE / "weights_bench.py"), "--device", there, "--to", here, "--shape", shape, "--gb", str(gb)]
        yield from told(command, seconds).splitlines()


def serve(device: str, nbytes: int, rank: int, urls: Any, done: Any) -> None:
    """Serves half of the rows of each tensor."""
    import weights_bench

    import penstock

    mine, parts = {}, {}
    for name, tensor in weights_bench.tensors(weights_bench.shapes("llama", nbytes), device, 1 + rank).items():
        rows = slice(rank * (len(tensor) // 2), (rank + 1) * (len(tensor) // 2))
        mine[name], parts[name] = tensor[rows].clone(), (tuple(tensor.shape), (rows,))
    with penstock.serve_weights(mine, parts=parts, snapshot=False) as server:
        urls.put(server.url)
        done.wait()


def resharded(devices: list[str], file: Path) -> Iterator[str]:
    """Loads rows from two ranks into the columns of one."""
    import multiprocessing

    import weights_bench

    import penstock
    from penstock.weights import WeightsReceiver

    nbytes = file.stat().st_size
    spawn = multiprocessing.get_context("spawn")
    urls, done = spawn.Queue(), spawn.Event()
    servers = [spawn.Process(target=serve, args=(device, nbytes, rank, urls, done)) for rank, device in enumerate(devices[:2])]
    for each in servers:
        each.start()
    try:
        found = [urls.get(timeout=60) for _ in servers]
        mine, parts = {}, {}
        for name, tensor in weights_bench.tensors(weights_bench.shapes("llama", nbytes), devices[1], 0).items():
            columns = slice(0, tensor.shape[-1] // 2)
            mine[name], parts[name] = tensor[..., columns].clone(), (tuple(tensor.shape), (slice(None),) * (tensor.dim() - 1) + (columns,))
        total = sum(each.nbytes for each in mine.values())
        yield figure("load_weights, 2 to 1, rows to columns", total, lambda: penstock.load_weights(found, mine, parts=parts))
        with WeightsReceiver(found, mine, parts=parts) as receiver:
            yield figure("a receiver that stays, 2 to 1, rows to columns", total, receiver.load)
        for each in mine.values():
            if each.dim() == 2 and not (bool((each[: len(each) // 2] == 1).all()) and bool((each[len(each) // 2 :] == 2).all())):
                yield "  WRONG VALUES"
    finally:
        done.set()
        for each in servers:
            each.join(30)


def of_file(row: str, file: Path) -> Callable[[list[str], float], Iterator[str]]:
    def run(devices: list[str], seconds: float) -> Iterator[str]:
        yield from told([sys.executable, __file__, "--devices", ",".join(devices), "--child", row, str(file)], seconds).splitlines()

    return run


def make_file(path: Path, nbytes: int) -> None:
    sys.path.insert(0, str(HERE))
    import tensors_bench

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors_bench.make_file(path, "big", nbytes / (90 * 48 * tensors_bench.MIB))
    tensors_bench.warm(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/penstock_two_gpus"), help="folder for the file, which is kept")
    parser.add_argument("--gb", type=float, default=4.3, help="size of the file, in GB")
    parser.add_argument("--devices", help="default: all GPUs")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--rows", help="rows to run, separated by commas (default: all)")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    devices = args.devices.split(",") if args.devices else [f"cuda:{i}" for i in range(gpus())]
    if args.child:
        for line in in_child(args.child[0], devices, Path(args.child[1])):
            print(line, flush=True)
        return 0
    ends = time.monotonic() + args.minutes * 60
    print(machine(), flush=True)
    file = args.folder / "big.safetensors"
    make_file(file, int(args.gb * GB))
    rows = {"pipes": pipes, "links": of_file("links", file), "sharded": of_file("sharded", file), "cpu": of_file("cpu", file)}
    rows |= {"weights": functools.partial(weights, args.gb), "resharded": of_file("resharded", file)}
    rows |= {"chain": chain, "peers": peers, "expandable": expandable}
    failed = False
    for name, row in rows.items():
        if args.rows and name not in args.rows.split(","):
            continue
        left = ends - time.monotonic()
        print(f"== {name}" + ("" if left > 5 else ": skipped, no time left"), flush=True)
        if left <= 5:
            continue
        try:
            for line in row(devices, min(left, 150)):
                print("  " + line, flush=True)
        except (RuntimeError, subprocess.TimeoutExpired, ImportError) as problem:
            failed = True
            print(f"  failed: {problem}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
