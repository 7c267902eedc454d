#!/usr/bin/env python3
"""Fails when the shared library exports a name that is not the public API's, or none of the names that it must.

Usage: exported_symbols.py --nm NM LIBRARY
"""

import argparse
import re
import subprocess
import sys

# Rooms whose names must never leave the library, also where a declaration is marked by mistake.
INTERNAL = re.compile(r"^(vtable for |typeinfo for |typeinfo name for )?penstock::(sys|device|staging|path|channel|core|base|tensors)::")
PUBLIC = re.compile(r"^(vtable for |typeinfo for |typeinfo name for )?penstock::")
MUST_EXIST = ("penstock::version()", "penstock::engine::create()", "penstock::file::read(", "penstock::read_safetensors(")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nm", default="nm")
    parser.add_argument("library")
    arguments = parser.parse_args()
    command = [arguments.nm, "--dynamic", "--defined-only", "--demangle", arguments.library]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = [re.sub(r"^[0-9a-f]* *\S (.*)$", r"\1", line) for line in lines]

    wrong = [name for name in names if not PUBLIC.match(name) or INTERNAL.match(name)]
    for name in wrong:
        print(f"exported, but not public: {name}")
    missing = [start for start in MUST_EXIST if not any(name.startswith(start) for name in names)]
    for start in missing:
        print(f"not exported: {start}")
    print(f"{len(names)} names exported")
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
