"""Penstock as a copier of the fastsafetensors library, with the library itself from its wheel: by install(), by name, and under `penstock run`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
library = pytest.importorskip("safetensors.torch", reason="the safetensors library is not installed")
fastsafetensors = pytest.importorskip("fastsafetensors", reason="fastsafetensors is not installed")
tqdm = pytest.importorskip("tqdm", reason="tqdm is not installed")
pytest.importorskip("fastsafetensors.copier.registry", reason="this fastsafetensors is older than 0.3, which has a registry of copiers")

from fastsafetensors import ParallelLoader, SafeTensorsFileLoader, SingleGroup, fastsafe_open  # noqa: E402
from fastsafetensors.copier import registry  # noqa: E402
from fastsafetensors.st_types import Device, DeviceType  # noqa: E402

import penstock  # noqa: E402
from penstock import fastsafetensors as door  # noqa: E402
from penstock.__main__ import command  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import engines_files  # noqa: E402

from .torch_ranks import run_ranks  # noqa: E402

tqdm.tqdm.monitor_interval = 0  # no thread of its own

MIB = 1 << 20
HAS_PARTS = hasattr(registry, "_copier_class_registry")  # 0.4: filters and chunks
HAS_OWNERS = hasattr(fastsafetensors, "live_allocation_count")  # 0.5: tensors own the memory, and are used while others are read
needs_parts = pytest.mark.skipif(not HAS_PARTS, reason="fastsafetensors before 0.4 has no filters and chunks")
needs_owners = pytest.mark.skipif(not HAS_OWNERS, reason="fastsafetensors before 0.5 waits for whole files")

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e5m2, torch.float8_e4m3fn, *([torch.float8_e8m0fnu] if HAS_PARTS else [])),
]


@pytest.fixture
def installed() -> Iterator[Any]:
    with door.install() as found:
        yield found


def equal(left: Any, right: Any) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return left.numel() == 0 or torch.equal(left.contiguous().reshape(-1).view(torch.uint8), right.contiguous().reshape(-1).view(torch.uint8))


def of_dtype(dtype: Any, *shape: int) -> Any:
    count = torch.Size(shape).numel() * dtype.itemsize
    numbers = torch.arange(count) % (2 if dtype == torch.bool else 126)  # 126: no NaN of an 8-bit type
    return numbers.to(torch.uint8).view(dtype).reshape(shape)


def write_file(path: Path, tensors: dict[str, Any], *, padding: int = 0, tail: bytes = b"") -> None:
    """A safetensors file with spaces after the header, so that its tensors may be unaligned."""
    names = {value: key for key, value in {"F8_E5M2": torch.float8_e5m2, "F8_E4M3": torch.float8_e4m3fn, "F32": torch.float32, "U8": torch.uint8}.items()}
    header, end = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode() + b" " * padding
    content = b"".join(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors.values() if tensor.numel())
    path.write_bytes(len(text).to_bytes(8, "little") + text + content + tail)


def loaded(files: list[Path] | Path, **options: Any) -> dict[str, Any]:
    names = [str(each) for each in files] if isinstance(files, list) else str(files)
    with fastsafe_open(names, **options) as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}


def streamed(files: list[Path], **options: Any) -> dict[str, Any]:
    loader = ParallelLoader(SingleGroup(), [str(each) for each in files], use_tqdm_on_load=False, device="cpu", **options)
    with contextlib.closing(loader), contextlib.closing(loader.iterate_weights()) as weights:
        return {name: tensor.clone() for name, tensor in weights}


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not equal(found[name], wanted[name])] == []


def open_files(folder: Path) -> list[str]:
    names = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    return [name for name in names if name.startswith(str(folder))]


def mem_used() -> int:
    from fastsafetensors.frameworks import get_framework_op

    return int(get_framework_op("pytorch").get_mem_used())


def read_bytes() -> int:
    return door.explain().counts.get("bytes", 0)


WAYS: list[Callable[[list[Path]], dict[str, Any]]] = [loaded, lambda files: loaded(files, nogds=True), streamed, lambda files: streamed(files, queue_size=2)]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("way", WAYS)
def test_all_types_and_shapes_are_what_was_saved(tmp_path: Path, way: Any) -> None:
    wanted = {str(each): of_dtype(each, 33, 7) for each in DTYPES} | {"scalar": torch.tensor(2.5), "large": torch.arange(10 * MIB)}
    if HAS_PARTS:
        wanted["empty"] = torch.empty(0, 3)
    library.save_file(wanted, tmp_path / "a.safetensors")
    before = read_bytes()
    assert_same(way([tmp_path / "a.safetensors"]), wanted)
    assert read_bytes() - before == sum(each.nbytes for each in wanted.values())


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("padding", [0, 1, 3, 8, 4091])
@pytest.mark.parametrize("tail", [b"", b"\0" * 5])
def test_files_in_which_nothing_is_aligned(tmp_path: Path, padding: int, tail: bytes) -> None:
    wanted = {"bytes": of_dtype(torch.uint8, 3), "numbers": torch.randn(1001), "eights": of_dtype(torch.float8_e4m3fn, 7), "more": torch.randn(5, 3)}
    if not HAS_PARTS:
        wanted, tail = {"numbers": torch.randn(1001), "more": torch.randn(5, 3)}, b""
    write_file(tmp_path / "a.safetensors", wanted, padding=padding, tail=tail)
    assert_same(loaded(tmp_path / "a.safetensors"), wanted)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("way", WAYS)
def test_many_files_some_without_tensors(tmp_path: Path, way: Any) -> None:
    tensors = {f"layer.{number}": torch.randn(100 + number, 30) for number in range(20)}
    for number in range(5):
        library.save_file({name: tensors[name] for name in list(tensors)[number::5]}, tmp_path / f"{number}.safetensors")
    write_file(tmp_path / "none.safetensors", {})
    assert_same(way([*sorted(tmp_path.glob("[0-9]*")), tmp_path / "none.safetensors"]), tensors)


@pytest.mark.usefixtures("installed")
def test_tensors_are_converted_to_the_requested_dtype(tmp_path: Path) -> None:
    library.save_file({"a": torch.arange(100.0)}, tmp_path / "a.safetensors")
    from fastsafetensors.st_types import DType

    loader = SafeTensorsFileLoader(SingleGroup(), "cpu")
    loader.add_filenames({0: [str(tmp_path / "a.safetensors")]})
    buffers = loader.copy_files_to_device(dtype=DType.BF16)
    assert equal(buffers.get_tensor("a"), torch.arange(100.0).bfloat16())
    buffers.close()
    loader.close()


@pytest.mark.usefixtures("installed")
def test_paddle(tmp_path: Path) -> None:
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed")
    library.save_file({"a": torch.arange(30.0).reshape(5, 6), "b": torch.ones(4).bfloat16()}, tmp_path / "a.safetensors")
    found = loaded(tmp_path / "a.safetensors", framework="paddle")
    assert found["a"].numpy().tolist() == torch.arange(30.0).reshape(5, 6).tolist() and found["b"].astype("float32").sum() == 4


IMPORTS = "import torch, torch.distributed as dist, fastsafetensors, penstock.fastsafetensors as door"
RANK_PROGRAM = """
door.install()
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
files = {each: [f"{folder}/{number}.safetensors" for number in range(each, 4, world)] for each in range(world)}
with fastsafetensors.fastsafe_open(files, pg=dist.group.WORLD) as file:
    whole = {f"layer.{number}": file.fb.get_tensor(f"layer.{number}") for number in range(8)}
