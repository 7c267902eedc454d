"""For mkdocs: the pages stand in the repository as GitHub shows them, and the site follows the same links.

README.md is the site's first page; CONTRIBUTING.md and CHANGELOG.md come in beside it. The API reference has a generated page for each public Python module and each
public C++ header; a link to the source of one leads to its page. Links to other files of the repository lead to copies below source/. A page of docs/ that mkdocs.yml does not
name is listed under "More".
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))
import docs_api

ROOT = Path(__file__).resolve().parents[1]
OF_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
# In pages opened from a folder the search needs a stand-in for workers, which the theme would load from elsewhere.
SHIM, WORKER = "https://unpkg.com/iframe-worker/shim", "assets/javascripts/docs_worker.js"
# A picture for light and dark pages is HTML, which mkdocs leaves as it is.
PICTURE = re.compile(r'(\b(?:src|srcset)=")docs/')
# GitHub's pictures follow the system; the theme has a switch of its own, which these two anchors follow.
LIGHT_AND_DARK = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img src="([^"]+)"([^>]*)>\s*</picture>')
BY_SWITCH = r'<img src="\2#only-light"\3><img src="\1#only-dark"\3>'
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^ {0,3}(```|~~~)")
# Python-Markdown wants a blank line before a list and a table, which GitHub does not.
BLOCK = re.compile(r"^(?:[-*] |\d+\. |\|)")


def on_config(config: Any) -> Any:
    for group in config.nav:
        for title, pages in group.items():
            if isinstance(pages, list):
                group[title] = [docs_api.with_generated_pages(entry) for entry in pages]
    named = set(re.findall(r"[\w./-]+\.md", str(config.nav)))
    left = sorted(name for each in (ROOT / "docs").rglob("*.md") if (name := str(each.relative_to(ROOT / "docs"))) not in named)
    if left:
        config.nav.append({"More": left})
    return config


def on_files(files: Any, config: Any) -> Any:
    for name, page in OF_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    files.append(File.generated(config, WORKER, content=(ROOT / "tools/docs_worker.js").read_text()))
    files.append(File.generated(config, "assets/docs.css", content=(ROOT / "tools/docs.css").read_text()))
    for name, content in docs_api.pages().items():
        files.append(File.generated(config, name, content=content))
    texts = [(name, ROOT / name) for name in OF_ROOT] + [(str(each.relative_to(ROOT)), each) for each in sorted((ROOT / "docs").rglob("*.md"))]
    seen: set[str] = set()
    for name, path in texts:
        for target, _ in LINK.findall(path.read_text()):
            add_source(posixpath.normpath(posixpath.join(posixpath.dirname(name), target)), seen, files, config)
    return files


def add_source(target: str, seen: set[str], files: Any, config: Any) -> None:
    """A copy of a file of the repository; of a folder a page with what is in it."""
    there = ROOT / target
    if target in seen or target in OF_ROOT or target in docs_api.PAGE_OF_SOURCE or target.startswith(("docs/", "..")) or not there.exists():
        return  # what is not there, mkdocs will miss
    seen.add(target)
    if there.is_file():
        files.append(File.generated(config, f"source/{target}.txt", content=there.read_bytes()))
        return
    inside = sorted(each for each in there.iterdir() if each.is_file() and not each.name.startswith("."))
    for each in inside:
        add_source(f"{target}/{each.name}", seen, files, config)
    listed = "\n".join(f"- [{each.name}]({each.name}.txt)" for each in inside)
    files.append(File.generated(config, f"source/{target}/index.md", content=f"# {target}\n\n{listed}\n"))


def in_site(target: str) -> str:
    """Where a file of the repository stands in the site, from the site's root."""
    if target in OF_ROOT:
        return OF_ROOT[target]
    if target in docs_api.PAGE_OF_SOURCE:
        return docs_api.PAGE_OF_SOURCE[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if (ROOT / target).is_dir():
        return f"source/{target}/index.md"
    return f"source/{target}.txt"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = page.file.src_uri
    if source.startswith("source/"):
        return markdown
    name = next((name for name, of_site in OF_ROOT.items() if of_site == source), f"docs/{source}")

    def follow(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), found.group(1)))
        return posixpath.relpath(in_site(target), posixpath.dirname(source) or ".") + (found.group(2) or "")

    lines: list[str] = []
    in_fence = False
    for line in LIGHT_AND_DARK.sub(BY_SWITCH, PICTURE.sub(r"\1", LINK.sub(follow, markdown))).splitlines():
        before = lines[-1] if lines else ""
        starts = BLOCK.match(line) or (FENCE.match(line) and not in_fence)
        goes_on = BLOCK.match(before) or before.startswith(" ") or not before.strip()
        if starts and not in_fence and not goes_on:
            lines.append("")
        if FENCE.match(line):
            in_fence = not in_fence
        lines.append(line)
    return "\n".join(lines) + "\n"


def on_post_page(output: str, page: Any, **_: Any) -> str:
    return output.replace(SHIM, posixpath.relpath(WORKER, posixpath.dirname(page.file.dest_uri) or "."))


def on_post_template(output_content: str, **_: Any) -> str:
    """Of 404.html, whose links are from the root of a server."""
    return output_content.replace(SHIM, f"/{WORKER}")
