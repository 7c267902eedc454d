#!/usr/bin/env python3
"""Measures how soon Penstock uses as many connections as a web server needs, and what they cost.

    bench/connections_bench.py                                     0 and 10 ms without a limit; 30 ms with 10, 40 and 90 MB/s per connection
    bench/connections_bench.py --servers 30:10 --rows "256 MiB" --repeat 3 --https --json FILE

Each row is one process per repetition, which reads into host memory twice: "first" includes opening, and "second" uses what the first has learned. The
server is that of kvikio_remote_bench.py: each response waits for the latency (ms) and is then limited to the rate (MB/s; 0: unlimited). GB/s are 10^9
bytes per second, the best of --repeat; connections, requests and the client's CPU seconds are those of the same run. Bytes are compared.
Requires NumPy and the package penstock; --https requires openssl.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kvikio_remote_bench import serve

MIB = 1 << 20
SERVERS = ["0:0", "10:0", "30:10", "30:40", "30:90"]
ROWS = {"256 MiB": (1, 256), "1 GiB": (1, 1024), "16 x 8 MiB": (16, 8), "1 x 8 MiB": (1, 8)}  # objects and MiB of each


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def read(url: str, objects: int, size: int) -> None:
    import numpy as np
    import penstock

    target = np.ones((objects, size), np.uint8)
    runs: list[dict[str, float]] = []
    for _ in range(2):
        target[:] = 1
        before, cpu, start = penstock.stats()["usage"], cpu_seconds(), time.perf_counter()
        with ThreadPoolExecutor(objects) as pool:
            files = list(pool.map(penstock.open, [f"{url}-{i}" for i in range(objects)]))
        for each in [file.pread(row) for file, row in zip(files, target)]:
            assert each.result() == size
        seconds, after = time.perf_counter() - start, penstock.stats()["usage"]
        for file in files:
            file.close()
        counted = {name: after[f"remote_{name}"] - before[f"remote_{name}"] for name in ("connections", "requests", "retries", "tls_bytes")}
        runs.append({"gb_per_s": target.nbytes / seconds / 1e9, "cpu_s": cpu_seconds() - cpu} | counted)
    expected = np.fromfile(os.environ["OBJECT"], np.uint8, size)
    assert all((row == expected).all() for row in target), "the bytes differ"
    print(json.dumps(runs))


def certificate(folder: Path) -> None:
    names = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run(["openssl", *names, *map(str, files)], check=True, capture_output=True)
    usual = Path("/etc/ssl/certs/ca-certificates.crt")  # most programs load this many CA certificates
    (folder / "trusted.pem").write_bytes((folder / "cert.pem").read_bytes() + (usual.read_bytes() if usual.exists() else b""))


def serve_forever(folder: Path, mib: str, latency_ms: str, mb_per_second: str, tls: str) -> None:
    context = None
    if tls == "https":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    data = (folder / "object").read_bytes()[: int(mib) * MIB]
    print(serve(data, float(latency_ms) / 1e3, float(mb_per_second) * 1e6, context), flush=True)
    sys.stdin.read()


def measure(folder: Path, row: str, server: str, scheme: str, repeat: int) -> dict[str, Any]:
    objects, mib = ROWS[row]
    words = [sys.executable, __file__, "serve", folder, mib, *server.split(":"), scheme]
    best: list[dict[str, float]] = []
    environment = os.environ | {"OBJECT": str(folder / "object"), "CURL_CA_BUNDLE": str(folder / "trusted.pem")}
    for _ in range(repeat):
        with subprocess.Popen(list(map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdin is not None
            url = process.stdout.readline().strip()
            client = [sys.executable, __file__, "read", url, str(objects), str(mib * MIB)]
            runs = json.loads(subprocess.run(client, env=environment, check=True, capture_output=True, text=True).stdout)
            process.stdin.close()
        best = [max(pair, key=lambda run: run["gb_per_s"]) for pair in zip(runs, best or runs)]
    return {"first": best[0], "second": best[1]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", nargs="+", default=SERVERS, metavar="MS:MB")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--https", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    scheme = "https" if arguments.https else "http"
    results = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        folder = Path(scratch)
        (folder / "object").write_bytes(os.urandom(max(ROWS[row][1] for row in arguments.rows) * MIB))
        if arguments.https:
            certificate(folder)
        for server in arguments.servers:
            print(f"\n{scheme}, {server.replace(':', ' ms, ')} MB/s per connection\n{'':12}{'first':>8}{'second':>8}  connections  requests  CPU s/GB")
            for row in arguments.rows:
                told = measure(folder, row, server, scheme, arguments.repeat)
                first, second = told["first"], told["second"]
                gb = ROWS[row][0] * ROWS[row][1] * MIB / 1e9
                counts = f"{first['connections']:6.0f} +{second['connections']:4.0f}{first['requests']:10.0f}"
                cpu = f"{first['cpu_s'] / gb:8.2f} {second['cpu_s'] / gb:5.2f}"
                print(f"{row:12}{first['gb_per_s']:8.3f}{second['gb_per_s']:8.3f} {counts}{cpu}", flush=True)
                results.append({"scheme": scheme, "server": server, "row": row, **told})
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve_forever(Path(sys.argv[2]), *sys.argv[3:])
    elif sys.argv[1:2] == ["read"]:
        read(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())
