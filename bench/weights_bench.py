"""Measures weights loaded from one process into another's tensors, compared with a bare copy on the device (or, without a GPU, on the host).

    python bench/weights_bench.py [--device cuda:0] [--to cuda:0] [--gb 4] [--shape llama|moe|norms] [--loads 5] [--url unix:] [--snapshot 0]

"llama" has layers of few large matrices and two norms each, "moe" has many matrices of 4 MiB, "norms" has 5,000 vectors of 8 KiB. The first load
creates the plan and maps memory; later loads are what a trainer's engines experience. All values of the last load are compared. "update" is how
long a trainer waits.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from typing import Any

import numpy as np

import penstock
from penstock.weights import WeightsReceiver


def shapes(kind: str, nbytes: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of tensors with 16-bit elements."""
    if kind == "norms":
        return {f"{i}.norm": (4096,) for i in range(5000)}
    if kind == "moe":
        return {f"{i}.expert": (1024, 2048) for i in range(max(1, nbytes >> 22))}
    layer = {"q": (4096, 4096), "k": (1024, 4096), "v": (1024, 4096), "o": (4096, 4096), "up": (14336, 4096), "gate": (14336, 4096), "down": (4096, 14336)}
    layer |= {"norm": (4096,), "post_norm": (4096,)}
    count = max(1, nbytes // (2 * sum(int(np.prod(shape)) for shape in layer.values())))
    return {f"layers.{i}.{name}": shape for i in range(count) for name, shape in layer.items()}


def tensors(of: dict[str, tuple[int, ...]], device: str, value: int) -> dict[str, Any]:
    if device == "host":
        return {name: np.full(shape, value, "f2") for name, shape in of.items()}
    import torch

    return {name: torch.full(shape, value, dtype=torch.float16, device=device) for name, shape in of.items()}


def settle(device: str) -> None:
    if device != "host":
        import torch

        torch.cuda.synchronize(device)


def serve(arguments: argparse.Namespace, of: dict[str, tuple[int, ...]], talk: Any) -> None:
    weights = tensors(of, arguments.device, 0)
    with penstock.serve_weights(weights, arguments.url, snapshot=arguments.snapshot) as server:
        talk.send(server.url)
        for value in range(1, arguments.loads + 1):
            talk.recv()
            if not arguments.snapshot:
                server.pause()
            for each in weights.values():
                each += 1
            settle(arguments.device)
            began = time.perf_counter()
            server.update()
            settle(arguments.device)
            talk.send(time.perf_counter() - began)
        talk.recv()


def bare_copy(target: dict[str, Any], device: str, source_device: str) -> float:
    """Seconds, of the same tensors by the library that has them, between the same devices."""
    times = []
    source = {name: each.copy() if device == "host" else each.to(source_device if source_device != "host" else "cpu", copy=True) for name, each in target.items()}
    for _ in range(3):
        settle(device)
        began = time.perf_counter()
        if device == "host":
            for name, each in target.items():
                each[...] = source[name]
        else:
            import torch

            torch._foreach_copy_(list(target.values()), list(source.values()))
            settle(source_device)
        settle(device)
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="host", help="device that the weights are served from")
    parser.add_argument("--to", help="device that they are loaded into (default: the same)")
    parser.add_argument("--gb", type=float, default=4)
    parser.add_argument("--shape", choices=["llama", "moe", "norms"], default="llama")
    parser.add_argument("--loads", type=int, default=5)
    parser.add_argument("--url", default="unix:")
    parser.add_argument("--snapshot", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    to = arguments.to or arguments.device
    of = shapes(arguments.shape, int(arguments.gb * 1e9))
    spawn = multiprocessing.get_context("spawn")
    talk, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(arguments, of, there))
    process.start()
    target = tensors(of, to, -1)
    nbytes = sum(each.nbytes for each in target.values())
    copied = bare_copy(target, to, arguments.device)
    loads, updates = [], []
    with WeightsReceiver(talk.recv(), target) as receiver:
        for version in range(arguments.loads + 1):
            settle(to)
            began = time.perf_counter()
            assert receiver.load().version == version
            loads.append(time.perf_counter() - began)
            if version < arguments.loads:
                talk.send("go on")
                updates.append(talk.recv())
        channels = {choice.name for route in receiver.explain()[0].received for choice in route.channels if choice.chosen}
    talk.send("that is all")
    assert all(bool((each == arguments.loads).all()) for each in target.values()), "other values than were served"
    process.join()
    best = min(loads[1:])
    row = {"tensors": len(of), "bytes": nbytes, "first_s": loads[0], "load_s": best, "update_s": min(updates), "copy_s": copied, "channels": sorted(channels)}
    if arguments.json:
        print(json.dumps(row))
        return
    print(f"{len(of)} tensors, {nbytes / 1e9:.2f} GB, {arguments.device} to {to} by {', '.join(sorted(channels))}, snapshot={arguments.snapshot}")
    print(f"first load {loads[0] * 1e3:.1f} ms; later {best * 1e3:.1f} ms, {nbytes / best / 1e9:.1f} GB/s, {copied / best:.2f} of a bare copy")
    print(f"bare copy {copied * 1e3:.1f} ms, {nbytes / copied / 1e9:.1f} GB/s; update {min(updates) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
