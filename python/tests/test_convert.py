"""`penstock convert` and `penstock load`: what PyTorch writes the safetensors library reads, and the other way round, byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from penstock.__main__ import command


def run(*words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([command(), *map(str, words)], capture_output=True, text=True, timeout=120)


def convert(*words: Any) -> dict[str, Any]:
    ended = run("convert", *words, "--json")
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


def refused(*words: Any) -> str:
    ended = run("convert", *words)
    assert ended.returncode == 1, ended.stdout
    return ended.stderr


ARRAYS = {
    "w": np.arange(12, dtype="f4").reshape(3, 4),
    "層": np.arange(5, dtype="u2"),
    "scalar": np.array(7, dtype="i8"),
    "none": np.zeros((0, 3), "f2"),
    "long": np.random.default_rng(1).integers(0, 256, 17_000_003, dtype="u1"),
}


def test_a_file_of_the_safetensors_library_comes_back_as_it_was(tmp_path: Path) -> None:
    there, back = tmp_path / "m.pt", tmp_path / "back.safetensors"
    save_file(ARRAYS, tmp_path / "m.safetensors", metadata={"format": "pt"})
    assert convert(tmp_path / "m.safetensors", there)["kind"] == "checkpoint"
    assert convert(there, back)["tensors"] == len(ARRAYS)
    assert back.read_bytes() == (tmp_path / "m.safetensors").read_bytes()
    found = load_file(back)
    assert all(found[name].dtype == array.dtype and np.array_equal(found[name], array) for name, array in ARRAYS.items())


def test_zip_tools_find_nothing_wrong(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "m.safetensors")
    convert(tmp_path / "m.safetensors", tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        assert archive.testzip() is None  # compares the checksums
        names = archive.namelist()
        assert archive.read("archive/version") == b"3\n" and archive.read("archive/byteorder") == b"little"
        assert archive.read("archive/.data/serialization_id").isdigit()
    assert names[0] == "archive/data.pkl" and sum(each.startswith("archive/data/") for each in names) == len(ARRAYS)


def torch_and_its_safetensors() -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return torch, pytest.importorskip("safetensors.torch")


def assert_same_tensors(torch: Any, found: Any, wanted: Any) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        tensor = tensor.detach()
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        flat = [each.contiguous().reshape(-1).view(torch.uint8) for each in (found[name], tensor)]
        assert flat[0].tolist() == flat[1].tolist(), name


def tensors_of(torch: Any) -> dict[str, Any]:
    base = torch.arange(12.0).reshape(3, 4)
    made = {"w": base, "t": base.t(), "part": base[1:, ::2], "parameter": torch.nn.Parameter(torch.ones(2)), "empty": torch.zeros(0, 3)}
    made |= {"scalar": torch.tensor(5), "permuted": torch.randn(3, 4, 5, 6).permute(2, 0, 3, 1), "bool": torch.tensor([True, False])}
    for name in ("bfloat16", "float16", "float64", "int8", "uint8", "int16", "int32", "complex64", "uint16", "uint32", "uint64", "float8_e4m3fn"):
        if hasattr(torch, name):
            made[name] = torch.arange(6.0).to(getattr(torch, name)).reshape(2, 3)
    return made


def test_what_torch_saves_the_safetensors_library_reads(tmp_path: Path) -> None:
    torch, safetensors = torch_and_its_safetensors()
    tensors = tensors_of(torch)
    torch.save(tensors, tmp_path / "m.pt")
    told = convert(tmp_path / "m.pt", tmp_path / "m.safetensors")
    assert told["made_contiguous"] == ["t", "part", "permuted"] and told["shared_storages"] == ["w", "t", "part"]
    assert_same_tensors(torch, safetensors.load_file(tmp_path / "m.safetensors"), tensors)


@pytest.mark.parametrize("mmap", [False, True])
def test_what_the_safetensors_library_saves_torch_reads(tmp_path: Path, mmap: bool) -> None:
    torch, safetensors = torch_and_its_safetensors()
    tensors = {name: each.detach().clone().contiguous() for name, each in tensors_of(torch).items()}
    safetensors.save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt", "k": "é"})
    convert(tmp_path / "m.safetensors", tmp_path / "m.pt")
    found = torch.load(tmp_path / "m.pt", weights_only=True, mmap=mmap)
    assert_same_tensors(torch, found, tensors)
    assert found.safetensors_metadata == {"format": "pt", "k": "é"}
    module = torch.nn.Linear(2, 3)
    safetensors.save_file(module.state_dict(), tmp_path / "linear.safetensors")
    convert(tmp_path / "linear.safetensors", tmp_path / "linear.pt")
    torch.nn.Linear(2, 3).load_state_dict(torch.load(tmp_path / "linear.pt", weights_only=True))


def test_a_state_of_training_is_taken_apart(tmp_path: Path) -> None:
    torch, safetensors = torch_and_its_safetensors()
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    path, to = tmp_path / "state.pt", tmp_path / "m.safetensors"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, path)
    message = refused(path, to)
    assert '"model" (7 tensors), "optimizer" (12 tensors)' in message and '"epoch" (int)' in message and not to.exists()
    convert(path, to, "--key", "model")
    assert_same_tensors(torch, safetensors.load_file(to), model.state_dict())
    convert(path, to, "--flatten", "--tensors-only")
    assert "optimizer.state.0.exp_avg" in safetensors.load_file(to)


class Hostile:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/penstock-should-not-exist",)


def test_nothing_that_a_pickle_asks_for_is_run(tmp_path: Path) -> None:
    torch, _ = torch_and_its_safetensors()
    torch.save({"a": torch.zeros(2), "b": Hostile()}, tmp_path / "m.pt")
    assert "posix.mkdir" in refused(tmp_path / "m.pt", tmp_path / "m.safetensors")
    assert not os.path.exists("/tmp/penstock-should-not-exist")
    for tensor in (torch.zeros(2, dtype=torch.complex64).conj(), torch.zeros(1).expand(9), torch.zeros(2, dtype=torch.complex128)):
        torch.save({"named": tensor}, tmp_path / "m.pt")
        assert 'tensor "named": ' in refused(tmp_path / "m.pt", tmp_path / "m.safetensors")
    torch.save({"a": torch.zeros(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "PyTorch 1.5" in refused(tmp_path / "old.pt", tmp_path / "m.safetensors")


def test_a_checkpoint_of_torch_is_loaded_whole(tmp_path: Path) -> None:
    torch, _ = torch_and_its_safetensors()
    torch.save(tensors_of(torch), tmp_path / "m.pt")
    ended = run("load", tmp_path / "m.pt", "--device", "host:0", "--verify", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["loads"][0]["devices"][0]["verified"] is True


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_checkpoints_of_every_pickle_protocol_are_read(tmp_path: Path, protocol: int) -> None:
    torch, theirs = torch_and_its_safetensors()
    tensors = tensors_of(torch)
    torch.save(tensors, tmp_path / "m.pt", pickle_protocol=protocol)
    convert(tmp_path / "m.pt", tmp_path / "m.safetensors")
    assert_same_tensors(torch, theirs.load_file(tmp_path / "m.safetensors"), tensors)
    torch.save({"w": torch.ones(2), "lr": np.float64(0.1), "n": np.int32(3)}, tmp_path / "n.pt", pickle_protocol=protocol)
    left_out = convert("--tensors-only", tmp_path / "n.pt", tmp_path / "n.safetensors")["left_out"]
    assert sorted(left_out) == ['"lr" (numpy.scalar)', '"n" (numpy.scalar)']
    torch.save({"w": torch.ones(2), "own": Path("x")}, tmp_path / "o.pt", pickle_protocol=protocol)
    assert "unsupported global pathlib" in refused("--tensors-only", tmp_path / "o.pt", tmp_path / "o.safetensors")


def test_fp4_goes_both_ways(tmp_path: Path) -> None:
    torch, theirs = torch_and_its_safetensors()
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this PyTorch has no FP4")
    pairs = torch.arange(24, dtype=torch.uint8)
    tensors = {"w": pairs.view(torch.float4_e2m1fn_x2).reshape(4, 6), "part": pairs.view(torch.float4_e2m1fn_x2)[8:16]}
    torch.save(tensors, tmp_path / "m.pt")
    convert(tmp_path / "m.pt", tmp_path / "m.safetensors")
    convert(tmp_path / "m.safetensors", tmp_path / "back.pt")
    for found in (theirs.load_file(tmp_path / "m.safetensors"), torch.load(tmp_path / "back.pt")):
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert found[name].view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()
    torch.save({"w": tensors["w"].T}, tmp_path / "t.pt")
    assert "F4" in refused(tmp_path / "t.pt", tmp_path / "t.safetensors")


@pytest.mark.parametrize("ending", [".gguf", ".npz", ".json", ".onnx", ".H5", ".PT", ".Bin"])
def test_an_ending_of_another_format_is_refused(tmp_path: Path, ending: str) -> None:
    save_file(ARRAYS, tmp_path / "m.safetensors")
    convert(tmp_path / "m.safetensors", tmp_path / "m.pt")
    told = refused(tmp_path / "m.pt", tmp_path / f"x{ending}")
    assert "is for another format" in told
    assert not (tmp_path / f"x{ending}").exists()
    assert "is for another format" in refused(tmp_path / "m.safetensors", tmp_path / "y.Safetensors")