with fastsafetensors.fastsafe_open(files, pg=dist.group.WORLD) as file:
    parts = [file.fb.get_sharded(f"layer.{number}", 0) for number in range(8)]
names = [name for each in range(4) for name in [f"{folder}/{each}.safetensors"]]
loader = fastsafetensors.ParallelLoader(dist.group.WORLD, names, use_tqdm_on_load=False, device="cpu")
streamed = {name: tensor.clone() for name, tensor in loader.iterate_weights()}
loader.close()
for number in range(8):
    wanted = torch.full((6, 50), float(number))
    assert torch.equal(whole[f"layer.{number}"], wanted) and torch.equal(streamed[f"layer.{number}"], wanted)
    assert torch.equal(parts[number], wanted[rank * 3 : rank * 3 + 3])
print(door.explain().counts["files"])
dist.destroy_process_group()
"""


def test_ranks_of_a_group_read_each_file_once_and_share_it(tmp_path: Path) -> None:
    for number in range(4):
        library.save_file({f"layer.{each}": torch.full((6, 50), float(each)) for each in (2 * number, 2 * number + 1)}, tmp_path / f"{number}.safetensors")
    ranks = run_ranks(IMPORTS, RANK_PROGRAM, 2, tmp_path)
    assert [(each.returncode, each.out.strip()) for each in ranks] == [(0, "6"), (0, "6")], ranks  # two files of four, three times


# --- parts of files


@needs_parts
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("limits", [{}, {"max_batch_bytes": 60_000}, {"device_memory_budget": 2 * MIB}, {"max_batch_bytes": 60_000, "use_chunk_budget_as_allocation_size": True}])
def test_filters_and_chunks_read_only_what_they_select(tmp_path: Path, limits: dict[str, Any]) -> None:
    tensors = {f"layer.{number}": torch.randn(50, 50) for number in range(40)}
    library.save_file(tensors, tmp_path / "a.safetensors")
    before = read_bytes()
    found = streamed([tmp_path / "a.safetensors"], tensor_filter=lambda name: name.endswith("3"), **limits)
    assert_same(found, {name: each for name, each in tensors.items() if name.endswith("3")})
    assert read_bytes() - before == 4 * 10_000


@needs_parts
@pytest.mark.usefixtures("installed")
def test_offsets_beyond_4_gib(tmp_path: Path) -> None:
    first, last = 5 << 30, torch.arange(1000.0)
    header = {"hole": {"dtype": "U8", "shape": [first], "data_offsets": [0, first]}}
    header["last"] = {"dtype": "F32", "shape": [1000], "data_offsets": [first, first + 4000]}
    text = json.dumps(header).encode()
    with open(tmp_path / "a.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.seek(first, os.SEEK_CUR)
        file.write(last.numpy().tobytes())
    assert_same(streamed([tmp_path / "a.safetensors"], tensor_filter=lambda name: name == "last", max_batch_bytes=MIB), {"last": last})


@needs_owners
@pytest.mark.usefixtures("installed")
def test_a_tensor_that_was_not_selected_is_refused(tmp_path: Path) -> None:
    library.save_file({"a": torch.ones(30_000), "b": torch.ones(3)}, tmp_path / "a.safetensors")
    loader = SafeTensorsFileLoader(SingleGroup(), "cpu")
    loader.add_filenames({0: [str(tmp_path / "a.safetensors")]})
    copier = loader.copier_constructor(next(iter(loader.meta.values()))[0], loader.device, loader.framework)
    copier.set_byte_ranges(copier.metadata.select_byte_ranges(lambda name: name == "b"))
    memory = copier.submit_io(True, 1 << 30)
    copier.wait_tensor("b")
    with pytest.raises(ValueError, match=r'a\.safetensors: tensor "a" was not selected'):
        copier.wait_tensor("a")
    copier.finish_io()
    loader.framework.free_tensor_memory(memory, loader.device)


# --- ends and errors


@needs_owners
@pytest.mark.usefixtures("installed")
def test_closing_early_frees_memory_and_files_and_keeps_what_was_taken(tmp_path: Path) -> None:
    tensors = {f"layer.{number}": torch.full((MIB,), float(number)) for number in range(40)}
    for number in range(4):
        library.save_file({name: tensors[name] for name in list(tensors)[number::4]}, tmp_path / f"{number}.safetensors")
    before = fastsafetensors.live_allocation_count()
    loader = ParallelLoader(None, [str(each) for each in sorted(tmp_path.iterdir())], use_tqdm_on_load=False, device="cpu", queue_size=1)
    with contextlib.closing(loader), contextlib.closing(loader.iterate_weights()) as weights:
        name, tensor = next(weights)
    assert equal(tensor, tensors[name])
    assert fastsafetensors.live_allocation_count() == before
    assert open_files(tmp_path) == []


def files_loader(path: Path) -> Any:
    loader = SafeTensorsFileLoader(SingleGroup(), "cpu")
    loader.add_filenames({0: [str(path)]})
    return loader


def shorten(path: Path) -> None:
    os.truncate(path, 100_000)


FAULTS = [(shorten, penstock.ShortRead, r'b\.safetensors.*ends at 100000.*"b\.second"'), (os.unlink, penstock.NotFound, r"b\.safetensors")]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("options", [{}, pytest.param({"allow_inflight": True}, marks=needs_owners)])
@pytest.mark.parametrize(("fault", "error", "message"), FAULTS)
def test_errors_name_the_file_and_the_tensor(tmp_path: Path, fault: Any, error: Any, message: str, options: dict[str, bool]) -> None:
    for name in ("a", "b"):
        library.save_file({f"{name}.first": torch.ones(10), f"{name}.second": torch.ones(50_000)}, tmp_path / f"{name}.safetensors")
    memory = open_files(tmp_path), mem_used()
    loader = SafeTensorsFileLoader(SingleGroup(), "cpu")
    loader.add_filenames({0: [str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")]})
    fault(tmp_path / "b.safetensors")
    with pytest.raises(error, match=message):
        buffers = loader.copy_files_to_device(**options)
        try:
            buffers.get_tensor("b.second")
        finally:
            buffers.close()
    loader.close()
    if HAS_OWNERS:  # before 0.5, the library neither frees its memory nor closes the other copiers
        assert (open_files(tmp_path), mem_used()) == memory


# --- memory of a device


class _HostDevice:
    """A framework that allocates memory on the embedded device, and records its content when it waits for the stream."""

    def __init__(self, order: str) -> None:
        self.seen: list[bytes] = []
        self.freed = 0
        setattr(self, order, lambda device: self.seen.append(self.memory.to_host()))

    def alloc_tensor_memory(self, nbytes: int, device: Any) -> Any:
        self.memory = penstock.device("host:0").empty(max(nbytes, 1))
        self.memory.copy_from(b"\xaa" * max(nbytes, 1))
        return SimpleNamespace(get_base_address=lambda: self.memory.ptr, get_length=lambda: nbytes)

    def free_tensor_memory(self, memory: Any, device: Any) -> None:
        self.freed += 1


def copier_to_device(path: Path, framework: Any) -> Any:
    metadata = next(iter(files_loader(path).meta.values()))[0]
    stand_in = SimpleNamespace(src=metadata.src, header_length=metadata.header_length, size_bytes=metadata.size_bytes, tensors=metadata.tensors)
    stand_in.get_tensors = lambda memory, device, first, **options: {"first": first}
    return door.PenstockCopier(stand_in, Device(DeviceType.CUDA, 0), framework, door.Flow())


@pytest.mark.parametrize("order", ["synchronize_current_stream", "synchronize"])  # in 0.5, and earlier
def test_device_memory_is_written_directly_and_after_the_current_stream(tmp_path: Path, order: str) -> None:
    library.save_file({"a": torch.arange(40 * MIB, dtype=torch.uint8)}, tmp_path / "a.safetensors")
    framework = _HostDevice(order)
    copier = copier_to_device(tmp_path / "a.safetensors", framework)
    memory = copier.submit_io(True, 1 << 30)
    assert copier.wait_io(memory) == {"first": copier.metadata.header_length}
    assert framework.seen == [b"\xaa" * (40 * MIB)]
    assert framework.memory.to_host() == (tmp_path / "a.safetensors").read_bytes()[copier.metadata.header_length :]


def test_memory_is_freed_if_the_stream_fails(tmp_path: Path) -> None:
    def fail(device: Any) -> None:
        raise RuntimeError("the stream failed")

    library.save_file({"a": torch.ones(3)}, tmp_path / "a.safetensors")
    framework = _HostDevice("unused")
    framework.synchronize = fail  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="the stream failed"):
        copier_to_device(tmp_path / "a.safetensors", framework).submit_io(True, 1 << 30)
    assert framework.freed == 1
    assert open_files(tmp_path) == []


@pytest.mark.skipif(penstock.cuda_status() is None, reason="needs a machine without a GPU")
def test_without_a_usable_gpu_the_librarys_own_copier_reads() -> None:
    calls = []
    before = registry._copier_registry["gds"]
    registry._copier_registry["gds"] = lambda device, **options: calls.append((device, options)) or "theirs"
    try:
        with door.install() as installed:
            assert registry.create_copier_constructor("gds", Device(DeviceType.CUDA, 0), max_threads=3) == "theirs"
            assert "loaders that use the library's own copier" in str(installed)
            with pytest.raises(penstock.Error, match=r"the copier penstock cannot read into cuda:0: "):
                registry.create_copier_constructor("penstock", Device(DeviceType.CUDA, 0))
    finally:
        registry._copier_registry["gds"] = before
    assert calls == [(Device(DeviceType.CUDA, 0), {"max_threads": 3})]


@pytest.mark.parametrize(("name", "count"), [("pytorch", 0), ("paddle", 1)])
def test_cuda_is_loaded_for_frameworks_whose_memory_the_library_allocates(monkeypatch: pytest.MonkeyPatch, name: str, count: int) -> None:
    loaded: list[Any] = []
    theirs = door.nogds.load_library_func
    monkeypatch.setattr(door.nogds, "load_library_func", (lambda framework=None: loaded.append(framework)) if HAS_OWNERS else lambda: loaded.append(None))
    monkeypatch.setattr(door._native, "cuda_status", lambda: None)
    construct = door._constructor(theirs, Device(DeviceType.GPU, 0))
    framework = SimpleNamespace(get_name=lambda: name)
    assert construct(SimpleNamespace(header_length=8), Device(DeviceType.GPU, 0), framework)._device.index == 0
    assert loaded == [framework if HAS_OWNERS else None] * count


# --- registration


def test_uninstall_restores_the_librarys_copiers() -> None:
    before = dict(registry._copier_registry), dict(door._classes())
    assert "fastsafetensors library itself is in use" in str(door.explain())
    with door.install() as installed:
        door.install()
        assert door.explain().replaced == ["the copier gds", "the copier nogds", "the copier unified"]
        assert f"Penstock replaces the fastsafetensors library {fastsafetensors.__version__}" in repr(installed)
        if HAS_PARTS:
            assert registry.get_copier_class("nogds") is door.PenstockCopier
    after = dict(registry._copier_registry), dict(door._classes())
    for table in after:
        table.pop("penstock", None)
    for table in before:
        table.pop("penstock", None)
    assert after == before


def test_a_loader_may_name_the_copier(tmp_path: Path) -> None:
    from fastsafetensors.loader import BaseSafeTensorsFileLoader

    library.save_file({"a": torch.arange(9)}, tmp_path / "a.safetensors")
    door.register()
    before = read_bytes()
    loader = BaseSafeTensorsFileLoader(SingleGroup(), Device(), "penstock")
    loader.add_filenames({0: [str(tmp_path / "a.safetensors")]})
    buffers = loader.copy_files_to_device()
    assert torch.equal(buffers.get_tensor("a"), torch.arange(9)) and read_bytes() - before == 72
    buffers.close()
    loader.close()


PROGRAM = """
import fastsafetensors, sys
with fastsafetensors.fastsafe_open(sys.argv[1], nogds=True) as file:
    print(file.get_tensor("a").tolist())
