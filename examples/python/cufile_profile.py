"""Measures how fast a file is read into, and written from, the memory of a GPU for a range of buffer sizes.

    python cufile_profile.py [--file FILE] [--total BYTES] [--largest BYTES] [--plot PNG] [--device cuda:0]

Plots the throughputs where matplotlib is installed and --plot is given; prints them as a table otherwise. FILE is made, overwritten and
removed; put it on the drive that is to be measured. Its pages are in the page cache unless it is larger than memory: what is measured
is a warm file.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable

import penstock
from penstock import cufile

Row = tuple[int, float, float]  # buffer size in bytes, GB/s read, GB/s written


def throughput(call: Callable[[int, int, int, int, int], int], handle: int, address: int, size: int, total: int) -> float:
    """GB/s of moving total bytes in requests of size bytes."""
    began = time.perf_counter()
    moved = sum(call(handle, address, size, offset, 0) for offset in range(0, total, size))
    return moved / (time.perf_counter() - began) / 1e9


def measure(path: str, total: int, largest: int, device: str) -> list[Row]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    handle = cufile.handle_register(descriptor)
    buffer = penstock.device(device).empty(largest)
    rows: list[Row] = []
    size = 64 << 10
    try:
        while size <= largest:
            cufile.buf_register(buffer.ptr, size, cufile.CU_FILE_BUF_REGISTER_FLAGS_NONE)
            throughput(cufile.pwrite, handle, buffer.ptr, size, total)  # once, so that the file and all buffers are there
            written = throughput(cufile.pwrite, handle, buffer.ptr, size, total)
            read = throughput(cufile.pread, handle, buffer.ptr, size, total)
            cufile.buf_deregister(buffer.ptr)
            rows.append((size, read, written))
            size *= 4
    finally:
        cufile.handle_deregister(handle)
        os.close(descriptor)
        os.unlink(path)
    return rows


def plot(rows: list[Row], path: str, title: str) -> bool:
    """Draws the throughputs; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    sizes = [size / (1 << 20) for size, _, _ in rows]
    axes.plot(sizes, [read for _, read, _ in rows], marker="o", label="read")
    axes.plot(sizes, [written for _, _, written in rows], marker="o", label="write")
    axes.set(xscale="log", xlabel="buffer size, MiB", ylabel="GB/s", title=title)
    axes.legend()
    figure.savefig(path)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", default=os.path.join(tempfile.gettempdir(), f"cufile_profile.{os.getpid()}"))
    parser.add_argument("--total", type=int, default=256 << 20, help="bytes moved for each row")
    parser.add_argument("--largest", type=int, default=64 << 20, help="bytes of the largest buffer")
    parser.add_argument("--plot", help="the picture to write")
    parser.add_argument("--device", default=penstock.devices()[0].name)
    asked = parser.parse_args()
    rows = measure(asked.file, asked.total, asked.largest, asked.device)
    if asked.plot and plot(rows, asked.plot, asked.device):
        print(f"{asked.plot}: {len(rows)} buffer sizes")
        return
    print(f"{'buffer':>12}  {'read GB/s':>10}  {'write GB/s':>10}   ({asked.device})")
    for size, read, written in rows:
        print(f"{size >> 10:>8} KiB  {read:>10.2f}  {written:>10.2f}")


if __name__ == "__main__":
    main()
