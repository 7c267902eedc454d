"""KvikIO's view of the cuFile driver.

Penstock needs no driver: it uses GPU-direct I/O if the machine supports it. driver_open() and driver_close() calls are only counted. Properties
initially have the values in cufile.json (in KiB). New values are checked and stored but have no effect; a RuntimeWarning says so once per process.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any, TypeVar, overload

from penstock import cufile
from penstock._core.file_facts import nvidia_fs_version
from penstock._core.forks import forkable_lock
from penstock._cufile.settings import Settings, read_settings

from . import defaults
from .defaults import ConfigContextManager, check_count, wanted_values

__all__ = [
    "ConfigContextManager",
    "DriverProperties",
    "driver_close",
    "driver_open",
    "get",
    "initialize",
    "libcufile_version",
    "properties",
    "set",
]


class DriverProperties:
    """The driver's properties as attributes. Four can be set; the others are read-only (AttributeError). Sizes are in KiB.

    Raises RuntimeError if cufile.json, which is read on first use, is unreadable or invalid.
    """

    def __init__(self) -> None:
        self._lock = forkable_lock()
        self._kept: Settings | None = None
        self._changed: dict[str, Any] = {}

    @property
    def is_gds_available(self) -> bool:
        """True if the nvidia-fs kernel module is loaded, as in KvikIO. penstock.File.explain() shows whether a file can use GPU-direct I/O."""
        return self._version() != (0, 0)

    @property
    def major_version(self) -> int:
        """Major version of the nvidia-fs kernel module; 0 if it is not loaded."""
        return self._version()[0]

    @property
    def minor_version(self) -> int:
        """Minor version of the nvidia-fs kernel module; 0 if it is not loaded."""
        return self._version()[1]

    @property
    def allow_compat_mode(self) -> bool:
        """True if I/O may work without GPU-direct, as it may unless cufile.json forbids it."""
        return bool(self._told("properties.allow_compat_mode"))

    @property
    def per_buffer_cache_size(self) -> int:
        """Size of one bounce buffer on a GPU, in KiB."""
        return int(self._told("properties.per_buffer_cache_size_kb"))

    @property
    def poll_mode(self) -> bool:
        """True if waiting threads poll for completion."""
        return bool(self._changed.get("poll_mode", self._told("properties.use_poll_mode")))

    @poll_mode.setter
    def poll_mode(self, enable: bool) -> None:
        self._change("poll_mode", bool(enable))

    @property
    def poll_thresh_size(self) -> int:
        """The size, in KiB, of the largest request that poll mode polls for."""
        return int(self._changed.get("poll_thresh_size", self._told("properties.poll_mode_max_size_kb")))

    @poll_thresh_size.setter
    def poll_thresh_size(self, kib: int) -> None:
        self._change("poll_thresh_size", check_count("poll_thresh_size", kib))

    @property
    def max_device_cache_size(self) -> int:
        """The amount of GPU memory for bounce buffers, in KiB."""
        return int(self._changed.get("max_device_cache_size", self._told("properties.max_device_cache_size_kb")))

    @max_device_cache_size.setter
    def max_device_cache_size(self, kib: int) -> None:
        self._change("max_device_cache_size", check_count("max_device_cache_size", kib))

    @property
    def max_pinned_memory_size(self) -> int:
        """The largest amount of GPU memory that may be registered, in KiB."""
        return int(self._changed.get("max_pinned_memory_size", self._told("properties.max_device_pinned_mem_size_kb")))

    @max_pinned_memory_size.setter
    def max_pinned_memory_size(self, kib: int) -> None:
        self._change("max_pinned_memory_size", check_count("max_pinned_memory_size", kib))

    def _change(self, name: str, value: int) -> None:
        if value != getattr(self, name):
            defaults.warn_once(f"cufile_driver.{name}", _UNUSED[name])
        self._changed[name] = value

    def _told(self, key: str) -> int | bool | str:
        if self._kept is None:
            self._kept = _attempt(read_settings)
        return self._kept.values[key]

    @staticmethod
    def _version() -> tuple[int, int]:
        version = nvidia_fs_version()
        if not version:
            return 0, 0
        major, minor = version.split(".")[:2]
        return int(major), int(minor)


Outcome = TypeVar("Outcome")

properties = DriverProperties()
"""The properties of this process."""


@overload
def set(config: dict[str, Any], /) -> ConfigContextManager: ...


@overload
def set(key: str, value: Any, /) -> ConfigContextManager: ...


def set(*config: Any) -> ConfigContextManager:
    """Sets one property with set(name, value), or several at once with set({name: value}). A with statement restores the old values at its end.

    Raises KeyError for an unknown or read-only name, OverflowError for a negative value, and ValueError for other arguments.
    """
    wanted = wanted_values(config)
    for name in wanted:
        if name in _read_only:
            raise KeyError(f"{name} is read-only")
        if name not in _settable:
            raise KeyError(name)
    return ConfigContextManager(_apply, _apply(wanted))


def get(config_name: str) -> Any:
    """Returns the value of a property. Raises KeyError for an unknown name."""
    if config_name not in _settable + _read_only:
        raise KeyError(config_name)
    return getattr(properties, config_name)


def libcufile_version() -> tuple[int, int]:
    """Returns the (major, minor) version of cuFile that Penstock replaces, as in penstock.cufile.get_version()."""
    major, rest = divmod(cufile.get_version(), 1000)
    return major, rest // 10


def driver_open() -> None:
    """Opens the driver. Never required. Each call needs its own driver_close(). Raises RuntimeError if cufile.json is unreadable or invalid."""
    _attempt(cufile.driver_open)


def driver_close() -> None:
    """Undoes one driver_open(). Raises RuntimeError if there was none."""
    _attempt(cufile.driver_close)


def initialize() -> None:
    """Opens the driver now and closes it when the process ends. Raises RuntimeError as driver_open() does."""
    driver_open()
    atexit.register(driver_close)


_OWN_WAITING = "waiting threads poll briefly, then sleep"
_OWN_MEMORY = "bytes pass through pinned host memory, which PENSTOCK_PINNED_MIB limits"
_OWN_REGISTRATIONS = "only NVIDIA's library registers GPU memory with the kernel, and it reads cufile.json itself"

# The reason why each setting has no effect.
_UNUSED = {
    "poll_mode": _OWN_WAITING,
    "poll_thresh_size": _OWN_WAITING,
    "max_device_cache_size": _OWN_MEMORY,
    "max_pinned_memory_size": _OWN_REGISTRATIONS,
}

_settable = ("poll_mode", "poll_thresh_size", "max_device_cache_size", "max_pinned_memory_size")
_read_only = ("is_gds_available", "major_version", "minor_version", "allow_compat_mode", "per_buffer_cache_size")


def _attempt(call: Callable[[], Outcome]) -> Outcome:
    try:
        return call()
    except cufile.cuFileError as error:
        raise RuntimeError(str(error)) from error


def _apply(wanted: dict[str, Any]) -> dict[str, Any]:
    with properties._lock:
        earlier = {name: getattr(properties, name) for name in wanted}
        try:
            for name, value in wanted.items():
                setattr(properties, name, value)
        except BaseException:
            for name, value in earlier.items():
                setattr(properties, name, value)
            raise
    return earlier


def __dir__() -> list[str]:
    return sorted(__all__)
