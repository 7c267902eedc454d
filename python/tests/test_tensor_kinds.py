"""Every kind of tensor through every call that takes one: its values arrive, or it is refused by name before anything is written or changed.

KINDS and CALLS are the table. A new kind, or a new call, is one line.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import penstock  # noqa: E402
import penstock.gds  # noqa: E402
import penstock.kv  # noqa: E402
import penstock.kvikio  # noqa: E402
import penstock.kvikio.mmap  # noqa: E402
import penstock.kvikio.numpy  # noqa: E402
import penstock.pipe  # noqa: E402
import penstock.safetensors  # noqa: E402
import penstock.safetensors.torch  # noqa: E402
import penstock.torch  # noqa: E402
import penstock.torch.checkpoint  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

REAL = torch.arange(1.0, 33.0).reshape(4, 8)
COMPLEX = torch.complex(REAL, 2 * REAL)
NAME = "the.tensor"


# --- kinds of tensors


class Subclass(torch.Tensor):
    pass


class Wrapper(torch.Tensor):
    """Holds a tensor, and does with that what it is asked."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[each.inner if isinstance(each, Wrapper) else each for each in args], **(kwargs or {}))


class OpenWrapper(Wrapper):
    """Tells what it holds, as DTensor does, whose mesh is no tensor."""

    mesh = "none"

    def __tensor_flatten__(self) -> Any:
        return ["mesh", "inner"], None


def freed(values: Any) -> Any:
    tensor = values.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def view_of_freed(values: Any, transposed: bool = False) -> Any:
    """As a parameter is a view of a flat one that FSDP has freed: its address is not zero."""
    whole = torch.cat([values, values])
    view = whole[len(values) :].T if transposed else whole[len(values) :]
    whole.untyped_storage().resize_(0)
    return view


def cut(values: Any) -> Any:
    tensor = values.clone()
    tensor.untyped_storage().resize_(8)
    return tensor


def in_vmap(values: Any) -> Any:
    seen: list[Any] = []
    torch.vmap(lambda each: (seen.append(each), each)[1])(torch.stack([values, values]))
    return seen[0]


def in_grad(values: Any) -> Any:
    seen: list[Any] = []
    torch.func.grad(lambda each: (seen.append(each), each.sum())[1])(values)
    return seen[0]


torch.serialization.add_safe_globals([Subclass, Wrapper, OpenWrapper])  # for DCP, which loads no other classes


class Kind(NamedTuple):
    name: str
    make: Callable[[Any], Any]  # a tensor of this kind with these values
    works: str  # the groups of calls that take it; the others refuse it
    values: Any = REAL


