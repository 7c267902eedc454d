"""Yields tensors from safetensors files to vLLM's models, whole or as objects that read only the parts that the model uses."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .._core.batches import in_batches
from .._core.devices import device_name
from .._core.errors import Error
from .._holding.held_weights import HeldWeights, find_held
from .._holding.listing import Tensor
from .._tensors.ahead import natural_order
from .._tensors.frameworks import framework_on
from ..safetensors import SafetensorError, Stream, safe_open, stream

__all__ = ["Bar", "Skip", "held_by_server", "parts_of", "streamed"]

_held_bytes = 256 << 20  # bytes that one batch copies from a server

Skip = Callable[[str], bool]  # returns True for the name of a tensor to skip
Bar = Callable[..., Iterable[Any]]  # wraps an iterable in a progress bar, like tqdm with total= and unit=


def _no_bar(of: Iterable[Any], **options: Any) -> Iterable[Any]:
    return of


def streamed(
    files: Sequence[str],
    device: Any,
    skip: Skip | None,
    bar: Bar = _no_bar,
    *,
    max_device_bytes: int | None = None,
    max_host_bytes: int | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yields tensors in device memory, and reads ahead. `device` is a `torch.device`."""
    limits = {"max_device_bytes": max_device_bytes, "max_host_bytes": max_host_bytes}
    for flow in _streams(_sorted(files), skip, {"device": device, **limits}):
        with flow:
            yield from bar(flow, total=operator.length_hint(flow), unit=" tensors")


def held_by_server(
    files: Sequence[str], device: Any, skip: Skip | None, bar: Bar = _no_bar, server: str | None = None, on_host: bool = True
) -> Iterator[tuple[str, Any]] | None:
    """Returns an iterator over copies, in device memory, of the tensors that `penstock serve` holds for the same files, or None if no server holds them.
    `server`: its address; None tries the default addresses, that of the host only with `on_host`.
    """
    found = find_held(files, device_name(device), server, on_host)
    return None if found is None else _copied(*found, _sorted(files), device, skip, bar)


def _copied(
    held: HeldWeights, tensors: list[Tensor], files: list[str], device: Any, skip: Skip | None, bar: Bar
) -> Iterator[tuple[str, Any]]:
    """Yields each tensor after its copy, once the server has proved that it is still alive. If the server ends, reads the rest from the files."""
    wanted = [each for each in tensors if skip is None or not skip(each.name)]
    place = framework_on("pt", device)

    def copies() -> Iterator[tuple[str, Any]]:
        left = {each.name for each in wanted}
        try:
            with held:
                for batch in in_batches(wanted, _held_bytes, lambda each: each.nbytes):
                    found = held.copied(batch, place)
                    left.difference_update(found)
                    yield from found.items()
        except Error as problem:
            logging.getLogger("penstock").warning("reading the other %d tensors from their files: %s", len(left), problem)
            yield from streamed(files, device, lambda name: name not in left)

    yield from bar(copies(), total=len(wanted), unit=" tensors")


def parts_of(files: Sequence[str], skip: Skip | None, bar: Bar = _no_bar) -> Iterator[tuple[str, Any]]:
    """Yields CPU tensors that have not been read yet. If a model narrows a tensor and copies the result into a GPU parameter, only that part is read,
    into GPU memory.
    """
    from .._patch.safe_open import safe_open as safe_open_of_the_library

    for file in bar(_sorted(files), total=len(files), unit=" files"):
        with safe_open_of_the_library(file, framework="pt") as opened:
            for name in opened.keys():
                if skip is None or not skip(name):
                    yield name, opened.get_tensor(name)


def _sorted(files: Sequence[str]) -> list[str]:
    """Sorts files as vLLM does. If two files contain the same tensor, the last one applies."""
    return sorted(files, key=lambda file: natural_order(os.path.basename(file)))


def _streams(files: list[str], skip: Skip | None, how: dict[str, Any]) -> Iterator[Stream]:
    """Yields one stream for all files; or one for each file if a tensor is in two of them, which vLLM permits."""
    names = [None if skip is None else _names_of(file, skip) for file in files]
    try:
        together = stream(files, None if skip is None else [name for each in names for name in each or ()], **how)
    except SafetensorError:
        for file, mine in zip(files, names):
            yield stream(file, mine, **how)
    else:
        yield together


def _names_of(file: str, skip: Skip) -> list[str]:
    with safe_open(file, "np") as opened:
        return [name for name in opened.offset_keys() if not skip(name)]
