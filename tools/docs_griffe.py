"""For mkdocstrings: the docstrings of python/penstock as Markdown, and those that the package sets while it is imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from docs_text import markdown


class Docstrings(griffe.Extension):
    def on_package(self, *, pkg: Any, **_: Any) -> None:
        if pkg.name != "penstock":
            return
        if not pkg["open"].docstring:
            pkg["open"].docstring = pkg["_native.open"].docstring
        seen: set[int] = set()
        waiting = [pkg]
        while waiting:
            found = waiting.pop()
            if found.docstring and id(found.docstring) not in seen:
                seen.add(id(found.docstring))
                found.docstring.value = markdown(found.docstring.value, "python")
            waiting += [member for member in found.members.values() if not member.is_alias]