EVERY = "save plain_save pickle send fill read"
SCATTERED = "save pickle fill"  # does not lie in one run in C's order
KINDS = [
    Kind("plain", lambda values: values.clone(), EVERY),
    Kind("plain complex", lambda values: values.clone(), EVERY, COMPLEX),
    Kind("parameter", lambda values: torch.nn.Parameter(values.clone()), EVERY),
    Kind("leaf that requires grad", lambda values: values.clone().requires_grad_(), EVERY),
    Kind("result that requires grad", lambda values: values.clone().requires_grad_() * 1, EVERY),
    Kind("inference", torch.inference_mode()(lambda values: values.clone()), EVERY),
    Kind("inference transposed", torch.inference_mode()(lambda values: values.T.contiguous().T), SCATTERED),
    Kind("subclass", lambda values: values.clone().as_subclass(Subclass), EVERY),
    Kind("view", lambda values: torch.cat([values, values])[len(values) :], EVERY),
    Kind("transposed", lambda values: values.T.contiguous().T, SCATTERED),
    Kind("strided", lambda values: torch.stack([values, values], -1)[..., 0], SCATTERED),
    Kind("expanded", lambda values: values[:1].clone().expand(4, 8), "save pickle"),
    Kind("overlapping", lambda values: values.clone().as_strided((4, 8), (4, 1)), "save pickle"),
    Kind("conjugate", lambda values: values.conj().resolve_conj().conj(), "save plain_save pickle fill", COMPLEX),
    Kind("conjugate transposed", lambda values: values.T.contiguous().conj().resolve_conj().mH, SCATTERED, COMPLEX),
    Kind("negative", lambda values: torch._neg_view(-values), "save plain_save pickle fill"),
    Kind("imaginary part of a conjugate", lambda values: torch.complex(values, -values).conj().imag, SCATTERED),
    Kind("freed", freed, ""),
    Kind("view of a freed one", view_of_freed, ""),
    Kind("complex view of a freed one", view_of_freed, "", COMPLEX),
    Kind("transposed view of a freed one", lambda values: view_of_freed(values.T, transposed=True), ""),
    Kind("freed conjugate", lambda values: freed(values).conj(), "", COMPLEX),
    Kind("cut", cut, ""),
    Kind("meta", lambda values: values.to("meta"), "pickle"),
    Kind("fake", lambda values: FakeTensorMode().from_tensor(values), ""),
    Kind("functional", torch._to_functional_tensor, ""),
    Kind("in vmap", in_vmap, ""),
    Kind("in grad", in_grad, ""),
    Kind("sparse", lambda values: values.to_sparse(), "pickle"),
    Kind("sparse CSR", lambda values: values.to_sparse_csr(), "pickle"),
    Kind("MKL-DNN", lambda values: values.to_mkldnn(), ""),
    Kind("nested", lambda values: torch.nested.nested_tensor(list(values)), "pickle send read"),
    Kind("jagged", lambda values: torch.nested.nested_tensor(list(values), layout=torch.jagged), "pickle"),
    Kind("uninitialized", lambda values: torch.nn.parameter.UninitializedParameter(), "pickle"),
    Kind("masked", lambda values: torch.masked.masked_tensor(values, values > 1), "pickle"),
    Kind("wrapper", Wrapper, "save plain_save pickle fill"),
    Kind("open wrapper", OpenWrapper, "save plain_save pickle fill"),
    Kind("wrapper of a freed one", lambda values: OpenWrapper(freed(values)), ""),
    Kind("wrapper of a view of a freed one", lambda values: OpenWrapper(view_of_freed(values)), ""),
]


# --- calls. Each writes what it is given and returns the values that were written, or fills what it is given.


class Call(NamedTuple):
    name: str
    group: str
    run: Callable[[Any, Path], Any]
    names: bool = True  # it knows the tensor's name, and has another tensor beside it
    refuses: tuple[str, ...] = ()  # kinds that this one refuses and the others of its group take
    unnamed: tuple[str, ...] = ()  # kinds that PyTorch refuses in its own words before it calls Penstock
    exempt: tuple[str, ...] = ()  # kinds that PyTorch crashes on before it calls Penstock, or that this call takes in another way


def beside(tensor: Any) -> dict[str, Any]:
    return {"a": torch.ones(3), NAME: tensor}


def saved_in(folder: Path) -> Any:
    return safetensors_torch.load_file(folder / "file")[NAME]


def save_by_dcp(writer: Any, reader: Any, tensor: Any, folder: Path) -> Any:
    dcp.save(beside(tensor), storage_writer=writer(str(folder / "file")))
    found = {NAME: torch.zeros_like(REAL if tensor.dtype == REAL.dtype else COMPLEX)}
    dcp.load(found, storage_reader=reader(str(folder / "file")))
    return found[NAME]


def served(tensor: Any, folder: Path) -> Any:
    with penstock.serve_weights(beside(tensor)) as server:
        return penstock.load_weights(server.url, framework="pt", timeout=30).tensors[NAME]


def put(tensor: Any, folder: Path) -> Any:
    with penstock.kv.Store(folder / "store", capacity_bytes=1 << 20) as store:
        try:
            store.put({"a": torch.ones(3), NAME: [tensor]})
        except penstock.Error:
            assert store.stats().keys == 0
            raise
        found = bytearray(store.sizes([NAME])[0] or 0)
        store.get({NAME: [found]})
        return found


def sent(tensor: Any, folder: Path) -> Any:
    with connected() as (here, there):
        here.send(tensors=[tensor]).result(30)
        return there.receive(device=torch.device("cpu")).result(30).tensors[0]


