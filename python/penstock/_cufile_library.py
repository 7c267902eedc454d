"""The functions of cuFile's C interface, as callables that release the GIL. They work on the engine that all of Penstock's faces share."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from typing import Any

from penstock import _native

__all__ = ["Answer", "calls", "words"]


class Answer(int):
    """A status of cuFile. cuda_error: CUDA's own number beside it, 0 where CUDA has reported none."""

    cuda_error: int

    def __new__(cls, status: int, cuda_error: int = 0) -> Answer:
        made = super().__new__(cls, status)
        made.cuda_error = cuda_error
        return made


class _Outcome(ctypes.Structure):
    """CUfileError_t."""

    _fields_ = [("status", ctypes.c_int), ("cuda_status", ctypes.c_int)]


_pointer, _size, _int, _unsigned, _offset = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint, ctypes.c_int64
_switch, _count = ctypes.c_bool, ctypes.c_ssize_t

# None: a CUfileError_t.
_shapes: dict[str, tuple[Any, ...]] = {
    "driver_open": (None,),
    "driver_close": (None,),
    "use_count": (ctypes.c_long,),
    "get_version": (None, _pointer),
    "driver_get_properties": (None, _pointer),
    "driver_set_poll_mode": (None, _switch, _size),
    "driver_set_max_direct_io_size": (None, _size),
    "driver_set_max_cache_size": (None, _size),
    "driver_set_max_pinned_mem_size": (None, _size),
    "handle_register": (None, _pointer, _pointer),
    "handle_deregister": (ctypes.c_int, _pointer),
    "buf_register": (None, _pointer, _size, _int),
    "buf_deregister": (None, _pointer),
    "read": (_count, _pointer, _pointer, _size, _offset, _offset),
    "write": (_count, _pointer, _pointer, _size, _offset, _offset),
    "readv": (_count, _pointer, _pointer, _size, _offset, _unsigned),
    "writev": (_count, _pointer, _pointer, _size, _offset, _unsigned),
    "read_async": (None, _pointer, _pointer, _pointer, _pointer, _pointer, _pointer, _pointer),
    "write_async": (None, _pointer, _pointer, _pointer, _pointer, _pointer, _pointer, _pointer),
    "stream_register": (None, _pointer, _unsigned),
    "stream_deregister": (None, _pointer),
    "batch_io_set_up": (None, _pointer, _unsigned),
    "batch_io_submit": (None, _pointer, _unsigned, _pointer, _unsigned),
    "batch_io_get_status": (None, _pointer, _unsigned, _pointer, _pointer, _pointer),
    "batch_io_cancel": (None, _pointer),
    "batch_io_destroy": (ctypes.c_int, _pointer),
    "get_parameter_size_t": (None, _int, _pointer),
    "set_parameter_size_t": (None, _int, _size),
    "get_parameter_bool": (None, _int, _pointer),
    "set_parameter_bool": (None, _int, _switch),
    "get_parameter_string": (None, _int, _pointer, _int),
    "set_parameter_string": (None, _int, _pointer),
    "get_parameter_min_max_value": (None, _int, _pointer, _pointer),
    "get_parameter_posix_pool_slab_array": (None, _pointer, _pointer, _int),
    "set_parameter_posix_pool_slab_array": (None, _pointer, _pointer, _int),
    "get_stats_level": (None, _pointer),
    "set_stats_level": (None, _int),
    "stats_start": (None,),
    "stats_stop": (None,),
    "stats_reset": (None,),
    "get_stats_l1": (None, _pointer),
    "get_stats_l2": (None, _pointer),
    "get_stats_l3": (None, _pointer),
    "get_bar_size_in_kb": (None, _int, _pointer),
}


_limits = {
    _pointer: (0, 1 << 64),
    _size: (0, 1 << 64),
    _unsigned: (0, 1 << 32),
    _int: (-(1 << 31), 1 << 31),
    _offset: (-(1 << 63), 1 << 63),
}


class _Calls:
    """Each function by its name in cuda-python. TypeError, OverflowError: an argument is no integer, or one that C's type does not hold.

    A function whose result is a CUfileError_t in C returns its number here, 0 for success; else an Answer. One whose result is a count returns -1 for a
    failure, and leaves the error in ctypes.get_errno(): one of cuFile's numbers, or of the system's.
    """

    def __getattr__(self, name: str) -> Callable[..., int]:
        """Each is made when it is first used: all of them take a millisecond."""
        if name not in _shapes:
            raise AttributeError(name)
        result, *kinds = _shapes[name]
        prototype = ctypes.CFUNCTYPE(_Outcome if result is None else result, *kinds, use_errno=True)
        made = _checked(name, prototype(_native._cufile_calls()[name]), kinds)
        setattr(self, name, made)
        return made


def _checked(name: str, call: Callable[..., Any], kinds: list[Any]) -> Callable[..., int]:
    checks = [_check_of(kind) for kind in kinds]

    def run(*arguments: Any) -> int:
        if len(arguments) != len(checks):
            raise TypeError(f"{name} takes {len(checks)} arguments, not {len(arguments)}")
        outcome = call(*[check(each) for check, each in zip(checks, arguments)])
        if not isinstance(outcome, _Outcome):
            return int(outcome)
        return Answer(outcome.status, outcome.cuda_status) if outcome.status != 0 else 0

    return run


def _check_of(kind: Any) -> Callable[[Any], Any]:
    if kind is _switch:
        return bool
    least, most = _limits[kind]

    def check(value: Any) -> int:
        number = operator.index(value)
        if not least <= number < most:
            raise OverflowError(f"{number} is out of the range of C's type")
        return number

    return check


calls = _Calls()


def words(status: int) -> str:
    """What one of cuFile's numbers means."""
    return _native._cufile_words(status)
