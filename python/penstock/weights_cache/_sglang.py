"""Options of SGLang's default loader: finished weights (sharded, quantized, in the kernels' layout) in a weights cache, and weights of `penstock serve`.

    python3 -m sglang.launch_server --model-path MODEL --model-loader-extra-config '{"cache": "/mnt/nvme/weights", "server": true}'

SGLang finds `register()` through the entry point "penstock" in the group sglang.srt.plugins. Like SGLang's own format "presharded", a later start builds
the model, runs its quantization methods on weights without values, and then fills in the stored state.

With "server", a load copies the tensors from `penstock serve` if it holds the same files. An address selects a server. `true` looks for one on this GPU,
and on the host if there is only one rank: one of several ranks reads less if it reads its parts from files in the page cache.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch

from .._core.torch_storages import reaches
from .._holding.engine_weights import held_by_server
from ._cache import WeightsCache
from ._sources import settings_files

__all__ = ["register"]

_log = logging.getLogger("penstock")

_LOADER = "sglang.srt.model_loader.loader.DefaultModelLoader"
_OPTIONS = ("cache", "cache_bytes", "server")
_ITERATORS = ("safetensors_weights_iterator", "buffered_multi_thread_safetensors_weights_iterator")
_server: ContextVar[bool | str] = ContextVar("server", default=False)  # the option of the loader that is choosing an iterator
# Substrings of the names of server arguments that may affect the layout of the weights.
_ARGUMENTS = ("attention", "backend", "dtype", "disable_", "enable_", "ep_", "lora", "moe", "quant", "speculative")


def register() -> None:
    """Hooks SGLang's default loader. Without these options in its extra config, the loader works as before."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # type: ignore[import-not-found,unused-ignore]

    HookRegistry.register(f"{_LOADER}.__init__", _init, HookType.AROUND)
    HookRegistry.register(f"{_LOADER}.load_model", _load_model, HookType.AROUND)
    HookRegistry.register(f"{_LOADER}._get_weights_iterator", _get_weights_iterator, HookType.AROUND)
    for each in _ITERATORS:
        HookRegistry.register(f"{_LOADER.rpartition('.')[0]}.{each}", _weights, HookType.AROUND)


def _init(theirs: Callable[..., None], self: Any, load_config: Any) -> None:
    extra = load_config.model_loader_extra_config
    if isinstance(extra, Mapping) and not extra.keys().isdisjoint(_OPTIONS):
        if not isinstance(extra.get("cache", ""), str) or type(extra.get("cache_bytes", 1)) is not int or not isinstance(extra.get("server", True), (bool, str)):
            raise ValueError(
                "--model-loader-extra-config: cache must be the path of a folder, cache_bytes a number of bytes, and server true, false or an address"
            )
        if "cache" in extra:
            self._penstock_cache = WeightsCache(extra["cache"], capacity_bytes=extra.get("cache_bytes"))
        self._penstock_server = extra.get("server", False)
        load_config = copy.copy(load_config)
        load_config.model_loader_extra_config = {name: value for name, value in extra.items() if name not in _OPTIONS}
    theirs(self, load_config)


def _get_weights_iterator(theirs: Callable[..., Any], self: Any, *arguments: Any, **options: Any) -> Any:
    token = _server.set(getattr(self, "_penstock_server", False))
    try:  # theirs() calls _weights() before it returns
        return theirs(self, *arguments, **options)
    finally:
        _server.reset(token)


def _weights(theirs: Callable[..., Any], files: list[str], *arguments: Any, **options: Any) -> Any:
    def read(names: set[str]) -> Iterator[tuple[str, Any]]:
        return (each for each in theirs(files, *arguments, **options) if each[0] in names)

    server, distributed = _server.get(), torch.distributed
    if server:
        is_gpu = torch.cuda.is_available() and reaches(torch.device("cuda"))
        device = torch.device("cuda", torch.cuda.current_device()) if is_gpu else torch.device("cpu")
        is_only = not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)
        held = held_by_server(files, device, read, server if isinstance(server, str) else None, is_only)
        if held is not None:
            return held
    return theirs(files, *arguments, **options)


