"""The memory that `load` fills: a NumPy array, a cupy array, or memory that penstock can address and this process cannot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import penstock
from penstock._devices import Place, is_gpu, known_device, number_of
from penstock.zarr._plan import ChunkPart

__all__ = ["Target", "target_for"]

_FILL_BLOCK_BYTES = 1 << 20


def target_for(shape: tuple[int, ...], dtype: np.dtype[Any], device: Place, out: Any) -> Target:
    """New memory on a device (the host when None), or a checked out. Errors as for load()."""
    if out is not None:
        return _target_of(out, shape, dtype, device)
    name = "host" if device is None else known_device(device)
    if name == "host":
        return _ArrayTarget(np.empty(shape, dtype=dtype), np)
    if is_gpu(name):
        return _new_cupy_target(shape, dtype, name)
    nbytes = math.prod(shape) * dtype.itemsize
    return _BufferTarget(penstock.device(name).empty(nbytes), dtype, nbytes)


def _new_cupy_target(shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> Target:
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            f'device="{device}" gives a cupy array, and cupy is not installed: pip install "penstock[cupy]", or pass out='
        ) from error
    with cupy.cuda.Device(number_of(device)):
        return _CupyTarget(cupy.empty(shape, dtype=dtype), cupy)


def _target_of(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], device: Place) -> Target:
    _check_device(out, device)
    on_gpu = hasattr(out, "__cuda_array_interface__")
    if isinstance(out, np.ndarray) or (on_gpu and _is_cupy(out)):
        if tuple(out.shape) != shape:
            raise ValueError(f"out has shape {tuple(out.shape)}, the result {shape}")
        if out.dtype != dtype:
            raise TypeError(f"out has dtype {out.dtype}, the result {dtype}")
        if not out.flags.c_contiguous:
            raise ValueError("out is not C-contiguous")
        if not on_gpu:
            if not out.flags.writeable:
                raise ValueError("out is read-only")
            return _ArrayTarget(out, np)
        import cupy

        return _CupyTarget(out, cupy)
    nbytes = math.prod(shape) * dtype.itemsize
    _, given = penstock._native.resolve(out, True)
    if given != nbytes:
        raise ValueError(f"out has {given} bytes, the result {nbytes}")
    return _BufferTarget(out, dtype, nbytes)


def _is_cupy(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "cupy"


def _check_device(out: Any, device: Place) -> None:
    if device is None:
        return
    found, name = penstock.describe(out)["device"] or "host", known_device(device)
    if found != name:
        raise ValueError(f'out lies on {found}, and device is "{name}"')


class Target:
    """Memory of a result."""

    is_array = True  # False: as_box() and scratch() cannot be used

    def __init__(self, result: Any, memory: Any, nbytes: int) -> None:
        self.result = result
        self.memory = memory  # what penstock reads into
        self.nbytes = nbytes

    def prepare(self) -> None:
        """Waits until the memory may be written to."""

    def settle(self) -> None:
        """Waits until what was queued by scratch(), fill() and assignments to the box is done."""

    def as_box(self, lengths: tuple[int, ...]) -> Any:
        """The result with the axes that were selected by a number, indexable; None where it cannot be."""
        raise NotImplementedError

    def scratch(self, shape: tuple[int, ...]) -> Any:
        """An uninitialized array of that shape in the same memory."""
        raise NotImplementedError

    def fill(self, box: Any, part: ChunkPart, value: Any) -> None:
        """Sets the elements of a part; None: to zero."""
        raise NotImplementedError

    def assign_all(self, values: Any) -> None:
        """Sets the whole result from a NumPy array of its shape."""
        raise NotImplementedError


class _ArrayTarget(Target):
    """A NumPy or cupy array."""

    def __init__(self, result: Any, module: Any) -> None:
        super().__init__(result, result.reshape(-1).view(np.uint8), int(result.nbytes))
        self._module = module

    def as_box(self, lengths: tuple[int, ...]) -> Any:
        return self.result.reshape(lengths)

    def scratch(self, shape: tuple[int, ...]) -> Any:
        return self._module.empty(shape, dtype=self.result.dtype)

    def fill(self, box: Any, part: ChunkPart, value: Any) -> None:
        box[part.outer] = np.zeros((), dtype=self.result.dtype)[()] if value is None else value

    def assign_all(self, values: Any) -> None:
        self.result[...] = self._module.asarray(values)
        self.settle()


class _CupyTarget(_ArrayTarget):
    """cupy queues its work on a stream; penstock copies on streams of its own, and so has to wait."""

    def prepare(self) -> None:
        self.settle()

    def settle(self) -> None:
        with self.result.device:
            self._module.cuda.get_current_stream().synchronize()

    def scratch(self, shape: tuple[int, ...]) -> Any:
        with self.result.device:
            return super().scratch(shape)

    def fill(self, box: Any, part: ChunkPart, value: Any) -> None:
        with self.result.device:
            super().fill(box, part, value)

    def assign_all(self, values: Any) -> None:
        with self.result.device:
            super().assign_all(values)


class _BufferTarget(Target):
    """Memory that only penstock addresses: of the host device, or foreign."""

    is_array = False

    def __init__(self, result: Any, dtype: np.dtype[Any], nbytes: int) -> None:
        super().__init__(result, result, nbytes)
        self._dtype = dtype

    def as_box(self, lengths: tuple[int, ...]) -> Any:
        return None

    def fill(self, box: Any, part: ChunkPart, value: Any) -> None:
        run_bytes = part.pattern.run_bytes
        block = np.zeros(max(1, min(run_bytes, _FILL_BLOCK_BYTES) // self._dtype.itemsize), dtype=self._dtype)
        if value is not None:
            block[...] = value
        base, _ = penstock._native.resolve(self.result, True)
        for start in (part.pattern.target_offsets + part.target_offset).tolist():
            for at in range(start, start + run_bytes, block.nbytes):
                piece = block.view(np.uint8)[: start + run_bytes - at]
                penstock.copy(penstock.Pointer(base + at, piece.nbytes, self.result), piece)

    def assign_all(self, values: Any) -> None:
        flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        penstock.copy(self.result, flat)