def copied(tensor: Any) -> Any:
    found = bytearray(nbytes_of(tensor))
    penstock.copy(found, tensor)
    return found


def nbytes_of(tensor: Any) -> int:
    return (COMPLEX if tensor.dtype.is_complex else REAL).nbytes


def sent_beside(tensor: Any) -> Any:
    with connected() as (here, there):
        here.send(payloads=[tensor]).result(30)
        return there.receive().result(30).payloads[0]


class connected:
    def __enter__(self) -> tuple[Any, Any]:
        self._listener = penstock.pipe.listen()
        self._here = penstock.pipe.connect(self._listener.url)
        self._there = self._listener.accept().result(30)
        return self._here, self._there

    def __exit__(self, *_: Any) -> None:
        for each in (self._here, self._there, self._listener):
            each.close()


def written(write: Callable[[Any, Any], Any], tensor: Any, folder: Path) -> Any:
    write(tensor, folder / "file")
    return (folder / "file").read_bytes()


def through(write: Callable[[Any, Any], Any], tensor: Any, folder: Path) -> Any:
    """By an open file."""
    with penstock.open(folder / "file", "w") as file:
        write(file, tensor)
    return (folder / "file").read_bytes()


@functools.cache
def stored(how: str, is_complex: bool, folder: Path) -> Path:
    """What the target is filled from."""
    path, tensors = folder / f"{how} {is_complex}", beside(COMPLEX if is_complex else REAL)
    if how == "safetensors":
        safetensors_torch.save_file(tensors, path)
    elif how == "bytes":
        path.write_bytes(tensors[NAME].numpy().tobytes())
    else:
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(path) if how == "dcp" else dcp.HuggingFaceStorageWriter(str(path)))
    return path


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Any], Path]:
    folder = tmp_path_factory.mktemp("sources")
    return lambda how, tensor: stored(how, tensor.dtype.is_complex, folder)


def load_weights(tensor: Any, other: Any) -> None:
    with penstock.serve_weights(beside(COMPLEX if tensor.dtype.is_complex else REAL)) as server:
        penstock.load_weights(server.url, {"a": other, NAME: tensor}, timeout=30)


def receive(tensor: Any, other: Any) -> None:
    with connected() as (here, there):
        here.send(tensors=[torch.ones(3), COMPLEX if tensor.dtype.is_complex else REAL])
        there.receive(into=[other, tensor]).result(30)


def get(tensor: Any, other: Any, folder: Path) -> None:
    with penstock.kv.Store(folder / "store", capacity_bytes=1 << 20) as store:
        store.put({"a": torch.ones(3), NAME: COMPLEX if tensor.dtype.is_complex else REAL})
        store.get({"a": other, NAME: tensor})


def with_file(path: Path, use: Callable[[Any], Any]) -> None:
    with penstock.open(path) as file:
        use(file)


ours = penstock.torch.checkpoint
tensors_door = penstock.safetensors.torch
NOT_DIRECT = ("wrapper", "open wrapper")
OF_PYTORCH = ("in vmap", "sparse CSR", "MKL-DNN", "nested", "jagged", "uninitialized", "masked")
AS_THEY_LIE = ("transposed", "inference transposed")  # KvikIO moves arrays in Fortran's order as they lie

