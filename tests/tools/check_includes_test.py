#!/usr/bin/env python3
"""Tests tools/check_includes.py on small trees, each with one include that it must reject or accept."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "check_includes.py"


class check_includes(unittest.TestCase):
    def run_on(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "include" / "penstock").mkdir(parents=True)
            for name in ("src/base/ring.hpp", "src/sys/kernel.hpp", "src/staging/pool.hpp", "src/core/engine_core.hpp"):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text("#pragma once\n")
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            done = subprocess.run([sys.executable, str(SCRIPT), str(root)], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def assert_refused(self, file, text, word):
        code, output = self.run_on({file: text})
        self.assertEqual(code, 1, output)
        self.assertIn(file, output)
        self.assertIn(word, output)

    def assert_accepted(self, file, text):
        code, output = self.run_on({file: text})
        self.assertEqual(code, 0, output)

    def test_an_arrow_that_points_up_is_refused_with_its_line(self):
        self.assert_refused("src/sys/file.cc", '#include <vector>\n#include "staging/pool.hpp"\n', "src/sys/file.cc:2:")

    def test_an_arrow_that_points_down_is_accepted(self):
        self.assert_accepted("src/staging/pool.cc", '#include "sys/kernel.hpp"\n#include "base/ring.hpp"\n')

    def test_a_missing_header_of_a_higher_room_is_refused_too(self):
        self.assert_refused("src/base/ring.cc", '#include "path/later.hpp"\n', "path")

    def test_angle_brackets_do_not_hide_an_arrow(self):
        self.assert_refused("src/base/ring.cc", "#include <core/engine_core.hpp>\n", "core")

    def test_spaces_do_not_hide_an_arrow(self):
        self.assert_refused("src/base/ring.cc", '  #  include "sys/kernel.hpp"\n', "sys")

    def test_a_header_of_the_system_is_not_taken_for_the_room_sys(self):
        self.assert_accepted("src/base/ring.cc", "#include <sys/stat.h>\n")

    def test_a_path_through_the_parent_folder_is_refused(self):
        self.assert_refused("src/sys/file.cc", '#include "../core/engine_core.hpp"\n', "write the path from")

    def test_files_of_a_room_that_use_each_other_are_refused(self):
        code, output = self.run_on(
            {
                "src/core/file.hpp": "",
                "src/core/file.cc": '#include "core/file.hpp"\n#include "core/house.hpp"\n',
                "src/core/house.hpp": '#include "core/room.hpp"\n',
                "src/core/room.hpp": '#include "core/file.hpp"\n',
            }
        )
        self.assertEqual(code, 1, output)
        self.assertIn("core/file -> core/house -> core/room -> core/file", output)

    def test_files_of_a_room_that_stand_on_each_other_are_accepted(self):
        code, output = self.run_on(
            {"src/core/room.hpp": "", "src/core/house.hpp": '#include "core/room.hpp"\n', "src/core/house.cc": '#include "core/house.hpp"\n'}
        )
        self.assertEqual(code, 0, output)

    def test_a_neighbour_named_without_its_room_is_accepted(self):
        self.assert_accepted("src/sys/file.cc", '#include "kernel.hpp"\n')

    def test_every_room_may_use_the_floor(self):
        for header in ("status", "options", "version"):
            self.assert_accepted("src/base/ring.cc", f'#include "penstock/{header}.hpp"\n')

    def test_the_engine_is_for_core_and_the_faces(self):
        self.assert_accepted("src/core/engine_core.cc", '#include "penstock/engine.hpp"\n')
        self.assert_accepted("src/cli/files/read.cc", '#include <penstock/penstock.hpp>\n')
        self.assert_refused("src/path/posix.cc", '#include "penstock/engine.hpp"\n', "below core")

    def test_faces_use_the_public_api_only(self):
        for face in ("src/cli/files/read.cc", "src/cufile/handle.cc", "python/module.cc", "examples/read.cc"):
            self.assert_refused(face, '#include "sys/kernel.hpp"\n', "may not use sys")
        self.assert_accepted("src/cli/files/digest.cc", '#include "sys/secret.hpp"\n')

    def test_the_command_may_use_the_benchmarks_and_other_faces_may_not(self):
        self.assert_accepted("src/cli/measure/bench.cc", '#include "bench/meter.hpp"\n')
        self.assert_refused("src/cufile/handle.cc", '#include "bench/meter.hpp"\n', "bench")

    def test_a_family_of_commands_uses_what_is_common_and_no_other_family(self):
        for folder in ("files", "common", "shell"):
            self.assert_accepted(f"src/cli/{folder}/read.cc", '#include "cli/common/say.hpp"\n')
        self.assert_accepted("src/cli/files/read.cc", '#include "cli/files/digest.hpp"\n')
        self.assert_refused("src/cli/files/read.cc", '#include "cli/io/io_plan.hpp"\n', "cli/files may not use cli/io")
        self.assert_refused("src/cli/common/say.cc", '#include "cli/shell/grammar.hpp"\n', "cli/common may not use cli/shell")

    def test_folders_of_core_may_use_those_below_them(self):
        self.assert_accepted("src/core/stream/queue.cc", '#include "core/request/request.hpp"\n')
        self.assert_accepted("src/core/cache/policy.cc", '#include "core/planner.hpp"\n')
        self.assert_refused("src/core/cache/policy.cc", '#include "core/stream/queue.hpp"\n', "core/stream, which stands above it")

    def test_folders_of_remote_may_use_those_below_them(self):
        self.assert_accepted("src/remote/s3/upload.cc", '#include "remote/object/http.hpp"\n')
        self.assert_refused("src/remote/net/line.cc", '#include "remote/object/http.hpp"\n', "remote/object, which stands above it")

    def test_a_command_beside_the_families_is_refused(self):
        self.assert_refused("src/cli/read.cc", '#include <vector>\n', "the folder of its family")

    def test_files_of_two_folders_that_use_each_other_are_refused(self):
        code, output = self.run_on(
            {"src/core/wing/room.hpp": '#include "core/hall.hpp"\n', "src/core/hall.hpp": '#include "core/wing/room.hpp"\n'}
        )
        self.assertEqual(code, 1, output)
        self.assertIn("in a circle", output)

    def test_public_headers_use_public_headers_only(self):
        self.assert_accepted("include/penstock/engine.hpp", '#include "penstock/status.hpp"\n')
        self.assert_refused("include/penstock/engine.hpp", '#include "base/ring.hpp"\n', "base")

    def test_tests_and_benchmarks_may_look_anywhere(self):
        self.assert_accepted("tests/sys/file_test.cc", '#include "core/engine_core.hpp"\n#include "support/files.hpp"\n')
        self.assert_accepted("bench/meter.cc", '#include "sys/kernel.hpp"\n#include "penstock/engine.hpp"\n')

    def test_a_room_that_is_not_in_the_table_is_refused(self):
        self.assert_refused("src/attic/box.cc", '#include "base/ring.hpp"\n', "no room of the house")

    def test_a_folder_that_is_not_the_repository_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, str(SCRIPT), folder], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main()
