#!/usr/bin/env python3
"""Measures how fast KvikIO's C++ library reads an object from a web server into host memory, alone and under `penstock run`, beside penstock.kvikio.

    bench/kvikio_remote_bench.py                                   256 MiB; 0 ms; 10 ms; 30 ms with 40 and with 10 MB/s per connection
    bench/kvikio_remote_bench.py --mib 64 --repeat 3 --servers 10:0 30:40 --json FILE

cuDF, cuCIM and Velox read HTTP and S3 through kvikio::RemoteHandle. The client in bench/kvikio_remote is linked to the installed libkvikio. Each row is
one process. "one call" is one pread() of the object; "4 MiB" is pread() calls of 4 MiB, all at once, as a Parquet reader issues them. This script is
the server, with one thread per connection: each response waits for the latency and is then limited to the rate (0: unlimited). "first" and "best" are
GB/s (10^9 bytes per second) of the first and of the best of --repeat reads; CPU seconds are the client's, of the best. Checksums are compared.
Requires g++, NumPy, the package penstock, KvikIO's wheels (libkvikio-cu13, rapids-logger) and the headers of the CUDA toolkit's wheel
(nvidia-cuda-runtime), installed or in folders given with --wheels. Without libcuda.so.1, the client uses an empty one, and all memory is host memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

MIB = 1 << 20
HERE = Path(__file__).resolve().parent
ROWS = {
    "KvikIO alone": (False, {}),
    "KvikIO alone, 4 threads (cuDF)": (False, {"KVIKIO_NTHREADS": "4"}),
    "penstock run": (True, {}),
    "KvikIO alone, 64 threads": (False, {"KVIKIO_NTHREADS": "64"}),
    "KvikIO alone, 4 reactors": (False, {"KVIKIO_REMOTE_IO_BACKEND": "MULTI_POLL", "KVIKIO_REMOTE_IO_NUM_REACTORS": "4"}),
}


# --- the server


def serve(data: bytes, latency: float, bytes_per_second: float, tls: ssl.SSLContext | None = None) -> str:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def answer(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pending = b""
        while True:
            while b"\r\n\r\n" not in pending:
                received = connection.recv(65536)
                if not received:
                    return
                pending += received
            head, pending = pending.split(b"\r\n\r\n", 1)
            asked = re.search(rb"(?im)^range: *bytes=(\d+)-(\d+)", head)
            first, last = (int(asked[1]), min(int(asked[2]), len(data) - 1)) if asked else (0, len(data) - 1)
            time.sleep(latency)
            place = f"Content-Range: bytes {first}-{last}/{len(data)}\r\n" if asked else ""
            status = "206 Partial Content" if asked else "200 OK"
            fields = f'Content-Length: {last + 1 - first}\r\n{place}Accept-Ranges: bytes\r\nETag: "1"\r\n'
            connection.sendall(f"HTTP/1.1 {status}\r\n{fields}Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\n".encode())
            if head.startswith(b"HEAD"):
                continue
            start, step = time.monotonic(), 256 << 10 if bytes_per_second else len(data)
            for at in range(first, last + 1, step):
                connection.sendall(memoryview(data)[at : min(at + step, last + 1)])
                if bytes_per_second:
                    time.sleep(max(0.0, start + (min(at + step, last + 1) - first) / bytes_per_second - time.monotonic()))

    def guarded(accepted: socket.socket) -> None:
        try:
            with accepted if tls is None else tls.wrap_socket(accepted, server_side=True) as connection:
                answer(connection)
        except OSError:  # the client has closed the connection
            pass

    def accept() -> None:
        while True:
            threading.Thread(target=guarded, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"{'http' if tls is None else 'https'}://127.0.0.1:{listener.getsockname()[1]}/object"


def serve_forever(path: str, latency_ms: str, mb_per_second: str) -> None:
    print(serve(Path(path).read_bytes(), float(latency_ms) / 1e3, float(mb_per_second) * 1e6), flush=True)
    sys.stdin.read()


# --- the clients


def find(roots: list[Path], pattern: str) -> Path:
    for root in roots:
        for path in sorted(root.glob(pattern)):
            return path
    sys.exit(f"kvikio_remote_bench: {pattern} not found in {', '.join(map(str, roots))}; see --wheels")


def empty_driver(header: Path, folder: Path) -> None:
    """Builds a libcuda.so.1 whose calls return CUDA_ERROR_NOT_INITIALIZED. KvikIO then treats all memory as host memory."""
    names = set(re.findall(r"\b(cu[A-Z]\w+)\s*\(", header.read_text())) | set(re.findall(r"#\s*define\s+cu\w+\s+(cu\w+_v\d+)", header.read_text()))
    bodies = {"cuInit": "(unsigned f) { return 100; }", "cuDriverGetVersion": "(int* v) { *v = 12000; return 0; }"}
    source = folder / "driver.c"
    source.write_text("\n".join(f"int {name}{bodies.get(name, '(void) { return 3; }')}" for name in sorted(names)))
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", folder / "libcuda.so.1", source], check=True)


def build(roots: list[Path], folder: Path) -> tuple[Path, dict[str, str]]:
    """Returns the client, and the environment in which it finds its libraries."""
    kvikio, logger = find(roots, "libkvikio/lib64/libkvikio.so").parent, find(roots, "rapids_logger/lib64/librapids_logger.so").parent
    cuda = find(roots, "nvidia/*/include/cuda.h")
    includes = [HERE.parent / "include/cufile", kvikio.parent / "include", cuda.parent]
    macros = [f"-DKVIKIO_CUFILE_{name}FOUND" for name in ("", "BATCH_API_", "STREAM_API_", "VERSION_API_")]
    command = ["g++", "-std=c++20", "-O2", "-w", *macros, *(f"-I{each}" for each in includes), HERE / "kvikio_remote/kvikio_remote.cc"]
    command += ["-o", folder / "client", f"-L{kvikio}", "-lkvikio", f"-Wl,-rpath-link,{logger}", "-pthread"]
    subprocess.run(command, check=True)
    paths = [str(kvikio), str(logger)]
    if subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        empty_driver(cuda, folder)
        paths.append(str(folder))
    return folder / "client", {"LD_LIBRARY_PATH": ":".join(paths)}


def read_with_penstock(url: str, repeats: str, piece: str) -> None:
    import numpy as np

    from penstock import kvikio

    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    with kvikio.RemoteFile.open_http(url) as file:
        target = np.ones(file.nbytes(), np.uint8)
        step = int(piece) or target.nbytes
        runs = []
        for _ in range(int(repeats)):
            start, before = time.perf_counter(), cpu()
            reads = [file.pread(target[at : at + step], file_offset=at) for at in range(0, target.nbytes, step)]
            assert sum(read.get() for read in reads) == target.nbytes
            runs.append((time.perf_counter() - start, cpu() - before))
    print(json.dumps({"bytes": target.nbytes, "first": runs[0][0], "best": min(runs)[0], "cpu": min(runs)[1]}))
    Path(os.environ["TARGET_FILE"]).write_bytes(target)


def fnv(data: bytes, client: Path, environment: dict[str, str], folder: Path) -> str:
    """Returns the checksum that the client prints for the same bytes in a file."""
    (folder / "copy").write_bytes(data)
    ended = subprocess.run([client, folder / "copy", "1", "0"], env=os.environ | environment, check=True, capture_output=True, text=True)
    return str(json.loads(ended.stdout)["sum"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--servers", nargs="+", default=["0:0", "10:0", "30:40", "30:10"], metavar="MS:MB", help="latency and rate per connection")
    parser.add_argument("--wheels", type=Path, nargs="+", default=[], help="folders with unpacked wheels")
    parser.add_argument("--penstock", default=shutil.which("penstock"), help="the command")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    roots = [*arguments.wheels, *(Path(each) for each in sys.path if each)]
    results = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        folder = Path(scratch)
        client, environment = build(roots, folder)
        data = os.urandom(arguments.mib * MIB)
        (folder / "object").write_bytes(data)
        expected = fnv(data, client, environment, folder)
        for latency, rate in (each.split(":") for each in arguments.servers):
            server = subprocess.Popen(
                [sys.executable, __file__, "serve", folder / "object", latency, rate], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            for name, piece in (("one call", 0), ("4 MiB", 4 * MIB)):
                print(f"\n{latency} ms, {rate} MB/s per connection, {name}\n{'':34}{'first':>8}{'best':>8}  CPU s/GB")
                for row in [*ROWS, "penstock.kvikio"]:
                    words = [client, url, str(arguments.repeat), str(piece)]
                    under_run, variables = ROWS.get(row, (False, {}))
                    if row not in ROWS:
                        words = [sys.executable, __file__, "read", url, str(arguments.repeat), str(piece)]
                        variables = {"TARGET_FILE": str(folder / "copy")}
                    elif under_run:
                        words = [arguments.penstock, "run", "--", *words]
                    else:
                        variables = {"KVIKIO_COMPAT_MODE": "ON"} | variables
                    ended = subprocess.run(words, env=os.environ | environment | variables, check=True, capture_output=True, text=True)
                    found = json.loads(ended.stdout)
                    is_same = found["sum"] == expected if row in ROWS else (folder / "copy").read_bytes() == data
                    assert is_same, f"{row}: the bytes differ"
                    gb = found["bytes"] / 1e9
                    print(f"{row:34}{gb / found['first']:8.3f}{gb / found['best']:8.3f}{found['cpu'] / gb:10.2f}", flush=True)
                    results.append({"latency_ms": latency, "mb_per_s": rate, "calls": name, "row": row, **found})
            server.communicate()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    modes = {"serve": serve_forever, "read": read_with_penstock}
    if len(sys.argv) > 1 and sys.argv[1] in modes:
        modes[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(main())
