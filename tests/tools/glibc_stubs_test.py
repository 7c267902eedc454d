"""Tests programs linked with packaging/manylinux/glibc_stubs.py: they need only old symbol versions, and they run. Needs g++ with glibc on x86-64 or aarch64.

Usage: glibc_stubs_test.py CXX
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging" / "manylinux"))
import glibc_stubs  # noqa: E402

COMPILER = sys.argv.pop(1) if len(sys.argv) > 1 else "c++"
LIMIT = glibc_stubs.LIMIT

# Constructors, threads, exceptions, a wait by steady_clock, and calls that are newer than the limit or have newer versions.
PROGRAM = r"""
#include <condition_variable>
#include <cmath>
#include <dlfcn.h>
#include <filesystem>
#include <iostream>
#include <random>
#include <sched.h>
#include <sys/epoll.h>
#include <thread>
#include <unistd.h>
struct counter { int count = 0; counter() { ++count; std::cout << "constructed" << std::endl; } ~counter() { std::cout << "destroyed" << std::endl; } } made;
int main(int count, char**) {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  bool late = condition.wait_for(lock, std::chrono::milliseconds(1)) == std::cv_status::timeout;
  bool caught = false;
  std::thread([&] { try { throw std::runtime_error("x"); } catch (const std::exception&) { caught = true; } }).join();
  std::random_device random;
  bool drawn = random() != random() || random() != random();
  epoll_event event;
  timespec limit{0, 1};
  int waited = epoll_pwait2(epoll_create1(0), &event, 1, &limit, nullptr);
  unsigned cpu = 0, node = -1;
  bool placed = getcpu(&cpu, &node) == 0 && node != -1U;
  std::cout << late << caught << drawn << (waited == 0 || errno == ENOSYS) << (gettid() == getpid()) << placed << (std::pow(2.0, count) == 2.0)
            << (dlopen("no_such_library", RTLD_NOW) == nullptr) << std::filesystem::is_directory("/") << !std::filesystem::exists("/no/such")
            << (environ[0] != nullptr) << std::endl;
}
"""

# The wait of a glibc without pthread_cond_clockwait, by name, since this machine's glibc has it.
WAITS = r"""
#include "compat_conditions.c"
#include <stdio.h>
static struct timespec from_now(clockid_t clock, long milliseconds) {
  struct timespec when;
  clock_gettime(clock, &when);
  when.tv_nsec += milliseconds * 1000000;
  when.tv_sec += when.tv_nsec / nanoseconds;
  when.tv_nsec %= nanoseconds;
  return when;
}
int main(void) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  pthread_mutex_lock(&mutex);
  struct timespec when = from_now(CLOCK_MONOTONIC, 20);
  int told;
  while ((told = wait_in_slices(&condition, &mutex, CLOCK_MONOTONIC, &when)) == 0) {}
  printf("%d %d\n", told == ETIMEDOUT, until(CLOCK_MONOTONIC, &when) <= 0);
  when = from_now(CLOCK_MONOTONIC, 1200);
  printf("%d\n", wait_in_slices(&condition, &mutex, CLOCK_MONOTONIC, &when));
  when = from_now(CLOCK_MONOTONIC, -2000);
  printf("%d\n", wait_in_slices(&condition, &mutex, CLOCK_MONOTONIC, &when) == ETIMEDOUT);
  printf("%d\n", wait_in_slices(&condition, &mutex, CLOCK_PROCESS_CPUTIME_ID, &when) == EINVAL);
  return 0;
}
"""

NUMBERS = r"""
#include <stdio.h>
long __isoc23_strtol(const char*, char**, int);
unsigned long __isoc23_strtoul(const char*, char**, int);
long long __isoc23_strtoll(const char*, char**, int);
unsigned long long __isoc23_strtoull(const char*, char**, int);
extern char __libc_single_threaded;
int main(void) {
  printf("%ld %lu %lld %llu %d\n", __isoc23_strtol("-5", 0, 10), __isoc23_strtoul("6", 0, 10), __isoc23_strtoll("-7", 0, 10),
         __isoc23_strtoull("8", 0, 10), __libc_single_threaded);
}
"""

LATER = "int pidfd_open(int, unsigned);\nint main(void) { return pidfd_open(1, 0); }"  # glibc 2.36

SHARED = r"""
#include <string>
#include <vector>
extern "C" __attribute__((visibility("default"))) int length(const char* text) { return (int)std::vector<std::string>{text, text}.back().size(); }
"""


class Stubs(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(tempfile.mkdtemp(prefix="penstock-stubs-"))
        cls.flags = glibc_stubs.make(cls.folder / "glibc", LIMIT)
        source, compiled, cls.program, cls.plain = (cls.folder / each for each in ("program.cc", "program.o", "program", "plain"))
        source.write_text(PROGRAM)
        subprocess.run([COMPILER, "-std=c++20", "-O1", "-fPIC", "-c", str(source), "-o", str(compiled)], check=True)
        subprocess.run([COMPILER, str(compiled), *cls.flags, "-o", str(cls.program)], check=True)
        subprocess.run([COMPILER, str(compiled), "-o", str(cls.plain)], check=True)

    @classmethod
    def tearDownClass(cls) -> None:
        shutil.rmtree(cls.folder)

    def build(self, name: str, text: str, *options: str, suffix: str = "cc") -> Path:
        source, made = self.folder / f"{name}.{suffix}", self.folder / name
        source.write_text(text)
        language = [COMPILER, "-std=c++20"] if suffix == "cc" else ["gcc", "-I", str(glibc_stubs.HERE)]
        subprocess.run([*language, "-O2", "-fPIC", str(source), *options, *self.flags, "-o", str(made)], check=True)
        return made

    def output(self, program: Path) -> str:
        return subprocess.run([str(program)], check=True, capture_output=True, text=True, timeout=60).stdout

    def assert_is_old(self, made: Path) -> None:
        told = subprocess.run(["readelf", "--version-info", "--dynamic", "--wide", str(made)], check=True, capture_output=True, text=True).stdout
        versions = {tuple(map(int, each.split("."))) for each in re.findall(r"GLIBC_([\d.]+)", told)}
        self.assertTrue(versions)
        self.assertLessEqual(max(versions), LIMIT)
        self.assertNotIn("GLIBC_ABI", told)
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", told))
        self.assertLessEqual(needed, {*glibc_stubs.LIBRARIES, glibc_stubs.target_of(COMPILER).loader, "libgcc_s.so.1"})

    def test_a_program_asks_for_old_versions_only_and_runs_its_constructors_once(self) -> None:
        self.assert_is_old(self.program)
        self.assertEqual(self.output(self.program), "constructed\n11111111111\ndestroyed\n")

    def test_without_the_stand_ins_the_same_program_asks_for_newer_versions(self) -> None:
        if tuple(map(int, platform.libc_ver()[1].split("."))) < (2, 34):
            self.skipTest("this machine's glibc is older than 2.34")
        with self.assertRaises(AssertionError):
            self.assert_is_old(self.plain)

    def test_threads_and_dlopen_are_looked_for_where_they_were(self) -> None:
        told = subprocess.run(["readelf", "--dynamic", str(self.program)], check=True, capture_output=True, text=True).stdout
        self.assertIn("[libpthread.so.0]", told)
        self.assertIn("[libdl.so.2]", told)

    def test_a_library_keeps_the_standard_library_to_itself(self) -> None:
        made = self.build("shared.so", SHARED, "-shared", "-fvisibility=hidden")
        self.assert_is_old(made)
        told = subprocess.run(["nm", "-D", "--defined-only", str(made)], check=True, capture_output=True, text=True).stdout
        exported = [line.split()[-1].split("@")[0] for line in told.splitlines()]
        self.assertIn("length", exported)
        self.assertFalse([each for each in exported if each in ("fstat", "__libc_start_main", "pthread_cond_clockwait", "_Znwm")])

    def test_a_call_that_came_later_and_that_nothing_stands_for_does_not_link(self) -> None:
        with self.assertRaises(subprocess.CalledProcessError):
            self.build("later", LATER, suffix="c")

    def test_what_would_not_link_is_named_by_looking_at_a_program_that_was_linked_without_the_stand_ins(self) -> None:
        source, later = self.folder / "linked_later.c", self.folder / "linked_later"
        source.write_text(LATER)
        subprocess.run(["gcc", str(source), "-o", str(later)], check=True)
        self.assertEqual(glibc_stubs.complaints([self.plain]), [])
        (told,) = glibc_stubs.complaints([self.plain, later])
        self.assertRegex(told, r"^linked_later: pidfd_open is in glibc 2\.36 and newer; wheels are for 2\.28")

    def test_waits_by_the_clock_of_the_wall_end_when_the_steady_clock_says_so(self) -> None:
        made = self.build("waits", WAITS, suffix="c")
        self.assertEqual(self.output(made), "1 1\n0\n1\n1\n")

    def test_numbers_are_read_by_the_older_functions(self) -> None:
        made = self.build("numbers", NUMBERS, suffix="c")
        self.assertEqual(self.output(made), "-5 6 -7 8 0\n")

    def test_a_compiler_for_another_processor_has_stand_ins_for_its_own_glibc(self) -> None:
        compiler = shutil.which("aarch64-linux-gnu-g++")
        if compiler is None:
            self.skipTest("there is no aarch64-linux-gnu-g++")
        source, made = self.folder / "foreign.cc", self.folder / "foreign"
        source.write_text(PROGRAM)
        flags = glibc_stubs.make(self.folder / "aarch64", LIMIT, compiler.replace("g++", "gcc"))
        subprocess.run([compiler, "-std=c++20", str(source), *flags, "-o", str(made)], check=True)
        told = subprocess.run(["readelf", "--version-info", "--dynamic", "--wide", str(made)], check=True, capture_output=True, text=True).stdout
        self.assertLessEqual(max(tuple(map(int, each.split("."))) for each in re.findall(r"GLIBC_([\d.]+)", told)), LIMIT)

    def test_a_compiler_for_a_processor_that_gets_no_wheel_is_named(self) -> None:
        compiler = self.folder / "cc"
        compiler.write_text("#!/bin/sh\necho riscv64-linux-gnu\n")
        compiler.chmod(0o755)
        with self.assertRaisesRegex(FileNotFoundError, "is for riscv64; this works with glibc on x86_64 and aarch64 only"):
            glibc_stubs.target_of(str(compiler))

    def test_a_library_that_is_nowhere_is_named(self) -> None:
        with self.assertRaisesRegex(FileNotFoundError, "libnowhere.so.9"):
            glibc_stubs.installed("libnowhere.so.9", "gcc")


class Command(unittest.TestCase):
    """tools/wheels, as far as it goes without building."""

    def wheels(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "tools" / "wheels"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)

    def test_a_version_that_gets_no_wheel_is_named(self) -> None:
        told = self.wheels("--python", "3.9")
        self.assertEqual(told.returncode, 2)
        self.assertIn('no wheel is made for Python "3.9"; those are made for: 3.10, 3.11, 3.12', told.stderr)

    def test_interpreters_that_are_missing_are_named_and_the_exit_status_says_so(self) -> None:
        with tempfile.TemporaryDirectory() as empty:
            told = self.wheels("--python", "3.10,3.11", PATH=empty, PYENV_ROOT=empty)
        self.assertEqual(told.returncode, 3)
        for version in ("3.10", "3.11"):
            self.assertIn(f"no wheel for Python {version}: python{version} with its headers not found", told.stderr)

    def test_the_help_says_how_old_the_c_library_may_be(self) -> None:
        told = self.wheels("--help")
        self.assertEqual(told.returncode, 0)
        self.assertIn("glibc 2.28 or newer", told.stdout)

    def test_a_header_that_is_missing_is_named_with_its_package(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("python3.11", "#!/bin/sh\necho 3 11 True\n"), ("no_headers", "#!/bin/sh\nexit 1\n")):
                (Path(folder) / name).write_text(text)
                (Path(folder) / name).chmod(0o755)
            told = self.wheels("--python", "3.11", PATH=f"{folder}:{os.environ['PATH']}", CC=f"{folder}/no_headers")
        self.assertEqual(told.returncode, 1)
        self.assertIn("liburing.h not found: install the package liburing-dev", told.stderr)


def main() -> int:
    if platform.machine() not in glibc_stubs.TARGETS or platform.libc_ver()[0] != "glibc":
        print(f"skipped: wheels are made with glibc on x86-64 and aarch64 only; this is {platform.machine()} with {platform.libc_ver()[0] or 'another C library'}")
        return 77
    return 0 if unittest.main(exit=False, verbosity=1).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
