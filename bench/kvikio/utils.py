"""Code shared by the benchmarks: arrays, arguments and output."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import penstock
from penstock import kvikio

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def array_module() -> Any:
    """Returns CuPy if it is installed and a GPU can be used, else NumPy."""
    if penstock.cuda_status() is None:
        with contextlib.suppress(ImportError):
            import cupy

            return cupy
    import numpy

    return numpy


def parse_bytes(text: str) -> int:
    """Parses a number of bytes such as "4096", "10 MiB" or "1.5GB". Raises ValueError for any other text."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgtp]?)(i?)b?\s*", text.lower())
    if not found:
        raise ValueError(f"{text!r} is not a number of bytes such as 4096, 10 MiB or 1.5GB")
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgtp".index(unit or " "))


def format_bytes(nbytes: float) -> str:
    """Formats bytes as "10.00 MiB"."""
    for unit in _UNITS[:-1]:
        if nbytes < 1024:
            break
        nbytes /= 1024
    else:
        unit = _UNITS[-1]
    return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.2f} {unit}"


def parse_directory(text: str | None) -> pathlib.Path | None:
    """Checks an argparse argument that must be an existing folder. None stays None."""
    if text is None:
        return None
    folder = pathlib.Path(text)
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a directory")
    return folder


@contextlib.contextmanager
def folder_for(given: pathlib.Path | None) -> Iterator[pathlib.Path]:
    """Yields the given folder, or a temporary one that exists during the block."""
    if given is not None:
        yield given
    else:
        with tempfile.TemporaryDirectory() as made:
            yield pathlib.Path(made)


def drop_vm_cache() -> None:
    """Empties the machine's page cache. Raises RuntimeError unless the process is root or can use passwordless sudo."""
    if not kvikio.drop_system_page_cache():
        raise RuntimeError("the machine's page cache could not be dropped, which requires root or passwordless sudo")


def pprint_sys_info() -> None:
    """Prints the system properties that affect the results."""
    major, minor = kvikio.cufile_driver.libcufile_version()
    properties = kvikio.cufile_driver.properties
    gpu = next((device for device in penstock.devices() if device.name.startswith("cuda:")), None)
    driver = f"v{properties.major_version}.{properties.minor_version}" if properties.is_gds_available else "N/A"
    told = {
        "penstock": penstock.__version__,
        "arrays": array_module().__name__,
        "GPU": f"{gpu.description} ({gpu.name})" if gpu is not None else f"none: {penstock.cuda_status()}",
        "GPU-direct": penstock.gpu_direct_status() or "possible",
        "cuFile stood in for": f"{major}.{minor}",
        "GDS driver": driver,
        "GDS config.json": os.path.realpath(os.environ.get("CUFILE_ENV_PATH_JSON") or "/etc/cufile.json"),
    }
    print_facts(told)


def print_facts(told: dict[str, Any]) -> None:
    for name, value in told.items():
        print(f"{name:<19} | {value}")


def print_rates(name: str, rates: Sequence[float]) -> None:
    """Prints the mean of the rates, in bytes per second, and their spread."""
    mean = statistics.mean(rates)
    line = f"{name:<19} | {format_bytes(mean):>11}/s"
    if len(rates) > 1:
        spread = statistics.stdev(rates) / mean * 100
        line += f" ± {spread:5.2f} % ({', '.join(f'{format_bytes(rate)}/s' for rate in rates)})"
    print(line)


Roundtrip = Callable[[Any], tuple[float, float]]


def run_all(args: argparse.Namespace, api: dict[str, Roundtrip], warm_ups: int = 0) -> None:
    """Runs the selected roundtrips as often as requested, and prints their read and write speeds."""
    for name in args.api:
        for _ in range(warm_ups):
            api[name](args)
        times = [api[name](args) for _ in range(args.nruns)]
        print_rates(f"{name} read", [args.nbytes / read for read, _ in times])
        print_rates(f"{name} write", [args.nbytes / write for _, write in times])


def chosen(args: argparse.Namespace, api: dict[str, Roundtrip]) -> list[str]:
    """Returns the roundtrips that --api selects; "all" selects every one."""
    return list(api) if "all" in args.api else list(args.api)
