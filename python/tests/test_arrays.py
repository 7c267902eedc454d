"""The contract of the adapters for array libraries. Each adapter of the table in _core/libraries.py passes the same tests on each of its devices."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock
import penstock.safetensors.numpy
import penstock.weights
from penstock import _native
from penstock._core import arrays
from penstock._core.arrays.library import Arena, Facts, Library, View, is_alive, only_view
from penstock._core.arrays.of_numpy import NumpyArena, numpy_dtype
from penstock._core.libraries import LIBRARIES, Known

HAS_GPU = penstock.cuda_status() is None
DEVICES = {"torch": ("host", "cuda:0"), "numpy": ("host",), "cupy": ("cuda:0",), "penstock": ("host:0", "cuda:0")}  # a new library is a line
SIZES = (0, 1, 3, 1000)


class Case(NamedTuple):
    library: Library
    device: str
    name: str


def case_of(name: str, device: str) -> Any:
    marks = []
    if importlib.util.find_spec(name) is None:
        marks.append(pytest.mark.skip(reason=f"{name} is not installed"))
    elif device.startswith("cuda:") and not HAS_GPU:
        marks.append(pytest.mark.skip(reason="no GPU"))
    return pytest.param((name, device), marks=marks, id=f"{name} on {device}")


@pytest.fixture(params=[case_of(name, device) for name in LIBRARIES for device in DEVICES[name]])
def case(request: pytest.FixtureRequest) -> Case:
    name, device = request.param
    if name == "torch" and device != "host" and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no GPU for PyTorch")
    return Case(arrays.library_named(name), device, name)


def bytes_of(case: Case, array: Any) -> bytes:
    """The content of a contiguous array, read through the adapter's own description of its memory."""
    case.library.settle(case.device)
    memory = case.library.memory(array)
    _, nbytes = _native.resolve(memory)
    content = bytearray(nbytes)
    if nbytes:
        _native.copy(content, memory)
    return bytes(content)


def filled(case: Case, values: np.ndarray[Any, Any]) -> Any:
    """A new array with these values, written through the adapter's own description of its memory."""
    array = case.library.empty(values.shape, dtype_of(case, values.dtype.name), case.device)
    case.library.settle(case.device)
    _native.copy(case.library.memory(array), values.tobytes())
    return array


def dtype_of(case: Case, name: str) -> Any:
    return case.library.dtype(name) if case.library.indexes else np.dtype(name)


def test_arrays_are_made_on_the_device_and_owned_by_their_library(case: Case) -> None:
    array = case.library.empty((2, 3), dtype_of(case, "float32"), case.device)
    assert case.library.owns(array) and arrays.library_of(array) is case.library
    assert not any(arrays.library_named(name).owns(array) for name in LIBRARIES if name in sys.modules and name != case.name)
    case.library.settle(case.device)
    arrays.settle(array)
    arrays.settle(array, stream=0)
    assert (_native.describe(array)["device"] or "host") == case.device
    assert _native.resolve(case.library.memory(array))[1] == 24


@pytest.mark.parametrize("value", [None, 1, b"bytes", [1], object()])
def test_other_values_belong_to_no_library(value: Any) -> None:
    assert arrays.library_of(value) is None
    arrays.settle(value)


def test_bytes_get_into_memory_and_out_again(case: Case) -> None:
    values = np.arange(12, dtype="float32").reshape(3, 4)
    array = filled(case, values)
    assert bytes_of(case, array) == values.tobytes()
    if case.library.indexes:
        assert tuple(array.shape) == (3, 4) and array.dtype == case.library.dtype("float32") and float(array[1, 2]) == 6


def test_types_that_a_library_lacks_are_none(case: Case) -> None:
    if not case.library.indexes:
        pytest.skip("bytes have no types")
    for name in ("", "no type", "float4_e2m1fn_x3", "Tensor", "dtype"):
        assert case.library.dtype(name) is None
    assert case.library.dtype("uint8").itemsize == 1


def test_types_have_the_names_that_numpy_sends(case: Case) -> None:
    if not case.library.indexes:
        pytest.skip("bytes have no types")
    for name in ("<f4", "float32"):
        assert case.library.dtype_named(name) == case.library.dtype_like(np.dtype("f4")) == case.library.dtype("float32")
    for name in ("", ",", "O", "S0", "os", "Tensor", "<f4,<f4"):
        assert case.library.dtype_named(name) is None


def test_copies_are_contiguous_and_own_their_memory(case: Case) -> None:
    if not case.library.indexes:
        pytest.skip("bytes are not indexed")
    values = np.arange(12, dtype="int32").reshape(3, 4)
    array = filled(case, values)
    part = array[:, 1:3]
    copy = case.library.copied(part)
    into = case.library.copied_into(case.library.arena(24, case.device), part)
    case.library.settle(case.device)
    array[...] = 0
    assert bytes_of(case, copy) == bytes_of(case, into) == values[:, 1:3].tobytes()


