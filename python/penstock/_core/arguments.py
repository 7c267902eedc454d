"""Creates the error that explains which argument of a call the native module rejected."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .errors import InvalidArgument

__all__ = ["error_of"]


class _Parameter(NamedTuple):
    name: str
    needs_name: bool  # keyword-only
    required: bool
    wanted: list[str]  # accepted types


def error_of(function: Any, args: list[Any], named: dict[str, Any]) -> Exception | None:
    """Returns the exception to raise, or None if it finds no mistake. Called by penstock._native."""
    try:
        parameters = _parameters(function.__nb_signature__[0][0])
    except SyntaxError:
        return None
    if parameters and parameters[0].name == "self":
        parameters, args = parameters[1:], args[1:]
    called = f"{function.__name__}()"
    problem = _misplaced(called, parameters, args, named)
    if problem is not None:
        return TypeError(problem)
    given = dict(zip((each.name for each in parameters), args)) | named
    for each in parameters:
        if each.name in given and not _fits(given[each.name], each.wanted):
            return TypeError(f"{called}: {each.name} must be {_in_words(each.wanted)}, not {_type_of(given[each.name])}")
    for each in parameters:  # the types are right, so a number is out of range
        value = given.get(each.name)
        if "int" in each.wanted and isinstance(value, int) and not 0 <= value < 1 << 31:
            return InvalidArgument(f"{called}: {each.name} is {_number(value)}, which is out of range", code="invalid_argument")
    return None


def _parameters(signature: str) -> list[_Parameter]:
    """Parses a signature from nanobind, where a backslash and a number refer to a default value that is listed separately."""
    text = re.sub(r"\\\d+", "None", signature.split("\n")[-1])
    function = ast.parse(text + ": ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    places = [*arguments.posonlyargs, *arguments.args]
    required = len(places) - len(arguments.defaults)
    found = [_Parameter(each.arg, False, i < required, _types_of(each.annotation)) for i, each in enumerate(places)]
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
        found.append(_Parameter(each.arg, True, default is None, _types_of(each.annotation)))
    return found


def _types_of(annotation: ast.expr | None) -> list[str]:
    return [] if annotation is None else ast.unparse(annotation).split(" | ")


def _misplaced(called: str, parameters: list[_Parameter], args: list[Any], named: Iterable[str]) -> str | None:
    names = [each.name for each in parameters]
    places = [each.name for each in parameters if not each.needs_name]
    for name in named:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            there = f"did you mean {close[0]!r}?" if close else f"its arguments are {', '.join(names)}" if names else "it takes none"
            return f"{called} has no argument {name!r}: {there}"
    if len(args) > len(places):
        rest = [name for name in names if name not in places]
        more = f": {', '.join(rest)} are keyword-only" if rest else ""
        return f"{called} takes {len(places)} positional arguments, but {len(args)} were given{more}"
    taken = set(places[: len(args)])
    for name in named:
        if name in taken:
            return f"{called}: {name} was passed twice"
    for each in parameters:
        if each.required and each.name not in taken and each.name not in named:
            return f"{called} requires the argument {each.name!r}"
    return None


def _fits(value: Any, wanted: Sequence[str]) -> bool:
    return not wanted or any(_is(value, each) for each in wanted)


def _is(value: Any, kind: str) -> bool:
    if kind == "None" or value is None:
        return kind == "None" and value is None
    if kind == "int":
        return hasattr(value, "__index__")
    if kind == "float":
        return isinstance(value, (int, float))
    if kind in ("str", "bool", "bytes", "tuple", "list", "dict"):
        return type(value).__name__ == kind
    if kind.startswith("collections.abc.Sequence"):
        return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if kind.startswith("penstock."):
        return f"{type(value).__module__}.{type(value).__name__}" == kind
    return True


def _in_words(wanted: Sequence[str]) -> str:
    words = {"int": "an int", "float": "a number", "object": "an object", "None": "None"}
    told = [words.get(each, "a sequence" if each.startswith("collections.abc.Seq") else f"a {each}") for each in wanted]
    return " or ".join(told)


def _type_of(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _number(value: int) -> str:
    """Formats a number. Python raises an error for very long ones."""
    return str(value) if value.bit_length() < 1000 else f"a number of {value.bit_length()} bits"
