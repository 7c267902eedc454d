"""The side of vLLM's workers: each loads from all ranks of the trainer what the model takes, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from .._errors import InvalidArgument
from ..weights import WeightsReceiver

__all__ = ["PenstockInitInfo", "PenstockUpdateInfo", "PenstockWeightTransferEngine"]


@dataclass
class PenstockInitInfo(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """What the trainer tells each worker once. The secret of tcp is no part of it: workers have it in PENSTOCK_WEIGHTS_SECRET."""

    urls: list[str]  # of the trainer's ranks
    group_bytes: int = 1 << 30  # of tensors that are on the device at a time beside the model
    timeout: float = 300.0  # seconds for an update


@dataclass
class PenstockUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """What the trainer tells for each update."""

    version: int


class PenstockWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc, unused-ignore]
    """Weights under the names and in the form of a checkpoint, which the model's load_weights() takes."""

    init_info_cls = PenstockInitInfo
    update_info_cls = PenstockUpdateInfo
    _receiver: WeightsReceiver | None = None
    _init_info: PenstockInitInfo

    def init_transfer_engine(self, init_info: PenstockInitInfo) -> None:
        self.shutdown()
        self._init_info = init_info
        self._receiver = WeightsReceiver(init_info.urls, device=self.device, framework="pt")

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: PenstockUpdateInfo) -> None:
        """Raises penstock.Error: see load_weights()."""
        if self._receiver is None:
            raise InvalidArgument("init_transfer_engine() comes before receive_weights()", code="invalid_argument")
        info = self._init_info
        with _incomplete_loads():
            for tensors in self._receiver.load_in_groups(info.group_bytes, at_least=update_info.version, timeout=info.timeout):
                self.model.load_weights(list(tensors.items()))
                tensors.clear()  # before the next group comes

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None


def _incomplete_loads() -> Any:
    """Groups are parts of a checkpoint, which some models would otherwise find incomplete."""
    from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

    return disable_mtp_completeness_check()
