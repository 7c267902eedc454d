"""Tensors that a program asks for on the CPU and moves to a GPU: read from the file into the GPU, and ordinary tensors in every other use."""

from __future__ import annotations

import copy
import gc
import io
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
library = pytest.importorskip("safetensors.torch", reason="the safetensors library is not installed")

import safetensors

import penstock
from penstock._patch import safe_open as _door_open
from penstock._patch import tensor_in_file as _in_file
from penstock._patch.indexes import is_plain, part_of_part
from penstock._patch.tensor_in_file import TensorInFile
from penstock.safetensors import explain, install

HAS_GPU = torch.cuda.is_available() and penstock.cuda_status() is None
ROWS, COLUMNS = 96, 256
TENSORS = {
    "embed": torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS),
    "half": torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)).bfloat16(),
    "last": torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS),
    "small": torch.arange(10.0),
}
if hasattr(torch, "float8_e4m3fn"):
    TENSORS["eight"] = torch.randn(ROWS, 512, generator=torch.Generator().manual_seed(2)).to(torch.float8_e4m3fn)
if hasattr(torch, "float4_e2m1fn_x2"):
    TENSORS["four"] = torch.arange(ROWS * 512).reshape(ROWS, 512).to(torch.uint8).view(torch.float4_e2m1fn_x2)


@pytest.fixture
def path(tmp_path: Path) -> str:
    name = str(tmp_path / "model.safetensors")
    library.save_file(TENSORS, name)
    return name


