"""The functions of cuFile's C interface, as callables that release the GIL. They use the engine that all of Penstock's interfaces share."""

from __future__ import annotations

import ctypes
import errno
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock import _native

__all__ = ["Answer", "calls", "is_reachable", "lowest_address", "words"]

lowest_address = 1 << 16  # Linux maps no memory below it (vm.mmap_min_addr), and descriptors are smaller numbers


class Answer(int):
    """A cuFile status. `cuda_error` is CUDA's error number, or 0 if CUDA reported no error. `reason` contains details, if there are any."""

    cuda_error: int
    reason: str

    def __new__(cls, status: int, cuda_error: int = 0, reason: str = "") -> Answer:
        made = super().__new__(cls, status)
        made.cuda_error = cuda_error
        made.reason = reason
        return made


class _Memory(NamedTuple):
    """An argument that is the address of `nbytes` bytes. The kernel checks that they are mapped, so that a wrong address does not crash the process.

    `nbytes` is a number, or a function of all arguments. The C function handles the address 0 (null) itself.
    """

    writable: bool
    nbytes: int | Callable[[Sequence[int]], int]


class _Outcome(ctypes.Structure):
    """CUfileError_t."""

    _fields_ = [("status", ctypes.c_int), ("cuda_status", ctypes.c_int)]


def _in(nbytes: int | Callable[[Sequence[int]], int]) -> _Memory:
    return _Memory(False, nbytes)


def _out(nbytes: int | Callable[[Sequence[int]], int]) -> _Memory:
    return _Memory(True, nbytes)


_pointer, _size, _int, _unsigned, _offset = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint, ctypes.c_int64
_switch, _count = ctypes.c_bool, ctypes.c_ssize_t

_most_pieces, _most_operations = 1024, 256  # limits of vectors and batches: the C functions reject more


def _number_at(address: int) -> int:
    """Returns the unsigned int at an address, or 0 if it cannot be read; the check of that argument reports the error."""
    return ctypes.c_uint.from_address(address).value if is_reachable(address, 4) else 0


# None stands for a CUfileError_t. The C functions check strings and statistics themselves, because they know their lengths.
_shapes: dict[str, tuple[Any, ...]] = {
    "driver_open": (None,),
    "driver_close": (None,),
    "use_count": (ctypes.c_long,),
    "get_version": (None, _out(4)),
    "driver_get_properties": (None, _out(56)),
    "driver_set_poll_mode": (None, _switch, _size),
    "driver_set_max_direct_io_size": (None, _size),
    "driver_set_max_cache_size": (None, _size),
    "driver_set_max_pinned_mem_size": (None, _size),
    "handle_register": (None, _out(8), _in(24)),
    "handle_deregister": (ctypes.c_int, _pointer),
    "buf_register": (None, _pointer, _size, _int),
    "buf_deregister": (None, _pointer),
    "read": (_count, _pointer, _pointer, _size, _offset, _offset),
    "write": (_count, _pointer, _pointer, _size, _offset, _offset),
    "readv": (_count, _pointer, _in(lambda a: 16 * a[2] if a[2] <= _most_pieces else 1), _size, _offset, _unsigned),
    "writev": (_count, _pointer, _in(lambda a: 16 * a[2] if a[2] <= _most_pieces else 1), _size, _offset, _unsigned),
    "read_async": (None, _pointer, _pointer, _in(8), _in(8), _in(8), _out(8), _pointer),
    "write_async": (None, _pointer, _pointer, _in(8), _in(8), _in(8), _out(8), _pointer),
    "stream_register": (None, _pointer, _unsigned),
    "stream_deregister": (None, _pointer),
    "batch_io_set_up": (None, _out(8), _unsigned),
    "batch_io_submit": (None, _pointer, _unsigned, _in(lambda a: 64 * a[1] if a[1] <= _most_operations else 1), _unsigned),
    "batch_io_get_status": (None, _pointer, _unsigned, _out(4), _out(lambda a: 24 * min(_number_at(a[2]), _most_operations)), _in(4)),
    "batch_io_cancel": (None, _pointer),
    "batch_io_destroy": (ctypes.c_int, _pointer),
    "get_parameter_size_t": (None, _int, _out(8)),
    "set_parameter_size_t": (None, _int, _size),
    "get_parameter_bool": (None, _int, _out(1)),
    "set_parameter_bool": (None, _int, _switch),
    "get_parameter_string": (None, _int, _pointer, _int),
    "set_parameter_string": (None, _int, _pointer),
    "get_parameter_min_max_value": (None, _int, _out(8), _out(8)),
    "get_parameter_posix_pool_slab_array": (None, _out(lambda a: 8 * max(a[2], 0)), _out(lambda a: 8 * max(a[2], 0)), _int),
    "set_parameter_posix_pool_slab_array": (None, _in(lambda a: 8 * max(a[2], 0)), _in(lambda a: 8 * max(a[2], 0)), _int),
    "get_stats_level": (None, _out(4)),
    "set_stats_level": (None, _int),
    "stats_start": (None,),
    "stats_stop": (None,),
    "stats_reset": (None,),
    "get_stats_l1": (None, _pointer),
    "get_stats_l2": (None, _pointer),
    "get_stats_l3": (None, _pointer),
    "get_bar_size_in_kb": (None, _int, _out(8)),
}