def test_an_array_is_described(case: Case) -> None:
    array = filled(case, np.arange(12, dtype="int32").reshape(3, 4))
    for fill in (False, True):
        facts = case.library.facts(array, fill=fill)
        assert facts.problem is None and facts.nbytes == 48 and facts.device == case.device and facts.is_contiguous and not facts.repeats
        assert facts.span == (facts.address, facts.address + 48)
        assert facts.key == case.library.facts(array, fill=fill).key is not None
        if case.library.indexes:
            assert (facts.dtype, facts.shape, facts.strides, facts.itemsize) == (array.dtype, (3, 4), (16, 4), 4)
            part = case.library.facts(array[:, 1:3], fill=fill)
            assert not part.is_contiguous and not part.repeats and part.span == (facts.address + 4, facts.address + 44) and part.key != facts.key
    assert case.library.is_contiguous(array)


def test_elements_that_share_memory_cannot_be_filled(case: Case) -> None:
    if not case.library.indexes:
        pytest.skip("bytes have no elements")
    array = filled(case, np.zeros((4, 1), "float32"))
    repeated = array.expand(4, 3) if case.name == "torch" else sys.modules[case.name].lib.stride_tricks.as_strided(array, (4, 3), (4, 0))
    assert case.library.facts(repeated, fill=False).problem is None and case.library.facts(repeated, fill=False).repeats
    assert case.library.facts(repeated, fill=True).problem is not None


def test_empty_arrays_share_no_memory(case: Case) -> None:
    if not case.library.indexes:
        pytest.skip("there are no empty DeviceBuffers")
    facts = case.library.facts(case.library.empty((0, 3), case.library.dtype("float32"), case.device), fill=True)
    assert facts.problem is None and facts.nbytes == 0 and facts.key is None and facts.span[0] == facts.span[1]


def test_values_are_put_into_another_array(case: Case) -> None:
    values = np.arange(12, dtype="float32").reshape(3, 4)
    source = filled(case, values)
    targets = [filled(case, np.zeros((3, 4), "float32")) for _ in range(3)]
    case.library.put(targets[0], source)
    case.library.put_all(targets[1:], [source, source])
    case.library.have_changed(targets)
    assert {bytes_of(case, each) for each in targets} == {values.tobytes()}
    if case.library.indexes:
        converted = filled(case, np.zeros((3, 4), "int32"))
        case.library.put(converted, source)
        assert bytes_of(case, converted) == values.astype("int32").tobytes()


def test_to_numpy_returns_the_values(case: Case) -> None:
    values = np.arange(12, dtype="int32").reshape(3, 4)
    found = case.library.to_numpy(filled(case, values))
    assert isinstance(found, np.ndarray) and found.tobytes() == values.tobytes()
    assert not case.library.indexes or (found.shape == (3, 4) and found.dtype == values.dtype)


def test_an_array_over_memory_keeps_the_owner(case: Case) -> None:
    owner = filled(case, np.arange(12, dtype="int32"))
    alive = is_alive(owner)
    address = _native.resolve(case.library.memory(owner))[0]
    array = case.library.over(address, owner, (3, 2), np.dtype("int32"), case.device)
    if array is None:
        pytest.skip(f"{case.name} has no arrays over other memory")
    del owner
    gc.collect()
    assert alive() and case.library.owns(array) and case.library.to_numpy(array).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert case.library.over(0, None, (0, 2), np.dtype("int32"), case.device).shape == (0, 2)


def test_plain_arrays_have_their_values_in_c_order(case: Case) -> None:
    values = np.arange(12, dtype="int32").reshape(3, 4)
    array = filled(case, values)
    assert case.library.problem_of(array) is None and not case.library.is_wrapper(array) and case.library.device_of(array) == case.device
    same = case.library.plain(array)
    assert _native.resolve(case.library.memory(same, readonly=True)) == _native.resolve(case.library.memory(array))
    if case.library.indexes:
        assert case.library.dtype_name(array.dtype) == "int32"
        assert bytes_of(case, case.library.plain(array.T)) == values.T.tobytes()


def test_an_arena_holds_many_arrays(case: Case) -> None:
    arena = case.library.arena(256 * len(SIZES) + 1024, case.device)
    arena.settle()
    assert arena.settled()
    arena.use()
    content = np.random.default_rng(0).integers(0, 256, 256 * len(SIZES) + 1024, dtype="uint8")
    _native.copy(arena.memory, content)
    dtype = dtype_of(case, "uint8")
    found: dict[str, Any] = {}
    arena.views([(str(at), dtype, (size,), 256 * at, size) for at, size in enumerate(SIZES)], found)
    assert list(found) == [str(at) for at in range(len(SIZES))]
    for at, size in enumerate(SIZES):
        view = found[str(at)]
        assert (bytes(view) if isinstance(view, bytes) else bytes_of(case, view)) == content[256 * at : 256 * at + size].tobytes()


def test_an_empty_arena_has_an_empty_array(case: Case) -> None:
    arena = case.library.arena(0, case.device)
    arena.settle()
    view = only_view(arena, dtype_of(case, "float32"), (0, 3), 0)
    assert len(view) == 0


