"""Tests that every row of tests/tools/SCOPE.md names an existing test, or says why the feature is not supported."""

from __future__ import annotations

import re
import unittest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = Path(__file__).with_name("SCOPE.md")
HEAD = ["feature", "served by", "test", "why not"]
FOLDERS = ("tests/", "python/tests/")
NAMED_TEST = re.compile(r"`([^`:]+)(?::([^`]+))?`")


class Row(NamedTuple):
    feature: str
    served_by: str
    test: str
    why_not: str

    def tests(self) -> list[tuple[str, str]]:
        """Of each its file, and its name or nothing."""
        return NAMED_TEST.findall(self.test)


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def rows_of(text: str) -> list[Row]:
    """Those of the tables with the four columns. A row with other columns fails here."""
    found, inside = [], False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
        elif cells_of(line) == HEAD:
            inside = True
        elif inside and not re.fullmatch(r"[|-]+", line):
            found.append(Row(*cells_of(line)))
    return found


def fails(row: Row) -> list[str]:
    """Of one row, in words."""
    found = []
    if not row.feature:
        found.append("it names no feature")
    if not row.test and not row.why_not:
        found.append("it has neither a test nor a reason")
    if bool(row.test) != bool(row.served_by):
        found.append("what is served has a test, and what has a test is served by something")
    if NAMED_TEST.sub("", row.test).strip(" ,"):
        found.append(f"its tests are `FILE:NAME`, with commas between them: {row.test}")
    if row.why_not and not row.why_not.endswith((".", "?")):
        found.append(f"its reason is no sentence: {row.why_not}")
    for file, name in row.tests():
        if not file.startswith(FOLDERS) or not (ROOT / file).is_file():
            found.append(f"there is no test {file}")
        elif name and not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", (ROOT / file).read_text()):
            found.append(f"{file} has no {name}")
    for page in re.findall(r"\]\(([^)#]+)[^)]*\)", " ".join(row)):
        if not (PAGE.parent / page).is_file():
            found.append(f"there is no page {page}")
    return found


class Scope(unittest.TestCase):
    def test_every_row_has_a_test_that_exists_or_a_reason(self) -> None:
        self.assertEqual([f"{row.feature}: {each}" for row in rows_of(PAGE.read_text()) for each in fails(row)], [])

    def test_no_feature_is_there_twice(self) -> None:
        features = [re.sub(r"\W+", " ", row.feature).strip().lower() for row in rows_of(PAGE.read_text())]
        self.assertGreater(len(features), 80)
        self.assertEqual(sorted(features), sorted(set(features)))

    def test_a_row_that_is_wrong_is_found(self) -> None:
        file = "tests/tools/scope_doc_test.py"
        self.assertEqual(fails(Row("a", "[b](../../docs/guides/cufile.md#settings)", f"`{file}:fails`, `{file}`", "")), [])
        self.assertEqual(fails(Row("a", "", "", "No hardware.")), [])
        for wrong in (
            Row("", "b", f"`{file}`", ""),
            Row("a", "", "", ""),
            Row("a", "b", "", "Later."),
            Row("a", "", f"`{file}`", "Later."),
            Row("a", "b", f"`{file}:{'no'}_such_test`", ""),
            Row("a", "b", "`tests/tools/none_test.py`", ""),
            Row("a", "b", "`README.md`", ""),
            Row("a", "b", file, ""),
            Row("a", "[b](NONE.md)", f"`{file}`", ""),
            Row("a", "", "", "no hardware"),
        ):
            self.assertNotEqual(fails(wrong), [], wrong)


if __name__ == "__main__":
    unittest.main()
