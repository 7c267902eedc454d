"""Tensors of safetensors files for vLLM's models, each with its name: whole, or as what reads the parts that are taken of it."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..safetensors import SafetensorError, Stream, safe_open, stream
from ..safetensors._ahead import natural_order

__all__ = ["Bar", "Skip", "parts_of", "streamed"]

Skip = Callable[[str], bool]  # by its name, whether a tensor is left out
Bar = Callable[..., Iterable[Any]]  # of an iterable, with total= and unit=: the same, with a bar of progress, as tqdm makes it


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
    """In the memory of the device, the next ones on their way. device: a torch.device."""
    limits = {"max_device_bytes": max_device_bytes, "max_host_bytes": max_host_bytes}
    for flow in _streams(_sorted(files), skip, {"device": device, **limits}):
        with flow:
            yield from bar(flow, total=operator.length_hint(flow), unit=" tensors")


def parts_of(files: Sequence[str], skip: Skip | None, bar: Bar = _no_bar) -> Iterator[tuple[str, Any]]:
    """Of the CPU, and not read yet: what a model narrows out of a tensor, and copies into a parameter on a GPU, is read from the file into the GPU."""
    from ..safetensors._door_open import safe_open as safe_open_of_the_library

    for file in bar(_sorted(files), total=len(files), unit=" files"):
        with safe_open_of_the_library(file, framework="pt") as opened:
            for name in opened.keys():
                if skip is None or not skip(name):
                    yield name, opened.get_tensor(name)


def _sorted(files: Sequence[str]) -> list[str]:
    """As vLLM reads them: should a tensor be in two files, the last one counts."""
    return sorted(files, key=lambda file: natural_order(os.path.basename(file)))


def _streams(files: list[str], skip: Skip | None, how: dict[str, Any]) -> Iterator[Stream]:
    """One of all files; or one of each, where a tensor is in two of them, which vLLM takes as it is."""
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
