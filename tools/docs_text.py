"""Turns the plain text of docstrings and header comments into Markdown."""

from __future__ import annotations

import re

# Names that a reader recognises as code: a call, a name with an underscore, a name with a scope.
CODE = re.compile(r"(?<![\w`/.:-])(?:\*_\w+|(?:\w+(?:\.|::))*~?[A-Za-z_]\w*\(\)|(?:penstock|torch|os)(?:\.\w+)+|\w+(?:::\w+)+|(?:\w+(?:\.|::))*\w*_\w*(?:(?:\.|::)\w+)*)(?![\w`/-]|:[:\w])")
QUOTED = re.compile(r"(`[^`\n]*`)")
LIST_ITEM = re.compile(r"[-*] |\d+\. ")
SPECIAL = re.compile(r"([\\*_<>\[\]|])")


def markdown_line(line: str) -> str:
    """Code words in backticks, and the rest without anything that Markdown would read as markup."""
    parts = []
    for part in QUOTED.split(line):
        if part.startswith("`"):
            parts.append(part)
            continue
        end = 0
        for name in CODE.finditer(part):
            parts += [SPECIAL.sub(r"\\\1", part[end : name.start()]), f"`{name.group()}`"]
            end = name.end()
        parts.append(SPECIAL.sub(r"\\\1", part[end:]))
    return "".join(parts)


def markdown(text: str, language: str = "") -> str:
    """Indented lines become a code block in the language; "#" at the beginning of a line is no heading."""
    lines: list[str] = []
    code: list[str] = []
    for line in text.split("\n"):
        goes_on = line.startswith("  ") and lines and LIST_ITEM.match(lines[-1].lstrip())
        if line.startswith("  ") and line.strip() and not goes_on and not LIST_ITEM.match(line.lstrip()):
            code.append(line)
        elif code and not line.strip():
            code.append("")
        else:
            lines += fenced(code, language)
            code = []
            item = LIST_ITEM.match(line)
            if item and lines and lines[-1].strip() and not LIST_ITEM.match(lines[-1]):
                lines.append("")
            begin = item.group() if item else ""
            lines.append(begin + re.sub(r"^([#+])", r"\\\1", markdown_line(line[len(begin) :])))
    return "\n".join(lines + fenced(code, language)).strip("\n")


def fenced(lines: list[str], language: str) -> list[str]:
    """As a code block; nothing for no lines."""
    code = list(lines)
    while code and not code[-1]:
        code.pop()
    if not code:
        return []
    indent = min(len(line) - len(line.lstrip()) for line in code if line)
    return ["", f"```{language}", *(line[indent:] for line in code), "```", ""]
