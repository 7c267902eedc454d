"""Pipes over tcp that are encrypted."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import numpy as np
import pytest

import penstock
import penstock.pipe
from penstock.pipe import Tls

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make certificates")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("certificates")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for name in ("node", "other"):
        names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-subj", f"/CN={name}", "-days", "30"]
        command = ["openssl", "req", "-x509", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.pem", *names]
        subprocess.run(command, cwd=made, check=True, capture_output=True)
    return made


def test_tensors_go_both_ways_under_tls(folder: pathlib.Path) -> None:
    node = Tls(certificate=str(folder / "node.pem"), key=str(folder / "node.key"))
    with penstock.pipe.listen("tcp://127.0.0.1:0", tls=node) as listener:
        accepted = listener.accept(timeout=20)
        there = penstock.pipe.connect(listener.url, tls=Tls(ca=str(folder / "node.pem")))
        content = np.arange(3_000_000, dtype="f4")
        sent = there.send(b"m", tensors=[content])
        here = accepted.result()
    assert (here.receive(timeout=20).result().tensors[0] == content).all() and sent.result() == content.nbytes
    sent = here.send(tensors=[content])
    assert (there.receive(timeout=20).result().tensors[0] == content).all() and sent.result() == content.nbytes
    assert there.explain().transport == "tls"


def test_the_wrong_authority_is_permission_denied_and_the_listener_waits_on(folder: pathlib.Path) -> None:
    node = Tls(certificate=str(folder / "node.pem"), key=str(folder / "node.key"), ca=str(folder / "node.pem"))
    with penstock.pipe.listen("tcp://127.0.0.1:0", tls=node) as listener:
        accepted = listener.accept(timeout=20)
        for tls in (Tls(ca=str(folder / "other.pem")), True):
            stranger = penstock.pipe.connect(listener.url, tls=tls)
            with pytest.raises(penstock.PermissionDenied, match="certificate"):
                stranger.next(timeout=20).result()
        stranger = penstock.pipe.connect(listener.url, tls=Tls(ca=str(folder / "node.pem")))
        with pytest.raises(penstock.Error):  # one of its own is asked for
            stranger.next(timeout=20).result()
        there = penstock.pipe.connect(listener.url, tls=node)
        there.send(b"in")
        assert accepted.result().receive(timeout=20).result().metadata == b"in"


def test_what_cannot_be_is_told(folder: pathlib.Path) -> None:
    with pytest.raises(penstock.InvalidArgument):
        penstock.pipe.listen("tcp://127.0.0.1:0", tls=Tls(ca=str(folder / "node.pem")))
    with pytest.raises(penstock.InvalidArgument):
        penstock.pipe.listen("tcp://127.0.0.1:0", tls=Tls(certificate=str(folder / "node.pem"), key=str(folder / "other.key")))
    with pytest.raises(TypeError):
        penstock.pipe.connect("tcp://127.0.0.1:1", tls="node.pem")  # type: ignore[arg-type]
