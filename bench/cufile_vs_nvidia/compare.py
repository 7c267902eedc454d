#!/usr/bin/env python3
"""Compares Penstock's libcufile with NVIDIA's and with Penstock's own C++ interface: the same rows alternately, each in its own process.

Measures, in --rounds rounds so that a machine that becomes slower affects all equally: our library, every NVIDIA library that is given or found
(--nvidia FILE, --wheel FILE with nvidia-cufile from PyPI, and the one installed on this machine), and the C++ interface. Prints each figure,
then the ratios next to those that Penstock must reach.

NVIDIA's library does not read files on disks that are unknown to udev, as in most containers. If the disk has no udev record and this process is
root, a record is created for these runs and removed afterwards.

Usage: compare.py --bench PENSTOCK_CUFILE_BENCH --ours LIBCUFILE --file FILE [--nvidia FILE ...] [--wheel FILE ...] [--size-mib N]
                  [--rounds N] [--repeats N] [--rows A,B] [--host] [--json FILE]
Exits with 1 if a requirement is missed or a library failed; with 77 if there is no NVIDIA library to compare with.
"""

import argparse
import contextlib
import dataclasses
import glob
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import zipfile
from typing import Iterator, Optional

SKIPPED = 77
OURS, NATIVE = "ours", "native"
MARKER = b"penstock_cufile_marker"  # what our library exports and NVIDIA's does not

# Required ratio of our figure to NVIDIA's, by row. Every row must also use less CPU time.
REQUIRED = {
    "hot_one_call": 1.6,
    "hot_1m": 1.8,
    "hot_1m_8_threads": 1.3,
    "hot_4k": 1.1,
    "cold_16m": 1.25,
    "batch_128x4k": 5.0,
    "driver_open": 10.0,
}
OF_NATIVE = 0.97
UDEV_FOLDER = pathlib.Path("/run/udev/data")


@dataclasses.dataclass
class Subject:
    label: str
    arguments: list[str]
    nvidia: bool
    failure: Optional[str] = None


@dataclasses.dataclass
class Figure:
    """All rounds of one row of one subject."""

    unit: str
    best: list[float] = dataclasses.field(default_factory=list)
    medians: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.medians)

    @property
    def best_of_all(self) -> float:
        return min(self.best) if self.unit == "us" else max(self.best)

    @property
    def cpu_median(self) -> Optional[float]:
        return statistics.median(self.cpu) if self.cpu else None

    def times_better_than(self, other: "Figure") -> float:
        return other.median / self.median if self.unit == "us" else self.median / other.median


Figures = dict[str, dict[str, Figure]]  # by row, by label


# --- the udev record


def udev_record(file: pathlib.Path) -> tuple[pathlib.Path, str]:
    """Where udev keeps what it knows of the file's disk, and what NVIDIA's library looks for in it."""
    device = os.stat(file).st_dev
    record = UDEV_FOLDER / f"b{os.major(device)}:{os.minor(device)}"
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, about = line.partition(" - ")
        if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}":
            return record, f"E:ID_FS_TYPE={about.split()[0]}\nE:ID_FS_USAGE=filesystem\n"
    return record, "E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n"


@contextlib.contextmanager
def known_to_udev(file: pathlib.Path) -> Iterator[str]:
    """Sees to a record of the file's disk, and yields what was done. Removes what it made."""
    record, text = udev_record(file)
    if record.exists():
        yield f"udev knows the disk ({record})"
        return
    if os.geteuid() != 0:
        yield f"udev does not know the disk, and only root can make {record}"
        return
    made: list[pathlib.Path] = []
    try:
        for folder in reversed([record.parent, *record.parent.parents]):
            if not folder.exists():
                folder.mkdir()
                made.append(folder)
        record.write_text(text)
        made.append(record)
        yield f"made {record} for these runs"
    finally:
        for path in reversed(made):
            with contextlib.suppress(OSError):  # a folder that someone else uses by now stays
                path.rmdir() if path.is_dir() else path.unlink()


# --- the libraries


def is_nvidias(library: pathlib.Path) -> bool:
    return library.is_file() and MARKER not in library.read_bytes()


