"""Writes an array to files and reads it back, with KvikIO's interface on Penstock and with plain files, and prints the speeds of both.

    python bench/kvikio/single_node_io.py --nbytes "1 GiB" --dir /mnt/nvme --api all

It takes the same options as KvikIO's benchmark of the same name, except --zarr-compressor.
"""

from __future__ import annotations

import argparse
import shutil
import warnings
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import utils

from penstock import kvikio


def run_cufile(args: Any) -> tuple[float, float]:
    """Measures one file and one array."""
    path = args.dir / "kvikio-single-file"
    return _roundtrip(args, [path], [_data(args.nbytes)], [0], parallel=False)


def run_cufile_mfma(args: Any) -> tuple[float, float]:
    """Measures one file and one array per thread."""
    size = _share(args)
    return _roundtrip(args, _files(args), [_data(size) for _ in range(args.nthreads)], [0] * args.nthreads)


def run_cufile_mf(args: Any) -> tuple[float, float]:
    """Measures one file per thread and a single array."""
    size, whole = _share(args), _data(args.nbytes)
    arrays = [whole[i * size : (i + 1) * size] for i in range(args.nthreads)]
    return _roundtrip(args, _files(args), arrays, [0] * args.nthreads)


def run_cufile_ma(args: Any) -> tuple[float, float]:
    """Measures a single file and one array per thread."""
    size = _share(args)
    arrays = [_data(size) for _ in range(args.nthreads)]
    return _roundtrip(args, [args.dir / "kvikio-multiple-arrays"], arrays, [i * size for i in range(args.nthreads)])


def run_posix(args: Any) -> tuple[float, float]:
    """Measures Python's files with a copy to or from the GPU, without Penstock."""
    xp, path = utils.array_module(), args.dir / "posix-single-file"
    data = _data(args.nbytes)
    start = perf_counter()
    with open(path, "wb") as file:
        file.write(data.tobytes())
    wrote = perf_counter() - start
    start = perf_counter()
    with open(path, "rb") as file:
        back = xp.fromfile(file, dtype="uint8", count=args.nbytes)
    read = perf_counter() - start
    _check(back.nbytes, args.nbytes)
    return read, wrote


def run_zarr(args: Any) -> tuple[float, float]:
    """Measures an uncompressed, single-chunk zarr array in a GDSStore."""
    import zarr
    from zarr_io import array_like, on_gpu

    from penstock.zarr import GDSStore

    folder, data = args.dir / "zarr", _data(args.nbytes)
    shutil.rmtree(folder, ignore_errors=True)
    with on_gpu(utils.array_module()):
        start = perf_counter()
        array = array_like(zarr, GDSStore(str(folder)), data.shape, data.shape, data.dtype)
        array[:] = data
        wrote = perf_counter() - start
        start = perf_counter()
        _check(array[:].nbytes, args.nbytes)
        read = perf_counter() - start
    return read, wrote


API: dict[str, utils.Roundtrip] = {
    "cufile": run_cufile,
    "zarr": run_zarr,
    "posix": run_posix,
    "cufile-mfma": run_cufile_mfma,
    "cufile-mf": run_cufile_mf,
    "cufile-ma": run_cufile_ma,
}


def _roundtrip(
    args: Any, paths: Sequence[Any], arrays: Sequence[Any], offsets: Sequence[int], parallel: bool = True
) -> tuple[float, float]:
    """Writes all arrays at the same time, and then reads all of them back. Each array has its own file, or its own offset in a common file."""
    registered = [array for array in arrays if args.pre_register_buffer and hasattr(array, "__cuda_array_interface__")]
    for array in registered:
        kvikio.memory_register(array)
    times = []
    for flags in ("w", "r"):
        files = [kvikio.CuFile(path, flags) for path in paths]
        start = perf_counter()
        places = list(zip(files * (len(arrays) // len(files)), arrays, offsets))
        if not parallel:
            done = sum(file.write(array) if flags == "w" else file.read(array) for file, array, _ in places)
        else:
            futures = [
                file.pwrite(array, file_offset=at) if flags == "w" else file.pread(array, file_offset=at)
                for file, array, at in places
            ]
            done = sum(future.get() for future in futures)
        for file in files:
            file.close()
        times.append(perf_counter() - start)
        _check(done, args.nbytes)
    for array in registered:
        kvikio.memory_deregister(array)
    return times[1], times[0]


def _data(nbytes: int) -> Any:
    return utils.array_module().arange(nbytes, dtype="uint8")


def _files(args: Any) -> list[Any]:
    return [args.dir / f"cufile-p-{i:03d}" for i in range(args.nthreads)]


def _share(args: Any) -> int:
    if args.nbytes % args.nthreads:
        raise SystemExit(f"--nbytes ({args.nbytes}) must be a multiple of --nthreads ({args.nthreads})")
    return int(args.nbytes // args.nthreads)


def _check(done: int, wanted: int) -> None:
    if done != wanted:
        raise RuntimeError(f"only {done} of {wanted} bytes were transferred")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark with the given arguments, or with sys.argv."""
    parser = argparse.ArgumentParser(prog="single_node_io", description=str(__doc__).partition("\n")[0])
    parser.add_argument("-n", "--nbytes", metavar="BYTES", default="10 MiB", type=utils.parse_bytes, help="(default: %(default)s)")
    parser.add_argument("-d", "--dir", metavar="PATH", type=utils.parse_directory, help="a folder to write to (default: a temporary one)")
    parser.add_argument("--nruns", metavar="RUNS", default=1, type=int, help="number of runs of each API (default: %(default)s)")
    parser.add_argument("--pre-register-buffer", action="store_true", help="register the GPU memory first (no effect with Penstock)")
    parser.add_argument(
        "-t", "--nthreads", metavar="THREADS", default=1, type=int, help="number of files or arrays in the parallel APIs (default: %(default)s)"
    )
    parser.add_argument("--api", nargs="+", default=["cufile", "posix"], choices=[*API, "all"], help="(default: cufile posix)")
    args = parser.parse_args(arguments)
    if args.nbytes < 1 or args.nruns < 1 or args.nthreads < 1:
        parser.error("--nbytes, --nruns and --nthreads must be at least 1")
    args.api = utils.chosen(args, API)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # num_threads has no effect, as the help says
        kvikio.defaults.set("num_threads", args.nthreads)
    with utils.folder_for(args.dir) as args.dir:
        print("Roundtrip benchmark\n" + "-" * 40)
        utils.pprint_sys_info()
        print("-" * 40)
        told = {"nbytes": f"{args.nbytes} bytes ({utils.format_bytes(args.nbytes)})", "4K aligned": args.nbytes % 4096 == 0}
        told |= {"pre-reg-buf": args.pre_register_buffer, "directory": args.dir, "nthreads": args.nthreads, "nruns": args.nruns}
        utils.print_facts(told)
        print("=" * 40)
        utils.run_all(args, API)


if __name__ == "__main__":
    main()
