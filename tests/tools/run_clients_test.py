#!/usr/bin/env python3
"""Tests tests/clients/run_clients.py: every client ends as passed, failed or skipped, within its time and in its own folder, and leaves one row."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

CLIENTS = Path(__file__).resolve().parents[1] / "clients"
sys.dont_write_bytecode = True
sys.path.insert(0, str(CLIENTS))

import harness  # noqa: E402
import run_clients  # noqa: E402
from harness import Client, Download, Failed, Needs, Place, Skipped, Source  # noqa: E402


def program(code: str, seconds: float = 60, needs: Needs = Needs()) -> Client:  # noqa: B008
    """A client that is one line of Python."""
    return Client("one", lambda place, client: place.run(client, [sys.executable, "-c", code]), needs, "one 1.2", seconds)


def broken(place: Place, client: Client) -> str:
    raise OSError("no such thing")


class RunClientsTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.rows = self.folder / "rows.json"
        self.penstock = self.folder / "penstock"
        self.penstock.write_text("#!/bin/sh\necho penstock 9.9\n")
        self.penstock.chmod(0o755)
        self.place = Place(self.penstock, self.folder, self.folder / "work", fetch="none")

    def run_one(self, client: Client) -> tuple[int, run_clients.Row, str]:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = run_clients.run(self.place, [client], self.rows)
        return code, run_clients.read_rows(self.rows)[client.name], output.getvalue()

    def test_each_ending_has_an_exit_code_a_result_and_a_detail(self) -> None:
        for what, client, code, result, detail in (
            ("exit code 0", program("print('first'); print('OK last')"), 0, "passed", "OK last"),
            ("exit code 3", program("print('boom'); exit(3)"), 1, "failed", "exit code 3"),
            ("a signal", program("import os; os.kill(os.getpid(), 11)"), 1, "failed", "exit code -11"),
            ("exit code 77", program("print('skipped: no moon'); exit(77)"), 77, "skipped", "no moon"),
            ("a file left behind", program("open('left', 'w')"), 1, "failed", "left in its working directory: left"),
            ("an error of the runner", Client("one", broken), 1, "failed", "the runner: OSError('no such thing')"),
            ("a missing program", program("", needs=Needs(programs=("no-such-program",))), 77, "skipped", "needs no-such-program on PATH"),
            ("another machine", program("", needs=Needs(machine="vax")), 77, "skipped", "needs a machine with vax"),
            ("a missing module", program("", needs=Needs(modules=("no_such_module",))), 77, "skipped", "needs no_such_module in this Python"),
        ):
            with self.subTest(what):
                found, row, output = self.run_one(client)
                self.assertEqual((found, row.result, row.detail), (code, result, detail))
                self.assertIn(f"| one | {result} |", output)

    def test_a_client_is_ended_after_its_time_with_all_that_it_started(self) -> None:
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        code = f"exec 3>{fifo}; sleep 600 & echo began; wait"
        client = Client("one", lambda place, client: place.run(client, ["/bin/sh", "-c", code]), seconds=1)
        found, row, output = self.run_one(client)
        self.assertEqual((found, row.result, row.detail), (1, "failed", "sh: still running after 1 s"))
        self.assertIn("began", output)
        os.set_blocking(reader, True)
        self.assertEqual(os.read(reader, 1), b"")  # waits for the end of `sleep`, which holds the other end

    def test_a_row_says_what_ran_when_and_on_which_penstock(self) -> None:
        _, row, _ = self.run_one(program("print('OK')"))
        self.assertEqual((row.version, row.penstock), ("one 1.2", "9.9"))
        self.assertRegex(row.date, r"^\d{4}-\d\d-\d\d$")

    def test_rows_of_other_clients_stay_in_the_file(self) -> None:
        self.run_one(Client("other", program("print('OK other')").run))
        self.run_one(program("exit(1)"))
        self.run_one(program("print('OK one')"))
        rows = run_clients.read_rows(self.rows)
        self.assertEqual({name: row.result for name, row in rows.items()}, {"other": "passed", "one": "passed"})
        self.assertEqual(len(run_clients.table(rows.values()).splitlines()), 4)

    def test_a_bar_in_a_detail_does_not_end_a_cell(self) -> None:
        _, row, _ = self.run_one(program("print('a | b')"))
        self.assertIn("| a \\| b |", run_clients.table([row]))

    def test_what_was_not_fetched_is_a_reason_to_skip_and_says_how_to_fetch_it(self) -> None:
        download = Download("file:///nowhere/one-1.tar.gz", "0" * 64)
        wheels = Needs(bare=("no-such-distribution==1",), large=True)
        for what, run, needs in (
            ("a file", lambda place, client: str(place.file(client, download)), Needs(archives=(download,))),
            ("wheels", lambda place, client: str(place.python(client)), wheels),
            ("one wheel", lambda place, client: str(place.unpacked(client, "no-such-distribution==1")), wheels),
        ):
            with self.subTest(what):
                code, row, _ = self.run_one(Client("one", run, needs))
                self.assertEqual((code, row.result), (77, "skipped"))
                self.assertIn("run_clients.py fetch --only one", row.detail)

    def test_run_from_a_folder_uses_nothing_else(self) -> None:
        self.place.fetched = self.folder / "fetched"
        self.place.fetch = "all"
        self.assertFalse(self.place.may_fetch(Needs()))

    def archive(self) -> Download:
        (self.folder / "one-1").mkdir()
        (self.folder / "one-1" / "a.c").write_text("int main;")
        path = self.folder / "one-1.tar.gz"
        subprocess.run(["tar", "-C", self.folder, "-czf", path, "one-1"], check=True)
        return Download(path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest())

    def test_a_download_is_fetched_once_and_unpacked_without_its_outer_folder(self) -> None:
        download = self.archive()
        client = Client("one", broken, Needs(archives=(download,)))
        into = self.folder / "into"
        self.assertEqual([file.name for file in harness.fetch_client(self.place, client, into, "")], ["one-1.tar.gz"])
        self.assertEqual(harness.fetch_client(self.place, client, into, ""), [])
        self.place.fetched = into
        tree = self.place.sources(client, download, self.place.folder(client) / "tree")
        self.assertEqual((tree / "a.c").read_text(), "int main;")

    def test_a_download_with_another_checksum_is_refused_and_not_kept(self) -> None:
        wrong = Download(self.archive().url, "0" * 64)
        with self.assertRaisesRegex(Failed, "SHA-256"):
            harness.fetch_file(wrong, self.folder / "into" / "one")
        self.assertEqual(list((self.folder / "into").iterdir()), [])

    def test_a_source_is_the_named_paths_of_one_commit(self) -> None:
        repository = self.folder / "owner" / "one"
        (repository / "kept").mkdir(parents=True)
        (repository / "kept" / "a.c").write_text("first")
        (repository / "b.c").write_text("")
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "a"), ("config", "uploadpack.allowFilter", "true")):
            subprocess.run(["git", *words], cwd=repository, check=True)
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, check=True, capture_output=True, text=True).stdout.strip()
        (repository / "kept" / "a.c").write_text("second")
        subprocess.run(["git", *identity, "commit", "-qam", "b"], cwd=repository, check=True)
        source = Source("owner/one", commit, ("kept",))
        instead = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.file://{self.folder}/.insteadOf", "GIT_CONFIG_VALUE_0": "https://github.com/"}
        with unittest.mock.patch.dict(os.environ, instead):
            harness.fetch_file(source, self.folder / "files" / source.file_name)
            with self.assertRaisesRegex(Skipped, "cannot fetch https://github.com/owner/two"):
                harness.fetch_file(Source("owner/two", commit), self.folder / "files" / "two")
        self.place.fetched = self.folder
        client = Client("one", broken, Needs(archives=(source,)))
        tree = self.place.sources(client, source, self.place.folder(client) / "tree")
        self.assertEqual([str(file.relative_to(tree)) for file in tree.rglob("*") if file.is_file()], ["kept/a.c"])
        self.assertEqual((tree / "kept" / "a.c").read_text(), "first")

    @unittest.skipUnless(shutil.which("cc"), "no C compiler")
    def test_the_cuda_runtime_on_host_memory_copies_and_frees_only_what_it_allocated(self) -> None:
        with unittest.mock.patch.object(harness, "why_no_gpu", return_value="none"):
            folder = self.place.cuda_path(Client("one", broken))
        cuda = ctypes.CDLL(f"{folder}/libcudart.so.13")
        memory, content = ctypes.c_void_p(), ctypes.create_string_buffer(b"content", 7)
        self.assertEqual(cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(7)), 0)
        self.assertEqual(cuda.cudaMemcpy(memory, content, ctypes.c_size_t(7), 1), 0)
        assert memory.value is not None
        self.assertEqual(ctypes.string_at(memory.value, 7), b"content")
        self.assertEqual([cuda.cudaFree(content), cuda.cudaFree(memory), cuda.cudaFree(memory), cuda.cudaFree(None)], [1, 0, 1, 0])

    def test_clients_have_names_of_their_own_and_pinned_archives(self) -> None:
        names = [client.name for client in run_clients.CLIENTS]
        self.assertEqual(sorted(names), sorted(set(names)))
        for client in run_clients.CLIENTS:
            for archive in client.needs.archives:
                if isinstance(archive, Source):
                    self.assertRegex(archive.commit, r"^[0-9a-f]{40}$|^v\d", client.name)
                else:
                    self.assertRegex(archive.sha256, r"^[0-9a-f]{64}$", client.name)


if __name__ == "__main__":
    unittest.main()
