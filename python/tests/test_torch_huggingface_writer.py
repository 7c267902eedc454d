"""penstock.torch.checkpoint.HuggingFaceStorageWriter: the files that PyTorch's own writes, whole or not there, and of all ranks in one pass."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import torch.distributed.checkpoint as dcp  # noqa: E402

from penstock.safetensors.torch import load_file, safe_open  # noqa: E402
from penstock.torch import _huggingface_writer, checkpoint  # noqa: E402

from .torch_ranks import run_ranks  # noqa: E402
from .torch_states import plain_state, quiet  # noqa: E402, F401

if not hasattr(checkpoint, "HuggingFaceStorageWriter"):
    pytest.skip("this PyTorch has no HuggingFaceStorageWriter", allow_module_level=True)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
INDEX = "model.safetensors.index.json"
WHOLE = "model-00001-of-00001.safetensors"


def contents(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(load_file(path))
    return found


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert sorted(found) == sorted(wanted)
    for name, each in wanted.items():
        assert found[name].dtype == each.dtype and torch.equal(found[name].cpu(), each.cpu()), name


def save(tensors: dict[str, Any], folder: Path, **options: Any) -> None:
    dcp.save(dict(tensors), storage_writer=checkpoint.HuggingFaceStorageWriter(str(folder), **options))


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("options", [{}, {"save_distributed": True}, {"save_distributed": True, "enable_consolidation": True}])
def test_files_are_those_of_pytorchs_writer_and_both_readers_read_them(tmp_path: Path, files: int, options: dict[str, Any]) -> None:
    wanted = plain_state()
    if "enable_consolidation" in options:  # PyTorch's own fails for integers, and loses scalars
        wanted = {name: each for name, each in wanted.items() if each.is_floating_point() and each.dim()}
    mapping = {name: number % files + 1 for number, name in enumerate(wanted)} if files > 1 else None
    for name, module in (("ours", checkpoint), ("theirs", dcp)):
        writer = module.HuggingFaceStorageWriter(str(tmp_path / name), mapping, 2, **options)
        dcp.save(dict(wanted), storage_writer=writer)
    names = [sorted(each for each in os.listdir(tmp_path / name) if each != "sharded") for name in ("ours", "theirs")]
    assert names[0] == names[1] and len(names[0]) == files + (INDEX in names[0])
    for each in names[0]:
        if each == INDEX:
            assert json.loads((tmp_path / "ours" / INDEX).read_text()) == json.loads((tmp_path / "theirs" / INDEX).read_text())
        else:
            ours, theirs = (safe_open(tmp_path / name / each, "pt") for name in ("ours", "theirs"))
            assert ours.keys() == theirs.keys()
            if "enable_consolidation" not in options:
                assert {key: json.loads(value) if value[0] == "{" else value for key, value in ours.metadata().items()} == {
                    key: json.loads(value) if value[0] == "{" else value for key, value in theirs.metadata().items()
                }
    assert_same(contents(tmp_path / "ours"), wanted)
    for reader in (dcp.HuggingFaceStorageReader, checkpoint.HuggingFaceStorageReader):
        found = {name: torch.zeros_like(each) for name, each in wanted.items()}
        dcp.load(found, storage_reader=reader(str(tmp_path / "ours")))
        assert_same(found, wanted)


def test_views_and_transposed_tensors_are_saved_as_they_look(tmp_path: Path) -> None:
    whole = torch.arange(600.0).reshape(20, 30)
    wanted = {"view": whole[3:7, 5:], "strided": whole[::2, ::3], "transposed": whole.t(), "conjugate": torch.randn(3, dtype=torch.complex64).conj()}
    save(wanted, tmp_path, save_distributed=True, enable_consolidation=True)
    assert_same(contents(tmp_path), {name: each.resolve_conj() for name, each in wanted.items()})


def test_where_a_save_names_a_folder_the_files_are_there(tmp_path: Path) -> None:
    writer = checkpoint.HuggingFaceStorageWriter(str(tmp_path / "first"), save_distributed=True, enable_consolidation=True, token=None)
    for name in ("second", "third"):
        dcp.save(plain_state(), checkpoint_id=tmp_path / name, storage_writer=writer)
        assert_same(contents(tmp_path / name), plain_state())
    assert not (tmp_path / "first").exists()


def grid_of(size: tuple[int, ...], cuts: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offsets and sizes of the parts of a tensor that is cut in so many in each dimension, in the order of no rank."""
    edges = [[length * i // parts for i in range(parts + 1)] for length, parts in zip(size, cuts)]
    found = [tuple(zip(*each)) for each in itertools.product(*([(a, b - a) for a, b in zip(axis, axis[1:])] for axis in edges))]
    return found[::2] + found[1::2]


@pytest.mark.parametrize("cuts", [(1, 1, 1), (3, 1, 1), (1, 4, 1), (1, 1, 5), (3, 2, 2)])
def test_parts_of_any_grid_make_the_whole(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

    wanted = {f"{dtype}"[6:]: torch.randn(7, 50, 33).to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2, torch.bool)}
    parts: dict[Any, Any] = {}
    plans: list[Any] = []
    for offsets, sizes in grid_of((7, 50, 33), cuts):
        items = []
        for name, whole in wanted.items():
            index = MetadataIndex(name, offsets)
            parts[index] = whole[tuple(slice(start, start + length) for start, length in zip(offsets, sizes))]
            chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, TensorProperties(whole.dtype), whole.size())))
        plans.append(SavePlan(items))

    class Resolves:
        def resolve_data(self, item: Any) -> Any:
            return parts[item.index]

    writer = checkpoint.HuggingFaceStorageWriter(str(tmp_path), {name: number % 2 + 1 for number, name in enumerate(wanted)})
    results = [writer.write_data(plan, Resolves()).value() for plan in writer.prepare_global_plan(plans)]
    assert contents(tmp_path) == {}
    writer.finish(None, results)
    found = contents(tmp_path)
    assert sorted(found) == sorted(wanted)
    for name, each in wanted.items():
        assert torch.equal(found[name].view(torch.uint8), each.view(torch.uint8)), name


