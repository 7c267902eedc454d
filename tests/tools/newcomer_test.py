"""Plays a newcomer: a bare Debian 12 in a folder, a clean copy of the sources in it, and the commands of the first pages, as written.

Usage: newcomer_test.py [--keep] [--root FOLDER]

debootstrap (fetched from the package mirror if it is not installed) makes the root; the test enters it by chroot, in its own mount namespace. Then:
./demo builds and shows the main job; the recipe of start/install.md installs into /usr/local; pkg-config and CMake build the C++ program of
guides/cpp.md against that; the commands of README.md and reference/commands.md run; and an empty virtual environment gets the wheel that pip builds.
In it, the program of start/first-steps.md that needs no other library runs, and every function accepts every spelling of a device.
Needs root, unshare and a package mirror; otherwise it exits with 77 and says why. Takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import docs_commands_test as docs

SKIPPED = 77
MIRROR = "http://deb.debian.org/debian"
SUITE = "bookworm"
SOURCES = "/root/penstock"
WORK = "/root/work"
# What this machine needs to reach its mirrors, which a machine of a newcomer's own has by itself.
BORROWED = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
BORROWED_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_CERT", "PIP_FIND_LINKS", "SSL_CERT_FILE")

CMAKE_LISTS = """cmake_minimum_required(VERSION 3.25)
project(app CXX)
find_package(penstock REQUIRED)
add_executable(app app.cc)
target_link_libraries(app PRIVATE penstock::penstock)
"""
READ_WITH_PYTHON = """import penstock
with penstock.open("model.safetensors") as file:
    assert file.read_into(memoryview(bytearray(5_000_000))) == 5_000_000
    buffer = penstock.device("host:0").empty(5_000_000)
    assert file.read_into(buffer) == 5_000_000
    print(file.explain())
"""


class Skip(Exception):
    """Why this cannot run here."""


def run(command: list[str], **how: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)  # type: ignore[call-overload]


def debootstrap(folder: Path) -> tuple[str, dict[str, str]]:
    if found := shutil.which("debootstrap"):
        return found, {}
    fetched = run(["apt-get", "download", "debootstrap"], cwd=folder)
    packages = list(folder.glob("debootstrap_*.deb"))
    if fetched.returncode != 0 or not packages:
        raise Skip(f"debootstrap is not installed, and cannot be fetched: {fetched.stdout.strip()[-300:]}")
    subprocess.run(["dpkg", "-x", str(packages[0]), str(folder / "debootstrap")], check=True)
    return str(folder / "debootstrap/usr/sbin/debootstrap"), {"DEBOOTSTRAP_DIR": str(folder / "debootstrap/usr/share/debootstrap")}


def make_root(folder: Path) -> Path:
    root = folder / "root"
    program, variables = debootstrap(folder)
    made = run([program, "--variant=minbase", "--include=ca-certificates", SUITE, str(root), MIRROR], env={**os.environ, **variables})
    if made.returncode != 0:
        raise Skip(f"debootstrap made no root: {made.stdout.strip()[-500:]}")
    for name in BORROWED:
        if Path(name).exists():
            (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, root / name[1:])
    for name in Path("/etc/apt/apt.conf.d").glob("99*"):
        shutil.copy(name, root / "etc/apt/apt.conf.d")
    return root


class Newcomer:
    """At a shell in the root, as the user root with a bare environment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TERM": "dumb", "LANG": "C.UTF-8"}
        self.environment |= {name: os.environ[name] for name in BORROWED_VARIABLES if name in os.environ}

    def types(self, command: str, folder: str = WORK) -> str:
        """Its output; what fails is noted, and so is how long it took."""
        mounts = f"mount -t proc proc {self.root}/proc && mount --rbind /dev {self.root}/dev && mount -t sysfs sysfs {self.root}/sys"
        script = f'{mounts} && exec chroot {self.root} /bin/sh -c "cd {folder} && exec bash -c \\"\\$0\\"" "$0"'
        with tempfile.TemporaryFile("w+") as output:
            ended = subprocess.run(
                ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, command],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=3600,
            )
            output.seek(0)
            told = output.read()
        docs.check(ended.returncode == 0, command + ("" if ended.returncode == 0 else f": {ended.returncode}\n{told[-3000:]}"))
        return told

    def write(self, name: str, text: str | bytes) -> None:
        path = self.root / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)


