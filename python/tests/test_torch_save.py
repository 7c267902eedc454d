"""penstock.torch.save(): files that torch.load reads, whole whatever happens."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import penstock.torch  # noqa: E402
from penstock.torch import _crc32, _zip_layout  # noqa: E402

from .torch_states import assert_same, module_and_optimizer, state, tensors_of_every_dtype  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.pt"


def test_torch_loads_what_was_saved(path: Path) -> None:
    for each in (state(), module_and_optimizer(), torch.arange(5), 7, None, {"a": torch.empty(0)}):
        penstock.torch.save(each, path)
        assert_same(torch.load(path, weights_only=True), each)
        assert_same(torch.load(path, weights_only=True, mmap=True), each)
        assert_same(penstock.torch.load(path), each)
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
    assert os.listdir(path.parent) == ["state.pt"]


def test_every_dtype_is_saved(path: Path) -> None:
    tensors = tensors_of_every_dtype()
    penstock.torch.save(tensors, str(path))
    for name, tensor in torch.load(path).items():
        assert tensor.dtype == tensors[name].dtype and tensor.view(torch.uint8).tolist() == tensors[name].view(torch.uint8).tolist()


def test_thousands_of_tensors_are_saved(path: Path) -> None:
    tensors = {f"layer.{i}": torch.full((i % 7,), i) for i in range(3_000)}
    penstock.torch.save(tensors, path)
    found = torch.load(path)
    assert all(found[name].tolist() == tensor.tolist() for name, tensor in tensors.items())


def test_the_pickle_and_the_storages_are_those_of_torch(path: Path, tmp_path: Path) -> None:
    wanted = state()
    penstock.torch.save(wanted, path)
    torch.save(wanted, tmp_path / "other.pt")
    with zipfile.ZipFile(path) as found, zipfile.ZipFile(tmp_path / "other.pt") as of_torch:
        assert found.read("state/data.pkl") == of_torch.read("other/data.pkl")
        for each in of_torch.namelist():
            if "/data/" in each or each.endswith(("/byteorder", "/version")):
                assert found.read(each.replace("other/", "state/", 1)) == of_torch.read(each)


def test_storages_are_aligned(path: Path) -> None:
    penstock.torch.save([torch.arange(i) for i in range(1, 20)], path)
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for each in archive.infolist():
            file.seek(each.header_offset)
            header = file.read(30)
            assert (each.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")) % 64 == 0


def test_alignment_is_what_pytorch_is_set_to(path: Path) -> None:
    config = pytest.importorskip("torch.utils.serialization").config
    if not hasattr(config.save, "storage_alignment"):
        pytest.skip("this PyTorch has no setting for it")
    with config.patch({"save.storage_alignment": 4096}):
        penstock.torch.save([torch.arange(3), torch.arange(5)], path)
    assert path.read_bytes()[8192:8200] != b"" and [each.tolist() for each in torch.load(path)] == [[0, 1, 2], [0, 1, 2, 3, 4]]
    with zipfile.ZipFile(path) as archive:
        assert archive.read("state/.storage_alignment") == b"4096"
    assert torch.frombuffer(path.read_bytes(), dtype=torch.int64, count=3, offset=_offset(path, "state/data/0")).tolist() == [0, 1, 2]
    assert _offset(path, "state/data/0") % 4096 == 0


def _offset(path: Path, name: str) -> int:
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo(name).header_offset
    header = path.read_bytes()[start : start + 30]
    return start + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")


def test_five_gigabytes_can_be_read_by_zip_tools_and_torch(tmp_path: Path) -> None:
    """Of zeros, which take no room in the file: the directory alone is written."""
    path = tmp_path / "large.pt"
    sizes = [5 << 30, 100, 5 << 30]
    records = [("large/version", 2), *((f"large/data/{i}", nbytes) for i, nbytes in enumerate(sizes))]
    placed = _zip_layout.place(records, 64)
    with open(path, "wb") as file:
        for each in placed:
            file.seek(each.header_offset)
            file.write(_zip_layout.header_of(each, 0))
            assert file.tell() == each.offset
        file.seek(placed[-1].offset + placed[-1].nbytes)
        file.write(_zip_layout.directory_of(placed, [0] * len(placed)))
    with open(path, "r+b") as file:
        file.seek(placed[2].offset)
        file.write(b"between")
        file.seek(placed[0].offset)
        file.write(b"3\n")
    with zipfile.ZipFile(path) as archive:
        assert [each.file_size for each in archive.infolist()] == [2, *sizes]
        with archive.open("large/data/0") as member:
            assert member.read(5) == bytes(5)
    reader = torch._C.PyTorchFileReader(str(path))
    for each in placed:
        name = each.name.decode().removeprefix("large/")
        assert reader.get_record_offset(name) == each.offset
    assert reader.get_record("data/1")[:7] == b"between"


def test_more_members_than_zip_had_numbers_for(path: Path) -> None:
    placed = _zip_layout.place([("a/version", 2), *((f"a/data/{i}", 0) for i in range(70_000))], 64)
    content = bytearray(placed[-1].offset)
    content[placed[0].offset : placed[0].offset + 2] = b"3\n"
    for each in placed:
        header = _zip_layout.header_of(each, 0)
        content[each.header_offset : each.header_offset + len(header)] = header
    path.write_bytes(bytes(content) + _zip_layout.directory_of(placed, [0] * len(placed)))
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == 70_001
    assert torch._C.PyTorchFileReader(str(path)).get_record_offset("data/69999") == placed[-1].offset


@pytest.mark.parametrize("nbytes", [0, 1, 3, 4, 5, 64, 1_000, 4_096, 100_001])
def test_checksums_by_tensor_operations_are_those_of_zlib(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    wanted = zlib.crc32(bytes(content.tolist()))
    assert _crc32.crc32_of_tensor(content) == wanted
    monkeypatch.setattr(_crc32, "_CHUNK_BYTES", 1 << 10)
    assert _crc32.crc32_of_tensor(content) == wanted
    half = nbytes // 3
    first, second = (_crc32.crc32_of_tensor(each) for each in (content[:half], content[half:]))
    assert _crc32.combined(first, second, nbytes - half) == wanted


def test_a_part_of_a_storage_is_looked_at_as_bytes() -> None:
    from penstock._core.torch_storages import Memory

    tensor = torch.arange(1_000, dtype=torch.float64)[17:900]
    memory = Memory(tensor.data_ptr(), tensor.nbytes, tensor.untyped_storage(), tensor.device)
    assert _crc32.crc32_of_tensor(_crc32.bytes_of(memory)) == zlib.crc32(tensor.numpy().tobytes())


def test_checksums_of_large_storages_are_computed_by_several_threads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_crc32, "_CHUNK_BYTES", 10_000)
    wanted = [torch.randint(0, 256, (i * 33_333,), dtype=torch.uint8) for i in range(5)]

    def checksums() -> list[int]:
        penstock.torch.save(wanted, path)
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            return [archive.getinfo(f"state/data/{i}").CRC for i in range(5)]

    assert checksums() == [zlib.crc32(each.numpy().tobytes()) for each in wanted]

    def refuse(_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("threading.Thread.start", refuse)
    assert checksums() == [zlib.crc32(each.numpy().tobytes()) for each in wanted]


def test_checksums_can_be_left_out(path: Path) -> None:
    wanted = torch.arange(100)

    def checksum() -> int:
        with zipfile.ZipFile(path) as archive:
            return archive.getinfo("state/data/0").CRC

    penstock.torch.save(wanted, path, crc32=False)
    assert checksum() == 0 and torch.equal(torch.load(path), wanted) and torch.equal(penstock.torch.load(path), wanted)
    if hasattr(torch.serialization, "set_crc32_options"):
        torch.serialization.set_crc32_options(False)
        try:
            penstock.torch.save(wanted, path)
            assert checksum() == 0
            penstock.torch.save(wanted, path, crc32=True)
        finally:
            torch.serialization.set_crc32_options(True)
        assert checksum() == zlib.crc32(wanted.numpy().tobytes())
    penstock.torch.save(wanted, path)
    assert checksum() == zlib.crc32(wanted.numpy().tobytes())


def test_views_of_other_types_are_refused_as_by_torch(path: Path) -> None:
    tensor = torch.arange(4, dtype=torch.int32)
    for save in (torch.save, penstock.torch.save):
        with pytest.raises(RuntimeError, match="view the same data as different types"):
            save([tensor, tensor.view(torch.float32)], path.with_name(save.__module__))
    assert not path.with_name(penstock.torch.save.__module__).exists()


def test_what_is_no_path_goes_to_torch(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    penstock.torch.save(torch.arange(3), buffer)
    buffer.seek(0)
    assert torch.load(buffer).tolist() == [0, 1, 2]
    penstock.torch.save(torch.arange(3), "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_names_links_and_permissions_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "a dépôt.v1.pt", tmp_path / "link.pt"
    penstock.torch.save(1, target)
    target.chmod(0o640)
    link.symlink_to(target.name)
    penstock.torch.save(torch.arange(3), link)
    assert link.is_symlink() and torch.load(target).tolist() == [0, 1, 2] and target.stat().st_mode & 0o777 == 0o640


def test_a_save_that_fails_leaves_the_old_file(path: Path, tmp_path: Path) -> None:
    penstock.torch.save(1, path)
    before = path.read_bytes()

    class Fails:
        def __reduce__(self) -> Any:
            raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"):
        penstock.torch.save([torch.ones(3), Fails()], path)

    def fails(done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        penstock.torch.save(torch.ones(3), path, progress=fails)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["state.pt"]
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/missing/state.pt"):
        penstock.torch.save(1, tmp_path / "missing" / "state.pt")
    with pytest.raises(OSError, match=str(tmp_path)):
        penstock.torch.save(1, tmp_path / "state.pt" / "below")


def test_progress_is_told_up_to_all_bytes(path: Path) -> None:
    told: list[tuple[int, int]] = []
    wanted = [torch.full((40_000_000,), i, dtype=torch.uint8) for i in range(3)]
    penstock.torch.save(wanted, path, progress=lambda done, total: told.append((done, total)))
    assert len(told) == 2 and told[-1] == (120_000_000, 120_000_000)
    assert all(torch.equal(a, b) for a, b in zip(torch.load(path), wanted))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounting a file system needs root: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_told_and_the_old_file_stays(small_disk: Path) -> None:
    path = small_disk / "state.pt"
    penstock.torch.save(torch.arange(1_000), path)
    for save in (penstock.torch.save, lambda obj, f: penstock.torch.save_async(obj, f).result()):
        with pytest.raises(penstock.Error, match=f"{path}: storage data/0: .*No space left on device") as caught:
            save(torch.zeros(4_000_000), path)
        assert caught.value.code == "no_space"
        assert os.listdir(small_disk) == ["state.pt"] and torch.equal(torch.load(path), torch.arange(1_000))


# For each line of its input it forks processes that save until they are killed, and prints "ended" when they are: importing PyTorch takes seconds.
_savers = """
import os, sys, torch, penstock.torch
path, save, count = sys.argv[1], getattr(penstock.torch, sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)

