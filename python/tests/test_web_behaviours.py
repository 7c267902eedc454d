"""Everything that servers do (web_behaviours.BEHAVIOURS) for everyone who reads from them (READERS): the bytes come, or an error in words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest

import penstock
from penstock.kvikio import RemoteFile
from penstock.safetensors.numpy import load_file

from . import web_behaviours
from .web_behaviours import BEHAVIOURS, CONTENT, TENSOR, WebServer

pytestmark = pytest.mark.usefixtures("torch_not_imported")

PATIENCE = {"attempts": 3, "retry_pause": 0.001}


class Refused(Exception):
    """What a reader says instead of giving bytes."""


def read(url: str, folder: Path) -> bytes:
    with penstock.open(url, storage_options=PATIENCE) as file:
        return file.read()


def read_into(url: str, folder: Path) -> bytes:
    """Backwards, in ranges that fit nothing."""
    with penstock.open(url, storage_options=PATIENCE) as file:
        memory = bytearray(file.size())
        for at in reversed(range(0, len(memory), 700_001)):
            part = memoryview(memory)[at : at + 700_001]
            assert file.read_into(part, at) == len(part)
        return bytes(memory)


def load(url: str, folder: Path) -> bytes:
    return bytes(penstock.load(url, dtype="u1", device="host", storage_options=PATIENCE).tobytes())


def cp(url: str, folder: Path) -> bytes:
    into = folder / "copy"
    ran = subprocess.run([sys.executable, "-m", "penstock", "cp", url, str(into)], capture_output=True, text=True, check=False)
    if ran.returncode:
        assert not into.exists()
        raise Refused(ran.stderr)
    return into.read_bytes()


def remote_file(url: str, folder: Path) -> bytes:
    with RemoteFile.open_http(url) as file:
        memory = numpy.empty(file.nbytes(), numpy.uint8)
        assert file.read(memory) == memory.nbytes
        return memory.tobytes()


def tensors(url: str, folder: Path) -> bytes:
    found = load_file(url, storage_options=PATIENCE)
    assert list(found) == ["x"]
    return CONTENT[: -len(TENSOR)] + found["x"].tobytes()


def node_cache(url: str, folder: Path) -> bytes:
    with penstock.open(url, storage_options={**PATIENCE, "cache_dir": folder / "cache"}) as file:
        return file.read()


READERS = {each.__name__: each for each in (read, read_into, load, cp, remote_file, tensors, node_cache)}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.kvikio.remote_file._FIRST_PAUSE_S", 0.001)


@pytest.fixture(scope="module")
def server() -> Iterator[WebServer]:
    with web_behaviours.serving() as up:
        yield up


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_bytes_come_or_an_error_in_words(server: WebServer, tmp_path: Path, behaviour: str, reader: str) -> None:
    expected = BEHAVIOURS[behaviour]
    url = server.url(behaviour, reader)
    call: Callable[[str, Path], bytes] = READERS[reader]
    before = penstock.stats()["usage"]["remote_without_ranges"]
    if reader == "tensors" and not expected.content:
        expected = expected._replace(error="shorter than|empty|too short|0 bytes")
    if not expected.error:
        assert call(url, tmp_path) == expected.content
        if expected.is_slow and reader in ("read_into", "node_cache"):
            assert penstock.stats()["usage"]["remote_without_ranges"] > before
        return
    with pytest.raises((penstock.Error, RuntimeError, OverflowError, Refused)) as failed:
        call(url, tmp_path)
    assert re.search(expected.error, str(failed.value)), failed.value
    assert server.url(behaviour, reader) in str(failed.value)


def test_a_proxy_without_tunnels_forwards_what_is_plain(server: WebServer, tmp_path: Path) -> None:
    into = tmp_path / "copy"
    url = server.url("right", "proxied").replace("127.0.0.1", "nowhere.example")
    environment = {**os.environ, "http_proxy": f"http://127.0.0.1:{server.port}", "no_proxy": ""}
    run = [sys.executable, "-m", "penstock", "cp", url, str(into)]
    ran = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert into.read_bytes() == CONTENT