# --- what fails


class Fails(dcp.DefaultSavePlanner):
    """A planner that has one tensor less than it has planned."""

    def resolve_data(self, item: Any) -> Any:
        if item.index.fqn == "large":
            raise ZeroDivisionError("the tensor is gone")
        return super().resolve_data(item)


@pytest.mark.parametrize("options", [{}, {"save_distributed": True}, {"save_distributed": True, "enable_consolidation": True}])
def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path, options: dict[str, Any]) -> None:
    old = {"large": torch.ones(3)}
    save(old, tmp_path, **options)
    before = {each: (tmp_path / each).read_bytes() for each in os.listdir(tmp_path)}
    writer = checkpoint.HuggingFaceStorageWriter(str(tmp_path), **options)
    with pytest.raises(dcp.CheckpointException, match="the tensor is gone"):
        dcp.save(plain_state(), storage_writer=writer, planner=Fails())
    assert {each: (tmp_path / each).read_bytes() for each in os.listdir(tmp_path)} == before
    dcp.save(plain_state(), storage_writer=writer)
    assert_same(contents(tmp_path), plain_state())


def test_the_old_file_is_replaced_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"a": torch.ones(3)}, tmp_path)
    seen = []
    write = _huggingface_writer.write_tensors

    def look(*arguments: Any) -> None:
        write(*arguments)
        seen.append(contents(tmp_path)["a"])

    monkeypatch.setattr(_huggingface_writer, "write_tensors", look)
    save({"a": torch.zeros(3)}, tmp_path)
    assert torch.equal(seen[0], torch.ones(3)) and torch.equal(contents(tmp_path)["a"], torch.zeros(3))


