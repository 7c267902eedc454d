"""Code shared by the secondary tier and the spec for vLLM's KV offloading: settings, keys, and the store. Importing this module imports vLLM."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from typing import Any

import vllm  # type: ignore[import-not-found,unused-ignore]

from .. import kv
from .._core.kv_adapters import check_settings

__all__ = ["identity_of", "open_store", "options_of"]

_OPTIONS: dict[str, Any] = {"max_store_bytes": None, "namespace": "", "keep_on_reset": False}
_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".gguf", ".json")


def options_of(settings: dict[str, Any], block_bytes: int, where: str) -> dict[str, Any]:
    """Checks the settings. Removes those that are not for the store, and returns them."""
    check_settings(settings, where, tuple(_OPTIONS))
    if not isinstance(settings.get("folder"), str) or not settings["folder"]:
        raise ValueError(f'{where} must set "folder", the store\'s directory')
    options = {name: settings.pop(name, default) for name, default in _OPTIONS.items()}
    for name, limit in (("capacity_bytes", settings.get("capacity_bytes")), ("max_store_bytes", options["max_store_bytes"])):
        if limit is not None and (type(limit) is not int or limit < block_bytes):
            raise ValueError(f"{name} in {where} is {limit!r}; it must be a number of bytes, at least {block_bytes:,}, the size of one block")
    for name, kind, article in (("namespace", str, "a string"), ("keep_on_reset", bool, "true or false")):
        if not isinstance(options[name], kind):
            raise ValueError(f"{name} in {where} is {options[name]!r}; it must be {article}")
    return options


def identity_of(config: Any, namespace: str, **more: Any) -> bytes:
    """Returns a prefix for keys. It differs between models, block layouts and vLLM releases, but is the same for engines with the same blocks.
    `more`: further properties of the blocks.
    """
    fields = dataclasses.asdict(dataclasses.replace(config, engine_id="", extra_config={}))
    fields.pop("enable_kv_cache_events", None)
    fields["model"].pop("max_model_len", None)
    fields["parallel"] = {name: value for name, value in fields["parallel"].items() if not name.startswith("data_parallel_")} | {"rank": 0}
    fields |= {"vllm": vllm.__version__, "namespace": namespace, "files": _weight_files(config.model.name), **more}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).digest()


def _weight_files(model: str) -> list[tuple[str, int, int]]:
    """Returns the names, sizes and times of a local model's files, which change with its weights. For other models, returns an empty list."""
    if not os.path.isdir(model):
        return []
    stats = [(entry.name, entry.stat()) for entry in os.scandir(model) if entry.name.endswith(_WEIGHT_FILES)]
    return sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def open_store(settings: dict[str, Any], name: str, block_bytes: int, where: str) -> kv.Store:
    """Opens the store of that name in the folder of the settings."""
    os.makedirs(settings["folder"], mode=0o700, exist_ok=True)
    store = kv.Store(**{**settings, "folder": os.path.join(settings["folder"], name)})
    if (capacity := store.stats().capacity_bytes) < block_bytes:
        store.close()
        raise ValueError(f"capacity_bytes in {where} is {capacity:,}, which is less than the size of one block, {block_bytes:,} bytes")
    return store


def __dir__() -> list[str]:
    return sorted(__all__)