@pytest.fixture(params=["meta", pytest.param("cuda:0", marks=pytest.mark.skipif(not HAS_GPU, reason="no GPU"))])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A GPU, or what stands for one: tensors that go to "meta" are read into memory of the CPU. With Penstock in place of the library."""
    if request.param == "meta":
        monkeypatch.setattr(_in_file, "_is_gpu", lambda device: device is not None and device.type == "meta")
        monkeypatch.setattr(_in_file, "gpus_may_be_used", lambda: True)
        monkeypatch.setattr(_door_open, "_known_gpu", lambda device: torch.device("cpu"))
    _door_open.counts.clear()
    with install():
        yield request.param
    gc.collect()


def equal(found: Any, expected: Any) -> bool:
    return bool(found.dtype == expected.dtype and found.shape == expected.shape and bytes_of(found) == bytes_of(expected))


def bytes_of(tensor: Any) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def reads() -> tuple[int, int]:
    """Whole tensors that Penstock has read into a GPU, and parts."""
    counts = explain().counts
    return counts.get("tensors read into a GPU", 0), counts.get("parts of tensors read into a GPU", 0)


WAYS: dict[str, Callable[[str, str], Any]] = {
    "get_tensor": lambda path, name: safetensors.safe_open(path, "pt").get_tensor(name),
    "get_slice": lambda path, name: safetensors.safe_open(path, "pt", device="cpu").get_slice(name)[...],
    "get_slice[:]": lambda path, name: safetensors.safe_open(path, "pt").get_slice(name)[:],
    "load_file": lambda path, name: library.load_file(path)[name],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TENSORS)
def test_a_move_reads_the_file(path: str, gpu: str, way: str, name: str) -> None:
    if name == "four" and way.startswith("get_slice"):
        pytest.skip("the library has no slices of elements of four bits")
    tensor = WAYS[way](path, name)
    moved = tensor.to(gpu)
    if name != "small":
        assert isinstance(tensor, TensorInFile) and equal(moved, TENSORS[name])
    assert reads() == (0 if name == "small" else 1, 0)
    assert type(moved) is torch.Tensor and torch.equal(tensor.view(torch.uint8), TENSORS[name].view(torch.uint8)) and type(tensor) is torch.Tensor


MOVES: dict[str, Callable[[Any, str], Any]] = {
    "to": lambda tensor, gpu: tensor.to(gpu),
    "to by keyword": lambda tensor, gpu: tensor.to(device=gpu, non_blocking=True),
    "to with copy": lambda tensor, gpu: tensor.to(gpu, copy=True),
    "to a torch.device": lambda tensor, gpu: tensor.to(torch.device(gpu)),
    "[...]": lambda tensor, gpu: tensor[...].to(gpu),
    "[:] and detach": lambda tensor, gpu: tensor[:].detach().to(gpu),
    "data": lambda tensor, gpu: tensor.data.to(gpu),
    "contiguous": lambda tensor, gpu: tensor.contiguous().cpu().to(gpu),
    "no change first": lambda tensor, gpu: tensor.to("cpu").to(tensor.dtype).to(gpu),
    "as a parameter": lambda tensor, gpu: torch.nn.Parameter(tensor, requires_grad=False).to(gpu),
    "after its facts": lambda tensor, gpu: (tensor.shape, tensor.dtype, len(tensor), tensor.stride(), torch.empty_like(tensor), tensor.is_contiguous(), tensor)[-1].to(gpu),
}


@pytest.mark.parametrize("move", MOVES)
def test_all_ways_to_move(path: str, gpu: str, move: str) -> None:
    assert equal(MOVES[move](WAYS["get_tensor"](path, "half"), gpu), TENSORS["half"])
    assert reads() == (1, 0)


def test_a_move_converts_there(path: str, gpu: str) -> None:
    moved = WAYS["get_tensor"](path, "embed").to(gpu, torch.float16)
    assert equal(moved, TENSORS["embed"].half()) and reads() == (1, 0)
    moved = WAYS["get_slice"](path, "embed").to(device=gpu, dtype=torch.bfloat16)
    assert equal(moved, TENSORS["embed"].bfloat16())


@pytest.mark.parametrize("index", [slice(3, 40), (slice(None), slice(0, 128)), (slice(8, 16), slice(200, 256)), 5, (slice(None), -1), (-3, slice(1, 2))], ids=str)
@pytest.mark.parametrize("of", ["slice", "tensor"])
def test_parts_are_read_as_parts(path: str, gpu: str, index: Any, of: str) -> None:
    expected = TENSORS["embed"][index]
    with safetensors.safe_open(path, "pt") as file:
        part = file.get_slice("embed")[index] if of == "slice" else file.get_tensor("embed")[index]
    assert equal(part.to(gpu) if part.nbytes >= _in_file.LEAST_BYTES else part, expected)
    assert reads() == (0, 1 if isinstance(part, TensorInFile) or part.nbytes >= _in_file.LEAST_BYTES else 0)
    assert equal(part, expected)


PARTS: dict[str, Callable[[Any], Any]] = {
    "narrow": lambda tensor: tensor.narrow(0, 4, 64),
    "narrow of columns": lambda tensor: torch.narrow(tensor, -1, 128, 128),
    "narrow of all": lambda tensor: tensor.narrow(0, 0, ROWS),
    "narrow of a narrow": lambda tensor: tensor.narrow(0, 4, 64).narrow(0, 8, 48),
    "narrow of a narrow of columns": lambda tensor: tensor.narrow(1, 64, 192).narrow(0, 16, 64),
    "part of a part of a chunk": lambda tensor: tensor.chunk(2)[1][:40][2:, 8:],
    "chunk": lambda tensor: tensor.chunk(2)[1],
    "chunk of columns": lambda tensor: torch.chunk(tensor, 2, dim=1)[0],
    "split": lambda tensor: tensor.split(48)[1],
    "split by sizes": lambda tensor: torch.split(tensor, [40, 56], dim=0)[1],
    "split of columns": lambda tensor: tensor.split(split_size=128, dim=-1)[1],
}


def test_experts_of_a_stack_are_read_as_parts(tmp_path: Path, gpu: str) -> None:
    """As weight loaders take them: one expert, half of it, and a rank's rows of that."""
    stack = torch.arange(4 * 256 * 128, dtype=torch.float32).reshape(4, 256, 128)
    library.save_file({"experts": stack}, tmp_path / "stack.safetensors")
    for way in ("get_tensor", "get_slice"):
        tensor = WAYS[way](str(tmp_path / "stack.safetensors"), "experts")
        for expert in (0, 3, -2):
            _door_open.counts.clear()
            part = tensor[expert].chunk(2)[1].narrow(0, 32, 96)
            assert equal(part.to(gpu), stack[expert, 160:256]) and isinstance(part, TensorInFile) and reads() == (0, 1)
    part = safetensors.safe_open(tmp_path / "stack.safetensors", "pt").get_slice("experts")[1:3, 10:200]
    assert equal(part[1].narrow(1, 32, 64).to(gpu), stack[2, 10:200, 32:96]) and reads() == (0, 2)


def test_parts_of_parts_are_what_numpy_takes() -> None:
    numbers = np.random.default_rng(1)
    for _ in range(500):
        array = np.arange(7 * 5 * 6).reshape(7, 5, 6)
        outer, inner = plain_index(numbers, array.shape), ()
        part = array[outer]
        if part.ndim:
            inner = plain_index(numbers, part.shape)
        index = part_of_part(array.shape, outer, inner)
        assert np.array_equal(array[index], part[inner]) and is_plain(index, array.shape)


