"""from_pretrained(): models of transformers from the cache, already quantized."""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Mapping
from typing import Any

import torch

from ._cache import WeightsCache
from ._sources import model_files

__all__ = ["from_pretrained"]

_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "token")  # not part of the key: the files' contents are hashed
# Libraries whose version may change the finished weights.
_LIBRARIES = "accelerate auto-gptq autoawq bitsandbytes compressed-tensors fbgemm-gpu flash-attn gptqmodel hqq kernels optimum optimum-quanto peft torchao transformers".split()


# A folder with one of these files has some or all of its weights in other folders.
_OTHERS = {"adapter_config.json": "an adapter, whose base model is elsewhere", "model_index.json": "a pipeline of several models, each in its own folder"}


def from_pretrained(model_class: Any, name: str | os.PathLike[str], *arguments: Any, cache: WeightsCache | str | os.PathLike[str], **options: Any) -> Any:
    """Returns `model_class.from_pretrained(name, *arguments, **options)`. The first call stores the finished model, and later ones read it from the cache
    without reading the source files or quantizing.

    - `cache`: the cache, or its folder.
    - `name`: a folder, or a model on the Hub, which is downloaded first.

    If the arguments or the model cannot be stored, the logger "penstock" logs the reason, and transformers loads the model. Raises the errors of
    transformers and of `WeightsCache`.
    """

    def build() -> Any:
        return model_class.from_pretrained(name, *arguments, **options)

    cache = cache if isinstance(cache, WeightsCache) else WeightsCache(cache)
    try:
        told = _plain({"arguments": arguments, "options": {each: value for each, value in options.items() if each not in _HUB}})
        folder = _folder_of(name, options)
        sources = {each: None for path in (folder, os.path.join(folder, options.get("subfolder", ""))) for each in model_files(path)}
        for marker, what in _OTHERS.items():
            if any(os.path.basename(each) == marker for each in sources):
                raise OSError(f"{folder} is {what}")
    except (TypeError, OSError) as problem:
        logging.getLogger("penstock").warning("weights cache: not used: %s", problem)
        return build()
    values = {"class": f"{model_class.__module__}.{model_class.__qualname__}", **told, "libraries": _versions(), "gpus": _gpus()}
    return cache.get({**values, "default dtype": str(torch.get_default_dtype()), "place": _place()}, build, sources=sources)


def _place() -> list[Any]:
    """Returns the devices that transformers selects by default, and this process's rank, because ranks may hold different parts of a model."""
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    return [str(torch.empty(0).device), device, os.environ.get("RANK"), os.environ.get("WORLD_SIZE")]


def _folder_of(name: str | os.PathLike[str], options: Mapping[str, Any]) -> str:
    if os.path.isdir(name):
        return os.fspath(name)
    from huggingface_hub import snapshot_download

    hub = {each: options[each] for each in ("cache_dir", "local_files_only", "revision", "token") if each in options}
    return str(snapshot_download(str(name), allow_patterns=["*.json", "*.safetensors", "*.py"], **hub))


def _plain(value: Any) -> Any:
    """Returns an argument as JSON types. Raises TypeError for objects that JSON cannot represent."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if callable(getattr(value, "to_dict", None)):
        return {"class": type(value).__qualname__, **_plain(value.to_dict())}
    raise TypeError(f"an argument is a {type(value).__name__}, which the key cannot contain")


def _versions() -> dict[str, str]:
    found = {}
    for each in _LIBRARIES:
        try:
            found[each] = importlib.metadata.version(each)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def _gpus() -> list[str]:
    """Returns the names of the GPUs, because libraries choose the layout of quantized weights by GPU."""
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
