#!/usr/bin/env python3
"""Fails when an #include points up: every room may use only the rooms that the table below gives it, and inside a room no file may
use one that uses it (a .cc and its header are one). In a room that has folders, a folder may use itself and the room's common one.

The table is that of docs/internals/architecture.md. Usage: check_includes.py [repository root]
"""

import re
import sys
from pathlib import Path

ROOMS = {
    "base": set(),
    "sys": {"base"},
    "device": {"base", "sys"},
    "staging": {"base", "sys", "device"},
    "source": {"base", "sys", "device", "staging"},
    "remote": {"base", "sys", "device", "staging", "source"},
    "path": {"base", "sys", "device", "staging", "source"},
    "stats": {"base", "sys", "staging", "path"},
    "core": {"base", "sys", "device", "staging", "source", "remote", "path", "stats"},
    # Carriers bring tensors by what the engine has: what memory is, requests, deadlines.
    "channel": {"base", "sys", "device", "staging", "source", "remote", "path", "stats", "core"},
    "pipe": {"base", "sys", "device", "staging", "source", "remote", "path", "channel", "stats", "core"},
    # Stands on the public API, and is part of it.
    "tensors": {"base"},
    # Stands on the public API too; what it hands out is an operation of core, which its own threads end.
    "kv": {"base", "sys", "staging", "core"},
    # What `penstock check` finds out about a machine; no part of the library.
    "machine": {"base", "sys"},
    # The faces see the public API and nothing else; the command also runs the benchmarks, looks at the machine, and explains cuFile's
    # settings, and makes text printable; Python's obeys them too. What prints, prints by base.
    "cli": {"base", "bench", "cufile", "machine"},
    "cufile": {"base"},
    "python": {"cufile"},
    "examples": set(),
    "include": set(),
    # These may look anywhere.
    "tests": None,
    "bench": None,
}

# Single headers that the rooms above may use as well: libcrypto is opened in one place.
SINGLE_HEADERS = {"cli": {"sys/secret.hpp"}}

# Rooms that have folders, and the folder that the others of such a room may use: families of commands do not know each other.
COMMON_FOLDER = {"cli": "common"}
# Or the folders in their order, each of which may use those before it; and what lies in no folder, as all of the room may.
FOLDERS_IN_ORDER = {
    "remote": ("net", "credentials", "object", "s3", "cache"),
    "core": ("cache", "request", "stream"),
}

# Value types that every room speaks, and that are part of the public API.
FLOOR = {
    "penstock/detail/digest.hpp",
    "penstock/machine.hpp",
    "penstock/options.hpp",
    "penstock/remote_retries.hpp",
    "penstock/status.hpp",
    "penstock/version.hpp",
}
# The rest of include/penstock is made by core (pipe.hpp by pipe, tensors.hpp by tensors, facts.hpp and processes.hpp by
# stats) and used from above it.
ABOVE_THE_FLOOR = {"stats", "core", "channel", "pipe", "tensors", "kv", "cli", "cufile", "python", "examples", "include"}

SOURCE_FOLDERS = ("src", "include", "python", "bench", "tests", "examples")
SUFFIXES = {".cc", ".hpp", ".h", ".c", ".cu"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)')


def room_of(file: Path) -> str:
    """The room of a file, given by its path from the root of the repository."""
    return file.parts[1] if file.parts[0] == "src" else file.parts[0]


def target_room(name: str, quoted: bool, including_file: Path, root: Path):
    """The room of an included name; None for a header of the system or of a library."""
    first = name.split("/")[0]
    if first == "penstock":
        return "include"
    if first in ("bench", "tests"):
        return first
    if first == "support" and room_of(including_file) == "tests":
        return "tests"
    if "/" in name and (root / "src" / name).exists():
        return first
    if not quoted:
        return None  # <sys/stat.h> is the system's
    if (root / including_file.parent / name).exists() and ".." not in name:
        return room_of(including_file)
    if "/" in name and first in ROOMS:
        return first  # missing, but meant for a room
    return "unknown"


