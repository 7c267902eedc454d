"""Names of objects and of options as other libraries have them."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy
import pytest

import penstock
from penstock.__main__ import command

from .range_server import WebServer

pytestmark = pytest.mark.usefixtures("torch_not_imported")

CONTENT = b"content"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str, dict[str, str]]]
    connections: list[socket.socket]
    is_busy = False

    def setup(self) -> None:
        super().setup()
        self.connections.append(self.connection)

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        type(self).asked.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()} | {"body": repr(body)}))
        if self.is_busy:
            self.send_error(503)
            return
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
    up = WebServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"asked": asked, "connections": connections}))
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


@pytest.fixture
def busy_server(server: tuple[str, list[tuple[str, str, dict[str, str]]]], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every answer of it has the status 503."""
    monkeypatch.setattr(_Handler, "is_busy", True)
    return server


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
        "config_kwargs": {
            "s3": {"addressing_style": "path", "payload_signing_enabled": True, "us_east_1_regional_endpoint": "regional", "use_accelerate_endpoint": False},
            "region_name": "eu-west-1",
            "connect_timeout": 5,
            "retries": {"max_attempts": 3, "mode": "standard"},
            "signature_version": "s3v4",
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": None,
            "user_agent_appid": "app",
        },
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
    with pytest.raises(ValueError, match=f'storage_options has no option "{name}"; did you mean "{meant}"'):
        penstock.open("s3://bucket/key", storage_options={name: "x"})
    with pytest.raises(ValueError, match=f'has no option "{name}"'):
        penstock.open("s3://bucket/key", storage_options={"client_kwargs": {name: "x"}})


# Members of storage_options, and what is said of each.
REFUSED_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"client_kwargs": {"verify": False}}, "always verified"),
    ({"client_kwargs": {"verify": "/etc/own.pem"}}, "AWS_CA_BUNDLE"),
    ({"client_options": {"allow_invalid_certificates": "true"}}, "always verified"),
    ({"client_kwargs": {"trust_env": False}}, "from the environment"),
    ({"client_kwargs": {"config": 1}}, 'has no option "config"'),
    ({"config_kwargs": {"proxies": {}}}, 'has no option "proxies"'),
    ({"config_kwargs": {"signature_version": "s3"}}, "signature_version .* is 's3': only version 4"),
    ({"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}}, "use_accelerate_endpoint .* acceleration"),
    ({"config_kwargs": {"s3": {"payload_signing_enabled": "odd"}}}, "true or false"),
    ({"config_kwargs": {"s3": {"addressing_style": "odd"}}}, "auto, path or virtual"),
    ({"config_kwargs": {"retries": {"mode": "odd"}}}, "retry_mode .* is 'odd': must be legacy, standard or adaptive"),
    ({"config_kwargs": {"retries": {"max_attempts": -1}}}, "max_attempts"),
    ({"config_kwargs": {"retries": {"total_max_attempts": 0}}}, "1 to 1000"),
    ({"config_kwargs": {"response_checksum_validation": "odd"}}, "response_checksum_validation .* is 'odd'"),
    ({"config_kwargs": {"request_checksum_calculation": "odd"}}, "when_supported or when_required"),
    ({"config_kwargs": {"defaults_mode": "odd"}}, "defaults_mode"),
    ({"allow_http": False, "endpoint": "http://127.0.0.1:1"}, "the endpoint uses http://"),
    ({"aws_endpoint": "http://127.0.0.1:1", "aws_allow_http": "false"}, "the endpoint uses http://"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED_OPTIONS, ids=[str(options) for options, _ in REFUSED_OPTIONS])
def test_an_option_that_cannot_be_obeyed_is_refused(options, said):
    with pytest.raises((penstock.Error, ValueError), match=said):
        penstock.open("s3://bucket/key", storage_options={"key": "AKIAX", "secret": "s"} | options)


# What each asks for, of a server that never answers well, with how many requests. A pause is short.
ATTEMPTS: list[tuple[dict[str, Any], int]] = [
    ({"attempts": 3}, 3),
    ({"max_retries": 2}, 3),
    ({"config_kwargs": {"retries": {"max_attempts": 2}}}, 3),
    ({"config_kwargs": {"retries": {"total_max_attempts": 2}}}, 2),
    ({"config_kwargs": {"retries": {"max_attempts": 0}}}, 1),
]


@pytest.mark.parametrize(("options", "count"), ATTEMPTS, ids=[str(options) for options, _ in ATTEMPTS])
def test_retries_come_on_top_of_the_first_attempt(busy_server, options, count):
    url, asked = busy_server
    with pytest.raises(penstock.Error, match=f"after {count} "):
        penstock.open("s3://bucket/key", storage_options={"endpoint": url, "key": "AKIAX", "secret": "s", "retry_pause": 0.001} | options)
    assert len(asked) == count


def test_a_payload_is_signed_over_http_unless_that_is_switched_off(server):
    url, asked = server
    for more, is_signed in (
        ({}, True),
        ({"aws_unsigned_payload": "true"}, False),
        ({"config_kwargs": {"s3": {"payload_signing_enabled": False}}}, False),
        ({"config_kwargs": {"s3": {"payload_signing_enabled": True}}}, True),
    ):
        asked.clear()
        penstock.tofile(numpy.arange(3), "s3://bucket/key", storage_options=SAME_OPTIONS["own"] | {"endpoint": url} | more)
        headers = next(headers for method, _, headers in asked if method == "PUT")
        assert (headers["x-amz-content-sha256"] != "UNSIGNED-PAYLOAD") == is_signed


def test_unsigned_requests_may_be_asked_for_as_botocore_has_it(server):
    botocore = pytest.importorskip("botocore")
    url, asked = server
    penstock.open("s3://bucket/key", storage_options={"endpoint": url, "config_kwargs": {"signature_version": botocore.UNSIGNED}})
    assert all("authorization" not in headers for _, _, headers in asked)


def read_in_child(url: str, options: dict[str, Any], **environment: str) -> bytes:
    """What a program reads, whose environment says how servers are reached."""
    program = "import sys, penstock; sys.stdout.buffer.write(penstock.open(sys.argv[1], storage_options=eval(sys.argv[2])).read(100))"
    run = [sys.executable, "-c", program, url, repr(options)]
    return subprocess.run(run, check=True, capture_output=True, env={**os.environ, **environment}).stdout


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("s3://bucket/key", "bucket.s3.eu-west-1.amazonaws.com"),
        ("s3://arn:aws:s3:::bucket/key", "bucket.s3.eu-west-1.amazonaws.com"),
        ("s3://arn:aws:s3:us-west-2:123456789012:accesspoint/ap/key", "ap-123456789012.s3-accesspoint.us-west-2.amazonaws.com"),
    ],
)
def test_without_ssl_amazon_is_asked_over_http(server, url, host):
    options = {"key": "AKIAX", "secret": "s", "region": "eu-west-1", "attempts": 1, "client_kwargs": {"use_ssl": False}}
    assert read_in_child(url, options, http_proxy=server[0], no_proxy="") == CONTENT
    assert {headers["host"] for method, _, headers in server[1] if method != "CONNECT"} == {host}
    region = host.split(".")[-3]
    assert all(f"/{region}/s3/" in headers["authorization"] for method, _, headers in server[1] if method != "CONNECT")


