#!/usr/bin/env python3
"""Makes a page of Markdown of each public C++ header, from the XML that Doxygen writes.

As a program it is Doxygen's input filter: `docs_cpp.py HEADER` prints the header with its comments marked as documentation.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from docs_text import markdown, markdown_line

ROOT = Path(__file__).resolve().parents[1]
HEADERS = ROOT / "include/penstock"
OUTPUT = ROOT / "build/docs_cpp"
SETTINGS = """
PROJECT_NAME = Penstock
INPUT = include/penstock
FILE_PATTERNS = *.hpp
STRIP_FROM_INC_PATH = include
INPUT_FILTER = "{python} tools/docs_cpp.py"
FILTER_SOURCE_FILES = YES
OUTPUT_DIRECTORY = build/docs_cpp
GENERATE_XML = YES
GENERATE_HTML = NO
GENERATE_LATEX = NO
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
HIDE_UNDOC_CLASSES = NO
MARKDOWN_SUPPORT = NO
AUTOLINK_SUPPORT = NO
BUILTIN_STL_SUPPORT = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = PENSTOCK_API=
EXCLUDE_SYMBOLS = penstock::core penstock::core::* penstock::detail penstock::detail::*
QUIET = YES
WARN_IF_UNDOCUMENTED = NO
WARN_AS_ERROR = FAIL_ON_WARNINGS
"""


def have_doxygen() -> bool:
    return shutil.which("doxygen") is not None


def run_doxygen() -> None:
    """Raises RuntimeError with Doxygen's words if it has a warning."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    settings = SETTINGS.format(python=sys.executable)
    ended = subprocess.run(["doxygen", "-"], cwd=ROOT, input=settings, text=True, capture_output=True, check=False)
    if ended.returncode or "warning:" in ended.stderr:
        raise RuntimeError(f"doxygen: {ended.stderr.strip()}")


def filtered(content: str) -> Iterator[str]:
    """Comments of whole lines become /** */ blocks before what they describe, and comments after a declaration ///< ones. Their text is verbatim."""
    lines = content.split("\n")
    block: list[str] = []
    first = True
    for line in lines:
        comment = re.match(r"\s*// ?(.*)$", line)
        if comment and not line.lstrip().startswith(("// NOLINT", "// clang-format")):
            block.append(comment.group(1))
            continue
        if block:
            file = "\\file\n" if first else ""
            documents = first or bool(line.strip())
            text = "\n".join(block)
            yield f"/** {file}\\verbatim\n{text}\n\\endverbatim */" if documents else "\n" * (len(block) - 1)
            block = []
        first = first and not line.strip()
        trailing = re.match(r"(.*[;,\w)}])\s+// (?!NOLINT|IWYU)(.*)$", line)
        if trailing and not re.match(r"\s*(?:\}|#)", line):
            line = f"{trailing.group(1)}  ///< \\verbatim {trailing.group(2)} \\endverbatim"
        yield line


def words(element: ElementTree.Element | None) -> str:
    return "" if element is None else "".join(element.itertext())


def description(node: ElementTree.Element) -> str:
    found = []
    for name in ("briefdescription", "detaileddescription", "inbodydescription"):
        for verbatim in node.iterfind(f"{name}//verbatim"):
            text = (verbatim.text or "").strip("\n")
            found.append(text if "\n" in text else text.strip())
    return "\n\n".join(found)


def declaration(node: ElementTree.Element) -> str:
    """Of a member, as a program would write it, without attributes."""
    kind = node.get("kind")
    name, arguments = words(node.find("name")), words(node.find("argsstring"))
    parameters = node.find("templateparamlist")
    template = ""
    if parameters is not None:
        listed = (f"{words(each.find('type'))} {words(each.find('declname'))}".strip() for each in parameters.iterfind("param"))
        template = f"template <{', '.join(listed)}>\n"
    type_words = re.sub(r"\[\[.*?\]\]\s*", "", words(node.find("type"))).strip()
    value = words(node.find("initializer")).strip()
    if kind == "define":
        return f"#define {name} {value}".strip()
    if kind == "typedef":
        return tight(f"using {name} = {type_words}{arguments}") + ";"
    if kind == "enum":
        return f"enum class {name}" if node.get("strong") == "yes" else f"enum {name}"
    prefix = "static " if node.get("static") == "yes" and "static" not in type_words else ""
    prefix += "explicit " if node.get("explicit") == "yes" and "explicit" not in type_words else ""
    if kind == "variable":
        return tight(f"{prefix}{type_words} {name}{arguments}{' ' if value.startswith('=') else ''}{value}") + ";"
    arguments = re.sub(r"(?<![<>=!])=(?!=)", " = ", arguments).replace("  ", " ")
    begin = f"{prefix}{type_words + ' ' if type_words else ''}{name}"
    return template + tight(begin + broken(arguments, len(begin))) + ";"


