"""What gives access in a URL (a signature, a token, a password) is shown by no door, message, log or counter."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import penstock
import penstock._native as _native
import penstock.gguf
import penstock.kvikio
import penstock.safetensors
import penstock.safetensors.numpy
from penstock.__main__ import command
from penstock._core.errors import without_url_secrets

from . import range_server

SECRET = "s3cr3t"
FILES = ("bytes.bin", "array.npy", "cut.npy", "arrays.npz", "model.safetensors", "broken.safetensors", "model.gguf", "pickle.pt", "nothing")
QUERIES = {
    "signature": f"?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={SECRET}&X-Amz-Signature={SECRET}",
    "sas": f"?sv=2022-11-02&sr=b&sig={SECRET}%3D",
    "token": f"?token={SECRET}",
    "fragment": f"?x=1#{SECRET}",
}
PASSWORDS = ("http://user:{}@", "http://{}@", "http://user:a/{}@", "s3://{}:key@bucket/")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "bytes.bin").write_bytes(bytes(5000))
    numpy.save(folder / "array.npy", numpy.arange(10.0))
    (folder / "cut.npy").write_bytes((folder / "array.npy").read_bytes()[:-8])
    numpy.savez(folder / "arrays.npz", a=numpy.arange(3))
    penstock.safetensors.numpy.save_file({"a": numpy.arange(3.0)}, folder / "model.safetensors")
    (folder / "broken.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{not a header}  ")
    (folder / "model.gguf").write_bytes(b"GGUF\3\0\0\0")
    (folder / "pickle.pt").write_bytes(b"\x80\x02}q\0.")
    with range_server.serving(folder) as (url, _):
        yield url


@pytest.fixture(scope="module", autouse=True)
def stays_level() -> Iterator[None]:
    """In place of that in conftest.py: zarr keeps an event loop and its threads, this file leaves nothing of penstock's."""
    yield
    _native._settle()
    assert (_native._under_way(), _native._held_memories()) == (0, 0)


def _urls(address: str) -> list[str]:
    """Each kind of query, each kind of file, and passwords last."""
    urls = [f"{address}/bytes.bin{query}" for query in QUERIES.values()]
    urls += [f"{address}/{name}{QUERIES['signature']}" for name in FILES[1:]]
    return urls + [form.format(SECRET) + address.removeprefix("http://") + "/bytes.bin" for form in PASSWORDS]


def _opened(url: str) -> str:
    with penstock.open(url) as file:
        words = [repr(file), str(file), file.name, str(file.explain(100)), repr(penstock.stats())]
        words += [repr(each) for each in (penstock.requests() if hasattr(penstock, "requests") else [])]
    return f"{words} {file!r}"


def _pickled(url: str) -> str:
    try:
        penstock.open(url + "-not-there")
    except OSError as problem:
        import pickle

        return repr(pickle.loads(pickle.dumps(problem)).__dict__)
    return ""


DOORS: dict[str, Callable[[str], Any]] = {
    "open": _opened,
    "closed": lambda url: penstock.open(url).read(10**12),
    "written": lambda url: penstock.open(url, "w"),
    "pickled error": _pickled,
    "load": penstock.load,
    "load of a type": lambda url: penstock.load(url, dtype="f8", shape=(10**6,)),
    "fromfile": lambda url: penstock.fromfile(url, "f8", count=10**6),
    "tofile": lambda url: penstock.tofile(numpy.arange(3), url),
    "list_remote": penstock.list_remote,
    "read_tree": penstock.read_tree,
    "safetensors": penstock.safetensors.numpy.load_file,
    "safetensors, saved": lambda url: penstock.safetensors.numpy.save_file({"a": numpy.arange(3.0)}, url),
    "safe_open": lambda url: penstock.safetensors.safe_open(url, "np").__enter__().get_tensor("none"),
    "gguf": penstock.gguf.open,
    "kvikio": lambda url: str(penstock.kvikio.RemoteFile.open_http(url)),
    "kvikio, any": lambda url: repr(penstock.kvikio.RemoteFile.open(url)),
    "kvikio, s3": lambda url: repr(penstock.kvikio.RemoteFile.open_s3_url(url)),
    "kvikio, presigned": lambda url: penstock.kvikio.RemoteFile.open_s3_presigned_url(url).read(bytearray(10**6)),
    "kvikio, file": lambda url: penstock.kvikio.CuFile(url),
    "kvikio, mapped": lambda url: penstock.kvikio.Mmap(url),
    "kvikio, page cache": lambda url: penstock.kvikio.get_page_cache_info(url),
}

if importlib.util.find_spec("torch") is not None:
    import penstock.safetensors.torch
    import penstock.torch

    DOORS |= {
        "torch": penstock.torch.load,
        "torch, reason": penstock.torch.fallback_reason,
        "torch, mapped": lambda url: penstock.torch.load(url, mmap=True),
        "torch, saved": lambda url: penstock.torch.save({}, url),
        "safetensors, torch": penstock.safetensors.torch.load_file,
    }
