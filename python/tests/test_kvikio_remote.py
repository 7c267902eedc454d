"""KvikIO's remote files, from servers of the tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import penstock
import penstock.kvikio as kvikio
from penstock.kvikio import RemoteEndpointType, RemoteFile, _log

from . import range_server
from .test_remote_s3 import server  # noqa: F401

CONTENT = numpy.random.default_rng(3).integers(0, 256, 2**21 + 7, dtype=numpy.uint8)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "data.bin").write_bytes(CONTENT.tobytes())
    with range_server.serving(tmp_path) as (address, _):
        yield f"{address}/data.bin"


def test_a_file_of_a_web_server(url):
    with RemoteFile.open_http(url) as file:
        assert file.nbytes() == len(CONTENT)
        assert str(file) == f'<RemoteFile "{url}">'
        assert file.remote_endpoint_type() is RemoteEndpointType.HTTP
        memory = numpy.empty_like(CONTENT)
        assert file.read(memory) == len(CONTENT)
        numpy.testing.assert_array_equal(memory, CONTENT)
        part = numpy.zeros(1000, numpy.uint8)
        future = file.pread(part, 900, 5000)
        assert future.get() == 900 and future.get() == 900 and future.done()
        numpy.testing.assert_array_equal(part[:900], CONTENT[5000:5900])
        assert not part[900:].any()


def test_memory_of_a_device(url):
    memory = penstock.device("host:0").empty(len(CONTENT))
    assert RemoteFile.open(url).read(memory) == len(CONTENT)
    back = numpy.empty_like(CONTENT)
    penstock.copy(back, memory)
    numpy.testing.assert_array_equal(back, CONTENT)


def test_a_size_that_is_given_is_not_asked_for(url):
    assert RemoteFile.open_http(url, nbytes=10).nbytes() == 10
    with pytest.raises(ValueError, match=r"cannot read 0\+100 bytes into a 10 bytes file"):
        RemoteFile.open_http(url, nbytes=10).read(bytearray(100))


def test_errors_have_the_words_of_kvikio(url):
    with pytest.raises(RuntimeError, match="URL returned error: 404"):
        RemoteFile.open_http(url + ".not")
    with pytest.raises(RuntimeError, match="Bad scheme"):
        RemoteFile.open("data.bin")
    with pytest.raises(RuntimeError, match="Unsupported endpoint URL"):
        RemoteFile.open("ftp://host/data.bin")
    with pytest.raises(RuntimeError, match="Invalid URL"):
        RemoteFile.open(url, RemoteEndpointType.WEBHDFS)
    with pytest.raises(RuntimeError, match="not in the allowlist"):
        RemoteFile.open(url, allow_list=[RemoteEndpointType.S3])
    with pytest.raises(RuntimeError, match="not in the allowlist"):
        RemoteFile.open(url, RemoteEndpointType.HTTP, [RemoteEndpointType.S3])
    with pytest.raises(ValueError, match="Unsupported protocol"):
        RemoteFile.open_s3_url("ftp://bucket/key")
    file = RemoteFile.open(url)
    with pytest.raises(OverflowError):
        file.read(bytearray(10), -1)
    with pytest.raises(OverflowError):
        file.read(bytearray(10), 1, -1)
    with pytest.raises(ValueError, match="cannot read"):
        file.read(bytearray(10), 10, len(CONTENT) - 5)
    with pytest.raises(ValueError):
        file.read(b"0123456789")


def test_a_url_tells_what_it_stands_for():
    stands_for = {
        "s3://bucket/key": RemoteEndpointType.S3,
        "https://bucket.s3.eu-west-1.amazonaws.com/key": RemoteEndpointType.S3,
        "https://s3.amazonaws.com/bucket/key": RemoteEndpointType.S3,
        "https://bucket.s3.amazonaws.com/key?X-Amz-Algorithm=a&X-Amz-Signature=b": RemoteEndpointType.S3_PRESIGNED_URL,
        "http://host:50070/webhdfs/v1/file": RemoteEndpointType.WEBHDFS,
        "https://host/s3.amazonaws.com/key": RemoteEndpointType.HTTP,
        "HTTP://host/key": RemoteEndpointType.HTTP,
    }
    for url, kind in stands_for.items():
        assert kvikio.infer_remote_endpoint_type(url) is kind, url
    assert [each.value for each in RemoteEndpointType] == list(range(6))


def test_no_message_has_the_query_of_a_url(url):
    with pytest.raises(RuntimeError) as refused:
        RemoteFile.open_s3_presigned_url(url + "?X-Amz-Signature=hidden")
    assert "hidden" not in str(refused.value)
    assert "hidden" not in str(RemoteFile.open_http(url + "?token=hidden"))


def test_the_log_has_no_query_of_a_url_either(url, monkeypatch, caplog):
    monkeypatch.setattr(_log.logger, "disabled", False)
    with caplog.at_level("INFO", _log.logger.name), pytest.raises(RuntimeError):
        RemoteFile.open_http(f"{url}?token=secret").nbytes()
        RemoteFile.open_http(f"{url}.missing?token=secret")
    assert "data.bin: opened" in caplog.text and "404" in caplog.text and "secret" not in caplog.text


def test_an_object_of_s3(server: Any, monkeypatch):  # noqa: F811
    facts = server.facts()
    given = {
        "aws_region_name": facts["region"],
        "aws_access_key_id": facts["access_key"],
        "aws_secret_access_key": facts["secret_key"],
        "aws_endpoint_url": facts["endpoint"],
    }
    server.put("with space", CONTENT.tobytes())
    for file in (
        RemoteFile.open_s3(facts["bucket"], "with%20space", **given),
        RemoteFile.open_s3_url(f"s3://{facts['bucket']}/with%20space", **given),
    ):
        memory = numpy.empty_like(CONTENT)
        assert file.read(memory) == file.nbytes() == len(CONTENT)
        numpy.testing.assert_array_equal(memory, CONTENT)
        assert file.remote_endpoint_type() is RemoteEndpointType.S3
    for name, value in (
        ("AWS_DEFAULT_REGION", facts["region"]),
        ("AWS_ACCESS_KEY_ID", facts["access_key"]),
        ("AWS_SECRET_ACCESS_KEY", facts["secret_key"]),
        ("AWS_ENDPOINT_URL", facts["endpoint"]),
    ):
        monkeypatch.setenv(name, value)
    assert RemoteFile.open(f"s3://{facts['bucket']}/with%20space").nbytes() == len(CONTENT)
    with pytest.raises(RuntimeError, match=re.escape("404")):
        RemoteFile.open_s3_url(f"s3://{facts['bucket']}/nothing")