def installed_library() -> Optional[pathlib.Path]:
    """Returns NVIDIA's library on this machine: the one that the dynamic linker finds, or a CUDA toolkit's."""
    found = []
    try:
        listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
        found = [line.rsplit("=> ", 1)[1] for line in listed.splitlines() if "libcufile.so.0 " in line and "=> " in line]
    except FileNotFoundError:
        pass
    for folder in ("lib64", "targets/*/lib", "lib"):
        found += sorted(glob.glob(f"/usr/local/cuda*/{folder}/libcufile.so.0"))
    return next((pathlib.Path(name).resolve() for name in found if is_nvidias(pathlib.Path(name))), None)


def unpacked(wheel: pathlib.Path, scratch: pathlib.Path) -> pathlib.Path:
    folder = scratch / wheel.stem
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    library = next(folder.rglob("libcufile.so.0"), None)
    if library is None:
        sys.exit(f"{wheel} contains no libcufile.so.0")
    return library


def subjects(given: argparse.Namespace, scratch: pathlib.Path) -> list[Subject]:
    libraries = [("nvidia " + library.resolve().name, library) for library in given.nvidia]
    libraries += [("nvidia " + wheel.name.split("-")[1], unpacked(wheel, scratch)) for wheel in given.wheel]
    on_machine = None if given.no_installed else installed_library()
    if on_machine and all(on_machine != library.resolve() for _, library in libraries):
        libraries.insert(0, ("nvidia installed " + on_machine.name.removeprefix("libcufile.so."), on_machine))
    made = [Subject(OURS, ["--library", str(given.ours.resolve())], nvidia=False)]
    for label, library in libraries:
        if not is_nvidias(library):
            sys.exit(f"{library} is not NVIDIA's library")
        made.append(Subject(label, ["--library", str(library.resolve())], nvidia=True))
    made.append(Subject(NATIVE, ["--native"], nvidia=False))
    return made


# --- measuring


def clean_environment() -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CUFILE_")}
    for name in ("LD_PRELOAD", "LD_AUDIT"):  # of `penstock run`: it would put our library in NVIDIA's place
        environ.pop(name, None)
    return environ


def run_once(subject: Subject, given: argparse.Namespace, figures: Figures) -> None:
    """Runs one process. Stores its figures, or the subject's failure."""
    command = [str(given.bench.resolve()), *subject.arguments, "--label", subject.label, "--json", "--file", str(given.file.resolve()),
               "--size-mib", str(given.size_mib), "--repeats", str(given.repeats)]
    if given.rows:
        command += ["--rows", given.rows]
    command += ["--host"] if given.host else []
    with tempfile.TemporaryDirectory() as folder:  # NVIDIA's library leaves its log in the working directory
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=given.timeout, cwd=folder, env=clean_environment())
        except subprocess.TimeoutExpired as late:
            output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            take(output, subject.label, figures)
            subject.failure = f"still running after {given.timeout} s"
            return
    take(done.stdout, subject.label, figures)
    if done.returncode:
        subject.failure = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def take(output: str, label: str, figures: Figures) -> None:
    for line in output.splitlines():
        if not line.startswith("{"):
            print(f"  {line}", flush=True)
            continue
        told = json.loads(line)
        if "skipped" in told:
            continue
        figure = figures.setdefault(told["row"], {}).setdefault(label, Figure(told["unit"]))
        figure.best.append(told["best"])
        figure.medians.append(told["median"])
        if "cpu_s_per_gb" in told:
            figure.cpu.append(told["cpu_s_per_gb"])


def measure(everyone: list[Subject], given: argparse.Namespace) -> Figures:
    figures: Figures = {}
    for number in range(given.rounds):
        print(f"round {number + 1} of {given.rounds}", flush=True)
        for subject in everyone if number % 2 == 0 else reversed(everyone):  # nobody is always first
            if subject.failure:
                continue
            record = known_to_udev(given.file) if subject.nvidia else contextlib.nullcontext("")
            with record as remark:
                if remark and number == 0:
                    print(f"  {subject.label}: {remark}", flush=True)
                run_once(subject, given, figures)
            if subject.failure:
                print(f"  {subject.label}: failed: {subject.failure}", flush=True)
    return figures


# --- the tables


