"""Objects on servers by their URL, wherever a file is read by its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

import penstock
import penstock.safetensors.numpy

from . import range_server

pytestmark = pytest.mark.usefixtures("torch_not_imported")

CONTENT = numpy.random.default_rng(7).integers(0, 256, 3 * 2**20 + 11, dtype=numpy.uint8)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    (tmp_path / "data.bin").write_bytes(CONTENT.tobytes())
    with range_server.serving(tmp_path) as server:
        yield server


@pytest.mark.parametrize("device", ["host", "host:0"])
def test_an_object_is_read_as_a_file(served, device):
    url, _ = served
    with penstock.open(f"{url}/data.bin") as file:
        assert file.size() == len(CONTENT)
        memory = bytearray(1000)
        assert file.read_into(memory, 2**20 + 3) == 1000
        assert bytes(memory) == CONTENT[2**20 + 3 : 2**20 + 1003].tobytes()
        assert file.read_into(memory, len(CONTENT) - 10) == 10
        assert file.pread(memory, 5).result() == 1000
    loaded = penstock.load(f"{url}/data.bin", dtype="u1", device=device)
    back = numpy.empty_like(CONTENT)
    penstock.copy(back, loaded)
    numpy.testing.assert_array_equal(back, CONTENT)


def test_an_array_file_keeps_its_shape(served, tmp_path):
    url, _ = served
    numpy.save(tmp_path / "a.npy", numpy.arange(600).reshape(20, 30))
    numpy.testing.assert_array_equal(penstock.load(f"{url}/a.npy"), numpy.arange(600).reshape(20, 30))


def test_tensors_of_a_file(served, tmp_path):
    url, _ = served
    tensors = {"weight": numpy.arange(12, dtype=numpy.float32).reshape(3, 4), "bias": numpy.ones(5, numpy.int64)}
    penstock.safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    loaded = penstock.safetensors.numpy.load_file(f"{url}/model.safetensors")
    for name, tensor in tensors.items():
        numpy.testing.assert_array_equal(loaded[name], tensor)
    with penstock.safetensors.safe_open(f"{url}/model.safetensors", framework="np") as opened:
        assert sorted(opened.keys()) == ["bias", "weight"]
        numpy.testing.assert_array_equal(opened.get_slice("weight")[1:3], tensors["weight"][1:3])


def test_storage_options_are_taken_and_refused_in_words(served):
    url, asked = served
    with penstock.open(f"{url}/data.bin", storage_options={"size": len(CONTENT), "headers": {"X-Mine": "yes"}}) as file:
        assert not asked
        assert file.read_into(bytearray(10)) == 10
    assert asked[0][1]["x-mine"] == "yes"
    wrong = {
        "there": "no option \"there\"",
        "kind": "one of auto",
        "anonymous": "must be a bool",
        "region": "must be a str",
        "size": "size",
        "headers": "must be a mapping",
    }
    for name, words in wrong.items():
        value: object = "ftp" if name == "kind" else 3.5
        with pytest.raises((penstock.InvalidArgument, TypeError), match=words):
            penstock.open(f"{url}/data.bin", storage_options={name: value})
    for headers in ({"Host": "x"}, {"a b": "c"}, {"A": "b\r\nC: d"}):
        with pytest.raises(penstock.InvalidArgument):
            penstock.open(f"{url}/data.bin", storage_options={"headers": headers})
    with pytest.raises(TypeError, match="mapping"):
        penstock.open(f"{url}/data.bin", storage_options="x")


def test_errors_are_those_of_files(served):
    url, _ = served
    with pytest.raises(FileNotFoundError, match="status 404"):
        penstock.open(f"{url}/nothing")
    with pytest.raises(penstock.Error, match="only be opened for reading"):
        penstock.open(f"{url}/data.bin", "r+")
    with pytest.raises(penstock.InvalidArgument, match="password"):
        penstock.open("http://user:secret@127.0.0.1/x")
    with penstock.open(f"{url}/data.bin") as file, pytest.raises(penstock.Error):
        file.fileno()


def test_what_is_asked_of_servers_is_counted(served):
    url, asked = served
    before = penstock.stats()["usage"]
    with penstock.open(f"{url}/data.bin") as file:
        assert file.read_into(bytearray(len(CONTENT))) == len(CONTENT)
    after = penstock.stats()["usage"]
    assert after["remote_requests"] - before["remote_requests"] == len(asked)
    assert after["remote_bytes"] - before["remote_bytes"] == len(CONTENT)
    assert after["remote_connections"] > before["remote_connections"]
    assert after["remote_tls_bytes"] == before["remote_tls_bytes"]


def test_an_object_that_is_replaced_is_an_error(served, tmp_path):
    url, _ = served
    with penstock.open(f"{url}/data.bin") as file:
        (tmp_path / "data.bin").write_bytes(b"x" * len(CONTENT))
        with pytest.raises(penstock.Error, match="was replaced while"):
            file.read_into(bytearray(100))
