#!/usr/bin/env python3
"""Measures how the ranks of one or two hosts load one model from a slow mount: bytes read, seconds and host memory, with and without Penstock.

    bench/ranks_bench.py                              8 ranks, one host and two, a 1.5 GB model, 10 ms, 300 MB/s
    bench/ranks_bench.py --hosts 1 --rows slices --device cuda --gb 40 --rate-mb 2000 --folder /dev/shm/ranks

The mount is bench/late_mount (build target penstock_late_mount; --server sets its path). A second host is a second mount of the same server, with
its own page cache and the same limit on bandwidth. Each rank is a process that imports everything, waits for the others, loads its part of a
Llama-like model and compares each value with the model's files. Rows:

    slices         safe_open(...).get_slice(name)[part].to(device, copy=True)
    transformers   AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_plan="auto"))
    vllm, sglang   the engine's own iterator and weight loaders, from the Python files in the folder that PENSTOCK_TEST_ENGINES names
    load_rank      penstock.safetensors.load_rank(); Penstock only

Ways: "original", "prefetch" (the engine's own), "run" (the same program, started with `penstock run`). Columns:

    read/need   bytes read from the mount, per byte of what the ranks of each host need
    pages/need  size of the pages that contain those bytes, which a page cache reads at least. Columns of a matrix begin and end inside pages
    seconds     until the last rank is ready
    x link      seconds / (bytes that the hosts' ranks need / rate)
    MiB/rank    the most memory of a rank, without mapped files, above what it had before; without a GPU, also without its tensors
    cached MiB  the page cache that the mount fills on each host
    reads       requests to the server
    CPU s       CPU time of all ranks together

Without a GPU (--device cpu), CPU memory stands for the memory of a GPU: Penstock reads the tensors that a program moves to "cpu". Exits with 1 if
values were wrong or a row failed. Requires penstock, torch, safetensors, and transformers for its row, in one environment, and /dev/fuse.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
SERVER = HERE.parent / "build/release/bench/penstock_late_mount"
ROWS: dict[str, tuple[str, ...]] = {
    "slices": ("original", "run"),
    "transformers": ("original", "run"),
    "vllm": ("original", "prefetch", "run"),
    "sglang": ("original", "prefetch", "run"),
    "load_rank": ("run",),
}
SHARDED = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "gate_proj": 0, "up_proj": 0, "o_proj": 1, "down_proj": 1, "lm_head": 0, "embed_tokens": 0}
WHOLE: set[str] = set()  # the tensors of SHARDED that every rank needs whole
MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


def dim_of(name: str) -> int | None:
    """Returns the dimension in which the ranks split a tensor; None: each needs all of it."""
    return next((dim for word, dim in SHARDED.items() if word in name and word not in WHOLE), None)


def part_of(shape: Any, dim: int, rank: int, world: int) -> tuple[slice, ...]:
    length = shape[dim] // world
    return (*[slice(None)] * dim, slice(rank * length, (rank + 1) * length))


# --- the model


def make_model(folder: Path, nbytes: int, hidden: int, shards: int) -> None:
    import torch
    from safetensors.torch import save_file

    inner, keys, vocabulary = hidden * 7 // 2, hidden // 4, 16384
    layers = max(1, round((nbytes - 4 * hidden * vocabulary) / (2 * hidden * (2 * hidden + 2 * keys + 3 * inner))))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "dtype": "bfloat16"}
    config |= {"num_hidden_layers": layers, "num_attention_heads": hidden // 64, "num_key_value_heads": keys // 64, "vocab_size": vocabulary}
    config |= {"tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    if (folder / "config.json").exists() and json.loads((folder / "config.json").read_text()) == config:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for each in folder.iterdir():
        each.unlink()
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(layers):
        start = f"model.layers.{layer}."
        shapes |= {start + f"self_attn.{each}_proj.weight": (keys if each in "kv" else hidden, hidden) for each in "qkvo"}
        shapes |= {start + f"mlp.{each}_proj.weight": (inner, hidden) for each in ("gate", "up")}
        shapes[start + "mlp.down_proj.weight"] = (hidden, inner)
        shapes |= {start + f"{each}_layernorm.weight": (hidden,) for each in ("input", "post_attention")}
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}
    total = sum(2 * torch.Size(shape).numel() for shape in shapes.values())
    random = torch.Generator().manual_seed(1)
    done, files = 0, [dict[str, Any]() for _ in range(shards)]
    weight_map = {}
    for name, shape in shapes.items():
        number = min(shards - 1, done * shards // total)
        files[number][name] = shape
        weight_map[name] = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        done += 2 * torch.Size(shape).numel()
    for number, mine in enumerate(files, 1):
        tensors = {name: torch.randint(-30000, 16000, shape, generator=random, dtype=torch.int16).view(torch.bfloat16) for name, shape in mine.items()}
        save_file(tensors, folder / f"model-{number:05}-of-{shards:05}.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config))


def files_of(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("model-*.safetensors")))


def needed_bytes(folder: Path, ranks: int, world: int) -> int:
    """Returns how many bytes the ranks of a host need."""
    total = 0
    for each in files_of(folder):
        with open(each, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, facts in header.items():
            if name != "__metadata__":
                start, end = facts["data_offsets"]
                total += (end - start) * (ranks if dim_of(name) is not None else world) // world
    return total


def page_bytes(folder: Path, first: int, ranks: int, world: int) -> int:
    """Returns the size of the pages that contain what a host's ranks need: the page cache reads at least these."""
    import numpy as np

    total = 0
    for each in files_of(folder):
        size = os.path.getsize(each)
        marks = np.zeros(size // PAGE + 2, np.int32)
        with open(each, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        for name, facts in header.items():
            if name == "__metadata__":
                continue
            start, end = (8 + length + offset for offset in facts["data_offsets"])
            dim = dim_of(name)
            rows = facts["shape"][0] if dim == 1 else 1
            row = (end - start) // rows
            starts = start + row * np.arange(rows) + (0 if dim is None else row * first // world)
            run = row if dim is None else row * ranks // world
            np.add.at(marks, starts // PAGE, 1)
            np.add.at(marks, (starts + run - 1) // PAGE + 1, -1)
        total += min(PAGE * int((np.cumsum(marks) > 0).sum()), size)
    return total


# --- the rows: what one rank does. Each function imports what it needs, and returns a function that loads.

Loaded = dict[str, Any]
Loader = Callable[[], Loaded]


def by_slices(way: str, folder: Path, device: str, rank: int, world: int) -> Loader:
    import safetensors

    def load() -> Loaded:
        found = {}
        for each in files_of(folder):
            with safetensors.safe_open(each, framework="pt") as file:
                for name in file.keys():
                    piece, dim = file.get_slice(name), dim_of(name)
                    found[name] = piece[... if dim is None else part_of(piece.get_shape(), dim, rank, world)].to(device, copy=True)
        return found

    return load


def by_transformers(way: str, folder: Path, device: str, rank: int, world: int) -> Loader:
    import transformers
    import transformers.models.llama.modeling_llama  # noqa: F401
    from transformers.distributed import DistributedConfig

    transformers.utils.logging.disable_progress_bar()

    def load() -> Loaded:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_plan="auto", tp_size=world), dtype="auto")
        state = model.state_dict()
        return {name: tensor.to_local() if hasattr(tensor, "to_local") else tensor for name, tensor in state.items()}

    return load


def by_engine(weights: Callable[[], Iterator[tuple[str, Any]]], sharded: Callable[[Any, Any, int], None], whole: Callable[[Any, Any], None], device: str, world: int) -> Loader:
    """Loads like the models of vLLM and SGLang: weight loaders narrow the tensors of an iterator, and copy them into parameters."""
    import torch

    def load() -> Loaded:
        found = {}
        for name, tensor in weights():
            shape, dim = list(tensor.shape), dim_of(name)
            if dim is not None:
                shape[dim] //= world
            found[name] = torch.empty(shape, dtype=tensor.dtype, device=device)
            whole(found[name], tensor) if dim is None else sharded(found[name], tensor, dim)
        return found

    return load


def by_vllm(way: str, folder: Path, device: str, rank: int, world: int) -> Loader:
    loaders = "vllm.model_executor.model_loader"
    utils = engine("vllm", [f"{loaders}.weight_utils", f"{loaders}.ep_weight_filter"], {"vllm": {"envs": SimpleNamespace(VLLM_USE_MODELSCOPE=False)}})
    utils._get_available_ram_bytes = lambda: 1 << 40
    utils.get_tensor_model_parallel_rank = lambda: rank
    strategy = "prefetch" if way == "prefetch" else None
    prefetch = {"safetensors_prefetch_num_threads": 8, "safetensors_prefetch_block_size": 16 << 20}  # the defaults
    return by_engine(
        lambda: utils.safetensors_weights_iterator(files_of(folder), False, strategy, **prefetch),
        lambda parameter, tensor, dim: utils.sharded_weight_loader(dim)(parameter, tensor),
        utils.default_weight_loader,
        device,
        world,
    )


def by_sglang(way: str, folder: Path, device: str, rank: int, world: int) -> Loader:
    utils = engine("sglang", ["sglang.srt.model_loader.weight_utils"], {"sglang.srt.utils": {"BAR_FORMAT": None}})
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    utils.get_parallel = lambda: SimpleNamespace(world_group=SimpleNamespace(local_rank=rank % local, local_size=local), launch_world_size=world)
    utils._PREFETCH_BLOCK_SIZE = 16 << 20  # its default

    def weights() -> Iterator[tuple[str, Any]]:
        if way == "prefetch":
            return utils.safetensors_weights_iterator(files_of(folder), prefetch=True)  # type: ignore[no-any-return]
        return utils.buffered_multi_thread_safetensors_weights_iterator(files_of(folder), max_workers=8)  # type: ignore[no-any-return]

    def sharded(parameter: Any, tensor: Any, dim: int) -> None:
        parameter.copy_(tensor.narrow(dim, rank * parameter.shape[dim], parameter.shape[dim]))  # as its layers do

    return by_engine(weights, sharded, utils.default_weight_loader, device, world)


def by_load_rank(way: str, folder: Path, device: str, rank: int, world: int) -> Loader:
    import torch

    from penstock.safetensors import load_rank

    return lambda: dict(load_rank(files_of(folder), device, shard=lambda name, shape: dim_of(name), group=torch.distributed.group.WORLD))


LOADERS: dict[str, Callable[[str, Path, str, int, int], Loader]] = {
    "slices": by_slices,
    "transformers": by_transformers,
    "vllm": by_vllm,
    "sglang": by_sglang,
    "load_rank": by_load_rank,
}


def engine(name: str, modules: list[str], names: dict[str, dict[str, Any]]) -> Any:
    """Imports modules of the engine for the rest of the process, and returns the first one."""
    sys.path.insert(0, str(HERE.parent / "python/tests"))
    from engines_files import modules_of

    return _engines.enter_context(modules_of(name, modules, names))[modules[0]]


_engines = contextlib.ExitStack()


# --- the processes of one host


def host(arguments: argparse.Namespace) -> int:
    """Imports, then runs the ranks of one host, each in a fork of this process."""
    row, way, numbers = arguments.one
    first, count = map(int, numbers.split("+"))
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    if arguments.device == "cpu" and way == "run":
        stand_in_for_a_gpu()
    if row == "transformers":
        import transformers.models.llama.modeling_llama  # noqa: F401
    os.environ.update(WORLD_SIZE=str(arguments.ranks), LOCAL_WORLD_SIZE=str(count))
    children = set()
    for rank in range(first, first + count):
        child = os.fork()
        if child == 0:
            one_rank(row, way, rank, arguments)
        children.add(child)
    failed = False
    while children:
        child, status = os.wait()
        children.discard(child)
        if status and not failed:
            failed = True
            for each in children:  # they would wait for the one that failed
                os.kill(each, signal.SIGKILL)
    return int(failed)


def one_rank(row: str, way: str, rank: int, arguments: argparse.Namespace) -> None:
    try:
        import torch

        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank % int(os.environ["LOCAL_WORLD_SIZE"])))
        device = arguments.device
        if device == "cuda":
            device = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
            torch.cuda.set_device(device)
            torch.ones(1, device=device)
        torch.distributed.init_process_group("gloo", init_method=f"file://{arguments.meeting}", rank=rank, world_size=arguments.ranks)
        load = LOADERS[row](way, arguments.folder, device, rank, arguments.ranks)
        say(ready=rank, pid=os.getpid())
        sys.stdin.buffer.read()  # the parent closes it for all ranks at once
        cpu = time.process_time()
        found = load()
        if device == "cpu":
            touch(found)
        else:
            torch.cuda.synchronize()
        ended = time.monotonic()
        say(rank=rank, ended=ended, cpu=time.process_time() - cpu, bytes=sum(each.nbytes for each in found.values()), wrong=wrong_of(found, arguments, rank), counts=counts_of(way))
        torch.distributed.barrier()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def stand_in_for_a_gpu() -> None:
    """Makes Penstock read the tensors that are moved to the CPU, as if it were a GPU."""
    import torch

    from penstock._patch import safe_open, tensor_in_file

    tensor_in_file._is_gpu = lambda device: device is not None
    tensor_in_file.gpus_may_be_used = lambda: True  # type: ignore[assignment]
    safe_open._known_gpu = lambda device: torch.device("cpu")


def touch(found: Loaded) -> None:
    """Reads tensors that are only mapped so far."""
    import torch

    for each in found.values():
        each.view(-1).view(torch.uint8)[::4096].max()


def say(**facts: Any) -> None:
    os.write(1, (json.dumps(facts) + "\n").encode())


def counts_of(way: str) -> dict[str, int]:
    if way != "run":
        return {}
    from penstock.safetensors import explain

    return dict(explain().counts)


def wrong_of(found: Loaded, arguments: argparse.Namespace, rank: int) -> list[str]:
    """Returns the names of tensors that differ from the model's files, which are not read through the mount."""
    import torch

    try:
        from penstock.safetensors.original import safe_open
    except ImportError:
        from safetensors import safe_open
    wrong, names = [], set()
    for each in files_of(arguments.model):
        with safe_open(each, framework="pt") as file:
            for name in file.keys():
                names.add(name)
                piece, tensor = file.get_slice(name), found.get(name)
                dim = dim_of(name)
                if tensor is not None and list(tensor.shape) == piece.get_shape():
                    dim = None  # transformers keeps all of some tensors
                expected = piece[... if dim is None else part_of(piece.get_shape(), dim, rank, arguments.ranks)]
                if tensor is None or not torch.equal(tensor.cpu().view(torch.int16), expected.view(torch.int16)):
                    wrong.append(name)
    return wrong + sorted(found.keys() - names)


# --- all of them


@contextlib.contextmanager
def mounted(arguments: argparse.Namespace, hosts: int) -> Iterator[list[Path]]:
    with tempfile.TemporaryDirectory(prefix="penstock-ranks-") as folder:
        points = [Path(folder, f"host-{number}") for number in range(hosts)]
        for each in points:
            each.mkdir()
        words = [str(arguments.server), str(points[0]), "0", str(int(arguments.latency_ms * 1000)), "0", "0", f"folder={arguments.model}"]
        words += [f"rate={arguments.rate_mb * 1e6:.0f}", *(f"mount={each}" for each in points[1:])]
        process = subprocess.Popen(words)
        try:
            while process.poll() is None and not all((each / "config.json").exists() for each in points):
                time.sleep(0.01)
            yield points
        finally:
            for each in points:
                subprocess.run(["umount", "-l", str(each)] if os.geteuid() == 0 else ["fusermount3", "-u", "-z", str(each)], check=False)
            process.terminate()
            process.wait()


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[list[str]]]:
    """Creates a network namespace for each of two hosts, and a link between them. Yields the command prefix that runs a program in each."""
    names = [f"penstock-ranks-{os.getpid()}-{number}" for number in range(count)]
    commands = [f"netns add {each}" for each in names]
    commands += [f"link add ranks0 netns {names[0]} type veth peer name ranks0 netns {names[-1]}"]
    for number, name in enumerate(names):
        commands += [f"-n {name} address add 10.99.0.{number + 1}/24 dev ranks0", f"-n {name} link set ranks0 up", f"-n {name} link set lo up"]
    try:
        for each in commands:
            subprocess.run(["ip", *each.split()], check=True)
        yield [["ip", "netns", "exec", each, "env", "GLOO_SOCKET_IFNAME=ranks0"] for each in names]
    finally:
        for each in names:
            subprocess.run(["ip", "netns", "delete", each], check=False)


