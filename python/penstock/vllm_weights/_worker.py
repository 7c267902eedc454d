"""The worker side: each worker loads the tensors that its model uses from all trainer ranks, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from .._core.errors import InvalidArgument
from ..weights import WeightsReceiver

__all__ = ["PenstockInitInfo", "PenstockUpdateInfo", "PenstockWeightTransferEngine"]


@dataclass
class PenstockInitInfo(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """The settings that the trainer sends to each worker once. They do not include the secret for tcp: set `PENSTOCK_WEIGHTS_SECRET` for the workers.

    - `urls`: the trainer ranks' addresses.
    - `group_bytes`: the maximum number of bytes of tensors on the device at a time, in addition to the model.
    - `timeout`: seconds per update.
    """

    urls: list[str]
    group_bytes: int = 1 << 30
    timeout: float = 300.0


@dataclass
class PenstockUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """The message that the trainer sends for each update: the version to load."""

    version: int


class PenstockWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc, unused-ignore]
    """Loads weights with the names and shapes of a checkpoint, and passes them to the model's `load_weights()`."""

    init_info_cls = PenstockInitInfo
    update_info_cls = PenstockUpdateInfo
    _receiver: WeightsReceiver | None = None
    _init_info: PenstockInitInfo

    def init_transfer_engine(self, init_info: PenstockInitInfo) -> None:
        """Prepares a receiver for the trainer's ranks."""
        self.shutdown()
        self._init_info = init_info
        self._receiver = WeightsReceiver(init_info.urls, device=self.device, framework="pt")

    def start_weight_update(self) -> None:
        """Starts vLLM's layerwise reload."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: PenstockUpdateInfo) -> None:
        """Loads the version that the trainer requests. Raises the errors of `penstock.load_weights()`."""
        if self._receiver is None:
            raise InvalidArgument("call init_transfer_engine() before receive_weights()", code="invalid_argument")
        info = self._init_info
        with _incomplete_loads():
            for tensors in self._receiver.load_in_groups(info.group_bytes, at_least=update_info.version, timeout=info.timeout):
                self.model.load_weights(list(tensors.items()))
                tensors.clear()  # frees them before the next group arrives

    def finish_weight_update(self) -> None:
        """Ends vLLM's layerwise reload."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Closes the receiver."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None


def _incomplete_loads() -> Any:
    """Makes models accept groups, which are parts of a checkpoint and which some models would otherwise reject as incomplete."""
    from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

    return disable_mtp_completeness_check()
