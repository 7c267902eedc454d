"""penstock.safetensors with PyTorch, on the host and where there is one on a GPU: files both ways against safetensors.torch, modules, slices."""

from __future__ import annotations

import copy
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import penstock
from penstock.safetensors import Mismatch, SafetensorError, load_file, load_into, safe_open, save_file
from penstock.safetensors import torch as ours

theirs = pytest.importorskip("safetensors.torch", reason="the safetensors library, to compare with, is not installed")
reference = pytest.importorskip("safetensors")

TYPES = {
    each: getattr(torch, each)
    for each in (
        "bool uint8 int8 int16 uint16 float16 bfloat16 int32 uint32 float32 complex64 float64 int64 uint64 "
        "float8_e4m3fn float8_e5m2 float8_e8m0fnu float8_e4m3fnuz float8_e5m2fnuz float4_e2m1fn_x2"
    ).split()
    if hasattr(torch, each)
}
ROUNDS = int(os.environ.get("PENSTOCK_TEST_ROUNDS", "40"))
GPUS = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() and penstock.cuda_status() is None else []
NO_GPU = pytest.mark.skipif(not GPUS, reason="no GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=NO_GPU)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def tensor_of(numbers: random.Random, kind: Any = None, shape: tuple[int, ...] | None = None) -> Any:
    kind = kind or numbers.choice(list(TYPES.values()))
    if shape is None:
        shape = tuple(numbers.choice([0, 1, 1, 2, 3, 7, 17]) for _ in range(numbers.randint(0, 4)))
    content = bytearray(numbers.randbytes(math.prod(shape) * kind.itemsize))
    if kind == torch.bool:
        content = bytearray(each & 1 for each in content)
    if not content:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(content, dtype=torch.uint8).view(kind).reshape(shape)


def bytes_of(tensor: Any) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).numpy()) if plain.numel() else b""


def same(found: dict[str, Any], expected: dict[str, Any], device: str = "cpu") -> bool:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.device == torch.device(device) and tensor.is_contiguous() and not tensor.requires_grad
        assert (tensor.dtype, tensor.shape) == (expected[name].dtype, expected[name].shape), name
        assert bytes_of(tensor) == bytes_of(expected[name]), name
    return True


# --- both ways


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_files_are_the_same_both_ways(tmp_path: Path, device: str, seed: int) -> None:
    numbers = random.Random(seed)
    tensors = {f"{numbers.choice(['重み', 'weight', ''])}{i}": tensor_of(numbers) for i in range(numbers.choice([0, 1, 2, 10, 40]))}
    tensors = {name: each for name, each in tensors.items() if each.dtype != TYPES.get("float4_e2m1fn_x2") or each.dim()}
    metadata = [None, {"format": "pt"}][seed % 2]
    ours.save_file({name: each.to(device) for name, each in tensors.items()}, tmp_path / "ours", metadata)
    theirs.save_file(tensors, tmp_path / "theirs", metadata)
    content = (tmp_path / "theirs").read_bytes()
    assert (tmp_path / "ours").read_bytes() == content == ours.save(tensors, metadata)
    expected = theirs.load_file(tmp_path / "ours")
    assert same(ours.load_file(tmp_path / "theirs", device), expected, device)
    assert same(load_file(tmp_path / "theirs", device, "pt"), expected, device)
    assert same(load_file(tmp_path / "theirs", torch.device(device)), expected, device)
    assert same(ours.load(content), expected)
    with safe_open(tmp_path / "theirs", "pt", device) as file, reference.safe_open(tmp_path / "theirs", "pt") as other:
        assert same({name: file.get_tensor(name) for name in other.keys()}, expected, device)
        assert same(file.get_tensors(), expected, device)
        for name in expected:
            assert file.get_slice(name).get_shape() == other.get_slice(name).get_shape()