def test_an_arena_is_held_as_long_as_one_of_its_arrays(case: Case) -> None:
    arena = case.library.arena(512, case.device)
    arena.settle()
    held = arena.held()
    found: dict[str, Any] = {}
    arena.views([("a", dtype_of(case, "uint8"), (256,), 0, 256), ("b", dtype_of(case, "uint8"), (256,), 256, 256)], found)
    del arena
    assert held()
    del found["a"]
    gc.collect()
    assert held()
    found.clear()
    gc.collect()
    assert not held()


def test_arrays_are_made_on_the_current_device(case: Case) -> None:
    if case.device == "host":
        pytest.skip("once PyTorch uses a GPU, its current device is never the host")
    with case.library.using(None, case.device):
        assert case.library.current_device() in (case.device, "host")


def test_work_is_queued_on_the_stream_in_use(case: Case) -> None:
    if not case.device.startswith("cuda:") or not case.library.has_streams:
        pytest.skip("only libraries for GPUs have streams")
    library, device = case.library, case.device
    before = library.handle_of(library.current_stream(device))
    assert library.current_handle(device) == before
    stream = library.new_stream(device)
    with library.using(stream, device):
        assert library.handle_of(library.current_stream(device)) == library.handle_of(stream) == library.current_handle(device) != before
        array = library.empty((4,), library.dtype("float32"), device)
        library.mark(device).synchronize()
    assert library.handle_of(library.current_stream(device)) == before
    for handle in (0, library.handle_of(stream)):
        assert library.handle_of(library.stream_at(handle, device)) == handle
    assert library.owns(array)


class ToyArray:
    """An array of a library that Penstock does not know."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values, self.shape, self.dtype, self.nbytes = values, values.shape, values.dtype, values.nbytes

    def __getitem__(self, index: Any) -> ToyArray:
        return ToyArray(self.values[index])


class ToyArena(NumpyArena):
    def views(self, rows: Iterable[View], found: dict[str, Any]) -> None:
        plain: dict[str, Any] = {}
        super().views(rows, plain)
        found.update({name: ToyArray(values) for name, values in plain.items()})


class Toy(Library):
    name = "Toy"
    word = "toy"

    def owns(self, value: Any) -> bool:
        return isinstance(value, ToyArray)

    def dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def empty(self, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
        return ToyArray(np.empty(shape, dtype))

    def arena(self, nbytes: int, device: str) -> Arena:
        return ToyArena(nbytes)

    def memory(self, array: Any, readonly: bool = False) -> Any:
        return array.values

    def plain(self, array: Any) -> Any:
        return array

    def facts(self, array: Any, *, fill: bool) -> Facts:
        values = array.values
        return Facts(array, None, values.dtype, values.shape, values.strides, values.itemsize, values.nbytes, "host", values.ctypes.data)

    def put(self, target: Any, source: Any) -> None:
        target.values[...] = source.values

    def copied(self, array: Any) -> Any:
        return ToyArray(array.values.copy())


def test_a_new_library_is_one_module_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("penstock._core.arrays.of_toy")
    module.LIBRARY = Toy()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "penstock._core.arrays.of_toy", module)
    monkeypatch.setitem(sys.modules, "toy", ModuleType("toy"))
    monkeypatch.setitem(LIBRARIES, "toy", Known(("toy",), on_host=True, on_gpus=False))
    values = {"a": np.arange(6, dtype="f4").reshape(2, 3), "b": np.arange(4, dtype="i8")}
    path = tmp_path / "m.safetensors"
    penstock.safetensors.numpy.save_file(values, path)
    for found in (
        penstock.load(path, framework="toy"),
        penstock.safetensors.load_file(path, framework="toy"),
        dict(penstock.safetensors.stream(path, framework="toy")),
    ):
        assert {name: type(each) for name, each in found.items()} == {"a": ToyArray, "b": ToyArray}
        assert all((found[name].values == each).all() for name, each in values.items())
    part = penstock.safetensors.load_file(path, framework="toy", slices={"a": (slice(None), slice(1, 3))})["a"]
    assert isinstance(part, ToyArray) and (part.values == values["a"][:, 1:3]).all()
    np.save(tmp_path / "a.npy", values["a"])
    assert (penstock.load(tmp_path / "a.npy", framework="toy").values == values["a"]).all()
    targets = {name: ToyArray(np.zeros_like(each)) for name, each in values.items()}
    penstock.safetensors.load_into(path, targets)
    assert all((targets[name].values == each).all() for name, each in values.items())
    with penstock.weights.serve_weights(targets) as server:
        there = {name: ToyArray(np.zeros_like(each)) for name, each in values.items()}
        penstock.weights.load_weights(server.url, there, timeout=30)
    assert all((there[name].values == each).all() for name, each in values.items())
    penstock.safetensors.save_file(targets, tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == path.read_bytes()
    with pytest.raises(penstock.Error, match="Device cuda:0 is not supported for framework toy"):
        penstock.safetensors.load_file(path, "cuda:0", "toy")


def test_a_library_is_imported_only_when_it_is_used() -> None:
    code = "import sys; from penstock._core import arrays; arrays.library_of(b''); print(sorted({'torch', 'numpy', 'cupy'} & set(sys.modules)))"
    import subprocess

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