def test_google_cloud_storage_is_asked_by_its_s3_interface(server, monkeypatch):
    url, asked = server
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    keys = {"key": "GOOG1X", "secret": "s"}
    for more in (keys, {"anon": True}):
        asked.clear()
        with penstock.open("gs://bucket/a key", storage_options={"endpoint": url} | more) as file:
            assert file.read(100) == CONTENT
        assert {path for _, path, _ in asked} == {"/bucket/a%20key"}
        assert all(("authorization" in headers) == (more is keys) for _, _, headers in asked)
    penstock.tofile(numpy.arange(3), "gs://bucket/key", storage_options={"endpoint": url} | keys)
    headers = next(headers for method, _, headers in asked if method == "PUT")
    assert "Credential=GOOG1X/" in headers["authorization"]
    assert "/auto/s3/" in headers["authorization"]
    with pytest.raises(penstock.Error, match="overwrite"):
        penstock.tofile(numpy.arange(3), "gs://bucket/key", storage_options={"endpoint": url, "overwrite": False} | keys)
    with pytest.raises(penstock.Error, match="requires an HMAC key"):
        penstock.open("gs://bucket/key", storage_options={"key": "AKIAX", "secret": "s"})


CUSTOMER_KEY = bytes(range(32))
NAMES_OF_CUSTOMER_KEY: list[dict[str, Any]] = [
    {"sse_customer_key": CUSTOMER_KEY},
    {"sse_customer_key": base64.b64encode(CUSTOMER_KEY).decode()},
    {"s3_additional_kwargs": {"SSECustomerKey": CUSTOMER_KEY, "SSECustomerAlgorithm": "AES256"}},
    {"aws_server_side_encryption": "sse-c", "aws_sse_customer_key_base64": base64.b64encode(CUSTOMER_KEY).decode()},
]


