"""The interface of torch.cuda.gds: replace `from torch.cuda import gds` with `from penstock import gds`.

It accepts PyTorch's untyped storages, and any object with data_ptr() and nbytes(), on a GPU, the CPU or the host device. It does not import torch,
and works even if PyTorch was built without cuFile.

Names, arguments, results and exception types are the same as in torch/cuda/gds.py (PyTorch 2.7 and later):

- RuntimeError: cuFile fails.
- AssertionError: the file is in the wrong state.
- OSError: the file cannot be opened.
- TypeError: the argument is not a storage.

This module opens the driver of penstock.cufile, and so reads the same settings (cufile.json and the CUFILE_ variables).
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import penstock
from penstock import _native
from penstock._core.arrays import settle
from penstock._core.closable import Closable
from penstock._core.file_facts import mode_of
from penstock._core.forks import forkable_lock
from penstock._core.small_files import open_file
from penstock._cufile.codes import OpError, cuFileError
from penstock._cufile.driver import driver
from penstock._cufile.library import calls, words
from penstock._cufile.settings import Settings

__all__ = ["Fallbacks", "GdsFile", "direct_io_fallbacks", "gds_deregister_buffer", "gds_register_buffer", "is_available"]


class Fallbacks(NamedTuple):
    """The number of files that this process opened without O_DIRECT, and the reason for the latest one; empty if there was none."""

    files: int
    reason: str


def direct_io_fallbacks() -> Fallbacks:
    """Returns how many GdsFile objects were opened without O_DIRECT because the file system does not support it. PyTorch raises an error instead."""
    with _lock:
        return _fallbacks


def is_available() -> bool:
    """Returns True if a GdsFile can use GPU storages: a GPU is usable, and cufile.json can be read.

    As in PyTorch 2.11 and later, this does not mean that bytes bypass the CPU. See penstock.gpu_direct_status() for that.
    """
    try:
        return penstock.cuda_status() is None and bool(_settings("is_available"))
    except RuntimeError:
        return False


def gds_register_buffer(s: Any) -> None:
    """Registers a storage that you use repeatedly, as penstock.cufile.buf_register() does. Never required.

    The memory must stay allocated until gds_deregister_buffer(): the registration does not keep it alive.

    Raises RuntimeError if memory at this address is already registered, the storage is empty, the storage is in host memory and cufile.json forbids
    host memory, or cufile.json cannot be read.
    """
    address, nbytes = _place_of("gds_register_buffer", s)
    if _settings("cuFileBufRegister").refuses(address):
        raise RuntimeError("cuFileBufRegister failed: the storage is in host memory, and allow_system_memory is false")
    if nbytes == 0:
        raise RuntimeError("gds_register_buffer: the storage has no bytes")
    status = calls.buf_register(address, nbytes, 0)
    if status == OpError.CU_FILE_MEMORY_ALREADY_REGISTERED:
        raise RuntimeError(f"gds_register_buffer: the storage at {address:#x} is already registered")
    if status != 0:
        raise RuntimeError(f"gds_register_buffer: the storage at {address:#x}: {words(status)}")


def gds_deregister_buffer(s: Any) -> None:
    """Undoes gds_register_buffer() and waits for the memory's GPU-direct transfers. Raises RuntimeError if the storage is not registered."""
    address, _ = _place_of("gds_deregister_buffer", s)
    if address == 0 or calls.buf_deregister(address) != 0:
        raise RuntimeError(f"gds_deregister_buffer: the storage at {address:#x} is not registered")


class GdsFile(Closable):
    """A file for loading and saving whole storages. A context manager. Thread-safe, except for close().

    - `filename`, `flags`: the arguments.
    - `fd`: the descriptor; -1 once closed.
    - `handle`: an integer while the file is registered, else None.
    - `fallback_reason`: why the file was opened without O_DIRECT; empty if it was opened with O_DIRECT.
    """

    def __init__(self, filename: str | os.PathLike[str], flags: int) -> None:
        """Opens filename with the flags of os.open() and O_DIRECT, and registers it. New files get mode 0777 less the umask, as in PyTorch.

        If the file system does not support O_DIRECT, the file is opened without it: direct_io_fallbacks() counts this, and fallback_reason contains
        the reason. Raises OSError as os.open() does, and RuntimeError as register_handle() does.
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
        """Registers the file for load_storage() and save_storage(). A new GdsFile is already registered.

        - AssertionError: the file is already registered.
        - RuntimeError: it is not a regular file or block device, it was opened with O_APPEND, cufile.json cannot be read, or cufile.json allows only
          GPU-direct transfers, which the file cannot use.
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
        """Undoes register_handle() and waits for transfers in progress. Raises AssertionError if the file is not registered."""
        assert self.handle is not None, "Cannot deregister a handle that is not registered."
        file, self._file, self.handle = self._file, None, None
        if file is not None:
            file.close()

    def load_storage(self, storage: Any, offset: int = 0) -> None:
        """Fills the storage from the file, starting at offset (in bytes). Blocks and releases the GIL.

        - AssertionError: the file is not registered.
        - RuntimeError: the storage was not filled, for example at end of file. The message says how many bytes were read.
        """
        assert self._file is not None, "Cannot load data from a file that is not registered."
        self._complete("load_storage", "cuFileRead", self._file.read_into, storage, offset)

    def save_storage(self, storage: Any, offset: int = 0) -> None:
        """Writes the whole storage to the file, starting at offset (in bytes). Blocks and releases the GIL. Errors as for load_storage()."""
        assert self._file is not None, "Cannot save data to a file that is not registered."
        settle(storage)
        self._complete("save_storage", "cuFileWrite", self._file.write_from, storage, offset)

    def close(self) -> None:
        """Deregisters and closes the file. Does nothing if it is already closed. In PyTorch, only the destructor closes a file."""
        if self.handle is not None:
            self.deregister_handle()
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def _open(self) -> int:
        try:
            descriptor = self._open_file(self.flags | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # The kernel rejects O_DIRECT only after it has created the file, so a second exclusive creation would fail.
            descriptor = self._open_file(self.flags & ~os.O_EXCL)
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:  # `penstock run` also drops it
            return descriptor
        self.fallback_reason = f"the file system of {os.fspath(self.filename)} does not support direct I/O"
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
        """Transfers the whole storage, and raises if that fails. `word` is the one used in PyTorch's messages."""
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
    """Returns the address and the number of bytes. Raises TypeError for objects other than storages, and RuntimeError if the memory cannot be
    used."""
    try:
        return _native.resolve(storage, False)
    except penstock.Error as error:
        raise RuntimeError(f"{what}: {error}") from error


def __dir__() -> list[str]:
    return sorted(__all__)