def print_figures(everyone: list[Subject], figures: Figures) -> None:
    print("\nmedian (best) of each row; CPU seconds per GB")
    print(f"{'row':18}" + "".join(f"{subject.label:>38}" for subject in everyone))
    for row, by_label in figures.items():
        cells = []
        for subject in everyone:
            figure = by_label.get(subject.label)
            if figure is None:
                cells.append(f"{'-':>38}")
                continue
            cpu = f" {figure.cpu_median:.4f} s/GB" if figure.cpu_median is not None else ""
            cells.append(f"{figure.median:.2f} ({figure.best_of_all:.2f}) {figure.unit}{cpu}".rjust(38))
        print(f"{row:18}" + "".join(cells))


def judged(row: str, what: str, found: float, wanted: float, met: bool) -> bool:
    print(f"{'ok    ' if met else 'MISSED'}  {row:18} {what:44} {found:9.2f}   required {wanted:g}")
    return met


def print_ratios(everyone: list[Subject], figures: Figures) -> bool:
    """Returns True if every requirement that could be checked is met."""
    print("\nratios of medians; above 1: ours is better")
    met = True
    for row, by_label in figures.items():
        ours = by_label.get(OURS)
        if ours is None:
            continue
        for subject in everyone:
            other = by_label.get(subject.label)
            if subject.label == OURS or other is None:
                continue
            ratio = ours.times_better_than(other)
            if subject.nvidia and row in REQUIRED:
                met &= judged(row, f"to {subject.label}", ratio, REQUIRED[row], ratio >= REQUIRED[row])
                if ours.cpu_median is not None and other.cpu_median:
                    share = ours.cpu_median / other.cpu_median
                    met &= judged(row, f"CPU s/GB, part of that of {subject.label}", share, 1, share < 1)
            elif subject.label == NATIVE and row != "driver_open":
                met &= judged(row, "to the C++ interface", ratio, OF_NATIVE, ratio >= OF_NATIVE)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=pathlib.Path, required=True, help="path of the program penstock_cufile_bench")
    parser.add_argument("--ours", type=pathlib.Path, required=True, help="Penstock's libcufile.so.0")
    parser.add_argument("--file", type=pathlib.Path, required=True, help="the file to read; created if missing, and kept")
    parser.add_argument("--nvidia", type=pathlib.Path, action="append", default=[], help="path of an NVIDIA libcufile.so.0; can be repeated")
    parser.add_argument("--wheel", type=pathlib.Path, action="append", default=[], help="path of a wheel of nvidia-cufile; can be repeated")
    parser.add_argument("--no-installed", action="store_true", help="skip the library installed on this machine")
    parser.add_argument("--size-mib", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", default="")
    parser.add_argument("--timeout", type=int, default=180, help="time limit for each process, in seconds")
    parser.add_argument("--host", action="store_true", help="use host memory: says little about cuFile, but needs no GPU")
    parser.add_argument("--json", type=pathlib.Path, help="also write all figures to this file")
    given = parser.parse_args()
    for needed in (given.bench, given.ours, *given.nvidia, *given.wheel):
        if not needed.exists():
            parser.error(f"{needed} does not exist")

    with tempfile.TemporaryDirectory() as scratch:
        everyone = subjects(given, pathlib.Path(scratch))
        given.file.parent.mkdir(parents=True, exist_ok=True)
        given.file.touch()  # the disk must be known before the program makes the file
        figures = measure(everyone, given)
    print_figures(everyone, figures)
    met = print_ratios(everyone, figures)
    if given.json:
        plain = {row: {label: dataclasses.asdict(figure) for label, figure in by_label.items()} for row, by_label in figures.items()}
        failures = {subject.label: subject.failure for subject in everyone if subject.failure}
        given.json.write_text(json.dumps({"figures": plain, "failures": failures}, indent=2) + "\n")
    failed = [subject for subject in everyone if subject.failure]
    for subject in failed:
        print(f"failed: {subject.label}: {subject.failure}")
    compared = [subject for subject in everyone if subject.nvidia and not subject.failure]
    if not compared:
        print("no NVIDIA library was measured")
    if not met or any(not subject.nvidia for subject in failed):
        return 1
    if not compared:
        return SKIPPED
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
