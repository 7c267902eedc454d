"""Memory for `load` to fill: NumPy arrays, cupy arrays, the host device's memory, or memory that only penstock can address."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import penstock
from penstock._core.arrays import library_named, library_of
from penstock._core.devices import Place, is_gpu, known_device
from penstock.zarr._chunk_plan import ChunkPart

__all__ = ["Target", "target_for"]

_FILL_BLOCK_BYTES = 1 << 20


def target_for(shape: tuple[int, ...], dtype: np.dtype[Any], device: Place, out: Any) -> Target:
    """Returns new memory on a device (the host if None), or checks and wraps `out`. Raises the errors of load().

    On a device, elements have this machine's byte order; on the host, they have dtype's byte order.
    """
    if dtype.hasobject or dtype.kind not in "biufcmMSUV":
        return _target_of_objects(shape, dtype, device, out)
    if out is not None:
        return _target_of(out, shape, dtype, device)
    name = "host" if device is None else known_device(device)
    if name == "host":
        array = np.empty(shape, dtype=dtype)
        return _ArrayTarget(array, array)
    dtype = dtype.newbyteorder("=")
    if is_gpu(name):
        return _new_cupy_target(shape, dtype, name)
    buffer = penstock.device(name).empty(math.prod(shape) * dtype.itemsize)
    return _HostDeviceTarget(buffer, _seen(buffer).view(dtype).reshape(shape), name)


def _target_of_objects(shape: tuple[int, ...], dtype: np.dtype[Any], device: Place, out: Any) -> Target:
    """Returns a target for elements that are not plain bytes, such as variable-length strings. zarr creates them, and only a NumPy array can contain
    them.
    """
    name = "host" if device is None else known_device(device)
    if name != "host" or not isinstance(out, (np.ndarray, type(None))):
        raise TypeError(f"elements of dtype {dtype} are Python objects, which only a NumPy array can contain: omit device= and out=")
    array = np.empty(shape, dtype=dtype) if out is None else out
    if array.shape != shape or array.dtype != dtype:
        raise TypeError(f"out has shape {array.shape} and dtype {array.dtype}, but the result has {shape} and {dtype}")
    return _ObjectsTarget(array)


def _new_cupy_target(shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> Target:
    try:
        library = library_named("cupy")
    except ImportError as error:
        raise ImportError(
            f'device="{device}" returns a cupy array, but cupy is not installed: pip install "penstock[cupy]", or pass out='
        ) from error
    if library.dtype_like(dtype) is None:
        raise TypeError(f"cupy does not support dtype {dtype}: load into host memory, or pass a buffer of bytes as out=")
    array = library.empty(shape, dtype, device)
    return _CupyTarget(array, array, device)


def _target_of(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], device: Place) -> Target:
    _check_device(out, device)
    if isinstance(out, np.ndarray):
        _check_array(out, shape, dtype)
        return _ArrayTarget(out, out)
    native = dtype.newbyteorder("=")
    library = library_of(out)
    if library is not None and library.word == "cupy":
        _check_array(out, shape, native)
        return _CupyTarget(out, out, library.device_of(out))
    nbytes = math.prod(shape) * dtype.itemsize
    address, given = penstock._native.resolve(out, True)
    if given != nbytes:
        raise ValueError(f"out has {given} bytes, but the result has {nbytes}")
    name = penstock.describe(out)["device"] if nbytes else None
    if name is None:
        return _ArrayTarget(out, library_named("numpy").over(address, out, shape, dtype, "host"))
    if isinstance(out, penstock.DeviceBuffer) and not is_gpu(name):
        return _HostDeviceTarget(out, _seen(out).view(native).reshape(shape), name)
    if not is_gpu(name):
        return _BufferTarget(out, native, nbytes, name)
    return _gpu_target_of(out, address, nbytes, native, shape, name)


def _check_array(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if tuple(out.shape) != shape:
        raise ValueError(f"out has shape {tuple(out.shape)}, but the result has {shape}")
    if out.dtype != dtype:
        raise TypeError(f"out has dtype {out.dtype}, but the result has {dtype}")
    if not out.flags.c_contiguous:
        raise ValueError("out is not C-contiguous")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out is read-only")


def _seen(memory: Any) -> np.ndarray[Any, Any]:
    """Returns the CPU's view of the host device's memory."""
    return np.frombuffer(memory, np.uint8)


def _gpu_target_of(out: Any, address: int, nbytes: int, dtype: np.dtype[Any], shape: tuple[int, ...], device: str) -> Target:
    """Returns a target for another library's GPU memory. Uses cupy if it is installed and supports the dtype."""
    try:
        library = library_named("cupy")
    except ImportError:
        return _BufferTarget(out, dtype, nbytes, device)
    if library.dtype_like(dtype) is None:
        return _BufferTarget(out, dtype, nbytes, device)
    return _CupyTarget(out, library.over(address, out, shape, dtype, device), device)


def _check_device(out: Any, device: Place) -> None:
    if device is None:
        return
    found, name = penstock.describe(out)["device"] or "host", known_device(device)
    if found != name:
        raise ValueError(f'out is on {found}, but device is "{name}"')