def plain_index(numbers: Any, shape: tuple[int, ...]) -> Any:
    found: list[Any] = []
    for length in shape[: numbers.integers(1, len(shape) + 1)]:
        low, high = sorted(numbers.integers(0, length + 1, 2).tolist())
        choices = [slice(low, high), slice(low, None), slice(None, high), slice(None)]
        found.append(int(numbers.integers(-length, length)) if length and numbers.random() < 0.3 else choices[numbers.integers(4)])
    return found[0] if len(found) == 1 and numbers.random() < 0.5 else tuple(found)


@pytest.mark.parametrize("part", PARTS)
def test_ranks_take_their_parts(path: str, gpu: str, part: str) -> None:
    found = PARTS[part](WAYS["get_tensor"](path, "embed"))
    assert equal(found.to(gpu), PARTS[part](TENSORS["embed"]))
    assert reads() == (0, 1)
    assert equal(found, PARTS[part](TENSORS["embed"]))


def test_what_is_not_plain_is_the_librarys(path: str, gpu: str) -> None:
    tensor = WAYS["get_tensor"](path, "embed")
    for index in (slice(None, None, 2), [0, 3], None, torch.tensor([1, 2]), (Ellipsis, slice(0, 128)), tensor > 3):
        assert equal(tensor[index], TENSORS["embed"][index])
    with pytest.raises(IndexError):
        WAYS["get_tensor"](path, "embed")[ROWS]


# --- every other use


USES: dict[str, Callable[[Any], Any]] = {
    "add": lambda tensor: tensor + 1,
    "equal": lambda tensor: torch.equal(tensor, TENSORS["embed"]),
    "matmul": lambda tensor: tensor @ tensor.t(),
    "sum": lambda tensor: tensor.sum(),
    "stack": lambda tensor: torch.stack([tensor, tensor]),
    "cat": lambda tensor: torch.cat([tensor, TENSORS["embed"]], dim=1),
    "numpy": lambda tensor: tensor.numpy().copy(),
    "array": lambda tensor: np.asarray(tensor).copy(),
    "dlpack": lambda tensor: torch.from_dlpack(tensor),
    "tolist": lambda tensor: tensor.tolist(),
    "item": lambda tensor: tensor[3, 4].item(),
    "view": lambda tensor: tensor.view(-1)[5:9],
    "reshape": lambda tensor: tensor.reshape(-1, 2),
    "transpose": lambda tensor: tensor.t().contiguous(),
    "view of bytes": lambda tensor: tensor.view(torch.uint8),
    "chunk": lambda tensor: tensor.chunk(32)[1],
    "narrow": lambda tensor: tensor.narrow(0, 2, 3),
    "half": lambda tensor: tensor.half(),
    "clone": lambda tensor: tensor.clone(),
    "deepcopy": lambda tensor: copy.deepcopy(tensor),
    "copy": lambda tensor: copy.copy(tensor),
    "pickle": lambda tensor: pickle.loads(pickle.dumps(tensor)),
    "repr": lambda tensor: repr(tensor),
    "iterated": lambda tensor: next(iter(tensor)),
    "storage": lambda tensor: torch.empty(0).set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape),
    "where": lambda tensor: torch.where(tensor > 5, tensor, 0),
    "out": lambda tensor: torch.add(TENSORS["embed"], tensor, out=torch.empty(ROWS, COLUMNS)),
    "linear": lambda tensor: torch.nn.functional.linear(torch.ones(1, COLUMNS), tensor),
    "saved": lambda tensor: library.load(library.save({"a": tensor}))["a"],
    "type": lambda tensor: tensor.type(),
    "type of": lambda tensor: tensor.type(torch.float64),
    "as_subclass": lambda tensor: tensor.as_subclass(torch.Tensor),
    "func": lambda tensor: torch.func.vmap(lambda row: row * 2)(tensor),
    "foreach": lambda tensor: torch._foreach_add([tensor], 1)[0],
}


@pytest.mark.parametrize("use", USES)
def test_every_other_use_is_that_of_an_ordinary_tensor(path: str, gpu: str, use: str) -> None:
    tensor = WAYS["get_tensor"](path, "embed")
    found, expected = USES[use](tensor), USES[use](TENSORS["embed"])
    if isinstance(expected, torch.Tensor):
        assert equal(found, expected) and type(found) is torch.Tensor
    elif isinstance(expected, np.ndarray):
        assert np.array_equal(found, expected)
    else:
        assert found == expected
    if use not in ("type", "as_subclass", "func"):
        assert type(tensor) is torch.Tensor
    assert reads() == (0, 0)


def test_an_address_is_that_of_its_bytes(path: str, gpu: str) -> None:
    import ctypes

    tensor = WAYS["get_tensor"](path, "embed")
    assert ctypes.string_at(tensor.data_ptr(), tensor.nbytes) == TENSORS["embed"].numpy().tobytes()


