#!/usr/bin/env python3
"""Measures the KV stores that Penstock adds to vLLM and SGLang, and those engines' own file stores, on the same blocks.

  tools/fetch_engines --folder engines vllm sglang
  bench/kv_engines_bench.py vllm engines --folder /mnt/nvme
  bench/kv_engines_bench.py vllm engines --folder /mnt/nvme --device cuda:0
  bench/kv_engines_bench.py sglang engines --folder /mnt/nvme --json FILE

ENGINES is a folder with the files of the engines' wheels. The benchmark runs the engines' own classes: from vLLM, the factories of secondary tiers and
specs and the tier "fs"; from SGLang, the factory of storage back ends, the back end "file" and the host pool. Neither engine nor its other
dependencies need to be installed.

Blocks have 16 tokens of a model with 8 billion parameters (32 layers, 8 heads of keys and values, 128 numbers of 2 bytes), 2 MiB per block. vLLM
stores and loads the blocks of one request as one job. Its KV cache, which PenstockSpec and "penstock.kv" use, has one tensor per layer, in host memory
or on --device. With --device, tiers use pinned host memory, and one cudaMemcpy2DAsync() per layer and job copies blocks between it and the KV cache,
instead of vLLM's compiled copy. SGLang's cache controller passes at most 128 pages per call. "penstock.kv" rows move the same
blocks in one `put()` or `get()` call, which is the upper limit for Penstock's stores in engines.

The stores are measured in turn, --repeat times, in reverse order every second time, because a store is slower if the one before it freed no page
cache. The best run counts. "cold" drops the files from the page cache before each run. GB/s are 10^9
bytes per second. The loaded bytes are compared. Requires PyTorch, pytest, tqdm and the package penstock.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy

TESTS = Path(__file__).resolve().parent.parent / "python" / "tests"
BLOCK_BYTES = 2 << 20
LAYERS = 32
PAGE_BYTES = BLOCK_BYTES // LAYERS


def drop_from_cache(folder: Path) -> None:
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Store:
    """A store under test. `place` is "store" or "load": the first half of the blocks in memory is stored, and loaded into the second half."""

    def move(self, place: str) -> None:
        raise NotImplementedError

    def look_up(self) -> None:
        """Looks up each block once."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


Makers = dict[str, Callable[[Path], Store]]


class KvStore(Store):
    """`arrays`: the pieces of the blocks, one row per block in each array."""

    def __init__(self, folder: Path, arrays: list[Any]) -> None:
        from penstock import kv

        count = len(arrays[0]) // 2
        self._store = kv.Store(folder / "kv", capacity_bytes=(count + 8) * BLOCK_BYTES)
        self._keys = [number.to_bytes(32, "big") for number in range(count)]
        rows = {"store": range(count), "load": range(count, 2 * count)}
        self._blocks = {place: [[array[row] for array in arrays] for row in numbers] for place, numbers in rows.items()}

    def move(self, place: str) -> None:
        items = list(zip(self._keys, self._blocks[place]))
        assert all(self._store.put(items) if place == "store" else self._store.get(items))

    def look_up(self) -> None:
        assert all(self._store.exists(self._keys))

    def close(self) -> None:
        self._store.close()


# --- vLLM


