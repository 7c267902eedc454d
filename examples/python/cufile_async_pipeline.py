"""Copies a file through the memory of a GPU with two buffers: while one is written, the other is read into.

    python cufile_async_pipeline.py SOURCE TARGET [--chunk BYTES] [--device cuda:0]

Each buffer has a stream of its own. A read, what a program would compute, and a write follow each other on it without the host waiting; the
two streams overlap. Streams are made with CuPy or PyTorch; without either, and on the host device, both buffers share the default stream.
"""

from __future__ import annotations

import argparse
import os
import struct

import penstock
from penstock import cufile


class Slot:
    """One of the two buffers, its stream, and where the counts of its operations arrive: in memory of the device, as the data does."""

    def __init__(self, device: str, chunk: int, stream: int) -> None:
        self.buffer = penstock.device(device).empty(chunk)
        self.counts = penstock.device(device).empty(16)
        self.stream = stream
        self.expected = 0

    def queue(self, source: int, target: int, offset: int, size: int) -> None:
        self.expected = size
        cufile.read_async(source, self.buffer.ptr, size, offset, 0, self.counts.ptr, self.stream)
        # Here a program would launch its kernels on the same stream.
        cufile.write_async(target, self.buffer.ptr, size, offset, 0, self.counts.ptr + 8, self.stream)

    def finish(self) -> None:
        """Waits until the buffer is free, and checks what became of it."""
        cufile.synchronize(self.stream)  # with CUDA: cudaStreamSynchronize
        if self.expected:
            counts = struct.unpack("=qq", self.counts.to_host())
            if counts != (self.expected, self.expected):
                raise SystemExit(f"read and written were {counts} bytes of {self.expected}")
        self.expected = 0


def streams_of(device: str) -> tuple[int, int]:
    """Two streams of the device, kept until the program ends."""
    if device.startswith("cuda:"):
        number = int(device.removeprefix("cuda:"))
        try:
            import cupy

            with cupy.cuda.Device(number):
                _kept.extend(cupy.cuda.Stream(non_blocking=True) for _ in range(2))
            return _kept[0].ptr, _kept[1].ptr
        except ImportError:
            pass
        try:
            import torch

            _kept.extend(torch.cuda.Stream(number) for _ in range(2))
            return _kept[0].cuda_stream, _kept[1].cuda_stream
        except ImportError:
            pass
    return 0, 0


_kept: list = []  # type: ignore[type-arg]


def copy(source_path: str, target_path: str, chunk: int, device: str) -> int:
    """Copies the file; returns the number of chunks."""
    size = os.path.getsize(source_path)
    source_descriptor = os.open(source_path, os.O_RDONLY)
    target_descriptor = os.open(target_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    source = cufile.handle_register(source_descriptor)
    target = cufile.handle_register(target_descriptor)
    slots = [Slot(device, chunk, stream) for stream in streams_of(device)]
    offsets = range(0, size, chunk)
    for number, offset in enumerate(offsets):
        slot = slots[number % 2]
        slot.finish()
        slot.queue(source, target, offset, min(chunk, size - offset))
    for slot in slots:
        slot.finish()
    for handle in (source, target):
        cufile.handle_deregister(handle)
    for descriptor in (source_descriptor, target_descriptor):
        os.close(descriptor)
    return len(offsets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--chunk", type=int, default=16 << 20, help="bytes of each buffer")
    parser.add_argument("--device", default=penstock.devices()[0].name)
    asked = parser.parse_args()
    try:
        chunks = copy(asked.source, asked.target, asked.chunk, asked.device)
    except (OSError, cufile.cuFileError) as error:
        raise SystemExit(str(error)) from error
    print(f"{os.path.getsize(asked.target)} bytes in {chunks} chunks through the memory of {asked.device}")


if __name__ == "__main__":
    main()
