"""penstock.torch.checkpoint: files that torch.distributed.checkpoint's own reader and writer understand, in both directions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import torch.distributed.checkpoint as dcp  # noqa: E402

from penstock.torch import checkpoint  # noqa: E402
from penstock.torch._runs import runs_of  # noqa: E402

from .torch_ranks import run_ranks  # noqa: E402
from .torch_states import assert_same, quiet  # noqa: E402, F401

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
READERS = [dcp.FileSystemReader, checkpoint.FileSystemReader]
WRITERS = [dcp.FileSystemWriter, checkpoint.FileSystemWriter]
OURS_FIRST = [(checkpoint.FileSystemWriter, dcp.FileSystemReader), (dcp.FileSystemWriter, checkpoint.FileSystemReader)]


def state() -> dict[str, Any]:
    torch.manual_seed(3)
    whole = torch.randn(40, 30)
    return {
        "weight": torch.randn(50, 20),
        "view": whole[5:20],
        "strided": whole[:, ::3],
        "transposed": torch.randn(7, 9).t(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "bfloat16": torch.randn(33).bfloat16(),
        "large": torch.arange(700_000),
        "nested": {"step": 12, "name": "adam", "list": [torch.ones(3), 7]},
    }


def zeros_of(obj: Any) -> Any:
    """The same structure, for loading into."""
    if isinstance(obj, torch.Tensor):
        return torch.zeros_like(obj, memory_format=torch.contiguous_format)
    if isinstance(obj, dict):
        return {name: zeros_of(each) for name, each in obj.items()}
    return [zeros_of(each) for each in obj] if isinstance(obj, list) else None if isinstance(obj, str) else 0


def assert_equal(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype and torch.equal(found.cpu(), wanted.cpu())
    elif isinstance(wanted, (dict, list)):
        assert len(found) == len(wanted)
        for each in wanted if isinstance(wanted, dict) else range(len(wanted)):
            assert_equal(found[each], wanted[each])
    else:
        assert found == wanted


@pytest.mark.parametrize(("writer", "reader"), [*OURS_FIRST, (checkpoint.FileSystemWriter, checkpoint.FileSystemReader)])
@pytest.mark.parametrize("one_file", [True, False])
def test_what_one_writes_the_other_reads(tmp_path: Path, writer: Any, reader: Any, one_file: bool) -> None:
    wanted = state()
    dcp.save(wanted, storage_writer=writer(tmp_path / "saved", single_file_per_rank=one_file))
    found = zeros_of(wanted)
    dcp.load(found, storage_reader=reader(tmp_path / "saved"))
    assert_equal(found, wanted)
    assert not [each for each in os.listdir(tmp_path / "saved") if ".penstock-" in each]


def test_the_tensors_that_are_loaded_into_stay_the_same_and_views_of_others_too(tmp_path: Path) -> None:
    wanted = torch.arange(600, dtype=torch.float32).reshape(20, 30)
    dcp.save({"a": wanted}, storage_writer=dcp.FileSystemWriter(tmp_path))
    base = torch.zeros(40, 60)
    for target in (base[3:23, 5:35], base.t()[:20, :30], torch.zeros(20, 30, dtype=torch.float64), base[::2, ::2]):
        base.zero_()
        address = target.data_ptr()
        into = {"a": target}
        dcp.load(into, storage_reader=checkpoint.FileSystemReader(tmp_path))
        assert torch.equal(target.float(), wanted) and into["a"].data_ptr() == address
        if target.dtype == base.dtype:
            assert float(base.sum()) == float(wanted.sum())  # nothing beside it was written


def test_runs_are_the_bytes_that_follow_each_other_in_both() -> None:
    whole = torch.zeros(10, 8, 4, dtype=torch.int16)
    assert runs_of(whole, torch.zeros(10, 8, 4)) == [(0, 0, 640)]
    assert runs_of(whole[4:6], torch.zeros(2, 8, 4)) == [(256, 0, 128)]
    assert runs_of(whole[:, 2:4], torch.zeros(10, 2, 4))[:2] == [(16, 0, 16), (80, 16, 16)]
    assert runs_of(whole[:1, :1, :1], torch.zeros(1, 1, 1)) == [(0, 0, 2)]
    assert runs_of(whole[..., ::2], torch.zeros(10, 8, 2))[:2] == [(0, 0, 2), (4, 2, 2)]
    assert runs_of(torch.zeros(200, 50)[:, ::2], torch.zeros(200, 25)) is None
    assert runs_of(whole, torch.zeros(1, 8, 4).expand(10, 8, 4)) is None


def test_types_of_their_own_and_other_formats_are_left_to_pytorch(tmp_path: Path) -> None:
    quantized = torch.quantize_per_tensor(torch.randn(5), 0.1, 0, torch.qint8)
    wanted = {"quantized": quantized, "plain": torch.arange(3), "conjugate": torch.randn(3, dtype=torch.complex64).conj()}
    dcp.save(wanted, storage_writer=dcp.FileSystemWriter(tmp_path / "torch"))
    dcp.save(wanted, storage_writer=checkpoint.FileSystemWriter(tmp_path / "ours"))
    for folder in ("torch", "ours"):
        found = {"quantized": torch.quantize_per_tensor(torch.zeros(5), 0.1, 0, torch.qint8), "plain": torch.zeros(3, dtype=torch.int64)}
        found["conjugate"] = torch.zeros(3, dtype=torch.complex64)
        dcp.load(found, storage_reader=checkpoint.FileSystemReader(tmp_path / folder))
        assert torch.equal(found["quantized"].dequantize(), quantized.dequantize())
        assert torch.equal(found["plain"], wanted["plain"]) and torch.equal(found["conjugate"], wanted["conjugate"].resolve_conj())


def test_a_file_that_is_cut_is_an_error_that_names_it(tmp_path: Path) -> None:
    wanted = {"first": torch.arange(5_000), "second": torch.arange(5_000)}
    dcp.save(wanted, storage_writer=checkpoint.FileSystemWriter(tmp_path))
    (path,) = tmp_path.glob("*.distcp")
    os.truncate(path, 60_000)
    with pytest.raises(dcp.CheckpointException, match=str(path)) as caught:
        dcp.load(zeros_of(wanted), storage_reader=checkpoint.FileSystemReader(tmp_path))
    assert "truncated" in str(caught.value)
    path.unlink()
    with pytest.raises(dcp.CheckpointException, match=f"{path}.*No such file"):
        dcp.load(zeros_of(wanted), storage_reader=checkpoint.FileSystemReader(tmp_path))


def test_a_file_that_is_cut_while_it_is_read_names_the_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"first": torch.arange(50_000), "second": torch.arange(50_000)}
    dcp.save(wanted, storage_writer=checkpoint.FileSystemWriter(tmp_path))
    (path,) = tmp_path.glob("*.distcp")
    move = checkpoint.move_batches

    def cut(*arguments: Any, **named: Any) -> None:
        os.truncate(path, 100_000)
        move(*arguments, **named)

    monkeypatch.setattr(checkpoint, "move_batches", cut)
    with pytest.raises(dcp.CheckpointException, match=f"{path}: tensor (first|second): read "):
        dcp.load(zeros_of(wanted), storage_reader=checkpoint.FileSystemReader(tmp_path))


def test_a_disk_that_fails_is_told(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(dcp.CheckpointException, match="file"):
        dcp.save(state(), storage_writer=checkpoint.FileSystemWriter(blocked / "below"))


def test_saving_in_the_background_works_too(tmp_path: Path) -> None:
    program = f"""
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from penstock.torch.checkpoint import FileSystemWriter, FileSystemReader
dist.init_process_group("gloo", init_method="file://{tmp_path}/group", rank=0, world_size=1)
tensor = torch.arange(100_000)
future = dcp.async_save({{"a": tensor}}, storage_writer=FileSystemWriter("{tmp_path}/saved"))
tensor.zero_()
future.result()
found = {{"a": torch.zeros(100_000, dtype=torch.int64)}}
dcp.load(found, storage_reader=FileSystemReader("{tmp_path}/saved"))
assert torch.equal(found["a"], torch.arange(100_000))
dist.destroy_process_group()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


