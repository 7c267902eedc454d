"""A codec pipeline for zarr 3: `array[...]` reads whole selections as `load` does, if the array and the selection allow it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import zarr
from zarr.core.array import create_codec_pipeline
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from penstock._core.devices import is_gpu
from penstock.zarr._chunk_plan import ArrayLayout, ChunkPart, FileParts, Unsupported
from penstock.zarr._layouts import layout_of_metadata
from penstock.zarr._load_array import check_decode, is_plain, read_parts, why_not_gpu
from penstock.zarr._targets import Target, target_for

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CodecPipeline", "install"]

_DECODE = "penstock.decode"  # key in zarr's configuration

_logger = logging.getLogger("penstock")

_Range = tuple[int, int, int]  # along an axis: first element in the file, count, first element in the result


def install(decode: str = "auto") -> Any:
    """Configures zarr 3 to read with Penstock: `array[...]` then reads and decodes as load() does, for arrays opened from now on.

    This applies to arrays in local files or a RemoteStore whose codecs load() decodes, and to selections of integers and slices with step 1. zarr
    still performs all other reads and all writes; the logger "penstock" logs the reason at level DEBUG, once per array. After
    `zarr.config.enable_gpu()` the bytes are read directly into GPU memory.

    - `decode`: as for load(). It is stored in zarr's configuration as "penstock.decode". "gpu" lets nvCOMP decode, and raises ValueError for reads
      that zarr or the CPU would decode. zarr does not limit what it decodes itself.

    Returns zarr's configuration. Used as a context manager, it restores the settings at the end of the block:

        with penstock.zarr.install():
            array = zarr.open_array("data.zarr")

    Raises ValueError for any other value of decode.
    """
    check_decode(decode)
    return zarr.config.set({"codec_pipeline.path": f"{CodecPipeline.__module__}.{CodecPipeline.__qualname__}", _DECODE: decode})


@dataclass(frozen=True)
class CodecPipeline(BatchedCodecPipeline):
    """zarr's own pipeline, except that Penstock performs the reads that load() supports. See install()."""

    origin: Any = field(default=None, compare=False, repr=False)  # the array's metadata and store, if known
    decoder: str = field(default="auto", compare=False, repr=False)  # install()'s decode

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Any) -> Self:
        decode = zarr.config.get(_DECODE, "auto")
        check_decode(decode)
        plain: Any = create_codec_pipeline(array_metadata)  # of the configured class, which is this class
        made: Self = replace(plain, origin=(array_metadata, store), decoder=decode)
        return made

    def evolve_from_array_spec(self, array_spec: Any) -> Self:
        plain: Any = super().evolve_from_array_spec(array_spec)
        made: Self = replace(plain, origin=self.origin, decoder=self.decoder)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_layout", "_told")}

    async def read(self, batch_info: Iterable[Any], out: Any, drop_axes: tuple[int, ...] = ()) -> Any:
        batch = list(batch_info)
        if not batch or self.origin is None:  # nothing to read, or zarr reads chunks within a shard
            return await super().read(batch, out, drop_axes)
        try:
            selected = self._selected(batch, out, drop_axes)
        except Unsupported as why:
            if self.decoder == "gpu":
                raise ValueError(f'decode is "gpu", but nvCOMP cannot decode this array: zarr must read {self._name(batch)}, because {why}') from None
            self._tell(f"zarr reads {self._name(batch)}, because {why}")
            return await super().read(batch, out, drop_axes)
        await asyncio.to_thread(selected)
        # Newer zarr versions request reports of missing chunks only if these are errors.
        return ({"status": "present"},) * len(batch)

    def _selected(self, batch: list[Any], out: Any, drop_axes: tuple[int, ...]) -> Callable[[], None]:
        """Returns the reader of a selection. Raises Unsupported if zarr must read it."""
        layout = self._known_layout()
        first, spec = batch[0][0], batch[0][1]
        if not isinstance(first, StorePath) or first.store is not self.origin[1]:
            raise Unsupported("its chunks come from a different store")
        if not getattr(spec.config, "read_missing_chunks", True):
            raise Unsupported("its configuration treats missing chunks as errors")
        array = out.as_ndarray_like()
        if array.dtype != layout.dtype or not array.flags.c_contiguous:
            raise Unsupported("the result's dtype or order differs from the array's")
        file_shape = layout.file_shape
        plans: list[tuple[str, list[_Range]]] = []
        for getter, _, inner, outer, *_ in batch:
            ranges = None if drop_axes else _ranges(inner, outer, file_shape)
            if ranges is None:
                raise Unsupported("the selection has a step, a mask or a list of indices")
            plans.append((getter.path, ranges))
        lengths = _lengths(batch[0][2], array.shape)
        target = target_for(tuple(array.shape), layout.dtype, None, array)
        why = why_not_gpu(layout, target.device, self.decoder)
        if self.decoder == "auto" and why is not None and is_gpu(target.device) and not is_plain(layout, target.dtype):
            self._tell(f"the CPU decodes {self._name(batch)}, because {why}")
        return lambda: _read(layout, plans, target, lengths, self.decoder)

    def _known_layout(self) -> ArrayLayout:
        if "_layout" not in self.__dict__:
            object.__setattr__(self, "_layout", _layout_of(self.origin))
        layout: ArrayLayout | Unsupported = self.__dict__["_layout"]
        if isinstance(layout, Unsupported):
            raise Unsupported(str(layout))
        return layout

    def _name(self, batch: list[Any]) -> str:
        return f"the array that contains chunk {getattr(batch[0][0], 'path', '?')} in {self.origin[1]}"

    def _tell(self, words: str) -> None:
        """Logs the reason once per array."""
        if "_told" not in self.__dict__:
            object.__setattr__(self, "_told", True)
            _logger.debug("penstock.zarr: %s", words)


def _layout_of(origin: Any) -> ArrayLayout | Unsupported:
    try:
        return layout_of_metadata(origin[0], origin[1], "")
    except Unsupported as why:
        return why


def _ranges(inner: Any, outer: Any, file_shape: tuple[int, ...]) -> list[_Range] | None:
    """Returns the file's and the result's ranges for a pair of zarr selections, or None if they are not a box."""
    if not isinstance(inner, tuple) or not isinstance(outer, tuple) or len(inner) != len(file_shape):
        return None
    ranges: list[_Range] = []
    places = iter(outer)
    for item, size in zip(inner, file_shape):
        if isinstance(item, int):
            ranges.append((item, 1, 0))
            continue
        place = next(places, None)
        if not isinstance(item, slice) or not isinstance(place, slice) or item.step not in (None, 1) or place.step not in (None, 1):
            return None
        first, stop, _ = item.indices(size)
        if place.start is None or place.stop is None or place.stop - place.start != stop - first:
            return None
        ranges.append((first, stop - first, place.start))
    return ranges if next(places, None) is None else None


def _lengths(inner: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the result's shape, including the axes that were selected by an integer."""
    kept = iter(shape)
    return tuple(1 if isinstance(item, int) else next(kept) for item in inner)


def _read(layout: ArrayLayout, plans: list[tuple[str, list[_Range]]], target: Target, lengths: tuple[int, ...], decode: str) -> None:
    files = FileParts(layout, lengths)
    target.settle()
    read_parts(layout, _parts(files, plans), target, target.as_box(lengths), decode)
    target.settle()


def _parts(files: FileParts, plans: list[tuple[str, list[_Range]]]) -> Iterator[ChunkPart]:
    for name, ranges in plans:
        yield from files.of(name, ranges)


register_pipeline(CodecPipeline)
