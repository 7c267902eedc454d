"""Several ranks of a node load one model from a mount: the node reads the bytes that they need once, and fetches them before they are requested."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
library = pytest.importorskip("safetensors.torch", reason="the safetensors library is not installed")

import safetensors

import penstock
from penstock._patch import safe_open as _door_open
from penstock._patch import tensor_in_file as _in_file
from penstock._tensors import node_ranks as _node
from penstock._tensors import sources
from penstock._tensors.frameworks import framework_on
from penstock._tensors.node_ranks import ModelPlan, NodePlan, NodeRanks, NodeReads, node_ranks, ranges_of_node
from penstock._tensors.sharded import Rank, planned
from penstock._tensors.slices import Part, part_of, picks_of, shard_of
from penstock._tensors.sources import Source, Sources
from penstock.safetensors import install, load_rank, load_sharded

PAGE = os.sysconf("SC_PAGE_SIZE")
LATE_MOUNT = Path(__file__).parents[2] / "bench/late_mount/late_mount.cc"
RANKS = 4


def bytes_of(ranges: Any) -> set[int]:
    return {byte for offset, length in ranges for byte in range(offset, offset + length)}


def union(ranges: Any) -> list[tuple[int, int]]:
    """Returns sorted ranges that do not touch."""
    found: list[tuple[int, int]] = []
    for offset, length in sorted(ranges):
        if found and offset <= sum(found[-1]):
            found[-1] = found[-1][0], max(sum(found[-1]), offset + length) - found[-1][0]
        else:
            found.append((offset, length))
    return found


def pages_of(found: set[int]) -> set[int]:
    return {byte // _node._page_bytes for byte in found}


def total(ranges: Any) -> int:
    return sum(length for _, length in ranges)


# The shape of a tensor of bytes, its dimension to split, the number of ranks, and how many of them are on a node.
CUTS: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "rows, one node": ((64, 48), 0, 4, 4),
    "rows, two nodes": ((64, 48), 0, 4, 2),
    "rows, odd shares": ((64, 48), 0, 8, 3),
    "columns, one node": ((8, 64), 1, 4, 4),
    "columns, two nodes": ((8, 1 << 17), 1, 4, 2),
    "columns, two nodes, gaps of a page": ((8, 1 << 13), 1, 4, 2),
    "columns, two nodes, short gaps": ((8, 1 << 12), 1, 4, 2),
    "columns, more ranks on the node than parts": ((8, 1 << 10), 1, 2, 8),
    "columns of experts": ((4, 8, 1 << 16), 2, 4, 2),
    "rows of experts": ((4, 64, 1 << 10), 1, 4, 2),
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_node_fetches_what_its_ranks_need(cut: str) -> None:
    shape, dim, world, local = CUTS[cut]
    nbytes = int(torch.Size(shape).numel())
    for first in range(0, world - world % local if world > local else world, local):
        ranks = range(first, min(first + local, world))
        parts = [part_of(shape, 1, picks_of(shard_of(shape, dim, rank, world), shape) or []) for rank in ranks]
        needed = bytes_of((start, part.run_bytes) for part in parts for start in part.starts)
        fetched = [bytes_of(ranges_of_node(nbytes, part, local)) for part in parts]
        assert all(each == fetched[0] for each in fetched) and fetched[0] >= needed and max(fetched[0]) < nbytes
        assert pages_of(fetched[0]) == pages_of(needed)
        if "short" not in cut:
            assert fetched[0] == needed


def test_whole_tensors_are_shared_evenly() -> None:
    assert ranges_of_node(1000, None, 4) == [(0, 250), (250, 250), (500, 250), (750, 250)]
    assert ranges_of_node(2, None, 4) == [(0, 1), (1, 1)] and ranges_of_node(0, None, 4) == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, NodeRanks(0, 1)),
        ({"LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "5"}, NodeRanks(5, 8)),
        ({"LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "5", "WORLD_SIZE": "16"}, NodeRanks(5, 8)),
        ({"LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "5", "WORLD_SIZE": "8"}, NodeRanks(5, 8, is_job=True)),
        ({"LOCAL_WORLD_SIZE": "8"}, NodeRanks(0, 8)),
        ({"LOCAL_RANK": "5"}, NodeRanks(0, 1)),
        ({"LOCAL_WORLD_SIZE": "0", "LOCAL_RANK": "0"}, NodeRanks(0, 1)),
        ({"LOCAL_WORLD_SIZE": "many", "LOCAL_RANK": "-1"}, NodeRanks(0, 1)),
        ({"LOCAL_WORLD_SIZE": "9" * 5000, "LOCAL_RANK": "0"}, NodeRanks(0, 1)),
    ],
)
def test_the_ranks_of_a_node_are_those_of_torchrun(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: NodeRanks) -> None:
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert node_ranks() == expected


def test_a_process_group_without_variables_has_a_rank_per_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 16)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 11)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert node_ranks() == NodeRanks(3, 8)


def test_a_plan_of_many_columns_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.save_file({f"layers.0.experts.{number}.down": torch.empty((1 << 13, 1 << 10), dtype=torch.int8) for number in range(8)}, tmp_path / "model")
    monkeypatch.setattr(sources, "_is_near", lambda device: False)
    source, plan = Source(str(tmp_path / "model")), NodePlan()
    shape = source.header.shapes[0]
    tracemalloc.start()
    try:
        with Sources(str(tmp_path / "model")) as files:
            ranks = [Rank(number, framework_on("pt", "cpu")) for number in range(2)]
            planned(files, ranks, 2, lambda name, shape: 1, None, NodeRanks(0, 1, 2))
        kinds = plan.kinds_of(source)
        for kind in kinds:
            plan.add(kind, part_of(shape, 1, picks_of(shard_of(shape, 1, 1, 2), shape) or []))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert all(len(rank.columns) == 8 for rank in ranks) and kept < 1 << 20  # a list of 8,192 numbers takes 320 KiB
    assert [ranges_of_node(1 << 23, each, 2) for each in plan.parts(kinds[0])] == [ranges_of_node(1 << 23, None, 2)]


@pytest.mark.parametrize("starts", [[], [5], [0, 8], [0, 8, 16], [0, 8, 24], [0, 1, 1 << 60]])
def test_a_part_in_little_memory_is_the_same_part(starts: list[int]) -> None:
    part = Part((len(starts), 1), starts, 1, None)
    assert list(part.in_little_memory().starts) == starts and part.in_little_memory().nbytes == part.nbytes


# --- one file


LAYERS = 6
UP, DOWN = (64, 1024), (64, 1 << 14)


def model(layers: range) -> dict[str, Any]:
    found = {}
    for layer in layers:
        numbers = torch.Generator().manual_seed(layer)
        found[f"layers.{layer}.up"] = torch.randn(UP, generator=numbers)
        found[f"layers.{layer}.down"] = torch.randn(DOWN, generator=numbers).bfloat16()
        found[f"layers.{layer}.norm"] = torch.randn(1 << 18, generator=numbers)
    return found


DIMS = {"up": 0, "down": 1}  # the norms are needed whole


def index_of(name: str, tensor: Any, rank: int) -> Any:
    dim = DIMS.get(name.rpartition(".")[2])
    return ... if dim is None else shard_of(tensor.shape, dim, rank, RANKS)


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Callable[[int], NodeReads], list[tuple[int, int]]]]:
    """A function that makes the reads of a rank, and a list of the ranges that were fetched."""
    library.save_file(model(range(LAYERS)), tmp_path / "model.safetensors")
    source = Source(str(tmp_path / "model.safetensors"))
    fetched: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, offset, length, advice: fetched.append((offset, length)))
    yield lambda rank: NodeReads(source, NodePlan(), NodeRanks(rank, RANKS)), fetched
    source.file.close()


def request(reads: NodeReads, name: str, rank: int) -> None:
    header, row = reads.source.header, reads.source.row(name)
    index = index_of(name, torch.empty(header.shapes[row], device="meta"), rank)
    reads.request(row, None if index is ... else part_of(header.shapes[row], header.sizes[row] // torch.Size(header.shapes[row]).numel(), index))


def test_the_layers_after_a_known_one_are_fetched_by_all_ranks_together(reads: Any) -> None:
    make, fetched = reads
    for rank in range(RANKS):
        request(mine := make(rank), "layers.0.norm", rank)
        assert total(fetched) == (rank + 1) * ((LAYERS - 1 << 20) // RANKS + (1 << 20))  # its share, and what it reads itself
    header = mine.source.header
    rows = [row for row, name in enumerate(header.names) if name.endswith("norm")]
    assert union(fetched) == union((header.offsets[row], header.sizes[row]) for row in rows)


def test_the_ranks_of_one_node_fetch_tensors_of_unknown_kinds_too(reads: Any) -> None:
    make, fetched = reads
    for rank in range(RANKS):
        mine = make(rank)
        mine._node = mine._node._replace(is_job=True)
        request(mine, mine.source.header.names[0], rank)
    header = mine.source.header
    assert union(fetched) == [(header.offsets[0], sum(header.sizes))]


@pytest.mark.parametrize(("first", "is_job"), [(1, True), (0, False)], ids=["a program that skips tensors", "several nodes"])
def test_tensors_of_unknown_kinds_are_not_fetched_for(reads: Any, first: int, is_job: bool) -> None:
    make, fetched = reads
    mine = make(0)
    mine._node = mine._node._replace(is_job=is_job)
    header = mine.source.header
    request(mine, header.names[first], 0)
    kinds = {name.rpartition(".")[2] for offset, _ in fetched for name, at, size in zip(header.names, header.offsets, header.sizes) if at <= offset < at + size}
    assert kinds == {header.names[first].rpartition(".")[2]}


def test_only_the_columns_of_a_known_plan_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.save_file({"a.0": torch.zeros(DOWN), "b": torch.zeros(9), "c": torch.zeros(DOWN)}, tmp_path / "model.safetensors")
    fetched: list[tuple[int, int]] = []
    monkeypatch.setattr(sources, "_is_near", lambda device: False)
    source = Source(str(tmp_path / "model.safetensors"))
    plan = ModelPlan(NodeRanks(0, RANKS, is_job=True))
    columns, rows = (part_of(DOWN, 4, picks_of(shard_of(DOWN, dim, 0, RANKS), DOWN) or []) for dim in (1, 0))
    reads = plan.reads_of(source, 0, columns)
    assert reads is not None and plan.reads_of(source, 2, rows) is None
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, offset, length, advice: fetched.append((offset, length)))
    reads.request(0, columns)
    assert union(fetched) == [(source.header.offsets[0], source.header.sizes[0])]


@pytest.mark.parametrize("kind", ["norm", "up"])
def test_a_tensor_that_was_not_expected_is_fetched_starting_with_each_ranks_share(reads: Any, kind: str) -> None:
    make, fetched = reads
    for rank in range(RANKS):
        fetched.clear()
        mine = make(rank)
        name = f"layers.{LAYERS - 1}.{kind}"
        request(mine, name, rank)
        row = mine.source.row(name)
        start, nbytes = mine.source.header.offsets[row], mine.source.header.sizes[row]
        assert fetched[0][0] == start + nbytes * rank // RANKS and total(fetched) == nbytes


def test_the_ranks_fetch_no_more_of_a_long_tensor_at_once_than_the_limit(reads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, fetched = reads
    monkeypatch.setattr(_node, "_most_ahead_bytes", 256 << 10)
    for rank in range(RANKS):
        request(make(rank), f"layers.{LAYERS - 1}.norm", rank)
    assert total(fetched) == total(union(fetched)) == 256 << 10


def test_nothing_is_fetched_twice_and_no_more_than_the_limit(reads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, fetched = reads
    monkeypatch.setattr(_node, "_most_ahead_bytes", 2 << 20)
    mine = make(0)
    for layer in range(LAYERS):
        request(mine, f"layers.{layer}.norm", 0)
        assert sum(mine._ahead.values()) <= 2 << 20
    assert total(union(fetched)) == total(fetched) == (LAYERS - 1 << 20) // RANKS + (2 << 20) // RANKS


def test_tensors_that_a_program_skips_do_not_end_the_read_ahead(reads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, fetched = reads
    monkeypatch.setattr(_node, "_most_ahead_bytes", 2 << 20)  # two norms
    mine = make(0)
    request(mine, "layers.0.norm", 0)
    request(mine, "layers.3.norm", 0)
    row = mine.source.row("layers.4.norm")
    start, nbytes = mine.source.header.offsets[row], mine.source.header.sizes[row]
    assert (start, nbytes // RANKS) in union(fetched)


@pytest.mark.parametrize("is_job", [True, False], ids="is_job_{}".format)
def test_the_work_per_tensor_does_not_grow_with_their_number(tmp_path: Path, is_job: bool) -> None:
    class Counted(dict[Any, Any]):
        lookups = 0

        def get(self, *arguments: Any) -> Any:
            Counted.lookups += 1
            return super().get(*arguments)

        def __contains__(self, key: object) -> bool:
            Counted.lookups += 1
            return super().__contains__(key)

    count = 400
    library.save_file({f"layers.{number % 2}.experts.{number // 2:03}": torch.zeros(9) for number in range(count)}, tmp_path / "model")
    plan, source = NodePlan(), Source(str(tmp_path / "model"))
    plan._parts = Counted()
    reads = NodeReads(source, plan, NodeRanks(0, RANKS, is_job=is_job))
    for row in range(count):
        reads.request(row, None)
    assert Counted.lookups < 8 * count and len(reads._begun) == count and not any(reads._ahead) and reads._ahead_bytes == 0


@pytest.mark.parametrize("seed", range(8))
def test_in_any_order_the_known_tensors_after_each_request_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    choices, count = random.Random(seed), 60
    monkeypatch.setattr(_node, "_most_ahead_bytes", 1 << 40 if seed % 2 else 4000)
    sizes = {kind: choices.randrange(1, 99) for kind in "abcd"}
    kinds = [choices.choice("abcd") for _ in range(count)]
    library.save_file({f"layers.{number:02}.{kind}": torch.zeros(sizes[kind]) for number, kind in enumerate(kinds)}, tmp_path / "model")
    source, plan = Source(str(tmp_path / "model")), NodePlan()
    reads = NodeReads(source, plan, NodeRanks(0, RANKS, is_job=choices.random() < 0.5))
    known: set[str] = set()
    for row in choices.sample(range(count), 30) if seed % 4 < 2 else range(0, count, 2):
        reads.request(row, None)
        known.add(source.header.names[row][-1])
        room = _node._most_ahead_bytes - reads._ahead_bytes
        missing = [each for each in range(row + 1, count) if each not in reads._begun and source.header.names[each][-1] in known]
        assert reads._ahead_bytes == sum(reads._ahead.values()) and (not missing or source.header.sizes[missing[0]] > room)


def test_read_ahead_can_be_disabled(reads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, fetched = reads
    monkeypatch.setenv("PENSTOCK_SAFETENSORS_AHEAD_MIB", "0")
    request(make(0), "layers.0.norm", 0)
    assert total(fetched) == 1 << 20


def test_each_rank_fetches_columns_starting_with_its_share(reads: Any) -> None:
    make, fetched = reads
    for rank in range(RANKS):
        fetched.clear()
        mine = make(rank)
        request(mine, "layers.0.down", rank)
        row = mine.source.row("layers.0.down")
        start, nbytes = mine.source.header.offsets[row], mine.source.header.sizes[row]
        assert fetched[0][0] == start + nbytes * rank // RANKS
        first = fetched[: nbytes // (128 << 10)]
        assert union(first) == [(start, nbytes)] and {length for _, length in first} == {128 << 10}


def test_a_file_system_that_rejects_advice_is_read_without(reads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def rejected(*arguments: Any) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "posix_fadvise", rejected)
    request(reads[0](0), "layers.0.down", 0)


@pytest.mark.parametrize("folder", ["/dev/shm", "/tmp"])
def test_local_files_are_not_shared(folder: str) -> None:
    path = Path(folder, f"penstock-test-{os.getpid()}.safetensors")
    try:
        library.save_file({"a": torch.zeros(9)}, path)
        assert Source(str(path)).in_page_cache() is None
    except OSError:
        pytest.skip(f"{folder} cannot be written")
    finally:
        path.unlink(missing_ok=True)


def test_a_name_that_is_reused_meanwhile_is_not_opened_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("model.safetensors", 1), ("other.safetensors", 2)):
        library.save_file({"a": torch.full((9,), value)}, tmp_path / name)
    source = Source(str(tmp_path / "model.safetensors"))

    def replaced(name: str, descriptor: int) -> bool:
        os.replace(tmp_path / "other.safetensors", name)
        return True

    monkeypatch.setattr(sources, "_is_near", lambda device: False)
    monkeypatch.setattr(sources, "is_name_of", replaced)
    kept = source.in_page_cache()
    assert kept is not None and os.path.samestat(os.fstat(kept.file.fileno()), os.fstat(source.file.fileno()))


def test_a_file_is_read_without_the_node_if_it_cannot_be_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.save_file({"a": torch.zeros(9)}, tmp_path / "model.safetensors")
    source = Source(str(tmp_path / "model.safetensors"))

    def refused(*arguments: Any, **options: Any) -> Any:
        raise penstock.Error("too many open files")

    monkeypatch.setattr(sources, "_is_near", lambda device: False)
    monkeypatch.setattr(sources._native, "open", refused)
    assert source.in_page_cache() is None


def test_a_shard_that_was_rewritten_since_it_was_fetched_has_its_new_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_is_near", lambda device: False)
    paths = [tmp_path / f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    for path in paths:
        library.save_file({"a": torch.zeros(9), "b": torch.zeros(9)}, path)
    plan, node = NodePlan(), NodeRanks(0, RANKS)
    assert plan.after(Source(str(paths[0])), node) is not None
    library.save_file({"c": torch.zeros(9)}, tmp_path / "new")
    paths[1].write_bytes((tmp_path / "new").read_bytes())  # the same inode
    reads = plan.reads_of(Source(str(paths[1])), node)
    assert reads is not None and list(reads.source.header.names) == ["c"]


@pytest.mark.parametrize(("first", "expected"), [("a", {"a", "b"}), ("b", {"b"})], ids=["all tensors", "some tensors"])
def test_the_next_shard_is_fetched_for_a_program_that_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, expected: set[str]) -> None:
    monkeypatch.setattr(sources, "_is_near", lambda device: False)
    paths = [tmp_path / f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    for path in paths:
        library.save_file({"a": torch.zeros(9), "b": torch.zeros(9)}, path)
    plan, node = NodePlan(), NodeRanks(0, RANKS, is_job=True)
    reads = plan.reads_of(Source(str(paths[0])), node)
    assert reads is not None
    reads.request(reads.source.row(first), None)
    following = plan.reads_of(Source(str(paths[1])), node)
    assert following is not None and {following.source.header.names[row] for row in following._ahead} == expected


def test_a_forked_child_does_not_wait_for_a_thread_that_opens_the_next_shard(reads: Any) -> None:
    make, _ = reads
    mine = make(0)
    request(mine, "layers.0.norm", 0)
    with mine._plan._lock, mine._lock, _door_open._registering:  # a server answers slowly
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            request(mine, "layers.1.norm", 0)
            _door_open._plan_of("folder")
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


# --- a mount that counts


@pytest.fixture(scope="module")
def late_mount(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("late") / "late_mount"
    compiler, flags = shutil.which("c++"), subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=False)
    if not LATE_MOUNT.exists() or compiler is None or flags.returncode != 0 or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("a FUSE file system needs a compiler, libfuse3 and /dev/fuse")
    subprocess.run([compiler, "-std=c++20", "-O1", str(LATE_MOUNT), "-o", str(program), *flags.stdout.split(), "-pthread"], check=True)
    return program


@pytest.fixture
def mount(late_mount: Path, tmp_path: Path) -> Iterator[Path]:
    """A model of three shards on a mount whose server answers after 2 ms."""
    (tmp_path / "files").mkdir()
    (tmp_path / "mount").mkdir()
    weights = {}
    for number in range(3):
        name = f"model-{number + 1:05}-of-00003.safetensors"
        tensors = model(range(2 * number, 2 * number + 2))
        library.save_file(tensors, tmp_path / "files" / name)
        weights.update(dict.fromkeys(tensors, name))
    (tmp_path / "files/model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    server = subprocess.Popen([str(late_mount), str(tmp_path / "mount"), "0", "2000", "0", "0", f"folder={tmp_path / 'files'}"])
    try:
        while server.poll() is None and not (tmp_path / "mount/model.safetensors.index.json").exists():
            time.sleep(0.01)
        if server.poll() is not None:
            pytest.skip("FUSE file systems cannot be mounted here")
        yield tmp_path / "mount"
    finally:
        subprocess.run(["umount", "-l", tmp_path / "mount"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z", tmp_path / "mount"], check=False)
        server.terminate()
        server.wait()


def test_a_setting_for_the_page_cache_applies(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_CACHE", raising=False)
    source = Source(str(next(mount.glob("*.safetensors"))))
    kept = source.in_page_cache()
    assert kept is not None and kept.header is source.header and kept.file.name == source.name
    monkeypatch.setenv("PENSTOCK_CACHE", "bypass")
    assert source.in_page_cache() is None


def by_slices(path: Path, rank: int) -> dict[str, Any]:
    with safetensors.safe_open(path, framework="pt") as file:
        found = {}
        for name in file.keys():
            piece = file.get_slice(name)
            found[name] = piece[index_of(name, torch.empty(piece.get_shape(), device="meta"), rank)].to("cpu", copy=True)
        return found


def by_narrowing(path: Path, rank: int) -> dict[str, Any]:
    with safetensors.safe_open(path, framework="pt") as file:
        found = {}
        for name in file.keys():
            tensor, dim = file.get_tensor(name), DIMS.get(name.rpartition(".")[2])
            part = tensor if dim is None else tensor.narrow(dim, rank * tensor.shape[dim] // RANKS, tensor.shape[dim] // RANKS)
            found[name] = torch.empty(part.shape, dtype=part.dtype).copy_(part)
        return found


@pytest.mark.parametrize("way", [by_slices, by_narrowing])
def test_a_server_sends_each_byte_to_a_node_once(mount: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Path, int], dict[str, Any]]) -> None:
    monkeypatch.setattr(_in_file, "_is_gpu", lambda device: device is not None)
    monkeypatch.setattr(_in_file, "gpus_may_be_used", lambda: True)
    monkeypatch.setattr(_door_open, "_known_gpu", lambda device: torch.device("cpu"))
    monkeypatch.setattr(_door_open, "_plan", None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(RANKS))
    files = sorted(mount.glob("*.safetensors"))
    with install():
        for rank in range(RANKS):
            monkeypatch.setenv("LOCAL_RANK", str(rank))
            found = {name: tensor for file in files for name, tensor in way(file, rank).items()}
            for name, tensor in model(range(LAYERS)).items():
                assert torch.equal(found[name], tensor[index_of(name, tensor, rank)]), (rank, name)
    assert read_by(mount)[0] <= 1.02


@pytest.mark.parametrize("first", [0, 2])
def test_a_server_sends_a_node_only_the_pages_that_its_ranks_need(mount: Path, first: int) -> None:
    path = min(mount.glob("*.safetensors"))
    needed: set[int] = set()
    for rank in (first, first + 1):
        reads = NodePlan().reads_of(Source(str(path)), NodeRanks(rank % 2, 2))
        assert reads is not None
        header = reads.source.header
        for row, (name, offset, shape, size) in enumerate(zip(header.names, header.offsets, header.shapes, header.sizes)):
            part = part_of(shape, size // torch.Size(shape).numel(), picks_of(index_of(name, torch.empty(shape, device="meta"), rank), shape) or [])
            reads.request(row, part)
            for start in part.starts:
                reads.source.file.read_into(bytearray(part.run_bytes), offset + start)
                needed.update(range((offset + start) // PAGE, (offset + start + part.run_bytes - 1) // PAGE + 1))
    assert int(os.getxattr(path, "user.read_bytes")) <= 1.02 * PAGE * len(needed) + (128 << 10)  # the kernel reads the header and what follows it


def read_by(mount: Path) -> tuple[float, int]:
    """Returns the bytes that the server sent, per byte of the files, and the number of requests."""
    files = list(mount.glob("*.safetensors"))
    sent, requests = (sum(int(os.getxattr(file, f"user.{what}")) for file in files) for what in ("read_bytes", "reads"))
    return sent / sum(file.stat().st_size for file in files), requests


def dim_of(name: str, shape: tuple[int, ...]) -> int | None:
    return DIMS.get(name.rpartition(".")[2])


def by_ranks(folder: Path) -> list[dict[str, Any]]:
    address = f"unix:@penstock-node-{os.getpid()}-{time.monotonic_ns()}"
    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(lambda rank: load_rank(folder, "cpu", rank, RANKS, address, dim_of, "pt"), range(RANKS)))


def by_one_process(folder: Path) -> list[dict[str, Any]]:
    return [{name: in_torch(name, memory) for name, memory in found.items()} for found in load_sharded(folder, ["host:0"] * RANKS, dim_of)]


def in_torch(name: str, memory: Any) -> Any:
    content = torch.empty(memory.nbytes, dtype=torch.uint8)
    penstock.copy(content, memory)
    return content.view(torch.bfloat16 if name.endswith("down") else torch.float32)


@pytest.mark.parametrize("load", [by_ranks, by_one_process])
def test_columns_of_several_ranks_are_requested_once_and_in_long_pieces(mount: Path, load: Callable[[Path], list[dict[str, Any]]]) -> None:
    for rank, found in enumerate(load(mount)):
        for name, tensor in model(range(LAYERS)).items():
            assert torch.equal(found[name].flatten(), tensor[index_of(name, tensor, rank)].flatten()), (rank, name)
    sent, requests = read_by(mount)
    assert sent <= 1.1  # in files this small, the header and the pages at the ends of parts count
    assert requests < LAYERS * DOWN[0]  # fewer than one per row


@pytest.mark.parametrize("load", [by_ranks, by_one_process])
def test_columns_of_a_truncated_file_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[[Path], Any]) -> None:
    library.save_file(model(range(1)), tmp_path / "model.safetensors")
    monkeypatch.setattr(sources, "_is_near", lambda device: False)
    request = NodeReads.request

    def truncated(self: NodeReads, row: int, part: Any) -> None:
        os.truncate(tmp_path / "model.safetensors", self.source.header.offsets[row] + 5000)
        request(self, row, part)

    monkeypatch.setattr(NodeReads, "request", truncated)
    with pytest.raises(penstock.Error, match=r"truncated.*layers\.0\.down"):
        load(tmp_path)


DYING_RANK = """
import os, signal, sys
from penstock._tensors.node_ranks import NodePlan, NodeRanks
from penstock._tensors.sources import Source

reads = NodePlan().reads_of(Source(sys.argv[1]), NodeRanks(1, int(sys.argv[2]), is_job=True))
reads.request(0, None)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_that_dies_neither_stops_the_others_nor_makes_the_server_send_bytes_twice(mount: Path) -> None:
    path = min(mount.glob("*.safetensors"))
    dead = subprocess.run([sys.executable, "-c", DYING_RANK, str(path), str(RANKS)], check=False)
    assert dead.returncode == -signal.SIGKILL and read_by(mount)[0] > 0.1
    for rank in (0, 2, 3):
        reads = NodePlan().reads_of(Source(str(path)), NodeRanks(rank, RANKS, is_job=True))
        assert reads is not None
        for row, size in enumerate(reads.source.header.sizes):
            reads.request(row, None)
            assert reads.source.file.read_into(bytearray(size), reads.source.header.offsets[row]) == size
    assert int(os.getxattr(path, "user.read_bytes")) <= 1.02 * path.stat().st_size