class Tier(Store):
    """A secondary tier, called like vLLM's scheduler calls it. `batches`: the blocks of each request."""

    def __init__(self, vllm: Any, settings: dict[str, Any], memory: Any, batches: list[list[int]]) -> None:
        self._vllm = vllm
        self._batches = batches
        self._half = len(memory) // 2
        self._keys = vllm.keys_of(self._half)
        events = SimpleNamespace(enable_kv_cache_events=False)
        spec = SimpleNamespace(config=vllm.config_of(vllm), blocks_per_chunk=1, kv_events_config=events)
        self._tier = vllm.SecondaryTierFactory.create_secondary_tier(settings, memoryview(memory), spec)
        self._request = vllm.ReqContext("a request")

    def move(self, place: str) -> None:
        is_load = place == "load"
        for number, blocks in enumerate(self._batches):
            rows = numpy.array(blocks, numpy.int32) + is_load * self._half
            keys = [self._keys[block] for block in blocks]
            job = self._vllm.TransferJob(job_id=number, keys=keys, chunk_ids=rows, is_promotion=is_load, req_context=self._request)
            (self._tier.submit_load if is_load else self._tier.submit_store)(job)
        results: list[Any] = []
        while len(results) < len(self._batches):
            results += self._tier.get_finished_jobs()
            time.sleep(0.0002)  # the engine's other work
        assert all(result.success for result in results)

    def look_up(self) -> None:
        missing, end = self._keys, self._vllm.ScheduleEndContext([], [])
        while missing:
            missing = [key for key in missing if self._tier.lookup(key, self._request) is not self._vllm.LookupResult.HIT]
            self._tier.on_schedule_end(end)
        self._tier.on_request_finished(self._request)

    def close(self) -> None:
        self._tier.shutdown()


class TierBelowGpu(Tier):
    """A secondary tier with vLLM's CPU tier in front of it. `layers`: the KV cache."""

    def __init__(self, vllm: Any, settings: dict[str, Any], memory: Any, batches: list[list[int]], layers: list[Any]) -> None:
        import torch

        super().__init__(vllm, settings, memory, batches)
        self._memory = memory
        self._layers = layers
        self._device = layers[0].device
        self._cuda = ctypes.CDLL(f"libcudart.so.{(torch.version.cuda or '').partition('.')[0]}")  # PyTorch's
        self._synchronize = lambda: torch.cuda.synchronize(self._device)

    def _copy(self, place: str) -> None:
        first = self._half if place == "load" else 0
        kinds = {"store": 2, "load": 1}  # cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice
        for blocks in self._batches:
            row = first + blocks[0]
            for number, layer in enumerate(self._layers):
                host = (self._memory.ctypes.data + row * BLOCK_BYTES + number * PAGE_BYTES, BLOCK_BYTES)
                gpu = (layer[row].data_ptr(), PAGE_BYTES)
                (to, to_pitch), (from_, from_pitch) = (host, gpu) if place == "store" else (gpu, host)
                numbers = [ctypes.c_size_t(each) for each in (to_pitch, from_pitch, PAGE_BYTES, len(blocks))]
                arguments = [ctypes.c_void_p(to), numbers[0], ctypes.c_void_p(from_), *numbers[1:], kinds[place], None]
                assert self._cuda.cudaMemcpy2DAsync(*arguments) == 0
        self._synchronize()

    def move(self, place: str) -> None:
        if place == "store":
            self._copy(place)
        super().move(place)
        if place == "load":
            self._copy(place)


