"""The words that users can read in the sources: string literals of C++, and string literals and docstrings of Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

Texts = Iterator[tuple[int, str]]  # the line that each begins in, and its words
TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\((.*?)\)\1"|"((?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)


class Literal(NamedTuple):
    line: int
    text: str
    is_raw: bool
    start: int  # where the first part begins in the source


def is_prose(text: str) -> bool:
    return text.count(" ") >= 2


def is_generated(page: str) -> bool:
    """Whether a tool writes the whole page, which its first lines say in a comment."""
    return any(line.startswith("<!-- Generated") for line in page.split("\n", 4)[:4])


def literals_of_code(content: str) -> Iterator[Literal]:
    """Of C++. Those that the compiler joins are one."""
    line, last_end, joined = 1, 0, Literal(1, "", False, 0)
    for token in TOKENS.finditer(content):
        between = content[last_end : token.start()]
        line += between.count("\n")
        raw = token.group(2) is not None
        text = token.group(2) if raw else token.group(3)
        if text is not None:
            if joined.text and not between.strip():
                joined = joined._replace(text=joined.text + "\n" * between.count("\n") + text)
            else:
                yield joined
                joined = Literal(line, text, raw, token.start())
        line += token.group().count("\n")
        last_end = token.end()
    yield joined


def texts_of_code(content: str) -> Texts:
    """String literals of C++ that are prose."""
    return ((each.line, each.text) for each in literals_of_code(content) if is_prose(each.text))


def is_public(name: str) -> bool:
    return not name.startswith("_") or name.startswith("__")


def no_value(_: ast.FormattedValue) -> str:
    return "x"


class ModuleText(NamedTuple):
    line: int
    text: str
    is_docstring: bool


def texts_with_kind(content: str, public: bool, placeholder: Callable[[ast.FormattedValue], str] = no_value) -> Iterator[ModuleText]:
    """String literals of Python that are prose, and docstrings of public names; the values in f-strings as placeholder() writes them."""
    tree = ast.parse(content)
    docstrings: dict[ast.AST, bool] = {}  # and whether they are read by users
    waiting: list[tuple[ast.AST, bool]] = [(tree, public)]
    while waiting:
        node, shown = waiting.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            shown = shown and is_public(getattr(node, "name", "x"))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # also below an attribute
            docstrings[node.value] = shown
        if isinstance(node, ast.JoinedStr):
            joined = "".join(str(part.value) if isinstance(part, ast.Constant) else placeholder(part) for part in node.values)  # type: ignore[arg-type]
            if is_prose(joined):
                yield ModuleText(node.lineno, joined, False)
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and docstrings.get(node, True) and is_prose(node.value):
            yield ModuleText(node.lineno, node.value, node in docstrings)
        waiting += [(child, shown) for child in ast.iter_child_nodes(node)]


def texts_of_module(content: str, public: bool) -> Texts:
    return ((each.line, each.text) for each in texts_with_kind(content, public))