SAVES = [
    Call("safetensors.save_file", "save", lambda t, f: (penstock.safetensors.save_file(beside(t), f / "file"), saved_in(f))[1]),
    Call("safetensors.torch.save_file", "plain_save", lambda t, f: (tensors_door.save_file(beside(t), f / "file"), saved_in(f))[1]),
    Call("safetensors.torch.save", "plain_save", lambda t, f: safetensors_torch.load(tensors_door.save(beside(t)))[NAME]),
    Call("safetensors.torch.save_file_async", "plain_save", lambda t, f: (tensors_door.save_file_async(beside(t), f / "file").result(30), saved_in(f))[1]),
    Call("torch.save", "pickle", lambda t, f: (penstock.torch.save(beside(t), f / "file"), torch.load(f / "file", weights_only=False)[NAME])[1]),
    Call("torch.save_async", "pickle", lambda t, f: (penstock.torch.save_async(beside(t), f / "file").result(30), torch.load(f / "file", weights_only=False)[NAME])[1]),
    Call("DCP FileSystemWriter", "save", lambda t, f: save_by_dcp(ours.FileSystemWriter, dcp.FileSystemReader, t, f), unnamed=OF_PYTORCH, exempt=("freed conjugate",)),
    Call("DCP HuggingFaceStorageWriter", "save", lambda t, f: save_by_dcp(ours.HuggingFaceStorageWriter, dcp.HuggingFaceStorageReader, t, f), unnamed=OF_PYTORCH, exempt=("freed conjugate",)),
    Call("serve_weights", "save", served, refuses=NOT_DIRECT),
    Call("tofile", "save", lambda t, f: written(penstock.tofile, t, f), names=False),
    Call("kv put", "send", put),
    Call("pipe send", "send", sent, names=False),
    Call("File.pwrite", "send", lambda t, f: through(lambda file, t: file.pwrite(t).result(30), t, f), names=False),
    Call("File.write_from", "send", lambda t, f: through(lambda file, t: file.write_from(t), t, f), names=False),
    Call("File.write", "send", lambda t, f: through(lambda file, t: file.write(t), t, f), names=False),
    Call("File.pwrite_many", "send", lambda t, f: through(lambda file, t: file.pwrite_many([(t, 0)]).result(30), t, f), names=False),
    Call("File.write_many", "send", lambda t, f: through(lambda file, t: file.write_many([(t, 0)]), t, f), names=False),
    Call("File.write_ranges", "send", lambda t, f: through(lambda file, t: file.write_ranges(t, [0], [nbytes_of(t)], [0]), t, f), names=False),
    Call("copy out of it", "send", lambda t, f: copied(t), names=False),
    Call("pipe payload", "send", lambda t, f: sent_beside(t), names=False),
    Call("kvikio.CuFile.pwrite", "send", lambda t, f: written(lambda t, path: penstock.kvikio.CuFile(path, "w").pwrite(t).get(), t, f), names=False, exempt=AS_THEY_LIE),
    Call("kvikio.CuFile.write", "send", lambda t, f: written(lambda t, path: penstock.kvikio.CuFile(path, "w").write(t), t, f), names=False, exempt=AS_THEY_LIE),
]
LOADS = [
    Call("load_into", "fill", lambda t, s: penstock.safetensors.load_into(s("safetensors", t), {"a": OTHER, NAME: t})),
    Call("load_weights", "fill", lambda t, s: load_weights(t, OTHER), refuses=NOT_DIRECT),
    Call("DCP FileSystemReader", "fill", lambda t, s: dcp.load({"a": OTHER, NAME: t}, storage_reader=ours.FileSystemReader(s("dcp", t))), unnamed=("meta", "nested")),
    Call("DCP HuggingFaceStorageReader", "fill", lambda t, s: dcp.load({"a": OTHER, NAME: t}, storage_reader=ours.HuggingFaceStorageReader(str(s("hf", t)))), unnamed=("meta", "nested")),
    Call("pipe receive", "read", lambda t, s: receive(t, OTHER), names=False),
    Call("kv get", "read", lambda t, s: get(t, OTHER, s("bytes", t).parent)),
    Call("File.read_into", "read", lambda t, s: with_file(s("bytes", t), lambda file: file.read_into(t)), names=False),
    Call("File.pread", "read", lambda t, s: with_file(s("bytes", t), lambda file: file.pread(t).result(30)), names=False),
    Call("File.readinto", "read", lambda t, s: with_file(s("bytes", t), lambda file: file.readinto(t)), names=False),
    Call("File.pread_many", "read", lambda t, s: with_file(s("bytes", t), lambda file: file.pread_many([(OTHER, 0), (t, 0)]).result(30)), names=False),
    Call("File.read_many", "read", lambda t, s: with_file(s("bytes", t), lambda file: file.read_many([(OTHER, 0), (t, 0)])), names=False),
    Call("File.read_ranges", "read", lambda t, s: with_file(s("bytes", t), lambda file: file.read_ranges(t, [0], [nbytes_of(t)], [0])), names=False),
    Call("copy into it", "read", lambda t, s: penstock.copy(t, s("bytes", t).read_bytes()), names=False),
    Call("kvikio.CuFile.pread", "read", lambda t, s: penstock.kvikio.CuFile(s("bytes", t), "r").pread(t).get(), names=False, exempt=AS_THEY_LIE),
    Call("kvikio.mmap.Mmap.read", "read", lambda t, s: penstock.kvikio.mmap.Mmap(s("bytes", t)).read(t), names=False, exempt=AS_THEY_LIE),
    Call("kvikio.CuFile.read", "read", lambda t, s: penstock.kvikio.CuFile(s("bytes", t), "r").read(t), names=False, exempt=AS_THEY_LIE),
]
OTHER = torch.zeros(3)


