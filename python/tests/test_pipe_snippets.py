"""The programs for pipes in docs/guides/pipes.md print what they received, and which way it came."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs/guides/pipes.md"
# What each program prints, among other things, in the order of the page.
PRINTED = (
    ("b'step 3' (1000, 1000)", "received from host to host", "xth: chosen", "mpt: not usable: "),
    ("999999.0 4000000",),
)


def programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def cases() -> Iterator[Any]:
    for number, (code, printed) in enumerate(zip(programs(), PRINTED)):
        yield pytest.param(code, printed, id=str(number))


def test_every_program_is_of_pipes_and_has_its_output_here() -> None:
    assert len(programs()) == len(PRINTED)
    assert all("penstock.pipe" in code for code in programs())


@pytest.mark.parametrize(("code", "printed"), list(cases()))
def test_a_program_prints_what_it_received(
    code: str, printed: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "program of a page", "exec"), {})
    output = capsys.readouterr().out
    for line in printed:
        assert line in output
