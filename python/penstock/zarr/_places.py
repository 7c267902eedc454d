"""Where values lie: host memory (NumPy) or the memory of one GPU (cupy)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["HOST", "Place", "place_like", "settle"]


class Place:
    """Makes host memory. Thread-safe."""

    def empty(self, nbytes: int) -> Any:
        """Uninitialized memory: uint8, one axis."""
        return np.empty(nbytes, dtype=np.uint8)

    def settle(self) -> None:
        """Waits until memory from empty() may be written to."""


HOST = Place()


@dataclass(eq=False)
class _Gpu(Place):
    """Makes memory of the device and the stream that were current when the place was made."""

    device: Any
    stream: Any

    def empty(self, nbytes: int) -> Any:
        import cupy

        with ExitStack() as stack:
            stack.enter_context(self.device)
            stack.enter_context(self.stream)
            return cupy.empty(nbytes, dtype=np.uint8)

    def settle(self) -> None:
        # cupy hands memory out again while kernels that read it are still queued on its stream, and penstock writes to it
        # on streams of its own.
        self.stream.synchronize()


def place_like(example: Any) -> Place:
    """The place of arrays like the example, on the current device and stream of the calling thread."""
    if not hasattr(example, "__cuda_array_interface__"):
        return HOST
    import cupy

    return _Gpu(cupy.cuda.Device(), cupy.cuda.get_current_stream())


def settle(array: Any) -> None:
    """Waits until work queued on the current stream of the calling thread is done, if the array is one of a GPU."""
    if hasattr(array, "__cuda_array_interface__"):
        import cupy

        cupy.cuda.get_current_stream().synchronize()