if importlib.util.find_spec("zarr") is not None and int(importlib.import_module("zarr").__version__.partition(".")[0]) >= 3:
    import zarr

    import penstock.zarr

    DOORS |= {
        "zarr": lambda url: f"{penstock.zarr.RemoteStore(url)!r} {penstock.zarr.RemoteStore(url)} {penstock.zarr.RemoteStore(url).url}",
        "zarr, array": lambda url: zarr.open_array(penstock.zarr.RemoteStore(url), mode="r"),
    }


def _words_of(problem: BaseException) -> str:
    words = ["".join(traceback.format_exception_only(type(problem), problem)), repr(problem), repr(vars(problem)), repr(problem.args)]
    for other in (problem.__cause__, problem.__context__):
        if other is not None:
            words.append(_words_of(other))
    return " ".join(words)


@pytest.mark.parametrize("door", DOORS)
def test_no_door_shows_it(served, door, caplog, capfd, recwarn):
    caplog.set_level("DEBUG")
    for url in _urls(served):
        try:
            words = repr(DOORS[door](url))
        except Exception as problem:
            words = _words_of(problem)
        assert SECRET not in words, (url, words)
    told = capfd.readouterr()
    words = [told.out, told.err, caplog.text, *(str(each.message) for each in recwarn)]
    assert not any(SECRET in each for each in words), words


COMMANDS = {
    "read": ("{}",),
    "read --json": ("{}",),
    "read --verify": ("{}",),
    "check": ("{}",),
    "check --json": ("{}",),
    "check -f": ("{}",),
    "verify": ("{}",),
    "verify --json": ("{}",),
    "verify --compare": ("{}", "/etc/hostname"),
    "verify -f": ("{}",),
    "cp": ("{}", "out"),
    "cp --json": ("{}", "out"),
    "cp -v": ("{}", "out"),
    "cp -r": ("{}", "folder"),
    "cp /etc/hostname": ("{}",),
    "inspect": ("{}",),
    "inspect --json": ("{}",),
    "load": ("{}",),
    "load --json": ("{}",),
    "load --verify": ("{}",),
    "convert": ("{}", "out.pt"),
    "write": ("{}",),
    "write --force --size 1k": ("{}",),
    "io --size 1k": ("{}",),
    "stats": ("{}",),
    "top": ("{}",),
    "devices": ("{}",),
    "read --path": ("{}",),
    "read --wrong": ("{}",),
    "check --bundle=bundle.tar": ("{}",),
}


@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_shows_it(served, words, tmp_path):
    """Each of a few URLs by itself, and with the summary of what was done."""
    (tmp_path / "folder").mkdir()
    urls = _urls(served)
    for url in [urls[0], f"{served}/broken.safetensors{QUERIES['sas']}", f"{served}/nothing{QUERIES['token']}", urls[-1], urls[-2]]:
        line = [command(), *words.split(), *(each.format(url) for each in COMMANDS[words])]
        environment = os.environ | {"PENSTOCK_LOG": "summary", "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
        told = subprocess.run(line, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        assert SECRET.encode() not in told.stdout + told.stderr, (url, told)
        for made in tmp_path.rglob("*"):
            assert not made.is_file() or SECRET.encode() not in made.read_bytes(), (url, made)
            assert SECRET not in made.name, (url, made)


def test_a_list_of_checksums_names_objects_without_it(served, tmp_path):
    told = subprocess.run([command(), "verify", f"{served}/bytes.bin{QUERIES['signature']}"], capture_output=True, text=True, check=True)
    assert told.stdout.endswith(f"  {served}/bytes.bin\n")
    told = subprocess.run([command(), "read", "--json", f"{served}/bytes.bin{QUERIES['sas']}"], capture_output=True, text=True, check=True)
    assert json.loads(told.stdout)["reads"][0]["file"] == f"{served}/bytes.bin"


def test_a_file_is_still_what_was_opened(served):
    with penstock.open(f"{served}/bytes.bin{QUERIES['token']}") as file:
        assert file.name == f"{served}/bytes.bin"
        assert len(file.read(10)) == 10
    path = Path("/etc/hostname")
    with penstock.open(path) as file:
        assert file.name is path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pass@host/x?sig=1: no such file", "https://...@host/x: no such file"),
        ("https://user:pa/ss@host/x", "https://...@host/x"),
        ("'https://host/x?sig=1' (see http://other/y#z)", "'https://host/x' (see http://other/y)"),
        ("s3://bucket/key?.txt", "s3://bucket/key?.txt"),
        ("s3://bucket/key?X-Amz-Signature=1", "s3://bucket/key"),
        ("https://host/path@v1/x", "https://host/path@v1/x"),
        ("what? no URL", "what? no URL"),
    ],
)
def test_a_text_is_shown_without_it(text, shown):
    assert without_url_secrets(text) == shown
