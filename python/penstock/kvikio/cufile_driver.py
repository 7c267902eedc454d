"""KvikIO's view of the cuFile driver.

Penstock needs no driver: it uses GPU-direct I/O where the machine has it, and is complete without. Opening and closing is counted;
settings are kept and checked, start at cuFile's defaults (in KiB), and change nothing.
"""

from __future__ import annotations

import atexit
import operator
import re
from typing import Any, overload

from penstock import cufile
from penstock._forks import forkable_lock

from ._config import ConfigContextManager, wanted_values

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

_nvidia_fs_version_file = "/proc/driver/nvidia-fs/version"


class DriverProperties:
    """The properties of the driver as attributes: four that can be set, the rest read-only (AttributeError). Sizes are in KiB."""

    def __init__(self) -> None:
        self._lock = forkable_lock()
        self._poll_mode = False
        self._poll_thresh_size = 4
        self._max_device_cache_size = 131072
        self._max_pinned_memory_size = 33554432

    @property
    def is_gds_available(self) -> bool:
        """Whether the nvidia-fs kernel module is loaded, which is what KvikIO asks. penstock.File.explain() tells what a file can have."""
        return self._version() != (0, 0)

    @property
    def major_version(self) -> int:
        """Of the nvidia-fs kernel module; 0 where it is not loaded."""
        return self._version()[0]

    @property
    def minor_version(self) -> int:
        """Of the nvidia-fs kernel module; 0 where it is not loaded."""
        return self._version()[1]

    @property
    def allow_compat_mode(self) -> bool:
        """Whether I/O works without GPU-direct: always."""
        return True

    @property
    def per_buffer_cache_size(self) -> int:
        """cuFile's default, in KiB."""
        return 1024

    @property
    def poll_mode(self) -> bool:
        """Whether completion is polled for."""
        return self._poll_mode

    @poll_mode.setter
    def poll_mode(self, enable: bool) -> None:
        self._poll_mode = bool(enable)

    @property
    def poll_thresh_size(self) -> int:
        """Up to this size, in KiB, completion is polled for in poll mode."""
        return self._poll_thresh_size

    @poll_thresh_size.setter
    def poll_thresh_size(self, kib: int) -> None:
        self._poll_thresh_size = _kib("poll_thresh_size", kib)

    @property
    def max_device_cache_size(self) -> int:
        """Memory of a GPU for bounce buffers, in KiB."""
        return self._max_device_cache_size

    @max_device_cache_size.setter
    def max_device_cache_size(self, kib: int) -> None:
        self._max_device_cache_size = _kib("max_device_cache_size", kib)

    @property
    def max_pinned_memory_size(self) -> int:
        """Memory of a GPU that may be registered, in KiB."""
        return self._max_pinned_memory_size

    @max_pinned_memory_size.setter
    def max_pinned_memory_size(self, kib: int) -> None:
        self._max_pinned_memory_size = _kib("max_pinned_memory_size", kib)

    @staticmethod
    def _version() -> tuple[int, int]:
        try:
            with open(_nvidia_fs_version_file, encoding="ascii", errors="replace") as told:
                found = re.search(r"(\d+)\.(\d+)", told.read())
        except OSError:
            return 0, 0
        return (int(found[1]), int(found[2])) if found else (0, 0)


properties = DriverProperties()
"""The properties of this process."""


@overload
def set(config: dict[str, Any], /) -> ConfigContextManager: ...


@overload
def set(key: str, value: Any, /) -> ConfigContextManager: ...


def set(*config: Any) -> ConfigContextManager:
    """Sets one property, set(name, value), or several, set({name: value}), at once; in a with statement, until its end.

    KeyError: unknown name, or one that is read-only. OverflowError: a negative value. ValueError: arguments of neither form.
    """
    wanted = wanted_values(config)
    for name in wanted:
        if name in _read_only:
            raise KeyError(f"{name} is read-only")
        if name not in _settable:
            raise KeyError(name)
    return ConfigContextManager(_apply, _apply(wanted))


def get(config_name: str) -> Any:
    """The value of a property. KeyError: unknown name."""
    if config_name not in _settable + _read_only:
        raise KeyError(config_name)
    return getattr(properties, config_name)


def libcufile_version() -> tuple[int, int]:
    """The (major, minor) version of cuFile that Penstock stands in for: that of penstock.cufile.get_version()."""
    major, rest = divmod(cufile.get_version(), 1000)
    return major, rest // 10


def driver_open() -> None:
    """Opens the driver, which is never needed; each call wants a driver_close()."""
    cufile.driver_open()


def driver_close() -> None:
    """Undoes one driver_open(). RuntimeError: there was none."""
    try:
        cufile.driver_close()
    except cufile.cuFileError as error:
        raise RuntimeError(str(error)) from error


def initialize() -> None:
    """Opens the driver now and closes it when the process ends."""
    driver_open()
    atexit.register(driver_close)


_settable = ("poll_mode", "poll_thresh_size", "max_device_cache_size", "max_pinned_memory_size")
_read_only = ("is_gds_available", "major_version", "minor_version", "allow_compat_mode", "per_buffer_cache_size")


def _kib(name: str, value: int) -> int:
    size = operator.index(value)
    if size < 0:
        raise OverflowError(f"{name}: can't convert negative value {size}")
    return size


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