def test_each_type_is_there() -> None:
    assert {"bfloat16", "float8_e4m3fn", "float8_e5m2"} <= set(TYPES)
    for name, kind in TYPES.items():
        tensors = {name: tensor_of(random.Random(name), kind, (4, 8))}
        assert ours.save(tensors) == theirs.save(tensors)
        assert same(ours.load(ours.save(tensors)), tensors)


def test_four_thousand_tensors_are_one_allocation(tmp_path: Path, device: str) -> None:
    tensors = {f"layers.{i}.weight": torch.full((3, 5), float(i)) for i in range(4096)}
    ours.save_file(tensors, tmp_path / "file")
    found = ours.load_file(tmp_path / "file", device)
    assert same(found, tensors, device)
    assert len({each.untyped_storage().data_ptr() for each in found.values()}) == 1
    assert all(each.data_ptr() % 64 == 0 for each in found.values())
    found["layers.7.weight"].zero_()
    assert same({name: each for name, each in found.items() if "7." not in name}, {name: each for name, each in tensors.items() if "7." not in name}, device)


def test_what_cannot_be_saved_is_refused_as_the_other_does(tmp_path: Path) -> None:
    base = torch.arange(16.0).reshape(4, 4)
    tied = {"a": base, "b": base}
    cases: list[tuple[Any, type[Exception]]] = [
        (tied, RuntimeError),
        ({"a": base[:3], "b": base[2:]}, RuntimeError),
        ({"a": base.t()}, ValueError),
        ({"a": base[:, :2]}, ValueError),
        ({"a": base.to_sparse()}, ValueError),
        ([base], ValueError),
        ({"a": 1}, ValueError),
        ({1: base}, TypeError),
        ({"a": torch.zeros(2, device="meta")}, NotImplementedError),
    ]
    for tensors, kind in cases:
        for module in (ours, theirs):
            with pytest.raises(kind):
                module.save_file(tensors, tmp_path / "file")
            with pytest.raises(kind):
                module.save(tensors)
    with pytest.raises(SafetensorError, match='tensor "a": Unknown dtype "complex128"'):
        ours.save_file({"a": torch.zeros(1, dtype=torch.complex128)}, tmp_path / "file")
    with pytest.raises(RuntimeError, match='"a", "b"'):
        ours.save(tied)
    assert list(tmp_path.iterdir()) == []
    apart = {"a": base[:2], "b": base[2:], "none": base[4:], "parameter": torch.nn.Parameter(torch.ones(3))}
    assert ours.save(apart) == theirs.save(apart)


def test_what_is_put_off_is_saved_as_it_will_be() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    found = ours.load(ours.save({"conjugated": tensor.conj(), "negative": tensor.conj().imag.contiguous()}))
    assert (found["conjugated"] == tensor.conj().resolve_conj()).all() and found["negative"].tolist() == [-2.0, 4.0]


def test_four_bits_are_told_by_the_number_of_elements(tmp_path: Path) -> None:
    packed = TYPES.get("float4_e2m1fn_x2")
    if packed is None:
        pytest.skip("this PyTorch has no float4_e2m1fn_x2")
    tensor = tensor_of(random.Random(1), packed, (6, 4))
    save_file({"x": tensor}, tmp_path / "file")
    with safe_open(tmp_path / "file", "pt") as file:
        assert file.get_slice("x").get_shape() == [6, 8] and file.get_tensor("x").shape == (6, 4)
        assert bytes_of(file.get_slice("x")[2:4]) == bytes_of(tensor[2:4])
        assert bytes_of(file.get_slice("x")[:, 1:3]) == bytes_of(tensor.view(torch.uint8)[:, 1:3])
    parts = [load_file(tmp_path / "file", "cpu", "pt", slices={"x": (1, rank, 2)})["x"] for rank in range(2)]
    assert bytes_of(torch.cat([each.view(torch.uint8) for each in parts], dim=1)) == bytes_of(tensor)
    header = b'{"x":{"dtype":"F4","shape":[2,1],"data_offsets":[0,1]}}'
    (tmp_path / "odd").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(SafetensorError, match=r'"x" has the type F4 and shape \[2, 1\]: PyTorch packs two elements into a byte'):
        ours.load_file(tmp_path / "odd")
    header = b'{"x":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
    (tmp_path / "six").write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    with pytest.raises(SafetensorError, match='"x" has the type F6_E2M3, which PyTorch does not support'):
        ours.load_file(tmp_path / "six")


