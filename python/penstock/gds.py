"""The interface of torch.cuda.gds over Penstock: `from penstock import gds as torch_gds` in place of `from torch.cuda import gds`.

Takes PyTorch's untyped storages, and whatever else has data_ptr() and nbytes(): of a GPU or of the CPU, also where PyTorch was built
without cuFile, and memory of the host device. Does not import torch. Names, arguments, results and the types of errors are those of
torch/cuda/gds.py (PyTorch 2.7 and later): RuntimeError where cuFile fails, AssertionError for a file in the wrong state, OSError where the
file cannot be opened, TypeError for what is no storage. The settings of cuFile (cufile.json and its variables) are those of penstock.cufile,
whose driver this opens.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

import penstock
from penstock import _native
from penstock._cufile_codes import OpError, cuFileError
from penstock._cufile_driver import driver
from penstock._cufile_library import calls, words
from penstock._cufile_settings import Settings
from penstock._file_facts import mode_of
from penstock._forks import forkable_lock
from penstock._small_files import open_file

__all__ = ["Fallbacks", "GdsFile", "direct_io_fallbacks", "gds_deregister_buffer", "gds_register_buffer", "is_available"]


class Fallbacks(NamedTuple):
    """How many files of this process were opened without O_DIRECT, and why the latest was; empty when none."""

    files: int
    reason: str


def direct_io_fallbacks() -> Fallbacks:
    """How often a file system refused O_DIRECT, so that a GdsFile went without. Not in PyTorch, which raises there."""
    with _lock:
        return _fallbacks


def is_available() -> bool:
    """Whether a GdsFile can take storages of a GPU: whether one can be used, and cufile.json can be read.

    Of PyTorch 2.11 and later, where it means no more either. Whether bytes bypass the CPU is told by penstock.gpu_direct_status().
    """
    try:
        return penstock.cuda_status() is None and bool(_settings("is_available"))
    except RuntimeError:
        return False


def gds_register_buffer(s: Any) -> None:
    """Registers a storage for repeated use, as penstock.cufile.buf_register() does. Never required.

    Its memory must stay allocated until gds_deregister_buffer(): nothing keeps it. RuntimeError: memory at its address is registered, or it
    has no bytes; it is memory of the host, and cufile.json allows none; cufile.json cannot be read.
    """
    address, nbytes = _place_of("gds_register_buffer", s)
    if _settings("cuFileBufRegister").refuses(address):
        raise RuntimeError("cuFileBufRegister failed: the storage is in host memory, and allow_system_memory is false")
    if nbytes == 0:
        raise RuntimeError("gds_register_buffer: the storage has no bytes")
    status = calls.buf_register(address, nbytes, 0)
    if status == OpError.CU_FILE_MEMORY_ALREADY_REGISTERED:
        raise RuntimeError(f"gds_register_buffer: the storage at {address:#x} is registered already")
    if status != 0:
        raise RuntimeError(f"gds_register_buffer: the storage at {address:#x}: {words(status)}")


def gds_deregister_buffer(s: Any) -> None:
    """Undoes gds_register_buffer(), after the GPU-direct transfers of its memory. RuntimeError: the storage is not registered."""
    address, _ = _place_of("gds_deregister_buffer", s)
    if address == 0 or calls.buf_deregister(address) != 0:
        raise RuntimeError(f"gds_deregister_buffer: the storage at {address:#x} is not registered")


class GdsFile:
    """A file that whole storages are loaded from and saved to. A context manager. Thread-safe, except for close().

    filename, flags: as given. fd: its descriptor; -1 once closed. handle: an integer while it is registered, else None.
    fallback_reason: why it was opened without O_DIRECT; empty when it was opened with it.
    """

    def __init__(self, filename: str | os.PathLike[str], flags: int) -> None:
        """Opens filename with os.open()'s flags and O_DIRECT (new files: 0777 less the umask, as PyTorch), and registers it.

        Where the file system refuses O_DIRECT, without: counted by direct_io_fallbacks(), explained by fallback_reason. OSError as from
        os.open(). RuntimeError: as from register_handle().
        """
        self.filename = filename
        self.flags = flags
        self.fd = -1
        self.handle: int | None = None
        self.fallback_reason = ""
        self._file: penstock.File | None = None
        self._settings: Settings | None = None
        self.fd = self._open()
        self.register_handle()

    def register_handle(self) -> None:
        """Readies the file for load_storage() and save_storage(), which it is from the start.

        AssertionError: it is registered already. RuntimeError: it is no regular file or block device, or was opened with O_APPEND, which
        ignores offsets; it cannot be GPU-direct, and cufile.json allows nothing else; cufile.json cannot be read.
        """
        assert self.handle is None, "Cannot register a handle that is already registered."
        self._settings = _settings("cuFileHandleRegister")
        try:
            file = penstock.open(self.fd, mode_of(self.flags))
        except penstock.Error as error:
            raise RuntimeError(f"cuFileHandleRegister failed: {os.fspath(self.filename)}: {error}") from error
        refusal = self._settings.refusal(file)
        if refusal is not None:
            file.close()
            raise RuntimeError(f"cuFileHandleRegister failed: {os.fspath(self.filename)}: {refusal}")
        self._file = file
        self.handle = next(_handles)

    def deregister_handle(self) -> None:
        """Undoes register_handle(), after what still runs. AssertionError: it is not registered."""
        assert self.handle is not None, "Cannot deregister a handle that is not registered."
        file, self._file, self.handle = self._file, None, None
        if file is not None:
            file.close()

    def load_storage(self, storage: Any, offset: int = 0) -> None:
        """Fills the storage with the bytes of the file from offset on. Blocks; releases the GIL.

        AssertionError: the file is not registered. RuntimeError: it was not filled, at end of file too; the message tells how far it got.
        """
        assert self._file is not None, "Cannot load data from a file that is not registered."
        self._complete("load_storage", "cuFileRead", self._file.read_into, storage, offset)

    def save_storage(self, storage: Any, offset: int = 0) -> None:
        """Writes all bytes of the storage to the file from offset on. Blocks; releases the GIL. Errors as for load_storage()."""
        assert self._file is not None, "Cannot save data to a file that is not registered."
        _settle(storage)
        self._complete("save_storage", "cuFileWrite", self._file.write_from, storage, offset)

    def close(self) -> None:
        """Deregisters and closes the file. A second time does nothing. Not in PyTorch, where only the destructor does it."""
        if self.handle is not None:
            self.deregister_handle()
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __enter__(self) -> GdsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def _open(self) -> int:
        try:
            return self._open_file(self.flags | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        # The refusal comes after the file was made: asked to make a new one, it would find its own.
        descriptor = self._open_file(self.flags & ~os.O_EXCL)
        self.fallback_reason = f"the file system of {os.fspath(self.filename)} has no direct I/O"
        global _fallbacks
        with _lock:
            _fallbacks = Fallbacks(_fallbacks.files + 1, self.fallback_reason)
        return descriptor

    def _open_file(self, flags: int) -> int:
        try:
            return open_file(self.filename, flags, 0o777)
        except penstock.NotAFile as error:
            raise RuntimeError(f"cuFileHandleRegister failed: {error}") from error

    def _complete(self, what: str, word: str, call: Callable[..., int], storage: Any, offset: int) -> None:
        """word: what PyTorch names in its messages."""
        place = f"{what}: {os.fspath(self.filename)} at {offset}"
        address, nbytes = _place_of(what, storage)
        assert self._settings is not None
        if self._settings.refuses(address):
            raise RuntimeError(f"{word} failed: {place}: the storage is in host memory, and allow_system_memory is false")
        try:
            done = call(storage, offset, path=self._settings.path_for(address))
        except penstock.Error as error:
            raise RuntimeError(f"{word} failed: {place}: {error.bytes_done} of {nbytes} bytes, then {error}") from error
        if done != nbytes:
            expected = f"expected {nbytes} bytes, got {done}"
            raise RuntimeError(f"{word} partial read: {expected}: {place}: {done} of {nbytes} bytes, then the end of the file")


_lock = forkable_lock()
_fallbacks = Fallbacks(0, "")
_handles = itertools.count(1)


def _settings(what: str) -> Settings:
    try:
        return driver.settings()
    except cuFileError as error:
        raise RuntimeError(f"{what} failed: {error}") from error


def _place_of(what: str, storage: Any) -> tuple[int, int]:
    """Address and bytes. TypeError: it is no storage. RuntimeError: its memory cannot be used."""
    try:
        return _native.resolve(storage, False)
    except penstock.Error as error:
        raise RuntimeError(f"{what}: {error}") from error


def _settle(storage: Any) -> None:
    """Waits for the work that makes what a storage holds, as far as it is on PyTorch's current stream."""
    device = getattr(storage, "device", None)
    if getattr(device, "type", None) == "cuda":
        sys.modules["torch"].cuda.current_stream(device).synchronize()


def __dir__() -> list[str]:
    return sorted(__all__)
