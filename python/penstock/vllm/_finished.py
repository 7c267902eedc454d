"""Finished weights of a vLLM rank (sharded, quantized, in the kernels' layout) in a weights cache.

vLLM itself can build a model from weights that another process has finished; it then skips the transformations and rebuilds only the Python state of
its quantization methods. This module passes it weights from the cache instead.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from vllm import envs  # type: ignore[import-not-found,unused-ignore]
from vllm.model_executor.model_loader.weight_cache import protocol  # type: ignore[import-not-found,unused-ignore]
from vllm.model_executor.model_loader.weight_cache.ipc_loader import IpcModelLoader  # type: ignore[import-not-found,unused-ignore]
from vllm.model_executor.model_loader.weight_cache.utils import export_model_attrs  # type: ignore[import-not-found,unused-ignore]

from ..weights_cache import WeightsCache, settings_files

__all__ = ["load_model"]

_log = logging.getLogger("penstock")


class _Builder(IpcModelLoader):  # type: ignore[misc,unused-ignore]
    """Builds models from finished weights, without a daemon."""

    def __init__(self, load_config: Any) -> None:
        config = copy.copy(load_config)
        config.model_loader_extra_config = {}
        super().__init__(config)

    def _request_state(self, cache_key: Any, **options: Any) -> Any:
        return cache_key

    def _watch_daemon(self) -> None:
        return None

    def key_of(self, vllm_config: Any, model_config: Any) -> dict[str, Any]:
        """Returns vLLM's own description of everything that determines a rank's weights."""
        speculative = vllm_config.speculative_config
        self.is_draft = speculative is not None and model_config is speculative.draft_model_config
        names = set(inspect.signature(self._fetch_entries).parameters) - {"model_config", "is_reload"}  # more in newer releases
        found = self._fetch_entries(model_config, **{name: getattr(vllm_config, name) for name in names})
        told = dataclasses.asdict(found)
        del told["checkpoint"]  # a hash of headers; the cache hashes contents
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        factors: dict[str, Any] = getattr(envs, "compile_factors", dict)()
        return {"engine": "vllm", **told, "config": str(vllm_config.compute_hash()), "environment": repr(sorted(factors.items())), "device": device}


def load_model(
    cache: WeightsCache, loader: Any, load: Callable[[], Any], read_files: set[str], vllm_config: Any, model_config: Any, prefix: str
) -> Any:
    """Returns the model from the cache if possible. Otherwise, returns the result of load(), and stores its weights.

    `read_files`: load() adds the files that it reads.
    """
    if (problem := _problem_of(vllm_config)) is not None:
        _log.warning("weights cache: not used, because %s", problem)
        return load()
    builder = _Builder(loader.load_config)
    folder, files, *_ = loader._prepare_weights(model_config.model, None, model_config.revision, True, None)
    try:
        key = cache.key(builder.key_of(vllm_config, model_config), [*files, *settings_files(folder)])
    except (AttributeError, TypeError, OSError) as problem:
        _log.warning("weights cache: not used: %s", problem)
        return load()
    read_files.clear()
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    if (found := cache.load(key, device=device)) is not None:
        try:
            entries = {name: protocol.TensorEntry(kind=kind, cpu_tensor=tensor) for name, (kind, tensor) in found["entries"].items()}
            return builder._build_model(vllm_config, model_config, prefix, protocol.WeightCacheState(entries, found["aliases"], found["attributes"]))
        except Exception:  # as vLLM does when its own cache fails
            _log.exception("weights cache: vLLM could not use the stored weights, so it loads the model")
            del found
    model = load()
    if read_files <= set(files):
        _save(cache, key, model)
    else:
        _log.warning("weights cache: not stored: vLLM also read %s", ", ".join(sorted(read_files - set(files))))
    return model


def _problem_of(vllm_config: Any) -> str | None:
    offload = getattr(vllm_config, "offload_config", None)
    if offload is not None and (offload.uva.cpu_offload_gb > 0 or offload.prefetch.offload_group_size > 0):
        return "vLLM offloads weights to the CPU"
    return "expert load balancing moves weights between ranks" if vllm_config.parallel_config.enable_eplb else None


def _save(cache: WeightsCache, key: Any, model: Any) -> None:
    try:
        protocol.check_ipc_quant_support(model)
    except protocol.UnsupportedQuantForIPCError as problem:
        _log.warning("weights cache: not stored: %s", problem)
        return
    cache.save(key, _state_of(model))


def _state_of(model: torch.nn.Module) -> dict[str, Any]:
    """Returns the parameters and buffers, each once, and further names for those that are shared."""
    entries: dict[str, tuple[str, Any]] = {}
    aliases: dict[str, str] = {}
    names: dict[int, str] = {}
    for kind, tensors in (("param", model.named_parameters(remove_duplicate=False)), ("buffer", model.named_buffers(remove_duplicate=False))):
        for name, tensor in tensors:
            if (first := names.setdefault(id(tensor), name)) != name:
                aliases[name] = first
            elif name not in entries:
                entries[name] = kind, _without_loader(tensor)
    return {"entries": entries, "aliases": aliases, "attributes": export_model_attrs(model)}


def _without_loader(tensor: Any) -> Any:
    """Returns a parameter without its Python attributes, which vLLM's weight loaders use."""
    found = tensor.detach()
    return found.as_subclass(torch.Tensor) if type(found).__torch_dispatch__ is torch.Tensor.__torch_dispatch__ else found
