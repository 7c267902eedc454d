"""Writes a zarr array and reads it back, with Penstock's GDSStore and with zarr's own store, and prints the speeds of both.

    python bench/kvikio/zarr_io.py --nbytes "1 GiB" --chunksize "16 MiB" --dir /mnt/nvme

It takes the same options as KvikIO's benchmark of the same name. Requires zarr.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import warnings
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import utils

from penstock import kvikio


def array_like(zarr: Any, store: Any, shape: Any, chunks: Any, dtype: Any) -> Any:
    """Creates an uncompressed array of this shape."""
    return zarr.create_array(store, shape=shape, chunks=chunks, dtype=dtype, compressors=None, filters=None)


def on_gpu(xp: Any) -> contextlib.AbstractContextManager[Any]:
    """Makes zarr return CuPy arrays during the block, if the benchmark uses CuPy."""
    import zarr

    return zarr.config.enable_gpu() if xp.__name__ == "cupy" else contextlib.nullcontext()


def run_kvikio(args: Any) -> tuple[float, float]:
    """Measures GDSStore."""
    from penstock.zarr import GDSStore

    xp = utils.array_module()
    with on_gpu(xp):
        return _roundtrip(args, GDSStore(str(_emptied(args.dir / "kvikio"))), xp, of_gpu=True)


def run_posix(args: Any) -> tuple[float, float]:
    """Measures zarr's own store, with a copy to or from the GPU."""
    from zarr.storage import LocalStore

    folder = str(_emptied(args.dir / "posix"))
    return _roundtrip(args, LocalStore(folder), utils.array_module(), of_gpu=False)


API: dict[str, utils.Roundtrip] = {"kvikio": run_kvikio, "posix": run_posix}


def _roundtrip(args: Any, store: Any, xp: Any, of_gpu: bool) -> tuple[float, float]:
    import zarr

    source = xp.random.random(args.nbytes // args.dtype.itemsize).astype(args.dtype)
    if args.drop_vm_cache:
        utils.drop_vm_cache()
    start = perf_counter()
    array = array_like(zarr, store, source.shape, (args.chunksize // args.dtype.itemsize,), args.dtype)
    array[:] = source if of_gpu or xp is np else source.get()
    os.sync()
    wrote = perf_counter() - start
    if args.drop_vm_cache:
        utils.drop_vm_cache()
    start = perf_counter()
    back = xp.asarray(array[:])
    read = perf_counter() - start
    if not bool((back == source).all()):
        raise RuntimeError("the data read differs from the data written")
    return read, wrote


def _emptied(folder: Any) -> Any:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark with the given arguments, or with sys.argv."""
    parser = argparse.ArgumentParser(prog="zarr_io", description=str(__doc__).partition("\n")[0])
    parser.add_argument("-n", "--nbytes", metavar="BYTES", default="10 MiB", type=utils.parse_bytes, help="(default: %(default)s)")
    parser.add_argument("--chunksize", metavar="BYTES", default="10 MiB", type=utils.parse_bytes, help="(default: %(default)s)")
    parser.add_argument("--dtype", default="float32", type=np.dtype, help="(default: %(default)s)")
    parser.add_argument("-d", "--dir", metavar="PATH", type=utils.parse_directory, help="a folder to write to (default: a temporary one)")
    parser.add_argument("--nruns", metavar="RUNS", default=1, type=int, help="number of runs of each API (default: %(default)s)")
    parser.add_argument("--n-warmup-runs", metavar="RUNS", default=0, type=int, help="runs that are not counted (default: %(default)s)")
    parser.add_argument("-t", "--nthreads", metavar="THREADS", default=1, type=int, help="no effect with Penstock (default: %(default)s)")
    parser.add_argument("--api", nargs="+", default=["kvikio", "posix"], choices=[*API, "all"], help="(default: kvikio posix)")
    parser.add_argument("--drop-vm-cache", action="store_true", help="drop the page cache before each write and read (requires root)")
    args = parser.parse_args(arguments)
    if min(args.nruns, args.nthreads, args.nbytes, args.chunksize) < 1:
        parser.error("--nbytes, --chunksize, --nruns and --nthreads must be at least 1")
    if args.nbytes % args.dtype.itemsize or args.chunksize % args.dtype.itemsize:
        parser.error(f"--nbytes and --chunksize must be multiples of {args.dtype.itemsize}, the size of {args.dtype} in bytes")
    args.api = utils.chosen(args, API)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        kvikio.defaults.set("num_threads", args.nthreads)
    with utils.folder_for(args.dir) as args.dir:
        print("Zarr benchmark\n" + "-" * 40)
        utils.pprint_sys_info()
        print("-" * 40)
        told = {"nbytes": f"{args.nbytes} bytes ({utils.format_bytes(args.nbytes)})"}
        told |= {"chunksize": f"{args.chunksize} bytes ({utils.format_bytes(args.chunksize)})"}
        utils.print_facts(told | {"drop-vm-cache": args.drop_vm_cache, "directory": args.dir, "nruns": args.nruns})
        print("=" * 40)
        utils.run_all(args, API, args.n_warmup_runs)


if __name__ == "__main__":
    main()
