"""Calls NVIDIA's nvCOMP, if it is installed, to decode many chunks at once in GPU memory.

The C interface (versions 5 and 6) reports each chunk's status and length, which nvCOMP's Python package does not. The wheels are
nvidia-libnvcomp-cu12 and -cu13; nvidia-nvcomp-cu12 depends on one of them. Requires cupy.

nvCOMP expects chunks exactly as a compressor wrote them (according to its release notes, it "can only operate on valid input data"). Tests with
corrupt chunks on an H200 with version 6: zstd accesses unmapped memory, which destroys the process's CUDA context, if the frame or its blocks are
incomplete (_frames.py detects this), and sometimes if bytes within a block are wrong, in which case it may also hang. lz4, gzip and zlib write far
past the ends of their buffers.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import penstock
from penstock.zarr._codecs import ByteCodec
from penstock.zarr._frames import whole_frames

__all__ = ["Nvcomp", "Payload", "payload_of", "problem"]

_SONAMES = ("libnvcomp.so.6", "libnvcomp.so.5")
_ON_SMS = 2  # NVCOMP_DECOMPRESS_BACKEND_CUDA: newer GPUs' hardware engine requires specially allocated memory
_SHARE_OF_FREE_MEMORY = 8  # decoded chunks use 1/8 of free GPU memory; zstd needs more than three times as much for itself
_LARGEST_CHUNK = 2**31 - 1  # nvcompZstdDecompressionMaxAllowedChunkSize, the smallest limit of all algorithms


# nvCOMP decodes 1 GiB in a tenth of a second, and a single large chunk at about 0.1 GB/s.
_SECONDS_AT_LEAST = 30
_SLOWEST = 1 << 24  # decoded bytes per second
_NOT_READY = 600  # cudaErrorNotReady


@dataclass(frozen=True)
class Payload:
    """nvCOMP's name for a codec, and the bytes before and after its payload in a chunk."""

    algorithm: str
    before: int
    behind: int
    whole: Callable[..., Any] | None = None  # a function such as whole_frames(), which finds the chunks that nvCOMP may decode


# numcodecs stores the size before the LZ4 block. zlib adds a 2-byte header, and a checksum that nvCOMP does not verify.
_PAYLOADS = {
    "gzip": Payload("Gzip", 0, 0),
    "lz4": Payload("LZ4", 4, 0),
    "zlib": Payload("Deflate", 2, 4),
    "zstd": Payload("Zstd", 0, 0, whole_frames),
}


def payload_of(codecs: Sequence[ByteCodec], chunk_bytes: int) -> Payload | str:
    """Returns the part of these chunks that nvCOMP decodes, or the reason why it cannot decode them."""
    if len(codecs) != 1:
        return f"its bytes were encoded with {len(codecs)} codecs"
    found = _PAYLOADS.get(codecs[0].name)
    if found is None:
        return f"nvCOMP does not support {codecs[0].name}"
    if chunk_bytes > _LARGEST_CHUNK:
        return f"a chunk has {chunk_bytes} bytes, but nvCOMP supports at most {_LARGEST_CHUNK}"
    return found


def problem() -> str | None:
    """Returns why this process cannot use nvCOMP, or None if it can."""
    try:
        import cupy  # noqa: F401
    except ImportError:
        return "cupy is not installed"
    return None if _library() is not None else "nvCOMP is not installed (pip install nvidia-libnvcomp-cu12, or -cu13)"


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def _candidates() -> list[str]:
    """Returns the libraries in the wheels, then the system's libraries."""
    try:
        import nvidia.libnvcomp as package  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return list(_SONAMES)
    folders = [os.path.join(folder, "lib64") for folder in package.__path__]
    return [os.path.join(folder, name) for folder in folders for name in _SONAMES if os.path.exists(os.path.join(folder, name))] + list(_SONAMES)


class _Options(ctypes.Structure):
    # The options for all algorithms: 64 bytes that start with the backend; zeros select the defaults for the rest.
    _fields_ = [("backend", ctypes.c_int), ("rest", ctypes.c_char * 60)]


class _Alignments(ctypes.Structure):
    _fields_ = [("input", ctypes.c_size_t), ("output", ctypes.c_size_t), ("temporary", ctypes.c_size_t)]


