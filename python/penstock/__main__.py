"""The command `penstock` and `python -m penstock`: replaces this process with the command that the package contains."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import _native


def command() -> Path:
    """Returns the path of the command, which is stored next to the native module."""
    return Path(_native.__file__).parent / "bin" / "penstock"


def main() -> int:
    """Replaces this process with the command, passing the same arguments. Returns only on failure."""
    program = command()
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"]:  # this command runs a Python program
        arguments[1:1] = ["--python", sys.executable]
    try:
        os.execv(program, ["penstock", *arguments])
    except FileNotFoundError:
        print("penstock: this package was built without the command (PENSTOCK_BUILD_CLI=OFF)", file=sys.stderr)
    except OSError as error:
        print(f"penstock: {program}: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main())
