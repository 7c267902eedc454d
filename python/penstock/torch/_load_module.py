"""load_module(): a module with finished weights from a cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .._core.errors import InvalidArgument
from ..weights_cache import WeightsCache

__all__ = ["load_module"]


def load_module(
    target: Callable[[], torch.nn.Module] | torch.nn.Module,
    load: Callable[[torch.nn.Module], object] | None = None,
    *,
    cache: WeightsCache | str | os.PathLike[str],
    key: str | Mapping[str, Any],
    sources: Iterable[str | os.PathLike[str]] = (),
    device: Any = None,
) -> torch.nn.Module:
    """Returns a module with its weights, from the cache if it was stored before. Blocks.

    Arguments:

    - `target`: a function that returns the finished module, for example loaded and quantized. It runs only if the cache lacks the module. Or a
      module to fill in place, whose tensors keep their memory.
    - `load`: fills all parameters of the target in place if the cache lacks its weights. Required if the target is a module, invalid otherwise.
    - `cache`: the cache, or its folder.
    - `key`: everything that determines the weights, except the sources' contents: the model, the version of your code, the quantization, the rank.
    - `sources`: the files from which `target` or `load` reads. If the contents of a file change, the module is loaded again.
    - `device`: the device for tensors that were stored from a GPU; None means the GPU they were on. Only if the target is a function.

    Raises the errors of `target`, `load` and `penstock.weights_cache.WeightsCache`.
    """
    cache = cache if isinstance(cache, WeightsCache) else WeightsCache(cache)
    values = {"key": key} if isinstance(key, str) else key
    if not isinstance(target, torch.nn.Module):
        if load is not None:
            raise InvalidArgument("load requires a module as the target: a function returns the finished module itself", code="invalid_argument")
        found: torch.nn.Module = cache.get(values, target, sources=sources, device=device)
        return found
    if load is None or device is not None:
        problem = "a module as the target requires load" if load is None else "device requires a function as the target: the tensors of a module keep their memory"
        raise InvalidArgument(problem, code="invalid_argument")
    cache.fill(cache.key(values, sources), target, load)
    return target
