"""Tests the page of `penstock bench --report`: it is well-formed, complete, and escapes names and saved results.

Usage: report_test.py page|browser PENSTOCK

browser opens it in headless Chromium, light and dark, and looks for overlapping texts; skipped (77) without Chromium.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as tree
from pathlib import Path
from typing import Any

SELECTION, PENSTOCK = sys.argv[1], str(Path(sys.argv[2]).resolve())
SKIPPED = 77
HTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
OTHERS = ("NVIDIA libcufile", "Penstock, Python", "KvikIO", "PyTorch", "safetensors", "Rows from Python")
CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


def penstock(*words: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PENSTOCK, *map(str, words)], cwd=cwd, text=True, capture_output=True, check=False, env={**os.environ, **variables})


def a_result() -> dict[str, Any]:
    """One as `penstock bench --json` writes it, of a machine where all that is there ends at nearly the same speed: names would collide."""
    sizes = [4096 << shift for shift in range(0, 16, 2)]
    points = [{"series": series, "call_bytes": size, "outcome": "measured", "gb_per_s": min(50 + number / 10, size / 8000), "us_each": size / 50000,
               "cpu_s_per_gb": 0.15, "calls": 100, "path": "staged", "verified": True, "bytes": size * 100,
               "latency_us": [[0, 5 + number / 50], [50, 6 + number / 50], [90, 7], [99, 9], [99.9, 11], [100, 30]]}
              for number, series in enumerate(("hot", "unaligned", "batch", "pread", "cold", "O_DIRECT")) for size in sizes]  # fmt: skip
    peers = [{"name": name, "state": "measured", "version": "1.0", "call": "read", "install": "", "program": "bench/x.py",
              "rows": [{"row": f"one call, {name}", "gb_per_s": 40.0 + number, "cpu_s_per_gb": 0.2, "ours": number == 0}],
              "points": [{"series": series, "call_bytes": size, "gb_per_s": 49.9 + number / 100, "us": 3.0, "cpu_s_per_gb": 0.2} for series in ("hot", "cold") for size in sizes]}
             for number, name in enumerate(OTHERS)]  # fmt: skip
    peers.append({"name": "Absent One", "state": "absent", "reason": "No module named 'absent'", "install": "pip install absent-one"})
    rows = [{"name": name, "outcome": "measured", "gb_per_s": 50.0, "us_each": 1.0, "cpu_s_per_gb": 0.15, "bytes": 1 << 30, "calls": 1, "fraction": 0.95, "ratio": None,
             "p50_us": 6.5, "p99_us": 9.0, "path": "staged", "verified": True, "notes": ["a note"], "targets": [],
             "ceiling": {"name": "link to device", "gb_per_s": 52.0, "detail": ""}} for name in ("hot-4g", "cold-4g", "call-4k", "batch-4k-cold")]  # fmt: skip
    return {"penstock": "0.2.0", "date": "2026-11-23 01:00 UTC", "kernel": "6.18", "cpu": "Some CPU", "cores": 16, "device": "cuda:0", "device_description": "NVIDIA H200",
            "driver": "580", "file_system": "ext4", "file_bytes": 4 << 30, "stopped": False, "command": "penstock bench --report x.html", "file": "/data/x",
            "ceilings": {"link_to_device_gb_per_s": 55.0, "page_cache_to_memory_gb_per_s": 56.0, "direct_read_gb_per_s": 54.0},
            "rows": rows, "sizes": points, "peers": peers,
            "machine": {"versions": {"kernel": "6.18", "nvidia_fs": None}, "topology": [],
                        "findings": [{"verdict": "slow", "subject": "/data", "reason": "a reason", "remedy": "a remedy"}]}}  # fmt: skip


class Pages(unittest.TestCase):
    folder: Path

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-report-test-", dir="/var/tmp"))
        self.addCleanup(shutil.rmtree, self.folder)

    def made_of(self, result: object) -> str:
        saved = self.folder / "saved.json"
        saved.write_text(result if isinstance(result, str) else json.dumps(result))
        ended = penstock("bench", "--report", "page.html", "--from", saved, cwd=self.folder)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "", ""))
        return (self.folder / "page.html").read_text()

    def series(self, page: tree.Element, figure: str) -> set[str]:
        found = next((each for each in page.iter(f"{HTML}figure") if each.get("id") == figure), None)
        self.assertIsNotNone(found, f"there is no figure {figure}")
        assert found is not None
        return {name for each in found.iter(f"{SVG}g") if (name := each.get("data-series"))}

    def texts(self, page: tree.Element) -> str:
        return " ".join(page.itertext())


class Page(Pages):
    def test_a_run_makes_a_page_and_json_that_makes_the_same_page(self) -> None:
        name = "a <b> & \"c'.html"
        # -I: none of the other libraries is found, wherever this runs
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
        python.chmod(0o755)
        ended = penstock("bench", "--quick", "--size", "64MiB", "--repeats", 1, "--rows", "hot-4g,call-4k", "--sizes", "4KiB,1MiB", "--device", "host:0", "--report", name,
                         "--json", "run.json", "--python", python, "-q", cwd=self.folder)  # fmt: skip
        self.assertEqual((ended.returncode, ended.stderr), (0, ""), ended.stdout)
        text = (self.folder / name).read_text()
        page = tree.fromstring(text)
        self.assertEqual(self.series(page, "hot"), {"aligned calls", "unaligned calls", "batches of 128", "plain pread, one thread"})
        self.assertIn("hot-4g", self.series(page, "cpu"))
        self.assertLessEqual({"4 KiB", "1 MiB"}, self.series(page, "latency"))
        told = self.texts(page)
        for other in OTHERS:
            self.assertIn(other, told)
        for install in ("pip install kvikio", "pip install torch", "pip install safetensors", "apt-get install libcufile"):
            self.assertIn(install, told)
        for fact in ("host:0", "Linux", "copy to the device", "Findings of penstock check", "nvidia_driver", name.split(".")[0]):
            self.assertIn(fact, told)
        self.assertEqual(self.made_of((self.folder / "run.json").read_text()), text)
        self.assertEqual(sorted(each.name for each in self.folder.iterdir()), sorted([name, "page.html", "python", "run.json", "saved.json"]))

    def test_it_loads_nothing_and_runs_nothing(self) -> None:
        text = self.made_of(a_result())
        page = tree.fromstring(text)
        for each in page.iter():
            self.assertFalse(str(each.tag).endswith(("}script", "}link", "}img", "}iframe", "}object")), each.tag)
            for attribute, value in each.attrib.items():
                self.assertFalse(attribute.startswith("on"), attribute)
                if attribute in ("href", "src"):
                    self.assertTrue(value.startswith("#"), value)
        self.assertNotRegex(text, r"url\(|@import")
        links = {each.get("href", "")[1:] for each in page.iter(f"{HTML}a")}
        self.assertLessEqual(links, {each.get("id") for each in page.iter() if each.get("id")})
        self.assertEqual(len(links), 7)

    def test_every_plot_has_its_series_a_title_and_a_description(self) -> None:
        page = tree.fromstring(self.made_of(a_result()))
        self.assertEqual(self.series(page, "cold"), {"Penstock", "plain O_DIRECT pread"})
        for figure in ("others-hot", "others-cold", "cpu-others"):
            self.assertEqual(self.series(page, figure), {"Penstock, C++", *OTHERS})
        self.assertEqual(self.series(page, "latency"), {"4 KiB", "64 KiB", "1 MiB", "4 KiB cold", "64 KiB cold", "4 KiB plain pread"})
        drawings = list(page.iter(f"{SVG}svg"))
        self.assertGreaterEqual(len(drawings), 10)
        for each in drawings:
            names = [found.text for name in each.get("aria-labelledby", "").split() for found in each.iter() if found.get("id") == name]
            self.assertEqual(len(names), 2)
            self.assertTrue(all(names))
        for table in page.iter(f"{HTML}table"):
            self.assertTrue(table.findtext(f"{HTML}caption"))
            self.assertTrue(all(each.get("scope") for each in table.iter(f"{HTML}th")))
            columns = len(list(table.iter(f"{HTML}thead"))[0][0])
            self.assertEqual({len(row) for row in table.iter(f"{HTML}tr")}, {columns}, table.findtext(f"{HTML}caption"))
        levels = {each.get("data-level") for each in page.iter(f"{SVG}g") if each.get("data-level")}
        self.assertEqual(levels, {"copy to the device", "pread, many threads", "O_DIRECT, many reads"})
        ids = [each.get("id") for each in page.iter() if each.get("id")]
        self.assertEqual(len(ids), len(set(ids)))

    def test_hostile_names_stay_text(self) -> None:
        hostile = "</title></style><script>alert(1)</script>\"'&lt;]]>\u0001\ufffe"
        result = a_result()
        for name in ("file", "command", "cpu", "device_description", "date", "kernel", "file_system", "penstock", "device", "driver", "device_remark"):
            result[name] = hostile
        result["rows"][0].update(name=hostile, path=hostile, notes=[hostile])
        result["rows"].append({"name": hostile, "outcome": "failed", "reason": hostile})
        result["sizes"].append({"series": hostile, "call_bytes": 4096, "outcome": "failed", "reason": hostile})
        result["peers"][0].update(name=hostile, version=hostile, call=hostile, program=hostile)
        result["peers"][-1].update(name=hostile, state=hostile, reason=hostile, install=hostile)
        result["ceilings"]["page_cache_to_memory_how"] = hostile
        result["machine"] = {"versions": {hostile: hostile}, "topology": [{"gpu": hostile, "peer": hostile}],
                             "findings": [{"verdict": hostile, "subject": hostile, "reason": hostile, "remedy": hostile}]}  # fmt: skip
        text = self.made_of(result)
        page = tree.fromstring(text)
        self.assertFalse([each.tag for each in page.iter() if str(each.tag).endswith("script")])
        self.assertNotIn("<script", text)
        self.assertGreater(self.texts(page).count("<script>alert(1)</script>\"'&lt;]]>\ufffd\ufffd"), 20)

    def test_values_of_any_kind_and_size_make_a_page(self) -> None:
        for odd in (None, "text", -1, 0, 1e300, -1e300, 1e-300, [], {}, [[1]], True):
            result = a_result()
            for point in result["sizes"][:9]:
                point.update(gb_per_s=odd, call_bytes=odd, latency_us=odd, cpu_s_per_gb=odd)
            result["sizes"][10]["latency_us"] = [[odd, odd]]
            result["rows"][0].update(ceiling=odd, fraction=odd, notes=odd, cpu_s_per_gb=odd, p50_us=odd)
            result["peers"][0].update(points=odd, rows=odd, name=odd)
            result.update(cores=odd, file_bytes=odd, stopped=odd)
            result["machine"]["versions"] = odd
            tree.fromstring(self.made_of(result))
            for part in ("ceilings", "machine", "peers", "sizes"):
                tree.fromstring(self.made_of({**a_result(), part: odd}))
        tree.fromstring(self.made_of({"penstock": "0.2.0", "rows": []}))
        tree.fromstring(self.made_of({"penstock": "0.2.0", "rows": [{"name": "hot-4g", "outcome": "measured", "gb_per_s": 5, "fraction": 0.5}]}))

    def test_what_cannot_be_is_named(self) -> None:
        (self.folder / "text").write_text("no JSON")
        (self.folder / "other.json").write_text('{"rows": 3}')
        (self.folder / "good.json").write_text(json.dumps(a_result()))
        for source, target, said in (("missing", "x", "missing: No such file"), ("text", "x", "text: not a JSON document"), ("other.json", "x", "other.json: not a result of"),
                                     ("good.json", "no/folder/x", "no/folder/x: No such file"), ("good.json", "/dev/full", "/dev/full: No space left")):  # fmt: skip
            ended = penstock("bench", "--report", target, "--from", source, cwd=self.folder)
            self.assertEqual((ended.returncode, ended.stdout), (1, ""), source)
            self.assertIn(said, ended.stderr)
        for words in (["--from", "good.json"], ["--no-others"], ["--python", "x"]):
            self.assertEqual(penstock("bench", *words, cwd=self.folder).returncode, 2, words)

    def test_a_page_that_cannot_be_written_is_said_before_anything_is_measured(self) -> None:
        ended = penstock("bench", "--quick", "--size", "64MiB", "--report", "no/folder/x", "--device", "host:0", cwd=self.folder)
        self.assertEqual((ended.returncode, ended.stdout), (1, ""), ended.stdout)
        self.assertIn("no/folder/x: No such file", ended.stderr)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_without_a_python_that_runs_the_others_are_absent(self) -> None:
        for python, said, temporary in (("no-such-python", "no-such-python: No such file", "/var/tmp"), ("/bin/false", "/bin/false: exit code 1", "/var/tmp"),
                                        ("/bin/true", "the program wrote no figures", "/var/tmp"), (sys.executable, "cannot create a temporary folder", "/no/such/folder")):  # fmt: skip
            ended = penstock("bench", "--quick", "--size", "64MiB", "--repeats", 1, "--rows", "start", "--sizes", "1MiB", "--device", "host:0", "--report", "x.html",
                             "--python", python, cwd=self.folder, TMPDIR=temporary)  # fmt: skip
            self.assertEqual(ended.returncode, 0, ended.stderr)
            told = self.texts(tree.fromstring((self.folder / "x.html").read_text()))
            self.assertIn(said, told)
            self.assertIn("NVIDIA libcufile, KvikIO, PyTorch, safetensors", told)

    def test_an_interrupted_run_says_so(self) -> None:
        words = [PENSTOCK, "bench", "--quick", "--size", "64MiB", "--rows", "start", "--repeats", "50", "--device", "host:0", "--report", "x.html", "--log"]
        with subprocess.Popen(words, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            for line in running.stderr:
                if "KiB calls" in line:
                    running.send_signal(signal.SIGINT)
                    break
            running.stderr.read()
        self.assertEqual(running.returncode, 130)
        self.assertIn("stopped early", self.texts(tree.fromstring((self.folder / "x.html").read_text())))
        self.assertEqual([each.name for each in self.folder.iterdir()], ["x.html"])


# Texts of one drawing whose boxes lie on each other, and tables or drawings wider than the page.
LOOK = """
const out = [];
for (const svg of document.querySelectorAll('svg')) {
  const texts = [...svg.querySelectorAll('text')];
  const boxes = texts.map(each => each.getBoundingClientRect());
  const whole = svg.getBoundingClientRect();
  for (let i = 0; i < texts.length; ++i) {
    if (boxes[i].right > whole.right + 1 || boxes[i].left < whole.left - 1 || boxes[i].bottom > whole.bottom + 1) out.push('outside: ' + texts[i].textContent);
    for (let j = 0; j < i; ++j) {
      const wide = Math.min(boxes[i].right, boxes[j].right) - Math.max(boxes[i].left, boxes[j].left);
      const high = Math.min(boxes[i].bottom, boxes[j].bottom) - Math.max(boxes[i].top, boxes[j].top);
      if (wide > 1 && high > 3) out.push('overlap: ' + texts[i].textContent + ' / ' + texts[j].textContent);
    }
  }
}
if (document.documentElement.scrollWidth > innerWidth) out.push('the page is wider than the window');
const style = getComputedStyle(document.body);
document.body.dataset.seen = JSON.stringify({out, paper: style.backgroundColor, ink: style.color, drawings: document.querySelectorAll('svg').length});
"""


class Browser(Pages):
    def open(self, text: str, *words: str) -> dict[str, Any]:
        probed = self.folder / "probed.html"
        probed.write_text(text.replace("</body>", f"<script>//<![CDATA[\n{LOOK}\n//]]></script></body>"))
        ended = self.chromium("--dump-dom", *words, probed.as_uri())
        found = re.search(r'data-seen="([^"]*)"', ended.stdout)
        self.assertIsNotNone(found, ended.stderr)
        assert found is not None
        return dict(json.loads(found.group(1).replace("&quot;", '"').replace("&amp;", "&")))

    def chromium(self, *words: str) -> subprocess.CompletedProcess[str]:
        assert CHROMIUM is not None
        return subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={self.folder}/profile", *words],
                              text=True, capture_output=True, check=False, timeout=120)  # fmt: skip

    def test_no_text_lies_on_another_in_any_width(self) -> None:
        text = self.made_of(a_result())
        for width in (1400, 900, 420):
            seen = self.open(text, f"--window-size={width},900")
            self.assertEqual(seen["out"], [], width)
            self.assertGreaterEqual(seen["drawings"], 10)

    def test_it_is_light_or_dark_as_is_wished(self) -> None:
        text = self.made_of(a_result())
        brightness = [sum(map(int, re.findall(r"\d+", self.open(text, *words)[of]))) for words in ((), ("--force-dark-mode",)) for of in ("paper", "ink")]
        self.assertGreater(brightness[0], 700)
        self.assertLess(brightness[1], 150)
        self.assertLess(brightness[2], 100)
        self.assertGreater(brightness[3], 600)
        pictures = []
        for number, words in enumerate(((), ("--force-dark-mode",))):
            picture = self.folder / f"{number}.png"
            self.chromium(f"--screenshot={picture}", "--window-size=1100,1400", *words, (self.folder / "page.html").as_uri())
            pictures.append(picture.read_bytes())
            self.assertTrue(pictures[-1].startswith(b"\x89PNG"))
            self.assertGreater(len(pictures[-1]), 20_000)
        self.assertNotEqual(*pictures)


if __name__ == "__main__":
    if SELECTION == "browser" and CHROMIUM is None:
        print("skipped: there is no Chromium to open the page in (apt-get install chromium)")
        sys.exit(SKIPPED)
    os.environ.pop("PENSTOCK_PATH", None)
    unittest.main(argv=[sys.argv[0], {"page": "Page", "browser": "Browser"}[SELECTION]])
