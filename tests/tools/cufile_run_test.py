#!/usr/bin/env python3
"""Tests that libpenstock_audit.so loads Penstock's libcufile for every caller except Penstock itself, which gets NVIDIA's.

The libraries are stand-ins that the test builds: cuFileGetVersion returns 1190 in "theirs" and 1170 in "ours". With --penstock, also tests the
command `penstock run` and the real libcufile.so.0.

Usage: cufile_run_test.py --audit LIBPENSTOCK_AUDIT [--cc CC] [--penstock PENSTOCK]
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

OURS, THEIRS = 1170, 1190
SKIPPED = 77
ARGUMENTS = None

LIBRARY_C = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#ifdef VERSION
int cuFileGetVersion(int* version) { *version = VERSION; return 0; }
#endif
/* As the direct path of Penstock does: opens a library by its full name, from within this one. */
int open_another(const char* name) {
  int version = 0;
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  int (*get)(int*) = library ? (int (*)(int*))dlsym(library, "cuFileGetVersion") : NULL;
  if (get) get(&version);
  return version;
}
"""

USER_C = """
int cuFileGetVersion(int* version);
int user_version(void) { int version = 0; cuFileGetVersion(&version); return version; }
"""

# Prints a number for each argument: OPEN:name, the version that this library tells; NEEDS:name, the version that a library linked
# to libcufile sees; FROM:asker:name, what the library asker gets; SAME:a:b, whether both names are one library; CROWD:a:b, how many of
# 64 openings by 8 threads got version 1170.
OPENER_C = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int version_of(const char* name) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) { fprintf(stderr, "%s\\n", dlerror()); return -1; }
  int (*get)(int*) = (int (*)(int*))dlsym(library, "cuFileGetVersion");
  int version = 0;
  if (get) get(&version);
  return version;
}

static char* names[2];
static int ours;
static void* open_often(void* unused) {
  for (int i = 0; i < 8; ++i) if (version_of(names[i % 2]) == 1170) __sync_fetch_and_add(&ours, 1);
  return unused;
}

