#!/usr/bin/env python3
"""Runs MLPerf Storage's KV cache benchmark with its own file back end, and then with a penstock.kv.Store.

Usage: mlperf_kv_bench.py CHECKOUT FOLDER [--store-gib N] [OPTIONS OF THE BENCHMARK]

CHECKOUT is the folder kv_cache_benchmark of https://github.com/mlcommons/storage, which stays unchanged. Both back ends keep their values in FOLDER,
one after the other. The benchmark needs numpy and pyyaml. This example keeps all values on disk:

  mlperf_kv_bench.py storage/kv_cache_benchmark /mnt/nvme --model llama3.1-8b --gpu-mem-gb 0 --cpu-mem-gb 0 --generation-mode none --seed 42

Both back ends flush each write to the disk, and drop their files from the page cache before each read.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COLUMNS = {"read GiB": "total_read_gb", "written GiB": "total_write_gb"}
COLUMNS |= {f"{call} {part} ms": f"storage_{call}_{part}_ms" for call in ("read", "write") for part in ("p50", "p95")}


def backend_class(interface: Any, capacity_bytes: int) -> type:
    """Returns a back end with the benchmark's interface for storage."""
    import numpy
    from penstock import kv

    class PenstockBackend(interface):  # type: ignore[misc]
        def __init__(self, base_path: str) -> None:
            self.base_path = Path(base_path)
            self._store = kv.Store(self.base_path / "store", capacity_bytes, durable=True, direct=True)
            self._data = os.open(self.base_path / "store" / "data", os.O_RDONLY)
            self._arrays: dict[str, tuple[Any, Any]] = {}

        def write(self, key: str, data: Any) -> Any:
            start = time.perf_counter()
            self._store.put({key: data})
            end = time.perf_counter()
            self._arrays[key] = (data.shape, data.dtype)
            return interface.IOTiming(total=end - start, device=end - start, host=0.0)

        def read(self, key: str) -> Any:
            start = time.perf_counter()
            if key not in self._arrays:
                raise KeyError(key)
            os.posix_fadvise(self._data, 0, 0, os.POSIX_FADV_DONTNEED)
            before = time.perf_counter()
            data = numpy.empty(*self._arrays[key])
            if self._store.get({key: data}) != [True]:
                raise KeyError(key)
            end = time.perf_counter()
            return data, interface.IOTiming(total=end - start, device=end - before, host=before - start)

        def delete(self, key: str) -> None:
            self._arrays.pop(key, None)
            self._store.drop([key])

        def clear(self) -> None:
            for key in list(self._arrays):
                self.delete(key)

    return PenstockBackend


def run_benchmark(checkout: Path, is_penstock: bool, capacity_bytes: int) -> None:
    """Runs the benchmark's command line in this process."""
    sys.path.insert(0, str(checkout))
    from kv_cache import backends, cache, cli

    if is_penstock:
        cache.NVMeBackend = backend_class(backends.StorageBackend, capacity_bytes)
    cli.main()


def measured(told: argparse.Namespace, options: list[str], name: str) -> dict[str, Any]:
    """Runs the benchmark in a new process. Returns its statistics."""
    with tempfile.TemporaryDirectory(dir=told.folder) as folder, tempfile.NamedTemporaryFile(suffix=".json") as results:
        command = [sys.executable, __file__, str(told.checkout), folder, "--store-gib", str(told.store_gib), "--only", name, "--cache-dir", folder]
        command += ["--config", str(told.checkout / "config.yaml"), "--output", results.name, "--log-level", "ERROR", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        statistics: dict[str, Any] = json.loads(Path(results.name).read_text())["summary"]["cache_stats"]
        return statistics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store-gib", type=float, default=16, help="capacity of the store")
    parser.add_argument("--only", choices=("files", "penstock"), help=argparse.SUPPRESS)
    told, options = parser.parse_known_args()
    capacity_bytes = int(told.store_gib * (1 << 30))
    if told.only:
        sys.argv[1:] = options
        run_benchmark(told.checkout, told.only == "penstock", capacity_bytes)
        return
    options += ["--storage-capacity-gb", str(told.store_gib * 0.95)]  # so that the benchmark evicts values, not the store
    print(f"{'back end':10}" + "".join(f"{column:>15}" for column in COLUMNS))
    for name in ("files", "penstock"):
        statistics = measured(told, options, name)
        print(f"{name:10}" + "".join(f"{statistics.get(key, float('nan')):15,.2f}" for key in COLUMNS.values()), flush=True)


if __name__ == "__main__":
    main()
