"""Checkpoints and models of many tensors on servers: the tensors are requested together, not one after another, and reach their targets."""

from __future__ import annotations

import json
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import torch.distributed.checkpoint as dcp  # noqa: E402

import penstock  # noqa: E402
from penstock._core.pieces import Piece, move_pieces  # noqa: E402
from penstock.safetensors.torch import load_file, save_file  # noqa: E402
import penstock.torch  # noqa: E402
from penstock.torch import checkpoint  # noqa: E402

from . import range_server  # noqa: E402
from .torch_states import quiet  # noqa: E402, F401

MIB = 1 << 20
WRITERS = [dcp.FileSystemWriter, checkpoint.FileSystemWriter]
needs_safetensors = pytest.mark.skipif(not hasattr(checkpoint, "HuggingFaceStorageReader"), reason="this PyTorch has no HuggingFaceStorageReader")


class Together(range_server.Gate):
    """Once armed, answers no GET before this many wait for their answers."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._lock = threading.Lock()
        self._opened.set()

    def arm(self, count: int) -> None:
        self._count = count
        self._opened.clear() if count else self._opened.set()

    def pass_through(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count <= 0:
                self._opened.set()
        self._opened.wait(60)


class Server:
    def __init__(self, folder: Path, url: str, asked: list[Any], gate: Together) -> None:
        self.folder, self.url, self.asked, self.gate = folder, url, asked, gate

    def place(self, scheme: str, name: str) -> tuple[str, dict[str, Any] | None]:
        """The URL of a folder in the bucket, and the options to reach it."""
        if scheme == "http":
            return f"{self.url}/bucket/{name}", None
        return f"s3://bucket/{name}", {"endpoint": self.url, "anonymous": True, "region": "us-east-1", "addressing_style": "path"}

    def requests_for(self, ending: str) -> int:
        return sum(path.partition("?")[0].endswith(ending) for path, _ in self.asked)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    gate = Together()
    (tmp_path / "bucket").mkdir()
    with range_server.serving(tmp_path, gate) as (url, asked):
        yield Server(tmp_path / "bucket", url, asked, gate)


def state(count: int = 200) -> dict[str, Any]:
    found: dict[str, Any] = {f"layer.{number}": torch.randn(1000 + number) for number in range(count)}
    found |= {f"objects.{number}": {"step": number, "name": f"group {number}"} for number in range(20)}
    found |= {"large": torch.randn(3 * MIB // 4 + 1), "scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "bfloat16": torch.randn(33).bfloat16()}
    return found | {"transposed": torch.randn(7, 9).t(), "other type": torch.arange(5_000)}


def zeros_of(obj: Any) -> Any:
    if isinstance(obj, torch.Tensor):
        return torch.zeros_like(obj, memory_format=torch.contiguous_format, dtype=torch.float64 if obj.dtype == torch.int64 else None)
    return {name: zeros_of(each) for name, each in obj.items()} if isinstance(obj, dict) else None if isinstance(obj, str) else 0


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(found, wanted.to(found.dtype))
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert_same(found[name], wanted[name])
    else:
        assert found == wanted


@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize("writer", WRITERS)
def test_items_of_one_file_are_requested_together(server: Server, scheme: str, writer: Any) -> None:
    wanted = state()
    dcp.save(wanted, storage_writer=writer(server.folder / "saved"))
    found = zeros_of(wanted)
    url, options = server.place(scheme, "saved")
    dcp.load(found, storage_reader=checkpoint.FileSystemReader(url, storage_options=options))
    assert_same(found, wanted)
    (file,) = (server.folder / "saved").glob("*.distcp")
    assert server.requests_for(".metadata") == 2
    assert server.requests_for(".distcp") <= 8 + file.stat().st_size // MIB  # for 226 items; one piece of a request has at most 1 MiB


@pytest.mark.parametrize("writer", WRITERS)
def test_files_of_a_checkpoint_are_requested_at_once(server: Server, writer: Any) -> None:
    wanted = {f"layer.{number}": torch.randn(100) for number in range(12)}
    dcp.save(wanted, storage_writer=writer(server.folder / "saved", single_file_per_rank=False))
    gate = server.gate

    class Reader(checkpoint.FileSystemReader):  # type: ignore[misc]
        def read_data(self, plan: Any, planner: Any) -> Any:
            gate.arm(6)  # one after another, no request would be answered
            return super().read_data(plan, planner)

    found = zeros_of(wanted)
    dcp.load(found, storage_reader=Reader(server.place("http", "saved")[0]))
    assert_same(found, wanted)
    assert server.requests_for(".distcp") == 2 * 12  # each file is opened, and read with one request


def test_items_that_pytorch_reads_take_one_request_each(server: Server) -> None:
    wanted = {"conjugate": torch.randn(3, dtype=torch.complex64).conj(), "plain": torch.arange(3.0)}
    dcp.save(wanted, storage_writer=dcp.FileSystemWriter(server.folder / "saved"))
    found = {"conjugate": torch.zeros(3, dtype=torch.complex64), "plain": torch.zeros(3)}
    dcp.load(found, storage_reader=checkpoint.FileSystemReader(server.place("http", "saved")[0]))
    assert torch.equal(found["conjugate"], wanted["conjugate"].resolve_conj()) and torch.equal(found["plain"], wanted["plain"])
    assert server.requests_for(".distcp") == 4  # two opened files


@pytest.mark.parametrize("writer", WRITERS)
def test_columns_are_taken_from_few_requests(server: Server, writer: Any) -> None:
    from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

    whole = torch.arange(3000 * 300, dtype=torch.float32).reshape(3000, 300)
    dcp.save({"a": whole}, storage_writer=writer(server.folder / "saved"))
    reader = checkpoint.FileSystemReader(server.place("http", "saved")[0])
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    (index,) = metadata.storage_data
    target = torch.zeros(3000, 150)
    planner = dcp.DefaultLoadPlanner()
    planner.set_up_planner({"a": target}, metadata, True)
    item = ReadItem(LoadItemType.TENSOR, index, torch.Size([0, 0]), index, torch.Size([0, 150]), target.size())
    reader.read_data(LoadPlan([item]), planner).wait()
    assert torch.equal(target, whole[:, 150:])
    assert server.requests_for(".distcp") <= 8  # for 3000 runs of 600 bytes in 3.6 MB


def shorten(file: Path) -> None:
    os.truncate(file, 60_000)


@pytest.mark.parametrize(("fault", "message"), [(shorten, "truncated"), (os.unlink, "404")])
def test_errors_name_the_object(server: Server, fault: Callable[[Path], None], message: str) -> None:
    dcp.save({"first": torch.arange(5_000), "second": torch.arange(5_000)}, storage_writer=checkpoint.FileSystemWriter(server.folder / "saved"))
    (file,) = (server.folder / "saved").glob("*.distcp")
    fault(file)
    url, _ = server.place("http", "saved")
    found = {"first": torch.zeros(5_000, dtype=torch.int64), "second": torch.zeros(5_000, dtype=torch.int64)}
    with pytest.raises(dcp.CheckpointException, match=f"{url}/{file.name}.*{message}"):
        dcp.load(found, storage_reader=checkpoint.FileSystemReader(url))


# --- pieces


def pieces_of(memory: bytearray, count: int, size: int, gap: int) -> list[Any]:
    """Pieces whose places in memory are in the opposite order."""
    address = penstock._native.resolve(memory, True)[0]
    return [Piece(f"piece {each}", each * (size + gap), size, address + (count - 1 - each) * size, memory) for each in range(count)]


@pytest.mark.parametrize(("size", "gap", "most_requests"), [(100, 0, 1), (100, 1000, 1), (40_000, 60_000, 12), (100, 100_000, 20), (MIB, 0, 21)])
def test_neighbouring_pieces_are_requested_together(server: Server, size: int, gap: int, most_requests: int) -> None:
    count = 20 if size < MIB else 3
    content = numpy.random.default_rng(1).bytes(count * (size + gap))
    (server.folder / "data").write_bytes(content)
    memory = bytearray(count * size)
    pieces = pieces_of(memory, count, size, gap)
    reports: list[tuple[int, int]] = []
    with penstock.open(f"{server.url}/bucket/data") as file:
        server.asked.clear()
        move_pieces(file, pieces, label="data", progress=lambda done, total: reports.append((done, total)))
    assert bytes(memory) == b"".join(content[each.offset : each.offset + size] for each in reversed(pieces))
    assert len(server.asked) <= most_requests
    assert reports[-1] == (count * size, count * size)


def test_an_object_that_changes_is_an_error_that_names_the_piece(server: Server) -> None:
    (server.folder / "data").write_bytes(bytes(50_000))
    memory = bytearray(2000)
    with penstock.open(f"{server.url}/bucket/data") as file:
        (server.folder / "data").write_bytes(bytes(50_001))
        with pytest.raises(penstock.Error, match="^data: piece 0: .*replaced"):
            move_pieces(file, pieces_of(memory, 20, 100, 0), label="data")


def test_an_exception_of_the_caller_stops_the_requests(server: Server) -> None:
    (server.folder / "data").write_bytes(bytes(50_000))
    server.gate.arm(2)
    memory = bytearray(2000)

    def interrupt() -> None:
        server.gate.arm(0)
        raise KeyboardInterrupt

    with penstock.open(f"{server.url}/bucket/data") as file:
        with pytest.raises(KeyboardInterrupt):
            move_pieces(file, pieces_of(memory, 20, 100, 0), label="data", meanwhile=interrupt)
        assert not penstock.requests()


# --- torch.save checkpoints


def test_storages_of_a_checkpoint_are_requested_together(server: Server) -> None:
    wanted = {f"layer.{number}": torch.randn(3000 + number) for number in range(300)} | {"large": torch.randn(MIB)}
    file = server.folder / "a.pt"
    torch.save(wanted, file)
    reports: list[tuple[int, int]] = []
    found = penstock.torch.load(f"{server.url}/bucket/a.pt", progress=lambda done, total: reports.append((done, total)))
    assert_same(found, wanted)
    assert len(server.asked) <= 8 + file.stat().st_size // MIB  # for 301 storages
    total = sum(each.nbytes for each in wanted.values())
    assert reports == sorted(reports) and reports[-1] == (total, total) and {each for _, each in reports} == {total}


# --- safetensors files


def write_model(folder: Path, count: int) -> dict[str, Any]:
    """Four shards with an index."""
    tensors = {f"layer.{number}": torch.randn(500 + number) for number in range(count)}
    weights = {}
    folder.mkdir()
    for shard in range(4):
        mine = {name: tensors[name] for name in list(tensors)[shard::4]}
        save_file(mine, folder / f"model-{shard + 1}-of-4.safetensors")
        weights.update(dict.fromkeys(mine, f"model-{shard + 1}-of-4.safetensors"))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    return tensors


def with_dcp(url: str, options: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    found = zeros_of(wanted)
    dcp.load(found, storage_reader=checkpoint.HuggingFaceStorageReader(url, storage_options=options))
    return found


def with_dcp_and_another_type(url: str, options: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    found = {name: torch.zeros(each.shape, dtype=torch.float64) for name, each in wanted.items()}
    dcp.load(found, storage_reader=checkpoint.HuggingFaceStorageReader(url, storage_options=options))
    return found


def with_quantized(url: str, options: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    found = zeros_of(wanted)
    dcp.load(found, storage_reader=checkpoint.QuantizedHuggingFaceStorageReader(url, storage_options=options))
    return found


def with_load_file(url: str, options: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = load_file(url, storage_options=options)
    return found


@needs_safetensors
@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize("way", [with_dcp, with_dcp_and_another_type, with_quantized, with_load_file])
def test_tensors_of_safetensors_files_are_requested_together(server: Server, scheme: str, way: Any) -> None:
    wanted = write_model(server.folder / "model", 200)
    assert_same(way(*server.place(scheme, "model"), wanted), wanted)
    assert server.requests_for(".safetensors") <= 4 * 5  # 200 tensors in four files


@needs_safetensors
def test_a_folder_that_cannot_be_listed_needs_an_index(server: Server) -> None:
    write_model(server.folder / "model", 4)
    (server.folder / "model" / "model.safetensors.index.json").unlink()
    url, _ = server.place("http", "model")
    with pytest.raises(dcp.CheckpointException, match=url):
        dcp.load({}, storage_reader=checkpoint.HuggingFaceStorageReader(url))
    s3, options = server.place("s3", "model")
    found = {"layer.3": torch.zeros(503)}
    dcp.load(found, storage_reader=checkpoint.HuggingFaceStorageReader(s3, storage_options=options))
    assert found["layer.3"].any()


# --- .npz archives


def written(path: Path, save: Any, arrays: dict[str, Any]) -> Path:
    save(path, **arrays)
    return path


def with_comment(path: Path, **arrays: Any) -> None:
    numpy.savez(path, **arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"a comment " * 20


def with_others(path: Path, **arrays: Any) -> None:
    numpy.savez(path, **arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("read me.txt", "not an array")


ARCHIVES = [numpy.savez, numpy.savez_compressed, with_comment, with_others]


@pytest.mark.filterwarnings("ignore:skipped")
@pytest.mark.parametrize("save", ARCHIVES)
@pytest.mark.parametrize(("count", "size"), [(1, 10), (1, MIB // 2), (3, MIB), (300, 500), (1500, 10)])
def test_members_of_an_archive_are_requested_together(server: Server, save: Any, count: int, size: int) -> None:
    wanted = {f"array {number}": numpy.random.default_rng(number).random(size) for number in range(count)}
    file = written(server.folder / "a.npz", save, wanted)
    found = penstock.load(f"{server.url}/bucket/a.npz")
    assert list(found) == list(wanted) and all(numpy.array_equal(found[name], wanted[name]) for name in wanted)
    directory_is_longer = 3 if count == 1500 else 0  # than what is read from the end
    assert len(server.asked) <= 3 + directory_is_longer + count * (size >= MIB // 2) + 2 * (-(-file.stat().st_size // MIB))


def test_a_local_archive_and_one_on_a_server_have_the_same_errors(server: Server) -> None:
    numpy.savez(server.folder / "a.npz", a=numpy.arange(5000), b=numpy.arange(3))
    content = (server.folder / "a.npz").read_bytes()
    for name, changed in [("cut", content[:-30]), ("no header", b"PK\3\4" + bytes(26) + content[30:]), ("no npy", content.replace(b"\x93NUMPY", b"\x93NUMBY"))]:
        (server.folder / f"{name}.npz").write_bytes(changed)
        problems = []
        for place in (str(server.folder / f"{name}.npz"), f"{server.url}/bucket/{name.replace(' ', '%20')}.npz"):
            with pytest.raises(penstock.Error) as caught:
                penstock.load(place)
            problems.append(str(caught.value).replace(place, "PLACE"))
        assert problems[0] == problems[1]


def test_content_decides_also_for_a_name_that_ends_in_npz(server: Server) -> None:
    torch.save({"a": torch.arange(3)}, server.folder / "checkpoint.npz")
    numpy.save(server.folder / "array", numpy.arange(3))
    (server.folder / "array.npy").rename(server.folder / "array.npz")
    assert torch.equal(penstock.load(f"{server.url}/bucket/checkpoint.npz")["a"], torch.arange(3))
    assert penstock.load(f"{server.url}/bucket/array.npz").tolist() == [0, 1, 2]
