"""The trainer side: each rank serves the tensors or shards that it holds."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from .._core.boxes import chunk_of
from .._core.errors import InvalidArgument
from ..weights import WeightsServer, serve_weights

__all__ = ["PenstockTrainerInitInfo", "PenstockTrainerWeightTransferEngine"]


@dataclass
class PenstockTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc, unused-ignore]
    """A rank's settings.

    - `rank`: rank 0 communicates with vLLM. If there are several ranks, they must form `torch.distributed`'s default process group.
    - `url`: the address on which this rank listens. For workers on other hosts, use tcp://HOST:0 and set `PENSTOCK_WEIGHTS_SECRET` on both sides.
    - `group_bytes`: passed to the workers; see `PenstockInitInfo`.
    - `timeout`: seconds per update.
    """

    backend: ClassVar[str] = "penstock"
    url: str = "unix:"
    group_bytes: int = 1 << 30
    timeout: float = 300.0


class PenstockTrainerWeightTransferEngine(TrainerWeightTransferEngine):  # type: ignore[misc, unused-ignore]
    """Serves one trainer rank's weights to vLLM's workers.

    If the source has `iter_local()`, each rank serves its own shards. Otherwise, the first owner of each tensor serves the whole tensor, and keeps it
    in memory until the next `send_weights()`.
    """

    init_info_cls = PenstockTrainerInitInfo

    def __init__(self, init_info: PenstockTrainerInitInfo, client: Any, source: Any) -> None:
        super().__init__(client=client, source=source, is_sender=init_info.is_sender, rank=init_info.rank)
        self._version = 0
        self._server: WeightsServer = serve_weights({}, init_info.url, snapshot=False, timeout=init_info.timeout)

    @classmethod
    def trainer_init(cls, init_info: PenstockTrainerInitInfo, *, client: Any, source: Any = None) -> PenstockTrainerWeightTransferEngine:
        """Creates the engine. Call it on every rank. Raises InvalidArgument without a source, and the errors of `serve_weights()`."""
        if source is None:
            raise InvalidArgument("source must be a WeightSource", code="invalid_argument")
        engine = cls(init_info, client, source)
        urls = _from_all_ranks(engine._server.url)
        if engine.is_sender:
            client.init_weight_transfer_engine({"urls": urls, "group_bytes": init_info.group_bytes, "timeout": init_info.timeout})
        return engine

    def send_weights(self) -> None:
        """Sends the current weights to vLLM. Call it on every rank. Blocks until vLLM has received them; the weights must not change before then."""
        self._version += 1
        try:
            tensors, parts = self._held()
            self._server.update(tensors, shard=parts, version=self._version)
            if self.is_sender:
                self.client.start_weight_update()
                self.client.update_weights({"version": self._version})
                self.client.finish_weight_update()
        finally:
            _wait_for_all_ranks()  # a rank withdraws its weights only after the workers have been notified, and no rank waits for a failed rank
            self._server.pause()

    def shutdown(self) -> None:
        """Stops serving."""
        self._server.close()

    def _held(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the tensors that this rank serves, and the part of the whole tensor for each shard."""
        metas = {each.name: each for each in self.source.metadata}
        if not self.source.implements_iter_local():
            firsts = {name for name, meta in metas.items() if self.rank == (0 if meta.owners is None else meta.owners[0])}
            return {name: tensor for name, tensor in self.source.iter_full() if name in firsts}, {}
        tensors = dict(self.source.iter_local())
        return tensors, {name: _part_of(metas[name], self.rank) for name in tensors if metas[name].placements is not None}


def _part_of(meta: Any, rank: int) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """Returns a rank's part according to the owners' mesh. Each mesh axis splits at most one dimension."""
    place, cuts = meta.owners.index(rank), []
    for extent, placement in zip(reversed(meta.mesh_shape), reversed(meta.placements)):
        place, coordinate = divmod(place, extent)
        cuts.append((getattr(placement, "dim", None), extent, coordinate))
    box = chunk_of(meta.shape, cuts[::-1])
    return tuple(meta.shape), tuple(slice(start, start + extent) for start, extent in zip(box.starts, box.shape))


def _distributed() -> Any:
    """Returns torch.distributed, or None if this is the only rank."""
    distributed = sys.modules["torch"].distributed
    return distributed if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1 else None


def _from_all_ranks(url: str) -> list[str]:
    distributed = _distributed()
    if distributed is None:
        return [url]
    urls: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(urls, url)
    return urls


def _wait_for_all_ranks() -> None:
    distributed = _distributed()
    if distributed is not None:
        distributed.barrier()
