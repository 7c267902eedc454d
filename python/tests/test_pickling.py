"""Open files in pickles and copies: they are opened again on arrival, and what would destroy data or give a secret away is refused."""

from __future__ import annotations

import copy
import copyreg
import os
import pathlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.safetensors import safe_open, save_file

from . import range_server

CONTENT = bytes(range(256)) * 64


@pytest.fixture(name="path")
def file_with_content(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "data.bin"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture(name="url")
def url_of_the_file(path: pathlib.Path) -> Iterator[str]:
    with range_server.serving(path.parent) as (url, _):
        yield f"{url}/data.bin"


WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda file: pickle.loads(pickle.dumps(file)),
    "oldest pickle": lambda file: pickle.loads(pickle.dumps(file, 0)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "update": {"mode": "r+"},
    "binary": {"mode": "rb"},
    "direct": {"mode": "r+", "direct": True},
    "cache": {"cache": "bypass"},
    "immutable": {"immutable": True},
    "limit": {"bytes_per_second": 1 << 40},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_file_is_opened_again_with_its_mode_options_and_position(path: pathlib.Path, way: str, options: str) -> None:
    with penstock.open(path, **OPTIONS[options]) as file:
        file.seek(100)
        with WAYS[way](file) as again:
            assert (again.name, again.mode, again.tell()) == (path, file.mode, 100)
            assert copyreg.dispatch_table[penstock.File](again) == copyreg.dispatch_table[penstock.File](file)  # its options, too
            assert again.read() == CONTENT[100:]
        assert file.tell() == 100 and not file.closed


NAMES: dict[str, Callable[[str], Any]] = {"str": str, "bytes": os.fsencode, "Path": pathlib.Path}


@pytest.mark.parametrize("kind", NAMES)
def test_a_relative_path_means_the_same_file_in_another_folder(path: pathlib.Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with penstock.open(NAMES[kind](path.name)) as file:
        pickled = pickle.dumps(file)
    monkeypatch.chdir("/")
    with pickle.loads(pickled) as again:
        assert again.name == NAMES[kind](str(path)) and again.read() == CONTENT


@pytest.mark.parametrize("mode", ["w", "wb", "w+", "x", "x+"])
def test_a_mode_that_empties_or_creates_a_file_is_refused(tmp_path: pathlib.Path, mode: str) -> None:
    with penstock.open(tmp_path / "new", mode) as file:
        file.write(b"content")
        for way in WAYS.values():
            with pytest.raises(TypeError, match=r'cannot pickle or copy File .*/new: its mode is "[wx]\+?", (and reopening it would truncate the file|but the file already exists); open it with "r\+", or "r" to read'):
                way(file)
    assert (tmp_path / "new").read_bytes() == b"content"


def test_a_closed_file_is_refused(path: pathlib.Path) -> None:
    file = penstock.open(path)
    file.close()
    with pytest.raises(TypeError, match="cannot pickle or copy File .*data.bin: it is closed"):
        pickle.dumps(file)


def test_a_file_of_a_descriptor_is_refused(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with penstock.open(descriptor) as file, pytest.raises(TypeError, match=f"File {descriptor}: it was opened from a descriptor, .*; open the file by its path"):
            pickle.dumps(file)
    finally:
        os.close(descriptor)


def test_a_file_that_is_gone_is_not_found_on_arrival(path: pathlib.Path) -> None:
    with penstock.open(path) as file:
        pickled = pickle.dumps(file)
    path.unlink()
    with pytest.raises(penstock.NotFound, match="data.bin"):
        pickle.loads(pickled)


WITHOUT_SECRETS: list[dict[str, Any] | None] = [
    None,
    {"attempts": 2, "timeout": 5},
    {"endpoint_url": "http://localhost:1", "anon": True},
    {"AWS_REGION": "x", "token": None},
    {"client_kwargs": {"region_name": "x"}},
]


@pytest.mark.parametrize("options", WITHOUT_SECRETS)
def test_a_url_and_options_without_secrets_travel(url: str, options: dict[str, Any] | None) -> None:
    with penstock.open(url, storage_options=options) as file, pickle.loads(pickle.dumps(file)) as again:
        assert again.name == file.name and again.read() == CONTENT


SECRETS: list[dict[str, Any]] = [
    {"secret_access_key": "hidden-value", "access_key_id": "hidden-value"},
    {"key": "hidden-value", "secret": "hidden-value"},
    {"AWS_SECRET_ACCESS_KEY": "hidden-value", "AWS_ACCESS_KEY_ID": "hidden-value"},
    {"access_key_id": "hidden-value", "secret_access_key": "hidden-value", "session_token": "hidden-value"},
    {"access_key_id": "hidden-value", "secret_access_key": "hidden-value", "token": "hidden-value"},
    {"headers": {"Authorization": "hidden-value"}},
    {"client_kwargs": {"aws_access_key_id": "hidden-value", "aws_secret_access_key": "hidden-value"}},
]


@pytest.mark.parametrize("options", SECRETS, ids=lambda options: "-".join(options))
def test_storage_options_that_may_hold_secrets_are_refused_by_name(url: str, options: dict[str, Any]) -> None:
    with penstock.open(url, storage_options=options) as file:
        with pytest.raises(TypeError, match=r"its storage_options may be secret \(.*\); keep credentials in the environment") as caught:
            pickle.dumps(file)
        assert "hidden-value" not in str(caught.value) and all(name in str(caught.value) for name in options)


def test_a_url_with_a_secret_in_its_query_is_refused(url: str) -> None:
    with penstock.open(f"{url}?X-Amz-Signature=hidden-value", storage_options={"kind": "http"}) as file:
        with pytest.raises(TypeError, match="its URL contains a query or a password") as caught:
            pickle.dumps(file)
    assert "hidden-value" not in str(caught.value)


PROGRAM = """
import multiprocessing, sys
import penstock

def read(file, offset):
    memory = bytearray(4)
    file.read_into(memory, offset)
    return list(memory), file.mode

class Rows:  # a dataset that holds an open file
    def __init__(self, path):
        self.file = penstock.open(path)
    def __len__(self):
        return 4
    def __getitem__(self, row):
        return read(self.file, row)[0][0]

if __name__ == "__main__":
    method, path = sys.argv[1:]
    with penstock.open(path) as file, multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(read, (file, 50)) == ([50, 51, 52, 53], "r")
    if method == "forkserver":  # the default from Python 3.14 on
        try:
            from torch.utils.data import DataLoader
        except ImportError:
            sys.exit()
        loader = DataLoader(Rows(path), batch_size=2, num_workers=1, multiprocessing_context=method)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_and_workers_of_a_data_loader_read_a_file_that_they_are_given(path: pathlib.Path, method: str) -> None:
    program = path.parent / "program.py"
    program.write_text(PROGRAM)
    result = subprocess.run([sys.executable, program, method, path], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def test_a_forked_child_reads_a_copy_of_a_file_of_its_parent(path: pathlib.Path) -> None:
    program = """
import copy, os, sys
import penstock
file = penstock.open(sys.argv[1])
file.read(1)
child = os.fork()
if child == 0:
    os._exit(0 if copy.copy(file).read(3) == bytes([1, 2, 3]) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    result = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_file_is_opened_again(tmp_path: pathlib.Path, way: str) -> None:
    save_file({"a": np.arange(6).reshape(2, 3)}, tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "np", "cpu") as file, WAYS[way](file) as again:
        assert again is not file and again.get_slice("a")[1].tolist() == [3, 4, 5]
    with pytest.raises(TypeError, match="cannot pickle or copy safe_open .*a.safetensors: it is closed"):
        WAYS[way](file)