def test_a_key_of_the_customer_is_sent_with_each_request_over_https(server, tmp_path):
    url, asked = server
    certificate = tmp_path / "certificate.pem"
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*make, "-keyout", tmp_path / "key.pem", "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, tmp_path / "key.pem")
    up = WebServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"asked": asked, "connections": []}))
    up.socket = context.wrap_socket(up.socket, server_side=True)
    thread = threading.Thread(target=up.serve_forever, daemon=True)
    thread.start()
    try:
        options = SAME_OPTIONS["own"] | {"endpoint": f"https://127.0.0.1:{up.server_address[1]}"}
        program = f"""
import numpy, penstock
for more in {NAMES_OF_CUSTOMER_KEY}:
    options = {options} | more
    assert penstock.open("s3://bucket/key", storage_options=options).read(100) == {CONTENT}
    penstock.tofile(numpy.arange(3), "s3://bucket/key", storage_options=options)
"""
        subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | {"CURL_CA_BUNDLE": str(certificate)})
    finally:
        up.shutdown()
        up.server_close()
        thread.join()
    assert {method for method, _, _ in asked} == {"HEAD", "GET", "PUT"}
    for _, _, headers in asked:
        assert headers["x-amz-server-side-encryption-customer-algorithm"] == "AES256"
        assert base64.b64decode(headers["x-amz-server-side-encryption-customer-key"]) == CUSTOMER_KEY
        assert base64.b64decode(headers["x-amz-server-side-encryption-customer-key-md5"]) == hashlib.md5(CUSTOMER_KEY).digest()
        assert "x-amz-server-side-encryption-customer-key" in headers["authorization"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sse_customer_key": CUSTOMER_KEY}, "requires https"),
        ({"sse_customer_key": b"short"}, "is 5 bytes long"),
        ({"sse_customer_key": "not base64"}, "must be 32 bytes, or a str with base64"),
        ({"sse_customer_key": CUSTOMER_KEY, "server_side_encryption": "AES256"}, "mutually exclusive"),
        ({"SSECustomerAlgorithm": "DES"}, "AES256"),
    ],
)
def test_a_key_of_the_customer_that_cannot_be_used_is_refused(server, options, said):
    url, asked = server
    for call in (penstock.open, lambda url, **how: penstock.tofile(numpy.arange(3), url, **how)):
        with pytest.raises((penstock.Error, ValueError), match=said) as refused:
            call("s3://bucket/key", storage_options=SAME_OPTIONS["own"] | {"endpoint": url} | options)
        assert "AAECAw" not in str(refused.value)
    assert asked == []


def test_a_key_of_the_customer_is_for_s3(server):
    with pytest.raises(penstock.Error, match="sse_customer_key is only for S3 objects"):
        penstock.open(server[0] + "/x", storage_options={"sse_customer_key": CUSTOMER_KEY})


def test_each_setting_of_botocore_is_in_the_table_of_the_page():
    configuration = pytest.importorskip("botocore.configprovider")
    page = (Path(__file__).parents[2] / "docs/guides/object-storage.md").read_text()
    tables = (configuration.BOTOCORE_DEFAUT_SESSION_VARIABLES, configuration.DEFAULT_S3_CONFIG_VARS, configuration.DEFAULT_PROXIES_CONFIG_VARS)
    settings = set(re.findall(r"`([A-Za-z0-9_]+)`", page))
    for name, (keys, variables, *_) in (item for table in tables for item in table.items()):
        names = [each if isinstance(each, str) else each[-1] for each in (keys if isinstance(keys, list) else [keys]) if each]
        names += [variables] if isinstance(variables, str) else variables or []
        known = {name} | set(names) | {each.removeprefix("AWS_").lower() for each in names}
        assert known & settings, f"docs/guides/object-storage.md does not say what becomes of {name} {names}"


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
        ("az://container/blob", "az:// is not supported.*SAS"),
        ("abfss://container@account/blob", "abfss:// is not supported"),
        ("gopher://host/x", "gopher:// is not supported"),
        ("s3:/bucket/key", "one slash"),
        ("hf://owner", "hf://OWNER/NAME/PATH"),
        ("s3://arn:aws:s3::123456789012:accesspoint/m.mrap/k", "version 4A"),
        ("s3://arn:aws:s3-object-lambda:us-west-2:123456789012:accesspoint/ap/k", "those of S3 buckets and access points"),
        ("s3://arn:aws:s3-outposts:us-west-2:123456789012:outpost/op/accesspoint/ap/k", "those of S3 buckets and access points"),
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


@pytest.mark.parametrize("options", [{}, {"size": 10}], ids=["asked for its size", "read"])
def test_a_host_that_does_not_exist_is_not_looked_up_again(options):
    try:
        socket.getaddrinfo("nobody.invalid", 80)
    except socket.gaierror as problem:
        if problem.errno != socket.EAI_NONAME:
            pytest.skip(f"the resolver of this machine does not say that a name is unknown: {problem}")
    with pytest.raises(penstock.Error, match="Could not resolve host") as failed, penstock.open("http://nobody.invalid/x", storage_options=options) as file:
        file.read(10)
    assert "tries" not in str(failed.value)
