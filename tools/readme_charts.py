#!/usr/bin/env python3
"""Draws the pictures of README.md and docs into docs/images, each for light and for dark pages.

speed-*.svg shows figures of docs/reference/benchmarks.md, history-*.svg those of bench/performance.jsonl; architecture-*.svg shows the rooms of the source.

Usage: tools/readme_charts.py           writes the files
       tools/readme_charts.py --check   exits with 1 if they differ from what it would write
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs/reference/benchmarks.md"
HISTORY = ROOT / "bench/performance.jsonl"
IMAGES = ROOT / "docs/images"
WIDTH, LEFT, BAR_WIDTH, BAR_HEIGHT = 420, 8, 350, 16
THEMES = {
    "light": {"text": "#1f2328", "quiet": "#59636e", "penstock": "#0969da", "other": "#afb8c1", "grid": "#d1d9e0", "second": "#bc4c00", "third": "#1a7f37", "box": "#f6f8fa"},
    "dark": {"text": "#f0f6fc", "quiet": "#9198a1", "penstock": "#4493f8", "other": "#656c76", "grid": "#3d444d", "second": "#f0883e", "third": "#3fb950", "box": "#151b23"},
}
# Rows of `penstock bench` in the chart of commits.
ROWS = {
    "hot-4g": "One large read, cached",
    "hot-1m-t8": "1 MiB reads, 8 threads, cached",
    "call-4k": "One 4 KiB read, cached",
    "unaligned": "Large unaligned read, cached",
    "cold-4g": "One large read, not cached",
    "batch-4k-cold": "Batch of 4 KiB, not cached",
    "write-hot": "Write to the page cache",
    "write-direct": "Write with O_DIRECT",
}
MACHINE_COLORS = ("penstock", "second", "third")


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


def panels(text: str) -> list[Panel]:
    models, files = "Models through transformers", "Cached file"
    loader = number(cells(text, models, "`penstock.safetensors.torch.load_file`")[1])
    under_run = number(cells(text, models, "`from_pretrained` under `penstock run`")[1])
    alone = number(cells(text, models, "`from_pretrained` alone")[1])

    def hot(library: str) -> float:
        return number(cells(text, files, library)[1])

    return [
        Panel(
            "Load a 4 GB model from the page cache",
            ["First load, three safetensors files", "H100, PyTorch 2.11, 2026-11-25"],
            [
                Bar("penstock.safetensors.torch.load_file", loader, True),
                Bar("transformers from_pretrained, penstock run", under_run, True),
                Bar("transformers from_pretrained, alone", alone, False),
            ],
        ),
        Panel(
            "Read a 4 GiB file from the page cache",
            ["One call, median of three; the PCIe link gives 54", "Another H100, 2026-11-26"],
            [
                Bar("Penstock", hot("Penstock |"), True),
                Bar("KvikIO, 8 threads", hot("KvikIO 26.10, 8 threads"), False),
                Bar("NVIDIA libcufile 1.15", hot("NVIDIA libcufile 1.15.1"), False),
                Bar("KvikIO, default (1 thread)", hot("KvikIO 26.10, default"), False),
            ],
        ),
    ]


class Drawing:
    """Collects the elements of one picture."""

    def __init__(self, theme: str) -> None:
        self._color = THEMES[theme]
        self._elements: list[str] = []

    def text(self, x: float, y: float, words: str, size: int, fill: str, weight: str = "normal", anchor: str = "start") -> None:
        end = "" if anchor == "start" else f' text-anchor="{anchor}"'
        style = f'font-size="{size}" font-weight="{weight}" fill="{self._color[fill]}"{end}'
        self._elements.append(f'  <text x="{x:.0f}" y="{y}" {style}>{escape(words)}</text>')

    def bar(self, x: float, y: float, width: float, fill: str) -> None:
        self._elements.append(f'  <rect x="{x}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2" fill="{self._color[fill]}"/>')

    def line(self, points: list[tuple[float, float]], stroke: str, width: float, dashes: str = "") -> None:
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._elements.append(f'  <polyline points="{corners}" fill="none" stroke="{self._color[stroke]}" stroke-width="{width}"{dashed}/>')

    def dot(self, x: float, y: float, fill: str) -> None:
        self._elements.append(f'  <circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{self._color[fill]}"/>')

    def box(self, x: float, y: float, width: float, height: float, name: str, note: str, stroke: str = "grid") -> None:
        """A room: its name, and below it what it is for."""
        colors = f'fill="{self._color["box"]}" stroke="{self._color[stroke]}"'
        self._elements.append(f'  <rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" {colors}/>')
        middle = x + width / 2
        self.text(middle, y + height / 2 - (3 if note else -5), name, 14, "text", "bold", "middle")
        if note:
            self.text(middle, y + height / 2 + 14, note, 12, "quiet", anchor="middle")

    def arrow(self, from_x: float, to_x: float, y: float) -> None:
        """To the right: bytes."""
        self.line([(from_x, y), (to_x - 5, y)], "penstock", 2.5)
        self.line([(to_x - 7, y - 5), (to_x - 1, y), (to_x - 7, y + 5)], "penstock", 2.5)

    def svg(self, height: float, title: str, width: int = WIDTH) -> str:
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"',
                "  font-family=\"-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif\">",
                f"  <title>{escape(title)}</title>",
                *self._elements,
                "</svg>\n",
            ]
        )


def draw_bars(drawn: list[Panel], theme: str) -> str:
    drawing = Drawing(theme)
    most = max(bar.gigabytes_per_second for panel in drawn for bar in panel.bars)
    y = 28
    drawing.text(LEFT, y, "Into GPU memory, GB/s (longer is faster)", 16, "text", "bold")
    for panel in drawn:
        y += 34
        drawing.text(LEFT, y, panel.title, 15, "text", "bold")
        y += 3
        for line in panel.caption:
            y += 17
            drawing.text(LEFT, y, line, 13, "quiet")
        for bar in panel.bars:
            y += 24
            drawing.text(LEFT, y, bar.label, 14, "text")
            length = BAR_WIDTH * bar.gigabytes_per_second / most
            drawing.bar(LEFT, y + 6, length, "penstock" if bar.is_penstock else "other")
            y += 19
            drawing.text(LEFT + length + 8, y, f"{bar.gigabytes_per_second:.1f}", 15, "text", "bold")
        y += 6
    summary = "; ".join(f"{panel.title}: " + ", ".join(f"{bar.label} {bar.gigabytes_per_second:.1f}" for bar in panel.bars) for panel in drawn)
    return drawing.svg(y + 14, "GB/s into GPU memory. " + summary)


# --- the chart of commits


class History(NamedTuple):
    commits: list[str]  # oldest first
    dates: dict[str, str]  # of each commit
    machines: dict[str, dict[str, dict[str, float]]]  # machine: commit: row: fraction of the ceiling


def machine_name(record: dict[str, Any]) -> str:
    machine = record["machine"]
    device = "No GPU (host:0)" if machine["device"] == "host device" else machine["device"].removeprefix("NVIDIA ")
    return f"{device}, {machine['cpu']}, {machine['cores']} cores"


def history(lines: list[str]) -> History:
    """A commit that was measured twice on one machine has its last figures."""
    machines: dict[str, dict[str, dict[str, float]]] = {}
    dates: dict[str, str] = {}
    for line in lines:
        record = json.loads(line)
        dates[record["commit"]] = record["date"]
        rows = {row: figure["fraction"] for row, figure in record["rows"].items() if row in ROWS}
        machines.setdefault(machine_name(record), {})[record["commit"]] = rows
    if len(machines) > len(MACHINE_COLORS):
        raise SystemExit(f"{HISTORY.name} has {len(machines)} machines, and the chart has colors for {len(MACHINE_COLORS)}")
    return History(sorted(dates, key=lambda commit: dates[commit]), dates, machines)


def draw_history(shown: History, theme: str) -> str:
    drawing = Drawing(theme)
    plot_width, plot_height, column = 160, 72, 208
    largest = max(fraction for commits in shown.machines.values() for rows in commits.values() for fraction in rows.values())
    top = max(1.25, math.ceil(largest * 4) / 4)
    drawing.text(LEFT, 28, "Fraction of the hardware's speed, by commit", 16, "text", "bold")
    y = 34
    for name, color in zip(shown.machines, MACHINE_COLORS):
        y += 18
        drawing.dot(LEFT + 4, y - 4, color)
        drawing.text(LEFT + 16, y, name, 13, "quiet")
    y += 24
    drawing.line([(LEFT, y - 4), (LEFT + 16, y - 4)], "quiet", 1, "3 3")
    drawing.text(LEFT + 22, y, "1 = the bare hardware in the same runs", 13, "quiet")
    for index, (row, title) in enumerate(ROWS.items()):
        left = LEFT + (index % 2) * column
        base = y + 40 + (index // 2) * (plot_height + 62) + plot_height
        draw_row(drawing, shown, row, left, base, (plot_width, plot_height, top))
        drawing.text(left, base - plot_height - 10, title, 13, "text", "bold")
    height = y + 40 + math.ceil(len(ROWS) / 2) * (plot_height + 62) - 10
    newest = shown.commits[-1]
    summary = "; ".join(
        f"{name}: " + ", ".join(f"{ROWS[row]} {fraction:.2f}" for row, fraction in commits[newest].items())
        for name, commits in shown.machines.items()
        if newest in commits
    )
    return drawing.svg(height, f"Fraction of the hardware's speed, commit {newest[:7]}. {summary}")


def draw_row(drawing: Drawing, shown: History, row: str, left: float, base: float, size: tuple[float, float, float]) -> None:
    """One plot: commits from left to right, evenly, and a line for each machine."""
    width, height, top = size
    inset = 8
    step = (width - 2 * inset) / max(1, len(shown.commits) - 1)
    x_of = {commit: left + inset + index * step for index, commit in enumerate(shown.commits)}
    drawing.line([(left, base), (left + width, base)], "grid", 1)
    drawing.line([(left, base - height / top), (left + width, base - height / top)], "quiet", 1, "3 3")
    last = []
    for machine, color in zip(shown.machines.values(), MACHINE_COLORS):
        fractions = {commit: machine[commit][row] for commit in shown.commits if row in machine.get(commit, {})}
        points = [(x_of[commit], base - height * fraction / top) for commit, fraction in fractions.items()]
        if points:
            drawing.line(points, color, 2)
            last.append((points[-1][1], fractions[next(reversed(fractions))]))
        for x, y in points:
            drawing.dot(x, y, color)
    bottom = 0.0
    for y, fraction in sorted(last):  # labels that would overlap move down
        bottom = max(round(y + 5), bottom + 14)
        drawing.text(left + width + 1, bottom, f"{fraction:.2f}", 14, "text", "bold")
    first, newest = shown.commits[0], shown.commits[-1]
    drawing.text(left, base + 16, shown.dates[first][5:10], 12, "quiet")
    if newest != first:
        drawing.text(left + width, base + 16, shown.dates[newest][5:10], 12, "quiet", anchor="end")


# --- the drawing of the rooms


def draw_architecture(theme: str) -> str:
    """Layers from top to bottom; in the middle, the way of a byte."""
    drawing = Drawing(theme)
    width, left, gap = 560, 8, 8
    full = width - 2 * left

    def row(y: float, height: float, boxes: list[tuple[str, str]], shares: list[float] | None = None) -> None:
        parts = shares or [1.0] * len(boxes)
        room = full - gap * (len(boxes) - 1)
        x = float(left)
        for (name, note), share in zip(boxes, parts):
            size = room * share / sum(parts)
            drawing.box(round(x, 1), y, round(size, 1), height, name, note)
            x += size + gap

    faces = [("python", "package"), ("cli", "command"), ("cufile", "C ABI"), ("tensors", "model files"), ("kv", "KV store")]
    row(8, 46, faces)
    row(62, 30, [("include/penstock: the public C++ API", "")])
    row(100, 46, [("core", "engine, requests, planner; stats counts"), ("pipe, channel", "to other processes")], [1.6, 1])
    drawing.text(left, 168, "path: the planner chooses one for each range", 13, "quiet")
    row(176, 30, [(name, "") for name in ("posix", "staged", "mapped", "direct", "dma_buf")])
    drawing.text(left, 232, "source, staging: the way of a byte on the path staged", 13, "quiet")
    steps = [("source", "file, object"), ("lanes", "read"), ("slabs", "pinned"), ("feeder", "copies"), ("GPU", "memory")]
    way_gap, size = 26, (full - 4 * 26) / 5
    for index, (name, note) in enumerate(steps):
        x = left + index * (size + way_gap)
        drawing.box(round(x, 1), 240, round(size, 1), 46, name, note, "penstock")
        if index:
            drawing.arrow(round(x - way_gap + 3, 1), round(x - 2, 1), 263)
    row(302, 46, [("sys", "Linux, network, other processes"), ("device", "CUDA driver, host device")])
    row(356, 30, [("base: status, arithmetic, locks", "")])
    return drawing.svg(394, "The rooms of the source, from the public API down to the kernel and the GPU driver", width)


def pictures() -> dict[Path, str]:
    bars = panels(FIGURES.read_text(encoding="utf-8"))
    commits = history(HISTORY.read_text(encoding="utf-8").splitlines())
    speed = {IMAGES / f"speed-{theme}.svg": draw_bars(bars, theme) for theme in THEMES}
    past = {IMAGES / f"history-{theme}.svg": draw_history(commits, theme) for theme in THEMES}
    return speed | past | {IMAGES / f"architecture-{theme}.svg": draw_architecture(theme) for theme in THEMES}


def main() -> int:
    stale = []
    for path, svg in pictures().items():
        if sys.argv[1:] != ["--check"]:
            path.write_text(svg, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != svg:
            stale.append(path.name)
    if stale:
        print(f"{', '.join(stale)}: older than the figures or the program that draws them; run tools/readme_charts.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
