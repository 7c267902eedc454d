"""vLLM's load format "penstock" (`vllm serve MODEL --load-format penstock`), and the secondary tier "penstock" and the spec "PenstockSpec" for KV offloading.

vLLM finds `register()` through the entry point "penstock" in the group vllm.general_plugins, and calls it in each of its processes. Importing this
module does not import vLLM. docs/guides/engines.md describes the loader, the tier and the spec.
"""

from __future__ import annotations

import contextlib
import logging

__all__ = ["register"]


def register() -> None:
    """Registers the load format and the secondary tier "penstock", and the spec "PenstockSpec", with vLLM. Further calls do nothing.

    If the loaders in this vLLM release differ from those that Penstock supports, vLLM starts without the format, and the logger "penstock" logs a
    warning.
    """
    with contextlib.suppress(ImportError, AttributeError, ValueError):  # a vLLM release without tiers, or a second call
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

        SecondaryTierFactory.register_tier("penstock", "penstock.vllm._kv_tier", "PenstockTier")
    with contextlib.suppress(ImportError, AttributeError, ValueError):
        from vllm.v1.kv_offload.factory import OffloadingSpecFactory

        OffloadingSpecFactory.register_spec("PenstockSpec", "penstock.vllm._gpu_spec", "PenstockSpec")
    try:
        from ._loader import registered
    except (ImportError, AttributeError) as problem:
        logging.getLogger("penstock").warning("the load format penstock is disabled: it supports the loaders in vLLM 0.12 to 0.33, but these differ: %s", problem)
    else:
        registered()


def __dir__() -> list[str]:
    return sorted(__all__)
