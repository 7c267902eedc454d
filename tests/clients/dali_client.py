#!/usr/bin/env python3
"""DALI's NumPy reader on the GPU: files of several types, shapes and orders, whole and regions of interest, compared with NumPy.

Needs nvidia-dali, CuPy and a GPU.

Usage: penstock run -- python3 dali_client.py FOLDER [LIBRARY]
FOLDER is written to. LIBRARY: the library file that must be in use.
"""

import pathlib
import sys

from client import check, check_library, equal, ok, skip, why_no_gpu

SHAPES = {"small": (7,), "image": (480, 641, 3), "volume": (65, 66, 67), "large": (3001, 2048)}
TYPES = ("u1", "i2", "f4", "f8")
FILES = 5


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: dali_client.py FOLDER [LIBRARY]")
    missing = why_no_gpu()
    if missing:
        skip(f"DALI needs a GPU: {missing}")
    try:
        import nvidia.dali as dali
        import numpy
        from nvidia.dali import fn, pipeline_def
    except ImportError as problem:
        skip(f"nvidia.dali cannot be imported: {problem}")
    generator = numpy.random.default_rng(1)

    @pipeline_def(batch_size=FILES, num_threads=4, device_id=0)  # type: ignore[untyped-decorator, unused-ignore]
    def reader(folder, pattern, options):  # type: ignore[no-untyped-def]
        return fn.readers.numpy(device="gpu", file_root=folder, file_filter=pattern, **options)

    def read(folder, options):  # type: ignore[no-untyped-def]
        pipeline = reader(str(folder), "*.npy", options)
        pipeline.build()
        (batch,) = pipeline.run()
        return [numpy.asarray(batch[index].as_cpu()) for index in range(FILES)]

    compared = 0
    for (name, shape), kind in ((pair, kind) for pair in SHAPES.items() for kind in TYPES):
        folder = pathlib.Path(sys.argv[1]) / f"{name}-{kind}"
        folder.mkdir()
        arrays = []
        for number in range(FILES):
            values = generator.integers(0, 200, shape).astype(kind)
            numpy.save(folder / f"{number}.npy", numpy.asfortranarray(values) if number == 1 else values)  # one file in the other order
            arrays.append(values)
        halves = [size // 2 for size in shape]
        for what, options, part in (
            ("whole", {}, tuple(slice(None) for _ in shape)),
            ("a region", {"roi_start": [1 if half else 0 for half in halves], "roi_shape": halves}, tuple(slice(1, 1 + half) for half in halves)),
        ):
            for number, found in enumerate(read(folder, options)):
                wanted = arrays[number][part]
                equal(found.shape, wanted.shape, f"{name}, {kind}, {what}, file {number}: the shape")
                check(numpy.array_equal(found, wanted), f"{name}, {kind}, {what}, file {number}: values differ")
                compared += 1
    check_library(sys.argv[2] if len(sys.argv) == 3 else None)
    ok(f"DALI {dali.__version__}: whole arrays and regions of {len(SHAPES) * len(TYPES)} kinds")
    print(f"{compared} arrays")


if __name__ == "__main__":
    main()