def test_torch_save_and_load(path: str, gpu: str) -> None:
    file = io.BytesIO()
    torch.save({"a": WAYS["get_tensor"](path, "half")}, file)
    file.seek(0)
    assert equal(torch.load(file, weights_only=True)["a"], TENSORS["half"])


WRITES: dict[str, Callable[[Any], Any]] = {
    "add_": lambda tensor: tensor.add_(1),
    "+=": lambda tensor: tensor.__iadd__(1),
    "an item": lambda tensor: tensor.__setitem__((0, 0), 7),
    "fill_": lambda tensor: tensor[3:5].fill_(9),
    "through a view": lambda tensor: tensor.view(-1)[17:20].zero_(),
    "through detach": lambda tensor: tensor.detach().add_(2),
    "through data": lambda tensor: tensor.data.mul_(3),
    "through [...]": lambda tensor: tensor[...].mul_(3),
    "through a part": lambda tensor: tensor[5:90].mul_(3),
    "through numpy": lambda tensor: tensor.numpy().fill(4),
    "copy_": lambda tensor: tensor.copy_(torch.ones(ROWS, COLUMNS)),
    "without torch functions": lambda tensor: _written_below(tensor),
}


def _written_below(tensor: Any) -> None:
    with torch._C.DisableTorchFunctionSubclass():
        tensor.add_(1)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("asked", ["before", "after"])
def test_what_was_written_in_memory_is_what_moves(path: str, gpu: str, write: str, asked: str) -> None:
    """And the file stays as it is."""
    content = Path(path).read_bytes()
    expected = TENSORS["embed"].clone()
    with safetensors.safe_open(path, "pt") as file:
        tensor = file.get_tensor("embed")
        other = tensor[...] if asked == "before" else None
        WRITES[write](tensor)
        WRITES[write](expected)
        if other is None:
            other = tensor[...]
    for each in (tensor, other):
        assert equal(each.to("cpu", copy=True), expected)
        if gpu != "meta":
            assert equal(each.to(gpu), expected)
    assert reads() == (0, 0) and Path(path).read_bytes() == content


def test_gradients_flow_as_ever(path: str, gpu: str) -> None:
    weight = torch.nn.Parameter(WAYS["get_tensor"](path, "embed"))
    assert isinstance(weight, torch.nn.Parameter) and weight.requires_grad and weight.is_leaf
    (weight * 2).sum().backward()
    assert type(weight) is torch.nn.Parameter and torch.equal(weight.grad, torch.full((ROWS, COLUMNS), 2.0))


def test_a_parameter_is_one(path: str, gpu: str) -> None:
    """Before and after its bytes are wanted; other libraries make more of its class."""
    weight = torch.nn.Parameter(WAYS["get_tensor"](path, "embed"), requires_grad=False)
    weight.of_the_program = "kept"
    assert isinstance(weight, torch.nn.Parameter) and type(weight) is not torch.nn.Parameter
    another = type(weight)(torch.ones(3), requires_grad=False)
    assert type(another) is torch.nn.Parameter and not another.requires_grad
    assert equal(copy.deepcopy(weight), TENSORS["embed"]) and type(copy.deepcopy(weight)) is torch.nn.Parameter
    assert equal(pickle.loads(pickle.dumps(weight)), TENSORS["embed"])
    assert "Parameter containing" in repr(weight)
    assert type(weight) is torch.nn.Parameter and weight.of_the_program == "kept"


def test_a_module_takes_them_and_moves_once(path: str, gpu: str) -> None:
    module = torch.nn.Linear(COLUMNS, ROWS, bias=False, device="meta")
    module.load_state_dict({"weight": library.load_file(path)["embed"]}, assign=True)
    if gpu == "meta":
        assert equal(module.weight, TENSORS["embed"])
        return
    module.to(gpu)
    assert equal(module.weight, TENSORS["embed"]) and type(module.weight) is torch.nn.Parameter and reads() == (1, 0)


@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
def test_copies_into_a_gpu_read_the_file(path: str) -> None:
    _door_open.counts.clear()
    with install():
        module = torch.nn.Linear(COLUMNS, ROWS, bias=False, device="cuda:0")
        module.load_state_dict({"weight": library.load_file(path)["embed"]})
        assert equal(module.weight, TENSORS["embed"]) and reads() == (1, 0)
        target = torch.zeros(2, ROWS, COLUMNS, device="cuda:0", dtype=torch.float64)
        target[1] = library.load_file(path)["embed"]
        assert equal(target[1], TENSORS["embed"].double()) and reads() == (2, 0)
        torch._foreach_copy_([target[0]], [library.load_file(path)["embed"]])
        assert equal(target[0], TENSORS["embed"].double()) and reads() == (3, 0)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            moved = library.load_file(path)["half"].cuda()
        stream.synchronize()
        assert equal(moved, TENSORS["half"])


