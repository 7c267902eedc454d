"""penstock.torch.checkpoint's readers of safetensors files: what PyTorch's own give for the same files, and what they say of files that are none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import penstock

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import torch.distributed.checkpoint as dcp  # noqa: E402

from penstock.safetensors.torch import save_file  # noqa: E402
from penstock.torch import _huggingface_reader, _tensor_reads, checkpoint  # noqa: E402

from .torch_states import plain_state, quiet  # noqa: E402, F401

if not hasattr(checkpoint, "HuggingFaceStorageReader"):
    pytest.skip("this PyTorch has no HuggingFaceStorageReader", allow_module_level=True)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def zeros_of(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.zeros_like(each) for name, each in tensors.items()}


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, each in wanted.items():
        assert found[name].dtype == each.dtype and torch.equal(found[name].cpu(), each.cpu()), name


def write_chunks(folder: Path, name: str, whole: Any, dim: int, parts: int) -> None:
    """As ranks save a tensor in shards."""
    start = 0
    for number, chunk in enumerate(torch.chunk(whole, parts, dim)):
        offsets = [0] * whole.dim()
        offsets[dim] = start
        start += chunk.size(dim)
        told = {"DCP_SHARDING_INFO": json.dumps({name: {"saved_offsets": offsets}}), "DCP_VERSION": "1.0", "format": "pt"}
        save_file({name: chunk.contiguous()}, folder / f"shard-{number}.safetensors", told)


def load_part(path: Path, reader: Any, target: Any, offsets: tuple[int, ...], name: str = "a") -> None:
    """What a rank does whose part of a tensor begins there."""
    from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

    opened = reader(str(path))
    metadata = opened.read_metadata()
    opened.set_up_storage_reader(metadata, True)
    (index,) = [each for each in metadata.storage_data if each.fqn == name]
    zeros = torch.Size([0] * target.dim())
    item = ReadItem(LoadItemType.TENSOR, index, zeros, index, torch.Size(offsets), target.size())
    planner = dcp.DefaultLoadPlanner()
    planner.set_up_planner({name: target}, metadata, True)
    opened.read_data(LoadPlan([item]), planner).wait()


def test_metadata_and_tensors_are_those_of_pytorchs_reader(tmp_path: Path) -> None:
    wanted = plain_state()
    names = list(wanted)
    save_file({each: wanted[each] for each in names[:4]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({each: wanted[each] for each in names[4:]}, tmp_path / "model-00002-of-00002.safetensors", {"format": "pt"})
    theirs, ours = (module.HuggingFaceStorageReader(str(tmp_path)) for module in (dcp, checkpoint))
    of_theirs, of_ours = theirs.read_metadata(), ours.read_metadata()
    ours.reset()
    assert of_theirs.state_dict_metadata == of_ours.state_dict_metadata and of_theirs.storage_data == of_ours.storage_data
    found = zeros_of(wanted)
    addresses = {name: each.data_ptr() for name, each in found.items()}
    dcp.load(found, storage_reader=checkpoint.HuggingFaceStorageReader(str(tmp_path), thread_count=4))
    assert_same(found, wanted)
    assert {name: each.data_ptr() for name, each in found.items()} == addresses


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("reader", [dcp, checkpoint])
def test_chunks_of_several_files_are_one_tensor(tmp_path: Path, dim: int, reader: Any) -> None:
    whole = torch.arange(7 * 11 * 5, dtype=torch.float32).reshape(7, 11, 5)
    write_chunks(tmp_path, "a", whole, dim, 3)
    assert reader.HuggingFaceStorageReader(str(tmp_path)).read_metadata().state_dict_metadata["a"].size == whole.size()
    found = {"a": torch.zeros(7, 11, 5)}
    dcp.load(found, storage_reader=reader.HuggingFaceStorageReader(str(tmp_path)))
    assert torch.equal(found["a"], whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_part_goes_into_any_target_and_nothing_beside_it(tmp_path: Path, dtype: Any) -> None:
    whole = torch.arange(20 * 30 * 4, dtype=torch.float32).reshape(20, 30, 4) % 251
    save_file({"a": whole}, tmp_path / "a.safetensors")
    for offsets, lengths in (((0, 0, 0), (20, 30, 4)), ((5, 0, 0), (7, 30, 4)), ((0, 7, 0), (20, 9, 4)), ((3, 2, 1), (9, 5, 2)), ((3, 2, 1), (0, 5, 2))):
        wanted = whole[tuple(slice(start, start + length) for start, length in zip(offsets, lengths))]
        for target in (torch.zeros(lengths, dtype=dtype), torch.zeros(40, 60, 8, dtype=dtype)[tuple(slice(0, 2 * each, 2) for each in lengths)]):
            load_part(tmp_path, checkpoint.HuggingFaceStorageReader, target, offsets)
            assert torch.equal(target.float(), wanted)
            base = target._base if target._base is not None else target
            assert float(base.float().sum()) == float(wanted.sum())


def test_what_does_not_fit_into_one_piece_of_memory_goes_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tensor_reads, "_BESIDE_BYTES", 1000)
    monkeypatch.setattr(_huggingface_reader, "_most_open", 2)
    wanted = {f"t{i}": torch.randn(i + 1, 60) for i in range(9)}
    for name, each in wanted.items():
        save_file({name: each}, tmp_path / f"{name}.safetensors")
    found = {name: torch.zeros(each.shape, dtype=torch.float64) for name, each in wanted.items()}
    dcp.load(found, storage_reader=checkpoint.HuggingFaceStorageReader(str(tmp_path)))
    for name, each in wanted.items():
        assert torch.equal(found[name].float(), each)


def test_of_rows_only_their_bytes_are_read(tmp_path: Path) -> None:
    save_file({"a": torch.arange(1_000_000).reshape(1000, 1000)}, tmp_path / "a.safetensors")
    target = torch.zeros(100, 1000, dtype=torch.int64)
    before = penstock.stats()["read_bytes"]
    load_part(tmp_path, checkpoint.HuggingFaceStorageReader, target, (300, 0))
    assert penstock.stats()["read_bytes"] - before <= target.nbytes + 65536  # the beginning, with the header in it
    assert int(target[0, 0]) == 300_000


def test_the_values_of_parameters_have_changed(tmp_path: Path) -> None:
    layer = torch.nn.Linear(8, 4)
    save_file({name: torch.ones_like(each) for name, each in layer.state_dict().items()}, tmp_path / "a.safetensors")
    loss = (layer(torch.randn(2, 8, requires_grad=True)) ** 2).sum()
    dcp.load(layer.state_dict(), storage_reader=checkpoint.HuggingFaceStorageReader(str(tmp_path)))
    assert torch.equal(layer.weight, torch.ones(4, 8))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# --- what is wrong


def test_a_target_of_another_shape_is_an_error(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(5, 6)}, tmp_path / "a.safetensors")
    with pytest.raises(penstock.InvalidArgument, match=r'a.safetensors: tensor "a" has the shape \[5, 6\], so \[3, 6\] starting at \[4, 0\] is out of bounds'):
        load_part(tmp_path, checkpoint.HuggingFaceStorageReader, torch.zeros(3, 6), (4, 0))


def test_files_that_are_cut_are_errors_that_name_them(tmp_path: Path) -> None:
    wanted = {"first": torch.arange(5_000), "second": torch.arange(5_000)}
    path = tmp_path / "a.safetensors"
    for nbytes in (4, 60, 60_000):
        save_file(wanted, path)
        os.truncate(path, nbytes)
        check_refused(wanted, tmp_path)
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    check_refused(wanted, tmp_path)


def check_refused(wanted: dict[str, Any], folder: Path) -> None:
    reader = checkpoint.HuggingFaceStorageReader(str(folder))
    with pytest.raises((penstock.Error, ValueError), match="a.safetensors"):
        reader.read_metadata()
    with pytest.raises(dcp.CheckpointException):  # which PyTorch 2.11 makes without the reader's message
        dcp.load(zeros_of(wanted), storage_reader=reader)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_file_that_is_cut_after_its_header_was_read_names_the_tensor(tmp_path: Path, dtype: Any) -> None:
    save_file({"first": torch.arange(50_000)}, tmp_path / "a.safetensors")
    reader = checkpoint.HuggingFaceStorageReader(str(tmp_path))
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    planner = dcp.DefaultLoadPlanner()
    planner.set_up_planner({"first": torch.zeros(50_000, dtype=dtype)}, metadata, True)
    os.truncate(tmp_path / "a.safetensors", 100_000)
    with pytest.raises(penstock.ShortRead, match='a.safetensors: the file was truncated after it was opened: it ends at 100000, before the end of "first"'):
        reader.read_data(planner.create_local_plan(), planner)


def test_a_file_that_is_missing_by_now_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_huggingface_reader, "_most_open", 1)
    for name in "ab":
        save_file({name: torch.ones(3)}, tmp_path / f"{name}.safetensors")
    reader = checkpoint.HuggingFaceStorageReader(str(tmp_path))
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    planner = dcp.DefaultLoadPlanner()
    planner.set_up_planner({"a": torch.zeros(3), "b": torch.zeros(3)}, metadata, True)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="b.safetensors"):
        reader.read_data(planner.create_local_plan(), planner)


@pytest.mark.parametrize(
    "info",
    ["[]", "{", "[" * 100_000, '{"b": 1}', '{"a": {"saved_offsets": [0]}}', '{"a": {"saved_offsets": [0, -1]}}', '{"a": {"saved_offsets": [0, 0.5]}}',
     '{"a": {"saved_offsets": [0, 9223372036854775807]}}', '{"a": {"saved_offsets": [true, 0]}}', '{"a": {}}'],
)  # fmt: skip
def test_places_that_make_no_sense_are_not_believed(tmp_path: Path, info: str) -> None:
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "a.safetensors", {"DCP_SHARDING_INFO": info})
    with pytest.raises(penstock.Error, match="a.safetensors: .*DCP_SHARDING_INFO"):
        checkpoint.HuggingFaceStorageReader(str(tmp_path)).read_metadata()


def test_chunks_of_other_dimensions_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "a.safetensors")
    save_file({"a": torch.zeros(6)}, tmp_path / "b.safetensors")
    with pytest.raises(penstock.Error, match='b.safetensors: tensor "a" has 1 dimensions in this file, but 2 in another file'):
        checkpoint.HuggingFaceStorageReader(str(tmp_path)).read_metadata()


def test_a_folder_without_one_of_the_shards_is_an_error(tmp_path: Path) -> None:
    write_chunks(tmp_path, "a", torch.randn(12, 5), 0, 3)
    (tmp_path / "shard-1.safetensors").unlink()
    with pytest.raises(penstock.Error, match=r'the files contain 40 of the 60 elements of tensor "a" of shape \[12, 5\]: files are missing'):
        checkpoint.HuggingFaceStorageReader(str(tmp_path)).read_metadata()


@pytest.mark.parametrize(
    "boxes",
    [
        [((0, 0), (4, 4)), ((2, 0), (4, 4))],
        [((0, 0), (2, 4)), ((1, 0), (2, 4)), ((5, 0), (3, 4))],
        [((0, 0), (2, 2)), ((0, 1), (2, 2)), ((0, 3), (2, 1)), ((1, 0), (1, 1))],
    ],
    ids=["halves", "a hole", "a grid"],
)
def test_overlapping_parts_hide_no_hole(tmp_path: Path, boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    for number, (offsets, shape) in enumerate(boxes):
        told = {"DCP_SHARDING_INFO": json.dumps({"a": {"saved_offsets": offsets}}), "DCP_VERSION": "1.0", "format": "pt"}
        save_file({"a": torch.ones(shape)}, tmp_path / f"shard-{number}.safetensors", told)
    with pytest.raises(penstock.Error, match='some parts of tensor "a" overlap|files are missing'):
        checkpoint.HuggingFaceStorageReader(str(tmp_path)).read_metadata()


def test_a_tensor_that_two_files_have_is_an_error_unless_it_is_empty(tmp_path: Path) -> None:
    for name in "ab":
        save_file({"twice": torch.ones(3), "empty": torch.ones(0, 3)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(penstock.Error, match='b.safetensors: tensor "twice" is also in .*a.safetensors'):
        checkpoint.HuggingFaceStorageReader(str(tmp_path)).read_metadata()
    save_file({"empty": torch.ones(0, 3)}, tmp_path / "b.safetensors")
    checkpoint.HuggingFaceStorageReader(str(tmp_path)).read_metadata()


# --- quantized tensors


def write_index(folder: Path, tensors: dict[str, Any]) -> None:
    save_file(tensors, folder / "model-00001-of-00001.safetensors")
    told = {"weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(told))


def test_quantized_tensors_come_as_from_pytorchs_reader(tmp_path: Path) -> None:
    torch.manual_seed(5)
    write_index(
        tmp_path,
        {
            "m.weight": torch.randn(40, 30).to(torch.float8_e4m3fn),
            "m.weight_scale_inv": torch.rand(3, 2),
            "m.bias": torch.randn(30),
            "n_blocks": torch.randint(0, 255, (2, 3, 2, 4), dtype=torch.uint8),
            "n_scales": torch.randint(120, 130, (2, 3, 2), dtype=torch.uint8),
        },
    )
    results = []
    for module in (dcp, checkpoint):
        found = {"m.weight": torch.zeros(40, 30), "m.bias": torch.zeros(30), "n_blocks": torch.zeros(2, 3, 16)}
        dcp.load(found, storage_reader=module.QuantizedHuggingFaceStorageReader(str(tmp_path), block_size=16))
        results.append(found)
    assert all(bool(each.abs().sum() > 0) for each in results[1].values())
    assert_same(results[1], results[0])


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_of_a_gpu_are_filled_there(tmp_path: Path, dtype: Any) -> None:
    whole = torch.randn(300, 200)
    save_file({"a": whole, "b": whole * 2}, tmp_path / "a.safetensors")
    found = {"a": torch.zeros(300, 200, dtype=dtype, device="cuda"), "b": torch.zeros(200, 300, dtype=dtype, device="cuda").t()}
    dcp.load(found, storage_reader=checkpoint.HuggingFaceStorageReader(str(tmp_path)))
    assert torch.equal(found["a"].float().cpu(), whole) and torch.equal(found["b"].float().cpu(), whole * 2)
    for start, columns in ((0, 100), (100, 100), (7, 3)):
        target = torch.zeros(300, columns, dtype=dtype, device="cuda")
        load_part(tmp_path, checkpoint.HuggingFaceStorageReader, target, (0, start))
        assert torch.equal(target.float().cpu(), whole[:, start : start + columns])