class Spec(Store):
    """PenstockSpec, called as vLLM's connector calls its manager and worker."""

    def __init__(self, vllm: Any, folder: Path, layers: list[Any], batches: list[list[int]]) -> None:
        self._vllm = vllm
        self._batches = batches
        self._half = len(layers[0]) // 2
        self._keys = vllm.keys_of(self._half)
        settings = {"folder": str(folder / "kv"), "capacity_bytes": (self._half + 8) * BLOCK_BYTES}
        changes = {"world_size": 1, "tp_size": 1, "worker_kv_bytes_per_block": BLOCK_BYTES, "canonical_layout": False, "replicated_layout": False}
        config = vllm.config_of(vllm, **changes, extra_config={"spec_name": "PenstockSpec", "penstock": settings})
        spec = vllm.OffloadingSpecFactory.create_spec(config)
        tensors = [vllm.CanonicalKVCacheTensor(layer, PAGE_BYTES) for layer in layers]
        refs = [vllm.CanonicalKVCacheRef(number, PAGE_BYTES) for number in range(len(layers))]
        self._worker = spec.get_worker(vllm.CanonicalKVCaches(tensors, [refs]))
        self._manager = spec.get_manager()
        self._request = vllm.ReqContext("a request")
        for number, key in enumerate(self._keys):
            self._request.set_offload_key_position(key, 16 * (number + 1))

    def move(self, place: str) -> None:
        request, moved = self._request, 0
        for number, blocks in enumerate(self._batches):
            keys, first = [self._keys[block] for block in blocks], self._half if place == "load" else 0
            gpu = self._vllm.GPULoadStoreSpec([first + block for block in blocks], [len(blocks)], [0])
            if place == "store":
                self._worker.submit_store(number, gpu, self._manager.prepare_store(keys, request).store_spec)
            else:
                self._worker.submit_load(number, self._manager.prepare_load(keys, request), gpu)
        finished = 0
        while finished < len(self._batches):
            for result in self._worker.get_finished():
                assert result.success
                finished, moved = finished + 1, moved + result.transfer_size
            time.sleep(0.0002)  # the engine's other work
        assert moved == self._half * BLOCK_BYTES
        self._manager.complete_store(self._keys, request)
        self._manager.on_request_finished(request)

    def look_up(self) -> None:
        assert all(self._manager.lookup(key, self._request) is self._vllm.LookupResult.HIT for key in self._keys)
        self._manager.on_schedule_end(None)

    def close(self) -> None:
        self._manager.shutdown()
        self._worker.shutdown()


