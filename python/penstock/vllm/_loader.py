"""The load format "penstock": vLLM's own loader with Penstock's reader for safetensors files.

vLLM decides which files and tensors to load, downloads the files, and loads the tensors into the model.
"""

from __future__ import annotations

import copy
import functools
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from vllm.model_executor.model_loader import default_loader, register_model_loader  # type: ignore[import-not-found,unused-ignore]
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader  # type: ignore[import-not-found,unused-ignore]

from .. import _native
from ..weights_cache import WeightsCache
from ._weights import Bar, Skip, held_by_server, parts_of, streamed

__all__ = ["PenstockLoader", "registered"]

_FORMAT = "penstock"
_ITERATOR = "safetensors_weights_iterator"  # the function with which vLLM's loader reads files
_BYTES = ("max_device_bytes", "max_host_bytes", "cache_bytes")
_OPTIONS = ("read", "server", "cache", *_BYTES)

_replacing = threading.Lock()
getattr(default_loader, _ITERATOR)  # AttributeError: an unsupported vLLM


class PenstockLoader(DefaultModelLoader):  # type: ignore[misc,unused-ignore]
    """vLLM's default loader with Penstock's reader. Options in --model-loader-extra-config:

    - `read`: "whole": each rank reads whole tensors into its GPU, as `penstock.safetensors.stream()` does. "parts": each rank reads only the parts of
      a tensor that its model uses. The default is "parts" with several ranks, else "whole".
    - `server`: true copies the weights from `penstock serve` if it holds the same files, on this GPU or on the host. An address selects a server. false
      always reads the files. The default is true.
    - `max_device_bytes`, `max_host_bytes`: limits for `stream()`, for "whole" only.
    - `cache`: a folder that keeps each rank's finished weights, at most `cache_bytes` bytes in total. It requires vLLM 0.31 or later.
    """

    def __init__(self, load_config: Any) -> None:
        self._options, rest = _options_of(load_config.model_loader_extra_config)
        config = copy.copy(load_config)
        config.load_format = "auto"
        config.model_loader_extra_config = rest
        self._read_files: set[str] = set()
        super().__init__(config)

    def load_model(self, vllm_config: Any, model_config: Any, **others: Any) -> Any:
        """Returns the model, from the cache if one is set and contains the weights."""

        def load() -> Any:
            return super(PenstockLoader, self).load_model(vllm_config, model_config, **others)

        if "cache" not in self._options:
            return load()
        try:
            from ._finished import load_model
        except (ImportError, AttributeError) as problem:
            logging.getLogger("penstock").warning("weights cache: not used: it requires vLLM 0.31 or a later compatible release: %s", problem)
            return load()
        cache = WeightsCache(self._options["cache"], capacity_bytes=self._options.get("cache_bytes"))
        return load_model(cache, self, load, self._read_files, vllm_config, model_config, others.get("prefix", ""))

    def _prepare_weights(self, *arguments: Any, **options: Any) -> Any:
        found = super()._prepare_weights(*arguments, **options)
        self._read_files.update(found[1])
        return found

    def _get_weights_iterator(self, source: Any) -> Any:
        with _replacing:
            theirs = getattr(default_loader, _ITERATOR)
            setattr(default_loader, _ITERATOR, functools.partial(self._weights, theirs))
            try:  # vLLM looks up the iterator by name, and returns before it reads
                return super()._get_weights_iterator(source)
            finally:
                setattr(default_loader, _ITERATOR, theirs)

    def _weights(self, theirs: Any, files: list[str], *arguments: Any, local_expert_ids: set[int] | None = None, **others: Any) -> Iterator[tuple[str, Any]]:
        """Yields what vLLM's safetensors_weights_iterator() yields. Its arguments differ between versions."""
        device = _device(self.load_config.device)
        if "torchao" in (*arguments, *others.values()) or device.type not in ("cpu", "cuda"):
            if local_expert_ids is not None:
                others["local_expert_ids"] = local_expert_ids
            found: Iterator[tuple[str, Any]] = theirs(files, *arguments, **others)
            return found
        whole = self._options.get("read", "parts" if _ranks() > 1 else "whole") == "whole"
        skip, bar = _skip(local_expert_ids), _bar(self.load_config.use_tqdm_on_load)
        server = self._options.get("server", True)
        # A rank that needs only parts reads less from the files in the page cache than from a server on the host.
        held = held_by_server(files, device, skip, bar, server if isinstance(server, str) else None, whole) if server else None
        if held is not None:
            return held
        logging.getLogger("penstock").info("reading %s of tensors from %d files for %s", "all" if whole else "parts", len(files), device)
        if not whole:
            return parts_of(files, skip, bar)
        return streamed(files, device, skip, bar, max_device_bytes=self._options.get("max_device_bytes"), max_host_bytes=self._options.get("max_host_bytes"))