class Nvcomp:
    """Decodes on one GPU, on cupy's current stream for it. Used by one thread at a time, and only if problem() returns None."""

    def __init__(self, algorithm: str, device: int) -> None:
        library = _library()
        assert library is not None
        self._device = device
        self._options = _Options(_ON_SMS)
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        prefix = f"nvcompBatched{algorithm}Decompress"
        # In version 5, the function is named ...Async and does not take the unneeded stream.
        self._temporary = getattr(library, f"{prefix}GetTempSize", None) or getattr(library, f"{prefix}GetTempSizeAsync")
        self._temporary.argtypes = [size, size, _Options, ctypes.POINTER(size), size, pointer]
        self._decompress = getattr(library, f"{prefix}Async")
        self._decompress.argtypes = [pointer, pointer, pointer, pointer, size, pointer, size, pointer, _Options, pointer, pointer]
        self.alignment = self._alignment(getattr(library, f"{prefix}GetRequiredAlignments"))

    def _alignment(self, ask: Any) -> int:
        ask.argtypes = [_Options, ctypes.POINTER(_Alignments)]
        found = _Alignments()
        if ask(self._options, ctypes.byref(found)) != 0:
            return 16
        return max(1, int(found.input), int(found.output))

    def most_bytes(self) -> int:
        """Returns the number of decoded bytes to request in one call of decode(), based on free memory."""
        import cupy

        free, _ = cupy.cuda.Device(self._device).mem_info
        return int(free) // _SHARE_OF_FREE_MEMORY

    def temporary_bytes(self, chunks: int, chunk_bytes: int) -> int:
        """Returns how much temporary memory, in bytes, decode() needs for this many chunks."""
        found = ctypes.c_size_t()
        status = self._temporary(chunks, chunk_bytes, self._options, ctypes.byref(found), chunks * chunk_bytes, None)
        if status != 0:
            raise RuntimeError(f"nvCOMP did not report how much memory it needs (status {status})")
        return int(found.value)

    def decode(self, sources: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any], places: np.ndarray[Any, Any], chunk_bytes: int) -> np.ndarray[Any, Any]:
        """Decodes chunks at device addresses into places of chunk_bytes each. Addresses and sizes are uint64. Blocks.

        Returns True for each chunk that decoded to chunk_bytes; the contents of the other places are undefined.
        """
        import cupy

        count = len(sources)
        with cupy.cuda.Device(self._device):
            stream = cupy.cuda.get_current_stream()
            table = cupy.asarray(np.stack([sources, sizes, places, np.full(count, chunk_bytes, np.uint64)]))
            lengths = cupy.zeros(count, np.uint64)
            statuses = cupy.full(count, -1, np.int32)
            room = self.temporary_bytes(count, chunk_bytes)
            temporary = cupy.empty(max(room, 8), np.uint8)
            rows = [table[row].data.ptr for row in range(4)]
            status = self._decompress(
                rows[0], rows[1], rows[3], lengths.data.ptr, count, temporary.data.ptr, room, rows[2], self._options, statuses.data.ptr, stream.ptr
            )
            if status != 0:
                raise RuntimeError(f"nvCOMP did not start decoding (status {status})")
            _wait(stream, count, chunk_bytes)
            good: np.ndarray[Any, Any] = (statuses.get() == 0) & (lengths.get() == chunk_bytes)
            return good


def _wait(stream: Any, count: int, chunk_bytes: int) -> None:
    """Waits until the stream completes. Raises penstock.Error if a corrupt chunk has destroyed the CUDA context or keeps the GPU busy."""
    import cupy

    began = time.monotonic()
    most = _SECONDS_AT_LEAST + count * chunk_bytes / _SLOWEST
    what = f"one of {count} chunks of {chunk_bytes} bytes, most likely because it is corrupt"
    then = 'Restart the process; decode="cpu" reports the corrupt chunk'
    while (status := cupy.cuda.runtime.streamQuery(stream.ptr)) == _NOT_READY:
        elapsed = time.monotonic() - began
        if elapsed > most:
            raise penstock.TimedOut(
                f"nvCOMP is still decoding {what}, after {elapsed:.0f} s. The GPU stays busy until this process exits. {then}",
                code="timed_out",
            )
        time.sleep(min(1e-3, elapsed / 32))
    if status != 0:
        raise penstock.Error(
            f"nvCOMP failed to decode {what}, so this process can no longer use CUDA (error {status}). {then}", domain="cuda", native=status
        )
