"""Tests the links between the pages, on GitHub and in the site that tools/docs_site builds.

Usage: docs_site_test.py links|site

links only reads the files: their links, their sentences, the length of README.md and its charts. site builds the site, and is skipped (77) without mkdocs.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import tool_module

ROOT = Path(__file__).resolve().parents[2]
charts = tool_module.load(ROOT / "tools/readme_charts.py")
count_words = tool_module.load(ROOT / "tools/count_words")
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *sorted((ROOT / "docs").rglob("*.md"))]
# Pages that GitHub shows, and the site does not.
GITHUB_PAGES = [ROOT / name for name in ("CODE_OF_CONDUCT.md", "ROADMAP.md", "SECURITY.md")]
SKIPPED, NO_MKDOCS = 77, 69
CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
HEADERS = sorted((ROOT / "include/penstock").glob("*.hpp"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
OUTSIDE = ("http:", "https:", "mailto:")


def public_names() -> dict[str, list[str]]:
    """The public modules of the package, each with the names in its __all__."""
    found = {}
    for source in sorted((ROOT / "python/penstock").rglob("*.py")):
        parts = [part for part in source.relative_to(ROOT / "python").with_suffix("").parts if part != "__init__"]
        if any(part.startswith("_") for part in parts):
            continue
        listed = [node.value for node in ast.walk(ast.parse(source.read_text())) if is_list_of_names(node)]
        found[".".join(parts)] = ast.literal_eval(listed[0]) if listed else []
    return found


def is_list_of_names(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"


def in_site(page: Path, suffix: str) -> str:
    """Where the site has the page, from its root."""
    name = "index" if page.name == "README.md" else str(page.relative_to(ROOT / "docs" if ROOT / "docs" in page.parents else ROOT).with_suffix(""))
    return name + suffix


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", lambda found: found.group().replace("](", "] ("), re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors_on_github(page: Path) -> set[str]:
    """Of its headings: small letters, blanks as hyphens, most punctuation gone, a number behind those that come again."""
    seen: dict[str, int] = {}
    for title in re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        seen[name] = seen.get(name, -1) + 1
        if seen[name]:
            seen[f"{name}-{seen[name]}"] = 0
    return set(seen)


def prose(page: Path) -> list[str]:
    """Its sentences, and the cells of its tables; without code and headings. Names in backticks come as `x`."""
    text = re.sub(r"`[^`\n]*`", "`x`", without_code(page.read_text()))
    blocks = re.split(r"\n{2,}|\n(?=[-|#])|(?<=\|)[ \n]", re.sub(r"^#.*$", "", text, flags=re.MULTILINE))
    return [sentence for block in blocks for sentence in re.split(r"(?<=[.:;!?])\s+", block.strip(" |-\n")) if sentence]


class Prose(unittest.TestCase):
    """Of the pages for users. Changes are shorter, and may leave words out."""

    PAGES = [page for page in PAGES if page.name not in ("messages.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    # A clause as subject, which has to be read twice; and words that say less than plain ones.
    HARD = (
        (re.compile(r"^(?:What|Who|Whoever|Whatever|Of what|Of those)\b(?!.*\?$)"), "say who does what"),
        (re.compile(r"\b(?:mends|asks nothing|looked? after)\b"), "fixes, makes no call, runs"),
    )

    def test_sentences_say_who_does_what(self) -> None:
        for page in self.PAGES:
            found = [f"{sentence}: {instead}" for sentence in prose(page) for hard, instead in self.HARD if hard.search(sentence)]
            self.assertEqual(found, [], page.name)

    def test_the_first_screen_of_a_page_has_an_example_a_table_or_a_drawing(self) -> None:
        for page in sorted((ROOT / "docs").rglob("*.md")):
            first_screen = "\n".join(page.read_text().split("\n")[:30])
            self.assertRegex(first_screen, r"(?m)^(```|\|[-| :]+\|$|<picture>)", page.name)

    def test_symptoms_are_on_one_page(self) -> None:
        for page in PAGES:
            self.assertNotIn("## When something is wrong", page.read_text(), f"{page.name}: move them to docs/reference/troubleshooting.md")

    def test_first_programs_are_not_cut_in_the_site(self) -> None:
        """In a window of 1366 pixels it shows 80 columns of code."""
        for page in self.PAGES:
            block = re.search(r"^```(?!text)\w+\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
            for line in block.group(1).splitlines() if block else ():
                self.assertLessEqual(len(line), 80, f"{page.name}: {line}")


class Readme(unittest.TestCase):
    """A stranger reads it in ninety seconds."""

    README = ROOT / "README.md"

    def test_it_is_short(self) -> None:
        words = len(self.README.read_text().split())
        self.assertLessEqual(words, count_words.README_LIMIT, "words, with code; move what is left over to a page of docs")

    def test_the_pages_of_docs_are_short_together(self) -> None:
        ended = subprocess.run([ROOT / "tools/count_words", "--check"], text=True, capture_output=True, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)


class Charts(unittest.TestCase):
    PAGES = (ROOT / "README.md", ROOT / "docs/reference/benchmarks.md")

    def test_they_show_the_figures_of_the_page_and_of_the_journal(self) -> None:
        ended = subprocess.run([ROOT / "tools/readme_charts.py", "--check"], text=True, capture_output=True, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_a_commit_that_was_measured_twice_has_its_last_figures(self) -> None:
        machine = {"device": "host device", "cpu": "CPU", "cores": 2}
        records = [{"commit": "a", "date": "2026-01-01", "machine": machine, "rows": {"hot-4g": {"fraction": value}}} for value in (0.25, 0.75)]
        shown = charts.history([json.dumps(record) for record in records])
        self.assertEqual(shown.machines, {"No GPU (host:0), CPU, 2 cores": {"a": {"hot-4g": 0.75}}})
        self.assertIn(">0.75<", charts.draw_history(shown, "light"))

    def test_they_exist_for_light_and_dark_pages(self) -> None:
        for page in self.PAGES:
            text = page.read_text()
            self.assertIn('media="(prefers-color-scheme: dark)"', text, page.name)
            pictures = re.findall(r'\b(?:src|srcset)="([^"]+)"', text)
            self.assertEqual(len(pictures), 2, page.name)
            for picture in pictures:
                self.assertTrue((page.parent / picture).is_file(), f"{page.name}: {picture}")


class Links(unittest.TestCase):
    def test_every_link_between_files_leads_to_a_file_and_a_heading(self) -> None:
        count = 0
        for page in [*PAGES, *GITHUB_PAGES]:
            for link in LINK.findall(without_code(page.read_text())):
                if link.startswith(OUTSIDE):
                    continue
                count += 1
                name, _, anchor = link.partition("#")
                target = (page.parent / name).resolve() if name else page
                self.assertTrue(target.exists(), f"{page.name}: {link}")
                self.assertTrue(target == ROOT or ROOT in target.parents, f"{page.name}: {link} leaves the repository")
                if anchor and target.suffix == ".md":
                    self.assertIn(anchor, anchors_on_github(target), f"{page.name}: {link}")
        self.assertGreater(count, 100)

    def test_every_page_of_the_menu_exists_and_every_page_is_in_it(self) -> None:
        menu = set(re.findall(r": ([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
        there = {in_site(page, ".md") for page in PAGES}
        self.assertEqual(menu - there, set())
        self.assertEqual(there - menu, set(), "name it in mkdocs.yml")

    def test_every_public_module_and_header_is_on_the_page_of_its_reference(self) -> None:
        python, cpp = ((ROOT / f"docs/reference/{name}-api.md").read_text() for name in ("python", "cpp"))
        for name in public_names():
            if name.startswith("penstock.kvikio."):
                name = "penstock.kvikio"
            self.assertIn(f"[{name}](", python)
        for header in HEADERS:
            self.assertIn(f"[{header.name}](", cpp)

    def test_the_page_of_messages_has_the_messages_of_the_sources(self) -> None:
        ended = subprocess.run([ROOT / "tools/messages", "--check"], text=True, capture_output=True, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_requirements_are_pinned(self) -> None:
        lines = [line for line in (ROOT / "tools/docs_requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
        self.assertGreater(len(lines), 10)
        for line in lines:
            self.assertRegex(line, r"^[\w.-]+==[\w.]+$")

    def test_options_that_do_not_exist_are_refused(self) -> None:
        ended = subprocess.run([ROOT / "tools/docs_site", "--sideways"], text=True, capture_output=True, check=False)
        self.assertEqual(ended.returncode, 2)
        self.assertIn("usage: tools/docs_site", ended.stderr)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name, value in attrs if value and (name == "id" or (tag == "a" and name == "name"))}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        if tag in ("img", "script") and given.get("src"):
            self.loads.append(given["src"] or "")
        if tag == "source" and given.get("srcset"):
            self.loads.append(given["srcset"] or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "shortcut icon"):
            self.loads.append(given["href"] or "")


class Site(unittest.TestCase):
    folder: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = ROOT / "build/site"
        cls.pages = {path: Page(path.read_text()) for path in cls.folder.rglob("*.html")}

    def test_it_has_a_page_for_each_of_the_repository(self) -> None:
        names = {str(path.relative_to(self.folder)) for path in self.folder.rglob("*.html")}
        generated = ("source/", "reference/python/", "reference/cpp/")
        self.assertEqual({name for name in names if not name.startswith(generated)} - {"404.html"}, {in_site(page, ".html") for page in PAGES})

    def test_the_reference_has_every_public_module_and_its_names(self) -> None:
        modules = public_names()
        for name, names in modules.items():
            anchors = self.pages[self.folder / f"reference/python/{name}.html"].anchors
            self.assertEqual([each for each in names if f"{name}.{each}" not in anchors | modules.keys()], [], name)

    def test_the_reference_has_every_public_header_and_its_classes(self) -> None:
        for header in HEADERS:
            text = header.read_text()
            classes = re.findall(r"^(?:class|struct) (?:PENSTOCK_API |\[\[nodiscard\]\] )*(\w+) \{", text, re.MULTILINE)
            shown = self.pages[self.folder / f"reference/cpp/{header.stem}.html"].anchors if header.stem != "penstock" else set()
            self.assertEqual([each for each in classes if each not in shown and f"kv{each}" not in shown], [], header.name)

    def test_the_reference_shows_docstrings_of_the_native_module(self) -> None:
        page = (self.folder / "reference/python/penstock.html").read_text()
        for words in ("Blocks. Raises", "moves it on; blocks"):
            self.assertIn(words, page)

    def test_every_link_leads_to_a_file_and_a_place_in_it(self) -> None:
        count = 0
        for path, page in self.pages.items():
            if path.name == "404.html":  # its links are from the root of a server
                continue
            for link in page.links + page.loads:
                parts = urlsplit(link)
                if parts.scheme in ("http", "https", "mailto"):
                    continue
                count += 1
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                target = target / "index.html" if target.is_dir() else target
                self.assertTrue(target.is_file(), f"{path.name}: {link}")
                if parts.fragment and target in self.pages:
                    self.assertIn(unquote(parts.fragment), self.pages[target].anchors, f"{path.name}: {link}")
        self.assertGreater(count, 500)

    def test_pictures_follow_the_switch_for_light_and_dark(self) -> None:
        loads = self.pages[self.folder / "reference/benchmarks.html"].loads
        self.assertIn("../images/history-light.svg#only-light", loads)
        self.assertIn("../images/history-dark.svg#only-dark", loads)

    def test_nothing_is_loaded_from_elsewhere(self) -> None:
        for path, page in self.pages.items():
            self.assertEqual([load for load in page.loads if load.startswith(("http", "//"))], [], path.name)

    def test_the_search_has_its_index_and_its_worker_in_the_folder(self) -> None:
        self.assertIn("slab", (self.folder / "search/search_index.js").read_text())
        for path, page in self.pages.items():
            self.assertTrue([load for load in page.loads if load.endswith("docs_worker.js")], path.name)

    @unittest.skipIf(CHROMIUM is None, "there is no Chromium to open the page in (apt-get install chromium)")
    def test_the_search_finds_pages_opened_from_the_folder(self) -> None:
        with tempfile.TemporaryDirectory() as profile:
            words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--virtual-time-budget=15000", "--dump-dom"]
            address = (self.folder / "guides/pipes.html").as_uri() + "?q=tensor"
            shown = subprocess.run([str(CHROMIUM), *words, address], text=True, capture_output=True, check=True, timeout=120).stdout
        self.assertRegex(shown, r"[1-9]\d* matching documents")

    def test_lists_and_tables_of_the_pages_are_lists_and_tables(self) -> None:
        for page in PAGES:
            tables = len(re.findall(r"^\|[-| :]+\|$", page.read_text(), re.MULTILINE))
            made = self.folder / in_site(page, ".html")
            self.assertEqual(made.read_text().count("<table>"), tables, page.name)
            self.assertNotRegex(made.read_text(), r"<p>[^<]*\n- ", page.name)

    def test_sources_come_whole(self) -> None:
        self.assertEqual((self.folder / "source/examples/read_file.cc.txt").read_bytes(), (ROOT / "examples/read_file.cc").read_bytes())

    def test_a_link_that_leads_nowhere_fails(self) -> None:
        with tempfile.TemporaryDirectory(prefix="penstock-docs-site-", dir="/var/tmp") as folder:
            copy = Path(folder) / "copy"
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("build*", ".git", ".cache", "dist"))
            (copy / "build").mkdir()
            shutil.copytree(ROOT / "build/docs_venv", copy / "build/docs_venv", symlinks=True)
            page = copy / "docs/guides/pipes.md"
            broken = ("[x](NOWHERE.md)", "[x](cpp.md#nowhere)", "[x](../../examples/nowhere.cc)")
            page.write_text("\n".join([(ROOT / "docs/guides/pipes.md").read_text(), *broken, ""]))
            ended = subprocess.run([copy / "tools/docs_site"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            self.assertNotEqual(ended.returncode, 0)
            for target in ("NOWHERE.md", "#nowhere", "nowhere.cc"):
                self.assertIn(target, ended.stdout)


if __name__ == "__main__":
    if sys.argv[1] == "site":
        built = subprocess.run([ROOT / "tools/docs_site"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        print(built.stdout)
        if built.returncode == NO_MKDOCS:
            print("skipped: mkdocs is not there, and could not be installed")
            sys.exit(SKIPPED)
        if built.returncode:
            sys.exit(1)
    unittest.main(argv=[sys.argv[0], *{"links": ("Charts", "Links", "Prose", "Readme"), "site": ("Site",)}[sys.argv[1]]])
