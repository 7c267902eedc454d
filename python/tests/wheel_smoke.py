"""Whether an installed wheel works: needs Python alone, neither NumPy nor pytest nor the sources.

Usage: python wheel_smoke.py
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import penstock
from penstock.__main__ import command

NBYTES = 1_000_003


def check_reading(folder: Path) -> None:
    content = os.urandom(NBYTES)
    path = folder / "file"
    path.write_bytes(content)
    buffer = penstock.device("host:0").empty(NBYTES)
    target = bytearray(NBYTES)
    with penstock.open(path) as file:
        assert file.read_into(buffer) == NBYTES
        assert file.pread(target).result() == NBYTES
    assert buffer.to_host() == content
    assert target == content


def check_command() -> None:
    script = Path(sys.executable).parent / "penstock"
    for start in ([sys.executable, "-m", "penstock"], [str(script)]):
        told = subprocess.run([*start, "--version"], capture_output=True, text=True, check=True)
        assert told.stdout == f"penstock {penstock.__version__}\n", told
        subprocess.run([*start, "run", "--", "true"], check=True)


def check_dropin() -> None:
    """A program that names cuFile's library is given the one of the wheel."""
    program = "import ctypes; ctypes.CDLL('libcufile.so.0').cuFileGetVersion; print(open('/proc/self/maps').read())"
    told = subprocess.run([sys.executable, "-m", "penstock", "run", "--", sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert str(command().parent.parent / "lib" / "penstock" / "libcufile.so.0") in told.stdout, told


def check_nothing_else_is_needed() -> None:
    """In the venv that the tools make, NumPy is not there at all; in one where it is, it was not imported."""
    assert "numpy" not in sys.modules


def check_libraries() -> None:
    library = ctypes.CDLL(str(command().parent.parent / "lib" / "penstock" / "libcufile.so.0"))
    assert library.cuFileDriverOpen is not None
    typed = Path(penstock.__file__).parent
    assert (typed / "py.typed").is_file() and (typed / "_native.pyi").is_file()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_reading(Path(folder))
    check_command()
    check_dropin()
    check_libraries()
    check_nothing_else_is_needed()
    print(f"penstock {penstock.__version__} works on Python {sys.version.split()[0]}, from {Path(penstock.__file__).parent}")


if __name__ == "__main__":
    main()