class Target:
    """A result's memory."""

    is_array = True  # False: only fill() without a box, assign_all() and memory are available
    on_host = False

    def __init__(self, result: Any, memory: Any, nbytes: int, dtype: np.dtype[Any], device: str) -> None:
        self.result = result
        self.memory = memory  # bytes that penstock reads into; they can be sliced if is_array
        self.nbytes = nbytes
        self.dtype = dtype
        self.device = device

    def settle(self) -> None:
        """Waits until the memory may be written to, and for work queued by scratch(), fill() and assignments to the box."""

    def as_box(self, lengths: tuple[int, ...]) -> Any:
        """Returns an indexable view that includes axes selected by an integer, or None if the memory has no such view."""
        raise NotImplementedError

    def scratch(self, nbytes: int) -> Any:
        """Returns uninitialized bytes in the same kind of memory, which can be sliced. penstock may read into them after settle()."""
        raise NotImplementedError

    def staging(self, nbytes: int) -> Any:
        """Returns uninitialized host memory that can be copied to the target quickly."""
        return np.empty(nbytes, np.uint8)

    def as_array(self, data: Any) -> Any:
        """Returns an array over bytes from scratch(), or over a slice of them."""
        return data

    def fetch(self, data: Any, positions: Any) -> np.ndarray[Any, Any]:
        """Copies the bytes at an array of positions in memory from scratch(), or in a slice of it, to host memory."""
        found: np.ndarray[Any, Any] = self.as_array(data)[positions]
        return found

    def as_elements(self, data: Any, shape: tuple[int, ...]) -> Any:
        """Like as_array(), but with the result's elements, in this machine's byte order on a device."""
        return self.as_array(data).view(self.dtype).reshape(shape)

    def assign(self, box: Any, part: ChunkPart, values: Any) -> None:
        """Sets the elements of a part from an array in the same memory."""
        raise NotImplementedError

    def fill(self, box: Any, part: ChunkPart, value: Any) -> None:
        """Sets the elements of a part to a value, or to zero if it is None."""
        raise NotImplementedError

    def assign_all(self, values: Any) -> None:
        """Sets the whole result from a NumPy array of the same shape."""
        raise NotImplementedError


class _ArrayTarget(Target):
    """Memory that NumPy can index."""

    on_host = True

    def __init__(self, result: Any, array: Any, device: str = "host") -> None:
        super().__init__(result, self._memory_of(result, array), int(array.nbytes), array.dtype, device)
        self._array = array

    def _memory_of(self, result: Any, array: Any) -> Any:
        return array.reshape(-1).view(np.uint8)

    def as_box(self, lengths: tuple[int, ...]) -> Any:
        return self._array.reshape(lengths)

    def scratch(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    def assign(self, box: Any, part: ChunkPart, values: Any) -> None:
        box[part.outer] = values

    def fill(self, box: Any, part: ChunkPart, value: Any) -> None:
        box[part.outer] = np.zeros((), dtype=self.dtype)[()] if value is None else value

    def assign_all(self, values: Any) -> None:
        self._array[...] = values


class _HostDeviceTarget(_ArrayTarget):
    """The host device's memory. The CPU can address it, but scattered rows are staged and copied as on a GPU."""

    on_host = False

    def _memory_of(self, result: Any, array: Any) -> Any:
        return result  # NumPy's views have different addresses

    def scratch(self, nbytes: int) -> Any:
        return penstock.device(self.device).empty(max(1, nbytes))

    def as_array(self, data: Any) -> Any:
        return _seen(data)


class _CupyTarget(_ArrayTarget):
    """cupy's GPU memory. cupy queues work on its stream and penstock copies on its own streams, so this class waits in between."""

    on_host = False

    def settle(self) -> None:
        library_named("cupy").settle(self.device)

    def scratch(self, nbytes: int) -> Any:
        return library_named("cupy").empty((nbytes,), np.uint8, self.device)

    def staging(self, nbytes: int) -> Any:
        import cupy

        with self._array.device:
            memory = cupy.cuda.alloc_pinned_memory(max(1, nbytes))  # cupy caches it for reuse
        return np.frombuffer(memory, np.uint8)[:nbytes]

    def fetch(self, data: Any, positions: Any) -> np.ndarray[Any, Any]:
        import cupy

        with self._array.device:
            found: np.ndarray[Any, Any] = data[cupy.asarray(positions)].get()
        return found

    def assign(self, box: Any, part: ChunkPart, values: Any) -> None:
        with self._array.device:
            super().assign(box, part, values)

    def fill(self, box: Any, part: ChunkPart, value: Any) -> None:
        with self._array.device:
            super().fill(box, part, value)

    def assign_all(self, values: Any) -> None:
        self.settle()
        _copy_into(self.memory, values, self.dtype)


class _ObjectsTarget(Target):
    """A NumPy array of Python objects."""

    on_host = True

    def __init__(self, array: Any) -> None:
        super().__init__(array, None, int(array.nbytes), array.dtype, "host")

    def assign_all(self, values: Any) -> None:
        self.result[...] = values


class _BufferTarget(Target):
    """Memory that only penstock can address: GPU memory without cupy, or a bare address on the host device."""

    is_array = False

    def __init__(self, result: Any, dtype: np.dtype[Any], nbytes: int, device: str) -> None:
        super().__init__(result, result, nbytes, dtype, device)

    def as_box(self, lengths: tuple[int, ...]) -> Any:
        return None

    def fill(self, box: Any, part: ChunkPart, value: Any) -> None:
        run_bytes = part.pattern.run_bytes
        block = np.zeros(max(1, min(run_bytes, _FILL_BLOCK_BYTES) // self.dtype.itemsize), dtype=self.dtype)
        if value is not None:
            block[...] = value
        base, _ = penstock._native.resolve(self.result, True)
        for start in (part.pattern.target_offsets + part.target_offset).tolist():
            for at in range(start, start + run_bytes, block.nbytes):
                piece = block.view(np.uint8)[: start + run_bytes - at]
                penstock.copy(penstock.Pointer(base + at, piece.nbytes, self.result), piece)

    def assign_all(self, values: Any) -> None:
        _copy_into(self.result, values, self.dtype)


def _copy_into(memory: Any, values: Any, dtype: np.dtype[Any]) -> None:
    penstock.copy(memory, np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8))
