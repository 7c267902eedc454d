"""Yields tensors from safetensors files to vLLM's models, whole or as objects that read only the parts that the model uses."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .._holding import engine_weights
from .._tensors.ahead import natural_order
from ..safetensors import SafetensorError, Stream, safe_open, stream

__all__ = ["Bar", "Skip", "held_by_server", "parts_of", "streamed"]

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
    """Returns an iterator over the tensors of `penstock serve`, or None. See `engine_weights.held_by_server()`."""
    return engine_weights.held_by_server(files, device, lambda names: streamed(files, device, lambda name: name not in names), server, on_host, skip, bar)


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
