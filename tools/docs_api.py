"""The generated pages of the API reference: one for each public Python module (mkdocstrings) and each public C++ header (Doxygen)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import docs_cpp

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python/penstock"


def is_public(source: Path) -> bool:
    """Whether programs import it: no part of its name begins with an underscore."""
    parts = source.relative_to(PACKAGE.parent).with_suffix("").parts
    return not any(part.startswith("_") for part in parts if part != "__init__")


def python_modules() -> dict[str, Path]:
    """The public modules of the package by name, with their sources."""
    found = {}
    for source in sorted(PACKAGE.rglob("*.py")):
        parts = source.relative_to(PACKAGE.parent).with_suffix("").parts
        if is_public(source):
            found[".".join(part for part in parts if part != "__init__")] = source
    return dict(sorted(found.items()))


PYTHON_PAGES = {name: f"reference/python/{name}.md" for name in python_modules()}
CPP_PAGES = {header.name: f"reference/cpp/{header.stem}.md" for header in docs_cpp.headers() if header.stem != "penstock"}
# Where a file of the repository is described.
PAGE_OF_SOURCE = {
    **{str(source.relative_to(ROOT)): PYTHON_PAGES[name] for name, source in python_modules().items()},
    **{str(source.parent.relative_to(ROOT)): PYTHON_PAGES[name] for name, source in python_modules().items() if source.name == "__init__.py"},
    **{f"include/penstock/{name}": page for name, page in CPP_PAGES.items()},
    "include/penstock": "reference/cpp-api.md",
    "python/penstock": "reference/python-api.md",
}


def pages() -> dict[str, str]:
    """The content of each generated page by its place below docs/."""
    made = {page: f"# {name}\n\n::: {name}\n" for name, page in PYTHON_PAGES.items()}
    return {**made, **{f"reference/cpp/{name}.md": content for name, content in docs_cpp.pages().items()}}


def by_package(pages: dict[str, str]) -> list[Any]:
    """Entries of the menu for the Python pages, with submodules below their package."""
    entries: list[Any] = []
    packages: dict[str, list[Any]] = {}
    for name, page in pages.items():
        package = ".".join(name.split(".")[:2])
        below = [page for other, page in pages.items() if other.startswith(f"{package}.")]
        if name == "penstock" or not below:
            entries.append({name: page})
            continue
        if package not in packages:
            packages[package] = []
            entries.append({package: packages[package]})
        packages[package].append({name.removeprefix("penstock."): page})
    return entries


def with_generated_pages(entry: Any) -> Any:
    """An entry of the menu; those of the two reference pages become groups."""
    groups = {"reference/python-api.md": by_package(PYTHON_PAGES), "reference/cpp-api.md": [{name: page} for name, page in CPP_PAGES.items()]}
    for title, page in entry.items() if isinstance(entry, dict) else ():
        if page in groups:
            return {title: [{"Overview": page}, *groups[page]]}
    return entry
