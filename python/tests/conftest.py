"""What tests of several modules share: memory of every kind, and bytes that tell where they came from."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import _native


class HostMemory:
    """NumPy arrays of bytes."""

    device = None

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def empty(self, nbytes: int) -> Any:
        return np.zeros(nbytes, np.uint8)

    def of(self, content: bytes) -> Any:
        return np.frombuffer(content, np.uint8).copy()

    def bytes(self, buffer: Any) -> bytes:
        return bytes(buffer)

    def address(self, buffer: Any) -> int:
        """Its address; from then on it lives as long as this."""
        self._kept.append(buffer)
        return int(buffer.ctypes.data)


class DeviceMemory:
    """Buffers of one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._kept: list[Any] = []

    def empty(self, nbytes: int) -> Any:
        return penstock.device(self.device).empty(nbytes)

    def of(self, content: bytes) -> Any:
        buffer = self.empty(len(content))
        buffer.copy_from(content)
        return buffer

    def bytes(self, buffer: Any) -> bytes:
        return bytes(buffer.to_host())

    def address(self, buffer: Any) -> int:
        """Its address; from then on it lives as long as this."""
        self._kept.append(buffer)
        return int(buffer.ptr)


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in its background with SIGINT ignored, which the processes of the tests would inherit: Ctrl-C would not end them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # zarr's own tests of stores are coroutines without a mark.
    if config.pluginmanager.hasplugin("asyncio"):
        config.option.asyncio_mode = "auto"


DEVICES = [device.name for device in penstock.devices() if device.name in ("host:0", "cuda:0")]


@pytest.fixture(params=["numpy", *DEVICES])
def memory(request: pytest.FixtureRequest) -> Any:
    """Memory of the host, of the host device and of the first GPU there is, behind one set of functions."""
    return HostMemory() if request.param == "numpy" else DeviceMemory(request.param)


@pytest.fixture(params=DEVICES)
def device_memory(request: pytest.FixtureRequest) -> Any:
    """Memory of the host device and of the first GPU there is."""
    return DeviceMemory(request.param)


@pytest.fixture(scope="session")
def pattern() -> Callable[[int], bytes]:
    """pattern(n): n bytes that do not repeat at any power of two."""
    return lambda nbytes: (np.arange(nbytes, dtype=np.uint32) * 2654435761 >> 13).astype(np.uint8).tobytes()


@pytest.fixture(scope="module", autouse=True)
def stays_level() -> Iterator[None]:
    """A file of tests leaves no request, no held buffer, no open file and no thread behind."""
    _warm_up()
    gc.collect()  # first, because it may end threads
    before = _held()
    gc.freeze()  # modules imported so far: otherwise, each collection scans all of PyTorch, which takes 0.2 s
    yield
    gc.collect()
    _native._settle()
    until = time.monotonic() + 5  # requests on closed pipes, and threads that are about to end
    while _held() - before and time.monotonic() < until:
        time.sleep(0.01)
    assert not _held() - before


def _held() -> Counter[Any]:
    """What this process holds, and how often. What the files of tests before this one left may end at any time, so only what is new counts."""
    held: Counter[Any] = Counter(requests=_native._under_way(), buffers=_native._held_memories())
    held.update(filter(None, map(_link, os.listdir("/proc/self/fd"))))
    held.update(threading.enumerate())
    return held


def _link(descriptor: str) -> str | None:
    try:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    # Rings, events and devices are the engine's, made when first needed.
    return None if target.startswith(("anon_inode:", "/dev/", "/memfd:", "/proc/", "pipe:", "socket:")) else target


def _warm_up() -> None:
    with penstock.open(__file__) as file:
        file.pread(bytearray(16)).result()
    _native._settle()
    _native._settle()


@pytest.fixture
def torch_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are of the libraries that a program without PyTorch gets, although other tests have imported it."""
    monkeypatch.setattr("penstock._core.libraries._imported_torch", lambda: None)