@pytest.mark.parametrize("index", [1, -1, ..., (), slice(1, 3), slice(None, None, 2), (slice(1, 3), 2), (..., 1), (1, 2), slice(10, 20), [0, 2], None, True,
                                   (slice(None), [0, 5]), [], torch.tensor([0, 1]), torch.tensor(1), slice(-3, -1), (slice(1, 2), ...)], ids=str)  # fmt: skip
def test_a_slice_is_that_of_the_tensor(tmp_path: Path, device: str, index: Any) -> None:
    tensor = torch.arange(24.0).reshape(4, 6)
    ours.save_file({"x": tensor}, tmp_path / "file")
    with safe_open(tmp_path / "file", "pt", device) as file, reference.safe_open(tmp_path / "file", "pt") as other:
        found, expected = file.get_slice("x")[index], other.get_slice("x")[index]
        assert found.shape == expected.shape and found.device == torch.device(device) and (found.cpu() == expected).all()


@pytest.mark.parametrize("index", [4, -5, (1, 2, 3), 1.5], ids=str)
def test_a_wrong_index_is_an_index_error(tmp_path: Path, index: Any) -> None:
    ours.save_file({"x": torch.zeros(4, 6)}, tmp_path / "file")
    for opened in (safe_open, reference.safe_open):
        with opened(tmp_path / "file", "pt") as file, pytest.raises(IndexError):
            file.get_slice("x")[index]
    with safe_open(tmp_path / "file", "pt") as file, pytest.raises(ValueError, match="step must be greater than zero"):
        file.get_slice("x")[::-1]


def test_a_device_that_is_none_is_refused(tmp_path: Path) -> None:
    ours.save_file({"x": torch.zeros(1)}, tmp_path / "file")
    for wrong in ("meta", "nothing", "host:1"):
        with pytest.raises(penstock.NotFound, match=f'there is no device "{wrong}"; available devices: host'):
            ours.load_file(tmp_path / "file", wrong)
    with pytest.raises(penstock.NotFound, match='there is no device "disk"'):
        ours.load_file(tmp_path / "file", device_map={"": "cpu", "x": "disk"})
    assert ours.load_file(tmp_path / "file", torch.device("cpu"))["x"].device.type == "cpu"


