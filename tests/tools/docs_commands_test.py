"""Tests that every shell command in README.md and docs runs as written, on an installed Penstock.

Each page has its own folder. It is empty for the first block of the page; the files that later commands name (FILES) are added after that.

Usage: docs_commands_test.py short CMAKE BUILD_DIRECTORY PAGE
       docs_commands_test.py long CMAKE BUILD_DIRECTORY

short installs the build and runs the commands of one page, except those in MEASURING and LONG, which take longer and run with long.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(page for page in (ROOT / "docs").glob("*/*.md") if page.name != "messages.md")])

# In the root of the sources, in this order. DESTDIR keeps the last out of /usr/local.
DEVICES = "python3 -c 'import penstock; print(penstock.devices()[0].name)'"
DEB = "cd build/install && cpack -G DEB"
REPORT = "penstock bench --quick --size 64MiB --rows hot-4g --report report.html"
MEASURING = ("penstock demo", "penstock bench --quick", "penstock bench --quick --size 64MiB", REPORT)
LONG = ("./demo", "cmake --preset install", "cmake --build --preset install", "cmake --install build/install", DEB, "pip install .", DEVICES)
ELSEWHERE = {"./test": "this test is part of it", "tools/setup": "./demo runs it"}
ELSEWHERE["pip install . --config-settings=cmake.define.PENSTOCK_BUILD_CLI=OFF"] = "source_build_test.py does"

MLPERF = "python3 bench/mlperf_kv_bench.py storage/kv_cache_benchmark /mnt/nvme --gpu-mem-gb 0 --cpu-mem-gb 0 --generation-mode none"
ELSEWHERE[MLPERF] = "nowhere: it needs mlcommons/storage and an hour"

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LOOKS_LIKE_A_COMMAND = re.compile(r"^(?:\$ |\./|[A-Z_]+=\S+ |(?:penstock|cmake|pip|python3?|c\+\+|cc|sudo|apt) )", re.MULTILINE)
INLINE = re.compile(r"`penstock ([a-z-]+)([^`]*)`")

TRAIN = "import ctypes\nctypes.CDLL('libcufile.so.0').cuFileGetVersion\nprint('trained')\n"
CUFILE_JSON = '{"properties": {"use_poll_mode": true}}\n'
APP_C = """#include <cufile.h>
#include <stdio.h>
int main(void) {
  int version = 0;
  CUfileError_t error = cuFileGetVersion(&version);
  printf("cuFile %d\\n", version);
  return error.err != CU_FILE_SUCCESS || version == 0;
}
"""

HEADER = b'{"weight":{"dtype":"U8","shape":[5000000],"data_offsets":[0,5000000]}}'
MODEL = len(HEADER).to_bytes(8, "little") + HEADER + bytes(5_000_000)
FILES = {"train.py": TRAIN.encode(), "cufile.json": CUFILE_JSON.encode(), "app.c": APP_C.encode(), "model.safetensors": MODEL}

failures: list[str] = []


def check(good: bool, what: str) -> None:
    print(("ok      " if good else "FAILED  ") + what, flush=True)
    if not good:
        failures.append(what)


def commands_in(block: str) -> list[str]:
    lines = [line.split("  #")[0].split(" # ")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line]


def commands(page: Path) -> list[str]:
    return [command for language, text in FENCE.findall(page.read_text()) if language == "sh" for command in commands_in(text)]


def shell_stands_in_sh_blocks_only(page: Path) -> None:
    for language, text in FENCE.findall(page.read_text()):
        hidden = language in ("", "text", "bash", "console") and LOOKS_LIKE_A_COMMAND.search(text)
        check(not hidden, f"{page.name}: no shell in a block that is not sh{': ' + hidden.group() if hidden else ''}")


def run(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3600
    )


def must_run(command: str, folder: Path, environment: dict[str, str]) -> str:
    ended = run(command, folder, environment)
    for _ in range(4):  # of a machine whose memory others want, which the benchmark says
        if ended.returncode == 0 or "does not stay in the page cache" not in ended.stdout:
            break
        ended = run(command, folder, environment)
    # What it finds broken is the machine's, not the page's.
    looked = command.startswith("penstock check") and ended.returncode == 3 and "broken" in ended.stdout
    check(ended.returncode == 0 or looked, command + ("" if ended.returncode == 0 else f": {ended.returncode}\n{ended.stdout}"))
    return ended.stdout


def options_in_the_text_exist(page: Path, environment: dict[str, str]) -> None:
    for name, rest in INLINE.findall(page.read_text()):
        if name == "help":
            continue
        helped = run(f"penstock help {name}", ROOT, environment)
        own = rest.split(" -- ")[0]
        missing = [each for each in re.findall(r"(?<!\S)--[a-z-]+", own) if not re.search(re.escape(each) + r"\b", helped.stdout)]
        check(helped.returncode == 0 and not missing, f"{page.name}: `penstock {name}{rest}` {' '.join(missing)}")


def programs_in(page: str, language: str) -> list[str]:
    """The code blocks of that language, of a page named from the root of the sources."""
    return [text for found, text in FENCE.findall((ROOT / page).read_text()) if found == language]


def the_first_program_in_cpp(folder: Path, environment: dict[str, str]) -> None:
    """After app.cc has been built: it reads its file, and says so if there is no engine."""
    check("1048576 bytes" in must_run("./app", folder, environment), "the program of guides/cpp.md reads its file")
    ended = run("PENSTOCK_PATH=sideways ./app", folder, environment)
    check(ended.returncode == 1 and "sideways" in ended.stdout, f"it says why there is no engine: {ended.stdout}")


def programs_of(page: Path, folder: Path, environment: dict[str, str]) -> None:
    """The whole programs in C and C++ of the page, compiled as the pages say."""
    compilers = {"c": "cc {} $(pkg-config --cflags --libs penstock-cufile)", "cpp": "c++ -std=c++20 {} $(pkg-config --cflags --libs penstock)"}
    programs = [(language, text) for language, text in FENCE.findall(page.read_text()) if language in compilers and "int main" in text]
    check(page.stem not in ("cpp", "cufile") or bool(programs), f"{page.name} has a program")
    for number, (language, text) in enumerate(programs):
        place = folder / f"program{number}"
        place.mkdir()
        source = place / f"app.{'c' if language == 'c' else 'cc'}"
        source.write_text(text)
        must_run(f"{compilers[language].format(source)} -o app", place, environment)
        check("1048576 bytes" in must_run("./app", place, environment), f"the program of {page.name} makes its file and reads it")
        ended = run(f"cd /proc && {place}/app", place, environment)  # where nobody can make a file
        check(ended.returncode == 1 and len(ended.stdout) > 10, f"the program of {page.name} says what is wrong: {ended.stdout}")


def installed(cmake: str, build: str, folder: Path) -> dict[str, str]:
    """The environment of a user of the installed build."""
    prefix = folder / "usr/local"
    subprocess.run([cmake, "--install", build, "--prefix", str(prefix)], check=True, stdout=subprocess.DEVNULL)
    environment = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "CMAKE_PREFIX_PATH")}
    environment["TMPDIR"] = str(folder)
    environment["PATH"] = f"{prefix}/bin:{environment['PATH']}"
    environment["PKG_CONFIG_PATH"] = str(next(prefix.glob("lib*/**/pkgconfig")))
    return environment


def short(page: Path, folder: Path, environment: dict[str, str]) -> None:
    shell_stands_in_sh_blocks_only(page)
    options_in_the_text_exist(page, environment)
    work = folder / page.stem
    work.mkdir()
    for block, (language, text) in enumerate(FENCE.findall(page.read_text())):
        if block == 1:
            for name, content in {**FILES, "app.cc": programs_in("docs/guides/cpp.md", "cpp")[0].encode()}.items():
                (work / name).write_bytes(content)
        for command in commands_in(text) if language == "sh" else ():
            if command in (*MEASURING, *LONG) or command in ELSEWHERE:
                continue
            must_run(command, work, environment)
            if command.startswith("c++ "):
                the_first_program_in_cpp(work, environment)
    if ROOT / "docs" in page.parents:
        programs_of(page, folder, environment)


def long(folder: Path, of_user: dict[str, str]) -> None:
    environment = {**os.environ, "DESTDIR": str(folder / "installed")}
    venv.create(folder / "venv", with_pip=True)
    of_python = {**os.environ, "PATH": f"{folder}/venv/bin:{os.environ['PATH']}", "TMPDIR": str(folder)}
    shutil.rmtree(ROOT / "build/install/_CPack_Packages", ignore_errors=True)
    for old in (ROOT / "build/install").glob("*.deb"):
        old.unlink()
    written = [command for page in PAGES for command in commands(page)]
    for command in (*MEASURING, *LONG):
        check(command in written, f"{command} stands in a page")
    for command in MEASURING:
        must_run(command, folder, of_user)
    for command in LONG:
        must_run(command, ROOT, of_python if command.startswith("p") else {**environment, "TMPDIR": str(folder)})
    found = list((folder / "installed").glob("**/bin/penstock"))
    check(len(found) == 1 and not list((ROOT / "build/install").glob("tests/penstock_*_tests")), "the command was installed, and no test built")
    must_run(f"{found[0]} --version", folder, dict(os.environ))
    check(len(list((ROOT / "build/install").glob("*.deb"))) == 3, "three Debian packages were made")


def main() -> int:
    selection, cmake, build, *page = sys.argv[1:]
    folder = Path(tempfile.mkdtemp(prefix="penstock-docs-", dir="/var/tmp"))
    try:
        environment = installed(cmake, build, folder)
        if selection == "short":
            short(ROOT / page[0], folder, environment)
        else:
            long(folder, environment)
    finally:
        shutil.rmtree(folder)
    print(f"{len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
