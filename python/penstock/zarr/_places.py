"""Where values lie: host memory (NumPy) or the memory of one GPU (cupy)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["HOST", "Place", "place_like", "places_like", "settle"]


class Place:
    """Makes host memory. Thread-safe; equal places are one place."""

    def empty(self, nbytes: int) -> Any:
        """Uninitialized memory: uint8, one axis."""
        return self.empty_many([nbytes])[0]

    def empty_many(self, sizes: Sequence[int]) -> list[Any]:
        """As empty() for each of sizes, in bytes."""
        return [np.empty(nbytes, dtype=np.uint8) for nbytes in sizes]

    def settle(self) -> None:
        """Waits until memory from empty() may be written to. Once for any number of them: on a GPU it waits for the device."""


HOST = Place()


@dataclass(frozen=True)
class _Gpu(Place):
    """Makes memory of the device and the stream that were current when the place was made."""

    device: Any = field(compare=False)  # not hashable
    stream: Any = field(compare=False)
    identity: tuple[int, int]  # of the device and the stream

    def empty_many(self, sizes: Sequence[int]) -> list[Any]:
        import cupy

        with self.device, self.stream:
            return [cupy.empty(nbytes, dtype=np.uint8) for nbytes in sizes]

    def settle(self) -> None:
        # cupy hands memory out again while kernels that read it are still queued on its stream, and penstock writes to it
        # on streams of its own.
        self.stream.synchronize()


def place_like(example: Any) -> Place:
    """The place of arrays like the example, on the current device and stream of the calling thread."""
    return places_like(example)()


def places_like(example: Any) -> Callable[[], Place]:
    """What gives the place of arrays like the example when it is called, for the device and the stream current then."""
    return _current_gpu if hasattr(example, "__cuda_array_interface__") else _host


def _host() -> Place:
    return HOST


def _current_gpu() -> Place:
    import cupy

    device, stream = cupy.cuda.Device(), cupy.cuda.get_current_stream()
    return _Gpu(device, stream, (device.id, stream.ptr))


def settle(array: Any) -> None:
    """Waits until work queued on the current stream of the calling thread is done, if the array is one of a GPU."""
    if hasattr(array, "__cuda_array_interface__"):
        import cupy

        cupy.cuda.get_current_stream().synchronize()