def memory_of(pid: int) -> int:
    """Returns the bytes of a process's memory that belong to no file."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(("RssAnon:", "RssShmem:")))
    return 0


def cached_bytes(path: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    size = os.path.getsize(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as memory:
        pages = (ctypes.c_ubyte * ((size + 4095) // 4096))()
        start = ctypes.c_char.from_buffer(memory)
        libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages)
        del start
        return 4096 * sum(each & 1 for each in pages)


def run(arguments: argparse.Namespace, row: str, way: str, hosts: int) -> dict[str, Any]:
    local = arguments.ranks // hosts
    with mounted(arguments, hosts) as points, namespaces(hosts) if arguments.namespaces and hosts == 2 else contextlib.nullcontext([[]] * hosts) as starts:
        processes = []
        for number, point in enumerate(points):
            words = [sys.executable, __file__, "--folder", str(point), "--model", str(arguments.model), "--device", arguments.device, "--ranks", str(arguments.ranks)]
            words += ["--meeting", str(points[0].parent / "meeting"), "--whole", *arguments.whole, "--one", row, way, f"{number * local}+{local}"]
            if way == "run":
                words = [sys.executable, "-m", "penstock", "run", "--no-audit", "--", *words]
            words = starts[number] + words
            environment = os.environ | {"TQDM_DISABLE": "1"}
            processes.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment))
        try:
            return measured(arguments, points, processes)
        finally:
            for each in processes:
                each.kill()
                each.wait()


def lines_of(process: Any, count: int) -> list[dict[str, Any]]:
    """Returns the next lines of JSON; fewer if the process ended."""
    return [json.loads(line) for _, line in zip(range(count), iter(process.stdout.readline, ""))]


def measured(arguments: argparse.Namespace, points: list[Path], processes: list[Any]) -> dict[str, Any]:
    local = arguments.ranks // len(points)
    pids = [line["pid"] for each in processes for line in lines_of(each, local)]
    if len(pids) < arguments.ranks:
        return {"failed": "a rank did not start"}  # run() ends the others
    counted = [sum(int(os.getxattr(each, "user.read_bytes")) for each in files_of(point)) for point in points]
    before = [memory_of(pid) for pid in pids]
    most = list(before)
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            most[:] = [max(old, memory_of(pid)) for old, pid in zip(most, pids)]

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    for each in processes:
        each.stdin.close()
    lines = [line for each in processes for line in lines_of(each, local)]
    stop.set()
    watcher.join()
    if len(lines) < arguments.ranks:
        return {"failed": "a rank failed"}
    after = [sum(int(os.getxattr(each, "user.read_bytes")) for each in files_of(point)) for point in points]
    reads = sum(int(os.getxattr(each, "user.reads")) for point in points for each in files_of(point))
    cached = [sum(map(cached_bytes, files_of(point))) for point in points]
    need = needed_bytes(arguments.model, local, arguments.ranks)
    tensors = {each["rank"]: each["bytes"] if arguments.device == "cpu" else 0 for each in lines}
    seconds = max(each["ended"] for each in lines) - began
    return {
        "read per need": max(end - start for start, end in zip(counted, after)) / need,
        "pages per need": sum(page_bytes(arguments.model, number * local, local, arguments.ranks) for number in range(len(points))) / len(points) / need,
        "seconds": seconds,
        "of link": seconds / (need * len(points) / (arguments.rate_mb * 1e6)),
        "memory": max(peak - start - tensors[rank] for rank, (start, peak) in enumerate(zip(before, most))),
        "cached": max(cached),
        "reads": reads,
        "cpu": sum(each["cpu"] for each in lines),
        "wrong": sorted({name for each in lines for name in each["wrong"]}),
        "counts": lines[0]["counts"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/penstock-ranks"), help="folder for the model, which is created if missing")
    parser.add_argument("--gb", type=float, default=1.5)
    parser.add_argument("--hidden", type=int, default=2048, help="hidden size of the model, a multiple of 64 x 4 x ranks")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--latency-ms", type=float, default=10)
    parser.add_argument("--rate-mb", type=float, default=300, help="MB/s of all hosts together")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--ways", nargs="+", choices=("original", "prefetch", "run"), default=["original", "prefetch", "run"])
    parser.add_argument("--whole", nargs="*", choices=SHARDED, default=[], help="tensors that every rank loads whole, such as k_proj v_proj")
    parser.add_argument("--namespaces", action="store_true", help="run the two hosts in network namespaces (needs root); the mount does not use their network")
    parser.add_argument("--server", type=Path, default=SERVER)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    WHOLE.update(arguments.whole)
    if arguments.one:
        return host(arguments)
    arguments.model = arguments.folder.resolve()
    make_model(arguments.model, int(arguments.gb * 1e9), arguments.hidden, arguments.shards)
    nbytes = sum(map(os.path.getsize, files_of(arguments.model)))
    print(f"{nbytes / 1e9:.2f} GB in {arguments.shards} files, {arguments.ranks} ranks, {arguments.latency_ms:g} ms, {arguments.rate_mb:g} MB/s, to {arguments.device}")
    print(f"{'hosts':<6}{'row':<13} {'way':<9}{'read/need':>10}{'pages/need':>12}{'seconds':>9}{'x link':>8}{'MiB/rank':>10}{'cached MiB':>11}{'reads':>9}{'CPU s':>7}")
    figures, failed = [], False
    for hosts in arguments.hosts:
        for row in arguments.rows:
            if row in ("vllm", "sglang") and not Path(os.environ.get("PENSTOCK_TEST_ENGINES", ""), row, "__init__.py").exists():
                print(f"{hosts:<6}{row:<13} skipped: it is not in the folder PENSTOCK_TEST_ENGINES")
                continue
            for way in (each for each in ROWS[row] if each in arguments.ways):
                found = run(arguments, row, way, hosts)
                figures.append({"hosts": hosts, "row": row, "way": way, **found})
                print(f"{hosts:<6}{row:<13} {way:<9}", end="")
                if "failed" in found:
                    failed = True
                    print(f" {found['failed']}", flush=True)
                    continue
                print(f"{found['read per need']:10.3f}{found['pages per need']:12.3f}{found['seconds']:9.2f}{found['of link']:8.2f}{found['memory'] / MIB:10.0f}", end="")
                print(f"{found['cached'] / MIB:11.0f}{found['reads']:9}{found['cpu']:7.1f}  {'WRONG: ' + str(found['wrong'][:3]) if found['wrong'] else ''}", flush=True)
                failed = failed or bool(found["wrong"])
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
