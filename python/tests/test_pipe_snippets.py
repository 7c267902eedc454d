"""The programs that README.md and docs/PYTHON.md show for pipes run."""

from __future__ import annotations

import os
import pathlib
import re
import threading

import numpy as np
import pytest

import penstock
import penstock.pipe

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ("README.md", "docs/PYTHON.md")


def snippets():
    for page in PAGES:
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)):
            if "penstock.pipe" in code:
                yield pytest.param(code, id=f"{page}-{number}")


def test_every_page_has_one():
    assert {each.id.rpartition("-")[0] for each in snippets()} == set(PAGES)


@pytest.mark.parametrize("code", list(snippets()))
def test_a_snippet_runs(code, capsys):
    weights = np.arange(100_000.0)
    name = f"unix:@trainer-{os.getpid()}"
    with penstock.pipe.listen(name) as listener:

        def other_end():
            try:
                with listener.accept(timeout=30).result() as pipe:
                    got.append(pipe.receive(timeout=30).result())
            except penstock.Closed:
                pass  # the snippet has an other end of its own

        got = []
        other = threading.Thread(target=other_end)
        other.start()
        exec(compile(code.replace("unix:@trainer", name), "snippet", "exec"), {"weights": weights})
        if name not in code.replace("unix:@trainer", name):
            listener.close()
        other.join()
    told = capsys.readouterr().out
    assert "cma" in told
    if got:
        assert (got[0].tensors[0] == weights).all() and got[0].metadata == b"step 3"
    else:
        assert "step 3" in told and "host:0" in told and "(1000, 1000)" in told
