"""TLS connections share the CA certificates, which libcurl would otherwise load for each of them, and still verify their servers."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from .range_server import serving

MIB = 1 << 20
PROGRAM = """
import os, sys
import numpy, penstock
good, bad = sys.argv[1:]
assert penstock.stats()["usage"]["remote_connections"] == 0
with penstock.open(good + "/object") as file:
    assert file.read(100) == bytes(100)
    first = penstock.stats()["usage"]["remote_connections"]
    os.remove(os.environ["CURL_CA_BUNDLE"])
    target = numpy.ones(8 << 20, numpy.uint8)
    assert file.read_into(target) == target.nbytes and not target.any()
    print(first, penstock.stats()["usage"]["remote_connections"])
try:
    penstock.open(bad + "/object", storage_options={"size": 100, "attempts": 1}).read(100)
except penstock.Error as error:
    print(error)
"""


def context(folder: Path, name: str) -> ssl.SSLContext:
    files = folder / f"{name}.pem", folder / f"{name}.key"
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    subprocess.run([*make, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", files[1], "-out", files[0]], check=True, capture_output=True)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*files)
    return made


def test_connections_share_the_certificates_of_authorities_and_verify_their_servers(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "served/object").write_bytes(bytes(8 * MIB))
    with (
        serving(tmp_path / "served", tls=context(tmp_path, "good")) as (good, _),
        serving(tmp_path / "served", tls=context(tmp_path, "bad")) as (bad, _),
    ):
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        environment["CURL_CA_BUNDLE"] = str(tmp_path / "good.pem")
        ended = subprocess.run([sys.executable, "-c", PROGRAM, good, bad], capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    counts, error = ended.stdout.splitlines()
    first, all_of_them = map(int, counts.split())
    assert first < all_of_them, "the certificates were loaded only for the first connections"
    assert "certificate" in error
