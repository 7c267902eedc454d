"""The programs in the pages of docs run as they stand there, those that need a GPU where one is; and what the pages say is said is said."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock

from . import range_server

DOCS = Path(__file__).parents[2] / "docs"


def programs() -> Iterator[Any]:
    for page in (DOCS.parent / "README.md", *sorted(DOCS.glob("*/*.md"))):
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)):
            yield pytest.param(code, id=f"{page.name}-{number}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty, and the current directory: a program of a page makes the files that it reads."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def needs_what_is_not_here(code: str) -> str:
    if "import torch" in code:
        pytest.importorskip("torch")
    if "import cupy" in code:
        pytest.importorskip("cupy")
    if "import zarr" in code:
        pytest.importorskip("zarr", minversion="3")
    needs_gpu = "cuda" in code and "cuda.is_available()" not in code
    if needs_gpu and not any(each.name.startswith("cuda:") for each in penstock.devices()):
        return "needs a GPU"
    return ""


@contextmanager
def bucket_of(folder: Path) -> Iterator[str]:
    """A bucket of a server of the tests, which the environment names."""
    path = Path(__file__).parents[2] / "tests/support/s3_server.py"
    spec = importlib.util.spec_from_file_location("s3_server", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        with module.Server("seaweedfs", folder / "kept") as server, pytest.MonkeyPatch.context() as patch:
            facts = server.facts()
            patch.setenv("AWS_ACCESS_KEY_ID", facts["access_key"])
            patch.setenv("AWS_SECRET_ACCESS_KEY", facts["secret_key"])
            patch.setenv("AWS_ENDPOINT_URL", facts["endpoint"])
            yield f"s3://{facts['bucket']}"
    except module.Missing as why:
        pytest.skip(str(why))


@contextmanager
def servers_of(code: str, folder: Path) -> Iterator[str]:
    """The program, which reads data.bin from a server of the tests where it names https://example.org."""
    if "s3://my-bucket" in code:
        with bucket_of(folder) as url:
            yield code.replace("s3://my-bucket", url)
        return
    if "https://example.org" not in code:
        yield code
        return
    np.arange(100_000, dtype="u1").tofile(folder / "data.bin")
    with range_server.serving(folder) as (url, _):
        yield code.replace("https://example.org", url)


def run(program: str) -> None:
    if "import zarr" not in program:
        names: dict[str, Any] = {"__name__": "__main__"}
        try:
            exec(compile(program, "program of a page", "exec"), names)
        finally:
            names.clear()  # a function that the program has registered somewhere keeps them
        return
    # In a process of its own: zarr keeps threads.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    print(done.stdout)


@pytest.mark.parametrize("code", list(programs()))
def test_a_program_of_a_page_runs_as_typed(code: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if why := needs_what_is_not_here(code):
        pytest.skip(why)
    with servers_of(code, folder) as program:
        run(program)
    shown = re.findall(r"print\(.*\)\s+# (\d.*)$", code, re.MULTILINE)
    printed = capsys.readouterr().out.splitlines()
    for each in shown:
        assert each in printed


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_messages_that_the_pages_tell_of_are_those_that_come(folder: Path) -> None:
    """The symptoms that need neither a GPU nor another library."""
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    path = "weights.bin"
    np.arange(1_000_000, dtype="f4").tofile(path)
    with penstock.open(path) as file:
        for call, said in (
            (lambda: file.read_into(np.zeros((4, 4))[:, ::2]), "is not contiguous"),
            (lambda: file.read_into(np.zeros((4, 3)).T), "is in Fortran order (column-major), and so would be the file"),
            (lambda: penstock.load(path, "f4", 2_000_000), "the file ends there; pass exact=False to accept a shorter array"),
            (lambda: penstock.device("cuda:99"), "there is no device"),
        ):
            assert said in pages
            with pytest.raises(penstock.Error, match=re.escape(said)):
                call()