def commands() -> list[str]:
    """./demo, which installs what it needs itself; the rest of the packages, the recipe that installs with CMake, and then the commands of the pages that need an installed Penstock."""
    recipe = [command for command in docs.commands(docs.ROOT / "docs/start/install.md") if command.startswith("cmake ")]
    pages = [command for page in ("docs/guides/cpp.md", "README.md", "docs/reference/commands.md") for command in docs.commands(docs.ROOT / page)]
    # pip gets an environment of its own later.
    others = [command for command in pages if command not in docs.ELSEWHERE and not command.startswith(("pip ", "./demo"))]
    return ["./demo", "tools/setup", *recipe, *others]


def first_hour(root: Path) -> None:
    user = Newcomer(root)
    (root / SOURCES[1:]).mkdir(parents=True)
    archive = subprocess.run(["git", "-C", str(docs.ROOT), "archive", "HEAD"], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", str(root / SOURCES[1:])], input=archive, check=True)
    user.write(f"{WORK}/train.py", docs.TRAIN)
    user.write(f"{WORK}/cufile.json", docs.CUFILE_JSON)
    user.write(f"{WORK}/model.safetensors", docs.MODEL)
    user.write(f"{WORK}/app.cc", docs.programs_in("docs/guides/cpp.md", "cpp")[0])
    user.write(f"{WORK}/CMakeLists.txt", CMAKE_LISTS)
    user.write(f"{WORK}/read.py", READ_WITH_PYTHON)

    in_the_sources = ("./", "cmake ", "tools/")
    for command in commands():
        told = user.types(command, SOURCES if command.startswith(in_the_sources) else WORK)
        if command == "./demo":
            docs.check("equal" in told, f"./demo compared the bytes: {told[-1000:]}")
        if command.startswith("c++ "):
            docs.check("1048576 bytes" in user.types("./app"), "the program of guides/cpp.md reads its file")
    user.types("cmake -G Ninja -S . -B with_cmake && cmake --build with_cmake")
    docs.check("1048576 bytes" in user.types("with_cmake/app"), "built by CMake it reads its file too")

    user.types("python3 -m venv /root/empty")
    user.types("/root/empty/bin/pip install --quiet .", SOURCES)
    docs.check("staged" in user.types("/root/empty/bin/python read.py"), "the package reads a file, in an environment without NumPy")
    user.types("/root/empty/bin/penstock read model.safetensors --verify")
    needs_nothing = next(code for code in docs.programs_in("docs/start/first-steps.md", "python") if "import torch" not in code)
    user.write("/root/first_screen/first.py", needs_nothing)
    output = user.types("/root/empty/bin/python first.py", "/root/first_screen")
    docs.check("4000000 bytes are in memory of host:0" in output, f"start/first-steps.md's program runs with nothing but Penstock installed: {output}")
    user.types(f"/root/empty/bin/python {SOURCES}/tests/tools/device_names.py", "/root/first_screen")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--keep", action="store_true", help="leave the folder for another look")
    parser.add_argument("--root", type=Path, help="a bare Debian 12 that is there already")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-newcomer-", dir="/var/tmp"))
    try:
        if os.geteuid() != 0:
            raise Skip("making a root for the newcomer needs root")
        if run(["unshare", "--mount", "true"]).returncode != 0:
            raise Skip("mounts of one's own are not allowed here")
        first_hour(given.root or make_root(folder))
    except Skip as why:
        print(f"skipped: {why}")
        return SKIPPED
    finally:
        if given.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    print(f"{len(docs.failures)} failed")
    return 1 if docs.failures else 0


if __name__ == "__main__":
    sys.exit(main())
