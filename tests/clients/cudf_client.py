#!/usr/bin/env python3
"""cuDF's Parquet reader through pylibcudf: columns of several types, uncompressed and with Snappy, compared with what was written.

Needs pylibcudf, CuPy and a GPU.

Usage: penstock run -- python3 cudf_client.py FOLDER [LIBRARY] [--gb N] [--url URL]
LIBRARY: the library file that must be in use. --gb: the size of each table (default 0.2). --url: the web address of FOLDER, to read from there instead.
Writes the files to FOLDER if they are missing. The last line gives the speed of the first read and of the best of five: bytes of the file divided by
seconds. To compare with cuDF without Penstock, run this twice on the same folder, the second time without `penstock run` and without LIBRARY.
"""

import argparse
import math
import pathlib
import time

from client import check, check_library, ok, skip, why_no_gpu

COLUMNS = 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("library", nargs="?")
    parser.add_argument("--gb", type=float, default=0.2)
    parser.add_argument("--url")
    given = parser.parse_args()
    missing = why_no_gpu()
    if missing:
        skip(f"cuDF needs a GPU: {missing}")
    try:
        import cupy
        import pylibcudf as plc
    except ImportError as problem:
        skip(f"pylibcudf or cupy cannot be imported: {problem}")

    rows = math.ceil(given.gb * 1e9 / (8 * COLUMNS))
    generator = cupy.random.default_rng(1)
    kinds = ("f8", "i8", "u8", "f8", "i8", "f8", "u8", "i8")
    arrays = [generator.integers(0, 1 << 62, rows, dtype="i8") if kind != "f8" else generator.random(rows) for kind in kinds]
    table = plc.Table([plc.Column.from_cuda_array_interface(array.astype(kind)) for array, kind in zip(arrays, kinds)])

    def write(path: pathlib.Path, compression: "plc.io.types.CompressionType") -> None:
        options = plc.io.parquet.ParquetWriterOptions.builder(plc.io.SinkInfo([str(path)]), table).compression(compression)
        options = options.dictionary_policy(plc.io.types.DictionaryPolicy.NEVER).build()
        plc.io.parquet.write_parquet(options)

    def read(source: str) -> "plc.Table":
        options = plc.io.parquet.ParquetReaderOptions.builder(plc.io.SourceInfo([source])).build()
        found = plc.io.parquet.read_parquet(options).tbl
        cupy.cuda.Device().synchronize()
        return found

    def words(column: "plc.Column") -> "cupy.ndarray":
        memory = cupy.cuda.UnownedMemory(column.data().ptr, rows * 8, column)
        return cupy.ndarray(rows, "u8", cupy.cuda.MemoryPointer(memory, 0))

    speeds = []
    for name in ("NONE", "SNAPPY"):
        path = given.folder / f"{name.lower()}.parquet"
        if not path.exists():
            write(path, plc.io.types.CompressionType[name])
        size, seconds = path.stat().st_size, []
        source = f"{given.url.rstrip('/')}/{path.name}" if given.url else str(path)
        for _ in range(5):
            began = time.perf_counter()
            found = read(source)
            seconds.append(time.perf_counter() - began)
        check(found.num_rows() == rows and found.num_columns() == COLUMNS, f"{name}: {found.num_columns()} columns of {found.num_rows()} rows")
        for column, wanted, kind in zip(found.columns(), table.columns(), kinds):
            check(cupy.array_equal(words(column), words(wanted)) and column.null_count() == 0, f"{name}: a column of {kind} differs")
        ok(f"{name}: {COLUMNS} columns of {rows} rows")
        speeds.append(f"{name} {size / 1e9:.2f} GB: first {size / seconds[0] / 1e9:.2f} GB/s, best {size / min(seconds) / 1e9:.2f} GB/s")
    if given.library is not None:
        check_library(given.library)
    print("; ".join(speeds))


if __name__ == "__main__":
    main()
