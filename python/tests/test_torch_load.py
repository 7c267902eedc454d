"""penstock.torch.load(): what it returns is what torch.load returns, and what it refuses torch.load refuses."""

from __future__ import annotations

import io
import logging
import os
import pickle
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import penstock

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import penstock.torch  # noqa: E402

from .torch_states import assert_same, module_and_optimizer, state, tensors_of_every_dtype  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.pt"


def test_nested_objects_come_back_as_from_torch(path: Path) -> None:
    for each in (state(), module_and_optimizer(), torch.arange(5), 7, None, [], {"a": torch.empty(0)}):
        torch.save(each, path)
        assert penstock.torch.fallback_reason(path) is None
        assert_same(penstock.torch.load(path), torch.load(path, weights_only=True))
        assert_same(penstock.torch.load(str(path), weights_only=False), each)


def test_every_dtype_comes_back(path: Path) -> None:
    tensors = tensors_of_every_dtype()
    assert len(tensors) > 15
    torch.save(tensors, path)
    found = penstock.torch.load(path)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


def test_thousands_of_tensors_come_back(path: Path) -> None:
    tensors = {f"layer.{i}": torch.full((i % 7,), i) for i in range(3_000)}
    torch.save(tensors, path)
    found = penstock.torch.load(path)
    assert list(found) == list(tensors) and all(found[name].tolist() == tensor.tolist() for name, tensor in tensors.items())


def test_storages_can_grow_as_those_of_torch(path: Path) -> None:
    torch.save(torch.arange(10), path)
    found = penstock.torch.load(path)
    assert found.untyped_storage().resizable()
    found.resize_(1_000)
    assert found[:10].tolist() == list(range(10))


def test_what_looks_at_its_bytes_while_it_is_made_finds_them(path: Path) -> None:
    """Quantized and sparse tensors, and a generator, which takes its state from a tensor."""
    generator = torch.Generator()
    generator.manual_seed(5)
    quantized = torch.quantize_per_channel(torch.randn(4, 3), torch.tensor([0.1, 0.2, 0.3, 0.5]), torch.zeros(4, dtype=torch.long), 0, torch.qint8)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2], [1, 3]]), torch.tensor([5.0, 7.0]), (3, 4))
    torch.save([quantized, sparse, generator.get_state()], path)
    found = penstock.torch.load(path)
    assert torch.equal(found[0].dequantize(), quantized.dequantize())
    assert torch.equal(found[1].to_dense(), sparse.to_dense())
    torch.save(generator, path)
    found = penstock.torch.load(path, weights_only=False)
    assert torch.equal(torch.rand(4, generator=found), torch.rand(4, generator=generator))


def test_map_location_of_every_kind_leads_where_it_does_in_torch(path: Path) -> None:
    told: list[tuple[int, str]] = []

    def placed(storage: Any, location: str) -> Any:
        told.append((storage.nbytes(), location))
        assert storage.tolist()  # its bytes are there
        return storage if len(told) % 2 else None

    torch.save({"a": torch.arange(7), "b": torch.ones(3)}, path)
    for place in (None, "cpu", b"cpu", torch.device("cpu"), {"cpu": "cpu"}, {"cuda:0": "cpu"}, placed):
        try:
            wanted = torch.load(path, place)
        except Exception as error:
            with pytest.raises(type(error)):
                penstock.torch.load(path, place)
        else:
            assert_same(penstock.torch.load(path, place), wanted)
    assert told == 2 * [(56, "cpu"), (12, "cpu")]


def test_a_place_that_is_not_there_is_refused_as_torch_does(path: Path) -> None:
    torch.save(torch.ones(3), path)
    for place in ("cuda:77", "nowhere", {"cpu": "nowhere"}):
        with pytest.raises(RuntimeError) as of_torch:
            torch.load(path, place)
        with pytest.raises(RuntimeError) as found:
            penstock.torch.load(path, place)
        assert str(found.value) == str(of_torch.value)


