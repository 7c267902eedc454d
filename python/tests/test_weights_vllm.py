"""Penstock as vLLM's backend for weight transfer, over an interface like vLLM's: what is called here is what vLLM calls."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import types
from typing import Any

import pytest

import penstock
from penstock import vllm_weights

torch = pytest.importorskip("torch")


class Engine:
    """Of a worker."""

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        self.device, self.model, self.model_config = device, model, vllm_config


@dataclasses.dataclass
class TrainerInitInfo:
    rank: int = dataclasses.field(kw_only=True)

    @property
    def is_sender(self) -> bool:
        return self.rank == 0


class TrainerEngine:
    def __init__(self, *, client: Any, source: Any, is_sender: bool, rank: int) -> None:
        self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank


@dataclasses.dataclass
class Meta:
    """Of a parameter: vLLM's ParamMeta."""

    name: str
    shape: tuple[int, ...]
    owners: tuple[int, ...] | None = None
    mesh_shape: tuple[int, ...] | None = None
    placements: tuple[Any, ...] | None = None


class Registry:
    def __init__(self) -> None:
        self.names: dict[str, tuple[str, str]] = {}

    def register_engine(self, name: str, module: str, engine: str) -> None:
        if name in self.names:
            raise ValueError("already registered")
        self.names[name] = module, engine


@pytest.fixture
def vllm(monkeypatch):
    """What the backend imports of vLLM, and a list of what is called there."""
    called: list[str] = []
    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.distributed": {},
        "vllm.distributed.weight_transfer": {},
        "vllm.distributed.weight_transfer.base": {
            "WeightTransferEngine": Engine,
            "WeightTransferInitInfo": object,
            "WeightTransferUpdateInfo": object,
            "TrainerInitInfo": TrainerInitInfo,
            "TrainerWeightTransferEngine": TrainerEngine,
        },
        "vllm.distributed.weight_transfer.factory": {"WeightTransferEngineFactory": Registry(), "WeightTransferTrainerFactory": Registry()},
        "vllm.model_executor": {},
        "vllm.model_executor.model_loader": {},
        "vllm.model_executor.model_loader.reload": {
            "initialize_layerwise_reload": lambda model: called.append("begin"),
            "finalize_layerwise_reload": lambda model, config: called.append("end"),
        },
        "vllm.model_executor.model_loader.mtp_validation": {"disable_mtp_completeness_check": contextlib.nullcontext},
    }
    for name, content in contents.items():
        module = types.ModuleType(name)
        module.__path__ = []  # type: ignore[attr-defined]
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    yield types.SimpleNamespace(called=called, factory=sys.modules["vllm.distributed.weight_transfer.factory"])
    for name in ("_worker", "_trainer"):
        sys.modules.pop(f"penstock.vllm_weights.{name}", None)
        vars(vllm_weights).pop(name, None)


class Model:
    """Takes tensors by their names, as a checkpoint has them."""

    def __init__(self, shapes):
        self.weights = {name: torch.zeros(shape) for name, shape in shapes.items()}
        self.loads: list[list[str]] = []

    def load_weights(self, weights):
        self.loads.append([name for name, _ in weights])
        for name, tensor in weights:
            self.weights[name].copy_(tensor)


class Client:
    """Of a worker in this process."""

    def __init__(self, engine):
        self.engine = engine

    def init_weight_transfer_engine(self, info):
        self.engine.init_transfer_engine(self.engine.init_info_cls(**info))

    def start_weight_update(self):
        self.engine.start_weight_update()

    def update_weights(self, info):
        self.engine.receive_weights(self.engine.update_info_cls(**info))

    def finish_weight_update(self, weight_version=None):
        self.engine.finish_weight_update()


class Source:
    def __init__(self, metadata, tensors, is_local):
        self.metadata, self._tensors, self._is_local = metadata, tensors, is_local

    def implements_iter_local(self):
        return self._is_local

    def iter_full(self):
        return iter(self._tensors.items())

    iter_local = iter_full


def worker(model):
    return vllm_weights.PenstockWeightTransferEngine(None, "model_config", torch.device("cpu"), model)


def test_the_backend_is_registered_once(vllm):
    vllm_weights.register()
    vllm_weights.register()
    assert vllm.factory.WeightTransferEngineFactory.names == {"penstock": ("penstock.vllm_weights._worker", "PenstockWeightTransferEngine")}
    assert vllm.factory.WeightTransferTrainerFactory.names == {"penstock": ("penstock.vllm_weights._trainer", "PenstockTrainerWeightTransferEngine")}


