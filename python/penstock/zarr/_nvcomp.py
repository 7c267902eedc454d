"""NVIDIA's nvCOMP, where it is installed: decodes many chunks at once, each where it lies in the memory of a GPU.

It is called through its C interface (versions 5 and 6), which tells for each chunk whether it could be decoded and how long it is, as that of
its Python package does not: pip install nvidia-libnvcomp-cu12, or -cu13, which nvidia-nvcomp-cu12 brings along. Needs cupy.

It is made for chunks that are as a compressor made them ("can only operate on valid input data", its release notes say). Damaged ones, tried on an
H200 with version 6: zstd reads and writes where nothing is, which ends the process's CUDA context, when the frame or its blocks are not whole
(_frames.py finds these), now and then when bytes in a block are others, and then may not end either; lz4, gzip and zlib write far past their room.
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
_ON_SMS = 2  # NVCOMP_DECOMPRESS_BACKEND_CUDA: the decompression engine of newer GPUs wants memory that was allocated for it
_SHARE_OF_FREE_MEMORY = 8  # of the GPU's: one part of so many for decoded chunks, of which zstd takes more than three times as much besides
_LARGEST_CHUNK = 2**31 - 1  # nvcompZstdDecompressionMaxAllowedChunkSize, the least of all


# It decodes 1 GiB in a tenth of a second, and one large chunk alone at some 0.1 GB/s.
_SECONDS_AT_LEAST = 30
_SLOWEST = 1 << 24  # decoded bytes a second
_NOT_READY = 600  # cudaErrorNotReady


@dataclass(frozen=True)
class Payload:
    """What nvCOMP calls a codec, and what stands before and behind its bytes in a chunk."""

    algorithm: str
    before: int
    behind: int
    whole: Callable[..., Any] | None = None  # whole_frames(), or another function of its kind: finds chunks that nvCOMP may be given


# numcodecs puts the size in front of LZ4's block; zlib has a header of 2 bytes, and a checksum that nvCOMP does not compare.
_PAYLOADS = {
    "gzip": Payload("Gzip", 0, 0),
    "lz4": Payload("LZ4", 4, 0),
    "zlib": Payload("Deflate", 2, 4),
    "zstd": Payload("Zstd", 0, 0, whole_frames),
}


def payload_of(codecs: Sequence[ByteCodec], chunk_bytes: int) -> Payload | str:
    """What of such chunks nvCOMP decodes; in words, why it cannot."""
    if len(codecs) != 1:
        return f"{len(codecs)} codecs made its bytes"
    found = _PAYLOADS.get(codecs[0].name)
    if found is None:
        return f"nvCOMP does not decode {codecs[0].name}"
    if chunk_bytes > _LARGEST_CHUNK:
        return f"a chunk has {chunk_bytes} bytes, and nvCOMP takes {_LARGEST_CHUNK}"
    return found


def problem() -> str | None:
    """Why nvCOMP cannot be used in this process; None where it can."""
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
    """Those of the wheels, then those of the system."""
    try:
        import nvidia.libnvcomp as package  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return list(_SONAMES)
    folders = [os.path.join(folder, "lib64") for folder in package.__path__]
    return [os.path.join(folder, name) for folder in folders for name in _SONAMES if os.path.exists(os.path.join(folder, name))] + list(_SONAMES)


class _Options(ctypes.Structure):
    # Of all algorithms: 64 bytes that begin with the backend; zeros are the defaults of the rest.
    _fields_ = [("backend", ctypes.c_int), ("rest", ctypes.c_char * 60)]


class _Alignments(ctypes.Structure):
    _fields_ = [("input", ctypes.c_size_t), ("output", ctypes.c_size_t), ("temporary", ctypes.c_size_t)]


class Nvcomp:
    """Decodes on one GPU, on cupy's current stream there. One thread at a time. Only where problem() is None."""

    def __init__(self, algorithm: str, device: int) -> None:
        library = _library()
        assert library is not None
        self._device = device
        self._options = _Options(_ON_SMS)
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        prefix = f"nvcompBatched{algorithm}Decompress"
        # Version 5 calls it ...Async and has no stream, which it does not miss.
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
        """How many decoded bytes decode() should be asked for at once, as memory is free now."""
        import cupy

        free, _ = cupy.cuda.Device(self._device).mem_info
        return int(free) // _SHARE_OF_FREE_MEMORY

    def temporary_bytes(self, chunks: int, chunk_bytes: int) -> int:
        """Memory that decode() needs besides, for so many chunks."""
        found = ctypes.c_size_t()
        status = self._temporary(chunks, chunk_bytes, self._options, ctypes.byref(found), chunks * chunk_bytes, None)
        if status != 0:
            raise RuntimeError(f"nvCOMP does not say how much memory it needs (status {status})")
        return int(found.value)

    def decode(self, sources: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any], places: np.ndarray[Any, Any], chunk_bytes: int) -> np.ndarray[Any, Any]:
        """Decodes chunks from addresses and sizes to places, addresses with room for chunk_bytes each (all uint64). Blocks.

        True for each that came out with chunk_bytes; what is at the other places is undefined.
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
                raise RuntimeError(f"nvCOMP did not begin to decode (status {status})")
            _wait(stream, count, chunk_bytes)
            good: np.ndarray[Any, Any] = (statuses.get() == 0) & (lengths.get() == chunk_bytes)
            return good


def _wait(stream: Any, count: int, chunk_bytes: int) -> None:
    """Until the stream is done. Raises penstock.Error where a damaged chunk has broken the CUDA context or keeps the GPU busy."""
    import cupy

    began = time.monotonic()
    most = _SECONDS_AT_LEAST + count * chunk_bytes / _SLOWEST
    what = f"one of {count} chunks of {chunk_bytes} bytes, most likely because it is damaged"
    then = 'Restart the process; decode="cpu" names the damaged chunk'
    while (status := cupy.cuda.runtime.streamQuery(stream.ptr)) == _NOT_READY:
        elapsed = time.monotonic() - began
        if elapsed > most:
            raise penstock.TimedOut(
                f"nvCOMP has not ended after {elapsed:.0f} s of decoding {what}. The GPU is busy with it until this process ends. {then}",
                code="timed_out",
            )
        time.sleep(min(1e-3, elapsed / 32))
    if status != 0:
        raise penstock.Error(
            f"nvCOMP has failed at {what}, and CUDA cannot be used in this process any more (error {status}). {then}", domain="cuda", native=status
        )
