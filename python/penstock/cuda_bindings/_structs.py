"""The structs of cuda.bindings.cufile (cuda-python 13), with cuda-python's names, in NumPy memory. Use them through penstock.cuda_bindings.cufile.

An object is one struct or an array of structs. Its attributes read and set the fields, indexing an array returns one struct, and ptr is the address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np

from penstock._cufile.library import is_reachable

_Made = TypeVar("_Made", bound="Struct")


class Struct:
    """`size` is the number of structs. A single struct's attributes are numbers; those of an array of structs are NumPy arrays."""

    dtype: ClassVar[np.dtype[Any]]
    parts: ClassVar[dict[str, type[Struct]]] = {}  # fields that are structs themselves

    def __init__(self, size: int = 1) -> None:
        if size < 1:
            raise ValueError(f"{type(self).__name__}: size must be at least 1, not {size}")
        self._hold(np.zeros(size, self.dtype), None)

    def _hold(self, data: np.ndarray[Any, Any], owner: Any) -> None:
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_owner", owner)

    @classmethod
    def _over(cls: type[_Made], data: np.ndarray[Any, Any], owner: Any = None) -> _Made:
        made = cls.__new__(cls)
        made._hold(data, owner)
        return made

    @classmethod
    def from_data(cls: type[_Made], data: Any) -> _Made:
        """Returns an object over the memory of a NumPy array of the same dtype, or of another object of this class."""
        held = data._data if isinstance(data, Struct) else np.atleast_1d(data)
        if held.dtype != cls.dtype:
            raise ValueError(f"{cls.__name__}: data has the wrong dtype, {held.dtype}")
        return cls._over(held, data)

    @classmethod
    def from_buffer(cls: type[_Made], buffer: Any) -> _Made:
        """Returns an object over the memory of a buffer that holds only structs."""
        return cls._over(np.frombuffer(buffer, cls.dtype), buffer)

    @classmethod
    def from_ptr(cls: type[_Made], ptr: int, size: int = 1, readonly: bool = False, owner: Any = None) -> _Made:
        """Returns an object over memory at an address, which must stay allocated; owner is kept alive."""
        if ptr == 0:
            raise ValueError("ptr must not be null (0)")
        if not is_reachable(ptr, size * cls.dtype.itemsize):
            raise ValueError(f"{cls.__name__}: ptr {ptr:#x} is not the address of {size * cls.dtype.itemsize} bytes")
        data = np.frombuffer(memoryview((ctypes.c_char * (size * cls.dtype.itemsize)).from_address(ptr)), cls.dtype)
        data.flags.writeable = not readonly
        return cls._over(data, owner)

    @property
    def ptr(self) -> int:
        """The address of the first struct."""
        return int(self._data.ctypes.data)

    def __int__(self) -> int:
        return self.ptr

    def __len__(self) -> int:
        return len(self._data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Returns the structs as a NumPy array over the same memory, unless you request a different dtype or a copy."""
        wanted: np.ndarray[Any, Any] = self._data if dtype is None else self._data.astype(dtype, copy=False)
        return wanted.copy() if copy else wanted

    def __getitem__(self: _Made, index: int | slice | str) -> Any:
        """Returns one struct, several, or one field of all of them as a NumPy array."""
        if isinstance(index, str):
            return self._data[index]
        if isinstance(index, slice):
            return type(self)._over(self._data[index], self)
        if not -len(self) <= index < len(self):
            raise IndexError("index is out of bounds")
        at = index % len(self)
        return type(self)._over(self._data[at : at + 1], self)

    def __setitem__(self, index: int | slice | str, value: Any) -> None:
        held = value._data if isinstance(value, Struct) else value
        self._data[index] = held[0] if isinstance(value, Struct) and not isinstance(index, (slice, str)) else held

    def __iter__(self: _Made) -> Iterator[_Made]:
        return (self[index] for index in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        if name not in (self.dtype.names or ()):
            raise AttributeError(f"{type(self).__name__} has no field {name}")
        field = self._data[name]
        if name in self.parts and field.ndim == 1:
            return self.parts[name]._over(field, self)
        if name in self.parts and len(self) == 1:
            return self.parts[name]._over(field[0], self)
        if len(self) > 1:
            return field
        return field[0] if field.ndim > 1 else field[0].item()

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in (self.dtype.names or ()):
            raise AttributeError(f"{type(self).__name__} has no field {name}")
        self._data[name] = value._data if isinstance(value, Struct) else value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Struct) and self._data.dtype == other._data.dtype and bool(np.array_equal(self._data, other._data))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<penstock.cuda_bindings.cufile.{type(self).__name__}, {len(self)} of them>"


# Addresses are signed numbers, as in cuda-python.
_handle_dtype = np.dtype({"names": ["fd", "handle"], "formats": ["<i4", "<i8"], "offsets": [0, 0], "itemsize": 8})
descr_dtype = np.dtype(
    {"names": ["type", "handle", "fs_ops"], "formats": ["<i4", _handle_dtype, "<i8"], "offsets": [0, 8, 16], "itemsize": 24}
)
_range_dtype = np.dtype([("dev_ptr_base", "<i8"), ("file_offset", "<i8"), ("dev_ptr_offset", "<i8"), ("size_", "<u8")])
_union_dtype = np.dtype([("batch", _range_dtype)])
io_params_dtype = np.dtype(
    {
        "names": ["mode", "u", "fh", "opcode", "cookie"],
        "formats": ["<i4", _union_dtype, "<i8", "<i4", "<i8"],
        "offsets": [0, 8, 40, 48, 56],
        "itemsize": 64,
    }
)
io_events_dtype = np.dtype(
    {"names": ["cookie", "status", "ret"], "formats": ["<i8", "<i4", "<u8"], "offsets": [0, 8, 16], "itemsize": 24}
)
io_vec_dtype = np.dtype([("base_", "<i8"), ("len", "<u8")])
op_counter_dtype = np.dtype([("ok", "<u8"), ("err", "<u8")])

_counters = ("read_ops", "write_ops", "hdl_register_ops", "hdl_deregister_ops", "buf_register_ops", "buf_deregister_ops")
_sums = ("bytes", "bw_bytes_per_sec", "lat_avg_us", "ops_per_sec", "lat_sum_us")
_batch_counters = (
    *("submit", "complete", "setup", "cancel", "destroy", "enqueued", "posix_enqueued", "processed", "posix_processed"),
    *("nvfs_submit", "p2p_submit", "aio_submit", "iouring_submit", "mixed_io_submit", "total_submit"),
)
_batch_sums = (
    *("read_bytes", "write_bytes", "read_bw_bytes", "write_bw_bytes", "submit_lat_avg_us", "completion_lat_avg_us"),
    *("submit_ops_per_sec", "complete_ops_per_sec", "submit_lat_sum_us", "completion_lat_sum_us"),
)
_vector_fields: list[tuple[str, np.dtype[Any]]] = [(f"{what}_ops", op_counter_dtype) for what in ("readv", "writev")]
_vector_fields += [(f"{what}_{of}", np.dtype("<u8")) for of in _sums for what in ("readv", "writev")]
# cuFile 1.15 to 1.18 do not support vectors.
_level1_of_1_15 = np.dtype(
    [(name, op_counter_dtype) for name in _counters]
    + [(f"{what}_{of}", np.dtype("<u8")) for of in _sums for what in ("read", "write")]
    + [(f"batch_{name}_ops", op_counter_dtype) for name in _batch_counters]
    + [(f"batch_{name}", np.dtype("<u8")) for name in _batch_sums]
    + [(f"last_batch_{what}_bytes", np.dtype("<u8")) for what in ("read", "write")]
)
stats_level1_dtype = np.dtype([(name, _level1_of_1_15[name]) for name in _level1_of_1_15.names or ()] + _vector_fields)
_gpu_fields = (
    *("read_bytes", "read_bw_bytes_per_sec", "read_utilization", "read_duration_us", "n_total_reads", "n_p2p_reads", "n_nvfs_reads"),
    *("n_posix_reads", "n_unaligned_reads", "n_dr_reads", "n_sparse_regions", "n_inline_regions", "n_reads_err", "writes_bytes"),
    *("write_bw_bytes_per_sec", "write_utilization", "write_duration_us", "n_total_writes", "n_p2p_writes", "n_nvfs_writes"),
    *("n_posix_writes", "n_unaligned_writes", "n_dr_writes", "n_writes_err", "n_mmap", "n_mmap_ok", "n_mmap_err", "n_mmap_free"),
    "reg_bytes",
)
per_gpu_stats_dtype = np.dtype([("uuid", "i1", (16,))] + [(name, "<u8") for name in _gpu_fields])


def _level2(basic: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype([("basic", basic), ("read_size_kb_hist", "<u8", (32,)), ("write_size_kb_hist", "<u8", (32,))])


def _level3(detailed: np.dtype[Any]) -> np.dtype[Any]:
    most_gpus = 16
    names = ["detailed", "num_gpus", "per_gpu_stats"]
    after = detailed.itemsize
    return np.dtype(
        {
            "names": names,
            "formats": [detailed, "<u4", (per_gpu_stats_dtype, (most_gpus,))],
            "offsets": [0, after, after + 8],
            "itemsize": after + 8 + most_gpus * per_gpu_stats_dtype.itemsize,
        }
    )


stats_level2_dtype = _level2(stats_level1_dtype)
stats_level3_dtype = _level3(stats_level2_dtype)


class _Handle(Struct):
    dtype = _handle_dtype


class _Range(Struct):
    dtype = _range_dtype


class _Union(Struct):
    dtype = _union_dtype
    parts = {"batch": _Range}


class Descr(Struct):
    """CUfileDescr_t: type, and handle with the descriptor fd."""

    dtype = descr_dtype
    parts = {"handle": _Handle}


class IOParams(Struct):
    """CUfileIOParams_t, a batch operation: mode, u.batch (dev_ptr_base, file_offset, dev_ptr_offset, size_), fh, opcode, cookie."""

    dtype = io_params_dtype
    parts = {"u": _Union}


class IOEvents(Struct):
    """CUfileIOEvents_t, the outcome of a batch operation: cookie, status, ret."""

    dtype = io_events_dtype


class IOVec(Struct):
    """CUfileIOVec_t, a piece of memory: base_, len."""

    dtype = io_vec_dtype


class OpCounter(Struct):
    """CUfileOpCounter_t: ok and err."""

    dtype = op_counter_dtype


class PerGpuStats(Struct):
    """CUfilePerGpuStats_t."""

    dtype = per_gpu_stats_dtype


class StatsLevel1(Struct):
    """CUfileStatsLevel1_t, in the layout of cuFile 1.19."""

    dtype = stats_level1_dtype
    parts = {name: OpCounter for name in stats_level1_dtype.names or () if stats_level1_dtype[name] == op_counter_dtype}


class StatsLevel2(Struct):
    """CUfileStatsLevel2_t: basic, and histograms by size."""

    dtype = stats_level2_dtype
    parts = {"basic": StatsLevel1}


class StatsLevel3(Struct):
    """CUfileStatsLevel3_t: detailed, num_gpus, per_gpu_stats."""

    dtype = stats_level3_dtype
    parts = {"detailed": StatsLevel2, "per_gpu_stats": PerGpuStats}


# Before cuFile 1.19.
_earlier = {1: _level1_of_1_15, 2: _level2(_level1_of_1_15), 3: _level3(_level2(_level1_of_1_15))}
_present: dict[int, type[Struct]] = {1: StatsLevel1, 2: StatsLevel2, 3: StatsLevel3}


def earlier_stats(level: int) -> np.ndarray[Any, Any]:
    """Returns memory for the statistics in the layout before cuFile 1.19."""
    return np.zeros(1, _earlier[level])


def fill_stats(level: int, ptr: int, found: np.ndarray[Any, Any]) -> None:
    """Copies statistics in the layout before 1.19 to ptr, in the current layout; missing fields are 0."""
    _copy_fields(_present[level].from_ptr(ptr)._data, found)


def _copy_fields(to: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> None:
    for name in to.dtype.names or ():
        if name not in (found.dtype.names or ()):
            to[name] = 0
        elif to.dtype[name] == found.dtype[name]:
            to[name] = found[name]
        else:
            _copy_fields(to[name], found[name])
