"""The command ``penstock``, and ``python -m penstock``: becomes the command that the package carries."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import _native


def command() -> Path:
    """Where the command lies: beside the native module."""
    return Path(_native.__file__).parent / "bin" / "penstock"


def main() -> int:
    """Runs the command with the arguments of this process, in its place. Returns only where that fails."""
    program = command()
    try:
        os.execv(program, ["penstock", *sys.argv[1:]])
    except FileNotFoundError:
        print("penstock: this package was built without the command (PENSTOCK_BUILD_CLI=OFF)", file=sys.stderr)
    except OSError as error:
        print(f"penstock: {program}: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main())