def works(call: Call, kind: Kind) -> bool:
    return call.group in kind.works.split() and kind.name not in call.refuses


def plain(found: Any) -> Any:
    if isinstance(found, (bytes, bytearray)) or (isinstance(found, torch.Tensor) and found.dtype == torch.uint8):
        return torch.from_numpy(np.frombuffer(bytes(found) if isinstance(found, (bytes, bytearray)) else found.numpy().tobytes(), np.float32).copy())
    found = found.detach()
    if found.is_nested:
        found = torch.stack(list(found.unbind()))
    return torch.view_as_real(found.resolve_conj()).flatten() if found.is_complex() else found.to_dense().flatten() if found.layout != torch.strided else found.flatten()


def check_refusal(call: Call, kind: Kind, run: Callable[[], Any]) -> None:
    with pytest.raises((penstock.Error, ValueError, NotImplementedError, dcp.CheckpointException)) as refusal:
        run()
    message = str(refusal.value)
    if kind.name in call.unnamed:
        return
    assert (NAME in message) if call.names else any(each in message for each in ("buffer", "array", "source", "target", "buf", "memory", "[0]", "[1]", NAME)), message
    assert "null pointer" not in message and "storage data/" not in message, message


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("call", SAVES, ids=lambda call: call.name)
def test_values_are_saved_or_the_tensor_is_refused(call: Call, kind: Kind, tmp_path: Path) -> None:
    if kind.name in call.exempt:
        return
    tensor = kind.make(kind.values)
    if not works(call, kind):
        check_refusal(call, kind, lambda: call.run(tensor, tmp_path))
        file = tmp_path / "file"
        assert not file.is_file() or not file.stat().st_size  # emptied by the one who opened it
        return
    found = call.run(tensor, tmp_path)
    if kind.name in ("meta", "uninitialized"):
        assert type(found) is type(tensor)
    elif kind.name in ("masked", "wrapper", "open wrapper") and call.group == "pickle":
        assert type(found) is type(tensor)
    else:
        assert plain(found).equal(plain(tensor.inner if isinstance(tensor, Wrapper) else tensor))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("call", LOADS, ids=lambda call: call.name)
def test_a_target_gets_the_values_or_is_refused_before_any_is_touched(call: Call, kind: Kind, sources: Any) -> None:
    if kind.name in call.exempt:
        return
    target = kind.make(torch.zeros_like(kind.values))
    OTHER.zero_()
    if not works(call, kind):
        check_refusal(call, kind, lambda: call.run(target, sources))
        assert OTHER.tolist() == [0, 0, 0]
        return
    call.run(target, sources)
    assert plain(target.inner if isinstance(target, Wrapper) else target).equal(plain(kind.values))


class Distributed(Wrapper):
    """Like DTensor: copy_() takes no ordinary tensor."""

    def full_tensor(self) -> Any:
        return self.inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(each, torch.Tensor) and not isinstance(each, Distributed) for each in args):
            raise RuntimeError("mixed")
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_a_distributed_target_is_refused_before_any_is_touched(sources: Any) -> None:
    OTHER.zero_()
    with pytest.raises(penstock.Error, match=rf'"{NAME}" is a Distributed, which wraps other tensors .* pass to_local\(\)'):
        penstock.safetensors.load_into(sources("safetensors", REAL), {"a": OTHER, NAME: Distributed(torch.zeros_like(REAL))})
    assert OTHER.tolist() == [0, 0, 0]