static int crowd(void) {
  pthread_t threads[8];
  for (int i = 0; i < 8; ++i) pthread_create(&threads[i], NULL, open_often, NULL);
  for (int i = 0; i < 8; ++i) pthread_join(threads[i], NULL);
  return ours;
}

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const char* what = strtok(argv[i], ":");
    char* first = strtok(NULL, ":");
    char* second = strtok(NULL, ":");
    int answer = -1;
    if (!strcmp(what, "OPEN")) answer = version_of(first);
    if (!strcmp(what, "SAME")) answer = dlopen(first, RTLD_NOW) == dlopen(second, RTLD_NOW);
    if (!strcmp(what, "CROWD")) { names[0] = first; names[1] = second; answer = crowd(); }
    if (!strcmp(what, "NEEDS")) {
      void* library = dlopen(first, RTLD_NOW);
      if (library) answer = ((int (*)(void))dlsym(library, "user_version"))();
    }
    if (!strcmp(what, "FROM")) {
      void* library = dlopen(first, RTLD_NOW);
      if (library) answer = ((int (*)(const char*))dlsym(library, "open_another"))(second);
    }
    printf("%d\\n", answer);
  }
  return 0;
}
"""

LINKED_C = """
#include <stdio.h>
int cuFileGetVersion(int* version);
int main(void) { int version = 0; cuFileGetVersion(&version); printf("%d\\n", version); return 0; }
"""

# A library whose thread-local storage must lie in the static block, and programs that are linked to it or open it.
TLS_C = """
static __thread char room[BYTES] __attribute__((tls_model("initial-exec")));
int touch(void) { for (int i = 0; i < BYTES; ++i) room[i] = 1; return room[BYTES - 1]; }
"""

TLS_LINKED_C = """
#include <stdio.h>
int touch(void);
int main(void) { printf("%d\\n", touch()); return 0; }
"""

TLS_OPENER_C = """
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char** argv) {
  void* library = dlopen(argv[argc - 1], RTLD_NOW);
  if (!library) { fprintf(stderr, "%s\\n", dlerror()); return 1; }
  printf("%d\\n", ((int (*)(void))dlsym(library, "touch"))());
  return 0;
}
"""


class Stage:
    """A folder with the stand-ins: ours/ (with the audit module), alone/ (the module without a library), theirs/, and programs."""

    def __init__(self, root, cc, audit):
        self.root, self.cc = root, cc
        for name in ("ours", "alone", "theirs"):
            (root / name).mkdir()
        for name, text in (("library.c", LIBRARY_C), ("user.c", USER_C), ("opener.c", OPENER_C), ("linked.c", LINKED_C)):
            (root / name).write_text(text)
        self.ours = self.library("ours/libcufile.so.0", "libcufile.so.0", OURS)
        self.theirs = self.library("theirs/libcufile.so.0", "libcufile.so.0", THEIRS)
        for name in ("libcufile.so", "libcufile.so.1.19.0"):
            (root / "theirs" / name).symlink_to("libcufile.so.0")
        for name in ("libcufile_rdma.so.1", "libcufile.so.0.backup", "libmycufile.so"):
            self.library(f"theirs/{name}", name, THEIRS)
        self.penstock = self.library("libpenstock.so.0", "libpenstock.so.0", None)
        self.stranger = self.library("libstranger.so", "libstranger.so", None)
        self.user = root / "libuser.so"
        self.build("-shared", "-fPIC", root / "user.c", self.theirs, f"-Wl,-rpath,{root}/theirs", "-o", self.user)
        self.opener = root / "opener"
        self.build(root / "opener.c", "-pthread", "-ldl", "-o", self.opener)
        self.linked = root / "linked"
        self.build(root / "linked.c", self.theirs, f"-Wl,-rpath,{root}/theirs", "-o", self.linked)
        for bytes_wanted in (2048, 4096, 24 << 10):
            (root / "tls.c").write_text(TLS_C.replace("BYTES", str(bytes_wanted)))
            (root / "tls_linked.c").write_text(TLS_LINKED_C)
            (root / "tls_opener.c").write_text(TLS_OPENER_C)
            library = root / f"libtls{bytes_wanted}.so"
            self.build("-shared", "-fPIC", root / "tls.c", f"-Wl,-soname,{library.name}", "-o", library)
            self.build(root / "tls_linked.c", library, f"-Wl,-rpath,{root}", "-o", root / f"tls_linked{bytes_wanted}")
        self.tls_opener = root / "tls_opener"
        self.build(root / "tls_opener.c", "-ldl", "-o", self.tls_opener)
        self.audit = shutil.copy(audit, root / "ours")
        self.lonely_audit = shutil.copy(audit, root / "alone")

    def build(self, *words):
        subprocess.run([self.cc, *map(str, words)], check=True)

    def library(self, name, soname, version):
        define = [f"-DVERSION={version}"] if version else []
        self.build("-shared", "-fPIC", *define, self.root / "library.c", f"-Wl,-soname,{soname}", "-ldl", "-o", self.root / name)
        return self.root / name


class AuditTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.stage = Stage(pathlib.Path(cls.folder.name).resolve(), ARGUMENTS.cc, ARGUMENTS.audit)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def answers(self, *requests, command=None, audit=True, **environment):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
        if audit:
            variables["LD_AUDIT"] = str(self.stage.audit if audit is True else audit)
        variables.update(environment)
        words = [str(word) for word in (command or [self.stage.opener])] + [str(request) for request in requests]
        done = subprocess.run(words, capture_output=True, text=True, env=variables, cwd=self.stage.root)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [int(line) for line in done.stdout.split()]

    def answer(self, request, **options):
        return self.answers(request, **options)[0]

    def test_without_the_module_an_absolute_path_gets_theirs(self):
        self.assertEqual(self.answer(f"OPEN:{self.stage.theirs}", audit=False), THEIRS)
        self.assertEqual(self.answer(f"OPEN:{self.stage.theirs}", audit=False, LD_PRELOAD=str(self.stage.ours)), THEIRS)

    def test_bare_names_get_ours(self):
        for name in ("libcufile.so.0", "libcufile.so", "libcufile.so.1", "libcufile.so.1.19.0"):
            self.assertEqual(self.answer(f"OPEN:{name}", LD_LIBRARY_PATH=f"{self.stage.root}/theirs"), OURS, name)

    def test_paths_get_ours(self):
        for name in ("libcufile.so.0", "libcufile.so", "libcufile.so.1.19.0"):
            self.assertEqual(self.answer(f"OPEN:{self.stage.root}/theirs/{name}"), OURS, name)
            self.assertEqual(self.answer(f"OPEN:theirs/{name}"), OURS, name)
            self.assertEqual(self.answer(f"OPEN:./theirs/../theirs/{name}"), OURS, name)

    def test_a_path_that_does_not_exist_gets_ours(self):
        self.assertEqual(self.answer("OPEN:/no/such/place/libcufile.so.0"), OURS)

    def test_a_library_linked_to_libcufile_gets_ours(self):
        self.assertEqual(self.answer(f"NEEDS:{self.stage.user}"), OURS)
        self.assertEqual(self.answer(f"NEEDS:{self.stage.user}", audit=False), THEIRS)

    def test_a_program_linked_to_libcufile_gets_ours(self):
        self.assertEqual(self.answers(command=[self.stage.linked]), [OURS])
        self.assertEqual(self.answers(command=[self.stage.linked], audit=False), [THEIRS])

    def test_all_names_are_one_library(self):
        request = f"SAME:libcufile.so.0:{self.stage.theirs}"
        self.assertEqual(self.answer(request), 1)
        self.assertEqual(self.answer(request, LD_PRELOAD=str(self.stage.ours)), 1)

    def test_other_libraries_are_left_alone(self):
        for name in ("libcufile_rdma.so.1", "libcufile.so.0.backup", "libmycufile.so"):
            self.assertEqual(self.answer(f"OPEN:{self.stage.root}/theirs/{name}"), THEIRS, name)

    def test_penstock_gets_what_it_asks_for(self):
        for asker in (self.stage.penstock, self.stage.ours):
            self.assertEqual(self.answer(f"FROM:{asker}:{self.stage.theirs}"), THEIRS, asker)
            self.assertEqual(self.answer(f"FROM:{asker}:{self.stage.theirs}", LD_PRELOAD=str(self.stage.ours)), THEIRS, asker)
        self.assertEqual(self.answer(f"FROM:{self.stage.stranger}:{self.stage.theirs}"), OURS)

    def test_penstock_and_the_program_get_their_own_in_either_order(self):
        # The linker knows a loaded library by each name it was asked for, before it asks the module. Penstock therefore spells the
        # path as no program does.
        penstock = f"FROM:{self.stage.penstock}:/.{self.stage.theirs}"
        program = (f"OPEN:{self.stage.theirs}", "OPEN:libcufile.so.0")
        for preload in ("", str(self.stage.ours)):
            self.assertEqual(self.answers(*program, penstock, *program, LD_PRELOAD=preload), [OURS, OURS, THEIRS, OURS, OURS])
        self.assertEqual(self.answers(penstock, *program, penstock, LD_PRELOAD=str(self.stage.ours)), [THEIRS, OURS, OURS, THEIRS])

    def test_many_threads_get_ours(self):
        self.assertEqual(self.answer(f"CROWD:libcufile.so:{self.stage.theirs}"), 64)

    def test_a_module_named_by_a_relative_path_or_through_a_link(self):
        link = self.stage.root / "link_to_audit.so"
        link.symlink_to(self.stage.audit)
        for module in ("ours/" + os.path.basename(self.stage.audit), link):
            self.assertEqual(self.answer(f"OPEN:{self.stage.theirs}", audit=module), OURS)

    def test_without_a_library_beside_the_module_nothing_changes(self):
        self.assertEqual(self.answer(f"OPEN:{self.stage.theirs}", audit=self.stage.lonely_audit), THEIRS)

    def test_the_module_needs_the_c_library_only(self):
        listed = subprocess.run(["readelf", "--dynamic", "--wide", str(self.stage.audit)], capture_output=True, text=True, check=True).stdout
        needed = [line.split("[")[1].rstrip("]") for line in listed.splitlines() if "(NEEDED)" in line]
        self.assertEqual([name for name in needed if not name.startswith(("libc.so", "ld-linux", "libdl.so"))], [])

    def test_penstock_run_gives_the_real_library_to_all_names(self):
        if not ARGUMENTS.penstock:
            self.skipTest("no --penstock")
        requests = ("OPEN:libcufile.so.0", "OPEN:libcufile.so", f"OPEN:{self.stage.theirs}", f"NEEDS:{self.stage.user}")
        command = [ARGUMENTS.penstock, "run", "--", self.stage.opener]
        self.assertEqual(self.answers(*requests, command=command, audit=False), [OURS] * len(requests))
        command = [ARGUMENTS.penstock, "run", "--no-audit", "--", self.stage.opener]
        self.assertEqual(self.answers("OPEN:libcufile.so.0", f"OPEN:{self.stage.theirs}", command=command, audit=False), [OURS, THEIRS])

    def run_command(self, *words, audit_only=False, **environment):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("LD_") and name != "GLIBC_TUNABLES"}
        if audit_only:
            variables["LD_AUDIT"] = str(self.stage.audit)
        variables.update(environment)
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, env=variables, cwd=self.stage.root)

    def test_penstock_run_starts_programs_that_want_static_tls(self):
        if not ARGUMENTS.penstock:
            self.skipTest("no --penstock")
        kept_out = 0
        for bytes_wanted in (2048, 4096, 24 << 10):
            linked = self.stage.root / f"tls_linked{bytes_wanted}"
            library = self.stage.root / f"libtls{bytes_wanted}.so"
            kept_out += self.run_command(linked, audit_only=True).returncode != 0
            for command in ([linked], [self.stage.tls_opener, library], ["sh", "-c", f"{linked}"]):
                done = self.run_command(ARGUMENTS.penstock, "run", "--", *command)
                self.assertEqual((done.returncode, done.stdout), (0, "1\n"), f"{command}: {done.stderr}")
        if kept_out == 0:
            print("note: this C library starts all of them under an audit module anyway")

    def test_penstock_run_keeps_the_users_tunables(self):
        if not ARGUMENTS.penstock:
            self.skipTest("no --penstock")
        ours = "glibc.rtld.optional_static_tls=32768"
        theirs = "glibc.rtld.optional_static_tls=4096"
        other = "glibc.malloc.check=0"
        show = ("sh", "-c", "echo $GLIBC_TUNABLES")
        for present, expected in (
            ("", ours),
            (other, f"{other}:{ours}"),
            (theirs, theirs),
            (f"{other}:{theirs}", f"{other}:{theirs}"),
            (f"x{theirs}", f"x{theirs}:{ours}"),
        ):
            done = self.run_command(ARGUMENTS.penstock, "run", "--", *show, GLIBC_TUNABLES=present)
            self.assertEqual(done.stdout.strip(), expected)
        nested = self.run_command(ARGUMENTS.penstock, "run", "--", ARGUMENTS.penstock, "run", "--", *show)
        self.assertEqual(nested.stdout.strip(), ours)
        without = self.run_command(ARGUMENTS.penstock, "run", "--no-audit", "--", *show)
        self.assertEqual(without.stdout.strip(), "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--audit", required=True)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--penstock")
    ARGUMENTS, others = parser.parse_known_args()
    if not shutil.which(ARGUMENTS.cc):
        print(f"skipped: no C compiler {ARGUMENTS.cc}")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *others])
