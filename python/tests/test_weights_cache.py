"""The cache of finished weights: exact objects, never a stale or damaged one, within its limits, shared by processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import penstock
import penstock.torch
from penstock import _native
from penstock._core.file_facts import mount_of
from penstock.weights_cache import WeightsCache, _cache, _digest, _sources

SOURCE_BYTES = 300_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\1" * SOURCE_BYTES)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> WeightsCache:
    return WeightsCache(tmp_path / "cache", free_bytes=0)


def entries(cache: WeightsCache) -> list[Path]:
    return sorted(Path(cache.folder).glob("*.safetensors"))


def weights(fill: float = 1.0) -> dict[str, Any]:
    return {"weight": torch.full((40_000,), fill), "bias": torch.arange(10)}


class Loader:
    """Builds weights from a source file, as an engine does, and counts how often it does so."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.calls = 0

    def __call__(self) -> dict[str, Any]:
        self.calls += 1
        return weights(self.source.read_bytes()[-1])


def get(cache: WeightsCache, load: Loader, **values: Any) -> float:
    return float(cache.get({"model": "m", **values}, load, sources=[load.source])["weight"][0])


# --- keys


def test_the_second_start_reads_no_byte_of_the_source(cache: WeightsCache, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Loader(source)
    assert get(cache, load) == 1
    monkeypatch.setattr(_sources, "_hash_of", None)
    assert get(cache, load) == 1 and load.calls == 1


def test_new_contents_with_the_same_size_and_times_are_never_served_stale(cache: WeightsCache, source: Path) -> None:
    load = Loader(source)
    for number in range(1, 6):
        before = source.stat()
        with open(source, "r+b") as file:
            file.seek(SOURCE_BYTES - 1)
            file.write(bytes([number]))
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert get(cache, load) == number
    assert load.calls == 5


def test_a_replaced_file_is_never_served_stale(cache: WeightsCache, source: Path, tmp_path: Path) -> None:
    load = Loader(source)
    get(cache, load)
    (tmp_path / "new").write_bytes(b"\2" * SOURCE_BYTES)
    shutil.copystat(source, tmp_path / "new")
    os.replace(tmp_path / "new", source)
    assert get(cache, load) == 2


def test_changes_through_a_mapping_are_never_served_stale(cache: WeightsCache, source: Path) -> None:
    with open(source, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        load = Loader(source)
        mapping[-1] = 2
        assert get(cache, load) == 2
        if mount_of(file.fileno())[0] == "tmpfs":
            pytest.skip("tmpfs does not record changes through mappings")
        mapping[-1] = 3
        assert get(cache, load) == 3
        mapping[-1] = 4
        assert get(cache, load) == 4


def folder_of_links(folder: Path, kind: str) -> tuple[Path, Callable[[], None]]:
    """Returns the path of a source that contains ones, and a function that makes it contain twos without a change to either file."""
    for number, name in enumerate(("one", "two"), 1):
        (folder / name).mkdir()
        (folder / name / "model.safetensors").write_bytes(bytes([number]) * SOURCE_BYTES)
    link = folder / "snapshot"

    def place(name: str) -> None:
        new = folder / "new"
        if kind == "folder":
            new.symlink_to(name)
        elif kind == "link":
            new.symlink_to(Path(name, "model.safetensors"))
        else:
            os.link(folder / name / "model.safetensors", new)
        os.replace(new, link)

    place("one")
    return (link / "model.safetensors" if kind == "folder" else link), partial(place, "two")


@pytest.mark.parametrize("kind", ["folder", "link", "hard link"])
def test_nothing_is_stored_if_a_name_refers_to_another_file_after_the_load(cache: WeightsCache, tmp_path: Path, kind: str) -> None:
    path, change = folder_of_links(tmp_path, kind)

    def load() -> dict[str, Any]:
        change()
        return weights(path.read_bytes()[0])

    assert float(cache.get({}, load, sources=[path])["weight"][0]) == 2 and not entries(cache)
    assert get(cache, Loader(path)) == 2


@pytest.mark.parametrize(
    ("place", "error", "says"),
    [
        ("http://localhost:1/model.safetensors", ValueError, "is on a server"),
        ("s3://bucket/model.safetensors", ValueError, "put its ETag"),
        ("pipe", OSError, "not a regular file"),
        ("folder", IsADirectoryError, "not a regular file"),
        ("/dev/zero", OSError, "not a regular file"),
        ("absent", FileNotFoundError, "absent"),
    ],
)
def test_sources_other_than_regular_local_files_are_refused(cache: WeightsCache, tmp_path: Path, place: str, error: type[Exception], says: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(error, match=says):
        cache.key({}, [place if ":" in place else tmp_path / place])


@pytest.mark.parametrize("change", ["touched", "copied", "renamed"])
def test_equal_contents_are_served_again(cache: WeightsCache, source: Path, tmp_path: Path, change: str) -> None:
    load = Loader(source)
    get(cache, load)
    if change == "touched":
        os.utime(source, (1, 1))
    else:
        load.source = Path((shutil.copy if change == "copied" else shutil.move)(source, tmp_path / "other"))
    assert get(cache, load) == 1 and load.calls == 1


def test_a_link_to_other_contents_is_another_source(cache: WeightsCache, source: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"\2" * SOURCE_BYTES)
    link = tmp_path / "link"
    link.symlink_to(source)
    load = Loader(link)
    assert get(cache, load) == 1
    link.unlink()
    link.symlink_to("other")
    assert get(cache, load) == 2


def test_each_value_of_the_key_counts(cache: WeightsCache, source: Path) -> None:
    load = Loader(source)
    for values in ({}, {"rank": 0}, {"rank": 1}, {"quantization": "int8"}, {"rank": "0"}):
        get(cache, load, **values)
    assert load.calls == 5 == len(entries(cache))
    with pytest.raises(TypeError):
        cache.key({"dtype": torch.float16})


def test_weights_of_a_source_that_changes_during_the_load_are_not_stored(cache: WeightsCache, source: Path) -> None:
    key = cache.key({}, [source])
    source.write_bytes(b"\2" * SOURCE_BYTES)
    assert not cache.save(key, weights(2)) and not entries(cache)


def test_a_damaged_index_is_computed_again(cache: WeightsCache, source: Path) -> None:
    load = Loader(source)
    get(cache, load)
    (record,) = Path(cache.folder, "sources").glob("*.json")
    for content in (b"", b"{", b"[" * 100_000, b'{"version": 1}', record.read_bytes().replace(b'"hash": "', b'"hash": "0')):
        record.write_bytes(content)
        assert get(cache, load) == 1
    assert load.calls == 1


@pytest.mark.parametrize("change", ["writable by others", "of another user"])
def test_an_index_that_others_can_write_is_computed_again(cache: WeightsCache, source: Path, change: str) -> None:
    if change == "of another user" and os.geteuid() != 0:
        pytest.skip("only root can give files to other users")
    mask = os.umask(0o002)  # a common default
    try:
        key = cache.key({}, [source])
        (record,) = Path(cache.folder, "sources").glob("*.json")
        assert record.stat().st_mode & 0o777 == 0o600
        record.write_text(record.read_text().replace(key.contents.hashes[0], "0" * 64))
        assert cache.key({}, [source]) != key  # the record is used
        record.chmod(0o666) if change == "writable by others" else os.chown(record, 1234, -1)
        assert cache.key({}, [source]) == key and record.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(mask)


def test_files_of_a_model_are_all_that_may_decide_its_weights(tmp_path: Path) -> None:
    names = ["a.fp16.safetensors", "a.safetensors", "model.bin", "code.py", "config.json", "model.safetensors.index.json"]
    for name in [*names, "README.md"]:
        (tmp_path / name).write_bytes(b"{}")
    assert sorted(os.path.basename(each) for each in _sources.model_files(tmp_path)) == sorted(names)


def test_ranks_that_start_together_read_each_file_once(cache: WeightsCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"{number}.safetensors" for number in range(5)]
    for number, each in enumerate(files):
        each.write_bytes(bytes([number]) * 100_000)
    read: list[str] = []
    compute = _sources._hash_of
    monkeypatch.setattr(_sources, "_hash_of", lambda path: (read.append(path), compute(path))[1])
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        keys = list(pool.map(lambda rank: cache.key({"rank": rank}, files), range(4)))
    assert sorted(read) == sorted(map(str, files)) and len({tuple(each.contents.hashes) for each in keys}) == 1


# --- objects


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(30, 40)
        self.head = torch.nn.Linear(30, 40, bias=False)

    def forward(self, x: Any) -> Any:
        return self.head(x) + self.up(x)


def tied() -> Any:
    found = Net()
    found.head.weight = found.up.weight
    return found


def with_attributes() -> Any:
    found = Net()
    found.register_buffer("table", torch.arange(7), persistent=False)
    found.plain, found.scale = torch.randn(10, 20).t(), 2.5
    found.up.weight.requires_grad_(False).shard = (0, 1)
    found.view = found.up.weight.data[3:, ::2]
    return found


def quantized() -> Any:
    return torch.ao.quantization.quantize_dynamic(Net(), {torch.nn.Linear}, dtype=torch.qint8)


def _extra(module: Any, prefix: str) -> str:
    return f"{prefix} {module.in_features}"


def with_bound_partial() -> Any:
    found = Net()
    found.up.extra_repr = types.MethodType(partial(_extra, prefix="int8"), found.up)
    return found


OBJECTS: dict[str, Callable[[], Any]] = {
    "tied": tied,
    "attributes": with_attributes,
    "quantized": quantized,
    "bound partial": with_bound_partial,
    "types": lambda: {str(each): torch.arange(64).to(each) for each in (torch.bool, torch.int8, torch.bfloat16, torch.float8_e4m3fn, torch.complex64)},
    "strides": lambda: {"t": torch.randn(6, 8).t(), "expanded": torch.randn(5, 1).expand(5, 9), "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)},
    "empty": lambda: {"a": torch.empty(0), "b": torch.empty(3, 0, 2), "scalar": torch.tensor(2.5), "none": None},
    "aliases": lambda: (lambda x: [x, x[1:], x.view(2, 50), x.view(torch.int32)])(torch.randn(100)),
    "conjugate": lambda: [torch.randn(5, dtype=torch.complex64).conj()],
    "nothing": dict,
}


def facts(value: Any) -> Any:
    """Everything of an object that must come back: bytes, types, strides, sharing."""
    numbers: dict[int, int] = {}

    def of(each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            storage = each.untyped_storage()
            number = numbers.setdefault(storage._cdata, len(numbers))
            kept = (type(each), each.dtype, each.shape, each.stride(), each.storage_offset(), each.requires_grad, each.is_conj(), number, vars(each))
            return (*kept, each.detach().resolve_conj().contiguous().view(-1).view(torch.uint8).tolist() if each.numel() else [])
        if isinstance(each, torch.nn.Module):
            tensors = {name: of(item) for name, item in vars(each).items() if isinstance(item, torch.Tensor)}
            parts = {name: of(dict(getattr(each, name))) for name in ("_parameters", "_buffers", "_modules")}
            return type(each), tensors, parts, sorted(each._non_persistent_buffers_set), each.training, repr(each)
        if isinstance(each, (list, tuple)):
            return [of(item) for item in each]
        return {name: of(item) for name, item in each.items()} if isinstance(each, dict) else each

    return of(value)


def test_buffers_of_process_groups_are_not_weights(tmp_path: Path) -> None:
    module = Net()
    module.group = type("Group", (), {"__module__": "engine.distributed.parallel_state"})()
    module.group.buffer = torch.randn(5)
    for _ in range(2):
        penstock.torch.load_module(module, lambda module: module.up.bias.data.fill_(2), cache=tmp_path / "cache", key="net")
    assert list((tmp_path / "cache").glob("*.safetensors"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_come_back_exactly(cache: WeightsCache, name: str) -> None:
    value = OBJECTS[name]()
    key = cache.key({})
    assert cache.save(key, value)
    found = cache.load(key)
    assert facts(found) == facts(value)
    if isinstance(value, torch.nn.Module):
        x = torch.randn(3, 30)
        assert torch.equal(found(x), value(x))


def freed() -> Any:
    found = torch.randn(100)
    found.untyped_storage().resize_(0)
    return [found]


def with_gradient() -> Any:
    found = Net()
    found(torch.randn(2, 30)).sum().backward()
    return found


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a lambda": (lambda: {"loader": lambda: 1}, "cannot be pickled"),
    "a class of a function": (lambda: type("Local", (), {})(), "cannot be pickled"),
    "freed memory": (freed, "has no memory"),
    "a gradient": (with_gradient, "gradient"),
    "a graph": (lambda: [torch.randn(3, requires_grad=True) * 2], "autograd graph"),
    "an open file": (lambda: [open(os.devnull)], "cannot be pickled"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_objects_that_would_not_come_back_are_not_stored(cache: WeightsCache, caplog: pytest.LogCaptureFixture, name: str) -> None:
    make, reason = REFUSED[name]
    value = make()
    assert cache.get({}, lambda: value) is value
    assert not entries(cache) and reason in caplog.text


# --- damage


def damaged_copies(entry: Path) -> dict[str, Callable[[], None]]:
    content = entry.read_bytes()
    start = int.from_bytes(content[:8], "little")

    def flipped(place: int) -> Callable[[], None]:
        return lambda: (entry.write_bytes(content[:place] + bytes([content[place] ^ 0x80]) + content[place + 1 :]), None)[1]

    return {
        "empty": lambda: (entry.write_bytes(b""), None)[1],
        "half": lambda: (entry.write_bytes(content[: len(content) // 2]), None)[1],
        "one byte less": lambda: (entry.write_bytes(content[:-1]), None)[1],
        "one byte more": lambda: (entry.write_bytes(content + b"\0"), None)[1],
        "no bytes but its length": lambda: (entry.write_bytes(bytes(len(content))), None)[1],
        "header": flipped(20),
        "first byte": flipped(8 + start),
        "middle": flipped(8 + start + 80_000),
        "structure": flipped(len(content) - 100),
        "digest": flipped(len(content) - 1),
        "exchanged blocks": lambda: (entry.write_bytes(content[: 8 + start] + content[16 + start : 24 + start] + content[8 + start : 16 + start] + content[24 + start :]), None)[1],
        "other version": lambda: (entry.write_bytes(content.replace(b'weights_cache":"2"', b'weights_cache":"3"')), None)[1],
        "other key": lambda: (entry.write_bytes(content.replace(b"first", b"other")), None)[1],
        "writable by others": lambda: entry.chmod(0o666),
        "symbolic link": lambda: (entry.rename(entry.with_name("moved")), entry.symlink_to("moved"), None)[2],
        "pipe": lambda: (entry.unlink(), os.mkfifo(entry), None)[2],
    }


def test_damaged_and_foreign_entries_are_removed_and_never_used(cache: WeightsCache, caplog: pytest.LogCaptureFixture) -> None:
    key = cache.key({"name": "first"})
    value = {"numbers": torch.arange(40_000)}
    assert cache.save(key, value)
    (entry,) = entries(cache)
    for name in damaged_copies(entry):
        caplog.clear()
        damaged_copies(entry)[name]()
        assert cache.load(key) is None, name
        assert not os.path.lexists(entry) and "removed" in caplog.text, name
        assert cache.save(key, value) and torch.equal(cache.load(key)["numbers"], value["numbers"]), name


def test_a_new_entry_does_not_inherit_the_permissions_of_the_old_one(cache: WeightsCache) -> None:
    key = cache.key({})
    for _ in range(2):
        assert cache.save(key, weights())
        assert entries(cache)[0].stat().st_mode & 0o777 == 0o600
        entries(cache)[0].chmod(0o666)


def test_files_of_dead_writers_are_removed_and_those_of_live_ones_are_not(cache: WeightsCache) -> None:
    key = cache.key({})
    cache.save(key, weights())
    dead, alive = (entries(cache)[0].with_name(f".{entries(cache)[0].name}.penstock-1-{number}") for number in range(2))
    dead.write_bytes(b"dead")
    alive.write_bytes(b"alive")
    with open(alive) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cache.save(key, weights())
        assert not dead.exists() and alive.exists()
    cache.save(key, weights())
    assert not alive.exists()


def test_an_entry_for_an_absent_device_is_kept(cache: WeightsCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    key = cache.key({})
    cache.save(key, weights())
    new_storages = _cache._new_storages
    monkeypatch.setattr(_cache, "_new_storages", lambda places, device: new_storages([(nbytes, "cuda:99") for nbytes, _ in places], device))
    assert cache.load(key) is None and "needs the device cuda:99" in caplog.text and len(entries(cache)) == 1
    monkeypatch.undo()
    assert cache.load(key) is not None


def test_an_entry_of_another_user_is_removed(cache: WeightsCache) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to other users")
    key = cache.key({})
    cache.save(key, weights())
    os.chown(entries(cache)[0], 1234, -1)
    assert cache.load(key) is None and not entries(cache)


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by other users"):
        WeightsCache(tmp_path / "open")
    with pytest.raises(FileExistsError):
        WeightsCache(Path(__file__))


@pytest.mark.parametrize("wrong", [{"capacity_bytes": "1"}, {"free_bytes": True}])
def test_wrong_types_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        WeightsCache(tmp_path / "cache", **wrong)
    with pytest.raises(ValueError):
        WeightsCache(tmp_path / "cache", capacity_bytes=-1)


# --- limits


def test_the_least_recently_used_entries_are_removed(tmp_path: Path) -> None:
    cache = WeightsCache(tmp_path / "cache", capacity_bytes=500_000, free_bytes=0)
    keys = [cache.key({"number": number}) for number in range(4)]
    for number, key in enumerate(keys):
        assert cache.save(key, weights(float(number)))
        assert cache.load(keys[0]) is not None  # used after each store
    assert [cache.load(key) is not None for key in keys] == [True, False, True, True]
    assert sum(each.stat().st_size for each in entries(cache)) <= 500_000


def test_entries_from_the_future_are_removed_first(tmp_path: Path) -> None:
    cache = WeightsCache(tmp_path / "cache", capacity_bytes=500_000, free_bytes=0)
    keys = [cache.key({"number": number}) for number in range(4)]
    assert cache.save(keys[0], weights())
    os.utime(entries(cache)[0], (1 << 33, 1 << 33))  # as if the clock had been set back
    assert all(cache.save(key, weights()) for key in keys[1:])
    assert [cache.has(key) for key in keys] == [False, True, True, True]


@pytest.mark.parametrize("limit", [{"capacity_bytes": 1000}, {"free_bytes": 1 << 60}])
def test_an_entry_without_room_is_not_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: dict[str, int]) -> None:
    cache = WeightsCache(tmp_path / "cache", **limit)
    assert cache.get({}, weights)["bias"].tolist() == list(range(10))
    assert not entries(cache) and "not stored" in caplog.text


def test_no_entry_is_removed_for_one_that_cannot_fit(cache: WeightsCache, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [cache.key({"number": number}) for number in range(2)]
    cache.save(keys[0], weights())
    monkeypatch.setattr(cache, "_room", lambda: 10_000)  # of a nearly full disk
    assert not cache.save(keys[1], {"large": torch.zeros(200_000)}) and cache.has(keys[0])


def test_a_reader_keeps_an_entry_that_is_removed(cache: WeightsCache, monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache.key({})
    cache.save(key, weights(3))
    read = _cache._read_storages
    monkeypatch.setattr(_cache, "_read_storages", lambda *arguments: (cache.clear(), read(*arguments))[1])
    found = cache.load(key)
    assert torch.equal(found["weight"], weights(3)["weight"]) and not entries(cache)


FAILING = ["os.statvfs", "os.scandir", "fcntl.flock", "os.utime", "_native.PendingFile", "move_pieces", "Source", "read_now"]


@pytest.mark.parametrize("call", FAILING)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_call_never_fails_the_load(cache: WeightsCache, source: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise penstock.Error("failed on purpose", code="io", domain="os", native=number) if call[0] != "o" else OSError(number, "failed on purpose")

    load = Loader(source)
    for _ in range(2):  # a store, then a load
        with monkeypatch.context() as patch:
            owner, _, name = call.rpartition(".")
            patch.setattr(vars(_cache)[owner] if owner else _cache, name, fail)
            assert get(cache, load) == 1
        assert get(cache, load) == 1
    assert not [each for each in os.listdir(cache.folder) if "penstock-" in each]


def test_tensors_are_restored_while_their_bytes_are_read(cache: WeightsCache, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"module": with_attributes(), "types": OBJECTS["types"](), "set": {1}, "device": torch.device("cpu"), "size": torch.Size([3])}
    key = cache.key({})
    assert cache.save(key, found)
    monkeypatch.setattr(_cache, "restored", None)  # only called for objects that must be restored after the reads
    again = cache.load(key)
    assert torch.equal(again["module"].view, found["module"].view) and again["module"].up.weight.shard == (0, 1)
    assert all(torch.equal(each, again["types"][name]) for name, each in found["types"].items())
    assert (again["set"], again["device"], again["size"]) == (found["set"], found["device"], found["size"])


def sum_of(tensor: Any) -> float:
    return float(tensor.sum())


class SetsState:
    def __init__(self) -> None:
        self.tensor = torch.ones(1000)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.total = sum_of(state["tensor"])


class Reduces(SetsState):
    def __reduce__(self) -> Any:
        return sum_of, (self.tensor,)


class Hashes:
    def __init__(self) -> None:
        self.tensor = torch.ones(1000)

    def __hash__(self) -> int:
        return int(sum_of(self.tensor)) if hasattr(self, "tensor") else 0


class Slots:
    __slots__ = ("total", "tensor")  # in the order in which they are restored

    def __init__(self) -> None:
        self.tensor = torch.ones(1000)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "tensor":
            self.total = sum_of(value)


class Stored(dict[str, Any]):
    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, sum_of(value) if isinstance(value, torch.Tensor) else value)


READING: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "__setstate__": (SetsState, lambda found: found.total),
    "__reduce__": (Reduces, lambda found: found),
    "__hash__": (lambda: {Hashes()}, lambda found: hash(next(iter(found)))),
    "__setattr__": (Slots, lambda found: found.total),
    "__setitem__": (lambda: dict.__ior__(Stored(), {"tensor": torch.ones(1000)}), lambda found: found["tensor"]),
}


@pytest.mark.parametrize("name", READING)
def test_classes_that_use_their_tensors_are_restored_after_the_reads(cache: WeightsCache, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    build, total_of = READING[name]
    key = cache.key({})
    assert cache.save(key, build())
    read = _cache._read_storages

    def read_late(source: Any, storages: list[Any], meanwhile: Callable[[], Any]) -> Any:
        for each in storages:
            each.fill_(0xFF)
        early = meanwhile()
        return early, read(source, storages, lambda: None)[1]

    monkeypatch.setattr(_cache, "_read_storages", read_late)
    assert total_of(cache.load(key)) == 1000


def test_reads_end_before_a_failure_to_restore_is_reported(cache: WeightsCache, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, requests, start = Loader(source), [], _cache._started
    get(cache, load)

    def started(*arguments: Any) -> Any:
        requests.append(start(*arguments))
        return requests[-1]

    def fail(*_: Any) -> Any:
        assert requests
        raise AttributeError("no such class")

    with monkeypatch.context() as patch:
        patch.setattr(_cache, "_started", started)
        patch.setattr(_cache, "restored_early", fail)
        assert get(cache, load) == 1 and load.calls == 2
    assert requests and all(each.future.done() for each in requests)


@pytest.mark.parametrize("call", ["new_storage", "Digest"])
def test_a_full_device_never_fails_the_load(cache: WeightsCache, source: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*arguments: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    load = Loader(source)
    for _ in range(2):  # a store, then a load
        with monkeypatch.context() as patch:
            patch.setattr(_cache, call, fail)
            assert get(cache, load) == 1
        assert get(cache, load) == 1
    assert len(entries(cache)) == 1  # not removed


def test_a_folder_in_the_place_of_an_entry_is_left_alone(cache: WeightsCache, source: Path) -> None:
    load = Loader(source)
    get(cache, load)
    (entry,) = entries(cache)
    entry.unlink()
    entry.mkdir()
    assert get(cache, load) == 1
    assert get(cache, load, rank=1) == 1 and get(cache, load, rank=1) == 1 and load.calls == 3


def test_a_process_that_cannot_start_threads_uses_the_cache(cache: WeightsCache, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    source.write_bytes(b"\1" * (40 << 20))
    monkeypatch.setattr("threading.Thread.start", fail)
    value = {"large": torch.arange(3 << 20)}
    for _ in range(2):
        found = cache.get({}, lambda: value, sources=[source])
    assert found is not value and torch.equal(found["large"], value["large"])


def test_a_folder_that_becomes_read_only_still_serves(cache: WeightsCache, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Loader(source)
    get(cache, load)
    opened = os.open

    def read_only(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", read_only)
    os.utime(source, (5, 5))
    assert get(cache, load) == 1 and load.calls == 1


# --- processes


def test_processes_that_are_killed_never_leave_a_wrong_byte(tmp_path: Path) -> None:
    script = Path(__file__).with_name("weights_cache_kills.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path), "25"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_writers_of_an_entry_do_not_harm_each_other(cache: WeightsCache, monkeypatch: pytest.MonkeyPatch) -> None:
    key, other = cache.key({}), WeightsCache(cache.folder, free_bytes=0)
    written = _cache.move_pieces

    def second_writer(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(_cache, "move_pieces", written)
        assert other.save(key, weights(2)) and other.load(key) is not None
        written(*arguments, **options)

    monkeypatch.setattr(_cache, "move_pieces", second_writer)
    assert cache.save(key, weights(2))
    assert torch.equal(cache.load(key)["weight"], weights(2)["weight"]) and len(entries(cache)) == 1


# --- PyTorch


def test_load_module_builds_a_module_once(tmp_path: Path, source: Path) -> None:
    calls = []

    def build() -> Any:
        calls.append(1)
        return tied()

    first, second = (penstock.torch.load_module(build, cache=tmp_path / "cache", key="net 1", sources=[source]) for _ in range(2))
    assert len(calls) == 1 and facts(second) == facts(first) and second.head.weight is second.up.weight


def test_load_module_fills_a_module_in_place(tmp_path: Path, source: Path) -> None:
    def load(module: Any) -> None:
        calls.append(1)
        with torch.no_grad():
            module.up.weight.fill_(5), module.up.bias.copy_(torch.arange(40)), module.plain.fill_(6), module.table.fill_(7)

    calls: list[int] = []
    filled = []
    for _ in range(2):
        module = with_attributes()
        addresses = [each.data_ptr() for each in module.parameters()]
        version = module.up.bias._version
        assert penstock.torch.load_module(module, load, cache=tmp_path / "cache", key={"net": 1}, sources=[source]) is module
        assert [each.data_ptr() for each in module.parameters()] == addresses and module.up.bias._version > version
        with torch.no_grad():
            module.head.weight.zero_()  # random, and filled by nobody
        filled.append(module)
    assert len(calls) == 1 and [each.tolist() for each in (filled[1].plain, filled[1].view)] == [each.tolist() for each in (filled[0].plain, filled[0].view)]
    assert torch.equal(filled[1].up.bias, torch.arange(40.0)) and filled[1].table.tolist() == [7] * 7


def test_load_module_does_not_store_a_module_whose_tensors_are_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def load(module: Any) -> None:
        module.up.weight = torch.nn.Parameter(module.up.weight.half())

    for _ in range(2):
        penstock.torch.load_module(Net(), load, cache=tmp_path / "cache", key="net")
    assert "load() replaced tensors" in caplog.text and not list((tmp_path / "cache").glob("*.safetensors"))


class Layers(torch.nn.Module):
    """Tensors of all kinds, and a module without any."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(30, 40)
        self.act = torch.nn.ReLU()
        self.scale = None
        self.register_parameter("zero_point", None)
        self.register_buffer("table", torch.arange(5_000.0), persistent=False)
        self.register_buffer("empty", torch.empty(3, 0))
        self.sizes = [1, 2]


def with_meta(module: Any) -> Any:
    module.register_buffer("absent", torch.empty(3, device="meta"))
    return module


def in_inference_mode() -> Any:
    with torch.inference_mode():
        return Layers()


def fill(module: Any) -> None:
    with torch.inference_mode(module.up.weight.is_inference()), torch.no_grad():
        module.up.weight.fill_(5)
        module.up.bias.copy_(torch.arange(40))


Make, Load = Callable[[], Any], Callable[[Any], Any]

# What load() does apart from filling the parameters; whether the second start can do the same from the cache.
LOADS: dict[str, tuple[Make, Load, bool]] = {
    "nothing else": (Layers, lambda module: None, True),
    "adds a parameter": (Layers, lambda module: setattr(module, "scale", torch.nn.Parameter(torch.ones(3))), True),
    "adds a frozen parameter": (Layers, lambda module: setattr(module, "zero_point", torch.nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)), True),
    "adds a buffer": (Layers, lambda module: (module.register_buffer("extra", torch.ones(2)), module.register_buffer("more", torch.ones(2), persistent=False)), True),
    "freezes": (Layers, lambda module: module.up.requires_grad_(False), True),
    "ends training": (Layers, lambda module: module.eval(), True),
    "in inference mode": (in_inference_mode, lambda module: None, True),
    "removes a parameter": (Layers, lambda module: setattr(module.up, "bias", None), False),
    "adds a module": (Layers, lambda module: setattr(module, "head", torch.nn.LayerNorm(2)), False),
    "replaces a module": (Layers, lambda module: setattr(module, "act", torch.nn.GELU()), False),
    "turns a buffer into a parameter": (Layers, lambda module: (module.__delattr__("table"), setattr(module, "table", torch.nn.Parameter(torch.arange(5_000.0)))), False),
    "sets a list": (Layers, lambda module: setattr(module.up, "scales", [0.5]), False),
    "appends to a list": (Layers, lambda module: module.sizes.append(3), False),
    "sets an object": (Layers, lambda module: setattr(module.up, "kernel", slice(3)), False),
    "adds a hook": (Layers, lambda module: module.register_forward_hook(lambda *arguments: None), False),
    "leaves a tensor on meta": (lambda: with_meta(Layers()), lambda module: None, False),
    "has a lazy module": (lambda: torch.nn.ModuleDict({"up": torch.nn.Linear(30, 40), "lazy": torch.nn.LazyLinear(3)}), lambda module: None, False),
}


def shown(module: Any) -> Any:
    """What a user of a module sees."""
    lists = [(name, each.sizes, getattr(each.up, "scales", None), getattr(each.up, "kernel", None)) for name, each in module.named_modules() if hasattr(each, "sizes")]
    parameters = [(name, each.requires_grad) for name, each in module.named_parameters()]
    hooks = [len(each._forward_hooks) for each in module.modules()]
    bytes_of = {name: None if torch.nn.parameter.is_lazy(each) or each.is_meta else each.tolist() for name, each in [*module.named_parameters(), *module.named_buffers()]}
    return repr(module), list(module.state_dict()), [each.training for each in module.modules()], lists, parameters, hooks, bytes_of


@pytest.mark.parametrize("name", LOADS)
def test_the_second_start_gives_the_module_that_load_would_give(tmp_path: Path, name: str) -> None:
    make, change, is_stored = LOADS[name]
    calls = []

    def load(module: Any) -> None:
        calls.append(1)
        fill(module)
        change(module)

    cache = WeightsCache(tmp_path / "cache", free_bytes=0)
    first, second = (penstock.torch.load_module(make(), load, cache=cache, key="net") for _ in range(2))
    assert shown(second) == shown(first)
    assert len(calls) == (1 if is_stored else 2) and len(entries(cache)) == is_stored


def without_bias() -> Any:
    found = Layers()
    found.up.bias = None
    return found


def with_tied() -> Any:
    found = Layers()
    found.table = found.empty
    return found


OTHERS: dict[str, Make] = {
    "one parameter fewer": without_bias,
    "one parameter more": lambda: (lambda found: (setattr(found, "scale", torch.nn.Parameter(torch.ones(3))), found)[1])(Layers()),
    "another shape": lambda: (lambda found: (setattr(found.up, "weight", torch.nn.Parameter(torch.ones(40, 31))), found)[1])(Layers()),
    "another type": lambda: Layers().half(),
    "other strides": lambda: (lambda found: (setattr(found.up, "weight", torch.nn.Parameter(torch.ones(30, 40).t())), found)[1])(Layers()),
    "tied": with_tied,
    "wrapped": lambda: (lambda found: (setattr(found, "up", found[0].up), found)[1])(torch.nn.Sequential(Layers())),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_module_of_another_form_is_loaded_as_without_a_cache(tmp_path: Path, name: str) -> None:
    cache = WeightsCache(tmp_path / "cache", free_bytes=0)

    def load(module: Any) -> None:
        with torch.no_grad():
            module.up.weight.fill_(5)

    penstock.torch.load_module(Layers(), load, cache=cache, key="net")
    found, expected = OTHERS[name](), OTHERS[name]()
    found.load_state_dict(expected.state_dict())
    load(expected)
    assert shown(penstock.torch.load_module(found, load, cache=cache, key="net")) == shown(expected)


def test_load_module_keeps_the_mode_that_the_program_chose(tmp_path: Path) -> None:
    for is_training in (True, False):
        module = Layers().train(is_training).requires_grad_(is_training)
        penstock.torch.load_module(module, fill, cache=tmp_path / "cache", key="net")
        assert module.training is is_training and module.up.weight.requires_grad is is_training and module.up.bias[3] == 3


def test_a_damaged_entry_does_not_change_buffers_that_load_leaves_alone(tmp_path: Path) -> None:
    cache = WeightsCache(tmp_path / "cache", free_bytes=0)
    expected = penstock.torch.load_module(Layers(), fill, cache=cache, key="net")
    (entry,) = entries(cache)
    content = bytearray(entry.read_bytes())
    places = {each: content.find(each) for each in (bytes(torch.tensor([number]).numpy()) for number in (17.0, 4321.0))}
    for value, place in places.items():
        assert place > 0
        content[place : place + 4] = bytes(each ^ 0x11 for each in value)
    entry.write_bytes(content)
    assert shown(penstock.torch.load_module(Layers(), fill, cache=cache, key="net")) == shown(expected)


class Kernel:
    def __init__(self, tensor: Any) -> None:
        self.scratch = {"buffers": [tensor]}


def test_load_module_restores_values_and_new_attributes(tmp_path: Path) -> None:
    def load(module: Any) -> None:
        calls.append(1)
        module.up.scale, module.up.name, module.up.ready = 0.5, "int8", True
        module.up.packed = module.up.weight.data.to(torch.int8)
        module.up.address = module.up.packed.data_ptr()

    calls: list[int] = []
    first, second = Net(), Net()
    second.up.address = 1 << 40  # of this process
    for each in (first, second):
        penstock.torch.load_module(each, load, cache=tmp_path / "cache", key="net")
    assert second.up.address == 1 << 40
    assert len(calls) == 1 and (second.up.scale, second.up.name, second.up.ready) == (0.5, "int8", True)
    assert torch.equal(second.up.packed, first.up.packed)


@pytest.mark.parametrize("where", ["an object", "a closure", "a partial", "modules in a list"])
def test_load_module_refuses_tensors_that_it_cannot_restore(tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str) -> None:
    def load(module: Any) -> None:
        tensor = torch.randn(5)
        calls.append(1)
        module.up.kernel = {"an object": lambda: Kernel(tensor), "a closure": lambda: lambda: tensor, "a partial": lambda: partial(print, tensor), "modules in a list": lambda: [torch.nn.Linear(2, 2)]}[where]()

    calls: list[int] = []
    for _ in range(2):
        penstock.torch.load_module(Net(), load, cache=tmp_path / "cache", key="net")
    assert len(calls) == 2 and "keeps a tensor in up.kernel" in caplog.text


def test_load_module_needs_one_way_to_load(tmp_path: Path) -> None:
    for arguments in ((Net(),), (Net, print)):
        with pytest.raises(ValueError, match="load"):
            penstock.torch.load_module(*arguments, cache=tmp_path / "cache", key="net")


# --- transformers


@pytest.mark.filterwarnings("ignore")
def test_from_pretrained_gives_an_equal_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from penstock.weights_cache import from_pretrained

    pytest.importorskip("tqdm").tqdm.monitor_interval = 0  # no thread of its own
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 200, "tie_word_embeddings": True}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(tmp_path / "model")
    options: list[dict[str, Any]] = [{}, {"dtype": torch.bfloat16}]
    if pytest.importorskip("importlib.util").find_spec("torchao") is not None:
        from torchao.quantization import Int8WeightOnlyConfig

        options.append({"quantization_config": transformers.TorchAoConfig(Int8WeightOnlyConfig())})
    x = torch.arange(20).view(2, 10)
    for each in options:
        first = from_pretrained(transformers.AutoModelForCausalLM, tmp_path / "model", cache=tmp_path / "cache", **each)
        moved = {name: (tmp_path / "model" / name).stat() for name in os.listdir(tmp_path / "model")}
        second = from_pretrained(transformers.AutoModelForCausalLM, tmp_path / "model", cache=tmp_path / "cache", **each)
        assert first is not second and torch.equal(first(x).logits, second(x).logits)
        assert second.lm_head.weight is second.model.embed_tokens.weight
        assert all((tmp_path / "model" / name).stat().st_atime_ns == before.st_atime_ns for name, before in moved.items())
        second.save_pretrained(tmp_path / "saved") if "quantization_config" not in each else None
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == len(options), caplog.text
    (tmp_path / "model" / "adapter_config.json").write_text("{}")
    for arguments in ({"state_dict": first.state_dict()}, {}):
        with contextlib.suppress(Exception):  # transformers' own opinion
            from_pretrained(transformers.AutoModelForCausalLM, tmp_path / "model", cache=tmp_path / "cache", **arguments)
    assert "an argument is a Tensor, which the key cannot contain" in caplog.text
    assert "is an adapter" in caplog.text
    (tmp_path / "model" / "adapter_config.json").rename(tmp_path / "model" / "model_index.json")
    from_pretrained(transformers.AutoModelForCausalLM, tmp_path / "model", cache=tmp_path / "cache")
    assert "is a pipeline" in caplog.text and len(list((tmp_path / "cache").glob("*.safetensors"))) == len(options)


class Pretrained:
    calls = 0

    @classmethod
    def from_pretrained(cls, name: str, **options: Any) -> Any:
        cls.calls += 1
        return Net()


PLACES: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "another rank": lambda patch: patch.setenv("RANK", "1"),
    "another number of ranks": lambda patch: patch.setenv("WORLD_SIZE", "2"),
    "another default device": lambda patch: torch.set_default_device("meta"),
    "another default type": lambda patch: patch.setattr(torch, "get_default_dtype", lambda: torch.float16),
    "another GPU": lambda patch: (patch.setattr(torch.cuda, "is_available", lambda: True), patch.setattr(torch.cuda, "device_count", lambda: 0), patch.setattr(torch.cuda, "current_device", lambda: 1)),
    "nothing": lambda patch: None,
}


@pytest.mark.parametrize("change", PLACES)
def test_the_key_of_from_pretrained_covers_where_the_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    from penstock.weights_cache import from_pretrained

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.setattr(Pretrained, "calls", 0)
    for each in (lambda patch: None, PLACES[change]):
        with monkeypatch.context() as patch:
            each(patch)
            try:
                from_pretrained(Pretrained, tmp_path / "model", cache=tmp_path / "cache")
            finally:
                torch.set_default_device(None)
    assert Pretrained.calls == (1 if change == "nothing" else 2)


# --- the digest


def digest_of(contents: list[bytes]) -> bytes:
    """The definition, in integers."""

    def factor(i: int) -> int:
        found = (i + 1) * 0x9E3779B97F4A7C15 % 2**64
        found = (found ^ found >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        found = (found ^ found >> 27) * 0x94D049BB133111EB % 2**64
        return (found ^ found >> 31) | 1

    sums, row = [0] * 4, 0
    for content in contents:
        padded = content + bytes(-len(content) % 4096)
        for start in range(0, len(padded), 4096):
            for j in range(512):
                word = int.from_bytes(padded[start + 8 * j : start + 8 * j + 8], "little", signed=True)
                for i, value in enumerate((factor(row) * word, factor(row) * (word >> 32), factor(j) * word, factor(j) * (word >> 32))):
                    sums[i] = (sums[i] + value) % 2**64
            row += 1
    return b"".join(each.to_bytes(8, "little") for each in sums)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_digests_follow_their_definition(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    numbers = torch.Generator().manual_seed(4)
    contents = [torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=numbers) for nbytes in (5, 4096, 62 * 4096 + 4104, 0, 70_000, 8)]
    placed, row = [], 0
    for each in contents:
        placed.append((each.to(device), row))
        row += _digest.rows_in(len(each))
    expected = digest_of([bytes(each.tolist()) for each in contents])
    for parts in ([placed], [[each] for each in reversed(placed)]):
        found = _digest.Digest()
        for part in parts:
            found.add(part)
        assert found.value() == expected


def pattern(nbytes: int, seed: int) -> Any:
    """Returns bytes that depend on no version of a library."""
    return ((torch.arange(nbytes, dtype=torch.int64) + seed) * 2654435761 % 2**32 >> 13).to(torch.uint8)


KNOWN_DIGESTS = {
    (4096,): "ac1071bc6e4768ed80aaee5c3bde047172ba8c9f98ec0c390e9043beb52a45ab",
    (5, 4096, 258056, 0, 70_000, 8): "a3470b50bfdc40d28852cd4dfbb876456315c6fb89288958bc88988efd36bdc3",
    ((12 << 20) + 3, 100, 300 * 4096): "77a99ce36391d4dc9373496e163734993dacad035982c8b8d50bd785bdffa694",
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_digests_in_existing_entries_stay_valid(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    for sizes, known in KNOWN_DIGESTS.items():
        contents, row = [], 0
        for number, nbytes in enumerate(sizes):
            contents.append((pattern(nbytes, number * 1000).to(device), row))
            row += _digest.rows_in(nbytes)
        found = _digest.Digest([torch.device(device)])
        found.add(contents)
        assert found.value().hex() == known
    found = _digest.Digest()
    found.add([(pattern(5000, 7).to(device), 1 << 40), (pattern(9000, 9).to(device)[1:], 12345)])
    assert found.value().hex() == "ed268409dc501fe2b90e3fc79c2e3b89c3d6670fc13e857c5d985eec75e2507d"


def test_device_memory_and_host_memory_have_the_same_digest(tmp_path: Path) -> None:
    content = bytes(pattern(200_000, 3).tolist())
    memory, sums = penstock.device("host:0").empty(len(content)), penstock.device("host:0").empty(40)
    memory.copy_from(content)
    sums.copy_from(bytes(40))
    parts = [(1, 10_000, 5), (50_000, 0, 6), (4096, 150_000, 1 << 63)]
    for some in ([], parts[:1], parts[1:]):
        _native.add_to_digest([(memory.ptr + at, nbytes, row) for at, nbytes, row in some], sums.ptr, 0)
    address = _native.resolve(content)[0]
    expected = _native.digest_of([(address + at, nbytes, row) for at, nbytes, row in parts])
    (tmp_path / "file").write_bytes(b"1")
    with penstock.open(tmp_path / "file") as file:
        file.read_on_stream(penstock.device("host:0").empty(1), None).wait()  # waits for the stream
    assert tuple(memoryview(sums.to_host()[:32]).cast("Q")) == expected
    for wrong in (address, 0, sums.ptr + 1):
        with pytest.raises(penstock.Error, match="sums of a digest"):
            _native.add_to_digest([], wrong, 0)
    with pytest.raises(penstock.Error, match="not a stream"):
        _native.add_to_digest([], sums.ptr, 1)


def test_digests_of_damaged_contents_differ() -> None:
    content = torch.randint(0, 256, (8 * 4096,), dtype=torch.uint8)

    def value(changed: Any) -> bytes:
        found = _digest.Digest()
        found.add([(changed, 0)])
        return found.value()

    found = {value(content)}
    changes: list[tuple[Callable[[Any], Any], int]] = [(lambda x, i=i: x[i].bitwise_xor_(1 << i % 8), 1) for i in range(0, 32768, 401)]
    changes += [(lambda x, i=i: x[i].bitwise_xor_(0x80), 1) for i in (7, 15, 4103)]  # the sign of a word
    changes += [(lambda x: (x[7].bitwise_xor_(0x80), x[4103].bitwise_xor_(0x80)), 2), (lambda x: x[4096:8192].zero_(), 1), (lambda x: x[1:].copy_(x[:-1].clone()), 1)]
    changes += [(lambda x: x[:8192].copy_(x[4096 : 4096 + 8192].clone()), 1), (lambda x: x[:16].copy_(x[:16].roll(8)), 1)]
    for change, _ in changes:
        changed = content.clone()
        change(changed)
        found.add(value(changed))
    assert len(found) == 1 + len(changes)
