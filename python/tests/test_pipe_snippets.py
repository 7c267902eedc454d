"""The programs for pipes in docs/guides/python.md and docs/guides/pipes.md print what they received, and how."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# What each of them prints, among other things.
PRINTED = {"docs/guides/python.md": ("step 3", "host:0", "(1000, 1000)", "cma"),
           "docs/guides/pipes.md": ("999999.0 4000000",)}


def snippets():
    for page in PRINTED:
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)):
            if "penstock.pipe" in code:
                yield pytest.param(code, PRINTED[page], id=f"{page}-{number}")


def test_every_page_has_one():
    assert {each.id.rpartition("-")[0] for each in snippets()} == set(PRINTED)


@pytest.mark.parametrize("code, printed", list(snippets()))
def test_a_snippet_runs(code, printed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "snippet", "exec"), names)
    names.clear()  # of which a function that a snippet has registered would keep all
    told = capsys.readouterr().out
    assert all(each in told for each in printed)