"""


def run(*program: str, **variables: str) -> Any:
    path = os.pathsep.join(each for each in sys.path if each)
    environment = os.environ | {"PYTHONPATH": path, "PENSTOCK_LOG": "summary"} | variables
    return subprocess.run([command(), "run", "--", sys.executable, "-c", *program], capture_output=True, text=True, timeout=120, env=environment)


def test_penstock_run_serves_an_unchanged_program(tmp_path: Path) -> None:
    library.save_file({"a": torch.arange(3)}, tmp_path / "a.safetensors")
    ended = run(PROGRAM, str(tmp_path / "a.safetensors"))
    assert (ended.returncode, ended.stdout) == (0, "[0, 1, 2]\n"), ended.stderr
    assert f"penstock: replaced fastsafetensors {fastsafetensors.__version__}; bytes: 24, files: 1" in ended.stderr


def test_an_environment_variable_disables_the_replacement() -> None:
    ended = run("import fastsafetensors, sys; print('penstock.fastsafetensors' in sys.modules)", PENSTOCK_FASTSAFETENSORS="0")
    assert ended.stdout == "False\n", ended.stderr


# --- engines


def test_vllms_load_format_reads_with_penstock(tmp_path: Path, installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {f"layer.{number}": torch.randn(64, 64) for number in range(12)}
    for number in range(3):
        library.save_file({name: tensors[name] for name in list(tensors)[number::3]}, tmp_path / f"model-{number}.safetensors")
    utils = "vllm.model_executor.model_loader.weight_utils"
    settings = SimpleNamespace(VLLM_USE_MODELSCOPE=False, VLLM_FASTSAFETENSORS_QUEUE_SIZE=0)
    with engines_files.modules_of("vllm", [utils], {"vllm": {"envs": settings}, "vllm.envs": vars(settings)}) as found:
        from fastsafetensors import loader, parallel_loader

        class OnCpu(SafeTensorsFileLoader):  # type: ignore[misc]  # vLLM asks for the current GPU
            def __init__(self, pg: Any, device: str, **options: Any) -> None:
                super().__init__(pg, "cpu", **options)

        monkeypatch.setattr(parallel_loader, "SafeTensorsFileLoader", OnCpu)
        monkeypatch.setattr(loader, "SafeTensorsFileLoader", OnCpu)
        found[utils].current_platform.current_device = lambda: 0
        before = read_bytes()
        weights = found[utils].fastsafetensors_weights_iterator([str(each) for each in sorted(tmp_path.iterdir())], False)
        assert_same({name: tensor.clone() for name, tensor in weights}, tensors)
        assert read_bytes() - before == sum(each.nbytes for each in tensors.values())
