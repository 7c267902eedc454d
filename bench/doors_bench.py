"""Measures how fast common programs load models into a GPU: transformers and the safetensors library, with and without Penstock in its place.

    python doors_bench.py --folder /dev/shm/doors --gb 8                 # on a GPU
    python doors_bench.py --folder /tmp/doors --device cpu --scale 0.02  # without one: only checks that it runs and that the values are right
    python doors_bench.py --folder /dev/shm/doors --gb 4 --device cpu cuda:0 --rows from_pretrained --ways library run --processes 7

Requires penstock, torch, safetensors, transformers and accelerate (without the last two, the transformers rows are skipped). If a machine has no
package installer, unpack the wheels into a folder, or install them there with pip, and add it to PYTHONPATH. Penstock's wheel must match the
interpreter (PYTHON=python3.12 tools/python_tests creates one in build/python/wheel).

Creates a Llama-like model of --gb times --scale gigabytes in three shards, unless the folder already contains one of that size. Each measurement is
a process that loads the model --loads times; imports and the creation of CUDA's context are not included. After the last load, every tensor is
compared with the files, using the library itself. Ways: "library" (without Penstock), "install" (penstock.safetensors.install()), "run"
(the same program, started with `penstock run`). The last column is the fraction of the speed that penstock.safetensors.torch.load_file() alone
reaches with the same files, in later loads. Exits with 1 if values were wrong or a measurement failed.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

SHARDS = 3
BLOCK_ELEMENTS = 32 << 20

# Each row: what a program does. Returns names and tensors.


def by_transformers(folder: str, files: list[str], device: str) -> dict[str, Any]:
    """AutoModelForCausalLM.from_pretrained(folder, device_map=device)"""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, device_map=device, dtype="auto")
    return dict(model.state_dict())


def by_state_dict(folder: str, files: list[str], device: str) -> dict[str, Any]:
    """{name: tensor.to(device) for name, tensor in load_file(file).items()}"""
    from safetensors.torch import load_file

    return {name: tensor.to(device) for file in files for name, tensor in load_file(file).items()}


def by_tensor(folder: str, files: list[str], device: str) -> dict[str, Any]:
    """file.get_tensor(name).to(device) for name in file.keys()"""
    from safetensors import safe_open

    found = {}
    for each in files:
        with safe_open(each, framework="pt") as file:
            for name in file.keys():
                found[name] = file.get_tensor(name).to(device)
    return found


def by_device(folder: str, files: list[str], device: str) -> dict[str, Any]:
    """load_file(file, device=device)"""
    from safetensors.torch import load_file

    return {name: tensor for file in files for name, tensor in load_file(file, device=device).items()}


def by_loader(folder: str, files: list[str], device: str) -> dict[str, Any]:
    """penstock.safetensors.torch.load_file(files, device)"""
    from penstock.safetensors.torch import load_file

    return dict(load_file(files, device))


ROWS: dict[str, Callable[[str, list[str], str], dict[str, Any]]] = {
    "loader": by_loader,
    "from_pretrained": by_transformers,
    "load_file().to": by_state_dict,
    "get_tensor().to": by_tensor,
    "load_file(device=)": by_device,
}
WAYS = ("library", "install", "run")


# --- the model


def config_of(nbytes: int) -> dict[str, Any]:
    """Returns the configuration of a Llama-like model with about this many bytes of BF16."""
    hidden = 4096 if nbytes >= 2 << 30 else 1024 if nbytes >= 64 << 20 else 256
    inner, vocabulary = hidden * 7 // 2, 32000 if hidden == 4096 else 4000
    layer = 2 * hidden * (2 * hidden + 2 * hidden // 4 + 3 * inner)
    layers = max(1, round((nbytes - 4 * hidden * vocabulary) / layer))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 256,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(config["num_hidden_layers"]):
        start = f"model.layers.{layer}."
        shapes[start + "self_attn.q_proj.weight"] = shapes[start + "self_attn.o_proj.weight"] = (hidden, hidden)
        shapes[start + "self_attn.k_proj.weight"] = shapes[start + "self_attn.v_proj.weight"] = (hidden // 4, hidden)
        shapes[start + "mlp.gate_proj.weight"] = shapes[start + "mlp.up_proj.weight"] = (inner, hidden)
        shapes[start + "mlp.down_proj.weight"] = (hidden, inner)
        shapes[start + "input_layernorm.weight"] = shapes[start + "post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def make_model(folder: Path, nbytes: int) -> None:
    """Creates the model. Each tensor is a different part of one block of random numbers."""
    import torch
    from safetensors.torch import save_file

    config = config_of(nbytes)
    if (folder / "config.json").exists() and json.loads((folder / "config.json").read_text()) == config:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    block = torch.randn(BLOCK_ELEMENTS, generator=torch.Generator().manual_seed(1)).bfloat16()
    shapes = shapes_of(config)
    total = sum(2 * torch.Size(shape).numel() for shape in shapes.values())
    weight_map: dict[str, str] = {}
    shards: list[dict[str, tuple[int, ...]]] = [{} for _ in range(SHARDS)]
    done = 0
    for name, shape in shapes.items():
        shards[min(SHARDS - 1, done * SHARDS // total)][name] = shape
        done += 2 * torch.Size(shape).numel()
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{SHARDS:05}.safetensors"
        tensors = {}
        for place, (name, shape) in enumerate(shard.items()):
            count = torch.Size(shape).numel()
            skip = (number * 7919 + place * 104729) % BLOCK_ELEMENTS
            repeats = (skip + count) // BLOCK_ELEMENTS + 1
            tensors[name] = block.repeat(repeats)[skip : skip + count].reshape(shape).clone()
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config))


def files_of(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("model-*.safetensors")))


# --- one process


def measure(row: str, way: str, folder: Path, device: str, loads: int) -> dict[str, Any]:
    import torch

    if way == "install":
        from penstock.safetensors import install

        install()
    if row == "from_pretrained":
        import transformers

        transformers.utils.logging.disable_progress_bar()
        import accelerate  # noqa: F401  # the time of importing is no part of a load
        import transformers.models.llama.modeling_llama  # noqa: F401
    import safetensors.torch  # noqa: F401

    if device != "cpu":
        torch.ones(1, device=device)
        torch.cuda.synchronize()
    files, seconds, found = files_of(folder), [], {}
    for _ in range(loads):
        found = {}
        gc.collect()
        began = time.perf_counter()
        found = ROWS[row](str(folder), files, device)
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    told = {"seconds": seconds, "bytes": sum(each.nbytes for each in found.values()), "wrong": wrong_of(found, files, device)}
    if way != "library":
        from penstock.safetensors import explain

        told["counts"] = explain().counts
        told["installed"] = explain().installed
    if device != "cpu":
        told["peak bytes"] = torch.cuda.max_memory_allocated(device)
    return told


def wrong_of(found: dict[str, Any], files: list[str], device: str) -> list[str]:
    """Returns the names of tensors that differ from what the library reads, or are not on the device."""
    import torch

    try:
        from penstock.safetensors.original import safe_open
    except ImportError:
        from safetensors import safe_open
    wrong = []
    names: set[str] = set()
    for each in files:
        with safe_open(each, framework="pt") as file:
            for name in file.keys():
                names.add(name)
                tensor = found.get(name)
                if tensor is None or tensor.device != torch.device(device) or not torch.equal(tensor.detach().cpu(), file.get_tensor(name)):
                    wrong.append(name)
    return wrong + sorted(found.keys() - names)


# --- all of them


def run(arguments: argparse.Namespace, device: str, row: str, way: str, loads: int) -> dict[str, Any]:
    """Runs one measurement in its own process."""
    words = [sys.executable, __file__, "--folder", str(arguments.folder), "--device", device, "--loads", str(loads), "--one", row, way]
    if way == "run":
        words = [sys.executable, "-m", "penstock", "run", "--no-audit", "--", *words]
    told = subprocess.run(words, capture_output=True, text=True)
    last = told.stdout.strip().rpartition("\n")[2]
    if told.returncode or not last.startswith("{"):
        return {"failed": (told.stderr.strip() or told.stdout.strip())[-2000:]}
    found: dict[str, Any] = json.loads(last)
    return found


def cool(folder: Path) -> None:
    """Drops the files from the page cache, as far as the kernel allows."""
    for each in files_of(folder):
        descriptor = os.open(each, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def warm(folder: Path) -> None:
    for each in files_of(folder):
        with open(each, "rb", buffering=0) as file:
            while file.read(16 << 20):
                pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder for the model, which is created if missing")
    parser.add_argument("--device", nargs="+", default=["cuda:0"], help="devices, which are measured one after another")
    parser.add_argument("--gb", type=float, default=8.0)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--loads", type=int, default=4, help="loads per process")
    parser.add_argument("--processes", type=int, default=1, help="processes per way, which take turns; the figures are medians")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--cold", action="store_true", help="load uncached files, once per process")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*arguments.one, arguments.folder, arguments.device[0], arguments.loads)))
        return 0
    rows = list(arguments.rows)
    if "from_pretrained" in rows and any(importlib.util.find_spec(each) is None for each in ("transformers", "accelerate")):
        print("from_pretrained is skipped: transformers or accelerate is not installed")
        rows.remove("from_pretrained")
    make_model(arguments.folder, int(arguments.gb * arguments.scale * 1e9))
    figures: list[dict[str, Any]] = []
    are_right = [report(arguments, device, ["loader", *(row for row in rows if row != "loader")], figures) for device in arguments.device]
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0 if all(are_right) else 1


def report(arguments: argparse.Namespace, device: str, rows: list[str], figures: list[dict[str, Any]]) -> bool:
    """Prints the rows of a device, and adds their figures. Returns False if values were wrong or a measurement failed."""
    nbytes = sum(os.path.getsize(each) for each in files_of(arguments.folder))
    loads = 1 if arguments.cold else arguments.loads
    state = "cold" if arguments.cold else "from the page cache"
    print(f"{nbytes / 1e9:.2f} GB in {SHARDS} files, to {device}, {state}; best of {max(1, loads - 1)} later loads, medians of {arguments.processes} processes")
    print(f"{'what':<20} {'way':<8} {'first s':>8} {'GB/s':>6} {'later s':>8} {'GB/s':>6} {'of loader':>9}")
    loader: float | None = None
    is_right = True
    for row in rows:
        ways: dict[str, list[dict[str, Any]]] = {way: [] for way in (["library"] if row == "loader" else arguments.ways)}
        for _ in range(arguments.processes):
            for way, told in ways.items():
                cool(arguments.folder) if arguments.cold else warm(arguments.folder)
                told.append(run(arguments, device, row, way, loads))
                figures.append({"device": device, "row": row, "way": way, **told[-1]})
        for way, told in ways.items():
            problem = next((each["failed"] for each in told if "failed" in each), None)
            if problem is not None:
                is_right = False
                print(f"{row:<20} {way:<8} failed: {problem}", flush=True)
                continue
            first = statistics.median(each["seconds"][0] for each in told)
            later = statistics.median(min(each["seconds"][1:], default=each["seconds"][0]) for each in told)
            loader = later if row == "loader" else loader
            share = "" if loader is None else f"{loader / later:9.2f}"
            print(f"{row:<20} {way:<8} {first:8.3f} {nbytes / first / 1e9:6.2f} {later:8.3f} {nbytes / later / 1e9:6.2f} {share}", end="")
            read = sum(each.get("counts", {}).get("bytes read into a GPU", 0) for each in told)
            print(f"  {read / (nbytes * loads * len(told)):4.0%} by Penstock" if way != "library" else "", end="")
            wrong = [name for each in told for name in each["wrong"]]
            print(f"  WRONG: {wrong[:3]}" if wrong else "", flush=True)
            is_right = is_right and not wrong
    return is_right


if __name__ == "__main__":
    sys.exit(main())