@contextlib.contextmanager
def vllm_stores(count: int, requests: int, device: str) -> Iterator[tuple[list[Any], Makers]]:
    import engines_files
    import test_vllm_gpu_spec as spec_tests
    import test_vllm_kv_tier as tests
    import torch

    tiering = f"{tests.OFFLOAD}.tiering"
    real = [name for name in dict.fromkeys(spec_tests.REAL + tests.REAL) if engines_files.has(name)]
    real += [f"{tiering}.fs.{name}" for name in ("manager", "io", "thread_pool")] + [f"{tiering}.async_lookup", f"{tests.OFFLOAD}.file_mapper"]
    if list(Path(engines_files.FOLDER, "vllm").glob("fs_io_C*.so")):
        real.append("vllm.fs_io_C")
    else:
        sys.modules["vllm.fs_io_C"] = None  # type: ignore[assignment]  # as if vLLM had been installed without it
        print("vLLM's compiled module fs_io_C is missing, so the fs tier is slower here than in vLLM")
    layouts = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping"
    names = {"vllm": {"__version__": "of the folder"}, layouts: {"canonical_format_id": lambda *_: "x"}}
    memory = numpy.frombuffer(mmap.mmap(-1, 2 * count * BLOCK_BYTES), numpy.uint8).reshape(2 * count, BLOCK_BYTES)  # aligned, as in vLLM
    if device == "cpu":
        layers = list(torch.from_numpy(memory).view(torch.int8).split(PAGE_BYTES, dim=1))
    else:
        assert int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0  # vLLM pins its CPU tier in the same way
        layers = [torch.zeros((2 * count, PAGE_BYTES), dtype=torch.int8, device=device) for _ in range(LAYERS)]
    batches = [list(range(first, first + count // requests)) for first in range(0, count, count // requests)]
    with engines_files.modules_of("vllm", real, names) as found:
        # The last module's names take precedence: tiers and connectors have classes with the same names.
        order = sorted(found, key=lambda name: ".kv_connector." not in name)
        vllm = tests.registered([found[name] for name in order])
        vllm.config_of, vllm.keys_of = tests.config_of, tests.keys_of

        def tier(settings: dict[str, Any]) -> Store:
            return Tier(vllm, settings, memory, batches) if device == "cpu" else TierBelowGpu(vllm, settings, memory, batches, layers)

        def fs(folder: Path) -> Store:
            return tier({"type": "fs", "root_dir": str(folder)})

        def penstock(folder: Path) -> Store:
            return tier({"type": "penstock", "folder": str(folder / "kv"), "capacity_bytes": (count + 8) * BLOCK_BYTES})

        def spec(folder: Path) -> Store:
            return Spec(vllm, folder, layers, batches)

        yield layers, {"vLLM fs": fs, "vLLM penstock": penstock, "vLLM PenstockSpec": spec}
    if device != "cpu":
        torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)


# --- SGLang


class BackEnd(Store):
    """A storage back end, called by the methods of SGLang's cache controller. `interface`: "v1" or "flat", the older one."""

    def __init__(self, sglang: Any, pool: Any, name: str, extra: dict[str, Any], interface: str, count: int) -> None:
        class Controller(sglang.HiCacheController):  # type: ignore[misc]
            def __init__(self) -> None:
                self.page_size = pool.page_size
                self.storage_host_pool = pool
                self.prefetch_sync_queue = queue.SimpleQueue[Any]()

        config = sglang.HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "a/model", extra_config=extra)
        self._back_end = sglang.StorageBackendFactory.create_backend(name, config, pool)
        self._back_end.register_mem_pool_host(pool)
        self._controller = Controller()
        self._controller.storage_backend = self._back_end
        calls = ("_page_set_zero_copy", "_page_get_zero_copy") if interface == "v1" else ("_generic_page_set", "_generic_page_get")
        self._controller.page_set_func, self._controller.page_get_func = (getattr(self._controller, call) for call in calls)
        self._hashes = [number.to_bytes(32, "big").hex() for number in range(count)]
        self._slots = torch_slots(count, pool.page_size)
        self._most = sglang.STORAGE_BATCH_SIZE

    def move(self, place: str) -> None:
        work = SimpleNamespace(hash_value=self._hashes, host_indices=self._slots[place], prefix_keys=None, completed_tokens=0, pool_transfers=None)
        vars(work).update(request_id="a request", is_terminated=lambda: False)
        if place == "store":
            self._controller._page_backup(work)
            assert work.completed_tokens == len(work.host_indices)
        else:
            assert self._controller._page_transfer(work) == len(self._hashes)

    def look_up(self) -> None:
        for first in range(0, len(self._hashes), self._most):
            hashes = self._hashes[first : first + self._most]
            assert self._back_end.batch_exists(hashes) == len(hashes)

    def close(self) -> None:
        getattr(self._back_end, "close", lambda: None)()


def torch_slots(count: int, page: int) -> dict[str, Any]:
    import torch

    return {"store": torch.arange(count * page), "load": torch.arange(count * page, 2 * count * page)}


@contextlib.contextmanager
def sglang_stores(count: int, requests: int, device: str) -> Iterator[tuple[list[Any], Makers]]:
    import sglang_files
    import torch

    with sglang_files.modules() as sglang:
        pool = sglang_files.host_pool(sglang, 2 * count, "page_first")
        arrays = [keys_or_values.view(torch.uint8).numpy().reshape(-1, BLOCK_BYTES // 2)[: 2 * count] for keys_or_values in pool.kv_buffer]

        def file(folder: Path) -> Store:
            return BackEnd(sglang, pool, "file", {"file_storage_path": str(folder)}, "flat", count)

        def fast_file(folder: Path) -> Store:
            return BackEnd(sglang, pool, "fast_file", {"storage_dir": str(folder)}, "v1", count)

        def penstock(interface: str) -> Callable[[Path], Store]:
            def make(folder: Path) -> Store:
                store = {"folder": str(folder / "kv"), "capacity_bytes": (count + 8) * BLOCK_BYTES}
                extra = {"backend_name": "penstock", "module_path": "penstock.sglang", "class_name": "PenstockHiCache", "store": store}
                return BackEnd(sglang, pool, "dynamic", {**extra, "interface_v1": int(interface == "v1")}, interface, count)

            return make

        fast = {"SGLang fast_file": fast_file} if sglang.has_fast_file else {}
        yield arrays, {"SGLang file": file, **fast, "SGLang penstock v1": penstock("v1"), "SGLang penstock flat": penstock("flat")}


ENGINES = {"vllm": vllm_stores, "sglang": sglang_stores}

# --- measuring


def random_bytes(like: Any, seed: int) -> Any:
    """Returns a NumPy array if `like` is one, else a tensor."""
    values = numpy.random.default_rng(seed).integers(0, 256, tuple(like.shape), numpy.uint8)
    if isinstance(like, numpy.ndarray):
        return values
    import torch

    return torch.from_numpy(values.view(numpy.int8))


def run_of(store: Store, place: str, total: int) -> dict[str, float]:
    cpu, begin = time.process_time(), time.perf_counter()
    store.move(place)
    seconds = time.perf_counter() - begin
    return {"gb_per_s": total / seconds / 1e9, "cpu_s_per_gb": (time.process_time() - cpu) / total * 1e9}


def measure(make: Callable[[Path], Store], where: Path | None, arrays: list[Any], best: dict[str, dict[str, float]]) -> None:
    """Measures a new store once, and keeps the better figures."""
    half = len(arrays[0]) // 2
    total = half * BLOCK_BYTES
    folder = Path(tempfile.mkdtemp(dir=where))
    try:
        store = make(folder)
        try:
            runs = {"store": run_of(store, "store", total)}
            for array in arrays:
                array[half:] = 0
            drop_from_cache(folder)
            runs["load cold"] = run_of(store, "load", total)
            assert all((array[:half] == array[half:]).all() for array in arrays), "the bytes are wrong"
            runs["load hot"] = max((run_of(store, "load", total) for _ in range(2)), key=lambda run: run["gb_per_s"])
            begin = time.perf_counter()
            store.look_up()
            runs["lookup"] = {"us": (time.perf_counter() - begin) / half * 1e6}
        finally:
            store.close()
    finally:
        shutil.rmtree(folder)
    for name, run in runs.items():
        is_better = name not in best or (run["us"] < best[name]["us"] if name == "lookup" else run["gb_per_s"] > best[name]["gb_per_s"])
        if is_better:
            best[name] = run


def row_of(name: str, figures: dict[str, dict[str, float]]) -> str:
    parts = [f"{part} {run['gb_per_s']:5.2f} GB/s {run['cpu_s_per_gb']:.2f} CPU s/GB" for part, run in figures.items() if part != "lookup"]
    return f"{name:20} " + "   ".join([*parts, f"lookup {figures['lookup']['us']:5.1f} us"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("files", type=Path, metavar="ENGINES", help="folder with the files of the engines' wheels")
    parser.add_argument("--folder", type=Path, help="folder for the stores (default: a temporary one)")
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--device", default="cpu", help="vLLM: the device of the KV cache, such as cuda:0")
    parser.add_argument("--requests", type=int, default=1, help="vLLM: how many requests the blocks belong to")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["PENSTOCK_TEST_ENGINES"] = str(options.files.resolve())
    sys.path.insert(0, str(TESTS))
    import pytest

    try:
        with ENGINES[options.engine](options.blocks, options.requests, options.device) as (arrays, stores):
            for number, array in enumerate(arrays):
                half = array[: len(array) // 2]
                half[:] = random_bytes(half, number)
            stores = {"penstock.kv": lambda folder: KvStore(folder, arrays), **stores}
            best: dict[str, dict[str, dict[str, float]]] = {name: {} for name in stores}
            for turn in range(options.repeat):
                for name, make in list(stores.items())[:: -1 if turn % 2 else 1]:
                    measure(make, options.folder, arrays, best[name])
    except pytest.skip.Exception as missing:
        print(f"kv_engines_bench: {missing}")
        return 1
    print(f"{options.blocks} blocks of {BLOCK_BYTES >> 20} MiB" + (f" of {options.requests} requests on {options.device}" if options.engine == "vllm" else ""))
    for name, figures in best.items():
        print(row_of(name, figures))
    if options.json:
        rows = [{"store": name, "blocks": options.blocks, "requests": options.requests, **figures} for name, figures in best.items()]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
