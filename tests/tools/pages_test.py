"""Tests the manual pages and completions that the command generates from its options: every option is in all of them, and groff and the shells accept them.

Usage: pages_test.py PENSTOCK
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PENSTOCK = str(Path(sys.argv.pop(1)).resolve())
SHELLS = ("bash", "zsh", "fish")


def penstock(*arguments: str) -> str:
    return subprocess.run([PENSTOCK, *arguments], check=True, capture_output=True, text=True).stdout


def commands() -> list[str]:
    return re.findall(r"^  ([a-z][a-z-]*)  ", penstock("help"), re.MULTILINE)


def options(command: str) -> list[str]:
    """As `penstock help COMMAND` lists them."""
    helped = penstock("help", *([command] if command else [])).split("Options:\n", 1)[1].split("\n\n")[0]
    heads = re.findall(r"^  (-[^\s,]+(?:, -[^\s,]+)*)", helped, re.MULTILINE)
    return [each for head in heads for each in head.split(", ")]


def plain(roff: str) -> str:
    return re.sub(r"\\f[BIR]", "", roff).replace("\\-", "-")


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(tempfile.mkdtemp(prefix="penstock-pages-"))
        penstock("help", "--write-pages", str(cls.folder / "share"))
        cls.share = cls.folder / "share"

    @classmethod
    def tearDownClass(cls) -> None:
        shutil.rmtree(cls.folder)

    def test_every_command_has_a_page_with_all_of_its_options(self) -> None:
        self.assertGreaterEqual(len(commands()), 9)
        for command in ["", *commands()]:
            page = self.share / "man/man1" / (f"penstock-{command}.1" if command else "penstock.1")
            text = page.read_text()
            self.assertEqual(text, penstock("help", "--man", *([command] if command else [])))
            self.assertTrue(options(command), command)
            for option in options(command):
                self.assertRegex(plain(text), rf"(?m)^(-\w, )*{re.escape(option)}(?![\w-])", f"{page.name} lacks {option}")
        for command in commands():
            self.assertRegex(plain((self.share / "man/man1/penstock.1").read_text()), rf"(?m)^{command}$")

    def test_groff_has_nothing_to_complain_of(self) -> None:
        if not shutil.which("groff"):
            self.skipTest("groff is not installed")
        for page in sorted((self.share / "man/man1").glob("*.1")):
            told = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8", str(page)], capture_output=True, text=True, check=True)
            self.assertEqual(told.stderr, "", page.name)

    def test_every_command_and_option_is_in_every_completion(self) -> None:
        for shell in SHELLS:
            text = penstock("completion", shell)
            for command in commands():
                self.assertRegex(text, rf"(?<![\w-]){command}(?![\w-])", f"{shell}: {command}")
                for option in options(command):
                    spelled = option if shell != "fish" else f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
                    self.assertRegex(text, rf"(?<![\w-]){re.escape(spelled)}(?![\w-])", f"{shell}: {command} {option}")
        self.assertNotIn("--write-pages", text)
        self.assertFalse([line for line in text.splitlines() if "__fish_seen_subcommand_from pipe-bench" in line and "serve" in line])

    def test_the_files_are_what_the_command_prints(self) -> None:
        for path, shell in (("bash-completion/completions/penstock", "bash"), ("zsh/site-functions/_penstock", "zsh"), ("fish/vendor_completions.d/penstock.fish", "fish")):
            self.assertEqual((self.share / path).read_text(), penstock("completion", shell))

    def test_the_shells_can_read_them(self) -> None:
        for shell in SHELLS:
            with self.subTest(shell):
                if not shutil.which(shell):
                    self.skipTest(f"{shell} is not installed")
                script = self.folder / f"completion.{shell}"
                script.write_text(penstock("completion", shell))
                told = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
                self.assertEqual((told.returncode, told.stderr), (0, ""))

    def completed(self, *words: str) -> list[str]:
        """What bash makes of the words with the cursor behind the last."""
        listed = " ".join(f"'{word}'" for word in words)
        script = f'source "{self.share}/bash-completion/completions/penstock"; COMP_WORDS=({listed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _penstock; printf "%s\\n" "${{COMPREPLY[@]}}"'
        told = subprocess.run(["bash", "--norc", "-c", script], cwd=self.folder, capture_output=True, text=True, check=True)
        self.assertEqual(told.stderr, "")
        return told.stdout.split("\n")[:-1]

    def test_bash_completes_commands_options_words_and_files(self) -> None:
        (self.folder / "model one.bin").touch()
        self.assertEqual(self.completed("penstock", "re"), ["read"])
        self.assertEqual(self.completed("penstock", ""), commands())
        self.assertEqual(self.completed("penstock", "--ver"), ["--version"])
        self.assertEqual(self.completed("penstock", "read", "--ver"), ["--verify"])
        self.assertEqual(self.completed("penstock", "read", "--path", "st"), ["staged"])
        self.assertEqual(self.completed("penstock", "read", "--path", "=", "st"), ["staged"])
        self.assertEqual(self.completed("penstock", "read", "--prefer", "="), ["automatic", "speed", "cpu"])
        self.assertEqual(self.completed("penstock", "read", "mod"), ["model one.bin"])
        self.assertEqual(self.completed("penstock", "read", "--verify", "mod"), ["model one.bin"])
        self.assertEqual(self.completed("penstock", "check", "--cufile-json", "mod"), ["model one.bin"])
        self.assertEqual(self.completed("penstock", "read", "--offset", "mod"), [""])
        self.assertEqual(self.completed("penstock", "help", "pi"), ["pipe-bench"])
        self.assertEqual(self.completed("penstock", "completion", "z"), ["zsh"])
        self.assertIn("bash", self.completed("penstock", "run", "--", "bas"))

    def test_what_cannot_be_is_refused(self) -> None:
        told = subprocess.run([PENSTOCK, "completion", "csh"], capture_output=True, text=True, check=False)
        self.assertEqual(told.returncode, 2)
        self.assertIn('"csh" is not one of bash, zsh, fish', told.stderr)
        told = subprocess.run([PENSTOCK, "help", "--man", "raed"], capture_output=True, text=True, check=False)
        self.assertEqual(told.returncode, 2)
        self.assertIn('unknown command "raed"; did you mean read?', told.stderr)
        (self.folder / "file").touch()
        told = subprocess.run([PENSTOCK, "help", "--write-pages", str(self.folder / "file/below")], capture_output=True, text=True, check=False)
        self.assertEqual(told.returncode, 1)
        self.assertIn("file/below/man/man1: Not a directory (os 20)", told.stderr)
        (self.folder / "taken/man/man1/penstock.1").mkdir(parents=True)
        told = subprocess.run([PENSTOCK, "help", "--write-pages", str(self.folder / "taken")], capture_output=True, text=True, check=False)
        self.assertEqual(told.returncode, 1)
        self.assertIn("penstock.1: Is a directory (os 21)", told.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