def test_without_vllm_there_is_nothing_to_register(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    vllm_weights.register()


def test_each_send_brings_the_weights_as_they_are(vllm):
    shapes = {"a": (100, 30), "b": (30,), "c": (7, 7)}
    model = Model(shapes)
    tensors = {name: torch.rand(shape) for name, shape in shapes.items()}
    source = Source([Meta(name, shape) for name, shape in shapes.items()], tensors, False)
    info = vllm_weights.PenstockTrainerInitInfo(rank=0, group_bytes=1000)
    trainer = vllm_weights.PenstockTrainerWeightTransferEngine.trainer_init(info, client=Client(worker(model)), source=source)
    for _ in range(2):
        trainer.send_weights()
        assert all(torch.equal(model.weights[name], value) for name, value in tensors.items())
        for value in tensors.values():
            value.add_(1)
    assert model.loads == [["a"], ["b", "c"]] * 2  # in groups of at most 1000 bytes
    assert vllm.called == ["begin", "end"] * 2
    trainer.client.engine.shutdown()
    trainer.shutdown()
    with pytest.raises(penstock.InvalidArgument, match="init_transfer_engine"):
        trainer.client.engine.receive_weights(vllm_weights.PenstockUpdateInfo(version=1))
    with pytest.raises(penstock.InvalidArgument, match="WeightSource"):
        vllm_weights.PenstockTrainerWeightTransferEngine.trainer_init(info, client=None)


def test_ranks_serve_their_pieces_and_none_gathers(vllm, monkeypatch):
    """Two ranks: rows of one tensor, columns of another, one that both have and one that the second has alone."""
    trainer_module = vllm_weights.PenstockTrainerWeightTransferEngine.__module__
    monkeypatch.setattr(f"{trainer_module}._wait_for_all_ranks", threading.Barrier(2).wait)
    cut = types.SimpleNamespace
    metadata = [
        Meta("rows", (5, 4), (0, 1), (2,), (cut(dim=0),)),
        Meta("columns", (4, 6), (0, 1), (1, 2), (cut(), cut(dim=1))),
        Meta("both", (3,)),
        Meta("second", (2,), (1,), (1,), None),
    ]
    whole = {each.name: torch.rand(each.shape) for each in metadata}
    pieces = [
        {"rows": whole["rows"][:3], "columns": whole["columns"][:, :3], "both": whole["both"]},
        {"rows": whole["rows"][3:], "columns": whole["columns"][:, 3:], "both": whole["both"], "second": whole["second"]},
    ]
    model = Model({each.name: each.shape for each in metadata})
    client = Client(worker(model))
    kind, info = vllm_weights.PenstockTrainerWeightTransferEngine, vllm_weights.PenstockTrainerInitInfo
    ranks = [kind(info(rank=rank), client, Source(metadata, pieces[rank], True)) for rank in range(2)]
    client.init_weight_transfer_engine({"urls": [each._server.url for each in ranks]})
    other = threading.Thread(target=ranks[1].send_weights)
    other.start()
    ranks[0].send_weights()
    other.join()
    assert all(torch.equal(model.weights[name], value) for name, value in whole.items())
    client.engine.shutdown()
    for each in ranks:
        each.shutdown()


def test_a_rank_that_has_no_weights_to_serve_keeps_no_other_waiting(vllm, monkeypatch):
    kind, info = vllm_weights.PenstockTrainerWeightTransferEngine, vllm_weights.PenstockTrainerInitInfo
    met = []
    monkeypatch.setattr(f"{kind.__module__}._wait_for_all_ranks", lambda: met.append(1))
    source = Source([Meta("a", (3,))], {"a": "no tensor"}, False)
    trainer = kind.trainer_init(info(rank=0), client=Client(worker(Model({"a": (3,)}))), source=source)
    for sent in (1, 2):
        with pytest.raises(TypeError, match='"a" must be a PyTorch tensor'):
            trainer.send_weights()
        assert len(met) == sent
    source._tensors["a"] = torch.ones(3)
    trainer.send_weights()
    assert torch.equal(trainer.client.engine.model.weights["a"], torch.ones(3))
    trainer.client.engine.shutdown()
    trainer.shutdown()


def test_an_update_that_fails_is_told_and_the_next_one_works(vllm):
    model = Model({"a": (3,)})
    source = Source([Meta("a", (3,))], {"a": torch.ones(3)}, False)
    info = vllm_weights.PenstockTrainerInitInfo(rank=0)
    trainer = vllm_weights.PenstockTrainerWeightTransferEngine.trainer_init(info, client=Client(worker(model)), source=source)
    model.load_weights, load_weights = None, model.load_weights
    with pytest.raises(TypeError):
        trainer.send_weights()
    model.load_weights = load_weights
    trainer.send_weights()
    assert torch.equal(model.weights["a"], torch.ones(3))
    trainer.client.engine.shutdown()
    trainer.shutdown()
