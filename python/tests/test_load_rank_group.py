"""load_rank() in a process group of torch.distributed: what all get is read once between the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.safetensors import load_rank

from .torch_ranks import run_ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

WORLD = 3

_imports = """
import os, signal, torch, torch.distributed as dist, penstock
from penstock._tensors import rank_group as _group
from penstock._tensors import ranks as _ranks
from penstock.safetensors import load_rank
from penstock.safetensors.torch import save_file
"""
_rank = """
dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
torch.manual_seed(3)
tensors = {"embed": torch.randn(3000, 700), "norm": torch.randn(301).bfloat16(), "none": torch.empty(0, 4), "up": torch.randn(600, 120),
           "down": torch.arange(12000 * 24).reshape(12000, 24).byte(), "wide": torch.randn(7, 12 * 301)}
path = f"{folder}/model.safetensors"
if rank == 0:
    save_file(tensors, path)
dist.barrier()
shard = {"up": 0, "down": 1, "wide": 1}
dims = {name: shard.get(name) for name in tensors}


def load(path=path, shard=shard, group=dist.group.WORLD, **options):
    return load_rank(path, "cpu", shard=shard, group=group, **options)


def check(found, rank, world):
    assert sorted(found) == sorted(tensors)
    for name, each in tensors.items():
        wanted = each if dims[name] is None else torch.chunk(each, world, dims[name])[rank]
        assert found[name].dtype == each.dtype and torch.equal(found[name], wanted), name


def failure(kind, **options):
    try:
        load(**options)
    except kind as error:
        return str(error)
    raise AssertionError("it should have failed")


before = penstock.stats()["read_bytes"]
check(load(), rank, world)
read = torch.tensor(penstock.stats()["read_bytes"] - before)
dist.all_reduce(read)
assert int(read) <= os.path.getsize(path) + 65536 * world, int(read)  # and the beginning of each, with the header in it
_ranks._piece_bytes, _group._most_under_way = 100_003, 2
check(load(), rank, world)
pair = dist.new_group([2, 0])
if rank != 1:
    check(load(group=pair), dist.get_rank(pair), 2)
else:
    assert "this process is not a member" in failure(penstock.InvalidArgument, group=pair)
assert list(load(names=["norm"])) == ["norm"]
assert "load_rank(group=) returns PyTorch tensors" in failure(penstock.InvalidArgument, framework="np")

message = failure(penstock.InvalidArgument, shard={"up": 0} if rank < 2 else {"up": 0, "wide": 1})
assert "ranks 1 and 2 do not load the same" in message, message
message = failure(FileNotFoundError if rank == 1 else penstock.Closed, path=path if rank != 1 else f"{folder}/missing")
assert "missing" in message and (rank == 1 or "rank 1 failed: NotFound" in message), message

wait = _group.Reads.wait


def fails(reads):
    wait(reads)
    raise penstock.Error("the disk has gone", code="io")


if rank == 2:
    _group.Reads.wait = fails
message = failure(penstock.Closed if rank != 2 else penstock.Error)
assert "the disk has gone" in message and (rank == 2 or "rank 2 failed: Error" in message), message
message = failure(penstock.Closed if rank != 2 else penstock.Error, names=["up"])  # of which each rank reads its own part only
assert "the disk has gone" in message and (rank == 2 or "rank 2 failed: Error" in message), message
_group.Reads.wait = wait
check(load(), rank, world)

print("well", flush=True)
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
assert "another rank in it exited" in failure(penstock.Closed)
print("told", flush=True)
os._exit(0)  # the group cannot be taken apart any more
"""


def test_each_rank_of_a_group_gets_its_part_and_hears_of_failures(tmp_path: Path) -> None:
    for number, rank in enumerate(run_ranks(_imports, _rank, WORLD, tmp_path)):
        assert rank.out == ("well\n" if number == 0 else "well\ntold\n"), rank.err


def test_a_group_stands_for_rank_world_and_address() -> None:
    with pytest.raises(TypeError, match="pass either rank, world and address, or group="):
        load_rank("model.safetensors", "cpu")
    with pytest.raises(TypeError, match="group= cannot be combined with rank, world or address"):
        load_rank("model.safetensors", "cpu", 0, 1, "unix:@x", group=object())
    with pytest.raises(penstock.InvalidArgument, match="init_process_group"):
        load_rank("model.safetensors", "cpu", group=object())
