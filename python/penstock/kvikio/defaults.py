"""Both generations of KvikIO's settings: get() and set(), and a function for each setting.

Initial values come from KvikIO's environment variables. A variable is read and checked when its setting is first needed, and all of them when a file
is opened; a malformed one raises a ValueError that names it. Settings apply to the whole process. All functions are thread-safe.

A setting or variable that has no effect in Penstock causes a RuntimeWarning once per process and name: a setting when you set it to a different value
(`task_size` also when you pass it to pread() or another call), a variable when you open the first file. The guide "KvikIO and cuDF" lists all
settings.
"""

from __future__ import annotations

import builtins
import enum
import operator
import os
import sys
import warnings
from typing import Any, Callable, NamedTuple, overload

import penstock
from penstock._core.forks import forkable_lock

__all__ = [
    "CompatMode",
    "ConfigContextManager",
    "bounce_buffer_size",
    "bounce_buffer_size_reset",
    "compat_mode",
    "compat_mode_reset",
    "gds_threshold",
    "gds_threshold_reset",
    "get",
    "get_num_threads",
    "http_max_attempts",
    "http_max_attempts_reset",
    "http_status_codes",
    "http_status_codes_reset",
    "http_timeout",
    "http_timeout_reset",
    "is_compat_mode_preferred",
    "num_threads",
    "num_threads_reset",
    "reset_num_threads",
    "reset_task_size",
    "set",
    "set_bounce_buffer_size",
    "set_compat_mode",
    "set_gds_threshold",
    "set_http_max_attempts",
    "set_http_status_codes",
    "set_http_timeout",
    "set_num_threads",
    "set_task_size",
    "task_size",
    "task_size_reset",
]


class CompatMode(enum.IntEnum):
    """Controls whether GPU-direct I/O may be used. The names and numbers are KvikIO's."""

    OFF = 0
    ON = 1
    AUTO = 2


class ConfigContextManager:
    """The result of set(). At the end of a with block, it restores the earlier values. Created by set() only."""

    def __init__(self, apply: Callable[[dict[str, Any]], object], earlier: dict[str, Any]) -> None:
        self._apply = apply
        self._earlier = earlier

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._apply(self._earlier)


def wanted_values(config: tuple[Any, ...]) -> dict[str, Any]:
    """Returns the settings that the arguments of set() request: set(name, value) or set({name: value}). Raises ValueError for other arguments."""
    if len(config) == 1 and isinstance(config[0], dict):
        return dict(config[0])
    if len(config) == 2 and isinstance(config[0], str):
        return {config[0]: config[1]}
    raise ValueError("Valid arguments are set(config: dict) or set(key: str, value: Any)")


@overload
def set(config: dict[str, Any], /) -> ConfigContextManager: ...


@overload
def set(key: str, value: Any, /) -> ConfigContextManager: ...


def set(*config: Any) -> ConfigContextManager:
    """Sets one setting with set(name, value), or several at once with set({name: value}). A with statement restores the old values at its end.

    All values are checked before any is set. Raises KeyError for an unknown name, ValueError for zero if a positive integer is required or for any
    other form of arguments, OverflowError for a negative value, and TypeError for a value of the wrong type.
    """
    wanted = wanted_values(config)
    checked = {name: _SETTINGS[name].check(name, value) for name, value in wanted.items()}
    for name, value in checked.items():
        if name in _UNUSED:
            tell_of_unused(name, value)
    return ConfigContextManager(_apply, _apply(checked))


def get(config_name: str) -> Any:
    """Returns the value of a setting. Raises KeyError for an unknown name, and ValueError if its environment variable is malformed."""
    with _lock:
        value = _value(config_name)
    return list(value) if isinstance(value, list) else value


def current(config_name: str) -> Any:
    """Like get(), for a number or a switch, but without taking the lock once the value is known. Not part of KvikIO."""
    value = _values.get(config_name)
    return get(config_name) if value is None else value


def default_of(config_name: str) -> Any:
    """Returns a setting's default value. Not part of KvikIO."""
    return _SETTINGS[config_name].initial


def is_compat_mode_preferred() -> bool:
    """Returns True if no I/O can be GPU-direct: compat_mode is ON, or it is AUTO and no file on this machine can use GPU-direct I/O
    (penstock.gpu_direct_status()).
    """
    mode = get("compat_mode")
    return bool(mode == CompatMode.ON or (mode == CompatMode.AUTO and penstock.gpu_direct_status() is not None))


# The older interface: a function for each setting. The setters take effect immediately, and can also be used in a with statement.


def compat_mode() -> bool:
    """Returns True if "compat_mode" is ON, or AUTO resolves to ON. True and False equal CompatMode.ON and CompatMode.OFF, which KvikIO 24.12 to 25.02
    returned. The newer get("compat_mode") returns the CompatMode itself.
    """
    return is_compat_mode_preferred()


def compat_mode_reset(enable: bool | CompatMode) -> ConfigContextManager:
    """Sets "compat_mode"; True means ON, False means OFF."""
    return set("compat_mode", enable)


set_compat_mode = compat_mode_reset


