"""The arrays that contain weights (PyTorch, NumPy, CuPy and DeviceBuffers): examines, slices and copies them in stream order."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from .._core.arrays import library_for
from .._core.arrays.library import Facts, Library, View
from .._core.boxes import Box
from .._core.packing import aligned

__all__ = ["Local", "Place", "Places", "copy_all", "handles_for", "have_changed", "local_of", "marks_of", "places_of", "quiet_streams", "rooms_for", "streams_of"]


@functools.lru_cache(256)
def _word_for(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


class Local:
    """An array in this process, described by its facts."""

    def __init__(self, library: Library, facts: Facts) -> None:
        self.library = library
        self.array, self.problem, self.shape, self.itemsize, self.nbytes = facts.array, facts.problem, facts.shape, facts.itemsize, facts.nbytes
        self.dtype = None if facts.dtype is None else _word_for(facts.dtype)
        self.device, self.readonly, self.is_contiguous = facts.device, facts.is_readonly, facts.is_contiguous
        self.repeats, self.span = facts.repeats, facts.span
        self.key: Any = facts.key or id(self)  # equal for arrays that share the same memory

    def cut(self, frame: Box, box: Box, itemsize: int) -> Any:
        """Returns a view of a box in this array, which represents the frame. From a DeviceBuffer, only contiguous ranges can be cut."""
        if self.library.indexes:
            return self.array if box == frame else self.array[box.index_in(frame)]
        start = box.offset_in(frame) * itemsize
        return self.array[start : start + box.size * itemsize]


def local_of(name: str, value: Any) -> Local:
    """Returns the array as a Local. Raises TypeError if the value is not an array."""
    library = library_for(f'"{name}"', value)
    return Local(library, library.facts(value, fill=False))


# --- copies of several arrays


def copy_all(locals_: list[Local], copies: list[Any]) -> None:
    """Copies arrays into memory from `rooms_for()`. PyTorch and CuPy copy on their current streams."""
    groups: dict[Place, tuple[list[Any], list[Any]]] = {}
    for copy, each in zip(copies, locals_):
        targets, sources = groups.setdefault((each.library, each.device), ([], []))
        targets.append(copy)
        sources.append(each.array)
    for (library, _), (targets, sources) in groups.items():
        library.put_all(targets, sources)


def rooms_for(locals_: list[Local]) -> list[Any]:
    """Allocates contiguous arrays like these, in the same order, as views of one allocation per device."""
    rows: dict[Place, list[View]] = {}
    ends: dict[Place, int] = {}
    for at, each in enumerate(locals_):
        place = (each.library, each.device)
        start = ends.get(place, 0)
        dtype = each.array.dtype if each.dtype is not None else None
        rows.setdefault(place, []).append((str(at), dtype, each.shape or (), start, each.nbytes))
        ends[place] = start + aligned(each.nbytes)
    found: dict[str, Any] = {}
    with _ordinary_tensors():
        for place, of in rows.items():
            library, device = place
            arena = library.arena(ends[place], device)
            arena.settle()
            arena.views(of, found)
    return [found[str(at)] for at in range(len(locals_))]


def _ordinary_tensors() -> contextlib.AbstractContextManager[Any]:
    """Turns off inference mode, because PyTorch rejects writes to inference tensors outside it."""
    torch = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None else torch.inference_mode(False)


# --- streams


Place = tuple[Library, str]  # a library and a device
Places = list[Place]  # the GPUs on which each library has arrays


def places_of(locals_: Iterable[Local]) -> Places:
    found = {(each.library, each.device) for each in locals_ if each.library.has_streams and each.device.startswith("cuda:")}
    return sorted(found, key=lambda place: (place[0].name, place[1]))


def marks_of(places: Places) -> list[Any]:
    """Records an event on each current stream, and returns the events."""
    return [library.mark(device) for library, device in places]


def streams_of(places: Places) -> dict[Place, int]:
    """Returns the handle of each current stream."""
    return {(library, device): library.current_handle(device) for library, device in places}


def handles_for(locals_: Iterable[Local], streams: dict[Place, int]) -> list[int]:
    """Returns the handle of each array's stream. The list is empty if all use the default stream."""
    return [streams.get((each.library, each.device), 0) for each in locals_] if streams else []


@functools.cache
def _quiet_stream(library: Library, device: str) -> Any:
    return library.new_stream(device)


@contextlib.contextmanager
def quiet_streams(places: Places) -> Iterator[None]:
    """Makes Penstock's own streams current in this thread, so that sending does not wait for the program's work on the default stream."""
    with contextlib.ExitStack() as stack:
        for library, device in places:
            stack.enter_context(library.using(_quiet_stream(library, device), device))
        yield


def have_changed(locals_: Iterable[Local]) -> None:
    """Notifies the arrays' libraries that the values have changed."""
    by_library: dict[Library, list[Any]] = {}
    for each in locals_:
        by_library.setdefault(each.library, []).append(each.array)
    for library, arrays in by_library.items():
        library.have_changed(arrays)