@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
def test_files_opened_for_a_gpu_are_read_into_it(path: str) -> None:
    _door_open.counts.clear()
    with install():
        for device in ("cuda:0", "cuda", 0):
            loaded = library.load_file(path, device=device)
            assert loaded.keys() == TENSORS.keys()
            assert all(equal(each, TENSORS[name]) and each.device == torch.device("cuda:0") for name, each in loaded.items())
        with safetensors.safe_open(path, "pt", device="cuda:0") as file:
            assert equal(file.get_tensor("half"), TENSORS["half"])
            part = file.get_slice("embed")[2:7, 3:]
            assert equal(part, TENSORS["embed"][2:7, 3:]) and part.is_cuda
            meta = file.get_tensor_meta("embed")
            assert (meta.dtype, meta.shape) == ("F32", [ROWS, COLUMNS])
            with file.prefetch({"embed": slice(1, 5), "half": None}) as loader:
                assert equal(loader.take("embed"), TENSORS["embed"][1:5])
                assert equal(file.get_tensor("half"), TENSORS["half"])
            with pytest.raises(safetensors.SafetensorError, match="does not contain"):
                file.get_tensor("no such tensor")


# --- files that change


def test_a_file_whose_name_is_anothers_by_now_stays_itself(path: str, gpu: str, tmp_path: Path) -> None:
    tensor = WAYS["get_tensor"](path, "embed")
    library.save_file({"embed": torch.zeros(ROWS, COLUMNS)}, str(tmp_path / "other"))
    os.replace(tmp_path / "other", path)
    assert equal(tensor.to(gpu), TENSORS["embed"]) and reads() == (1, 0)


def test_a_file_that_was_cut_is_an_error_that_names_the_tensor(path: str, gpu: str) -> None:
    tensor = WAYS["get_tensor"](path, "last")
    os.truncate(path, os.path.getsize(path) // 8)
    with pytest.raises((safetensors.SafetensorError, penstock.Error), match="model.safetensors") as told:
        tensor.to(gpu)
    assert isinstance(told.value, safetensors.SafetensorError)


def test_other_processes_get_them_as_ever(path: str, gpu: str) -> None:
    tensor = WAYS["get_tensor"](path, "embed")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_sum_of, args=(tensor, queue))
    child.start()
    assert queue.get(timeout=100) == float(TENSORS["embed"].double().sum())
    child.join()


def _sum_of(tensor: Any, queue: Any) -> None:
    queue.put(float(tensor.double().sum()))


def test_without_a_gpu_they_are_the_librarys(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_in_file, "gpus_may_be_used", lambda: False)
    with install():
        assert type(WAYS["get_tensor"](path, "embed")) is torch.Tensor and type(WAYS["load_file"](path, "embed")) is torch.Tensor


def test_nothing_stays_open(path: str, gpu: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        loaded = library.load_file(path)
        loaded["embed"].to(gpu)
    del loaded
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="PyTorch has no compiler")
def test_compiled_functions_take_them(path: str, gpu: str) -> None:
    compiled = torch.compile(lambda tensor: tensor * 2 + 1, backend="eager")
    assert equal(compiled(WAYS["get_tensor"](path, "embed")), TENSORS["embed"] * 2 + 1)


def test_what_is_read_ahead_goes_on_in_the_next_shard(tmp_path: Path, gpu: str) -> None:
    shards = [{f"layers.{each}": torch.full((64, 256), float(each)) for each in range(first, first + 8)} for first in (0, 8, 16)]
    for number, tensors in enumerate(shards):
        library.save_file(tensors, tmp_path / f"model-{number}.safetensors")
    files = [safetensors.safe_open(tmp_path / f"model-{number}.safetensors", "pt") for number in range(3)]
    slices = [(name, file.get_slice(name)) for file, tensors in zip(files, shards) for name in tensors]
    for name, each in slices[:4]:
        assert each[...].to(gpu).flatten()[0] == float(name.partition(".")[2])
    waiting = [next(iter(file._noted._aheads.values())).waiting_bytes for file in files]
    assert all(waiting)  # of all three: they are small
    for name, each in slices[4:]:
        assert each[...].to(gpu).flatten()[0] == float(name.partition(".")[2])
    assert not any(next(iter(file._noted._aheads.values())).waiting_bytes for file in files)
    del slices, files
