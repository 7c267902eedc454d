"""What the Python clients share: exit codes, the memory that they use, and which library answers.

A client prints "OK what" for each group of checks. It exits with 0, with 1 and the failing check, or with SKIPPED and the reason.
"""

import ctypes
import os
import pathlib
import sys
from typing import Any, Callable, NoReturn, Optional

SKIPPED = 77


def skip(reason: str) -> NoReturn:
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def fail(what: str) -> NoReturn:
    print(f"FAILED: {what}", file=sys.stderr)
    sys.exit(1)


def check(condition: Any, what: str) -> None:
    if not condition:
        fail(what)


def equal(found: Any, wanted: Any, what: str) -> None:
    if found != wanted:
        fail(f"{what}: {found!r}, not {wanted!r}")


def refused(call: Callable[[], Any], code: int, what: str) -> None:
    """The call must raise the error of the package cufile-python that has this code."""
    try:
        call()
    except RuntimeError as problem:
        check(f"err={code}" in str(problem), f"{what}: {problem}, not {code}")
        return
    fail(f"{what}: no error, not {code}")


def ok(what: str) -> None:
    print(f"OK {what}", flush=True)


def why_no_gpu() -> Optional[str]:
    """None where the CUDA driver has a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no libcuda.so.1"
    count = ctypes.c_int(0)
    error = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if error:
        return f"CUDA error {error}"
    return None if count.value > 0 else "the CUDA driver lists no GPU"


def mapped_libraries() -> set[str]:
    """Every libcufile that this process has mapped, by its real name."""
    names = set()
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        name = line.split(maxsplit=5)[-1]
        if pathlib.PurePath(name).name.startswith("libcufile.so"):
            names.add(os.path.realpath(name))
    return names


def check_library(wanted: Optional[str]) -> None:
    """Fails unless the one libcufile in this process is the wanted one. None: any."""
    found = mapped_libraries()
    check(found, "no libcufile is mapped")
    if wanted is not None:
        equal(found, {os.path.realpath(wanted)}, "libcufile in this process")
    ok(f"library: {', '.join(sorted(found))}")