def say(line):
    os.write(1, (line + "\\n").encode())  # in one piece: two processes share the pipe, and print() may write the end of a line by itself

def save_until_killed():
    say(f"begins {os.getpid()}")
    for i in range(1, 1_000_000):
        done = save({"number": i, "first": torch.full((400_000,), i), "second": torch.full((200_000,), -i)}, path)
        if done is not None:
            done.result()
        say(str(i))

for line in sys.stdin:
    children = []
    for _ in range(count):
        children.append(os.fork())
        if children[-1] == 0:
            save_until_killed()
    for child in children:
        os.waitpid(child, 0)
    say("ended")
"""


@contextlib.contextmanager
def savers(path: Path, how: str, count: int) -> Iterator[Any]:
    command = [sys.executable, "-c", _savers, str(path), how, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def is_whole(found: Any) -> bool:
    number = found["number"]
    return bool((found["first"] == number).all()) and bool((found["second"] == -number).all())


@pytest.mark.parametrize("how", ["save", "save_async"])
def test_a_process_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path, how: str) -> None:
    path = tmp_path / "state.pt"
    seen = []
    with savers(path, how, 1) as process:
        for i in range(6):
            process.stdin.write("go\n")
            process.stdin.flush()
            begins, pid = process.stdout.readline().split()
            assert begins == "begins"
            for _ in range(2 * i):  # saves, after which it is killed in the next one
                assert process.stdout.readline() != "ended\n"
            os.kill(int(pid), signal.SIGKILL)
            while process.stdout.readline() != "ended\n":
                assert process.poll() is None
            if path.exists():
                found = torch.load(path)
                assert is_whole(found)
                seen.append(found["number"])
            for each in tmp_path.glob(".*.penstock-*"):
                each.unlink()
    assert seen


def test_two_processes_that_save_to_one_path_leave_one_of_theirs(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    with savers(path, "save", 2) as process:
        process.stdin.write("go\n")
        process.stdin.flush()
        lines = iter(process.stdout.readline, "")
        begun = 0
        while begun < 2 or not path.exists():
            begun += next(lines).startswith("begins")
        for _ in range(10):
            assert is_whole(penstock.torch.load(path))
            next(lines)  # another one has been saved


@needs_gpu
def test_storages_go_straight_from_a_gpu(path: Path) -> None:
    torch.save(state(), path)
    wanted = torch.load(path, "cuda:0")
    wanted["large"] = torch.randint(0, 256, (70_000_001,), dtype=torch.uint8, device="cuda")
    penstock.torch.save(wanted, path)
    assert_same(torch.load(path), wanted)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None  # the checksums that the GPU has computed


@needs_gpu
def test_a_part_of_a_gpu_s_storage_has_the_right_checksum(path: Path) -> None:
    """As torch.distributed.checkpoint saves it."""
    from penstock._core.torch_storages import Memory

    for nbytes in (1_000, 5_000_001):
        whole = torch.randint(0, 256, (nbytes + 100,), dtype=torch.uint8, device="cuda")
        part = whole[37 : 37 + nbytes]
        memory = Memory(part.data_ptr(), nbytes, part.untyped_storage(), part.device)
        torch.cuda.synchronize()
        assert _crc32.crcs32_of([[memory]]) == [zlib.crc32(part.cpu().numpy().tobytes())]


@needs_gpu
def test_what_a_stream_is_still_to_write_is_waited_for(path: Path) -> None:
    tensor = torch.zeros(10_000_000, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)
        tensor.fill_(7)
        penstock.torch.save(tensor, path)
    assert bool((torch.load(path, "cpu") == 7).all())
