"""Penstock as a backend for weight transfer of vLLM ("penstock"): a trainer's weights come to vLLM's workers over pipes.

    # vLLM: --weight-transfer-config '{"backend": "penstock"}'

    # the trainer, on each of its ranks
    from vllm.distributed.weight_transfer.base import ModuleSource
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from penstock.vllm_weights import PenstockTrainerInitInfo, PenstockTrainerWeightTransferEngine

    client = HTTPVLLMWeightSyncClient("http://localhost:8000")
    engine = PenstockTrainerWeightTransferEngine.trainer_init(PenstockTrainerInitInfo(rank=0), client=client, source=ModuleSource(model))
    ...
    engine.send_weights()                      # after a step

vLLM finds the backend by itself where both are installed (the entry point "penstock" of vllm.general_plugins); register() does the same. Each
rank of the trainer serves what it holds, parts of tensors too, and no rank gathers what is spread over several. vllm is imported when a class
is used.
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
    """Tells vLLM of the backend. May be called again; does nothing where vLLM has no such interface."""
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
            pass  # it is registered


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in __all__:
            from . import _trainer, _worker

            return getattr(_trainer if "Trainer" in name else _worker, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
