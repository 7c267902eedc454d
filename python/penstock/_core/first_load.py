"""The first load of a process: prepares the GPU, and reads a whole file, while Python imports what the load needs. With PENSTOCK_LOG=summary, prints how
long each step took.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from array import array
from types import TracebackType
from typing import Any, NamedTuple

from .. import _native
from . import package_seconds
from .futures import wait

__all__ = ["Early", "FirstLoad", "first_load"]

_POLL_SECONDS = 0.0002


class Early(NamedTuple):
    """A read of a whole file that starts before the modules that need it are imported. `memory`: a tensor of bytes that holds all tensors."""

    file: _native.File
    header: _native.TensorHeader
    memory: Any
    future: _native.Future[list[int]]


class FirstLoad:
    """A context manager around loads. Does nothing for loads after the first one, or for a load inside another one."""

    def __init__(self) -> None:
        self._import_began, self._import_seconds = time.perf_counter(), 0.0
        self._thread: int | None = None  # of the first load while it runs
        self._depth = 0
        self._done = False
        self._file: _native.File | None = None
        self._early: Early | None = None
        self._began = 0.0
        self._steps: list[tuple[str, float]] = []
        self._is_logged = os.environ.get("PENSTOCK_LOG") == "summary"
        self._bytes_before = 0
        self._watcher: threading.Thread | None = None

    def imports_end(self) -> None:
        """Records that the package and the submodule that loads are imported. Only the first such submodule counts."""
        self._import_seconds = self._import_seconds or package_seconds + time.perf_counter() - self._import_began

    def of(self, filename: Any, device: Any, as_torch: bool = False) -> FirstLoad:
        """Starts the first load. If the target is a GPU, opens the file, and prepares its threads, pinned memory and streams in the background.

        `as_torch`: the load needs all tensors of the file, as PyTorch tensors. The read then starts at once, without this preparation.
        """
        if self._done or self._thread is not None:
            return self
        self._thread = threading.get_ident()
        self._began = time.perf_counter()
        is_on_gpu = not (device is None or isinstance(device, str) and device in ("cpu", "cpu:0", "host") or getattr(device, "type", "") == "cpu")
        if is_on_gpu and isinstance(filename, (str, os.PathLike)) and not _native.is_url(filename):
            try:
                self._file = _native.open(os.fspath(filename))
                header = _native.read_safetensors(self._file) if as_torch else None
                self.mark("engine")
                # Never both: while threads pin memory, all other driver calls wait, including those of the read.
                if header is None or not self._start(self._file, header, device):
                    self._file.prepare(device)
            except Exception:  # not a single file, or a mistake that the load itself will report
                self._close()
        else:
            self.mark("engine")
        return self

    def _start(self, file: _native.File, header: _native.TensorHeader, device: Any) -> bool:
        """Allocates memory for all tensors, and starts reading. Returns False if there is nothing to read, or each tensor must be checked."""
        nbytes, _, packed = header.place(_native.MODEL_ALIGNMENT)
        if not nbytes or "F4" in header.kinds():
            return False
        from .devices import device_name, name_for_torch  # not needed on the CPU

        torch = sys.modules["torch"]
        memory = torch.empty(nbytes, dtype=torch.uint8, device=name_for_torch(device_name(device)))
        if memory.is_cuda:  # memory from the allocator may still be in use on the current stream
            torch.cuda.current_stream(memory.device).synchronize()
        else:  # the host device
            from .huge_pages import ask_for_huge_pages

            ask_for_huge_pages(memory.data_ptr(), nbytes)
        self.reads_begin()
        future = file.pread_ranges(_native.Pointer(memory.data_ptr(), nbytes, memory), *(array("q", each) for each in packed))
        self._early = Early(file, header, memory, future)
        self.mark("reads begin")
        return True

    def early(self, file: _native.File) -> Early | None:
        """Returns the read of this file if it has already started, else None. The end of the load cancels it unless `hand_over()` is called."""
        return self._early if self._early is not None and self._early.file is file else None

    def hand_over(self) -> None:
        """Leaves the early read to the caller, who waits for it."""
        self._early = None

    def __enter__(self) -> None:
        if self._thread == threading.get_ident():
            self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if self._thread != threading.get_ident():
            return
        self._depth -= 1
        if self._depth > 0:
            return
        self._thread, self._done = None, True
        self._close()
        if self._watcher is not None:
            self._watcher.join()
        if kind is None and self._is_logged:
            self._print(time.perf_counter() - self._began)

    def mark(self, step: str) -> None:
        """Records that a step of the first load has ended."""
        if self._is_logged and self._thread == threading.get_ident():
            self._steps.append((step, time.perf_counter() - self._began))

    def reads_begin(self) -> None:
        """Starts to watch for the first bytes, and records when they arrive."""
        if self._is_logged and self._thread == threading.get_ident() and self._watcher is None:
            self._bytes_before = _bytes_read()
            self._watcher = threading.Thread(target=self._watch, name="penstock-first", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        is_over = False
        while _bytes_read() == self._bytes_before:
            if is_over:  # nothing was read
                return
            is_over = self._thread is None
            time.sleep(_POLL_SECONDS)
        self._steps.append(("first bytes", time.perf_counter() - self._began))

    def take(self, name: str) -> _native.File | None:
        """Returns the open file, which the caller closes. If it has another name, closes it and returns None. A second call returns None."""
        if self._file is None or self._thread != threading.get_ident():
            return None
        if self._file.name != name:
            self._close()
            return None
        file, self._file = self._file, None
        return file

    def _close(self) -> None:
        if self._early is not None:
            self._early.future.cancel()
            wait([self._early.future])
            self._early = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _print(self, seconds: float) -> None:
        steps = "".join(f"{step} {at * 1e3:.1f} ms, " for step, at in self._steps)
        text = f"penstock: first load: imports {self._import_seconds * 1e3:.1f} ms; after the call: {steps}everything {seconds * 1e3:.1f} ms\n"
        try:
            sys.stderr.write(text)
        except (AttributeError, OSError, ValueError):  # stderr is closed
            pass


def _bytes_read() -> int:
    return sum(each["bytes"] for each in _native.stats()["paths"].values())


first_load = FirstLoad()