def test_what_was_left_by_a_killed_save_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".model-00001-of-00009.safetensors.penstock-save-0123456789abcdef").write_bytes(b"half")
    save(plain_state(), tmp_path)
    assert sorted(os.listdir(tmp_path)) == [WHOLE, INDEX]


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        ({"a": torch.ones(3), "step": 7}, {}, 'safetensors files can contain only tensors, not Python objects: "step"'),
        ({"a": torch.ones(3), "step": 7}, {"save_distributed": True}, 'not Python objects: "step"'),
        ({"a": torch.ones(3)}, {"fqn_to_index_mapping": {"b": 1}}, 'maps tensor "a" to None'),
        ({"a": torch.ones(3)}, {"fqn_to_index_mapping": {"a": 0}, "save_distributed": True}, 'maps tensor "a" to 0'),
    ],
)
def test_what_such_files_cannot_have_is_named(tmp_path: Path, tensors: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(dcp.CheckpointException, match=message):
        save(tensors, tmp_path, **options)
    assert os.listdir(tmp_path) == []


def test_tensors_of_types_that_such_files_lack_are_named(tmp_path: Path) -> None:
    with pytest.raises(dcp.CheckpointException, match='tensor "a" is quantized, and files cannot represent its scales: pass dequantize'):
        save({"a": torch.quantize_per_tensor(torch.randn(5), 0.1, 0, torch.qint8)}, tmp_path)
    for options in ({}, {"save_distributed": True}):
        with pytest.raises(dcp.CheckpointException, match='tensor "a" has the layout torch.sparse_coo.* pass to_dense'):
            save({"a": torch.eye(3).to_sparse()}, tmp_path, **options)
    assert os.listdir(tmp_path) == []


def test_a_plan_that_leaves_parts_out_is_refused(tmp_path: Path) -> None:
    class Leaves(dcp.DefaultSavePlanner):
        def create_global_plan(self, plans: Any) -> Any:
            plans, metadata = super().create_global_plan(plans)
            import dataclasses

            data = plans[0].items[0].tensor_data
            chunk = dataclasses.replace(data.chunk, sizes=torch.Size([2]))
            item = dataclasses.replace(plans[0].items[0], tensor_data=dataclasses.replace(data, chunk=chunk))
            return [dataclasses.replace(plans[0], items=[item])], metadata

    with pytest.raises(dcp.CheckpointException, match='the ranks save 2 elements of tensor "a", which has 3'):
        dcp.save({"a": torch.ones(3)}, storage_writer=checkpoint.HuggingFaceStorageWriter(str(tmp_path)), planner=Leaves())


def test_a_planner_that_leaves_plans_out_is_refused(tmp_path: Path) -> None:
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    writer = checkpoint.HuggingFaceStorageWriter(str(tmp_path))
    try:
        dcp.save(plain_state(), storage_writer=writer, planner=planner)
        with pytest.raises(dcp.CheckpointException, match="enable_plan_caching=True"):
            dcp.save(plain_state(), storage_writer=writer, planner=planner)
    finally:
        for name in ("save_plan", "final_save_plan", "all_plans", "global_plan", "metadata"):
            getattr(dcp.SavePlanner, f"_cached_{name}").clear()
    assert_same(contents(tmp_path), plain_state())


def test_a_save_whose_writer_has_begun_another_one_ends_without_a_file(tmp_path: Path) -> None:
    writer = checkpoint.HuggingFaceStorageWriter(str(tmp_path))

    class Begins(dcp.DefaultSavePlanner):
        def resolve_data(self, item: Any) -> Any:
            writer.reset()
            return super().resolve_data(item)

    with pytest.raises(dcp.CheckpointException, match="another process that was writing the file failed|a newer save was started with the same writer"):
        dcp.save({"a": torch.ones(3)}, storage_writer=writer, planner=Begins())
    assert os.listdir(tmp_path) == []


# --- in the background


def test_the_writer_stages_copies_of_the_same_structure(tmp_path: Path) -> None:
    writer = checkpoint.HuggingFaceStorageWriter(str(tmp_path), snapshot="host")
    tensors = {"a": torch.arange(6).reshape(2, 3).t(), "more": [torch.ones(2), (torch.ones(1), {"b": torch.nn.Parameter(torch.ones(4))})]}
    staged = writer.stage(tensors)
    assert torch.equal(staged["a"], tensors["a"]) and staged["a"].data_ptr() != tensors["a"].data_ptr()
    assert staged["more"][1][1]["b"].data_ptr() != tensors["more"][1][1]["b"].data_ptr() and not staged["more"][1][1]["b"].requires_grad
    with pytest.raises(ValueError, match="snapshot must be 'auto', 'device' or 'host', not 'elsewhere'"):
        checkpoint.HuggingFaceStorageWriter(str(tmp_path), snapshot="elsewhere")


# --- several ranks

_imports = """
import os, resource, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from penstock.safetensors.torch import load_file
from penstock.torch import checkpoint
"""
_rank = """
dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(101 * 38, dtype=torch.float32).reshape(101, 38)
narrow = torch.arange(8192 * 4, dtype=torch.int32).reshape(8192, 4)
plain = {"plain": torch.arange(9), "more": torch.ones(5).bfloat16(), "empty": torch.empty(0, 3), "scalar": torch.tensor(1.5)}


def spread():
    saved = {"rows": distribute_tensor(whole, mesh, [Shard(0)]), "columns": distribute_tensor(whole, mesh, [Shard(1)])}
    saved["replicated"] = distribute_tensor(whole, mesh, [Replicate()])
    saved["narrow"] = distribute_tensor(narrow, mesh, [Shard(1)])
    saved["one row"] = distribute_tensor(whole[:1], mesh, [Shard(0)])  # of which the other rank has none
    return {**saved, **plain}


def check(found):
    assert torch.equal(found["narrow"], narrow) and torch.equal(found["one row"], whole[:1])
    assert all(torch.equal(found[name], whole) for name in ("rows", "columns", "replicated"))
    assert all(torch.equal(found[name], each) for name, each in plain.items())


def load(reader, path):
    for placement in (Shard(0), Shard(1), Replicate()):
        found = {name: distribute_tensor(torch.zeros_like(each), mesh, [placement]) for name, each in
                 {"rows": whole, "columns": whole, "replicated": whole, "narrow": narrow, "one row": whole[:1]}.items()}
        found.update({name: torch.zeros_like(each) for name, each in plain.items()})
        dcp.load(found, storage_reader=reader(path))
        check({name: each.full_tensor() if hasattr(each, "full_tensor") else each for name, each in found.items()})


def everything(path):
    found = {}
    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors"):
            found.update(load_file(f"{path}/{name}"))
    return found


def fails(path, planner, **options):
    before = {name: open(f"{path}/{name}", "rb").read() for name in os.listdir(path) if os.path.isfile(f"{path}/{name}")}
    writer = checkpoint.HuggingFaceStorageWriter(path, save_distributed=True, enable_consolidation=True)
    try:
        dcp.save(spread(), storage_writer=writer, planner=planner)
    except dcp.CheckpointException as error:
        message = str(error)
    else:
        raise AssertionError("it should have failed")
    dist.barrier()
    assert {name: open(f"{path}/{name}", "rb").read() for name in os.listdir(path) if os.path.isfile(f"{path}/{name}")} == before
    dist.barrier()
    return message


mapping = {name: number % 3 + 1 for number, name in enumerate(spread())}
for number, (writer, options, readers) in enumerate([
    (checkpoint, dict(enable_consolidation=True), (checkpoint, dcp)),
    (checkpoint, dict(enable_consolidation=True, fqn_to_index_mapping=mapping), (checkpoint,)),
    (checkpoint, dict(), (checkpoint, dcp)),
    (dcp, dict(), (checkpoint,)),
]):
    path = f"{folder}/saved{number}"
    dcp.save(spread(), storage_writer=writer.HuggingFaceStorageWriter(path, save_distributed=True, **options))
    if options:
        check(everything(path))
        assert len(os.listdir(path)) == (4 if "fqn_to_index_mapping" in options else 2), os.listdir(path)
    else:
        assert len(os.listdir(path)) == 2
    for each in readers:
        load(each.HuggingFaceStorageReader, path)

# Without save_distributed, too, no tensor is lost that PyTorch has given to the other rank.
dcp.save(plain, storage_writer=checkpoint.HuggingFaceStorageWriter(f"{folder}/plain"))
assert all(torch.equal(each, plain[name]) for name, each in everything(f"{folder}/plain").items()) and len(everything(f"{folder}/plain")) == 4

writer = checkpoint.HuggingFaceStorageWriter(f"{folder}/later", save_distributed=True, enable_consolidation=True)
for _ in range(2):
    changing = {name: each.clone() for name, each in spread().items()}
    future = dcp.async_save(changing, storage_writer=writer)
    for each in changing.values():
        each.zero_()
    future.result()
dist.barrier()
check(everything(f"{folder}/later"))


class Fails(dcp.DefaultSavePlanner):
    def resolve_data(self, item):
        if rank == self.who and item.index.fqn == "columns":
            raise ZeroDivisionError("the tensor is gone")
        return super().resolve_data(item)


for who in range(2):
    planner = Fails()
    planner.who = who
    assert f"(RANK {who})" in (message := fails(f"{folder}/later", planner)) and "the tensor is gone" in message
if rank == 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
message = fails(f"{folder}/later", None)
assert 'model-00001-of-00001.safetensors: tensor "' in message and "File too large" in message, message
dist.destroy_process_group()
print("well")
"""


def test_two_ranks_write_one_file_in_one_pass(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.tensor")
    for rank in run_ranks(_imports, _rank, 2, tmp_path):
        assert rank.returncode == 0 and "well" in rank.out, rank.err


@needs_gpu
@pytest.mark.parametrize("snapshot", ["auto", "device", "host"])
def test_tensors_of_a_gpu_are_written_from_there_as_they_were(tmp_path: Path, snapshot: str) -> None:
    wanted = {name: each.cuda() for name, each in plain_state().items()}
    writer = checkpoint.HuggingFaceStorageWriter(str(tmp_path), save_distributed=True, enable_consolidation=True, snapshot=snapshot)
    dcp.save(wanted, storage_writer=writer)
    assert_same(contents(tmp_path), wanted)
    staged = writer.stage(wanted)
    assert staged["large"].is_cuda == (snapshot != "host")
    wanted["large"].zero_()
    writer.wait_for_copies()
    assert_same({name: each.cpu() for name, each in staged.items()}, plain_state())