def get_num_threads() -> int:
    """Returns the setting "num_threads"."""
    return int(get("num_threads"))


num_threads = get_num_threads


def reset_num_threads(nthreads: int) -> ConfigContextManager:
    """Sets "num_threads" to a positive integer."""
    return set("num_threads", nthreads)


num_threads_reset = reset_num_threads
set_num_threads = reset_num_threads


def task_size() -> int:
    """Returns the setting "task_size", in bytes."""
    return int(get("task_size"))


def reset_task_size(nbytes: int) -> ConfigContextManager:
    """Sets "task_size" to a positive number of bytes."""
    return set("task_size", nbytes)


task_size_reset = reset_task_size
set_task_size = reset_task_size


def gds_threshold() -> int:
    """Returns the setting "gds_threshold", in bytes."""
    return int(get("gds_threshold"))


def gds_threshold_reset(nbytes: int) -> ConfigContextManager:
    """Sets "gds_threshold" to a number of bytes, zero or more."""
    return set("gds_threshold", nbytes)


set_gds_threshold = gds_threshold_reset


def bounce_buffer_size() -> int:
    """Returns the setting "bounce_buffer_size", in bytes."""
    return int(get("bounce_buffer_size"))


def bounce_buffer_size_reset(nbytes: int) -> ConfigContextManager:
    """Sets "bounce_buffer_size" to a positive number of bytes."""
    return set("bounce_buffer_size", nbytes)


set_bounce_buffer_size = bounce_buffer_size_reset


def http_max_attempts() -> int:
    """Returns the setting "http_max_attempts"."""
    return int(get("http_max_attempts"))


def http_max_attempts_reset(attempts: int) -> ConfigContextManager:
    """Sets "http_max_attempts" to a positive integer."""
    return set("http_max_attempts", attempts)


set_http_max_attempts = http_max_attempts_reset


def http_status_codes() -> list[int]:
    """Returns the setting "http_status_codes"."""
    return list(get("http_status_codes"))


def http_status_codes_reset(status_codes: list[int]) -> ConfigContextManager:
    """Sets "http_status_codes" to a list of integers."""
    return set("http_status_codes", status_codes)


set_http_status_codes = http_status_codes_reset


def http_timeout() -> int:
    """Returns the setting "http_timeout", in seconds."""
    return int(get("http_timeout"))


def http_timeout_reset(timeout: int) -> ConfigContextManager:
    """Sets "http_timeout" to a positive number of seconds."""
    return set("http_timeout", timeout)


set_http_timeout = http_timeout_reset


class _Setting(NamedTuple):
    variables: tuple[str, ...]  # environment variables; all that are set must agree
    initial: Any
    check: Callable[[str, Any], Any]  # (name, value passed to set()) -> value to keep
    parse: Callable[[str, str], Any]  # (variable, its value) -> parsed value


def check_count(name: str, value: Any) -> int:
    count = operator.index(value)
    if count < 0:
        raise OverflowError(f"{name}: can't convert negative value {count}")
    return count


def _check_positive(name: str, value: Any) -> int:
    count = check_count(name, value)
    if count == 0:
        raise ValueError(f"{name} must be a positive integer, not 0")
    return count


