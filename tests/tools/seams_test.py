#!/usr/bin/env python3
"""Tests that only registries list paths, channels, counters and commands, so that adding one touches its own file and one line; and that the Python
module uses only the stable ABI.

Usage: seams_test.py [repository root]
"""

import re
import sys
from pathlib import Path

MOST_SESSION_MEMBERS = 36

ROOT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent.parent


def sources(*rooms):
    for room in rooms:
        for path in sorted((ROOT / "src" / room).rglob("*")):
            if path.suffix in (".cc", ".hpp"):
                yield path


def found(pattern, files):
    """Every match in code, without comments: file:line: text."""
    out = []
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = line.split("//")[0]
            if re.search(pattern, code):
                out.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return out


def listed(file, pattern, least):
    """What a registry lists, of which there must be so many: else the pattern fits no longer."""
    names = re.findall(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) >= least, f"{file} lists {names}"
    return names


def main():
    paths = listed("src/path/registry.cc", r"^  declared\((\w+)\)", 4)
    channels = listed("src/channel/registry.cc", r"^  declared\((\w+)\)", 9)
    counters = listed("src/stats/counters.hpp", r'usage_counter\{"(\w+)"', 30)
    problems = []
    # Above the room of the paths nobody names one; path_kind::automatic is none.
    above = list(sources("stats", "core", "pipe"))
    problems += found(r"path_kind::(" + "|".join(paths) + r")\b", above)
    problems += found(r'"(' + "|".join(paths) + r')"', above)
    # Likewise of channels.
    problems += found(r'"(' + "|".join(channels) + r')"', sources("core", "pipe"))
    problems += found(r"\bchannel::(" + "|".join(channels) + r")\(\)", sources("core", "pipe"))
    # What a pipe keeps for one channel is in that channel's carrier.
    header = (ROOT / "src" / "pipe" / "session.hpp").read_text(encoding="utf-8")
    members = re.findall(r"^  [\w:<>,&*\[\] ()]+?\b(\w+_)(?: = [^;]+|\{[^;]*\})?;", header, re.MULTILINE)
    if len(members) > MOST_SESSION_MEMBERS or len(members) < 20:
        problems.append(f"session has {len(members)} members, {MOST_SESSION_MEMBERS} at most: {members}")
    # With Python 3.12 and newer the module is built for the stable ABI, which has none of these.
    native = sorted((ROOT / "python" / "native").glob("*.[ch]*"))
    assert len(native) > 10, native
    problems += found(r"\bPy\w+_(AS_STRING|AS_DOUBLE|GET_SIZE|GET_ITEM|SET_ITEM|GET_LENGTH|READ_CHAR)\b", native)
    # A path is a file of its own.
    for name in paths:
        if not (ROOT / "src" / "path" / f"{name}.cc").exists():
            problems.append(f"path {name} has no file src/path/{name}.cc")
    for name in channels:
        if not (ROOT / "src" / "channel" / f"{name}.cc").exists():
            problems.append(f"channel {name} has no file src/channel/{name}.cc")
    # A counter is its field and its line in the table: no tool lists them.
    tools = [*sources("cli"), *sorted((ROOT / "python" / "native").glob("*.cc"))]
    problems += found(r'"(' + "|".join(counters) + r')"', tools)
    # A command is a file of its own in the folder of its family, and a line in the registry.
    commands = listed("src/cli/shell/registry.cc", r"^  declared\((\w+), ", 15)
    for name in commands:
        files = list((ROOT / "src" / "cli").glob(f"*/{name}.cc"))
        if len(files) != 1:
            problems.append(f"the command {name} has {len(files)} files src/cli/*/{name}.cc")
    problems += found(r"\badd_(" + "|".join(commands) + r")\((?!CLI::App)", sources("cli"))
    for problem in problems:
        print(problem)
    print(
        f"seams_test: {len(paths)} paths, {len(channels)} channels, {len(counters)} counters, {len(commands)} commands, "
        f"{len(members)} members of a session; {len(problems)} problem(s)"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
