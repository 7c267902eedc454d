"""penstock.load(): every kind of file, and the library of the result; as tables of kinds, devices and programs with or without PyTorch."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import gguf, safetensors
from penstock import _native
from penstock._files.kinds import KINDS, Kind

from .gguf_files import Tensor
from .gguf_files import gguf as gguf_of
from .range_server import WebServer

TENSORS = {"first": np.arange(12, dtype="f4").reshape(3, 4), "second": np.arange(5, dtype="f4")}
HALVES = [{"first": TENSORS["first"]}, {"second": TENSORS["second"]}]


def _torch_tensors(tensors: dict[str, Any]) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    return {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}


def _save_pt(path: Path, tensors: dict[str, Any] = TENSORS, **options: Any) -> None:
    pytest.importorskip("torch").save(_torch_tensors(tensors), path, **options)


def _save_index(path: Path, files: list[str]) -> None:
    path.write_text(json.dumps({"metadata": {}, "weight_map": dict(zip(TENSORS, files))}))


def _save_npz(path: Path) -> None:
    with open(path, "wb") as file:  # numpy.savez(path) appends an ending
        np.savez(file, **TENSORS)


def _save_gguf(path: Path) -> None:
    path.write_bytes(gguf_of(tensors=[Tensor(name, "F32", array.shape, array.tobytes()) for name, array in TENSORS.items()]))


# Each writes the two tensors to a file of a name that says nothing.
FILES: dict[str, Callable[[Path], Any]] = {
    "safetensors": lambda path: safetensors.save_file(TENSORS, path),
    "npz": _save_npz,
    "gguf": _save_gguf,
    "checkpoint": _save_pt,
    "legacy checkpoint": partial(_save_pt, _use_new_zipfile_serialization=False),
}


def _folder_of_safetensors(folder: Path) -> None:
    safetensors.save_file(TENSORS, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")


def _folder_of_shards(folder: Path, index: bool, stem: str = "model") -> None:
    names = [f"{stem}-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, half in zip(names, HALVES):
        safetensors.save_file(half, folder / name)
    if index:
        _save_index(folder / "model.safetensors.index.json", names)


def _folder_of_checkpoints(folder: Path, index: bool) -> None:
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    for name, half in zip(names, HALVES):
        _save_pt(folder / name, half)
    _save_pt(folder / "training_args.bin")
    if index:
        _save_index(folder / "pytorch_model.bin.index.json", names)


FOLDERS: dict[str, Callable[[Path], Any]] = {
    "one file": _folder_of_safetensors,
    "one file of another name": lambda folder: safetensors.save_file(TENSORS, folder / "adapter.safetensors"),
    "shards with an index": partial(_folder_of_shards, index=True),
    "shards without an index": partial(_folder_of_shards, index=False),
    "shards of a variant": partial(_folder_of_shards, index=False, stem="model.fp16"),
    "a checkpoint": lambda folder: _save_pt(folder / "pytorch_model.bin"),
    "checkpoints with an index": partial(_folder_of_checkpoints, index=True),
    "checkpoints without an index": partial(_folder_of_checkpoints, index=False),
}


def same(found: dict[str, Any], expected: dict[str, Any] = TENSORS) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(np.asarray(found[name]), array) for name, array in expected.items())


# --- kinds


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", ["x", "x.bin", "x.zip", "x.dat"])
def test_a_file_is_loaded_by_its_content(tmp_path: Path, kind: str, name: str) -> None:
    FILES[kind](tmp_path / name)
    assert same(penstock.load(tmp_path / name))
    assert same(penstock.load(os.fsencode(tmp_path / name)))
    with open(tmp_path / name, "rb") as file:
        assert same(penstock.load(file.fileno()))
    assert bytes(memoryview(np.asarray(penstock.load(tmp_path / name, "u1")))) == (tmp_path / name).read_bytes()


@pytest.mark.parametrize("kind", FILES)
def test_a_dtype_alone_is_refused_for_a_file_of_tensors(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    FILES[kind](path)
    load = partial(penstock.load, path, framework="np")
    with pytest.raises(penstock.InvalidArgument, match=f"^{path} is an? .*dtype= does not convert tensors: load it without dtype="):
        load("f4")
    content = path.read_bytes()
    assert load("i1").tobytes() == load("u1").tobytes() == content
    assert load("<u8", 1).tobytes() == content[:8]
    assert load("<u2", offset=8, exact=False).tobytes() == content[8 : 8 + (len(content) - 8) // 2 * 2]


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_is_its_model(tmp_path: Path, kind: str) -> None:
    FOLDERS[kind](tmp_path)
    assert same(penstock.load(tmp_path))
    assert same(penstock.load(tmp_path.as_uri()))
    with pytest.raises(penstock.InvalidArgument, match="is a folder: dtype, shape and offset apply only to plain data files"):
        penstock.load(tmp_path, "f4")
    for index in tmp_path.glob("*.index.json"):
        assert same(penstock.load(index))


def test_names_choose_tensors(tmp_path: Path) -> None:
    FILES["safetensors"](tmp_path / "x")
    _folder_of_shards(tmp_path, index=False)
    for path in (tmp_path / "x", tmp_path):
        assert list(penstock.load(path, names=["second"])) == ["second"]
    FILES["checkpoint"](tmp_path / "y")
    with pytest.raises(penstock.InvalidArgument, match="y is a torch.save checkpoint; names= works only with"):
        penstock.load(tmp_path / "y", names=["second"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        """Files of a folder, by ranges."""

        def log_message(self, *_: Any) -> None:
            pass

        def _answer(self, with_body: bool) -> None:
            path = Path(self.translate_path(self.path))
            if not path.is_file():
                self.send_error(404)
                return
            content = path.read_bytes()
            begin, end = 0, len(content)
            if "Range" in self.headers:
                first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
                begin, end = int(first), min(end, int(last) + 1 if last else end)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
            else:
                self.send_response(200)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            if with_body:
                self.wfile.write(content[begin:end])

        def do_GET(self) -> None:
            self._answer(True)

        def do_HEAD(self) -> None:
            self._answer(False)

    with WebServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path))) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_address[1]}"
        served.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", ["safetensors", "npz", "gguf", "checkpoint"])
def test_a_url_is_loaded_by_its_content(tmp_path: Path, server: str, kind: str) -> None:
    FILES[kind](tmp_path / "x")
    assert same(penstock.load(f"{server}/x"))


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_url_of_a_folder_is_its_model(tmp_path: Path, server: str, ending: str) -> None:
    (tmp_path / "model").mkdir()
    _folder_of_shards(tmp_path / "model", index=True)
    assert same(penstock.load(f"{server}/model{ending}"))
    with pytest.raises(penstock.NotFound, match="nothing"):
        penstock.load(f"{server}/nothing{ending}")


# What load() does not load: how it is made, and the words of the message.
def _save_torchscript(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for member in ("m/data.pkl", "m/code/__torch__.py", "m/constants.pkl"):
            archive.writestr(member, b"x")


def _zarr_store(path: Path) -> None:
    path.mkdir()
    (path / "zarr.json").write_text("{}")


def _dcp(path: Path) -> None:
    path.mkdir()
    (path / ".metadata").write_bytes(b"x")


def _two_models(path: Path) -> None:
    path.mkdir()
    for name in ("a", "b"):
        safetensors.save_file(TENSORS, path / f"{name}.safetensors")


def _missing_shard(path: Path) -> None:
    path.mkdir()
    _folder_of_shards(path, index=False)
    (path / "model-00001-of-00002.safetensors").unlink()


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "torchscript": (_save_torchscript, r"x is a TorchScript archive: use torch.jit.load\(\)"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1}, 4)), r"x is a Python pickle: use pickle.load\(\), only if you trust the file"),
    "old pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1}, 2)), "x is a Python pickle"),
    "hdf5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100)), r"x is an HDF5 file: use h5py.File\(\)"),
    "lfs": (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"), "x is a git-lfs pointer.*git lfs pull"),
    "zarr": (_zarr_store, r"x is a Zarr store: read it with penstock.zarr.load\(\)"),
    "dcp": (_dcp, "x is a torch.distributed.checkpoint checkpoint: read it with penstock.torch.checkpoint"),
    "two models": (_two_models, "x: the folder has several models; pass the path of one: a.safetensors, b.safetensors"),
    "a missing shard": (_missing_shard, "x: shards of the model are missing: model-00001-of-00002.safetensors"),
    "an empty folder": (lambda path: path.mkdir(), "x: the folder contains no model"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_it_cannot_load_is_named(tmp_path: Path, kind: str) -> None:
    make, words = REFUSED[kind]
    make(tmp_path / "x")
    with pytest.raises((penstock.InvalidArgument, penstock.NotFound), match=words) as caught:
        penstock.load(tmp_path / "x")
    assert caught.value.filename == str(tmp_path / "x")
    if (tmp_path / "x").is_file():
        with pytest.raises(penstock.InvalidArgument, match=words):
            penstock.load(tmp_path / "x", "f4")


@pytest.mark.parametrize("ending", [ending for kind in _native.file_kinds() for ending in kind.endings])
def test_a_damaged_file_is_not_taken_for_bytes(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    path.write_bytes(b"<html>an error page</html>")
    with pytest.raises(penstock.InvalidArgument, match=f"x{ending}: does not start like a {ending} file.*dtype=\"u1\""):
        penstock.load(path)
    assert len(penstock.load(path, "u1")) == 26


def test_each_kind_is_loaded_or_refused_by_its_reader() -> None:
    words = {kind.word for kind in _native.file_kinds()}
    assert words >= set(KINDS), "KINDS has a kind that C++ does not recognize"
    plain = {kind.word for kind in _native.file_kinds() if not kind.reader}
    assert not plain & set(KINDS)
    assert plain == {"zip", "gzip", "zstd", "bzip2", "html", "json"}  # load() returns their bytes


def test_a_new_kind_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"NEWKIND and more")
    _native._add_file_kind("new", "a file of a new kind", "NEWKIND", "new.load()")
    with pytest.raises(penstock.InvalidArgument, match=r"x.safetensors is a file of a new kind: use new.load\(\)"):
        penstock.load(path)
    with pytest.raises(safetensors.SafetensorError, match="x.safetensors is a file of a new kind, not a safetensors file"):
        safetensors.load_file(path)
    monkeypatch.setitem(KINDS, "new", Kind(lambda content, request: {"size": content.size}))
    assert penstock.load(path) == {"size": 16}


@pytest.mark.parametrize("content", [b"hello", b'{"a": 1}', b"\x80\4 no pickle", b"GGU", b"PK\3\4", bytes(20), b"\x1f\x8b\b"])
def test_other_files_are_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    assert bytes(memoryview(np.asarray(penstock.load(tmp_path / "x")))) == content


@pytest.mark.parametrize("wrong", [{"framework": "np"}, {"framework": "bytes"}, {"device": "host:0"}], ids=str)
def test_a_checkpoint_is_of_pytorch(tmp_path: Path, wrong: dict[str, str]) -> None:
    _save_pt(tmp_path / "x")
    with pytest.raises(penstock.InvalidArgument, match="x is a torch.save checkpoint, which contains PyTorch tensors"):
        penstock.load(tmp_path / "x", **wrong)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a": Path("x")}, tmp_path / "x")
    with pytest.raises(penstock.InvalidArgument, match="x is a torch.save checkpoint .*weights_only=False") as refused:
        penstock.load(tmp_path / "x")
    assert "(Unsupported global: GLOBAL pathlib." in str(refused.value)
    assert str(refused.value).isprintable()


# --- the library of the result

# Per call: what loads one tensor of the folder's files with the given device and framework.
CALLS: dict[str, Callable[..., Any]] = {
    "load bytes": lambda folder, **how: penstock.load(folder / "bytes.bin", **how),
    "load npy": lambda folder, **how: penstock.load(folder / "a.npy", **how),
    "load npz": lambda folder, **how: penstock.load(folder / "a.npz", **how)["first"],
    "load safetensors": lambda folder, **how: penstock.load(folder / "model.safetensors", **how)["first"],
    "load_file": lambda folder, **how: safetensors.load_file(folder / "model.safetensors", **how)["first"],
    "stream": lambda folder, **how: dict(safetensors.stream(folder / "model.safetensors", **how))["first"],
    "load_sharded": lambda folder, device, **how: safetensors.load_sharded(folder / "model.safetensors", [device], **how)[0]["first"],
    "gguf": lambda folder, **how: _first_of_gguf(folder, **how),
}

# Arguments, and the library of the result without PyTorch, and with it.
RULE: list[tuple[dict[str, Any], str, str]] = [
    ({"device": "cpu"}, "numpy", "torch"),
    ({"device": "host"}, "numpy", "torch"),
    ({"device": "host:0"}, "penstock", "penstock"),
    ({"device": "cpu", "framework": "np"}, "numpy", "numpy"),
    ({"device": "cpu", "framework": "bytes"}, "penstock", "penstock"),
]


def _first_of_gguf(folder: Path, **how: Any) -> Any:
    with gguf.open(folder / "model.gguf") as file:
        return file.load(**how)["first"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    write_folder(path)
    return path


def write_folder(path: Path) -> None:
    (path / "bytes.bin").write_bytes(bytes(range(100)))
    np.save(path / "a.npy", TENSORS["first"])
    np.savez(path / "a.npz", **TENSORS)
    safetensors.save_file(TENSORS, path / "model.safetensors")
    _save_gguf(path / "model.gguf")


def library_of(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("how", "without", "with_torch"), RULE, ids=str)
def test_without_pytorch_the_host_has_numpy(folder: Path, call: str, how: dict[str, Any], without: str, with_torch: str, torch_not_imported: None) -> None:
    assert library_of(CALLS[call](folder, **how)) == without


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("how", "without", "with_torch"), RULE, ids=str)
def test_with_pytorch_the_host_has_tensors(folder: Path, call: str, how: dict[str, Any], without: str, with_torch: str) -> None:
    pytest.importorskip("torch")
    assert library_of(CALLS[call](folder, **how)) == with_torch


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("how", [{"device": "torch.device"}, {"device": "cpu", "framework": "pt"}], ids=str)
def test_a_device_or_framework_of_pytorch_gives_tensors(folder: Path, call: str, how: dict[str, Any], torch_not_imported: None) -> None:
    torch = pytest.importorskip("torch")
    how = {name: torch.device("cpu") if value == "torch.device" else value for name, value in how.items()}
    assert library_of(CALLS[call](folder, **how)) == "torch"


@pytest.mark.parametrize("call", CALLS)
def test_an_unknown_framework_is_refused(folder: Path, call: str) -> None:
    with pytest.raises(penstock.Error, match="framework tf is invalid: it must be pt, np, cupy, bytes or None"):
        CALLS[call](folder, device="cpu", framework="tf")


def test_on_a_gpu_an_installed_cupy_does_not_matter_to_a_program_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock._core import libraries as _libraries

    class Torch:
        class cuda:
            is_available = staticmethod(lambda: True)

    monkeypatch.setattr(_libraries, "known_device", lambda name: name)
    for torch, cupy, expected in [
        (Torch, True, "torch"),
        (Torch, False, "torch"),
        (None, True, "cupy"),
        (None, False, "penstock"),
    ]:
        monkeypatch.setattr(_libraries, "_imported_torch", lambda torch=torch: torch)
        monkeypatch.setitem(sys.modules, "cupy", sys if cupy else None)
        assert _libraries.choose_library("cuda:0") == (expected, "cuda:0")
        assert _libraries.choose_library(0, "bytes") == ("penstock", "cuda:0")


def test_a_dtype_that_only_numpy_has_is_numpys_unless_pytorch_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    array = np.array(["2026-01-01"], "M8[D]")
    np.save(tmp_path / "a.npy", array)
    assert np.array_equal(penstock.load(tmp_path / "a.npy"), array)
    with pytest.raises(penstock.InvalidArgument, match="PyTorch does not support dtype"):
        penstock.load(tmp_path / "a.npy", framework="pt")


def test_a_program_that_has_not_imported_pytorch_gets_numpy_and_does_not_import_it(folder: Path) -> None:
    """In one process, since PyTorch takes seconds to import: all calls, then a type that NumPy lacks, with and without ml_dtypes."""
    code = """