@pytest.mark.usefixtures("torch_not_imported")
def test_a_device_of_pytorch_is_not_that_of_numpy(tmp_path: Path) -> None:
    ours.save_file({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "file")
    found = load_file(tmp_path / "file", device_map={"a": torch.device("cpu"), "b": "cpu"})
    assert isinstance(found["a"], torch.Tensor) and not isinstance(found["b"], torch.Tensor)


# --- modules


class Tied(torch.nn.Module):  # type: ignore[misc]
    """Of which two parameters are one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 5)
        self.norm = torch.nn.BatchNorm1d(5)
        self.head = torch.nn.Linear(5, 7)
        self.head.weight = self.embedding.weight
        self.register_buffer("scratch", torch.zeros(3), persistent=False)


def test_a_module_is_filled_where_it_is(tmp_path: Path, device: str) -> None:
    source, target = Tied(), Tied().to(device)
    with torch.no_grad():
        for each in source.state_dict().values():
            each.copy_(torch.randn(each.shape)) if each.is_floating_point() else each.fill_(5)
    ours.save_model(source, tmp_path / "ours")
    theirs.save_model(source, tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    before = {name: each.data_ptr() for name, each in target.state_dict().items()}
    version = target.head.weight._version
    assert load_into(tmp_path / "ours", target) == ([], [])
    state = target.state_dict()
    assert {name: each.data_ptr() for name, each in state.items()} == before and target.head.weight is target.embedding.weight
    assert all((each.cpu() == source.state_dict()[name]).all() for name, each in state.items())
    assert target.head.weight._version > version  # what autograd has kept of it is no longer right
    for module in (ours, theirs):
        fresh = Tied()
        assert module.load_model(fresh, tmp_path / "ours") == (set(), [])
        assert all((each == source.state_dict()[name]).all() for name, each in fresh.state_dict().items())


class WithMore(torch.nn.Linear):  # type: ignore[misc]
    """Which keeps something that is no tensor in its state."""

    def get_extra_state(self) -> Any:
        return {"steps": 3}

    def set_extra_state(self, state: Any) -> None:
        raise AssertionError("no file has it")


def test_what_a_module_keeps_beside_tensors_is_missing(tmp_path: Path) -> None:
    ours.save_file({"weight": torch.ones(3, 2), "bias": torch.ones(3)}, tmp_path / "file")
    module = WithMore(2, 3)
    with pytest.raises(Mismatch, match='missing from the file: "_extra_state"'):
        load_into(tmp_path / "file", module)
    assert load_into(tmp_path / "file", module, strict=False) == (["_extra_state"], [])
    assert bool((module.weight == 1).all())
    with pytest.raises(TypeError, match='target "more" must be a PyTorch tensor'):
        load_into(tmp_path / "file", {"more": {"steps": 3}}, strict=False)


def test_models_whose_names_differ_are_told_as_by_the_other(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    ours.save_file({"0.weight": torch.ones(3, 2), "other": torch.ones(1), "1.bias": torch.ones(2)}, tmp_path / "file")
    results = []
    for module in (ours, theirs):
        missing, unexpected = module.load_model(copy.deepcopy(model), tmp_path / "file", strict=False)
        results.append((set(missing), list(unexpected)))
        with pytest.raises(RuntimeError, match='(?s)Missing key.*"0.bias", "1.weight".*Unexpected key.*"other"'):
            module.load_model(copy.deepcopy(model), tmp_path / "file")
    assert results[0] == results[1]
    result = load_into(tmp_path / "file", model, strict=False)
    assert set(result.missing_keys) == results[0][0] and result.unexpected_keys == results[0][1]
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match=r'(?s)does not match the Sequential:.*missing from the file: "0.bias", "1.weight".*unexpected in the file: "other"'):
        load_into(tmp_path / "file", model)
    assert all((each == before[name]).all() for name, each in model.state_dict().items())


def test_tensors_that_are_not_as_in_the_file_are_copied_into(tmp_path: Path, device: str) -> None:
    weight = torch.arange(24.0).reshape(4, 6)
    ours.save_file({"turned": weight, "half": weight.clone(), "steps": weight.clone(), "plain": weight.clone()}, tmp_path / "file")
    target = {
        "turned": torch.zeros(6, 4, device=device).t(),
        "half": torch.zeros(4, 6, dtype=torch.bfloat16, device=device),
        "steps": torch.zeros(4, 12, device=device)[:, ::2],
        "plain": torch.zeros(4, 6, device=device, requires_grad=True),
    }
    with pytest.raises(Mismatch, match='"half" has the type F32 in the file but torch.bfloat16 in memory, and convert is False'):
        load_into(tmp_path / "file", target)
    assert not any(bool(each.any()) for each in target.values())
    load_into(tmp_path / "file", target, convert=True)
    assert all((each.detach().float().cpu() == weight).all() for each in target.values())
    parts = {name: torch.zeros(4, 3, device=device) for name in target}
    load_into(tmp_path / "file", parts, slices=lambda name, shape: (1, 1, 2))
    assert all((each.cpu() == weight[:, 3:]).all() for each in parts.values())


def test_tensors_without_bytes_are_refused_in_words(tmp_path: Path) -> None:
    ours.save_file({"weight": torch.ones(3, 2), "bias": torch.ones(3)}, tmp_path / "file")
    with pytest.raises(Mismatch, match='(?s)"weight" is on the device meta, which.*"bias" is on the device meta'):
        load_into(tmp_path / "file", torch.nn.Linear(2, 3, device="meta"))
    with pytest.raises(Mismatch, match='"bias" has the layout torch.sparse_coo'):
        load_into(tmp_path / "file", {"bias": torch.zeros(3).to_sparse()}, strict=False)
    lazy = torch.nn.Linear(2, 3, device="meta").to_empty(device="cpu")
    load_into(tmp_path / "file", lazy)
    assert bool((lazy.weight == 1).all())


class Spread(torch.Tensor):  # type: ignore[misc]
    """A tensor whose operations are its own to carry out: what it has at its address is nobody's to write."""

    asked: list[str] = []

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(str(function))
        with torch._C._DisableTorchDispatch():
            return function(*args, **(kwargs or {}))


def test_tensors_of_other_kinds_are_filled_by_their_own_copy(tmp_path: Path) -> None:
    ours.save_file({"x": torch.ones(3)}, tmp_path / "file")
    memory = torch.zeros(3)
    spread = memory.as_subclass(Spread)
    Spread.asked.clear()
    load_into(tmp_path / "file", {"x": spread})
    assert memory.tolist() == [1, 1, 1] and "aten.copy_.default" in Spread.asked


# --- GPUs


@NO_GPU
def test_a_device_map_spreads_a_model(tmp_path: Path) -> None:
    tensors = {f"layers.{i}.weight": torch.full((5, 7), float(i)) for i in range(6)} | {"head": torch.ones(3)}
    ours.save_file(tensors, tmp_path / "file")
    found = ours.load_file(tmp_path / "file", device_map={"": "cpu", "layers": 0, "layers.5": GPUS[-1]})
    assert found["head"].device.type == "cpu" and found["layers.0.weight"].device == torch.device("cuda:0")
    assert found["layers.5.weight"].device == torch.device(GPUS[-1])
    assert all((each.cpu() == tensors[name]).all() for name, each in found.items())


@NO_GPU
def test_memory_that_a_stream_is_at_work_in_is_waited_for(tmp_path: Path) -> None:
    """Memory that PyTorch has just let go of, which a queued kernel still writes, must not be read into before."""
    values = torch.arange(1 << 20, dtype=torch.int32)
    ours.save_file({"x": values}, tmp_path / "file")
    for _ in range(5):
        stale = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(200_000_000)
        stale.zero_()
        del stale
        assert bool((ours.load_file(tmp_path / "file", "cuda")["x"].cpu() == values).all())
        target = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
        torch.cuda._sleep(200_000_000)
        target.zero_()
        load_into(tmp_path / "file", {"x": target})
        assert bool((target.cpu() == values).all())
        torch.cuda._sleep(200_000_000)
        target += 1
        ours.save_file({"x": target}, tmp_path / "other")
        assert bool((ours.load_file(tmp_path / "other")["x"] == values + 1).all())


@NO_GPU
def test_cupy_has_the_same(tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    from penstock.safetensors import cupy as of_cupy

    tensors = {"a": cupy.arange(12, dtype="f4").reshape(3, 4), "b": cupy.ones((0, 2), "i8"), "c": cupy.array(5.0), "d": cupy.arange(12).reshape(3, 4).T}
    of_cupy.save_file(tensors, tmp_path / "file")
    for found in (of_cupy.load_file(tmp_path / "file"), load_file(tmp_path / "file", "cuda:0", "cupy"), of_cupy.load(of_cupy.save(tensors))):
        assert all(isinstance(each, cupy.ndarray) and (each == tensors[name]).all() and each.dtype == tensors[name].dtype for name, each in found.items())
    with safe_open(tmp_path / "file", "cupy", "cuda:0") as file:
        assert (file.get_slice("a")[1:, ::2] == tensors["a"][1:, ::2]).all()
    target = {name: cupy.zeros_like(each) for name, each in tensors.items()}
    load_into(tmp_path / "file", target)
    assert all((each == tensors[name]).all() for name, each in target.items())


def test_the_usual_case_goes_by_columns_and_any_other_tensor_by_tensor(tmp_path: Path, device: str) -> None:
    from penstock._tensors.plain_targets import PlainTargets
    from penstock._tensors.sources import Sources

    numbers = random.Random(5)
    file = tmp_path / "file"
    saved = {"": torch.zeros(0, 3), "scalar": torch.tensor(2.5)}
    saved |= {f"m.{i}": tensor_of(numbers, torch.bfloat16, (3, i)) for i in range(1, 40)}
    ours.save_file(saved, file)
    usual: dict[str, Any] = {name: torch.nn.Parameter(torch.zeros_like(each, device=device)) for name, each in saved.items()}

    def finds(target: dict[str, Any]) -> bool:
        with Sources(file) as sources:
            return PlainTargets.find(sources, target) is not None

    assert finds(usual)
    versions = [each._version for each in usual.values()]
    assert load_into(file, usual) == ([], [])
    assert same({name: each.detach() for name, each in usual.items()}, saved, device)
    assert all(each._version > before for each, before in zip(usual.values(), versions))

    room = torch.zeros(240, dtype=torch.bfloat16, device=device)
    spread = type("Spread", (torch.Tensor,), {})
    unusual: list[dict[str, Any]] = [
        {"m.39": torch.zeros(3, 39, device=device)},  # of another type
        {"m.39": torch.zeros(39, 3, dtype=torch.bfloat16, device=device)},
        {"m.39": torch.zeros(39, 3, dtype=torch.bfloat16, device=device).t()},
        {"m.39": room[:117].view(3, 39), "m.38": room[116:230].view(3, 38)},  # these overlap
        {"m.39": torch.zeros(3, 39, dtype=torch.bfloat16, device="meta")},
        {"m.39": torch.zeros(3, 39, dtype=torch.bfloat16).to_sparse()},
        {"m.39": torch.zeros(3, 39, dtype=torch.bfloat16, device=device).as_subclass(spread)},
        {"more": torch.zeros(1, device=device)},
    ]
    for change in unusual:
        assert not finds(usual | change), change
    assert not finds({name: each for name, each in usual.items() if name != "m.1"})
    assert not finds({"M" + name: each for name, each in usual.items()})


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="a PyTorch without DLPack's C functions")
def test_what_the_c_functions_find_is_what_the_columns_find(tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock._tensors.plain_targets import PlainTargets
    from penstock._tensors.sources import Sources

    numbers = random.Random(6)
    kinds = [each for each in TYPES.values() if not each.is_complex and each.itemsize and "float4" not in str(each)]
    for _ in range(ROUNDS):
        saved = {f"{i}": tensor_of(numbers, numbers.choice(kinds)) for i in range(numbers.randrange(9))}
        files = [tmp_path / "one", tmp_path / "two"]
        for path, part in zip(files, (0, 1)):
            ours.save_file({name: each for name, each in saved.items() if int(name) % 2 == part}, path)
        target = {name: torch.empty_like(each, device=device) for name, each in saved.items()}
        with Sources([str(each) for each in files]) as sources:
            found = PlainTargets.find(sources, target)
            with monkeypatch.context() as patched:
                patched.setattr(penstock._native, "find_plain_tensors", lambda *_: None)
                expected = PlainTargets.find(sources, target)
            assert found is not None and expected is not None
            assert found._devices == expected._devices and (found._begin, found._end) == (expected._begin, expected._end)
            of_found, of_expected = ([each for each in every._reads if each[1]] for every in (found, expected))
            assert len(of_found) == len(of_expected)
            for one, other in zip(of_found, of_expected):
                assert one[0] is other[0] and all(map(lambda a, b: a is b, one[1], other[1]))
                assert (one[2].offsets, one[2].sizes, one[2].places) == (other[2].offsets, other[2].sizes, other[2].places)


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="a PyTorch without DLPack's C functions")
def test_the_c_functions_find_nothing_that_is_otherwise_than_usual(tmp_path: Path) -> None:
    from penstock._native import find_plain_tensors, read_safetensors

    weight = torch.arange(6.0).reshape(2, 3)
    ours.save_file({"x": weight, "y": weight + 1}, tmp_path / "file")
    ours.save_file({"x": weight.to(torch.complex64)}, tmp_path / "complex")
    header, complex_header = read_safetensors(tmp_path / "file"), read_safetensors(tmp_path / "complex")
    classes = (torch.Tensor, torch.nn.Parameter)
    y = torch.zeros(2, 3)

    def finds(x: Any) -> bool:
        return find_plain_tensors([header], {"x": x, "y": y}, classes) is not None

    for good in (torch.zeros(2, 3), torch.nn.Parameter(torch.zeros(2, 3)), torch.zeros(2, 3, requires_grad=True), torch.zeros(4, 3)[1:3]):
        assert finds(good)
    both = torch.zeros(3, 3)
    others = {
        "a view of it": y,
        "turned": torch.zeros(3, 2).t(),
        "steps": torch.zeros(2, 6)[:, ::2],
        "one for all": torch.zeros(1, 3).expand(2, 3),
        "shorter": torch.zeros(2, 2),
        "flat": torch.zeros(6),
        "another type": torch.zeros(2, 3, dtype=torch.int32),
        "no memory": torch.zeros(2, 3, device="meta"),
        "sparse": torch.zeros(2, 3).to_sparse(),
        "a class of its own": torch.zeros(2, 3).as_subclass(Spread),
        "an array": torch.zeros(2, 3).numpy(),
        "nothing": None,
    }
    for what, other in others.items():
        assert not finds(other), what
    assert find_plain_tensors([header], {"x": both[:2], "y": both[1:]}, classes) is None
    assert find_plain_tensors([header], {"x": y}, classes) is None
    assert find_plain_tensors([header, header], {"x": weight, "y": y}, classes) is None
    assert find_plain_tensors([complex_header], {"x": torch.zeros(2, 3, dtype=torch.complex64)}, classes) is None
    assert find_plain_tensors([header], {"x": weight, "y": y}, (int, torch.Tensor)) is None
    assert find_plain_tensors([], {}, classes) == (0, 0, [])
    with pytest.raises(penstock.InvalidArgument, match="no tensor classes"):
        find_plain_tensors([header], {"x": weight, "y": y}, ())
    for wrong in (([1], {}, classes), ([header], [], classes), (header, {}, classes), ([header], {}, list(classes))):
        with pytest.raises(TypeError):
            find_plain_tensors(*wrong)  # type: ignore[arg-type]


def test_a_tensor_whose_memory_was_let_go_of_is_refused_in_words(tmp_path: Path) -> None:
    ours.save_file({"x": torch.ones(3), "y": torch.ones(2)}, tmp_path / "file")
    freed = torch.zeros(3)
    freed.untyped_storage().resize_(0)
    for target in ({"x": freed, "y": torch.zeros(2)}, {"x": freed}):
        with pytest.raises(Mismatch, match='"x" has no memory'):
            load_into(tmp_path / "file", target, strict=False)


def test_a_view_of_the_other_sign_gets_its_values_and_not_its_bytes(tmp_path: Path) -> None:
    ours.save_file({"x": torch.tensor([1.0, 2.0])}, tmp_path / "file")
    turned = torch._neg_view(torch.zeros(2))
    assert turned.is_neg()
    load_into(tmp_path / "file", {"x": turned})
    assert turned.tolist() == [1, 2]


def test_storages_are_told_as_the_library_tells_them() -> None:
    tensor = torch.arange(100)
    for each in (tensor, tensor[3:5], tensor.to(torch.bfloat16), torch.empty(0), torch.empty(3, device="meta")):
        assert ours.storage_ptr(each) == theirs.storage_ptr(each)
        assert ours.storage_size(each) == theirs.storage_size(each)
