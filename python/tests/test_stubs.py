"""The stubs of the native module tell what is there: each name, and each parameter with its default."""

from __future__ import annotations

import ast
import re
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
    told = {node.name for node in STUBS.body if isinstance(node, (*FUNCTIONS, ast.ClassDef))} | {"__version__"}
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