class Touch:
    """A pickle of it creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_a_hostile_pickle_does_not_run(path: Path, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    torch.save([torch.ones(3), Touch(touched)], path)
    with pytest.raises(pickle.UnpicklingError) as of_torch:
        torch.load(path, weights_only=True)
    with pytest.raises(pickle.UnpicklingError) as found:
        penstock.torch.load(path)
    assert str(found.value) == str(of_torch.value) and "mkdir" in str(found.value)
    assert not touched.exists()
    penstock.torch.load(path, weights_only=False)
    assert touched.exists()  # the test would have seen it


class Own:
    def __init__(self) -> None:
        self.tensor = torch.arange(4)


def test_what_a_program_declares_safe_is_loaded(path: Path) -> None:
    torch.save(Own(), path)
    with pytest.raises(pickle.UnpicklingError, match="Own"):
        penstock.torch.load(path)
    with torch.serialization.safe_globals([Own]):
        assert penstock.torch.load(path).tensor.tolist() == [0, 1, 2, 3]


def test_the_environment_can_ask_for_restrictions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(Own(), path)
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(pickle.UnpicklingError):
        penstock.torch.load(path, weights_only=False)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(RuntimeError, match="both"):
        penstock.torch.load(path)
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD")
    assert isinstance(penstock.torch.load(path), Own)
    with pytest.raises(RuntimeError, match="pickle_module"):
        penstock.torch.load(path, weights_only=True, pickle_module=pickle)


def test_a_pickle_module_without_weights_only_unpickles_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(Own(), path)
    assert isinstance(penstock.torch.load(path, pickle_module=pickle), Own)
    assert isinstance(penstock.torch.load(path, "cpu", pickle), Own)
    assert isinstance(penstock.torch.load(path, pickle_module=pickle, weights_only=False), Own)
    with pytest.raises(pickle.UnpicklingError):
        penstock.torch.load(path, pickle_module=None)
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(RuntimeError, match="pickle_module"):
        penstock.torch.load(path, pickle_module=pickle)


def test_another_byte_order_is_turned_around(path: Path) -> None:
    tensors = {"a": torch.arange(5, dtype=torch.int32), "b": torch.arange(3, dtype=torch.float64), "c": torch.arange(4, dtype=torch.uint8)}
    other = {"little": b"big", "big": b"little"}[sys.byteorder]
    torch.save(tensors, path)
    rewrite(path, byteorder=other)
    assert_same(penstock.torch.load(path), torch.load(path))
    assert penstock.torch.load(path)["a"].tolist() == [i << 24 for i in range(5)]
    rewrite(path, byteorder=b"middle")
    for load in (torch.load, penstock.torch.load):
        with pytest.raises(ValueError, match="endianness"):
            load(path)
    with pytest.raises(penstock.torch.CheckpointError, match=f"{path}: Unknown endianness"):
        penstock.torch.load(path)


def rewrite(path: Path, **records: bytes | None) -> None:
    """The archive with other contents of some of its records; None: without that one."""
    with zipfile.ZipFile(path) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            told = records.get(name.partition("/")[2].replace("/", "_").replace(".", "_"), content)
            if told is not None:
                archive.writestr(name, told)


def test_what_is_not_read_here_comes_from_torch_and_says_why(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.torch")
    tensor = torch.arange(6)
    torch.save(tensor, path, _use_new_zipfile_serialization=False)
    assert torch.equal(penstock.torch.load(path), tensor)
    assert "it is not a zip archive" in caplog.text
    torch.save(tensor, path)
    assert torch.equal(penstock.torch.load(path, mmap=True), tensor)
    assert "mmap=True" in caplog.text
    assert torch.equal(penstock.torch.load(io.BytesIO(path.read_bytes())), tensor)
    assert "BytesIO is not a file path" in caplog.text
    assert penstock.torch.load(path, map_location="meta").device.type == "meta"
    assert "meta" in str(penstock.torch.fallback_reason(path, "meta"))
    with zipfile.ZipFile(path) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert "compressed" in str(penstock.torch.fallback_reason(path))


def test_a_torchscript_archive_is_left_to_torch(path: Path) -> None:
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), str(path))
    assert "TorchScript" in str(penstock.torch.fallback_reason(path))
    with pytest.raises(RuntimeError), pytest.warns(UserWarning):
        penstock.torch.load(path)


def test_a_file_cut_anywhere_is_an_error_that_names_it(path: Path) -> None:
    torch.save({"a": torch.arange(300), "b": torch.ones(5)}, path)
    whole = path.read_bytes()
    for length in (5, 30, 100, 1_000, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(penstock.torch.CheckpointError, match="the archive is truncated") as caught:
            penstock.torch.load(path)
        assert str(path) in str(caught.value) and caught.value.filename == str(path)
        assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, penstock.Error)
    path.write_bytes(b"")
    for load in (torch.load, penstock.torch.load):
        with pytest.raises(EOFError):
            load(path)
    with pytest.raises(FileNotFoundError, match="missing"):
        penstock.torch.load(f"{path}.missing")


@pytest.mark.parametrize("mmap", [None, True])
def test_archives_that_do_not_hold_together_are_errors_that_name_the_storage(path: Path, mmap: bool | None) -> None:
    torch.save(torch.arange(300), path)
    whole = path.read_bytes()
    rewrite(path, data_0=b"short")
    with pytest.raises(penstock.torch.CheckpointError, match=f"{path}: storage data/0 has 5 bytes, but the pickle expects 2400"):
        penstock.torch.load(path, mmap=mmap)
    rewrite(path, data_0=None)
    with pytest.raises(penstock.torch.CheckpointError, match=f"{path}: the archive has no record state/data/0"):
        penstock.torch.load(path, mmap=mmap)
    rewrite(path, data_pkl=None)
    with pytest.raises(penstock.torch.CheckpointError, match="no record archive/data.pkl|no record state/data.pkl"):
        penstock.torch.load(path, mmap=mmap)
    header = whole.index(b"state/data/0") - 30
    path.write_bytes(whole[:header] + b"XXXX" + whole[header + 4 :])
    with pytest.raises(penstock.torch.CheckpointError, match=f"record state/data/0: its local header is not at offset {header}"):
        penstock.torch.load(path, mmap=mmap)
    directory = whole.index(b"PK\1\2", header)
    entry = whole.index(b"state/data/0", directory) - 46
    path.write_bytes(whole[: entry + 42] + struct.pack("<L", len(whole) + 999) + whole[entry + 46 :])
    with pytest.raises(penstock.torch.CheckpointError, match="its local header is not at offset"):
        penstock.torch.load(path, mmap=mmap)


def test_a_file_that_is_cut_while_it_is_read_names_the_storage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"a": torch.arange(30_000), "b": torch.arange(30_000)}, path)
    found = penstock.torch._load_checkpoint.wanted_storages

    def cut(*arguments: Any) -> Any:
        """Once the directory has been read."""
        os.truncate(path, 300_000)
        return found(*arguments)

    monkeypatch.setattr("penstock.torch._load_checkpoint.wanted_storages", cut)
    with pytest.raises(penstock.Error, match=f"{path}: (storage|record).*data/1.*(read|its local header)"):
        penstock.torch.load(path)


def test_a_pickle_that_the_first_pass_cannot_follow_is_loaded_all_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = state()
    torch.save(wanted, path)
    monkeypatch.setattr("penstock.torch._load_checkpoint.wanted_storages", lambda *_: [])
    assert_same(penstock.torch.load(path), wanted)


def test_the_first_pass_runs_nothing_and_does_not_allocate(tmp_path: Path) -> None:
    from penstock.torch._scan import wanted_storages

    touched = tmp_path / "touched"
    assert wanted_storages(pickle.dumps(Touch(touched)), "utf-8") == [] and not touched.exists()
    huge = b"\x80\x02ctorch\nUntypedStorage\n\x8a\x06" + (1 << 40).to_bytes(6, "little") + b"\x85R."
    assert wanted_storages(huge, "utf-8") == []
    assert wanted_storages(b"\x80\x02garbage", "utf-8") == []


def test_progress_is_told_up_to_all_bytes(path: Path) -> None:
    torch.save([torch.full((40_000_000,), i, dtype=torch.uint8) for i in range(3)], path)
    told: list[tuple[int, int]] = []
    found = penstock.torch.load(path, progress=lambda done, total: told.append((done, total)))
    assert all(bool((each == i).all()) for i, each in enumerate(found))
    assert len(told) == 2 and told[-1] == (120_000_000, 120_000_000) and told[0][0] in (40_000_000, 80_000_000)


def test_an_interrupt_ends_the_reading(path: Path) -> None:
    torch.save([torch.zeros(80_000_000, dtype=torch.uint8)], path)

    def interrupt(done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        penstock.torch.load(path, progress=interrupt)  # that nothing is left under way is looked at after this file's tests


def test_importing_penstock_does_not_import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import sys, penstock; sys.exit('torch' in sys.modules)"], check=True)


@needs_gpu
def test_storages_go_straight_to_a_gpu(path: Path) -> None:
    wanted = state()
    torch.save(wanted, path)
    assert_same(penstock.torch.load(path, "cuda:0"), torch.load(path, "cuda:0"))
    assert_same(penstock.torch.load(path, {"cpu": "cuda:0"}), torch.load(path, "cuda:0"))
    assert_same(penstock.torch.load(path, lambda storage, _: storage.cuda(0)), torch.load(path, "cuda:0"))
    torch.save(torch.load(path, "cuda:0"), path)
    assert penstock.torch.load(path)["parameter"].device == torch.device("cuda:0")
    assert penstock.torch.load(path, "cpu")["parameter"].device == torch.device("cpu")


@needs_gpu
def test_memory_that_a_stream_is_still_at_work_in_is_waited_for(path: Path) -> None:
    nbytes = 64 << 20
    torch.save(torch.full((nbytes,), 3, dtype=torch.uint8), path)
    with torch.cuda.stream(torch.cuda.Stream()):
        before = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(200_000_000)
        before.fill_(7)
        del before  # back to the allocator, which gives it to whoever comes next in this stream
        found = penstock.torch.load(path, "cuda")
        assert bool((found == 3).all())