def registered() -> None:
    from vllm.model_executor import model_loader  # type: ignore[import-not-found,unused-ignore]

    known: Mapping[str, Any] = getattr(model_loader, "_LOAD_FORMAT_TO_MODEL_LOADER", {})
    if known.get(_FORMAT) is not PenstockLoader:
        register_model_loader(_FORMAT)(PenstockLoader)


def _options_of(extra_config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options for this loader and those for vLLM. Raises ValueError, as vLLM does."""
    if not isinstance(extra_config, Mapping):
        raise ValueError(f"model_loader_extra_config must be a dict for load format {_FORMAT}, not {type(extra_config).__name__}")
    options = {name: value for name, value in extra_config.items() if name in _OPTIONS}
    rest = {name: value for name, value in extra_config.items() if name not in _OPTIONS}
    if options.get("read", "whole") not in ("whole", "parts"):
        raise ValueError(f'model_loader_extra_config: read must be "whole" or "parts" for load format {_FORMAT}, not {options["read"]!r}')
    if not isinstance(options.get("cache", ""), str):
        raise ValueError(f"model_loader_extra_config: cache must be the path of a folder for load format {_FORMAT}, not {options['cache']!r}")
    for name in _BYTES:
        if type(options.get(name, 1)) is not int or options.get(name, 1) < 1:
            raise ValueError(f"model_loader_extra_config: {name} must be a number of bytes for load format {_FORMAT}, not {options[name]!r}")
    if not isinstance(options.get("server", True), (bool, str)):
        raise ValueError(f"model_loader_extra_config: server must be true, false or an address for load format {_FORMAT}, not {options['server']!r}")
    if rest.get("enable_multithread_load") or "num_threads" in rest:
        raise ValueError(f"model_loader_extra_config: load format {_FORMAT} uses its own threads: remove enable_multithread_load and num_threads")
    return options, rest


def _device(told: Any) -> Any:
    """Returns the device for the tensors. `told` is the device in vLLM's load config."""
    if told is not None and torch.device(told).type != "cuda":
        return torch.device(told)
    if _native.cuda_status() is not None or torch.version.cuda is None or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device(told) if told is not None and torch.device(told).index is not None else torch.device("cuda", torch.cuda.current_device())


def _ranks() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _bar(wanted: bool) -> Bar:
    """Returns a progress bar like vLLM's, which only the first rank shows."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
    from vllm.model_executor.model_loader.weight_utils import enable_tqdm  # type: ignore[import-not-found,unused-ignore]

    return functools.partial(tqdm, desc="Loading safetensors by Penstock", disable=not enable_tqdm(wanted))


def _skip(local_expert_ids: set[int] | None) -> Skip | None:
    """Returns vLLM's filter for other ranks' experts, or None."""
    if local_expert_ids is None:
        return None
    from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight  # type: ignore[import-not-found,unused-ignore]

    return lambda name: bool(should_skip_weight(name, local_expert_ids))
