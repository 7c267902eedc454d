"""Keeps finished weights (quantized, sharded, post-processed) on disk, so that the next start reads them at the speed of the link.

    from penstock.weights_cache import WeightsCache

    cache = WeightsCache("/mnt/nvme/weights", capacity_bytes=200 << 30)
    model = cache.get({"model": "my-model", "quantization": "int8"}, build, sources=["model.safetensors"])

The key contains a hash of the source files' contents, so weights from changed files are never used. vLLM, SGLang, transformers and
`penstock.torch.load_module` use the same kind of cache; docs/guides/engines.md describes how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.lazy import lazily

if TYPE_CHECKING:
    from ._cache import WeightsCache
    from ._pretrained import from_pretrained
    from ._sources import model_files as model_files
    from ._sources import settings_files as settings_files
else:
    __getattr__ = lazily(
        __name__, __name__, {"._cache": ("WeightsCache",), "._pretrained": ("from_pretrained",), "._sources": ("model_files", "settings_files")}
    )

__all__ = ["WeightsCache", "from_pretrained"]


def __dir__() -> list[str]:
    return sorted(__all__)