def tight(code: str) -> str:
    """T& where Doxygen writes T &, and no blanks inside of angle brackets."""
    return re.sub(r"< ?([^<>]*?) ?>", r"<\1>", re.sub(r"(?<=\w|>) ([&*]+)(?=[ ,)]|$)", r"\1", re.sub(r" ([&*]+)(?=\w)", r"\1 ", code)))


def broken(arguments: str, indent: int) -> str:
    """In lines of at most 90 columns."""
    if indent + len(arguments) <= 90:
        return arguments
    begin, inside, end = re.match(r"(\()(.*)(\).*)$", arguments, re.DOTALL).groups()  # type: ignore[union-attr]
    parts, depth, part = [], 0, ""
    for letter in inside:
        depth += letter in "(<{"
        depth -= letter in ")>}"
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return f"{begin}\n    " + ",\n    ".join([*parts, part.strip()]) + end


def line_of(node: ElementTree.Element) -> int:
    return int(node.find("location").get("line", 0))  # type: ignore[union-attr]


def file_of(node: ElementTree.Element) -> str:
    return Path(node.find("location").get("file", "")).name  # type: ignore[union-attr]


class Reference:
    """What Doxygen found, by header."""

    def __init__(self) -> None:
        trees = [ElementTree.parse(path).getroot() for path in sorted((OUTPUT / "xml").glob("*.xml")) if path.name != "index.xml"]
        compounds = [each for tree in trees for each in tree.iterfind("compounddef")]
        self.files = {words(each.find("compoundname")): each for each in compounds if each.get("kind") == "file"}
        self.classes = [each for each in compounds if each.get("kind") in ("class", "struct") and each.get("prot", "public") == "public"]
        members = [each for compound in compounds if compound.get("kind") == "namespace" for each in compound.iter("memberdef")]
        members += [each for file in self.files.values() for each in file.iter("memberdef") if each.get("kind") == "define" and words(each.find("initializer"))]
        self.members: dict[str, list[ElementTree.Element]] = {}
        for each in members:
            self.members.setdefault(file_of(each), []).append(each)
        # Where each type is described, for links.
        self.places: dict[str, str] = {}
        for each in self.classes:
            name = words(each.find("compoundname")).removeprefix("penstock::")
            self.places[name] = f"{Path(file_of(each)).stem}.md#{anchor(name)}"
        for file, listed in self.members.items():
            for each in listed:
                if each.get("kind") in ("enum", "typedef"):
                    self.places[words(each.find("name"))] = f"{Path(file).stem}.md#{anchor(words(each.find('name')))}"

    def linked(self, text: str) -> str:
        def link(found: re.Match[str]) -> str:
            name = found.group(1)
            place = self.places.get(name) or self.places.get(name.split("::")[0])
            return f"[`{name}`]({place})" if place else found.group()

        return re.sub(r"(?<!\[)`([\w:]+)`(?!\])", link, text)

    def text(self, node: ElementTree.Element) -> str:
        return self.linked(markdown(description(node), "cpp"))

    def page(self, header: Path) -> str:
        parts = [f"# {header.name}", f"```cpp\n#include <penstock/{header.name}>\n```", self.text(self.files[header.name])]
        entries: list[tuple[int, str, Any]] = [(line_of(each), "class", each) for each in self.classes if file_of(each) == header.name]
        functions = []
        for each in self.members.get(header.name, []):
            if each.get("kind") == "function":
                functions.append(each)
            else:
                entries.append((line_of(each), "member", each))
        entries += [(line_of(group[0]), "functions", group) for group in groups(functions, header)]
        for _, kind, entry in sorted(entries, key=lambda found: found[0]):
            if kind == "class":
                parts += self.class_text(entry, header)
            elif kind == "functions":
                parts += self.group_text(entry, "##")
            else:
                parts += self.member_text(entry)
        return "\n\n".join(part for part in parts if part) + "\n"

    def member_text(self, node: ElementTree.Element, level: str = "##") -> list[str]:
        name = words(node.find("name"))
        parts = [f"{level} {plain(name)}", self.text(node)]
        if node.get("kind") != "enum":
            return [parts[0], f"```cpp\n{declaration(node)}\n```", parts[1]]
        values = []
        for value in node.iterfind("enumvalue"):
            meaning = self.linked(markdown_line(" ".join(description(value).split())))
            values.append(f"- `{words(value.find('name'))}`{': ' if meaning else ''}{meaning}")
        return [*parts, "\n".join(values)]

    def group_text(self, group: list[ElementTree.Element], level: str) -> list[str]:
        names = list(dict.fromkeys(words(each.find("name")) for each in group))
        code = "\n".join(declaration(each) for each in group)
        return [f"{level} {plain(', '.join(names))}", f"```cpp\n{code}\n```", "\n\n".join(text for each in group if (text := self.text(each)))]

    def class_text(self, node: ElementTree.Element, header: Path) -> list[str]:
        name = words(node.find("compoundname")).removeprefix("penstock::")
        members = [
            each
            for section in node.iterfind("sectiondef")
            if section.get("kind", "").startswith(("public", "user-defined"))
            for each in section.iterfind("memberdef")
        ]
        parts = [f"## {plain(name)}", self.text(node)]
        fields = [each for each in members if each.get("kind") == "variable"]
        if fields:
            parts.append("\n".join(self.field_line(each) for each in sorted(fields, key=line_of)))
        for each in sorted((each for each in members if each.get("kind") in ("enum", "typedef")), key=line_of):
            parts += self.member_text(each, "###")
        functions = [each for each in members if each.get("kind") == "function"]
        own = name.split("::")[-1]
        makers = [each for each in functions if words(each.find("name")).lstrip("~") == own or words(each.find("name")) == "operator="]
        moves = f"{own}&&" in " ".join(tight(words(each.find("argsstring"))) for each in makers)
        copies = f"const {own}&" in " ".join(tight(words(each.find("argsstring"))) for each in makers)
        if moves and not copies:
            parts.append("It can be moved, not copied.")
        makers = [each for each in makers if f"{own}&&" not in tight(words(each.find("argsstring"))) and (description(each) or words(each.find("argsstring")) not in ("()", "() noexcept=default", "()=default"))]
        makers = [each for each in makers if not ("core::" in words(each.find("argsstring")) or "shared_ptr< void >" in words(each.find("argsstring")))]
        if makers:
            parts.append("```cpp\n" + "\n".join(with_comment(each) for each in sorted(makers, key=line_of)) + "\n```")
        rest = [
            each
            for each in functions
            if words(each.find("name")).lstrip("~") != own and words(each.find("name")) != "operator=" and words(each.find("name")) != "core"
        ]
        for group in groups(rest, header):
            parts += self.group_text(group, "###")
        return parts

    def field_line(self, node: ElementTree.Element) -> str:
        meaning = self.linked(markdown_line(" ".join(description(node).split())))
        return f"- `{declaration(node).rstrip(';')}`{': ' if meaning else ''}{meaning}"


