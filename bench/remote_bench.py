#!/usr/bin/env python3
"""Measures how fast objects are read from a web server: Penstock's defaults compared with plain sockets, and with KvikIO if it is installed.

    bench/remote_bench.py                              4 GiB over http and https, into the first GPU (without a GPU: the host device)
    bench/remote_bench.py --gib 1 --schemes http --rows penstock --json FILE

nginx serves a file from the page cache over loopback. It runs on the upper half of the cores that this process may use, and clients on the lower
half. Each row has its own process. "plain N" is bench/plain_web: N threads that only receive 8 MiB pieces from sockets or SSL_read().
"first" is a process's first read, including opening; "again" is the best of three more. "of plain" is the fraction of the best plain row in the run.
GB/s are 10^9 bytes per second; CPU seconds are the client's. Bytes are compared once for each row.
Rows: whole (one call), load_file (a safetensors file with 512 tensors), ranges (10,000 scattered ranges of 64 KiB).
Requires nginx, NumPy, the package penstock, and the program in bench/plain_web (build target penstock_plain_web; --plain sets its path). A GPU
requires CuPy or PyTorch, https requires openssl, and KvikIO's rows require kvikio.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20
RANGES, RANGE_BYTES = 10_000, 65536
PLAIN = Path(__file__).resolve().parent.parent / "build/release/bench/penstock_plain_web"
CONNECTIONS = (1, 4, 8, 16)
KVIKIO = {
    "kvikio": {},
    "kvikio, 8 threads of 4 MiB": {"KVIKIO_NTHREADS": "8", "KVIKIO_TASK_SIZE": str(4 * MIB)},
    "kvikio, 16 threads of 8 MiB": {"KVIKIO_NTHREADS": "16", "KVIKIO_TASK_SIZE": str(8 * MIB)},
    "kvikio, 32 threads of 16 MiB": {"KVIKIO_NTHREADS": "32", "KVIKIO_TASK_SIZE": str(16 * MIB)},
    "kvikio, 8 reactors": {"KVIKIO_REMOTE_IO_BACKEND": "MULTI_POLL", "KVIKIO_REMOTE_IO_NUM_REACTORS": "8", "KVIKIO_NTHREADS": "8"},
}


# --- the server

CONFIG = """
{user} daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes {workers};
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl; root {folder}/www;
    ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
  }}
}}
"""


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def serving(folder: Path, cores: list[int]) -> Iterator[dict[str, str]]:
    """The URLs of the folder www, by scheme."""
    names = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run(["openssl", *names, *map(str, files)], check=True, capture_output=True)
    port, tls_port = free_port(), free_port()
    user = "user root root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(CONFIG.format(user=user, folder=folder, workers=len(cores), port=port, tls_port=tls_port))
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    words = ["taskset", "-c", ",".join(map(str, cores)), nginx, "-c", str(folder / "nginx.conf"), "-p", str(folder)]
    process = subprocess.Popen(words)
    try:
        time.sleep(1)
        if process.poll() is not None:
            raise SystemExit("nginx did not start")
        yield {"http": f"http://127.0.0.1:{port}", "https": f"https://127.0.0.1:{tls_port}"}
    finally:
        process.terminate()
        process.wait()


def make_files(www: Path, size: int) -> None:
    """Creates data.bin, which contains consecutive 64-bit numbers, and a model of the same size."""
    import numpy as np

    www.mkdir()
    with open(www / "data.bin", "wb") as file:
        for at in range(0, size, 256 * MIB):
            length = min(256 * MIB, size - at)
            file.write(np.arange(at // 8, (at + length) // 8, dtype="<u8").tobytes())
    tensor = size // 512
    header = {f"layer.{i}": {"dtype": "U8", "shape": [tensor], "data_offsets": [i * tensor, (i + 1) * tensor]} for i in range(512)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(www / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        with open(www / "data.bin", "rb") as data:
            shutil.copyfileobj(data, file, 16 * MIB)


# --- a row, in its process


def device_array(size: int) -> tuple[Any, str]:
    """Memory that rows read into."""
    import penstock

    if any(each.name == "cuda:0" for each in penstock.devices()):
        import cupy

        return cupy.empty(size, dtype="u1"), "cuda:0"
    return penstock.device("host:0").empty(size), "host:0"


def scattered(size: int) -> list[int]:
    """Offsets of ranges, the same in every run."""
    step, count = 7919 * RANGE_BYTES, min(RANGES, size // RANGE_BYTES)
    return [i * step % (size - RANGE_BYTES) // 4096 * 4096 for i in range(count)]


def compare(got: Any, offsets: list[int] | None, size: int) -> None:
    import numpy as np
    import penstock

    host = np.empty(len(offsets) * RANGE_BYTES if offsets else size, "u1")
    penstock.copy(host, got)
    words = host.view("<u8")
    if offsets is None:
        right = bool((words == np.arange(size // 8, dtype="<u8")).all())
    else:
        inside = np.arange(RANGE_BYTES // 8, dtype="<u8")
        right = bool((words.reshape(-1, RANGE_BYTES // 8) == (np.array(offsets, "<u8") // 8)[:, None] + inside).all())
    if not right:
        raise SystemExit("wrong bytes")


def reader_of(client: str, what: str, url: str, size: int) -> tuple[Callable[[], Any], int, list[int] | None]:
    """Returns a function that opens and reads once, the number of bytes it reads, and the offsets of ranges."""
    import penstock

    if what == "load_file":
        from penstock.safetensors import load_file

        device = "cuda:0" if any(each.name == "cuda:0" for each in penstock.devices()) else "host:0"
        return lambda: load_file(f"{url}/model.safetensors", device), size // 512 * 512, None
    offsets = scattered(size) if what == "ranges" else None
    nbytes = len(offsets) * RANGE_BYTES if offsets else size
    memory, _ = device_array(nbytes)
    address = f"{url}/data.bin"

    def by_penstock() -> Any:
        with penstock.open(address) as file:
            if offsets is None:
                assert file.read_into(memory, 0, size) == size
            else:
                sizes = [RANGE_BYTES] * len(offsets)
                file.read_ranges(memory, offsets, sizes, [i * RANGE_BYTES for i in range(len(offsets))])
        return memory

    def by_kvikio() -> Any:
        import kvikio

        with kvikio.RemoteFile.open_http(address) as file:
            if offsets is None:
                assert file.pread(memory).get() == size
            else:
                parts = [memory[i * RANGE_BYTES : (i + 1) * RANGE_BYTES] for i in range(len(offsets))]
                begun = [file.pread(part, RANGE_BYTES, at) for part, at in zip(parts, offsets)]
                assert sum(each.get() for each in begun) == nbytes
        return memory

    return by_kvikio if client == "kvikio" else by_penstock, nbytes, offsets


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def row(client: str, what: str, url: str, size: int) -> dict[str, float]:
    read, nbytes, offsets = reader_of(client, what, url, size)
    runs = []
    for _ in range(4):
        cpu, began = cpu_seconds(), time.perf_counter()
        got = read()
        runs.append((nbytes / (time.perf_counter() - began) / 1e9, (cpu_seconds() - cpu) / (nbytes / 1e9)))
        if what == "load_file":
            assert sum(each.nbytes for each in got.values()) == nbytes
            got = None
    if got is not None:
        compare(got, offsets, size)
    best = max(runs[1:])
    return {"first": runs[0][0], "first_cpu": runs[0][1], "again": best[0], "again_cpu": best[1]}


# --- all rows


def run_row(client: str, name: str, what: str, url: str, size: int, cores: list[int], more: dict[str, str]) -> dict[str, float] | None:
    words = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, __file__, "--row", f"{client};{what};{url};{size}"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=os.environ | more)
    if ended.returncode != 0:
        print(f"{name}: {what}: failed: {ended.stderr.strip().splitlines()[-1:]}", flush=True)
        return None
    told: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return told


def plain(program: Path, url: str, size: int, connections: int, cores: list[int]) -> tuple[float, float]:
    scheme, _, port = url.replace("://", ":").split(":")
    words = [program, "127.0.0.1", port, "/data.bin", size, connections, 8 * MIB, scheme]
    best = (0.0, 0.0)
    for _ in range(3):
        ended = subprocess.run(["taskset", "-c", ",".join(map(str, cores)), *map(str, words)], capture_output=True, text=True, check=True)
        told = json.loads(ended.stdout)
        best = max(best, (size / told["seconds"] / 1e9, told["cpu_seconds"] / (size / 1e9)))
    return best


def has_kvikio() -> bool:
    return subprocess.run([sys.executable, "-c", "import kvikio"], capture_output=True, check=False).returncode == 0


def measure(asked: argparse.Namespace, scheme: str, url: str, size: int, cores: list[int], folder: Path) -> dict[str, Any]:
    print(f"\n{scheme}, {size / 1e9:.2f} GB\n{'':42}{'first':>8}{'again':>8}{'of plain':>9}{'CPU s/GB':>10}")
    plains = {}
    for connections in CONNECTIONS:
        plains[connections] = plain(asked.plain, url, size, connections, cores)
        print(f"{f'plain {connections}':42}{'':8}{plains[connections][0]:8.2f}{'':9}{plains[connections][1]:10.3f}", flush=True)
    ceiling = max(speed for speed, _ in plains.values())
    clients: dict[str, dict[str, str]] = {"penstock": {}}
    if has_kvikio():
        clients |= KVIKIO
    rows: dict[str, Any] = {}
    certificate = {"SSL_CERT_FILE": str(folder / "cert.pem"), "CURL_CA_BUNDLE": str(folder / "cert.pem")}
    for what in ("whole", "load_file", "ranges"):
        for name, more in clients.items():
            client = name.partition(",")[0]
            if (what == "load_file" and client != "penstock") or not any(each in f"{name}: {what}" for each in asked.rows.split(";")):
                continue
            told = run_row(client, name, what, url, size, cores, more | certificate)
            if told is None:
                continue
            rows[f"{name}: {what}"] = told
            share = told["again"] / ceiling
            print(f"{f'{name}: {what}':42}{told['first']:8.2f}{told['again']:8.2f}{share:9.2f}{told['again_cpu']:10.3f}", flush=True)
    return {"scheme": scheme, "bytes": size, "plain": plains, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--schemes", default="http,https")
    parser.add_argument("--rows", default="", help="only rows whose names contain one of these words, separated by semicolons")
    parser.add_argument("--folder", type=Path, help="folder for the files, with space for twice --gib (default: a new one in /dev/shm)")
    parser.add_argument("--plain", type=Path, default=PLAIN)
    parser.add_argument("--json")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        client, what, url, size = asked.row.split(";")
        print(json.dumps(row(client, what, url, int(size))))
        return
    cores = sorted(os.sched_getaffinity(0))
    mine, servers = cores[: len(cores) // 2 or 1], cores[len(cores) // 2 :]
    size = int(asked.gib * 1024) * MIB
    with tempfile.TemporaryDirectory(prefix="penstock-remote-", dir=asked.folder or "/dev/shm") as name:
        folder = Path(name)
        folder.chmod(0o755)
        make_files(folder / "www", size)
        with serving(folder, servers) as urls:
            told = [measure(asked, scheme, urls[scheme], size, mine, folder) for scheme in asked.schemes.split(",")]
    if asked.json:
        Path(asked.json).write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