# --- several targets in one memory: the values are those that copies one after the other, in the order of the names, would give


COUNT = 1 << 18


def fill_by_load_into(values: dict[str, Any], targets: dict[str, Any], folder: Path) -> None:
    safetensors_torch.save_file(values, folder / "file")
    penstock.safetensors.load_into(folder / "file", targets)


def fill_by_load_weights(values: dict[str, Any], targets: dict[str, Any], folder: Path) -> None:
    with penstock.serve_weights(values) as server:
        penstock.load_weights(server.url, targets, timeout=30)


def fill_by_dcp(values: dict[str, Any], targets: dict[str, Any], folder: Path) -> None:
    dcp.save(values, storage_writer=dcp.FileSystemWriter(folder / "files", overwrite=True))
    dcp.load(targets, storage_reader=ours.FileSystemReader(folder / "files"))


def fill_by_dcp_from_safetensors(values: dict[str, Any], targets: dict[str, Any], folder: Path) -> None:
    dcp.save(values, storage_writer=dcp.HuggingFaceStorageWriter(str(folder / "files")))
    dcp.load(targets, storage_reader=ours.HuggingFaceStorageReader(str(folder / "files")))


@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.parametrize("fill", [fill_by_load_into, fill_by_load_weights, fill_by_dcp, fill_by_dcp_from_safetensors])
def test_of_two_names_for_one_memory_the_later_one_counts(fill: Callable[..., None], names: str, tmp_path: Path) -> None:
    values = {"a": torch.full((COUNT,), 1.0), "b": torch.full((COUNT,), 2.0)}
    memory = torch.zeros(2 * COUNT)
    negative = torch._neg_view(memory)
    for label, of_a, of_b in (
        ("one is negative", negative[:COUNT], memory[:COUNT]),
        ("the same", memory[:COUNT], memory[:COUNT]),
        ("an overlap", memory[:COUNT], memory[COUNT // 2 : COUNT // 2 + COUNT]),
        ("one is strided", memory[:COUNT], memory[::2]),
        ("interleaved", memory[::2], memory[1::2]),
    ):
        targets = {"a": of_a, "b": of_b}
        expected = torch.zeros(2 * COUNT)
        for name in sorted(names) if "dcp" in fill.__name__ else names:  # dcp.load() sorts the names
            sign = -1 if targets[name].is_neg() else 1
            expected.as_strided((COUNT,), targets[name].stride(), targets[name].storage_offset()).copy_(sign * values[name])
        memory.zero_()
        fill(values, {name: targets[name] for name in names}, tmp_path)
        assert memory.equal(expected), label


# --- arrays of NumPy that hide values


MASKED = np.ma.masked_array(REAL.numpy(), REAL.numpy() > 30)


@pytest.mark.parametrize("masked", [MASKED, MASKED.view(), np.ma.masked_array(np.arange(3), [0, 1, 0])], ids=["masked", "view", "one value"])
def test_masked_values_are_neither_saved_nor_filled(masked: Any, tmp_path: Path) -> None:
    safetensors_torch.save_file({NAME: torch.zeros(masked.shape)}, tmp_path / "whole")
    before = masked.data.copy()
    for call in (
        lambda: penstock.safetensors.save_file({NAME: masked}, tmp_path / "file"),
        lambda: penstock.serve_weights({NAME: masked}),
        lambda: penstock.tofile(masked, tmp_path / "file"),
        lambda: penstock.safetensors.load_into(tmp_path / "whole", {NAME: masked}, convert=True),
        lambda: load_weights_into({NAME: masked}),
    ):
        with pytest.raises(penstock.Error, match="has masked values"):
            call()
    assert not (tmp_path / "file").exists() and np.array_equal(masked.data, before)
    penstock.safetensors.save_file({NAME: np.ma.masked_array(before)}, tmp_path / "file")
    assert np.array_equal(penstock.safetensors.load_file(tmp_path / "file", framework="np")[NAME], before)


def load_weights_into(targets: dict[str, Any]) -> None:
    with penstock.serve_weights({name: np.asarray(each) for name, each in targets.items()}) as server:
        penstock.load_weights(server.url, targets, timeout=30)


# --- types whose shape no file has


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this PyTorch has no type of four bits")
def test_a_pair_of_four_bits_without_a_dimension_is_refused(tmp_path: Path) -> None:
    pair = torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    for save in (
        lambda: penstock.safetensors.save_file({NAME: pair}, tmp_path / "file"),
        lambda: tensors_door.save({NAME: pair}),
        lambda: tensors_door.save_file_async({NAME: pair}, tmp_path / "file"),
        lambda: save_by_dcp(ours.HuggingFaceStorageWriter, dcp.HuggingFaceStorageReader, pair, tmp_path),
    ):
        with pytest.raises((penstock.Error, dcp.CheckpointException), match=f"{NAME}|no dimension"):
            save()
    assert not (tmp_path / "file").exists() or list((tmp_path / "file").iterdir()) == []


@pytest.mark.parametrize("word", ["int1", "uint1", "int4", "uint7"])
def test_a_type_that_pytorch_cannot_save_is_refused_by_name(word: str, tmp_path: Path) -> None:
    if not hasattr(torch, word):
        pytest.skip(f"this PyTorch has no {word}")
    tensor = torch.zeros(4, dtype=torch.uint8).view(getattr(torch, word))
    for save in (penstock.torch.save, penstock.torch.save_async):
        with pytest.raises(penstock.Error, match=f"{NAME}.*torch.{word}, which PyTorch cannot save"):
            save(beside(tensor), tmp_path / "file")
    assert not (tmp_path / "file").exists()


# --- what takes memory in another shape


@pytest.mark.parametrize("storage", [torch.empty(100, device="meta").untyped_storage(), FakeTensorMode().from_tensor(REAL).untyped_storage()], ids=["meta", "fake"])
def test_a_storage_without_memory_is_refused(storage: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    with penstock.open(tmp_path / "file", "r+") as file, pytest.raises(penstock.BufferError, match="has no address, so it has no values"):
        file.write_from(storage)
    with pytest.raises(RuntimeError, match="has no address, so it has no values"):
        penstock.gds.gds_register_buffer(storage)
    assert (tmp_path / "file").read_bytes() == bytes(4096)


def test_a_tensor_spec_without_an_address_is_refused(tmp_path: Path) -> None:
    spec = penstock.safetensors.torch.TensorSpec(dtype="float32", shape=[4], data_ptr=0, data_len=16)
    for call in (lambda: penstock.safetensors.torch.serialize({NAME: spec}), lambda: penstock.safetensors.torch.serialize_file({NAME: spec}, tmp_path / "file")):
        with pytest.raises(penstock.BufferError, match=NAME):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [freed, functools.partial(view_of_freed, transposed=True), cut])
def test_a_model_with_a_freed_parameter_is_not_saved(make: Callable[[Any], Any], tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 4)
    model.weight = torch.nn.Parameter(model.weight.detach())
    model.weight.data = make(REAL.T if make not in (freed, cut) else REAL)
    for save in (
        lambda: penstock.safetensors.torch.save_model(model, tmp_path / "file"),
        lambda: penstock.torch.save({"model": model.state_dict()}, tmp_path / "file"),
        lambda: penstock.torch.save(model, tmp_path / "file"),
        lambda: penstock.serve_weights(model),
        lambda: ours.FileSystemWriter(str(tmp_path)).stage(model.state_dict()),
        lambda: ours.HuggingFaceStorageWriter(str(tmp_path / "folder")).stage(model.state_dict()),
    ):
        with pytest.raises(penstock.Error, match="weight"):
            save()
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("make", [freed, view_of_freed, cut, in_vmap])
def test_kvikio_writes_no_tensor_without_memory(make: Callable[[Any], Any], tmp_path: Path) -> None:
    with pytest.raises(penstock.BufferError, match="ary: this .*Tensor"):
        penstock.kvikio.numpy.tofile(make(REAL), tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_autograd_hears_of_what_a_checkpoint_fills(sources: Any) -> None:
    target = torch.zeros_like(REAL)
    version = target._version
    dcp.load({NAME: target}, storage_reader=ours.FileSystemReader(sources("dcp", target)))
    assert target._version > version
