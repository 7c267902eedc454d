"""The backend "penstock" for vLLM's weight transfer: vLLM's workers load a trainer's weights over pipes.

    # vLLM: --weight-transfer-config '{"backend": "penstock"}'

    # the trainer, on each of its ranks
    from vllm.distributed.weight_transfer.base import ModuleSource
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from penstock.vllm_weights import PenstockTrainerInitInfo, PenstockTrainerWeightTransferEngine

    client = HTTPVLLMWeightSyncClient("http://localhost:8000")
    engine = PenstockTrainerWeightTransferEngine.trainer_init(PenstockTrainerInitInfo(rank=0), client=client, source=ModuleSource(model))
    ...
    engine.send_weights()                      # after a step

If both are installed, vLLM finds the backend through the entry point "penstock_weights" in vllm.general_plugins. You can also call `register()`. Each
trainer rank serves its own tensors and shards, so no rank gathers a tensor. vLLM is imported only when you first use one of these classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._trainer import PenstockTrainerInitInfo, PenstockTrainerWeightTransferEngine
    from ._worker import PenstockInitInfo, PenstockUpdateInfo, PenstockWeightTransferEngine

__all__ = [
    "PenstockInitInfo",
    "PenstockTrainerInitInfo",
    "PenstockTrainerWeightTransferEngine",
    "PenstockUpdateInfo",
    "PenstockWeightTransferEngine",
    "register",
]

BACKEND = "penstock"


def register() -> None:
    """Registers the backend with vLLM. Does nothing on further calls, or if this vLLM version does not support weight transfer."""
    try:
        from vllm.distributed.weight_transfer import factory
    except ImportError:
        return
    for name, module, engine in (
        ("WeightTransferEngineFactory", "_worker", "PenstockWeightTransferEngine"),
        ("WeightTransferTrainerFactory", "_trainer", "PenstockTrainerWeightTransferEngine"),
    ):
        registry = getattr(factory, name, None)
        if registry is None:
            continue
        try:
            registry.register_engine(BACKEND, f"{__name__}.{module}", engine)
        except ValueError:
            pass  # it is already registered


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in __all__:
            from . import _trainer, _worker

            return getattr(_trainer if "Trainer" in name else _worker, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
