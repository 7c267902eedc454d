"""Names of objects and of options as other libraries have them."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy
import pytest

import penstock
from penstock.__main__ import command

CONTENT = b"content"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str, dict[str, str]]]
    connections: list[socket.socket]

    def setup(self) -> None:
        super().setup()
        self.connections.append(self.connection)

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        type(self).asked.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()} | {"body": repr(body)}))
        ranged = "Range" in self.headers
        self.send_response(206 if ranged else 200)
        self.send_header("ETag", '"1"')
        if ranged:
            self.send_header("Content-Range", f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(0 if self.command == "PUT" else len(CONTENT)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(CONTENT)

    do_HEAD = do_PUT = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str, dict[str, str]]]]]:
    asked: list[tuple[str, str, dict[str, str]]] = []
    connections: list[socket.socket] = []
    up = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"asked": asked, "connections": connections}))
    up.daemon_threads = False  # so that closing it waits for them
    thread = threading.Thread(target=up.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{up.server_address[1]}", asked
    finally:
        up.shutdown()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        up.server_close()
        thread.join()


# Each has the endpoint EP, the region eu-west-1, and the same keys.
SAME_OPTIONS: dict[str, dict[str, Any]] = {
    "own": {"endpoint": "EP", "region": "eu-west-1", "access_key_id": "AKIAX", "secret_access_key": "s"},
    "s3fs": {"endpoint_url": "EP", "client_kwargs": {"region_name": "eu-west-1"}, "key": "AKIAX", "secret": "s", "anon": False},
    "s3fs, all in client_kwargs": {
        "client_kwargs": {
            "endpoint_url": "EP",
            "region_name": "eu-west-1",
            "aws_access_key_id": "AKIAX",
            "aws_secret_access_key": "s",
            "aws_session_token": None,
        }
    },
    "s3fs, with what it is tuned by": {
        "endpoint_url": "EP",
        "config_kwargs": {"s3": {"addressing_style": "path"}, "region_name": "eu-west-1", "connect_timeout": 5, "retries": {"max_attempts": 3}},
        "key": "AKIAX",
        "secret": "s",
        "use_ssl": False,
        "default_block_size": 1 << 20,
        "default_fill_cache": False,
        "use_listings_cache": True,
    },
    "object_store": {
        "aws_endpoint": "EP",
        "aws_region": "eu-west-1",
        "aws_access_key_id": "AKIAX",
        "aws_secret_access_key": "s",
        "aws_allow_http": "true",
        "aws_virtual_hosted_style_request": "false",
        "aws_skip_signature": "false",
    },
    "object_store, in capitals": {
        "AWS_ENDPOINT_URL": "EP",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "AKIAX",
        "AWS_SECRET_ACCESS_KEY": "s",
    },
    "arrow": {"endpoint_override": "EP", "region": "eu-west-1", "access_key": "AKIAX", "secret_key": "s"},
}


def _with_endpoint(options: dict[str, Any], endpoint: str) -> dict[str, Any]:
    return {
        name: endpoint if value == "EP" else _with_endpoint(value, endpoint) if isinstance(value, dict) else value
        for name, value in options.items()
    }


@pytest.mark.parametrize("kind", SAME_OPTIONS)
def test_options_have_the_names_that_other_libraries_give_them(server, kind):
    url, asked = server
    with penstock.open("s3://bucket/key", storage_options=_with_endpoint(SAME_OPTIONS[kind], url)) as file:
        assert file.read(100) == CONTENT
    for _, path, headers in asked:
        assert path == "/bucket/key"
        assert "Credential=AKIAX/" in headers["authorization"]
        assert "/eu-west-1/s3/" in headers["authorization"]


def test_anonymous_access_has_several_names(server):
    url, asked = server
    for name in ("anonymous", "anon", "skip_signature", "aws_skip_signature"):
        penstock.open("s3://bucket/key", storage_options={"endpoint": url, name: True})
    penstock.open("s3://bucket/key", storage_options={"endpoint": url, "skip_signature": "true"})
    assert all("authorization" not in headers for _, _, headers in asked)


def test_options_of_writing_have_the_names_of_boto3(server):
    url, asked = server
    options = SAME_OPTIONS["own"] | {"endpoint": url, "requester_pays": True}
    wanted = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "k", "StorageClass": "GLACIER", "ACL": "private", "ContentType": "a/b", "Tagging": "x=1"}
    penstock.tofile(numpy.arange(3), "s3://bucket/key", storage_options=options | {"s3_additional_kwargs": wanted})
    headers = next(headers for method, _, headers in asked if method == "PUT")
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "k"
    assert headers["x-amz-storage-class"] == "GLACIER"
    assert headers["x-amz-acl"] == "private"
    assert headers["content-type"] == "a/b"
    assert headers["x-amz-tagging"] == "x=1"
    assert headers["x-amz-request-payer"] == "requester"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("regoin", "region"), ("acces_key_id", "access_key_id"), ("endpont_url", "endpoint_url"), ("storageClas", "storageclass"), ("anno", "anon")],
)
def test_an_unknown_option_is_named_with_the_one_that_was_meant(name, meant):
    with pytest.raises(ValueError, match=f'storage_options has no "{name}"; did you mean "{meant}"'):
        penstock.open("s3://bucket/key", storage_options={name: "x"})
    with pytest.raises(ValueError, match=f'has no "{name}"'):
        penstock.open("s3://bucket/key", storage_options={"client_kwargs": {name: "x"}})


def test_certificates_cannot_be_left_unchecked():
    with pytest.raises(ValueError, match="always checked"):
        penstock.open("s3://bucket/key", storage_options={"client_kwargs": {"verify": False}})


def test_a_file_is_named_by_a_url(tmp_path):
    path = tmp_path / "a b.bin"
    path.write_bytes(CONTENT)
    with penstock.open(path.as_uri()) as file:
        assert file.read(100) == CONTENT
    assert penstock.load(path.as_uri(), dtype="u1").tobytes() == CONTENT
    assert penstock.fromfile(f"file://{path}", "u1").tobytes() == CONTENT
    told = subprocess.run([command(), "cp", path.as_uri(), (tmp_path / "copy").as_uri()], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "copy").read_bytes() == CONTENT
    penstock.tofile(numpy.arange(3, dtype="u1"), (tmp_path / "new").as_uri())
    assert (tmp_path / "new").read_bytes() == bytes(range(3))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("gs://bucket/key", "gs:// is not supported.*storage.googleapis.com"),
        ("az://container/blob", "az:// is not supported.*SAS"),
        ("abfss://container@account/blob", "abfss:// is not supported"),
        ("gopher://host/x", "gopher:// is not supported"),
        ("s3:/bucket/key", "one slash"),
        ("hf://owner", "hf://OWNER/NAME/PATH"),
        ("s3://arn:aws:s3:us-west-2:123456789012:accesspoint/ap/k", "alias"),
    ],
)
def test_what_is_not_served_says_so(url, said, tmp_path):
    with pytest.raises(penstock.Error, match=said):
        penstock.open(url)
    with pytest.raises(penstock.Error, match=said):
        penstock.load(Path(url) if url.startswith("s3:/b") else url)
    told = subprocess.run([command(), "cp", url, "out"], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert "No such file" not in told.stderr
