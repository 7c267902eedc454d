#!/usr/bin/env python3
"""docs/internals/architecture.md is short, and its table of source folders matches tools/check_includes.py. The pages of the subsystems are short, and
name each file of core and pipe and every thread.

Usage: architecture_doc_test.py [repository root]
"""

import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent.parent
MOST_WORDS = 1200
PAGES = ("engine", "memory", "sources", "channels", "tensor-files", "kv-store", "cufile-layer", "faces")
MOST_WORDS_OF_PAGES = 2200
PAGE_OF_ROOM = {"core": "engine", "pipe": "channels"}


def rooms_of_checker():
    spec = importlib.util.spec_from_file_location("check_includes", ROOT / "tools" / "check_includes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ROOMS


def rows_of_table(text):
    """Room: (what lives there, what it may use), of rows that begin with `src/ROOM`."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`src/(\w+)`", cells[0]) if line.startswith("|") and len(cells) == 3 else []
        for name in names:
            rows[name] = (cells[1], cells[2])
    return rows


def below(room, order):
    return set(order[: order.index(room)])


def main():
    problems = []
    text = (ROOT / "docs/internals/architecture.md").read_text(encoding="utf-8")
    words = len(text.split())
    if words > MOST_WORDS:
        problems.append(f"architecture.md has {words} words, more than {MOST_WORDS}")

    allowed = rooms_of_checker()
    rows = rows_of_table(text)
    folders = sorted(path.name for path in (ROOT / "src").iterdir() if path.is_dir())
    order = [name for name in rows if name in folders]
    for room in folders:
        if room not in rows:
            problems.append(f"src/{room} has no row in architecture.md")
            continue
        uses = rows[room][1]
        if uses.startswith("all below"):
            left_out = set(re.findall(r"but (\w+)", uses))
            told = below(room, order) - left_out - {"tensors", "machine", "cli", "cufile"}
        elif uses.startswith("the public API"):
            continue  # and a few more, which the text lists
        else:
            told = set(uses.split(", ")) - {"the standard library"}
        if told != allowed[room]:
            problems.append(f"src/{room}: architecture.md says {sorted(told)}, check_includes.py {sorted(allowed[room])}")

    pages = {name: (ROOT / f"docs/internals/{name}.md").read_text(encoding="utf-8") for name in PAGES}
    words_of_pages = sum(len(page.split()) for page in pages.values())
    if words_of_pages > MOST_WORDS_OF_PAGES:
        problems.append(f"the pages of the subsystems have {words_of_pages} words, more than {MOST_WORDS_OF_PAGES}")

    # In the two largest rooms every file has its place.
    for room, page in PAGE_OF_ROOM.items():
        for path in sorted((ROOT / "src" / room).glob("*.hpp")) + sorted((ROOT / "src" / room).glob("*.cc")):
            if f"`{path.stem}`" not in pages[page]:
                problems.append(f"src/{room}/{path.name} is not in {page}.md")

    threads = set()
    for path in (ROOT / "src").rglob("*.cc"):
        threads |= set(re.findall(r'(?:become_worker\(|nullptr, |feeders\(\), )"(penstock-\w+)"', path.read_text(encoding="utf-8")))
    if len(threads) < 6:
        problems.append(f"the threads found are {sorted(threads)}: the pattern fits no longer")
    for thread in sorted(threads):
        if not any(f"`{thread}" in page for page in pages.values()):
            problems.append(f"no page of a subsystem names the thread {thread}")

    for problem in problems:
        print(problem)
    print(f"architecture_doc_test: {words} and {words_of_pages} words, {len(rows)} rooms, {len(threads)} threads; {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
