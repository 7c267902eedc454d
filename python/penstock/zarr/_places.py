"""The places of values: host memory (NumPy) or a GPU's memory (cupy)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["HOST", "Place", "places_like", "settle"]


class Place:
    """Allocates host memory. Thread-safe. Equal places are interchangeable."""

    def empty(self, nbytes: int) -> Any:
        """Returns uninitialized memory, as a one-dimensional uint8 array."""
        return self.empty_many([nbytes])[0]

    def empty_many(self, sizes: Sequence[int]) -> list[Any]:
        """Returns uninitialized memory, as empty() does, for each of `sizes` (in bytes)."""
        return [np.empty(nbytes, dtype=np.uint8) for nbytes in sizes]

    def settle(self) -> None:
        """Waits until memory from empty() may be written to. Call this once for several allocations, because on a GPU it waits for the whole
        device."""


HOST = Place()


@dataclass(frozen=True)
class _Gpu(Place):
    """Allocates memory on the device and the stream that were current when the place was created."""

    device: Any = field(compare=False)  # not hashable
    stream: Any = field(compare=False)
    identity: tuple[int, int]  # device and stream

    def empty_many(self, sizes: Sequence[int]) -> list[Any]:
        import cupy

        with self.device, self.stream:
            return [cupy.empty(nbytes, dtype=np.uint8) for nbytes in sizes]

    def settle(self) -> None:
        # cupy reuses memory while kernels that read it are still queued on cupy's stream, and penstock writes to it on its own streams.
        self.stream.synchronize()


def places_like(example: Any) -> Callable[[], Place]:
    """Returns a function that returns the place of arrays like the example, for the device and stream that are current when it is called."""
    return _current_gpu if hasattr(example, "__cuda_array_interface__") else _host


def _host() -> Place:
    return HOST


def _current_gpu() -> Place:
    import cupy

    device, stream = cupy.cuda.Device(), cupy.cuda.get_current_stream()
    return _Gpu(device, stream, (device.id, stream.ptr))


def settle(array: Any) -> None:
    """Waits for the calling thread's current stream if the array is in GPU memory."""
    if hasattr(array, "__cuda_array_interface__"):
        import cupy

        cupy.cuda.get_current_stream().synchronize()