_limits = {
    _pointer: (0, 1 << 64),
    _size: (0, 1 << 64),
    _unsigned: (0, 1 << 32),
    _int: (-(1 << 31), 1 << 31),
    _offset: (-(1 << 63), 1 << 63),
}


class _Calls:
    """Each function by its name in cuda-python. Raises TypeError if an argument is not an integer, and OverflowError if the C type cannot represent
    it.

    A function that returns a CUfileError_t in C returns 0 on success here, and an Answer on failure. A function that returns a count returns -1 on
    failure, and ctypes.get_errno() is then a cuFile status or an errno.
    """

    def __getattr__(self, name: str) -> Callable[..., int]:
        """Creates a function on first use, because creating all of them takes a millisecond."""
        if name not in _shapes:
            raise AttributeError(name)
        result, *kinds = _shapes[name]
        types = [_pointer if isinstance(kind, _Memory) else kind for kind in kinds]
        prototype = ctypes.CFUNCTYPE(_Outcome if result is None else result, *types, use_errno=True)
        made = _checked(name, prototype(_native._cufile_calls()[name]), kinds)
        setattr(self, name, made)
        return made


def _checked(name: str, call: Callable[..., Any], kinds: list[Any]) -> Callable[..., int]:
    checks = [_check_of(_pointer if isinstance(kind, _Memory) else kind) for kind in kinds]
    memories = [(place, kind) for place, kind in enumerate(kinds) if isinstance(kind, _Memory)]

    def run(*arguments: Any) -> int:
        if len(arguments) != len(checks):
            raise TypeError(f"{name} takes {len(checks)} arguments, but {len(arguments)} were given")
        values = [check(each) for check, each in zip(checks, arguments)]
        for place, kind in memories:
            nbytes = kind.nbytes if isinstance(kind.nbytes, int) else kind.nbytes(values)
            if values[place] != 0 and not is_reachable(values[place], nbytes, kind.writable):
                return _unreachable(name, values[place], nbytes, kind.writable, is_count=name in _counts)
        outcome = call(*values)
        if not isinstance(outcome, _Outcome):
            return int(outcome)
        return Answer(outcome.status, outcome.cuda_status) if outcome.status != 0 else 0

    return run


_counts = frozenset(name for name, shape in _shapes.items() if shape[0] is _count)


def _unreachable(name: str, address: int, nbytes: int, writable: bool, *, is_count: bool) -> int:
    if is_count:
        ctypes.set_errno(errno.EINVAL)
        return -1
    use = "written" if writable else "read"
    return Answer(_invalid_value, reason=f"{name}: {address:#x} is not the address of {nbytes} bytes that can be {use}")


_invalid_value = 5022  # CU_FILE_INVALID_VALUE


def is_reachable(address: int, nbytes: int, writable: bool = False) -> bool:
    """Returns True if this many bytes are mapped at the address. Queries the kernel, and does not access the memory."""
    return 0 <= address < 1 << 64 and _native._cufile_reachable(address, nbytes, writable)


def _check_of(kind: Any) -> Callable[[Any], Any]:
    if kind is _switch:
        return bool
    least, most = _limits[kind]

    def check(value: Any) -> int:
        number = operator.index(value)
        if not least <= number < most:
            raise OverflowError(f"{number} is out of range for the C type")
        return number

    return check


calls = _Calls()


def words(status: int) -> str:
    """Returns the description of a cuFile status."""
    return _native._cufile_words(status)
