"""`load`: reads a whole zarr array, or a box of it, from its chunk files into host or GPU memory in one call."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._core.arrays import library_of
from penstock._core.devices import Place, is_gpu, known_device, number_of
from penstock.zarr import _nvcomp
from penstock.zarr._chunk_plan import ArrayLayout, ChunkPart, Region, Unsupported, chunk_parts, region_of
from penstock.zarr._coded import read_coded, threads
from penstock.zarr._layouts import layout_of
from penstock.zarr._on_gpu import read_on_gpu
from penstock.zarr._plain import read_plain
from penstock.zarr._targets import Target, target_for

__all__ = ["Explanation", "explain", "load"]

_DECODERS = ("auto", "cpu", "gpu")


@dataclass(frozen=True)
class Explanation:
    """How load() would read an array. `str()` formats it as a sentence."""

    direct: bool  # False: zarr's own pipeline reads it
    reason: str
    nbytes: int  # bytes of the result, or of the whole array if zarr reads it
    chunks: int  # chunks to read; 0 if zarr reads them
    ranges: int  # byte ranges in files
    staged_chunks: int  # chunks that are read whole and then copied, because their pieces are small
    files: int = 0  # files that contain the chunks; with shards, fewer than chunks
    decoder: str = ""  # "cpu" or "gpu"; "" if chunks need no decoding, or zarr reads them

    def __str__(self) -> str:
        if not self.direct:
            return f"zarr's own pipeline reads it, because {self.reason}"
        staged = f", {self.staged_chunks} of them through a copy" if self.staged_chunks else ""
        where = f"{self.chunks} chunk files" if self.files == self.chunks else f"{self.chunks} chunks in {self.files} shards"
        return f"{self.nbytes} bytes from {self.ranges} ranges of {where}{staged}: {self.reason}"


def explain(array: Any, selection: Any = ..., *, device: Place = None, decode: str = "auto") -> Explanation:
    """Reports whether load() reads a selection of an array itself or leaves it to zarr, and why. Opens no chunk.

    `device` and `decode` are as for load(). Raises TypeError if array is not a zarr array.
    """
    check_decode(decode)
    name = "host" if device is None else known_device(device)
    try:
        layout = layout_of(array)
        region = region_of(selection, layout.shape)
    except Unsupported as why:
        return Explanation(False, str(why), int(array.nbytes), 0, 0, 0)
    dtype = layout.dtype if name == "host" else layout.dtype.newbyteorder("=")
    plain = is_plain(layout, dtype)
    files: set[str] = set()
    chunks = ranges = staged = 0
    for part in chunk_parts(layout, region):
        chunks += 1
        files.add(part.name)
        ranges += 1 if part.pattern.scattered or not plain else part.pattern.runs
        staged += plain and part.pattern.scattered
    nbytes = math.prod(region.shape) * dtype.itemsize
    reason, decoder = _how(layout, plain, name, decode)
    return Explanation(True, reason, nbytes, chunks, ranges, staged, len(files), decoder)


def _how(layout: ArrayLayout, plain: bool, device: str, decode: str) -> tuple[str, str]:
    """Returns the reason for an explanation, and the decoder."""
    where = "on a server" if layout.far else "in local files"
    if plain:
        return f"its chunks are plain bytes {where}", ""
    steps = [codec.name for codec in reversed(layout.codecs)]
    steps += [] if layout.in_order else ["transpose"]
    steps += ["byte order"] if layout.stored_dtype != layout.dtype else []
    what = f"its chunks {where} are decoded ({', '.join(steps) or 'byte order'})"
    why = why_not_gpu(layout, device, decode)
    if why is None:
        return f"{what} by nvCOMP on {device}", "gpu"
    reason = f", because {why}" if is_gpu(device) and decode != "cpu" else ""
    return f"{what} by {threads()} CPU threads{reason}", "cpu"


def why_not_gpu(layout: ArrayLayout, device: str, decode: str) -> str | None:
    """Returns why nvCOMP cannot decode the chunks, or None if it can."""
    if decode == "cpu":
        return 'decode is "cpu"'
    if not is_gpu(device):
        return f"the result is on {device}"
    payload = _nvcomp.payload_of(layout.codecs, layout.chunk_bytes)
    if isinstance(payload, str):
        return payload
    if decode != "gpu":
        return 'nvCOMP can write out of bounds if a chunk is corrupt (pass decode="gpu" to use it anyway)'
    return _nvcomp.problem()


def load(array: Any, selection: Any = ..., *, device: Place = None, out: Any = None, decode: str = "auto") -> Any:
    """Reads a zarr array, or a selection of it, into memory. Blocks.

    Chunks in local files, or on a RemoteStore's server, are read without zarr, in a few large batches. Uncompressed chunks in C order are read
    directly into their place in the result; others are decoded. From a shard, only the index and the selected chunks are read. zarr reads everything
    else, such as variable-length strings, and load() then copies it to the device; explain() reports which applies, and why. Missing chunks have the
    fill value.

    - `array`: a zarr.Array.
    - `selection`: as in array[...]. Integers, slices with step 1 and an ellipsis are read without zarr.
    - `device`: None, "cpu" or "host" returns a NumPy array; "cuda:N", N or "cuda", a CuPy array; "host:0", a penstock.DeviceBuffer with the elements
      in C order.
    - `out`: C-contiguous memory to fill and return: a NumPy or CuPy array with the result's shape and dtype, or a buffer with exactly the result's
      size.
    - `decode`: what decodes the chunks; see below.

    Values of `decode`:

    - "auto" and "cpu": CPU threads, one per core.
    - "gpu": nvCOMP (`pip install nvidia-libnvcomp-cu12`), for zstd, lz4, gzip and zlib. Needs CuPy. Use it for data that you trust. Raises ValueError
      if nvCOMP cannot decode the array.

    zstd chunks with an incomplete frame or block are not passed to nvCOMP. Other corruption may destroy the process's CUDA context or hang the GPU
    (penstock.Error, penstock.TimedOut). If lz4, gzip and zlib chunks are corrupt, nvCOMP can also write out of bounds.

    The result is C-contiguous. An axis selected by an integer is removed, as in NumPy; a single element is a zero-dimensional array. Elements have
    this machine's byte order on a device, and array.dtype's on the host.

    After an error, the contents of out are undefined. Raises:

    - TypeError: array is not a zarr array, out has a different dtype, or only NumPy supports the element type.
    - ValueError: out has the wrong size or shape, is not contiguous, or does not match device.
    - ImportError: a GPU is requested but CuPy is not installed.
    - penstock.Error: a file cannot be read.
    - InvalidArgument (a ValueError): a chunk file has the wrong size or cannot be decoded; by then, all other chunks are in out. Also raised for an
      empty result on "host:0", where buffers have at least one byte.
    """
    check_decode(decode)
    try:
        layout = layout_of(array)
        region = region_of(selection, layout.shape)
    except Unsupported as reason:
        if decode == "gpu":
            raise ValueError(f'decode is "gpu", but nvCOMP cannot decode this array: zarr must read it, because {reason}') from None
        return _load_by_zarr(array, selection, device, out)
    target = target_for(region.shape, layout.dtype, device, out)
    if target.nbytes:
        _read(layout, region, target, decode)
    return target.result


def check_decode(decode: str) -> None:
    """Raises ValueError for an unknown value of `decode`."""
    if decode not in _DECODERS:
        raise ValueError(f"decode is {decode!r}: it must be one of {', '.join(map(repr, _DECODERS))}")


def _load_by_zarr(array: Any, selection: Any, device: Place, out: Any) -> Any:
    values = array[selection]
    library = library_of(values)  # with zarr.config.enable_gpu(), CuPy
    values = np.asanyarray(values if library is None else library.to_numpy(values))
    target = target_for(values.shape, values.dtype, device, out)
    if target.nbytes:
        target.assign_all(values)
    return target.result


def _read(layout: ArrayLayout, region: Region, target: Target, decode: str) -> None:
    plain = is_plain(layout, target.dtype)
    if not target.is_array and (not plain or any(part.pattern.scattered for part in chunk_parts(layout, region))):
        # This process cannot index the memory, so the result is assembled on the host and then copied in one step.
        host = target_for(region.shape, target.dtype, None, None)
        _read(layout, region, host, decode)
        target.assign_all(host.result)
        return
    target.settle()
    read_parts(layout, chunk_parts(layout, region), target, target.as_box(region.lengths), decode)
    target.settle()


def read_parts(layout: ArrayLayout, parts: Iterable[ChunkPart], target: Target, box: Any, decode: str) -> None:
    """Fills parts of a prepared target."""
    if is_plain(layout, target.dtype):
        read_plain(layout, parts, target, box)
        return
    why = why_not_gpu(layout, target.device, decode)
    if why is None:
        payload = _nvcomp.payload_of(layout.codecs, layout.chunk_bytes)
        assert not isinstance(payload, str)
        read_on_gpu(layout, parts, target, box, _nvcomp.Nvcomp(payload.algorithm, number_of(target.device)), payload)
        return
    if decode == "gpu":
        raise ValueError(f'decode is "gpu", but nvCOMP cannot decode this array: {why}')
    read_coded(layout, parts, target, box)


def is_plain(layout: ArrayLayout, dtype: np.dtype[Any]) -> bool:
    """Returns True if files store the chunks as decoded bytes."""
    return not layout.codecs and layout.in_order and layout.stored_dtype == dtype


Explanation.__module__ = "penstock.zarr"  # its public home, which pickles name
