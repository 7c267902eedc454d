"""Weights of PyTorch's modules, on the CPU and on GPUs, in other processes too."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import penstock
import penstock.pipe
from penstock.weights import WeightsReceiver, load_weights, serve_weights
from penstock._core.boxes import chunk_of

torch = pytest.importorskip("torch")
GPUS = torch.cuda.device_count() if penstock.cuda_status() is None else 0
DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.skipif(not GPUS, reason="no GPU"))]


def model(device="cpu", seed=0):
    """Of several types and layouts, with a buffer, weights that are tied and many small ones."""
    torch.manual_seed(seed)
    made = torch.nn.Module()
    made.first = torch.nn.Linear(300, 200, dtype=torch.bfloat16)
    made.tied = made.first
    made.norms = torch.nn.ModuleList(torch.nn.LayerNorm(64) for _ in range(50))
    made.images = torch.nn.Conv2d(3, 16, 3).to(memory_format=torch.channels_last)
    made.register_buffer("steps", torch.tensor(seed))
    return made.to(device)


def same(got, expected):
    got = got if isinstance(got, dict) else got.state_dict()
    expected = expected.state_dict()
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert got[name].dtype == value.dtype and torch.equal(got[name].cpu(), value.cpu()), name


@pytest.mark.parametrize("snapshot", [True, False])
@pytest.mark.parametrize("there", DEVICES)
@pytest.mark.parametrize("here", DEVICES)
def test_a_module_is_filled_in_place(there, here, snapshot):
    source, target = model(there), model(here, seed=1)
    addresses = [each.data_ptr() for each in target.parameters()]
    version = target.first.weight._version
    with serve_weights(source, snapshot=snapshot) as server:
        assert load_weights(server.url, target, timeout=60).missing_keys == []
        same(target, source)
        assert [each.data_ptr() for each in target.parameters()] == addresses
        assert target.first.weight._version > version  # autograd knows
        made = load_weights(server.url, device=torch.device(here), timeout=60).tensors
        same(made, source)
        assert made["steps"].device.type == torch.device(here).type


@pytest.mark.parametrize("device", DEVICES)
def test_training_goes_on_and_each_update_is_whole(device):
    source, target = model(device), model(device)
    with serve_weights(source) as server, WeightsReceiver(server.url, target) as receiver:
        for version in range(4):
            assert receiver.load(timeout=60).version == version
            same(target, source)
            with torch.no_grad():
                for each in source.parameters():
                    each.mul_(3).add_(1)
            assert server.update() == version + 1


def test_what_torch_has_no_bytes_of_is_refused():
    with pytest.raises(penstock.InvalidArgument, match='"steps" cannot be served: it is on the device meta'):
        serve_weights(model().to("meta"))
    with pytest.raises(penstock.InvalidArgument, match="has the layout torch.sparse_coo"):
        serve_weights({"it": torch.eye(3).to_sparse()})
    with serve_weights(model()) as server, pytest.raises(penstock.InvalidArgument, match='"steps" cannot be filled: it is on the device meta'):
        load_weights(server.url, model().to("meta"), timeout=60)


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_conjugate_of_served_memory_has_its_own_values(snapshot):
    numbers = torch.randn(5, dtype=torch.complex64)
    source = {"it": numbers, "conjugate": numbers.conj()}
    target = {name: torch.zeros(5, dtype=torch.complex64) for name in source}
    with serve_weights(source, snapshot=snapshot) as server:
        load_weights(server.url, target, timeout=60)
    assert all(torch.equal(target[name], value) for name, value in source.items())


def test_weights_are_served_and_filled_inside_and_outside_of_inference_mode():
    with torch.inference_mode():
        source = {"it": torch.arange(6.0), "rows": torch.arange(6.0).reshape(2, 3).T}
        target = {"it": torch.zeros(6), "rows": torch.zeros(2, 3).T}
        server = serve_weights(source)
    with server:
        assert server.update() == 1
        load_weights(server.url, target, timeout=60)
        assert all(torch.equal(target[name], value) for name, value in source.items())
        with torch.inference_mode():
            assert server.update() == 2
            load_weights(server.url, {name: torch.zeros_like(value) for name, value in source.items()}, timeout=60)


def test_elements_that_are_one_memory_are_not_filled():
    with serve_weights({"it": torch.arange(4.0)}) as server:
        with pytest.raises(penstock.InvalidArgument, match='"it" cannot be filled: it has elements that share memory'):
            load_weights(server.url, {"it": torch.zeros(1).expand(4)}, timeout=60)
    with serve_weights({"it": torch.ones(1).expand(4)}) as server:
        assert load_weights(server.url, framework="pt", timeout=60).tensors["it"].tolist() == [1.0] * 4


def test_a_parameter_that_gets_another_shape_over_the_same_memory_is_served_so():
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    with serve_weights({"it": parameter}) as server:
        parameter.data = parameter.data.T
        server.update()
        assert torch.equal(load_weights(server.url, framework="pt", timeout=60).tensors["it"], parameter.data)


def test_shards_without_elements_keep_their_own_types(monkeypatch):
    """Of DTensors the local tensors are made anew each time, and one may be where another was that is gone."""
    monkeypatch.setattr("penstock.weights._local_arrays.id", lambda value: 1 if isinstance(value, torch.Tensor) else id(value), raising=False)
    source = {"first": torch.zeros(0, 3), "second": torch.zeros(5, 0, dtype=torch.int64)}
    with serve_weights(source) as server:
        made = load_weights(server.url, framework="pt", timeout=60).tensors
    assert [(each.shape, each.dtype) for each in made.values()] == [(each.shape, each.dtype) for each in source.values()]


def test_chunks_are_those_of_torch():
    for extent, world in [(10, 4), (5, 4), (8, 2), (3, 8)]:
        chunks = torch.arange(extent).chunk(world)
        for rank in range(world):
            box = chunk_of((extent,), [(0, world, rank)])
            assert list(range(box.starts[0], box.starts[0] + box.shape[0])) == (chunks[rank].tolist() if rank < len(chunks) else [])


def test_of_a_dtensor_the_part_is_known():
    """This process is rank 3 of 4 in a mesh of two axes: columns are cut over the second, and ranks of the first have the same."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    whole = torch.arange(70.0).reshape(10, 7)
    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=3, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (2, 2))
        local = DTensor.from_local(torch.zeros(10, 3), mesh, [Replicate(), Shard(1)], run_check=False, shape=whole.shape, stride=whole.stride())
        spread = torch.nn.Parameter(local)
        with serve_weights({"it": whole}) as server, WeightsReceiver(server.url, {"it": spread}) as receiver:
            receiver.load(timeout=60)
            plan = receiver._last[2]
            receiver.load(timeout=60)
            assert receiver._last[2] is plan
        assert torch.equal(spread.to_local(), whole[:, 4:])
        left = {"it": ((10, 7), (slice(None), slice(0, 4)))}
        with serve_weights({"it": spread}) as mine, serve_weights({"it": whole[:, :4]}, shard=left) as other:
            assert torch.equal(load_weights([mine.url, other.url], device=torch.device("cpu"), timeout=60).tensors["it"], whole)
        with pytest.raises(penstock.InvalidArgument, match="because Penstock determines its part"):
            serve_weights({"it": spread}, shard=left)
        with pytest.raises(penstock.InvalidArgument, match="which does not assign parts to ranks"):
            serve_weights({"it": DTensor.from_local(torch.zeros(10, 7), mesh, [Partial(), Replicate()], run_check=False)})
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.skipif(not GPUS, reason="no GPU")
def test_between_processes_a_gpu_copies_into_the_parameters():
    code = """
        import sys, torch, penstock
        weights = {f"{i}": torch.full((1000, 1000), float(i), device="cuda:0") for i in range(8)}
        with penstock.serve_weights(weights, snapshot=False) as server:
            print(server.url, flush=True)
            for line in sys.stdin:
                server.pause()
                for each in weights.values():
                    each += 100
                print(server.update(), flush=True)
        """
    trainer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with trainer:
        target = {f"{i}": torch.zeros((1000, 1000), device="cuda:0") for i in range(8)}
        with WeightsReceiver(trainer.stdout.readline().strip(), target) as receiver:
            for version in range(3):
                assert receiver.load(timeout=60).version == version
                assert all(bool((value == i + 100 * version).all()) for i, value in enumerate(target.values()))
                trainer.stdin.write("go on\n")
                trainer.stdin.flush()
                assert int(trainer.stdout.readline()) == version + 1
            (channel,) = {choice.name for route in receiver.explain()[0].received for choice in route.channels if choice.chosen}
            assert channel == "cuda_ipc"
        trainer.stdin.close()
        assert trainer.wait(timeout=60) == 0


@pytest.mark.skipif(not GPUS, reason="no GPU")
def test_a_snapshot_is_of_what_the_stream_holds_when_it_is_taken():
    stream = torch.cuda.Stream()
    weight = torch.zeros(1 << 22, device="cuda:0")
    with serve_weights({"it": weight}) as server:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            weight.add_(1)
            server.update()
            torch.cuda._sleep(50_000_000)
            weight.add_(1)
        assert bool((load_weights(server.url, device=torch.device("cuda:0"), timeout=60).tensors["it"] == 1).all())
    torch.cuda.synchronize()
