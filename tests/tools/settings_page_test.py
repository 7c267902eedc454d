"""Tests that docs/reference/settings.md lists exactly the environment variables PENSTOCK_* that the code reads, with range and field of engine_options.

Also tests that docs/guides/operations.md lists every advice code, as include/penstock/facts.hpp promises.

Usage: settings_page_test.py
"""

from __future__ import annotations

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/settings.md").read_text()
CONFIG = (ROOT / "src/core/config.cc").read_text()
OPTIONS = (ROOT / "include/penstock/options.hpp").read_text()
VARIABLE = r"PENSTOCK_[A-Z0-9_]+"


def variables_read() -> dict[str, str]:
    """Name to file: a string that is such a name and nothing else is what getenv() and os.environ are asked for."""
    sources = [*(ROOT / "src").rglob("*.cc"), *(ROOT / "src").rglob("*.hpp"), *(ROOT / "python/native").rglob("*.cc"), *(ROOT / "python/penstock").rglob("*.py")]
    return {name: str(source.relative_to(ROOT)) for source in sources for name in re.findall(rf"[\"']({VARIABLE})[\"']", source.read_text())}


def rows() -> dict[str, list[str]]:
    """The cells of each row that begins with a variable: name, default, meaning, and the field of engine_options where there is one."""
    found: dict[str, list[str]] = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        name = re.fullmatch(rf"`({VARIABLE})`", cells[0].strip("| "))
        if line.startswith("| `PENSTOCK_") and name:
            assert name.group(1) not in found, f"{name.group(1)} has two rows"
            found[name.group(1)] = cells[1:]
    return found


def fields_of_engine_options() -> set[str]:
    body = re.search(r"struct engine_options \{(.*?)^\};", OPTIONS, re.DOTALL | re.MULTILINE)
    assert body is not None
    return set(re.findall(r"(\w+)(?: = [^;]*)?;", body.group(1)))


class SettingsPage(unittest.TestCase):
    def test_every_variable_that_the_code_reads_has_a_row_and_no_other_has(self) -> None:
        read = variables_read()
        self.assertGreater(len(read), 20)
        self.assertEqual(set(rows()) - set(read), set(), "no code reads these")
        self.assertEqual({name: read[name] for name in set(read) - set(rows())}, {}, "these have no row")

    def test_no_other_variable_is_named_in_the_text(self) -> None:
        self.assertEqual(set(re.findall(VARIABLE, PAGE)) - set(variables_read()), set())

    def test_every_row_has_a_default_and_a_meaning(self) -> None:
        for name, cells in rows().items():
            self.assertTrue(all(cells), f"{name} has an empty cell")
            self.assertIn(len(cells), (2, 3), name)

    def test_the_field_in_the_last_column_exists(self) -> None:
        fields = fields_of_engine_options()
        for name, cells in rows().items():
            if len(cells) == 3:
                self.assertIn(cells[2].strip("`"), fields, name)

    def test_the_variables_of_an_engine_name_their_field(self) -> None:
        for name in set(re.findall(rf'"({VARIABLE})"', CONFIG)):
            self.assertEqual(len(rows()[name]), 3, f"{name} is a variable of engine_options")

    def test_the_ranges_are_those_of_the_code(self) -> None:
        ranges = re.findall(rf'read_integer\("({VARIABLE})", (?:std::size_t\{{)?(\d+)U?\}}?, (?:std::size_t\{{)?(\d+)U?\}}?,', CONFIG)
        self.assertEqual({name for name, _, _ in ranges if name != "PENSTOCK_PINNED_FILE_MIB"}, {"PENSTOCK_LANES", "PENSTOCK_PINNED_MIB", "PENSTOCK_LINKS"})
        for name, least, most in ranges:
            if name != "PENSTOCK_PINNED_FILE_MIB":
                self.assertIn(f"{least} to {most}", rows()[name][1], name)

    def test_switches_have_the_default_of_the_code(self) -> None:
        for name, field in re.findall(rf'read_switch\("({VARIABLE})", options\.(\w+)\)', CONFIG):
            default = re.search(rf"bool {field} = (true|false);", OPTIONS)
            assert default is not None, field
            self.assertEqual(rows()[name][0], "1" if default.group(1) == "true" else "0", name)


class OperationsPage(unittest.TestCase):
    def test_every_code_of_advice_has_a_row_and_no_other_has(self) -> None:
        given = set(re.findall(r'(?:add\(|\{\{)"([a-z-]+)",', (ROOT / "src/stats/advisor.cc").read_text()))
        page = (ROOT / "docs/guides/operations.md").read_text()
        section = page.split("\n## Advice\n")[1].split("\n## ")[0]
        self.assertGreater(len(given), 5)
        self.assertEqual(set(re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)), given)


if __name__ == "__main__":
    unittest.main()
