"""Models on servers: files, folders and indexes by their URL, in Python and by the command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

import penstock
import penstock.safetensors.numpy
from penstock.__main__ import command

from . import range_server

SHARDS = [
    {"a.weight": numpy.arange(12, dtype=numpy.float32).reshape(3, 4), "b": numpy.ones(5, numpy.int64)},
    {"c.weight": numpy.full((70, 3), 7, numpy.float16)},
]
ALL = {name: tensor for shard in SHARDS for name, tensor in shard.items()}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path, list[tuple[str, dict[str, str]]]]]:
    """A server of two models: of several files in a folder "cut", of one in "whole"."""
    places = {}
    for number, shard in enumerate(SHARDS):
        path = tmp_path / "cut" / "parts" / f"part {number}%.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        penstock.safetensors.numpy.save_file(shard, path)
        places |= dict.fromkeys(shard, f"parts/{path.name}")
    (tmp_path / "cut" / INDEX).write_text(json.dumps({"weight_map": places}))
    (tmp_path / "whole").mkdir()
    penstock.safetensors.numpy.save_file(ALL, tmp_path / "whole" / "model.safetensors")
    with range_server.serving(tmp_path) as (url, asked):
        yield url, tmp_path, asked


def expect_all(loaded: dict[str, numpy.ndarray]) -> None:
    assert sorted(loaded) == sorted(ALL)
    for name, tensor in ALL.items():
        numpy.testing.assert_array_equal(loaded[name], tensor)


@pytest.mark.parametrize("path", ["cut", "cut/", f"cut/{INDEX}", f"cut/{INDEX}?token=hidden", "whole", "whole/model.safetensors"])
def test_a_model_is_loaded(served, path):
    url, _, asked = served
    expect_all(penstock.safetensors.numpy.load_file(f"{url}/{path}", storage_options={"headers": {"X-Mine": "yes"}}))
    assert all(headers["x-mine"] == "yes" for _, headers in asked)
    if "?" in path:
        assert all("token=hidden" in each for each, _ in asked)


def test_parts_and_other_loaders_take_urls_too(served):
    url, _, _ = served
    part = penstock.safetensors.numpy.load_file(f"{url}/cut", names=["a.weight"], slices={"a.weight": (0, 1, 3)})
    numpy.testing.assert_array_equal(part["a.weight"], ALL["a.weight"][1:2])
    target = {name: numpy.zeros_like(tensor) for name, tensor in ALL.items()}
    penstock.safetensors.load_into(f"{url}/cut", target)
    expect_all(target)
    with penstock.safetensors.stream(f"{url}/cut", framework="np") as stream:
        expect_all(dict(stream))
    expect_all(penstock.safetensors.load_sharded(f"{url}/cut", ["cpu"], framework="np")[0])


def test_files_of_a_list_may_be_local_and_on_servers(served):
    url, folder, asked = served
    local = folder / "cut" / "parts" / "part 0%.safetensors"
    remote = f"{url}/cut/parts/part%201%25.safetensors"
    options = {"headers": {"X-Mine": "yes"}}
    for paths in ([local, remote], [remote, local]):
        expect_all(penstock.safetensors.numpy.load_file(paths, storage_options=options))
    assert asked and all(headers["x-mine"] == "yes" for _, headers in asked)
    with pytest.raises(penstock.InvalidArgument, match="its scheme must be"):
        penstock.safetensors.numpy.load_file(local, storage_options=options)


def test_arrays_are_read_with_the_options_of_a_server(served):
    url, folder, asked = served
    ALL["a.weight"].tofile(folder / "array.bin")
    options = {"headers": {"X-Mine": "yes"}}
    numpy.testing.assert_array_equal(penstock.fromfile(f"{url}/array.bin", "f4", storage_options=options), ALL["a.weight"].ravel())
    assert asked and all(headers["x-mine"] == "yes" for _, headers in asked)
    with pytest.raises(penstock.ShortRead, match="array.bin: read") as short:
        penstock.fromfile(f"{url}/array.bin?token=hidden", "f4", 100, storage_options=options)
    assert "hidden" not in f"{short.value} {short.value.filename}"
    with pytest.raises(penstock.InvalidArgument, match="its scheme must be"):
        penstock.fromfile(folder / "array.bin", "f4", storage_options=options)


def test_errors_name_the_url_without_its_query(served):
    url, folder, _ = served
    (folder / "cut" / "parts" / "part 1%.safetensors").unlink()
    (folder / "bad").mkdir()
    (folder / "bad" / INDEX).write_text("{}")
    (folder / "lacks").mkdir()
    (folder / "lacks" / INDEX).write_text(json.dumps({"weight_map": {"d": "x.safetensors"}}))
    penstock.safetensors.numpy.save_file(SHARDS[0], folder / "lacks" / "x.safetensors")
    for path, kind, words in [
        (f"cut/{INDEX}?token=hidden", penstock.NotFound, r"/cut/parts/part%201%25.safetensors: .*404"),
        (f"bad/{INDEX}?token=hidden", penstock.Error, rf"/bad/{INDEX}: the index has no"),
        (f"lacks/{INDEX}?token=hidden", penstock.Error, r"/lacks/x.safetensors lacks \"d\""),
        ("nowhere?token=hidden", penstock.NotFound, r"/nowhere: the server has neither"),
    ]:
        with pytest.raises(kind, match=words) as caught:
            penstock.safetensors.numpy.load_file(f"{url}/{path}")
        assert "hidden" not in str(caught.value) + str(caught.value.filename)


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([command(), *map(str, words)], capture_output=True, text=True, timeout=60)


def test_the_command_reads_copies_and_verifies_objects(served, tmp_path):
    url, folder, _ = served
    content = numpy.random.default_rng(3).integers(0, 256, 9 * 2**20 + 7, dtype=numpy.uint8).tobytes()
    (folder / "data.bin").write_bytes(content)
    (folder / "empty.bin").write_bytes(b"")
    told = run("read", "--verify", f"{url}/data.bin?token=hidden")
    assert told.returncode == 0 and "verified" in told.stdout, told.stderr
    into = tmp_path / "copies"
    into.mkdir()
    told = run("cp", "--verify", "-v", f"{url}/data.bin?token=hidden", f"{url}/empty.bin", into)
    assert told.returncode == 0, told.stderr
    assert "hidden" not in told.stdout
    assert (into / "data.bin").read_bytes() == content
    assert (into / "empty.bin").read_bytes() == b""
    assert run("verify", "--compare", f"{url}/data.bin", into / "data.bin").returncode == 0
    assert run("cp", "-n", f"{url}/empty.bin", into / "data.bin").returncode == 0
    assert (into / "data.bin").read_bytes() == content
    for words, problem in [
        (["cp", "-p", f"{url}/data.bin", into], "no mode or owner"),
        (["cp", f"{url}/", into], "does not end with a name"),
        (["cp", f"{url}/nothing?token=hidden", into], "/nothing: the server answered with status 404"),
    ]:
        told = run(*words)
        assert told.returncode == 1 and problem in told.stderr and "hidden" not in told.stderr, told.stderr
    assert sorted(each.name for each in into.iterdir()) == ["data.bin", "empty.bin"]
    told = run("check", f"{url}/data.bin")
    assert told.returncode == 0 and "objects on servers cannot be written in place" in told.stdout


def test_the_command_inspects_and_loads_models(served):
    url, _, _ = served
    for path in ("cut", "whole", f"cut/{INDEX}?token=hidden"):
        for word in ("inspect", "load"):
            told = run(word, f"{url}/{path}")
            assert told.returncode == 0, told.stderr
            assert "hidden" not in told.stdout
        assert "c.weight" in run("inspect", f"{url}/{path}").stdout
    assert run("load", f"{url}/nowhere").returncode == 1
