"""Tests that tools/check_prose reports the expected lines in each kind of file, and that its counts only fall."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import tool_module

ROOT = Path(__file__).resolve().parents[2]
prose = tool_module.load(ROOT / "tools/check_prose")

# A new pattern has a line here, with a sentence that it finds and one with the alternative.
SENTENCES = (
    ("Ten files, of which two are empty.", "Ten files. Two of them are empty."),
    ("The calls by which it reads.", "It reads with these calls."),
    ("It is of a type that NumPy has not.", "NumPy does not support its type, and has not loaded it."),
    ("The key is none that an object may have.", "An object cannot have this key. If there is none, it fails."),
    ("What could not start is an error.", "What does it cost?"),
    ("Who waits for it sleeps.", "A thread that waits for it sleeps."),
    ("Of a copy, links are followed.", "In a copy, links are followed. Of course they are."),
    ("Where memory runs out, it fails.", "If memory runs out, it fails. Where to look:"),
    ("It fails where there is no memory.", "It fails if there is no memory."),
    ("Those who wait are woken.", "Waiting threads are woken."),
    ("The log tells how many.", "The log says how many."),
    ("It hears of the end.", "It is notified of the end."),
    ("As a rule it is quick.", "It is usually quick."),
    ("Writes likewise.", "Writes do the same."),
    ("Besides, it is quick.", "It is also quick. It stands beside it."),
    ("The bytes behind it.", "The bytes after it. Servers behind a proxy. Nothing is left behind."),
    ("Reads go by io_uring.", "Reads use io_uring."),
    ("Build it anew.", "Build it again."),
    ("It ends amid a read.", "It ends during a read."),
    ("It is read all the same.", "It is read anyway."),
    ("It needs nothing but Python.", "It needs only Python."),
    ("Skipped for want of a GPU.", "Skipped: there is no GPU."),
    ("The file is to be closed.", "Close the file."),
    ("The package cannot be had.", "The package is not available."),
    ("It uses all cores that there are.", "It uses all cores."),
    ("The call wants a path.", "The call needs a path."),
    ("The process has gone.", "The process has exited."),
    ("It reads what is asked.", "It reads the requested range."),
    ("The server does not answer any more. No not any more.", "The server no longer answers."),
    ("Print it so many times.", "Print it N times."),
)

KINDS = (
    ("page", "# Of which\n\nIt is `of which`.\n\n```sh\nof which\n```\n\nTwo of\nwhich fail.\n", [9]),
    ("page", "| a | b |\n|---|---|\n| x | What comes next fails. |\n", [3]),
    ("code", '// of which\nint x = 1;\nsay("Ten files, of "\n    "which two");\nput(\'"\', "a likewise b");\n', [3, 5]),
    ("header", "#pragma once\n// Ten files, of\n// which two.\nint likewise;\n", [2]),
    (
        "module",
        '"""Ten files,\nof which two."""\ndef _hidden():\n    """It goes by a b."""\ndef shown():\n    raise X(f"{y} is likewise so")\n',
        [2, 6],
    ),
)


class Patterns(unittest.TestCase):
    def test_each_finds_its_sentence_and_spares_the_plain_one(self) -> None:
        for hard, plain in SENTENCES:
            self.assertTrue(prose.hits_of("x", iter([(1, hard)])), hard)
            self.assertEqual(prose.hits_of("x", iter([(1, plain)])), [], plain)

    def test_every_pattern_has_a_sentence(self) -> None:
        unused = [hard.pattern for hard, _ in prose.HARD if not any(hard.search(sentence) for sentence, _ in SENTENCES)]
        self.assertEqual(unused, [])

    def test_each_kind_of_file_is_read_and_the_line_is_right(self) -> None:
        for kind, content, lines in KINDS:
            path = ROOT / ("python/penstock/x.py" if kind == "module" else "x")
            self.assertEqual([hit.line for hit in prose.hits_of("x", prose.texts_of(path, kind, content))], lines, kind)


class Counts(unittest.TestCase):
    """A count may fall. A file without one may have none."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="penstock-prose-", dir="/var/tmp")
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "tools").mkdir()
        patch = unittest.mock.patch.object(prose, "ROOT", self.root)
        patch.start()
        self.addCleanup(patch.stop)

    def run_with(self, text: str, count: int | None, *arguments: str) -> tuple[int, str, dict[str, int]]:
        (self.root / "A.md").write_text(text)
        counts = self.root / prose.COUNTS
        counts.write_text(json.dumps({} if count is None else {"A.md": count}))
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = prose.main(list(arguments))
        return status, output.getvalue(), json.loads(counts.read_text())

    def test_more_than_allowed_fails_and_names_file_line_and_alternative(self) -> None:
        status, output, _ = self.run_with("Fine.\n\nIt is read likewise.\n", None)
        self.assertEqual(status, 1)
        self.assertIn('A.md:3: "likewise": also', output)

    def test_as_many_as_allowed_passes(self) -> None:
        self.assertEqual(self.run_with("It is read likewise.\n", 1)[0], 0)

    def test_fewer_than_allowed_passes_and_asks_for_the_lower_count(self) -> None:
        status, output, _ = self.run_with("It is read.\n", 1)
        self.assertEqual(status, 0)
        self.assertIn("tools/check_prose --update", output)

    def test_update_lowers_and_never_raises(self) -> None:
        self.assertEqual(self.run_with("It is read likewise.\n", 3, "--update")[2], {"A.md": 1})
        self.assertEqual(self.run_with("Likewise, it is read likewise.\n", 1, "--update")[2], {"A.md": 1})
        self.assertEqual(self.run_with("It is read.\n", 1, "--update")[2], {})

    def test_accept_writes_what_is_there(self) -> None:
        self.assertEqual(self.run_with("Likewise, it is read likewise.\n", None, "--accept")[2], {"A.md": 2})


if __name__ == "__main__":
    unittest.main()