import sys
from pathlib import Path
from penstock import gguf, safetensors
import penstock

folder = Path(sys.argv[1])
found = [penstock.load(folder / name) for name in ("bytes.bin", "a.npy")]
found += [penstock.load(folder / name)["first"] for name in ("a.npz", "model.safetensors", "model.gguf")]
found += [dict(safetensors.stream(folder / "model.safetensors"))["first"], safetensors.load_file(folder / "model.safetensors")["first"]]
assert {type(each).__module__ for each in found} == {"numpy"}, found
sys.modules["ml_dtypes"] = None
try:
    penstock.load(folder / "half.safetensors")
except penstock.Error as problem:
    assert 'BF16, which NumPy does not support: pip install ml_dtypes, or load it with PyTorch (import torch first' in str(problem), problem
else:
    raise AssertionError("NumPy has no bfloat16")
assert "torch" not in sys.modules
"""
    header = json.dumps({"half": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (folder / "half.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if "torch" in sys.modules:
        assert str(penstock.load(folder / "half.safetensors")["half"].dtype) == "torch.bfloat16"


def test_an_index_that_lists_itself_is_refused(tmp_path: Path) -> None:
    _save_index(tmp_path / "m.index.json", ["m.index.json"])
    with pytest.raises(penstock.InvalidArgument, match=r"m\.index\.json: not a torch\.save checkpoint"):
        penstock.load(tmp_path / "m.index.json")
