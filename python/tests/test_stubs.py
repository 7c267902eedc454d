"""The stubs of the native module tell what is there: each name, and each parameter with its default."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _native

STUBS = ast.parse((Path(penstock.__file__).parent / "_native.pyi").read_text())
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def functions() -> Iterator[tuple[str, Any, ast.FunctionDef]]:
    """Name, object of the module and stub of each function, method and property."""
    for node in STUBS.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, getattr(_native, node.name), node
        if isinstance(node, ast.ClassDef) and hasattr(_native, node.name):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    yield f"{node.name}.{member.name}", getattr(getattr(_native, node.name), member.name), member


def parameters(function: ast.FunctionDef) -> list[tuple[str, str, str | None]]:
    """Name, kind and default of each parameter."""
    arguments = function.args
    places = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(places) - len(arguments.defaults)) + [ast.unparse(each) for each in arguments.defaults]
    found = [(place.arg, "any", default) for place, default in zip(places, defaults)]
    for name, value in zip(arguments.kwonlyargs, arguments.kw_defaults):
        found.append((name.arg, "keyword", None if value is None else ast.unparse(value)))
    return found


def native_parameters(function: Any) -> list[tuple[str, str, str | None]]:
    """The same, as nanobind has it: its defaults stand beside the text, where that has a backslash and a number."""
    text, _, defaults = function.__nb_signature__[0]
    text = re.sub(r"\\(\d+)", lambda match: repr(defaults[int(match[1])]), text)
    return parameters(ast.parse(text.replace("[[", "[").split("\n")[-1] + ": ...").body[0])  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "native", "stub"), list(functions()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_function_is_as_its_stub_tells(name: str, native: Any, stub: ast.FunctionDef) -> None:
    if any(isinstance(each, ast.Name) and each.id == "property" for each in stub.decorator_list):
        assert isinstance(native, property)
    elif hasattr(native, "__nb_signature__"):
        ours, natives = parameters(stub), native_parameters(native)
        if not stub.name.startswith("__") or stub.name == "__init__":
            assert [each for each in ours if each[0] != "self"] == [each for each in natives if each[0] != "self"]
    else:
        assert callable(native)


def test_no_name_is_missing_in_the_stubs() -> None:
    told = {node.name for node in STUBS.body if isinstance(node, (*FUNCTIONS, ast.ClassDef))}
    told |= {node.target.id for node in STUBS.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    for name, native in vars(_native).items():
        if name.startswith("__") and name != "__version__":
            continue
        assert name in told
        stub = next((node for node in STUBS.body if isinstance(node, ast.ClassDef) and node.name == name), None)
        if stub is not None:
            members = {node.name for node in stub.body if isinstance(node, FUNCTIONS)}
            assert {member for member in vars(native) if not member.startswith("_")} <= members


def test_each_public_name_is_documented() -> None:
    for name in penstock.__all__:
        native = getattr(penstock, name)
        if callable(native):
            assert native.__doc__, name


def test_the_stubs_have_the_docstrings_of_the_module() -> None:
    tool = Path(__file__).parents[2] / "tools/stub_docstrings"
    ended = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


RIGHT = """
import asyncio, concurrent.futures, mmap
from array import array
from pathlib import Path
from typing import Any
import numpy as np
import penstock

async def right(path: Path, file: penstock.File, memory: penstock.DeviceBuffer, anything: Any) -> None:
    for buffer in (bytearray(3), memoryview(bytearray(3)), np.zeros(3), np.zeros((3, 3), order="F"), memory, memory[1:], anything):
        file.read_into(buffer, path="staged", prefer="cpu", cache="fill", links=2, order="A")
    file.write_from(b"bytes", path=None)
    file.read_into(array("d"), 0, 3)
    file.read_into(penstock.Pointer(1, 2))
    file.read_many([(bytearray(3), 0), (np.zeros(3), 0, 3)])
    file.read_on_stream(memory, None, order="C")
    content: bytes = file.read() + file.read(3)
    future: penstock.Future[int] = file.pread(bytearray(3))
    count: int = await future + await asyncio.wrap_future(future)
    done, _ = concurrent.futures.wait([future])
    async with penstock.open(path, "r+") as other:
        other.truncate(count)
    with penstock.open(path, cache="bypass").pin(0, 3) as pinned:
        left: int = pinned.size
    penstock.load(path, np.float32, (-1, 3), device=0)
"""
# Line and word of the error.
WRONG = {
    'file.read_into(buffer, path="bogus")': '"path"',
    'file.pread(buffer, prefer="sped")': '"prefer"',
    'file.pread(buffer, cache="kept")': '"cache"',
    'file.pread(buffer, links="all")': '"links"',
    'file.pin("all")': '"str"',
    'file.write_from(buffer, order="F")': '"order"',
    'file.read_into(buffer, ofset=3)': '"ofset"',
    'file.read_into([1, 2])': '"list',
    'file.write_from("text")': '"str"',
    'file.pread_many([(None, 0)])': 'tuple[None, int]',
    'penstock.copy(3, buffer)': '"int"',
    'penstock.open("x", "a")': "Literal['a']",
    'file.seek(0, 3)': 'Literal[3]',
    'file.explain(memory="gpu")': '"memory"',
    'file.read("x")': '"str"',
    'penstock.pread_many([(file, buffer, 0)], path="bogus")': '"path"',
}  # fmt: skip


def test_mypy_tells_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "right.py").write_text(RIGHT)
    head = "import penstock\nfile = penstock.open('x')\nbuffer = bytearray(3)\n"
    (tmp_path / "wrong.py").write_text(head + "\n".join(WRONG))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "right.py", "wrong.py"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300).stdout
    assert "right.py" not in told, told
    for i, (line, word) in enumerate(WRONG.items(), head.count("\n") + 1):
        assert re.search(rf"^wrong.py:{i}: error: .*{re.escape(word)}", told, re.MULTILINE), f"{line}\n{told}"