def _load_model(theirs: Callable[..., Any], self: Any, *, model_config: Any, device_config: Any) -> Any:
    from sglang.srt.model_loader import loader  # type: ignore[import-not-found,unused-ignore]

    cache = getattr(self, "_penstock_cache", None)
    if type(self) is not loader.DefaultModelLoader or cache is None or getattr(model_config, "modelopt_quant", None):
        return theirs(self, model_config=model_config, device_config=device_config)
    folder, files, *_ = self._prepare_weights(model_config.model_path, model_config.revision, True)
    try:
        key = cache.key(_key_of(loader, self, model_config), [*files, *settings_files(folder)])
    except (AttributeError, ImportError, TypeError, OSError) as problem:
        _log.warning("weights cache: not used: it supports SGLang 0.5.21 to 0.5.23: %s", problem)
        return theirs(self, model_config=model_config, device_config=device_config)
    try:
        model = _restored(loader, self, cache, key, model_config, torch.device(device_config.device))
    except Exception:  # quantization methods may reject weights without values
        _log.exception("weights cache: SGLang could not use the stored weights, so it loads the model")
        model = None
    if model is None:
        read_files = _record_files(self)
        model = theirs(self, model_config=model_config, device_config=device_config)
        if read_files <= set(files):
            cache.save_state(key, model)
        else:
            _log.warning("weights cache: not stored: SGLang also read %s", ", ".join(sorted(read_files - set(files))))
    return model


def _record_files(self: Any) -> set[str]:
    """Returns a set to which this loader adds each file that it reads."""
    read_files: set[str] = set()
    prepare = type(self)._prepare_weights

    def recording(*arguments: Any, **options: Any) -> Any:
        found = prepare(self, *arguments, **options)
        read_files.update(found[1])
        return found

    self._prepare_weights = recording
    return read_files


def _restored(loader: Any, self: Any, cache: WeightsCache, key: Any, model_config: Any, device: torch.device) -> Any:
    if not cache.has(key):
        return None
    quant_config = loader._get_quantization_config(model_config, self.load_config)
    with loader.set_default_torch_dtype(model_config.dtype):
        with device:
            model = loader._initialize_model(model_config, self.load_config, quant_config)
        with torch.no_grad():
            for each in model.parameters():  # because quantization methods reject some values
                each.zero_()
        self.postprocess_weights(model, device)
    return model.eval() if cache.restore(key, model) else None


def _key_of(loader: Any, self: Any, model_config: Any) -> dict[str, Any]:
    """Returns SGLang's own description of a rank's weights, and the versions and arguments that it leaves out."""
    from sglang.version import __version__  # type: ignore[import-not-found,unused-ignore]

    presharded = loader.PreshardedModelLoader
    describer = presharded.__new__(presharded)
    describer.load_config = self.load_config
    quantization = getattr(model_config.hf_config, "quantization_config", None)
    if (to_dict := getattr(quantization, "to_dict", None)) is not None:
        quantization = to_dict()
    return {
        "engine": "sglang",
        "version": str(__version__),
        **describer._collect_shard_config(model_config),
        "rank": list(presharded._world_rank_and_size()),
        "quantization_config": repr(quantization),
        "arguments": _arguments(),
        "draft": [bool(getattr(model_config, "is_draft_model", False)), self.load_config.draft_model_idx],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def _arguments() -> dict[str, str]:
    from sglang.srt.runtime_context import get_server_args  # type: ignore[import-not-found,unused-ignore]

    found = get_server_args()  # None in programs that use only the loader
    return {} if found is None else {name: repr(value) for name, value in sorted(vars(found).items()) if any(part in name for part in _ARGUMENTS)}