def _check_switch(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if operator.index(value) in (0, 1):
        return bool(value)
    raise ValueError(f"{name} must be True or False, not {value!r}")


def _check_compat_mode(name: str, value: Any) -> CompatMode:
    try:
        return CompatMode(operator.index(value))
    except ValueError:
        raise ValueError(f"{name} must be a CompatMode, not {value!r}") from None


def _check_codes(name: str, value: Any) -> list[int]:
    return [check_count(name, code) for code in value]


def _parse_integer(check: Callable[[str, Any], int]) -> Callable[[str, str], int]:
    def parse(variable: str, text: str) -> int:
        try:
            return check(variable, int(text))
        except OverflowError as error:
            raise ValueError(f"{variable}={text}: {error}") from None
        except ValueError:
            raise ValueError(f"{variable}={text}: not a positive integer") from None

    return parse


def _parse_switch(variable: str, text: str) -> bool:
    word = text.strip().lower()
    if word in _ON_WORDS or word in _OFF_WORDS:
        return word in _ON_WORDS
    raise ValueError(f"{variable}={text}: neither {', '.join(_ON_WORDS)} nor {', '.join(_OFF_WORDS)}")


def _parse_compat_mode(variable: str, text: str) -> CompatMode:
    if text.strip().lower() == "auto":
        return CompatMode.AUTO
    try:
        return CompatMode.ON if _parse_switch(variable, text) else CompatMode.OFF
    except ValueError as error:
        raise ValueError(f"{error}, nor auto") from None


def _parse_codes(variable: str, text: str) -> list[int]:
    try:
        return [check_count(variable, int(code)) for code in text.split(",")]
    except (ValueError, OverflowError):
        raise ValueError(f"{variable}={text}: not a list of integers") from None


_ON_WORDS = ("on", "true", "yes", "1")
_OFF_WORDS = ("off", "false", "no", "0")


def _counted(initial: int, *variables: str, zero: bool = False) -> _Setting:
    check = check_count if zero else _check_positive
    return _Setting(variables, initial, check, _parse_integer(check))


_SETTINGS = {
    "compat_mode": _Setting(("KVIKIO_COMPAT_MODE",), CompatMode.AUTO, _check_compat_mode, _parse_compat_mode),
    "num_threads": _counted(1, "KVIKIO_NTHREADS", "KVIKIO_NUM_THREADS"),
    "task_size": _counted(4 << 20, "KVIKIO_TASK_SIZE"),
    "gds_threshold": _counted(16 << 10, "KVIKIO_GDS_THRESHOLD", zero=True),
    "bounce_buffer_size": _counted(16 << 20, "KVIKIO_BOUNCE_BUFFER_SIZE"),
    "auto_direct_io_read": _Setting(("KVIKIO_AUTO_DIRECT_IO_READ",), False, _check_switch, _parse_switch),
    "auto_direct_io_write": _Setting(("KVIKIO_AUTO_DIRECT_IO_WRITE",), True, _check_switch, _parse_switch),
    "http_max_attempts": _counted(3, "KVIKIO_HTTP_MAX_ATTEMPTS"),
    "http_status_codes": _Setting(
        ("KVIKIO_HTTP_STATUS_CODES",), [429, 500, 502, 503, 504], _check_codes, _parse_codes
    ),
    "http_timeout": _counted(60, "KVIKIO_HTTP_TIMEOUT"),
}

_OWN_THREADS = "Penstock uses as many threads as the PCIe links require; PENSTOCK_LANES sets the number"
_OWN_SIZES = "Penstock splits a request according to its size and the bytes in the page cache"
_OWN_MEMORY = "PENSTOCK_PINNED_MIB limits pinned memory"
_OWN_SERVERS = "Penstock adapts the number of connections to the server"

# The reason why each setting has no effect.
_UNUSED = {
    "num_threads": _OWN_THREADS,
    "task_size": _OWN_SIZES,
    "bounce_buffer_size": _OWN_MEMORY,
}
# Variables without a name in KvikIO's Python interface.
_UNUSED_VARIABLES = {
    "KVIKIO_REMOTE_VERBOSE": _OWN_SERVERS,
    "KVIKIO_REMOTE_IO_BACKEND": _OWN_SERVERS,
    "KVIKIO_REMOTE_IO_NUM_REACTORS": _OWN_SERVERS,
    "KVIKIO_REMOTE_IO_REACTOR_DISPATCH": _OWN_SERVERS,
    "KVIKIO_REMOTE_IO_MAX_CONCURRENT_REQUESTS": _OWN_SERVERS,
}
# Variables that need no warning, because they have an effect or request what Penstock always does.
_USED_VARIABLES = (
    "KVIKIO_AUTO_DIRECT_IO_READ_OVERREAD",
    "KVIKIO_THREAD_POOL_PER_BLOCK_DEVICE",
    "KVIKIO_LOG_LEVEL",
    "KVIKIO_LOG_FILE",
)
_warned: builtins.set[str] = builtins.set()


def warn_once(name: str, why: str) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"KvikIO's {name} has no effect in Penstock: {why}", RuntimeWarning, stacklevel=_level_of_the_caller())


def _level_of_the_caller() -> int:
    """Returns the stack level of the code that called into penstock, as seen from the caller of this function, for a warning."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "penstock":
        level, frame = level + 1, frame.f_back
    return level


def tell_of_unused(name: str, value: Any) -> None:
    """Warns once that a setting has no effect, if the new value differs from the current one."""
    if name not in _warned and value != get(name):
        warn_once(name, _UNUSED[name])


def tell_of_unused_variables() -> None:
    """Warns once about each environment variable that has no effect. Raises ValueError if one is malformed."""
    for name in _SETTINGS:
        if name not in _values:
            get(name)
    unused = dict(_UNUSED_VARIABLES)
    for name, why in _UNUSED.items():
        unused |= dict.fromkeys(_SETTINGS[name].variables, why)
    for variable, why in unused.items():
        if variable in os.environ:
            warn_once(variable, why)


def leave_threads_to_the_library() -> None:
    """Causes no warning about KVIKIO_NTHREADS, which also applies to KvikIO's C++ library. `penstock run` sets it."""
    _warned.add("KVIKIO_NTHREADS")


_lock = forkable_lock()
_values: dict[str, Any] = {}  # values that have been read or set so far; guarded by _lock


def _value(name: str) -> Any:
    if name not in _values:
        _values[name] = _from_environment(_SETTINGS[name])
    return _values[name]


def _apply(checked: dict[str, Any]) -> dict[str, Any]:
    with _lock:
        earlier = {name: _value(name) for name in checked}
        _values.update(checked)
    return earlier


def _from_environment(setting: _Setting) -> Any:
    found = {name: setting.parse(name, os.environ[name]) for name in setting.variables if name in os.environ}
    values = list(found.values())
    if any(value != values[0] for value in values):
        raise ValueError(f"{' and '.join(found)} are set to different values")
    return values[0] if values else setting.initial


def __dir__() -> list[str]:
    return sorted(__all__)