def with_comment(node: ElementTree.Element) -> str:
    """Its declaration as in the header, with its comment."""
    code, text = declaration(node), " ".join(description(node).split())
    if not text:
        return code
    if "\n" not in code and len(code) + len(text) < 84:
        return f"{code} // {text}"
    return "\n".join(f"// {line}" for line in textwrap.wrap(text, 80)) + f"\n{code}"


def anchor(name: str) -> str:
    return re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")


def plain(name: str) -> str:
    return re.sub(r"([\\*_<>\[\]])", r"\\\1", name)


def groups(functions: list[ElementTree.Element], header: Path) -> list[list[ElementTree.Element]]:
    """A function without a comment belongs to the one before it if only code stands between them."""
    lines = header.read_text().split("\n")
    found: list[list[ElementTree.Element]] = []
    for each in sorted(functions, key=line_of):
        if found and not description(each):
            between = lines[line_of(found[-1][-1]) : line_of(each) - 1]
            if all(line.strip() and not line.lstrip().startswith("//") for line in between):
                found[-1].append(each)
                continue
        found.append([each])
    return found


def headers() -> list[Path]:
    return sorted(HEADERS.glob("*.hpp"))


def pages() -> dict[str, str]:
    """By the header's name without its suffix. penstock.hpp, which only includes the others, has none."""
    run_doxygen()
    reference = Reference()
    return {header.stem: reference.page(header) for header in headers() if header.stem != "penstock"}


if __name__ == "__main__":
    print("\n".join(filtered(Path(sys.argv[1]).read_text())), end="")
