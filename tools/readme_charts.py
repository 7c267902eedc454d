#!/usr/bin/env python3
"""Draws the chart of README.md, docs/images/speed-light.svg and speed-dark.svg, from figures in docs/reference/benchmarks.md.

Usage: tools/readme_charts.py           writes the two files
       tools/readme_charts.py --check   exits with 1 if they differ from what it would write
"""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs/reference/benchmarks.md"
IMAGES = ROOT / "docs/images"
WIDTH, LEFT, BAR_WIDTH, BAR_HEIGHT = 420, 8, 350, 16
THEMES = {
    "light": {"text": "#1f2328", "quiet": "#59636e", "penstock": "#0969da", "other": "#afb8c1"},
    "dark": {"text": "#f0f6fc", "quiet": "#9198a1", "penstock": "#4493f8", "other": "#656c76"},
}


class Bar(NamedTuple):
    label: str
    gigabytes_per_second: float
    is_penstock: bool


class Panel(NamedTuple):
    title: str
    caption: list[str]
    bars: list[Bar]


def cells(text: str, heading: str, row: str) -> list[str]:
    """The cells of the only row of that section whose text begins with row."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if section is None:
        raise SystemExit(f"{FIGURES.name} has no section {heading!r}")
    rows = [line for line in section.group(1).splitlines() if line.startswith(f"| {row}")]
    if len(rows) != 1:
        raise SystemExit(f"{FIGURES.name}: {len(rows)} rows of {heading!r} begin with {row!r}; one must")
    return [cell.strip() for cell in rows[0].strip("|").split("|")]


def number(cell: str) -> float:
    """The first number of a cell."""
    found = re.search(r"\d+(?:\.\d+)?", cell)
    if found is None:
        raise SystemExit(f"{FIGURES.name}: no number in {cell!r}")
    return float(found.group())


def median(cell: str) -> float:
    return statistics.median(float(each) for each in re.findall(r"\d+\.\d+", cell))


def panels(text: str) -> list[Panel]:
    models, files = "Models by the programs that people run", "One hot file, four libraries in one run"
    plain = "`AutoModelForCausalLM.from_pretrained"
    # Column 2 is the first load, and its first figure is of the first machine.
    as_it_is = number(cells(text, models, plain)[2])
    under_run = number(cells(text, models, "the same |")[2])
    loader = number(cells(text, models, "`penstock.safetensors.torch.load_file` (the loader)")[2])
    return [
        Panel(
            "Load a 4 GB model from the page cache",
            ["First load, three safetensors files", "H100, PyTorch 2.11, 2026-11-25"],
            [
                Bar("penstock.safetensors.torch.load_file", loader, True),
                Bar("transformers from_pretrained, penstock run", under_run, True),
                Bar("transformers from_pretrained, alone", as_it_is, False),
            ],
        ),
        Panel(
            "Read a 4 GiB file from the page cache",
            ["One call, median of three; the PCIe link gives 54", "Another H100, 2026-11-26"],
            [
                Bar("Penstock", median(cells(text, files, "Penstock, `penstock bench`")[1]), True),
                Bar("KvikIO, 8 threads", median(cells(text, files, "KvikIO with `KVIKIO_NTHREADS=8`")[1]), False),
                Bar("NVIDIA libcufile 1.15", number(cells(text, files, "NVIDIA's libcufile 1.15.1")[1]), False),
                Bar("KvikIO, default (1 thread)", median(cells(text, files, "KvikIO as installed")[1]), False),
            ],
        ),
    ]


def draw(drawn: list[Panel], theme: str) -> str:
    color = THEMES[theme]
    most = max(bar.gigabytes_per_second for panel in drawn for bar in panel.bars)
    lines: list[str] = []
    y = 28

    def write(x: float, words: str, size: int, fill: str, weight: str = "normal") -> None:
        lines.append(f'  <text x="{x:.0f}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{color[fill]}">{escape(words)}</text>')

    write(LEFT, "Into GPU memory, GB/s (longer is faster)", 16, "text", "bold")
    for panel in drawn:
        y += 34
        write(LEFT, panel.title, 15, "text", "bold")
        y += 3
        for line in panel.caption:
            y += 17
            write(LEFT, line, 13, "quiet")
        for bar in panel.bars:
            y += 24
            write(LEFT, bar.label, 14, "text")
            length = BAR_WIDTH * bar.gigabytes_per_second / most
            fill = color["penstock" if bar.is_penstock else "other"]
            lines.append(f'  <rect x="{LEFT}" y="{y + 6}" width="{length:.1f}" height="{BAR_HEIGHT}" rx="2" fill="{fill}"/>')
            y += 19
            write(LEFT + length + 8, f"{bar.gigabytes_per_second:.1f}", 15, "text", "bold")
        y += 6
    height = y + 14
    summary = "; ".join(f"{panel.title}: " + ", ".join(f"{bar.label} {bar.gigabytes_per_second:.1f}" for bar in panel.bars) for panel in drawn)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"',
            "  font-family=\"-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif\">",
            f"  <title>{escape('GB/s into GPU memory. ' + summary)}</title>",
            *lines,
            "</svg>\n",
        ]
    )


def main() -> int:
    drawn = panels(FIGURES.read_text(encoding="utf-8"))
    stale = []
    for theme in THEMES:
        path = IMAGES / f"speed-{theme}.svg"
        svg = draw(drawn, theme)
        if sys.argv[1:] != ["--check"]:
            path.write_text(svg, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != svg:
            stale.append(path.name)
    if stale:
        print(f"{', '.join(stale)}: not what docs/reference/benchmarks.md says; run tools/readme_charts.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
