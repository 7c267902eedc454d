#!/usr/bin/env python3
"""Measures folders of small files, such as caches of compiled kernels: penstock.read_tree() and `penstock cp -r` compared with plain threads.

    bench/small_files_bench.py                            20,000 files of 4 to 200 KiB on the current folder's file system
    bench/small_files_bench.py --folder /dev/shm /var/tmp --files 5000 --repeat 5 --json FILE
    bench/small_files_bench.py --cold
    bench/small_files_bench.py --source FOLDER            an existing folder, for example on a network mount; nothing is created in it

"plain N" is bench/plain_files.c with N threads: open, read into new memory, close; or open, read, create, write, close. It receives the
names on standard input; Penstock lists the folder, and cp gives each file its name once it is complete. Each time is the best of --repeat runs taken in
turn, with the CPU seconds of that run. "of best" is the speed relative to the fastest plain row. "of CPU" is the fewest CPU seconds of any plain
row, divided by this row's: on a busy machine, times vary more than CPU seconds. --cold drops the files' pages before each run, and as
root also cached names and inodes. The contents are compared once. Requires a C compiler and the package penstock; --penstock sets the program for cp.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from penstock.__main__ import command

HERE = Path(__file__).resolve().parent
SIZES = (4 << 10, 200 << 10)
FOLDERS = 200
READ_TREE = """
import sys, time, penstock
began, cpu = time.perf_counter(), time.process_time()
files = penstock.read_tree(sys.argv[1])
print(time.perf_counter() - began, time.process_time() - cpu)
"""


def fill(folder: Path, files: int) -> None:
    content, sizes = os.urandom(SIZES[1]), random.Random(1)
    for i in range(files):
        path = folder / f"{i % FOLDERS:03d}" / f"{i}.cubin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content[: sizes.randint(*SIZES)])


def drop(folder: Path, names: list[str]) -> None:
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        for name in names:
            descriptor = os.open(folder / name, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def output_of(command: list[str], names: list[str] | None = None) -> str:
    given = None if names is None else b"".join(os.fsencode(name) + b"\0" for name in names)
    done = subprocess.run(command, input=given, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


def measured(command: list[str]) -> tuple[float, float]:
    """Returns what `cp --json` says, and the CPU seconds of the process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = json.loads(output_of(command))["seconds"]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--folder", type=Path, nargs="+", default=[Path(".")])
    ask.add_argument("--source", type=Path)
    ask.add_argument("--files", type=int, default=20_000)
    ask.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    ask.add_argument("--repeat", type=int, default=3)
    ask.add_argument("--cold", action="store_true")
    ask.add_argument("--no-cp", action="store_true")
    ask.add_argument("--penstock", default=command())
    ask.add_argument("--json", type=Path)
    args = ask.parse_args()
    found = {str(folder): measure(args, folder) for folder in args.folder}
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))


def measure(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="penstock-small-", dir=folder) as work:
        source = args.source or Path(work) / "source"
        if args.source is None:
            source.mkdir()
            fill(source, args.files)
        names = sorted(str(each.relative_to(source)) for each in source.rglob("*") if each.is_file())
        nbytes = sum((source / name).stat().st_size for name in names)
        plain, copies = Path(work) / "plain_files", Path(work) / "copy"
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", plain, HERE / "plain_files.c", "-lpthread"], check=True)

        def plainly(threads: int, copying: bool) -> tuple[float, float]:
            if copying:
                for folder in {os.path.dirname(name) for name in names}:
                    (copies / folder).mkdir(parents=True, exist_ok=True)
            told = output_of([str(plain), str(threads), str(source), *([str(copies)] if copying else [])], names).split()
            return float(told[0]), float(told[1])

        def read_tree() -> tuple[float, float]:
            told = output_of([sys.executable, "-c", READ_TREE, str(source)]).split()
            return float(told[0]), float(told[1])

        rows: dict[str, Callable[[], tuple[float, float]]] = {f"read: plain {n}": lambda n=n: plainly(n, False) for n in args.threads}
        rows["read: penstock.read_tree"] = read_tree
        if not args.no_cp:
            rows |= {f"copy: plain {n}": lambda n=n: plainly(n, True) for n in args.threads}
            rows["copy: penstock cp -r"] = lambda: measured([args.penstock, "cp", "-r", "--json", "-q", str(source), str(copies)])
        best: dict[str, tuple[float, float]] = {}
        for turn in range(args.repeat):
            for name, row in rows.items():
                if args.cold:
                    drop(source, names)
                best[name] = min(best.get(name, (float("inf"), 0.0)), row())
                if copies.exists():
                    if turn == 0:
                        wrong = [each for each in names if (copies / each).read_bytes() != (source / each).read_bytes()]
                        if wrong:
                            sys.exit(f"{name}: {len(wrong)} files differ, such as {wrong[0]}")
                    shutil.rmtree(copies)
        print(f"{len(names)} files, {nbytes / 1e6:.0f} MB, {'cold' if args.cold else 'cached'}, {os.cpu_count()} cores, in {source}")
        for name, (seconds, cpu) in best.items():
            plain_rows = [each for other, each in best.items() if other.startswith(name[:4]) and "plain" in other]
            speed = f"{len(names) / seconds:9.0f} files/s {nbytes / seconds / 1e9:6.2f} GB/s"
            of_best, of_cpu = min(plain_rows)[0] / seconds, min(each[1] for each in plain_rows) / cpu
            print(f"{name:26} {seconds:8.3f} s {speed} {cpu:7.3f} CPU s {of_best:6.2f} of best {of_cpu:6.2f} of CPU")
        return {name: {"seconds": seconds, "cpu_seconds": cpu, "bytes": nbytes} for name, (seconds, cpu) in best.items()}


if __name__ == "__main__":
    main()