_imports = """
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from penstock.torch import checkpoint
"""
_rank = """
dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(101 * 37, dtype=torch.float32).reshape(101, 37)
for number, (writer, reader) in enumerate([(checkpoint, checkpoint), (checkpoint, dcp), (dcp, checkpoint)]):
    name = f"{folder}/saved{number}"
    saved = {"rows": distribute_tensor(whole, mesh, [Shard(0)]), "columns": distribute_tensor(whole, mesh, [Shard(1)]), "step": number,
             "replicated": distribute_tensor(whole, mesh, [Replicate()])}
    dcp.save(saved, storage_writer=writer.FileSystemWriter(name))
    for placement in (Shard(0), Shard(1), Replicate()):
        found = {each: distribute_tensor(torch.zeros(101, 37), mesh, [placement]) for each in ("rows", "columns", "replicated")}
        found["step"] = None
        dcp.load(found, storage_reader=reader.FileSystemReader(name))
        for each in ("rows", "columns", "replicated"):
            assert torch.equal(found[each].full_tensor(), whole), (number, placement, each)
        assert found["step"] == number
dist.destroy_process_group()
print("well")
"""


def test_two_ranks_load_other_shards_than_they_have_saved(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.tensor")
    for rank in run_ranks(_imports, _rank, 2, tmp_path):
        assert rank.returncode == 0 and "well" in rank.out, rank.err
    assert len(list((tmp_path / "saved0").glob("*.distcp"))) == 2


@needs_gpu
@pytest.mark.parametrize(("writer", "reader"), [*OURS_FIRST, (checkpoint.FileSystemWriter, checkpoint.FileSystemReader)])
def test_tensors_of_a_gpu_are_written_and_read_there(tmp_path: Path, writer: Any, reader: Any) -> None:
    wanted = {name: each.cuda() if isinstance(each, torch.Tensor) else each for name, each in state().items()}
    dcp.save(wanted, storage_writer=writer(tmp_path))
    found = zeros_of(wanted)
    dcp.load(found, storage_reader=reader(tmp_path))
    assert_equal(found, wanted)
    assert found["large"].is_cuda


def test_parameters_and_optimizers_come_back(tmp_path: Path) -> None:
    model = torch.nn.Linear(30, 20)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 30)).sum().backward()
    optimizer.step()
    wanted = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.save(wanted, storage_writer=checkpoint.FileSystemWriter(tmp_path))
    other = torch.nn.Linear(30, 20)
    found = {"model": other.state_dict(), "optimizer": zeros_of(wanted["optimizer"])}
    dcp.load(found, storage_reader=checkpoint.FileSystemReader(tmp_path))
    assert torch.equal(other.weight, model.weight)
    assert_same(found["optimizer"]["state"][0]["exp_avg"], wanted["optimizer"]["state"][0]["exp_avg"])