def violation(file: Path, name: str, quoted: bool, root: Path):
    """Why the file may not include the name; None when it may."""
    room = room_of(file)
    if room not in ROOMS:
        return f"src/{room} is no room of the house; add it to the table in docs/internals/architecture.md and here"
    allowed = ROOMS[room]
    if allowed is None:
        return None
    if room in COMMON_FOLDER and len(file.parts) != 4:
        return f"src/{room} is folders, and those have files: put it into the folder of its family"
    target = target_room(name, quoted, file, root)
    if target is None:
        return None
    if target == room:
        return violation_of_folders(file, name, room)
    if target == "unknown":
        return "write the path from include/ or src/ (and <...> for headers of libraries)"
    if target == "include":
        if name in FLOOR or room in ABOVE_THE_FLOOR:
            return None
        return f"{room} lies below core: of the public API it may use {', '.join(sorted(FLOOR))} only"
    if target in allowed or name in SINGLE_HEADERS.get(room, ()):
        return None
    may_use = ", ".join(sorted(allowed)) or ("the standard library" if room == "base" else "include/penstock")
    return f"{room} may not use {target}; it may use {may_use}"


def violation_of_folders(file: Path, name: str, room: str):
    """Why the file may not include the name, which is of its own room; None when it may."""
    folder = name.split("/")[1] if name.count("/") > 1 else None
    order = FOLDERS_IN_ORDER.get(room, ())
    if folder in order and file.parts[2] in order and order.index(folder) > order.index(file.parts[2]):
        return f"{room}/{file.parts[2]} may not use {room}/{folder}, which stands above it"
    if room not in COMMON_FOLDER or folder in (None, file.parts[2], COMMON_FOLDER[room]):
        return None
    return f"{room}/{file.parts[2]} may not use {room}/{folder}; it may use {room}/{COMMON_FOLDER[room]}"


def includes(root: Path):
    """Every include under root, as (file, line number, included name, whether it is quoted)."""
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            file = path.relative_to(root)
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                match = INCLUDE.match(line)
                if match:
                    yield file, number, match.group(1) or match.group(2), match.group(1) is not None


def check(all_includes, root: Path):
    """All violations, as (file, line number, included name, reason)."""
    found = []
    for file, number, name, quoted in all_includes:
        reason = violation(file, name, quoted, root)
        if reason:
            found.append((file, number, name, reason))
    return found


def circles(all_includes):
    """Files of one room that use each other in a circle: each as a list of their names, without suffix."""
    uses: dict[Path, set[Path]] = {}
    for including, _, name, quoted in all_includes:
        if not quoted or including.parts[0] != "src":
            continue
        file = including.relative_to("src").with_suffix("")
        target = Path(name).with_suffix("")
        if target != file and target.parts[0] == file.parts[0]:
            uses.setdefault(file, set()).add(target)

    found = []
    done = set()

    def walk(file: Path, way: list[Path]) -> None:
        if file in way:
            found.append([str(each) for each in way[way.index(file) :]] + [str(file)])
        elif file not in done:
            for target in sorted(uses.get(file, ())):
                walk(target, [*way, file])
            done.add(file)

    for file in sorted(uses):
        walk(file, [])
    return found


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    if not (root / "include" / "penstock").is_dir():
        print(f"check_includes: {root} has no include/penstock: not the root of the repository", file=sys.stderr)
        return 2
    all_includes = list(includes(root))
    found = check(all_includes, root)
    for file, number, name, reason in found:
        print(f"{file}:{number}: includes {name}: {reason}")
    in_circles = circles(all_includes)
    for circle in in_circles:
        print("in a circle: " + " -> ".join(circle))
    if found or in_circles:
        print(f"check_includes: {len(found) + len(in_circles)} include(s) point up")
        return 1
    print("check_includes: every include points down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
